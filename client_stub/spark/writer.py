"""Writes the Arrow batches or the rows of one task through the process's Producer.

At least once: write() returns only when the broker has acknowledged every record of the task. A task that is tried
again writes its rows again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext

from client_stub.errors import DaemonUnreachable, SidecarError
from client_stub.outbox.delivery import BulkDelivery
from client_stub.spark.autostart import DaemonNotStarted
from client_stub.spark.exactly_once.settings import ONE_DAEMON
from client_stub.spark.exactly_once.staging import stage_chunks
from client_stub.spark.executor_log import one_line
from client_stub.spark.options import NO_DAEMON
from client_stub.spark.parts import Chunk, Part, chunks_of_batches, named_rows, task
from client_stub.spark.producers import ProducerCache
from client_stub.spark.row_parts import chunks_of_rows
from client_stub.spark.worker_garbage import freeze_modules
from client_stub.spark.write_report import TaskProgress, TaskWritten

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import Row

    from client_stub.producer import Producer
    from client_stub.spark.columns import Columns
    from client_stub.spark.exactly_once.messages import StagedTask
    from client_stub.spark.options import Options

_cache = ProducerCache()
_HINT = f"{NO_DAEMON}; option sidecar.run_dir names its run directory, and sidecar.autostart=true starts one."


def write_batches(
    batches: Iterator[pyarrow.RecordBatch], columns: Columns, options: Options
) -> TaskWritten | StagedTask:
    """Send all batches of a task and wait for their acks, or stage them for the driver's commit. Raises RuntimeError,
    in one line that begins with ``kafka_sidecar:``.
    """
    return _write(chunks_of_batches(batches, columns, options.topic), options)


def write_rows(rows: Iterable[Row], options: Options) -> TaskWritten | StagedTask:
    """As ``write_batches`` for the rows of a task."""
    return _write(chunks_of_rows(rows, options.topic), options)


def _write(chunks: Iterator[Chunk], options: Options) -> TaskWritten | StagedTask:
    written: TaskWritten | StagedTask
    try:
        if options.exactly_once is None:
            written = _send_all(chunks, options)
        else:
            producer = _cache.producer_for(options)
            written = stage_chunks(
                chunks, producer, options.run_dir_here(), options.exactly_once, options.topic
            )
    except DaemonUnreachable as error:
        hint = _HINT if options.exactly_once is None else ONE_DAEMON
        raise RuntimeError(f"kafka_sidecar: {one_line(error).rstrip('.')}. {hint}") from error
    except (DaemonNotStarted, SidecarError, TypeError, ValueError) as error:
        raise RuntimeError(f"kafka_sidecar: {one_line(error).removeprefix('kafka_sidecar: ')}") from error
    freeze_modules()
    return written


def _send_all(chunks: Iterator[Chunk], options: Options) -> TaskWritten:
    waiting: deque[tuple[Chunk, list[tuple[str, BulkDelivery]]]] = deque()
    """Each chunk with its deliveries by topic."""
    waiting_batches = 0
    written = _nothing_written()
    progress = TaskProgress(options.report, written)
    producer: Producer | None = None

    def settle() -> None:
        nonlocal waiting_batches
        chunk, deliveries = waiting.popleft()
        for topic, delivery in deliveries:
            _settle(topic, delivery)
            if options.report:
                written.add_offsets(topic, delivery.offsets())
        waiting_batches -= chunk.batches
        progress.acknowledged(chunk.rows, chunk.bytes)

    try:
        for chunk in chunks:
            if producer is None:
                producer = _cache.producer_for(options)
            deliveries = [(part.topic, _send(producer, part)) for part in chunk.parts]
            waiting.append((chunk, deliveries))
            waiting_batches += chunk.batches
            written.rows += chunk.rows
            written.bytes += chunk.bytes
            progress.handed_over(chunk.bytes)
            # One chunk may always wait, whatever it has of the window: else none is sent while another one waits.
            while waiting_batches > options.window_batches and len(waiting) > 1:
                settle()
        # No flush(): it would also wait for records of an earlier task of this process, and raise their failures.
        while waiting:
            settle()
    finally:
        progress.close()
    return written


def _send(producer: Producer, part: Part) -> BulkDelivery:
    """The delivery, which flush() leaves to its caller."""
    with named_rows(part):
        if isinstance(part.records, list):
            delivery = producer.send_many(part.topic, part.records)
        else:
            delivery = producer.send_arrow(part.topic, part.records)
    delivery.watch()
    return delivery


def _settle(topic: str, delivery: BulkDelivery) -> None:
    try:
        delivery.result()
    except SidecarError as error:
        failed = delivery.failed_count
        raise RuntimeError(
            f"kafka_sidecar: {failed} of {delivery.count} records for topic {topic} failed in task {task()}: "
            f"{error.name}: {one_line(error)}"
        ) from error


def _nothing_written() -> TaskWritten:
    context = TaskContext.get()
    if context is None:
        return TaskWritten(0)
    return TaskWritten(
        0,
        task=context.partitionId(),
        attempt=context.attemptNumber(),
        stage=context.stageId(),
        start=context.taskAttemptId(),
    )
