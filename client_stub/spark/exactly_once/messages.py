"""StagedTask: what a task that has sealed its stage tells the driver; and what Spark says of the batch of a task."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from client_stub.spark.exactly_once.commit_record import key_of
from client_stub.spark.exactly_once.decision import Batch, BatchRefused

if TYPE_CHECKING:
    from client_stub.spark.exactly_once.settings import ExactlyOnce


@dataclass
class StagedTask(WriterCommitMessage):
    """Of the attempt that Spark chooses. Spark's ids reach commit() by it only."""

    batch: Batch
    token: bytes
    rows: int
    bytes: int
    attempt: int
    topics: frozenset[str]
    daemon: str
    """The host and run directory, or the address, at which the stage is."""


def batch_of_task(settings: ExactlyOnce, topic: str | None) -> Batch:
    """The batch that this task belongs to. Called in a task."""
    context = TaskContext.get()
    query = _property(context, "sql.streaming.queryId")
    number = _property(context, "streaming.sql.batchId")
    sink = settings.sink_id or topic or "default"
    if not query:
        # Without a job.id a run of a batch job has a key of its own: it is new data.
        return Batch(key_of(settings.job_id or settings.run, sink), sink, 0, "", settings.run)
    run = _property(context, "spark.jobGroup.id")
    return Batch(key_of(settings.job_id or query, sink), sink, int(number), query, run)


def _property(context: TaskContext | None, name: str) -> str:
    return (context.getLocalProperty(name) or "") if context is not None else ""


def daemon_name(run_dir: str) -> str:
    return run_dir if run_dir.startswith("tcp://") else f"{socket.gethostname()}:{run_dir}"


def batch_of(tasks: Iterable[StagedTask], here: str) -> Batch:
    """The one batch of these tasks. Raises BatchRefused unless all are at the driver's daemon, ``here``."""
    found = list(tasks)
    daemons = sorted({each.daemon for each in found})
    batch = found[0].batch
    if len(daemons) > 1:
        where = f"{len(daemons)} daemons ({', '.join(daemons[:3])})"
    elif daemons != [here]:
        where = f"the daemon at {daemons[0]}, and the driver uses {here}"
    else:
        return batch
    raise BatchRefused(
        f"tasks of batch {batch.number} wrote to {where}. With delivery=exactly_once all use one: set "
        "sidecar.run_dir=tcp://host:port on driver and executors."
    )


def staged(messages: Iterable[Any]) -> list[StagedTask]:
    """Those of tasks that ended; Spark has None for the others."""
    return [each for each in messages if isinstance(each, StagedTask)]
