"""CPU, memory and connections of processes, as /proc tells them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_ESTABLISHED = "01"
_PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED of a whole process, as clock_getcpuclockid(3) makes it out of a pid."""


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes so far, all threads, to the nanosecond (/proc/PID/stat has ticks of
    10 ms, which is as much as 30,000 records cost). Raises OSError for a process that is gone.
    """
    return sum(time.clock_gettime((~pid << 3) | _PROCESS_CLOCK) for pid in pids)


def main_thread_cpu_seconds(pid: int) -> float:
    """The same of a process's first thread alone. Raises OSError for a process that is gone."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def private_rss_mb(pid: int | str) -> float:
    """Resident memory beyond the shared segment: RssAnon + RssFile, in MB (10^6 bytes)."""
    return _rss_mb(pid, "RssAnon", "RssFile")


def anonymous_rss_mb(pid: int) -> float:
    """Resident memory that is no file's: RssAnon, in MB."""
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
    """Established TCP connections whose server side is ``port`` on this host."""
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
