"""``pipeline check``: finds all faults without sending, and shows what each topic would get.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from client_stub.pipeline.daemon_check import DaemonAnswers, ask_daemon
from client_stub.pipeline.file import Pipeline, PipelineFaults, in_order
from client_stub.pipeline.plan import OutputPlan, Planner, sentence
from client_stub.pipeline.records import REASON, Limits, plain, tried_parts, with_reasons

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_ROWS: Final = 3
_SHOWN: Final = 60


def check(spark: SparkSession, pipeline: Pipeline) -> str:
    """The plan as text. Raises PipelineFaults with all that is wrong, the faults of the file included.

    A stream's rows are those of a batch of what is there now.
    """
    planner = Planner(spark, pipeline)
    views = planner.views()
    plans = planner.outputs(views)
    is_local = (spark.sparkContext.master or "").startswith("local")
    can_ask = not pipeline.broken & {("kafka",), ("sidecar",)}
    daemon = ask_daemon(pipeline, is_local=is_local) if can_ask else DaemonAnswers()
    faults = [*pipeline.faults, *planner.faults, *daemon.faults]
    lines = [f"Pipeline {pipeline.name}: {'a stream' if pipeline.is_stream else 'a batch'}"]
    for name, frame in views.items():
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in frame.schema.fields)
        lines.append(f"{'source' if name == 'source' else f'step {name}'}: {columns}")
    samples = Planner(spark, pipeline, is_stream=False) if pipeline.is_stream else planner
    for plan in plans:
        kinds = ", ".join(
            f"{name} {plan.encodings[name].text if name in plan.encodings else kind.simpleString()}"
            for name, kind in plan.types.items()
        )
        lines.append(f"output {plan.output.label}: {kinds}")
        try:
            rows = samples.output(plan.index) if pipeline.is_stream else plan
            lines += _shown_rows(rows, daemon.limits(plan.output.topic))
        except PipelineFaults as only_as_batch:
            lines.append(f"    no rows to show: {only_as_batch.faults[0].what}")
        except Exception as error:
            faults.append(
                pipeline.fault(
                    ("output", plan.index),
                    f"the first rows of {plan.output.label} cannot be made: {sentence(error)}",
                    "correct the source or the steps",
                )
            )
    if faults:
        raise PipelineFaults(in_order(faults))
    return "\n".join(lines)


def _shown_rows(plan: OutputPlan, limits: Limits) -> list[str]:
    lines = []
    rows = with_reasons(plan, tried_parts(plan, keep_plain=True), limits)
    for row in rows.limit(SAMPLE_ROWS).collect():
        if row[REASON] is not None:
            lines.append(f"    a bad row: {row[REASON]}")
            continue
        parts = (f"{name}={_short(row[plain(plan, name)]['v'])}" for name in plan.types)
        lines.append(f"    {', '.join(parts)}")
    return lines or ["    no rows"]


def _short(value: Any) -> str:
    text = str(bytes(value)) if isinstance(value, bytearray) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
