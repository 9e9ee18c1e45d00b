"""FailureTally: the worker's failed records since the last report, by topic and error, for the controller."""

from __future__ import annotations

from typing import Final

from sidecar.common.control import FailedRecords, FailureRow

ROWS_MAX: Final = 1_000
"""Pairs of topic and error in one report; records of further pairs are counted under the topic ``OTHER_TOPICS``."""
OTHER_TOPICS: Final = ""


class FailureTally:
    """Belongs to the worker's loop. A worker that is killed takes at most one report of half a second along."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int, int], FailureRow] = {}

    def note(
        self, topic: str, code: int, text: str, persistence: int, count: int, client: str | None
    ) -> None:
        """``count`` records have failed; once for each record in all its life. ``client`` None: it is gone."""
        key = (topic, code, persistence)
        row = self._rows.get(key)
        if row is None and len(self._rows) >= ROWS_MAX:
            key = (OTHER_TOPICS, code, persistence)
            row = self._rows.get(key)
        earlier = row.count if row is not None else 0
        self._rows[key] = FailureRow(key[0], code, text, persistence, earlier + count, client or "")

    def take(self) -> FailedRecords | None:
        """The report since the last call; None when nothing failed."""
        if not self._rows:
            return None
        rows, self._rows = self._rows, {}
        return FailedRecords(tuple(rows.values()))
