"""The daemon's own counts of a run at its end, and the lines of its log that indicate a bug."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import ConditionTimeout, wait_until

BOOKS_S_MAX = 150.0
"""Longer than delivery.timeout.ms: by then every record has an outcome."""
BAD_LINES = re.compile(r"Traceback|ALARM|CRITICAL")
BAD_LINES_MAX = 20


@dataclass
class Books:
    """The daemon's counts over all its restarts, as the counters are in the segment."""

    accepted: int = 0
    delivered: int = 0
    failed: int = 0
    dead_lettered: int = 0
    aborted: int = 0
    staged: int = 0
    """In stages that nobody has included."""
    adopted: int = 0
    resent_unknown: int = 0

    @property
    def held(self) -> int:
        """Accepted records without an outcome: 0 at the end."""
        ended = self.delivered + self.failed + self.dead_lettered + self.aborted
        return self.accepted - ended - self.staged


def balanced_books(daemon: SidecarDaemon) -> Books:
    """The daemon's counts once every record has an outcome, or after the time in which it should."""

    def read() -> Books:
        def count(name: str) -> int:
            return int(metric(daemon, f"kafka_sidecar_records_{name}_total"))

        names = ("accepted", "delivered", "failed", "dead_lettered", "aborted", "adopted", "resent_unknown")
        staged = int(metric(daemon, "kafka_sidecar_records_staged"))
        return Books(staged=staged, **{name: count(name) for name in names})

    with contextlib.suppress(ConditionTimeout):
        wait_until(
            lambda: read().held == 0,
            "the daemon's books to balance",
            timeout_s=BOOKS_S_MAX,
            interval_s=0.2,
        )
    return read()


def bad_lines(lines: Iterable[str]) -> list[str]:
    """Alarms and tracebacks of the daemon's log, each traceback as one text; only the first few."""
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
