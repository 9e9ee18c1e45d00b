"""Checks the memory limit of the daemon's cgroup against the daemon's needs: the kernel kills processes beyond it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.common.wording import counted
from sidecar.doctor.findings import Finding

PROCESS_BYTES: Final = 64 << 20
"""Private memory of a controller, a worker or a standby at work, with room for requests under way."""
FILES: Final = ("memory.max", "memory.limit_in_bytes")
"""Limit files of cgroup v2 and v1."""


class MemoryLimit(NamedTuple):
    """The lowest limit of a cgroup and its parents."""

    size_bytes: int
    file: Path
    """File that has the limit."""


def memory_findings(
    pid: int | None, pool_bytes: int, workers: int, *, pool_is_memory: bool, root: Path = Path("/")
) -> Iterator[Finding]:
    """Whether the cgroup of process ``pid`` (None: this one) has room for the pool and the daemon's processes.

    Pages of a pool in a disk file can be written back; those of a pool in memory cannot. ``root``: location of /proc
    and /sys.
    """
    limit = memory_limit(pid, root)
    if limit is None:
        yield Finding("ok", "No cgroup limits the memory of the daemon.")
        return
    processes = workers + 2  # the controller and the standby
    needed = processes * PROCESS_BYTES + (pool_bytes if pool_is_memory else 0)
    what = f"the pool (buffer.memory, {_mib(pool_bytes)}) and " if pool_is_memory else ""
    who = f"{what}{counted(workers, 'worker')}, a standby and the controller"
    shown = f"The cgroup's memory limit is {_mib(limit.size_bytes)} ({limit.file}); {who} need about {_mib(needed)}"
    if limit.size_bytes < needed:
        less = "buffer.memory or daemon.workers" if pool_is_memory else "daemon.workers"
        yield Finding("FAIL", f"{shown}: the kernel would kill them, so raise the limit or lower {less}.")
    else:
        yield Finding("ok", f"{shown}.")


def memory_limit(pid: int | None = None, root: Path = Path("/")) -> MemoryLimit | None:
    """Memory limit of cgroup v1 or v2; None without one. A limit above the host's memory does not count."""
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = [
        MemoryLimit(int(text), file)
        for file in _limit_files(root / "proc" / str(pid or "self") / "cgroup", root / "sys/fs/cgroup")
        if (text := _read(file)).isdigit()
    ]
    return min((each for each in found if each.size_bytes < host_bytes), default=None)


def _limit_files(table: Path, mounted: Path) -> Iterator[Path]:
    """Limit files of the process's cgroups and their parents. In a container the path may be the host's; then the
    mount's own files are the container's.
    """
    for line in _read(table).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = mounted, FILES[0]
        elif "memory" in controllers.split(","):
            base, name = mounted / "memory", FILES[1]
        else:
            continue
        here = base / path.lstrip("/")
        while True:
            yield here / name
            if here == base:
                break
            here = here.parent


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _mib(size_bytes: int) -> str:
    return f"{size_bytes >> 20:,} MiB"
