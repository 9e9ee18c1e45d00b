"""Divides what a task writes into parts of one topic each; a part knows the rows that it is made of.

The writer of a task uses it, in an executor's Python worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import TaskContext

from client_stub.errors import SidecarError

if TYPE_CHECKING:
    import pyarrow

    from client_stub.spark.columns import Columns

PART_ROWS: Final = 1_000
"""How many rows of a topic column are worth a part, which costs as much as some hundred rows do."""
GATHERED_BYTES_MAX: Final = 16 << 20
"""Of the batches that are divided together. A larger batch is divided alone."""


_RECORD: Final = re.compile(r"^record (\d+): ")
"""How send_arrow() and send_many() name a record."""


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
    batches: int = 1
    """How many of Spark's it is made of."""


def task() -> int:
    """The number of the task that runs; 0 outside of Spark."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


@contextmanager
def named_rows(part: Part) -> Iterator[None]:
    """Name the row of the task in an error that names a record of the part."""
    try:
        yield
    except (SidecarError, TypeError, ValueError) as error:
        found = _RECORD.match(str(error))
        if found is None:
            raise
        raise ValueError(
            f"row {part.row_of(int(found[1]))} of task {task()}, for topic {part.topic}: {str(error)[found.end() :]}"
        ) from error


def null_topic(row: int) -> ValueError:
    return ValueError(f"null topic in row {row} of task {task()} and no topic option is set.")


def chunks_of_batches(
    batches: Iterator[pyarrow.RecordBatch], columns: Columns, topic: str | None
) -> Iterator[Chunk]:
    """A chunk for each batch that has rows; for several ones when their topic column names many topics. No row is
    touched in Python.
    """
    before = 0
    for gathered in _gathered(batches, columns, topic):
        batch = gathered[0] if len(gathered) == 1 else _joined(gathered)
        parts = parts_of_batch(batch, columns, topic, before)
        yield Chunk(batch.num_rows, batch.nbytes, parts, len(gathered))
        before += batch.num_rows


def _gathered(
    batches: Iterator[pyarrow.RecordBatch], columns: Columns, topic: str | None
) -> Iterator[list[pyarrow.RecordBatch]]:
    """The batches that are divided together. With a topic column they have PART_ROWS rows for each topic that the batch
    before them named, so that parts do not get small; at most GATHERED_BYTES_MAX.
    """
    rows_wanted = rows = size = 0
    gathered: list[pyarrow.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        if gathered and size + batch.nbytes > GATHERED_BYTES_MAX:
            yield gathered
            gathered, rows, size = [], 0, 0
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= rows_wanted:
            yield gathered
            if topic is None and columns.topic is not None:
                rows_wanted = PART_ROWS * len(batch.column(columns.topic).unique())
            gathered, rows, size = [], 0, 0
    if gathered:
        yield gathered


def _joined(batches: list[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


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
