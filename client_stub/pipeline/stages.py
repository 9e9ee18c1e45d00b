"""What Spark's own store says of stages: how far those that run are, and how often each task of one was started.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_MAX: Final = (1 << 31) - 1


class Stages:
    """The stages of one Spark application."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        self._tracker = spark.sparkContext.statusTracker()

    def share(self) -> float | None:
        """The share of the tasks that are over in the stages that run; None while none runs."""
        tasks = over = 0
        for stage in self._tracker.getActiveStageIds():
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                tasks, over = tasks + info.numTasks, over + info.numCompletedTasks
        return over / tasks if tasks else None

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
