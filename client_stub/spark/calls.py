"""The calls for code that runs in foreachBatch and foreachPartition: write() and write_partition().

A program calls them, on the driver or in a task.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from client_stub.spark.columns import Columns, find_columns
from client_stub.spark.exactly_once.commit import commit_batch, drop_batch
from client_stub.spark.options import Options, read_options
from client_stub.spark.topic_check import check_topic_of_stream
from client_stub.spark.write_report import TaskWritten
from client_stub.spark.writer import write_batches, write_rows
from client_stub.system.log import log

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import Row

    from client_stub.spark.exactly_once.messages import StagedTask
    from client_stub.spark.exactly_once.settings import ExactlyOnce

FOREACH_BATCH_OF_CONNECT: Final = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"
"""The module that runs in the process of such a foreachBatch, and in no other."""
_TASKS: Final = "rows bigint, bytes bigint, attempt int, staged binary"


class Written(NamedTuple):
    """What write() has put into Kafka. At least once, each earlier attempt of a retried task may have sent rows of it,
    too.
    """

    rows: int
    bytes: int
    """Of the rows as Spark handed them over: keys, values, headers, and the ends of each."""
    tasks: int
    retried_tasks: int


def write_frame(frame: DataFrame, options: Mapping[str, object]) -> Written:
    """As client_stub.spark.write(). One job, whose tasks hand back how many rows they wrote."""
    if frame.isStreaming:
        raise ValueError(
            "kafka_sidecar: write() takes the DataFrame of a batch; call it in foreachBatch, or write the stream by "
            'writeStream.format("kafka_sidecar").'
        )
    read = read_options(_as_text(options))
    if read.exactly_once is not None and FOREACH_BATCH_OF_CONNECT in sys.modules:
        raise ValueError(
            "kafka_sidecar: foreachBatch of Spark Connect does not tell tasks their batch, by which "
            'delivery=exactly_once knows a replay: write the stream by writeStream.format("kafka_sidecar").'
        )
    columns = find_columns(frame.schema, read.topic)
    check_topic_of_stream(read)
    if read.exactly_once is not None:
        read = read._replace(exactly_once=read.exactly_once.of_new_run())
    used = {name: position for name, position in columns._asdict().items() if position is not None}
    # By position: mapInArrow() asks for each column by its name, which may have dots, or be there twice.
    numbered = frame.toDF(*(f"c{position}" for position in range(len(frame.columns))))
    chosen = numbered.select(*(f"c{position}" for position in used.values()))
    of_chosen = Columns(**{name: position for position, name in enumerate(used)})
    tasks = chosen.mapInArrow(partial(_write_task, of_chosen, read), _TASKS).collect()
    if read.exactly_once is not None:
        if not tasks:  # a frame without partitions, whose batch may be the first of its history
            of_one_task = frame.sparkSession.range(0, 1, 1, 1)
            tasks = of_one_task.mapInArrow(partial(_write_nothing, of_chosen, read), _TASKS).collect()
        _commit([pickle.loads(task.staged) for task in tasks], read, read.exactly_once)
    written = Written(
        sum(task.rows for task in tasks),
        sum(task.bytes for task in tasks),
        len(tasks),
        sum(1 for task in tasks if task.attempt > 0),
    )
    if read.exactly_once is None:
        log.info(
            "kafka_sidecar: %d rows (%d bytes) of %d tasks are in Kafka; %d tasks were tried again and may have "
            "written rows twice.",
            *written,
        )
    return written


def _commit(staged: list[StagedTask], options: Options, settings: ExactlyOnce) -> None:
    """As Spark does for a data source: what failed is dropped, as it would hold its share of the pool for an hour."""
    try:
        commit_batch(staged, options, settings)
    except RuntimeError:
        drop_batch(staged, options, settings)
        raise


def write_iterator(rows: Iterable[Row], options: Mapping[str, object]) -> int:
    """As client_stub.spark.write_partition()."""
    read = read_options(_as_text(options))
    if read.exactly_once is not None:
        raise ValueError(
            "kafka_sidecar: write_partition() runs in a task, and with delivery=exactly_once the driver commits: call "
            "write(df) instead."
        )
    written = write_rows(rows, read)
    assert isinstance(written, TaskWritten)
    log.info("kafka_sidecar: %d rows of task %d are in Kafka.", written.rows, written.task)
    return written.rows


def _write_task(
    columns: Columns, options: Options, batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    written = write_batches(batches, columns, options)
    staged = None if options.exactly_once is None else pickle.dumps(written)
    yield pa.record_batch(
        {
            "rows": pa.array([written.rows], pa.int64()),
            "bytes": pa.array([written.bytes], pa.int64()),
            "attempt": pa.array([written.attempt], pa.int32()),
            "staged": pa.array([staged], pa.binary()),
        }
    )


def _write_nothing(
    columns: Columns, options: Options, batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    for _ in batches:
        pass
    yield from _write_task(columns, options, iter(()))


def _as_text(options: Mapping[str, object]) -> dict[str, str]:
    """As Spark hands them to a data source: names in lower case, values as text. None leaves an option out."""
    return {
        name.lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
