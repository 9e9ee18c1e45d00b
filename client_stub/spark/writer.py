"""Writes the Arrow batches of one task through the process's Producer, without touching a row in Python.

At least once: write() returns only when the broker has acknowledged every record of the task. A task that is tried
again writes its rows again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from client_stub.errors import DaemonUnreachable, SidecarError
from client_stub.outbox.delivery import BulkDelivery
from client_stub.spark.producers import ProducerCache

if TYPE_CHECKING:
    import pyarrow

    from client_stub.producer import Producer
    from client_stub.spark.columns import Columns
    from client_stub.spark.options import Options

_cache = ProducerCache()
_HINT = (
    "Each executor host needs a daemon ('kafka-sidecar run'); option sidecar.run_dir names its run directory."
)


@dataclass
class TaskWritten(WriterCommitMessage):
    """A task's message to the driver."""

    rows: int


def write_batches(batches: Iterator[pyarrow.RecordBatch], columns: Columns, options: Options) -> TaskWritten:
    """Send all batches of a task and wait for their acks. Raises RuntimeError, in one line that begins with
    ``kafka_sidecar:``.
    """
    waiting: deque[tuple[str, BulkDelivery]] = deque()
    rows = 0
    producer: Producer | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if producer is None:
                producer = _cache.producer_for(options)
            for topic, records in _by_topic(batch, columns, options.topic, rows):
                delivery = producer.send_arrow(topic, records)
                delivery.watch()
                waiting.append((topic, delivery))
            rows += batch.num_rows
            while len(waiting) > options.window_batches:
                _settle(*waiting.popleft())
        # No flush(): it would also wait for records of an earlier task of this process, and raise their failures.
        while waiting:
            _settle(*waiting.popleft())
    except DaemonUnreachable as error:
        raise RuntimeError(f"kafka_sidecar: {_one_line(error).rstrip('.')}. {_HINT}") from error
    except (SidecarError, TypeError, ValueError) as error:
        raise RuntimeError(f"kafka_sidecar: {_one_line(error)}") from error
    return TaskWritten(rows)


def _by_topic(
    batch: pyarrow.RecordBatch, columns: Columns, topic: str | None, rows_before: int
) -> Iterator[tuple[str, Any]]:
    """(topic, columns of the records) of ``batch``; split by topic when the topic is a column."""
    import pyarrow as pa

    chosen = {
        name: batch.column(position)
        for name, position in columns._asdict().items()
        if position is not None and name != "topic"
    }
    records = pa.table(chosen)
    if topic is not None or columns.topic is None:
        assert topic is not None
        yield topic, records
        return
    import pyarrow.compute as pc

    topics = batch.column(columns.topic)
    if topics.null_count:
        row = rows_before + pc.index(pc.is_null(topics), True).as_py()
        raise ValueError(f"null topic in row {row} of task {_task()} and no topic option is set.")
    for name in pc.unique(topics):
        yield str(name), records.filter(pc.equal(topics, name))


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


def _one_line(error: BaseException) -> str:
    # Spark shows only the last line of a Python error, so the whole text must be in one line.
    return " ".join(str(error).split())
