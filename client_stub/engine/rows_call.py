"""RowsCall: one send_many() call, which queues its records a step at a time."""

from __future__ import annotations

from typing import Any, Final

from client_stub.native.hot import OnDelivery, OpenStream, plain_pairs
from client_stub.outbox.bulk_call import BulkCall

ROWS_CHECKED_AT_ONCE: Final = 1_000
"""Rows with headers or timestamps are checked in Python at some 2 µs each. An event loop is blocked for this many at a
time.
"""


class RowsCall(BulkCall):
    """Finds rows that need only a size check in native code, and checks the others some at a time."""

    def __init__(self, stream: OpenStream, rows: list[Any], on_delivery: OnDelivery | None = None) -> None:
        self.parts = []
        self._stream = stream
        self._rows = rows
        self._on_delivery = on_delivery
        self._large = plain_pairs(rows)
        """Indexes of rows whose size is still to be checked."""
        self._checked: list[Any] | None = [] if self._large is None else None
        self._queued = 0

    def step(self) -> bool:
        if self._checked is not None:
            self._check_some(self._checked)
            return False
        if self._queued == len(self._rows):
            return True
        while self._large:
            self._stream.outbox.size_limits.check(self._stream.topic, tuple(self._rows[self._large[-1]]))
            self._large.pop()
        outbox, start = self._stream.outbox, self._queued
        part = outbox.add_rows(self._stream, self._rows, start, self._on_delivery)
        self.parts.append(part)
        self._queued += part.count
        return self._queued == len(self._rows)

    def _check_some(self, checked: list[Any]) -> None:
        start, end = len(checked), len(checked) + ROWS_CHECKED_AT_ONCE
        topic, limits = self._stream.topic, self._stream.outbox.size_limits
        for number, row in enumerate(self._rows[start:end], start):
            checked.append(limits.checked_row(topic, number, row))
        if len(checked) == len(self._rows):
            self._rows, self._checked = checked, None
