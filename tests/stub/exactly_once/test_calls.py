"""Goal: write(df) commits what its tasks have staged, also where a frame has no task, and drops what failed.

The frame runs its tasks here; Spark's own are in tests/spark/test_calls.py, and a daemon in
tests/process/test_exactly_once_commit.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow
from pyspark.sql.types import BinaryType, Row, StructField, StructType

from client_stub.spark import calls
from client_stub.spark.exactly_once.decision import Batch
from client_stub.spark.exactly_once.messages import StagedTask

OPTIONS = {"topic": "orders", "delivery": "exactly_once"}


class LocalFrame:
    """A frame of some partitions, each of one Arrow batch."""

    def __init__(self, *partitions: list[bytes]) -> None:
        self._partitions = partitions
        self.schema = StructType([StructField("value", BinaryType())])
        self.columns = ["value"]
        self.isStreaming = False

    @property
    def sparkSession(self) -> LocalFrame:
        return self

    def range(self, start: int, end: int, step: int, partitions: int) -> LocalFrame:
        return LocalFrame(*[[b"0"]] * partitions)

    def toDF(self, *names: str) -> LocalFrame:
        return self

    select = toDF

    def mapInArrow(self, task: Callable[[Any], Iterator[Any]], schema: str) -> LocalFrame:
        batches = [
            pyarrow.record_batch({"c0": pyarrow.array(rows, pyarrow.binary())}) for rows in self._partitions
        ]
        self._rows = [row for each in batches for told in task(iter([each])) for row in told.to_pylist()]
        return self

    def collect(self) -> list[Row]:
        return [Row(**row) for row in self._rows]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """Commits and drops, each with the rows of its tasks."""
    found: list[tuple[str, list[int]]] = []

    def stage(batches: Iterator[Any], columns: object, options: object) -> StagedTask:
        rows = sum(each.num_rows for each in batches)
        batch = Batch("0123456789abcdef", "orders", 0, "query", "run")
        return StagedTask(batch, b"token", rows, rows, 0, frozenset({"orders"}), "host:/run")

    def note(what: str) -> Callable[..., None]:
        return lambda tasks, options, settings: found.append((what, [each.rows for each in tasks]))

    monkeypatch.setattr(calls, "write_batches", stage)
    monkeypatch.setattr(calls, "check_topic_of_stream", lambda options: None)
    monkeypatch.setattr(calls, "commit_batch", note("commit"))
    monkeypatch.setattr(calls, "drop_batch", note("drop"))
    return found


def write(frame: LocalFrame) -> calls.Written:
    return calls.write_frame(frame, OPTIONS)  # type: ignore[arg-type]


def test_stages_of_all_tasks_are_committed(told: list[tuple[str, list[int]]]) -> None:
    assert write(LocalFrame([b"a", b"b"], [b"c"])).rows == 3
    assert told == [("commit", [2, 1])]


def test_frame_without_partitions_is_committed_as_one_task_without_rows(
    told: list[tuple[str, list[int]]],
) -> None:
    assert write(LocalFrame()).rows == 0
    assert told == [("commit", [0])]


def test_foreach_batch_of_spark_connect_is_refused_before_any_task(
    told: list[tuple[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks know no batch: they would be a batch job, whose replay is new data."""
    monkeypatch.setitem(sys.modules, calls.FOREACH_BATCH_OF_CONNECT, sys)
    with pytest.raises(
        ValueError, match=r"^kafka_sidecar: .*foreachBatch of Spark Connect.*writeStream\.format"
    ):
        write(LocalFrame([b"a"]))
    assert told == []


def test_stages_of_a_commit_that_failed_are_dropped(
    told: list[tuple[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("kafka_sidecar: not now.")

    monkeypatch.setattr(calls, "commit_batch", fail)
    with pytest.raises(RuntimeError, match="not now"):
        write(LocalFrame([b"a"], [b"b"]))
    assert told == [("drop", [1, 1])]
