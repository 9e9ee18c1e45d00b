"""CPU, memory and connections of processes, as /proc tells them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ESTABLISHED = "01"


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes so far, all threads."""
    total = 0
    for pid in pids:
        # The command name may contain spaces and brackets: fields are counted after its last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def private_rss_mb(pid: int | str) -> float:
    """Resident memory beyond the shared segment: RssAnon + RssFile, in MB (10^6 bytes)."""
    wanted = {"RssAnon", "RssFile"}
    kilobytes = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in wanted:
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
