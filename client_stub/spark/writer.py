"""Writes the Arrow batches of one task through the process's Producer, without touching a row in Python.

At least once: write() returns only when the broker has acknowledged every record of the task. A task that is tried
again writes its rows again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import TaskContext

from client_stub.errors import DaemonUnreachable, SidecarError
from client_stub.outbox.delivery import BulkDelivery
from client_stub.spark.autostart import DaemonNotStarted
from client_stub.spark.options import NO_DAEMON
from client_stub.spark.producers import ProducerCache
from client_stub.spark.write_report import TaskProgress, TaskWritten

if TYPE_CHECKING:
    import pyarrow

    from client_stub.producer import Producer
    from client_stub.spark.columns import Columns
    from client_stub.spark.options import Options

_cache = ProducerCache()
_HINT = f"{NO_DAEMON}; option sidecar.run_dir names its run directory, and sidecar.autostart=true starts one."
_RECORD: Final = re.compile(r"^record (\d+): ")
"""How send_arrow() names a row of its table."""


class _Part(NamedTuple):
    """The rows of one Arrow batch that go to one topic."""

    topic: str
    records: Any
    rows: Any
    """The numbers of these rows in the batch, as an Arrow array; None for all."""


def write_batches(batches: Iterator[pyarrow.RecordBatch], columns: Columns, options: Options) -> TaskWritten:
    """Send all batches of a task and wait for their acks. Raises RuntimeError, in one line that begins with
    ``kafka_sidecar:``.
    """
    waiting: deque[tuple[str, BulkDelivery]] = deque()
    written = TaskWritten(0, task=_task(), attempt=_attempt())
    progress = TaskProgress(options.report, written)
    producer: Producer | None = None

    def settle() -> None:
        topic, delivery = waiting.popleft()
        _settle(topic, delivery)
        if options.report:
            written.add_offsets(topic, delivery.offsets())
            progress.acknowledged(delivery.count)

    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if producer is None:
                producer = _cache.producer_for(options)
            for part in _by_topic(batch, columns, options.topic, written.rows):
                delivery = _send(producer, part, written.rows)
                delivery.watch()
                waiting.append((part.topic, delivery))
            written.rows += batch.num_rows
            progress.handed_over(batch.nbytes if options.report else 0)
            while len(waiting) > options.window_batches:
                settle()
        # No flush(): it would also wait for records of an earlier task of this process, and raise their failures.
        while waiting:
            settle()
    except DaemonUnreachable as error:
        raise RuntimeError(f"kafka_sidecar: {_one_line(error).rstrip('.')}. {_HINT}") from error
    except (DaemonNotStarted, SidecarError, TypeError, ValueError) as error:
        raise RuntimeError(f"kafka_sidecar: {_one_line(error)}") from error
    finally:
        progress.close()
    return written


def _by_topic(
    batch: pyarrow.RecordBatch, columns: Columns, topic: str | None, rows_before: int
) -> Iterator[_Part]:
    """The columns of the records of ``batch``; split by topic when the topic is a column."""
    import pyarrow as pa

    chosen = {
        name: batch.column(position)
        for name, position in columns._asdict().items()
        if position is not None and name != "topic"
    }
    records = pa.table(chosen)
    if topic is not None or columns.topic is None:
        assert topic is not None
        yield _Part(topic, records, None)
        return
    import pyarrow.compute as pc

    topics = batch.column(columns.topic)
    if topics.null_count:
        row = rows_before + pc.index(pc.is_null(topics), True).as_py()
        raise ValueError(f"null topic in row {row} of task {_task()} and no topic option is set.")
    encoded = topics.dictionary_encode()
    if len(encoded.dictionary) == 1:
        yield _Part(str(encoded.dictionary[0]), records, None)
        return
    # One stable sort for all topics: rows of one topic keep their order. Codes count up as topics first appear, and so
    # do their counts.
    order = pc.array_sort_indices(encoded.indices)
    in_order = records.take(order)
    start = 0
    for name, count in zip(encoded.dictionary, pc.value_counts(encoded.indices).field("counts"), strict=True):
        size = count.as_py()
        yield _Part(str(name), in_order.slice(start, size), order.slice(start, size))
        start += size


def _send(producer: Producer, part: _Part, rows_before: int) -> BulkDelivery:
    try:
        return producer.send_arrow(part.topic, part.records)
    except (SidecarError, TypeError, ValueError) as error:
        found = _RECORD.match(str(error))
        if found is None:
            raise
        record = int(found[1])
        if part.rows is not None:
            record = part.rows[record].as_py()
        raise ValueError(
            f"row {rows_before + record} of task {_task()}, for topic {part.topic}: {str(error)[found.end() :]}"
        ) from error


def _settle(topic: str, delivery: BulkDelivery) -> None:
    try:
        delivery.result()
    except SidecarError as error:
        failed = delivery.failed_count
        raise RuntimeError(
            f"kafka_sidecar: {failed} of {delivery.count} records for topic {topic} failed in task {_task()}: "
            f"{error.name}: {_one_line(error)}"
        ) from error


def _task() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _attempt() -> int:
    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def _one_line(error: BaseException) -> str:
    # Spark shows only the last line of a Python error, so the whole text must be in one line.
    return " ".join(str(error).split())
