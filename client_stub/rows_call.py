"""RowsCall: one send_many() call on its way into the outbox, a step at a time."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from client_stub.delivery import BulkDelivery
from client_stub.errors import SidecarError
from client_stub.hot import OnDelivery, OpenStream, plain_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_stub.producer import Producer
    from client_stub.submission import BulkPart

ROWS_CHECKED_AT_ONCE: Final = 1_000
"""Rows with headers or times are checked in Python, some 2 µs each: an event loop is held up for this many."""


class RowsCall:
    """Checks all rows, then queues them, a submission's worth in each step. Not thread-safe."""

    def __init__(
        self, producer: Producer, stream: OpenStream, rows: list[Any], on_delivery: OnDelivery | None = None
    ) -> None:
        self._producer = producer
        self._stream = stream
        self._rows = rows
        self._on_delivery = on_delivery
        self._large = plain_pairs(rows)
        """Places of rows that are still to be measured."""
        self._checked: list[Any] | None = [] if self._large is None else None
        self._queued = 0
        self.parts: list[BulkPart] = []

    def run(self) -> BulkDelivery:
        """All steps, each waiting for room as send() does. Raises as Producer.send_many()."""
        try:
            while not self.step():
                pass
        except SidecarError as error:
            raise self.explain(error) from error.__cause__
        return self.delivery

    def step(self) -> bool:
        """Do some more of it; True when all is queued. After an error for want of room it may be called again."""
        if self._checked is not None:
            self._check_some(self._checked)
            return False
        if self._queued == len(self._rows):
            return True
        while self._large:
            self._producer.check_size(self._stream.topic, tuple(self._rows[self._large[-1]]))
            self._large.pop()
        outbox, start = self._stream.outbox, self._queued
        part = outbox.add_rows(self._stream, self._rows, start, self._on_delivery)
        self.parts.append(part)
        self._queued += part.count
        return self._queued == len(self._rows)

    def _check_some(self, checked: list[Any]) -> None:
        start, end = len(checked), len(checked) + ROWS_CHECKED_AT_ONCE
        for number, row in enumerate(self._rows[start:end], start):
            checked.append(self._producer._checked_row(self._stream.topic, number, row))
        if len(checked) == len(self._rows):
            self._rows, self._checked = checked, None

    @property
    def delivery(self) -> BulkDelivery:
        return BulkDelivery(self.parts)

    def explain(self, error: SidecarError) -> SidecarError:
        return with_queued(error, self.parts)


def with_queued(error: SidecarError, parts: Sequence[BulkPart]) -> SidecarError:
    """``error`` of a call that has queued ``parts`` before: says how many records, and has their future."""
    if not parts:
        return error
    queued = BulkDelivery(parts)
    # A copy: a fatal error of the producer or the topic is raised in every call, each with its own number.
    raised = copy.copy(error)
    raised.args = (f"{error} (The first {queued.count} records of this call are queued.)",)
    raised.queued = queued
    return raised
