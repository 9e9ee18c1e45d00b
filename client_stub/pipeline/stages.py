"""What Spark's own store says of stages: how far those that run are, and how often each task of one was started.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNKNOWN_BYTES: Final = 1 << 60
"""Spark's size of a source that it knows nothing of is the largest long."""
_TASKS_MAX: Final = (1 << 31) - 1


def source_bytes(frame: DataFrame) -> int:
    """The bytes of the files that the frame's plan reads; 0 where they are not known, as those of Kafka."""
    leaves = scala_items(frame._jdf.queryExecution().optimizedPlan().collectLeaves())
    sizes = [int(str(each.stats().sizeInBytes())) for each in leaves]
    return 0 if any(size >= _UNKNOWN_BYTES for size in sizes) else sum(sizes)


class Stages:
    """The stages of one Spark application."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        self._tracker = spark.sparkContext.statusTracker()

    def share(self, size: int) -> float | None:
        """The share of the tasks that are over in the stages that run, with what the others have read of ``size``
        bytes; None while none runs.
        """
        tasks = over = running = read = 0
        for stage in self._tracker.getActiveStageIds():
            data = self._context.statusStore().lastStageAttempt(stage)
            tasks, over = tasks + data.numTasks(), over + data.numCompleteTasks()
            running, read = running + data.numActiveTasks(), read + data.inputBytes()
        if not tasks:
            return None
        by_bytes = min(read / size, (over + running) / tasks) if size else 0.0
        return float(max(over / tasks, by_bytes))

    def starts(self, stage: int) -> Counter[int]:
        """Task → how often it was started, in all attempts of ``stage``, with the copies that speculation makes. Empty
        where none was started more than once.
        """
        self._context.listenerBus().waitUntilEmpty()
        store = self._context.statusStore()
        last = store.lastStageAttempt(stage)
        found: Counter[int] = Counter()
        if last.attemptId() or last.numFailedTasks() or last.numKilledTasks() or last.numActiveTasks():
            for attempt in range(last.attemptId() + 1):
                for task in scala_items(store.taskList(stage, attempt, _TASKS_MAX)):
                    found[task.partitionId()] += 1
        return found


def scala_items(collection: Any) -> Iterator[Any]:
    """The items of a collection of Scala."""
    items = collection.iterator()
    while items.hasNext():
        yield items.next()
