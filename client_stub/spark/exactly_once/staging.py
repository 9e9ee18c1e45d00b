"""Fills the stage of one task attempt. Nothing of it is sent to Kafka: the driver includes what Spark has chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from client_stub.contract.error_codes import code_row
from client_stub.contract.wire import LocalCode
from client_stub.errors import TransactionError
from client_stub.spark.exactly_once.decision import BatchRefused
from client_stub.spark.exactly_once.messages import StagedTask, batch_of_task, daemon_name
from client_stub.spark.parts import named_rows, task

if TYPE_CHECKING:
    from client_stub.inner_producer import InnerProducer
    from client_stub.spark.exactly_once.settings import ExactlyOnce
    from client_stub.spark.parts import Chunk, Part
    from client_stub.stage import Stage

SHARE_FULL: Final = code_row(LocalCode.STAGE_FULL).name


def stage_chunks(
    chunks: Iterator[Chunk], producer: InnerProducer, run_dir: str, settings: ExactlyOnce, topic: str | None
) -> StagedTask:
    """Raises as Stage.send_arrow() and seal() do. An attempt that fails or dies leaves nothing."""
    batch = batch_of_task(settings, topic)
    rows = size = 0
    topics = set()
    try:
        with producer.stage(settings.transactional_id(batch.key), batch.number, batch.run) as stage:
            for chunk in chunks:
                for part in chunk.parts:
                    _send(stage, part)
                    topics.add(part.topic)
                rows += chunk.rows
                size += chunk.bytes
            token = stage.seal()
    except TransactionError as error:
        if error.name != SHARE_FULL:
            raise
        raise BatchRefused(
            f"batch {batch.number} does not fit into the share for staged records, at row {rows} of task {task()}: "
            f"{str(error).rstrip('.')}. Nothing was written. Lower maxOffsetsPerTrigger or maxFilesPerTrigger, raise "
            "buffer.memory, or put the pool on a disk (pool.path)."
        ) from error
    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    return StagedTask(batch, token, rows, size, attempt, frozenset(topics), daemon_name(run_dir))


def _send(stage: Stage, part: Part) -> None:
    with named_rows(part):
        if isinstance(part.records, list):
            stage.send_many(part.topic, part.records)
        else:
            stage.send_arrow(part.topic, part.records)
