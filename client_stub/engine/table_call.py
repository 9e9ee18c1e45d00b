"""TableCall: one send_arrow() call, which queues a table a submission at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from client_stub.contract.wire import Format
from client_stub.engine.rows_call import RowsCall
from client_stub.outbox.bulk_call import BulkCall
from client_stub.records.column_types import checked_columns
from client_stub.records.columns import as_records, block_of, check_sizes, partition_max

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

    def step(self) -> bool:
        batches = self._batches
        if not batches:
            return True
        if not self._is_measured:
            check_sizes(self._stream.outbox.size_limits, self._stream.topic, batches)
            self._is_measured = True
        batch, outbox = batches[0], self._stream.outbox
        if self._rows is not None:
            if not self._rows.step():
                return False
            self.parts.extend(self._rows.parts)
            self._rows = None
            count = batch.num_rows - self._start
        else:
            outbox.wait_for_room(self._stream)
            if not outbox.columns_readable:
                self._rows = RowsCall(self._stream, as_records(batch.slice(self._start)))
                return False
            count, payload = block_of(batch, self._start, outbox.submission_bytes)
            part = outbox.add_block(self._stream, payload, count, Format.ARROW)
            part.submission.partition_max = partition_max(batch.slice(self._start, count))
            self.parts.append(part)
        self._start += count
        if self._start == batch.num_rows:
            batches.popleft()
            self._start = 0
        return not batches

    def _queued_parts(self) -> Sequence[BulkPart]:
        return [*self.parts, *self._rows.parts] if self._rows is not None else self.parts
