"""HoldNotes: the held clients that are worth a note in status, without a flicker at short holds. Sans-IO.

A client at its rate is held, continues, and is held again some times a second. Reports come once a second and see it by
chance. So a note comes late, and stays until the client has not been held for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sidecar.common.condition import TROUBLE_MS, HoldRow

NOTE_MS: Final = 1_000.0
"""A hold of this length is worth a note. Several short ones are after TROUBLE_MS."""
BREAK_MS: Final = 3_000.0
"""A client that is held again within this time has not stopped waiting. Longer than two intervals of reports."""


@dataclass(slots=True)
class HeldClient:
    """The holds of one client, cause and topic that follow one another closely. Times are monotonic."""

    row: HoldRow
    """The last one that was reported."""
    since_ms: float
    seen_ms: float
    is_broken: bool = False
    """Whether the client went on in between."""
    is_noted: bool = False


class HoldNotes:
    """Belongs to the controller's loop."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], HeldClient] = {}

    def follow(self, rows: Iterable[HoldRow], now_ms: float) -> None:
        """Take the present holds of all workers. Called once a second and after each report."""
        longest: dict[tuple[str, str, str], HoldRow] = {}
        for row in rows:
            key = row.client, row.cause, row.topic
            if key not in longest or row.since_ms < longest[key].since_ms:
                longest[key] = row
        for key, row in longest.items():
            wait = self._held.get(key)
            if wait is None:
                wait = self._held[key] = HeldClient(row, row.since_ms, now_ms)
            wait.is_broken |= row.since_ms > wait.row.since_ms
            wait.row, wait.seen_ms = row, now_ms
            wait.is_noted |= now_ms - row.since_ms >= NOTE_MS or (
                wait.is_broken and now_ms - wait.since_ms >= TROUBLE_MS
            )
        for key, wait in [*self._held.items()]:
            if now_ms - wait.seen_ms >= BREAK_MS:
                del self._held[key]

    @property
    def noted(self) -> list[HeldClient]:
        """The waits that are worth a note, the longest first."""
        return sorted((wait for wait in self._held.values() if wait.is_noted), key=lambda wait: wait.since_ms)

    @property
    def is_empty(self) -> bool:
        return not self._held
