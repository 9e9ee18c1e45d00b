"""TableCall: one send_arrow() call, which queues a table a submission at a time.

``arrow_call`` makes it; it runs in the caller's thread, of AsyncProducer on the caller's event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from client_stub.contract.wire import Format
from client_stub.engine.rows_call import RowsCall
from client_stub.outbox.bulk_call import BulkCall, Step
from client_stub.outbox.capacity_wait import FULL, Full
from client_stub.records.column_sizes import rows_above
from client_stub.records.column_types import checked_columns
from client_stub.records.columns import as_records, block_of, check_sizes, partition_max
from client_stub.records.packer import LARGE_BYTES

if TYPE_CHECKING:
    from client_stub.native.hot import OpenStream
    from client_stub.outbox.submission import BulkPart


class TableCall(BulkCall):
    """One send_arrow() call; each step queues one submission."""

    def __init__(self, stream: OpenStream, table: Any) -> None:
        self.parts = []
        self._stream = stream
        self._batches = deque(batch for batch in checked_columns(table).to_batches() if batch.num_rows)
        self._is_measured = False
        self._start = 0
        self._rows: RowsCall | None = None
        """The first batches as rows, for a worker that does not read columns."""

    def step(self, *, waits: bool) -> Step | Full:
        batches = self._batches
        if not batches:
            return Step.DONE
        outbox = self._stream.outbox
        if not self._is_measured:
            if not (waits or self._can_be_measured()):
                return FULL
            check_sizes(outbox.size_limits, self._stream.topic, batches)
            self._is_measured = True
        batch = batches[0]
        if self._rows is not None:
            done = self._rows.step(waits=waits)
            if done is not Step.DONE:
                return done
            self.parts.extend(self._rows.parts)
            self._rows = None
            count = batch.num_rows - self._start
        else:
            if waits:
                outbox.wait_for_capacity(self._stream)
            elif not outbox.takes_now(self._stream):
                return FULL
            if not outbox.columns_readable:
                self._rows = RowsCall(self._stream, as_records(batch.slice(self._start)))
                return Step.MORE
            self.check_transaction(outbox.transaction)
            count, payload = block_of(batch, self._start, outbox.submission_bytes)
            part = outbox.add_block(self._stream, payload, count, Format.ARROW)
            part.submission.partition_max = partition_max(batch.slice(self._start, count))
            self.add_part(part)
        self._start += count
        if self._start == batch.num_rows:
            batches.popleft()
            self._start = 0
        return Step.MORE if batches else Step.DONE

    def _can_be_measured(self) -> bool:
        """Whether the check of the sizes would not wait for the daemon's limits, which only large rows need."""
        stream = self._stream
        return (
            stream.outbox.size_limits.known is not None
            or not any(rows_above(batch, LARGE_BYTES) for batch in self._batches)
            or stream.outbox.knows_limits(stream)
        )

    def _queued_parts(self) -> Sequence[BulkPart]:
        return [*self.parts, *self._rows.parts] if self._rows is not None else self.parts
