"""The ``process_*`` metrics of each daemon process, from /proc, with the names of Prometheus' own client libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.shm.counters import Kind

PROCESS_LABELS: Final = ("role", "worker")
"""``role``: controller, worker or standby. ``worker``: the index of a worker, else empty."""


class ProcessRow(NamedTuple):
    """A metric of a process; its name has no prefix of ours. The other fields are those of CounterRow."""

    name: str
    kind: Kind
    unit: str
    help: str
    worry: str = ""


PROCESS_ROWS: Final = (
    ProcessRow(
        "process_cpu_seconds_total",
        "counter",
        "seconds",
        "User and system CPU time of the process.",
        "A rate near 1 for a worker: it needs a whole CPU; more workers (`daemon.workers`) share the load.",
    ),
    ProcessRow(
        "process_resident_memory_bytes",
        "gauge",
        "bytes",
        "Resident memory; the pages of the segment that the process has touched are part of it.",
    ),
    ProcessRow("process_virtual_memory_bytes", "gauge", "bytes", "Virtual memory."),
    ProcessRow(
        "process_open_fds",
        "gauge",
        "descriptors",
        "Open file descriptors.",
        "Near `process_max_fds`: raise the limit of the service (LimitNOFILE).",
    ),
    ProcessRow("process_max_fds", "gauge", "descriptors", "The most file descriptors that it may have."),
    ProcessRow("process_start_time_seconds", "gauge", "seconds", "Start of the process, Unix time."),
)
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessSample(NamedTuple):
    """One process: its values by name, as far as they could be read."""

    labels: tuple[str, str]
    values: Mapping[str, float]


def read_processes(status: Mapping[str, Any]) -> Iterator[ProcessSample]:
    """The daemon's processes that ``status`` names and that exist."""
    processes = [("controller", "", status["pid"])]
    processes += [("worker", str(worker["index"]), worker["pid"]) for worker in status["workers"]]
    if status.get("standby"):
        processes.append(("standby", "", status["standby"]))
    for role, worker, pid in processes:
        values = _proc_values(Path("/proc") / str(pid))
        if values:
            yield ProcessSample((role, worker), values)


def _proc_values(folder: Path) -> dict[str, float]:
    """Values of the rows, by name, from a process's folder of /proc; empty once it has ended."""
    try:
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return {}
    # proc(5): fields 14 and 15 are CPU ticks, and 22 is the start time; the list lacks the first two fields.
    values = {
        "process_cpu_seconds_total": (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND,
        "process_start_time_seconds": _boot_time() + int(fields[19]) / _TICKS_PER_SECOND,
        "process_virtual_memory_bytes": float(fields[20]),
        "process_resident_memory_bytes": float(fields[21]) * _PAGE_BYTES,
    }
    try:
        values["process_open_fds"] = float(sum(1 for _ in (folder / "fd").iterdir()))
        for line in (folder / "limits").read_text().splitlines():
            if line.startswith("Max open files"):
                values["process_max_fds"] = float(line.split()[3].replace("unlimited", "inf"))
    except OSError:
        pass  # another user's process, which a container may not be allowed to read
    return values


@cache
def _boot_time() -> int:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    return 0
