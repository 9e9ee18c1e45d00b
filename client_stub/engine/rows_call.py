"""RowsCall: one send_many() call, which queues its records a step at a time.

The two producers make it; it runs in the caller's thread, of AsyncProducer on the caller's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from client_stub.native.hot import OnDelivery, OpenStream, plain_pairs
from client_stub.outbox.bulk_call import BulkCall, Step
from client_stub.outbox.capacity_wait import FULL, Full
from client_stub.records.arguments import list_of_rows
from client_stub.records.packer import LARGE_BYTES
from client_stub.records.record_fields import checked_row

if TYPE_CHECKING:
    from client_stub.engine.engine import Engine

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

    def step(self, *, waits: bool) -> Step | Full:
        if self._checked is not None:
            return self._check_some(self._checked, waits)
        if self._queued == len(self._rows):
            return Step.DONE
        outbox, start = self._stream.outbox, self._queued
        if self._large and not (waits or outbox.knows_limits(self._stream)):
            return FULL
        while self._large:
            number = self._large[-1]
            outbox.size_limits.check_numbered(self._stream.topic, number, tuple(self._rows[number]))
            self._large.pop()
        self.check_transaction(outbox.transaction)
        part = outbox.add_rows(self._stream, self._rows, start, self._on_delivery, waits=waits)
        if part is FULL:
            return FULL
        self.add_part(part)
        self._queued += part.count
        return Step.DONE if self._queued == len(self._rows) else Step.MORE

    def _check_some(self, checked: list[Any], waits: bool) -> Step | Full:
        start, end = len(checked), len(checked) + ROWS_CHECKED_AT_ONCE
        topic, outbox = self._stream.topic, self._stream.outbox
        for number, row in enumerate(self._rows[start:end], start):
            record, size = checked_row(number, row)
            if size > LARGE_BYTES:
                if not (waits or outbox.knows_limits(self._stream)):
                    return FULL
                outbox.size_limits.check_numbered(topic, number, record)
            checked.append(record)
        if len(checked) == len(self._rows):
            self._rows, self._checked = checked, None
        return Step.MORE


def async_rows_call(engine: Engine, topic: str, records: Iterable[Sequence[Any]]) -> RowsCall:
    """The call of a program that continues before all rows have found room, and may change its list meanwhile."""
    stream = engine.stream_of(topic)
    rows = list_of_rows(records)
    return RowsCall(stream, rows.copy() if rows is records else rows)
