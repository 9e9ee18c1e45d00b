"""Chooses the views whose rows are counted: only those whose count costs no filter that the source would do itself.

On the driver, in the process of the pipeline's command or of spark-submit.

Spark moves no filter past a count. A count of the source would read all days of a table of which a step takes one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation

from client_stub.pipeline.file import SOURCE, Pipeline
from client_stub.pipeline.plan import Planner
from client_stub.pipeline.records import Limits, tried_parts, with_reasons
from client_stub.pipeline.stages import scala_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILTERS: Final = re.compile(r"(PartitionFilters|PushedFilters|RuntimeFilters): (\[.*?\])(?=,|$| )")
_ID: Final = re.compile(r"#\d+L?")
_ROWS_ONLY: Final = frozenset({"csv", "json", "text", "xml"})
"""Formats whose pushed filters save no reading: each row is parsed, and then dropped."""


def counted_views(planner: Planner, pipeline: Pipeline, index: int) -> dict[str, Observation]:
    """An Observation for each view on the way to an output that may be counted."""
    names = [SOURCE, *(step.name for step in pipeline.steps)]
    wanted = _filters(planner, pipeline, index, {})
    while names:
        # By name only: Spark would complete the Observations of this frame, which never runs, in place of the others.
        if _filters(planner, pipeline, index, {name: name for name in names}) == wanted:
            return {name: Observation(f"{name}-{index}") for name in names}
        names.pop(0)
    return {}


def _filters(planner: Planner, pipeline: Pipeline, index: int, observed: dict[str, str]) -> list[str]:
    plan = planner.output(index, observed)
    frame = with_reasons(plan, tried_parts(plan), Limits())
    text = frame._jdf.queryExecution().executedPlan().toString()
    found = _FILTERS.findall(_ID.sub("", text))
    if pipeline.source.format in _ROWS_ONLY:
        found = [each for each in found if each[0] == "PartitionFilters"]
    return [" ".join(each) for each in found]


def is_counted(frame: DataFrame, name: str | None) -> bool:
    """Whether the plan of ``frame`` has the count of this name."""
    return f"CollectMetrics {name}, " in frame._jdf.queryExecution().analyzed().toString()


class ScannedRows:
    """The rows that the scans of the queries since the last call have put out, by Spark's own metrics."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        self._store: Any = spark._jsparkSession.sharedState().statusStore()
        self._seen = self._last()

    def _last(self) -> int:
        return max((each.executionId() for each in scala_items(self._store.executionsList())), default=-1)

    def take(self) -> int | None:
        """None where no scan has such a metric."""
        self._context.listenerBus().waitUntilEmpty()
        found = [
            rows
            for execution in scala_items(self._store.executionsList())
            if execution.executionId() > self._seen
            for rows in self._rows_of(execution.executionId())
        ]
        self._seen = self._last()
        return sum(found) if found else None

    def _rows_of(self, execution: int) -> list[int]:
        values = self._store.executionMetrics(execution)
        found = []
        for node in scala_items(self._store.planGraph(execution).allNodes()):
            if "Scan" not in node.name() and not node.name().startswith("Range"):
                continue
            for metric in scala_items(node.metrics()):
                value = values.get(metric.accumulatorId())
                if metric.name() == "number of output rows" and value.isDefined():
                    found.append(int(value.get().replace(",", "")))
        return found
