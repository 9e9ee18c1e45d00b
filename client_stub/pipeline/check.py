"""``pipeline check``: finds all faults without sending, and shows what each topic would get."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from client_stub.contract.run_dir import default_run_dir
from client_stub.io.daemon_address import control_path
from client_stub.pipeline.file import Fault, Pipeline, PipelineFaults
from client_stub.pipeline.plan import OutputPlan, Planner, sentence
from client_stub.pipeline.records import REASON, plain, with_reasons
from client_stub.spark.options import read_options
from client_stub.spark.topic_check import check_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_ROWS: Final = 3
_SHOWN: Final = 60


def check(spark: SparkSession, pipeline: Pipeline) -> str:
    """The plan as text. Raises PipelineFaults with all that is wrong.

    A stream is checked, and sampled, as the batch of what is there now.
    """
    planner = Planner(spark, pipeline, is_stream=False)
    views = planner.views()
    plans = planner.outputs(views)
    faults = [*planner.faults, *_daemon_faults(spark, pipeline)]
    lines = [f"Pipeline {pipeline.name}: {'a stream' if pipeline.is_stream else 'a batch'}"]
    for name, frame in views.items():
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in frame.schema.fields)
        lines.append(f"{'source' if name == 'source' else f'step {name}'}: {columns}")
    for plan in plans:
        try:
            lines += _output(plan)
        except Exception as error:
            faults.append(
                pipeline.fault(
                    ("output", plan.index),
                    f"the first rows of {plan.output.label} cannot be made: {sentence(error)}",
                    "correct the source or the steps",
                )
            )
    if faults:
        raise PipelineFaults(sorted(set(faults), key=lambda fault: fault.line))
    return "\n".join(lines)


def _output(plan: OutputPlan) -> list[str]:
    kinds = ", ".join(
        f"{name} {plan.encodings[name].text if name in plan.encodings else kind.simpleString()}"
        for name, kind in plan.types.items()
    )
    lines = [f"output {plan.output.label}: {kinds}"]
    for row in with_reasons(plan, None, keep_plain=True).limit(SAMPLE_ROWS).collect():
        if row[REASON] is not None:
            lines.append(f"    a bad row: {row[REASON]}")
            continue
        parts = (f"{name}={_short(row[plain(plan, name)]['v'])}" for name in plan.types)
        lines.append(f"    {', '.join(parts)}")
    return lines


def _short(value: Any) -> str:
    text = str(bytes(value)) if isinstance(value, bytearray) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _daemon_faults(spark: SparkSession, pipeline: Pipeline) -> list[Fault]:
    """Of the daemon and the topics, where this host has a daemon, or where it must: in a local run."""
    if pipeline.daemon is not None:
        try:
            read_options({"topic": "any", **pipeline.sink_options()})
        except ValueError as error:
            text = sentence(error).removeprefix("kafka_sidecar: ")
            return [pipeline.fault(("kafka",), text, "correct [kafka]")]
        return []
    run_dir = pipeline.run_dir or default_run_dir()
    if "://" not in run_dir and not Path(control_path(run_dir)).exists():
        if not (spark.sparkContext.master or "").startswith("local"):
            return []
        return [
            pipeline.fault(
                ("sidecar",),
                f"no daemon runs on {run_dir}",
                "start one with 'kafka-sidecar run', or name its run_dir in [sidecar]",
            )
        ]
    faults = []
    for index, output in enumerate(pipeline.outputs):
        for path, topic in (
            (("output", index, "topic"), output.topic),
            (("output", index, "bad_rows"), output.bad_topic),
        ):
            if topic is None:
                continue
            try:
                check_topic(read_options({"topic": topic, "sidecar.run_dir": run_dir}))
            except ValueError as error:
                text = sentence(error).removeprefix("kafka_sidecar: ")
                faults.append(pipeline.fault(path, text, "create it, or correct its name"))
    return faults
