"""Decides what becomes of a batch, by the last commit record of its key. Touches nothing.

The record was read after the transactional id was claimed: no older client can commit any more. So whoever decides to
commit batch N has seen that N was not there, and whoever finds N there knows that its rows are visible, once.
"""

from __future__ import annotations

import json
import shlex
from enum import Enum
from typing import NamedTuple

from client_stub.spark.exactly_once.commit_record import RESTARTED, CommitRecord
from client_stub.spark.exactly_once.settings import COMMITS_TOPIC, PREFIX, ExactlyOnce


class Decision(Enum):
    COMMIT = "commit"
    REPLAY = "replay"
    """An earlier run has committed this batch: it is dropped whole, whatever its tasks were."""


class BatchRefused(ValueError):
    """Why the batch must not be committed: one sentence."""


class Batch(NamedTuple):
    """``key`` and ``sink`` of its sink. ``number`` counts from 0."""

    key: str
    sink: str
    number: int
    query: str
    run: str


def decide(batch: Batch, last: CommitRecord | None, settings: ExactlyOnce) -> Decision:
    """Raises BatchRefused."""
    number = batch.number
    if last is None:
        if number > 0:
            raise BatchRefused(
                f"batch {number} has no commit record before it: the commits topic was deleted, an option that names "
                "the history (job.id, sink.id, topic, commits.topic) was changed, or the query wrote with "
                f"delivery=at_least_once until now. To let it begin here: {_restart(batch, settings)} --from {number}"
            )
        return Decision.COMMIT
    if last.query != batch.query and last.run != RESTARTED:
        if not last.query:
            raise BatchRefused(
                "job.id has the history of a batch job, and this is a stream: give it a job.id of its own."
            )
        if not batch.query:
            raise BatchRefused(
                "job.id has the history of a stream, and this write is not in one: foreachBatch writes in its own "
                "thread, as another thread knows no number of the batch; give a batch job a job.id of its own."
            )
        ends = "" if last.offsets is None else f", which ended at offsets {_shown(last)}"
        raise BatchRefused(
            f"the checkpoint is new, and job.id has a history: its last batch is {last.batch}{ends}. Start from there, "
            f"and let the history begin anew: {_restart(batch, settings)}"
        )
    if last.batch == number and last.run == batch.run:
        raise second_write(batch)
    if last.batch > number:
        raise BatchRefused(
            f"batch {number} is older than the last committed batch {last.batch}; the checkpoint was rolled back."
        )
    return Decision.REPLAY if last.batch == number else Decision.COMMIT


def second_write(batch: Batch) -> BatchRefused:
    return BatchRefused(
        f"batch {batch.number} was already written with sink.id {batch.sink} in this run; give each write of "
        "foreachBatch its own option sink.id."
    )


def _restart(batch: Batch, settings: ExactlyOnce) -> str:
    """The command, with what is no default of it."""
    is_usual = settings.prefix == PREFIX
    words = [
        "kafka-sidecar",
        "txn",
        "restart",
        batch.key if is_usual else settings.transactional_id(batch.key),
    ]
    if settings.commits_topic != COMMITS_TOPIC:
        words += ["--commits-topic", settings.commits_topic]
    return shlex.join(words)


def _shown(last: CommitRecord) -> str:
    return json.dumps(last.offsets)
