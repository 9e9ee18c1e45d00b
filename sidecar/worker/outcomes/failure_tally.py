"""FailureTally: counts the worker's failed records since the last report, by topic and error, for the controller."""

from __future__ import annotations

from typing import Final

from sidecar.common.control import FailedRecords, FailureRow

ROWS_MAX: Final = 1_000
"""Limit of (topic, error) pairs in one report. Records of further pairs count under the topic ``OTHER_TOPICS``."""
OTHER_TOPICS: Final = ""


class FailureTally:
    """Counts failed records. Belongs to the worker's loop. If the worker is killed, at most half a second of counts is
    lost.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int, int], FailureRow] = {}

    def note(
        self,
        topic: str,
        code: int,
        text: str,
        persistence: int,
        count: int,
        client: str | None,
        cause: str = "",
    ) -> None:
        """Count ``count`` failed records, once in the life of each record. ``client`` is None if the client is gone.
        ``cause`` as in FailureRow.
        """
        key = (topic, code, persistence)
        row = self._rows.get(key)
        if row is None and len(self._rows) >= ROWS_MAX:
            key = (OTHER_TOPICS, code, persistence)
            row = self._rows.get(key)
        earlier = row.count if row is not None else 0
        self._rows[key] = FailureRow(key[0], code, text, persistence, earlier + count, client or "", cause)

    def take(self) -> FailedRecords | None:
        """The report since the last call; None when nothing failed."""
        if not self._rows:
            return None
        rows, self._rows = self._rows, {}
        return FailedRecords(tuple(rows.values()))
