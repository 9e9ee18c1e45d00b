"""Divides what a task writes into parts of one topic each; a part knows the rows that it is made of.

The writer of a task uses it, in an executor's Python worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext

if TYPE_CHECKING:
    import pyarrow

    from client_stub.spark.columns import Columns


class Part(NamedTuple):
    """Rows of a chunk that go to one topic, in their order."""

    topic: str
    records: Any
    """An Arrow table, or a list of records for send_many()."""
    row_of: Callable[[int], int]
    """The number of a record's row in its task."""


class Chunk(NamedTuple):
    """Rows that a task writes together."""

    rows: int
    bytes: int
    parts: Iterator[Part]


def task() -> int:
    """The number of the task that runs; 0 outside of Spark."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def null_topic(row: int) -> ValueError:
    return ValueError(f"null topic in row {row} of task {task()} and no topic option is set.")


def chunks_of_batches(
    batches: Iterator[pyarrow.RecordBatch], columns: Columns, topic: str | None
) -> Iterator[Chunk]:
    """A chunk for each batch that has rows. No row is touched in Python."""
    before = 0
    for batch in batches:
        if batch.num_rows:
            yield Chunk(batch.num_rows, batch.nbytes, parts_of_batch(batch, columns, topic, before))
            before += batch.num_rows


def parts_of_batch(
    batch: pyarrow.RecordBatch, columns: Columns, topic: str | None, before: int
) -> Iterator[Part]:
    """The columns of the records of ``batch``; split by topic when the topic is a column. ``before`` rows of the task
    came earlier. Raises ValueError for a null topic.
    """
    import pyarrow as pa

    chosen = {
        name: batch.column(position)
        for name, position in columns._asdict().items()
        if position is not None and name != "topic"
    }
    records = pa.table(chosen)
    if topic is not None or columns.topic is None:
        assert topic is not None
        yield Part(topic, records, lambda record: before + record)
        return
    import pyarrow.compute as pc

    topics = batch.column(columns.topic)
    if topics.null_count:
        raise null_topic(before + pc.index(pc.is_null(topics), True).as_py())
    encoded = topics.dictionary_encode()
    if len(encoded.dictionary) == 1:
        yield Part(str(encoded.dictionary[0]), records, lambda record: before + record)
        return
    # One stable sort for all topics: rows of one topic keep their order. Codes count up as topics first appear, and so
    # do their counts.
    order = pc.array_sort_indices(encoded.indices)
    in_order = records.take(order)
    start = 0
    for name, count in zip(encoded.dictionary, pc.value_counts(encoded.indices).field("counts"), strict=True):
        size = count.as_py()
        yield Part(str(name), in_order.slice(start, size), _rows_of(order.slice(start, size), before))
        start += size


def _rows_of(order: Any, before: int) -> Callable[[int], int]:
    return lambda record: before + int(order[record].as_py())
