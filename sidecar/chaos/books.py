"""The daemon's own word on a run: its books at the end, and lines of its log that tell of a bug."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.testing.daemon import SidecarDaemon
from sidecar.testing.metrics import metric
from sidecar.testing.waiting import ConditionTimeout, wait_until

BOOKS_S_MAX = 150.0
"""Longer than delivery.timeout.ms: by then everything has an end."""
BAD_LINES = re.compile(r"Traceback|ALARM|CRITICAL")
BAD_LINES_MAX = 20


@dataclass
class Books:
    """The daemon's counts over all its lives: the counters live in the segment."""

    accepted: int = 0
    delivered: int = 0
    failed: int = 0
    dead_lettered: int = 0
    adopted: int = 0
    resent_unknown: int = 0

    @property
    def held(self) -> int:
        """Accepted and without an end: 0 once all is over."""
        return self.accepted - self.delivered - self.failed - self.dead_lettered


def balanced_books(daemon: SidecarDaemon) -> Books:
    """The daemon's counts once everything has an end, or when it should have."""

    def read() -> Books:
        def count(name: str) -> int:
            return int(metric(daemon, f"kafka_sidecar_records_{name}_total"))

        names = ("accepted", "delivered", "failed", "dead_lettered", "adopted", "resent_unknown")
        return Books(**{name: count(name) for name in names})

    with contextlib.suppress(ConditionTimeout):
        wait_until(
            lambda: read().held == 0,
            "the daemon's books to balance",
            timeout_s=BOOKS_S_MAX,
            interval_s=0.2,
        )
    return read()


def bad_lines(lines: Iterable[str]) -> list[str]:
    """Alarms and tracebacks of the daemon's log, each traceback whole and as one text; the first few of them."""
    found: list[str] = []
    inside = False
    for line in lines:
        if inside:
            found[-1] += line
            inside = line.startswith((" ", "\n"))
        elif BAD_LINES.search(line):
            found.append(line)
            inside = line.startswith("Traceback")
    return found[:BAD_LINES_MAX]
