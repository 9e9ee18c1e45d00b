"""The memory limit of the daemon's cgroup against what the daemon takes: the kernel kills what goes beyond it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.common.wording import counted
from sidecar.doctor.findings import Finding

PROCESS_BYTES: Final = 64 << 20
"""Of a controller, a worker or a standby at work: its private memory, with room for requests under way."""
FILES: Final = ("memory.max", "memory.limit_in_bytes")
"""Of cgroup v2 and v1."""


class MemoryLimit(NamedTuple):
    """The lowest limit of a cgroup and of those that it is in."""

    size_bytes: int
    file: Path
    """It says so."""


def memory_findings(
    pid: int | None, pool_bytes: int, workers: int, *, pool_is_memory: bool, root: Path = Path("/")
) -> Iterator[Finding]:
    """Whether the cgroup of process ``pid`` (None: our own) has room for the pool and the daemon's processes.

    Pages of a pool in a file of a disk can be written back, those of one in memory cannot. ``root``: where /proc and
    /sys are.
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
    """Of cgroup v1 or v2; None without one. A limit beyond the host's memory is none."""
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = [
        MemoryLimit(int(text), file)
        for file in _limit_files(root / "proc" / str(pid or "self") / "cgroup", root / "sys/fs/cgroup")
        if (text := _read(file)).isdigit()
    ]
    return min((each for each in found if each.size_bytes < host_bytes), default=None)


def _limit_files(table: Path, mounted: Path) -> Iterator[Path]:
    """Of the process's cgroups and all above them. In a container the path may be that of the host: then the mount's
    own files are the container's."""
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
