"""CPU, memory and connections of processes, from /proc."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_ESTABLISHED = "01"
_PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED of a whole process, as clock_getcpuclockid(3) computes it from a pid."""


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the user and system time of these processes so far, of all threads, in seconds.

    The clock counts nanoseconds; /proc/PID/stat has ticks of 10 ms, about the cost of 30,000 records. Raises OSError
    for a process that is gone.
    """
    return sum(time.clock_gettime((~pid << 3) | _PROCESS_CLOCK) for pid in pids)


def main_thread_cpu_seconds(pid: int) -> float:
    """Return the same for the first thread of a process. Raises OSError for a process that is gone."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def private_rss_mb(pid: int | str) -> float:
    """Return resident memory beyond the shared segment: RssAnon + RssFile, in MB (10^6 bytes)."""
    return _rss_mb(pid, "RssAnon", "RssFile")


def anonymous_rss_mb(pid: int) -> float:
    """Return resident memory that belongs to no file: RssAnon, in MB."""
    return _rss_mb(pid, "RssAnon")


def _rss_mb(pid: int | str, *kinds: str) -> float:
    kilobytes = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in kinds:
            kilobytes += int(value.split()[0])
    return kilobytes * 1024 / 1e6


def own_rss_mb() -> float:
    return private_rss_mb("self")


def connections_to(port: int) -> int:
    """Return the number of established TCP connections whose server port is ``port`` on this host."""
    found = 0
    for name in ("tcp", "tcp6"):
        path = Path(f"/proc/net/{name}")
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _ESTABLISHED:
                found += 1
    return found
