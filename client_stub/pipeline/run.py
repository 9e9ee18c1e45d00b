"""Runs a pipeline: a batch is one job for each output, a stream one query for each.

On the driver, in the process of the pipeline's command or of spark-submit.

Every write leaves its counts in a folder of this host (see client_stub/spark/write_report.py), which the report is made
of. Nothing is counted as sent that the brokers have not acknowledged.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as f

from client_stub.pipeline.checkpoint import Checkpoint
from client_stub.pipeline.counting import ScannedRows, counted_views, is_counted
from client_stub.pipeline.daemon_check import DaemonAnswers, ask_daemon
from client_stub.pipeline.file import SOURCE, Pipeline, PipelineFaults, in_order
from client_stub.pipeline.plan import COUNT, OutputPlan, Planner
from client_stub.pipeline.progress import RunProgress
from client_stub.pipeline.records import (
    REASON,
    Limits,
    bad_records,
    good_records,
    greatest_partitions,
    tried_parts,
    with_reasons,
)
from client_stub.pipeline.report import Ending, OutputReport, Report
from client_stub.pipeline.stages import Stages
from client_stub.pipeline.status import FAILED, INTERRUPTED, OK, TIMED_OUT
from client_stub.spark import register
from client_stub.spark.options import REPORT
from client_stub.spark.write_report import COMMIT_FILE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BAD = "bad"
POLL_S: Final = 0.3
LAST_PROGRESS_S: Final = 10.0
STOPPING: Final = "the run is being stopped"
SIGNALS: Final = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
CONTINUES: Final = "The next run continues from the checkpoint"


class Stopped(NamedTuple):
    """What ended a run before its end: exit status and the head of a sentence."""

    status: int
    head: str


class Interrupted(Exception):
    """Ctrl-C, SIGTERM or the time limit has ended the run. The text says what is in Kafka, and how to continue."""


class Run:
    """One run of a pipeline. ``progress`` is told how far it is; ``timeout_s`` ends it as Ctrl-C does."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        progress: RunProgress | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._planner = Planner(spark, pipeline)
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-sidecar-pipeline-"))
        self._progress = progress or RunProgress()
        self._timeout_s = timeout_s
        self._stages = Stages(spark)
        self._daemon = DaemonAnswers()
        self._stopping = False
        self._cancelled = False
        self._stopped_as: Stopped | None = None
        """What ended the run; the first one, if there were several."""
        self._writes = 0
        """Outputs of a batch that are written."""
        self._share_of_write = 0.0
        self._writing = threading.Lock()
        self._last_batch: dict[str, int] = {}
        """Query → the micro-batch that it wrote last."""
        self.report = Report(
            pipeline.name,
            uuid.uuid4().hex[:12],
            pipeline.source.table or pipeline.source.path or pipeline.source.format,
        )

    def run(self) -> Report:
        """Run to the end. Raises PipelineFaults before anything is sent; Interrupted; and what Spark raises. The report
        then has what is known.
        """
        began = time.monotonic()
        try:
            with _signals(self._on_signal), self._limited():
                self._run()
        except PipelineFaults:
            raise
        except Exception:
            if not self._cancelled:
                raise
            self.report.ending = ending = self._broken_off()
            raise Interrupted(ending.sentence) from None
        else:
            self.report.ending = self._ended_in_order()
        finally:
            self.report.seconds = time.monotonic() - began
            self.report.samples = self._progress.samples
            shutil.rmtree(self._folder, ignore_errors=True)
        return self.report

    def _run(self) -> None:
        if self._pipeline.is_stream:
            self._spark.conf.set("spark.sql.streaming.schemaInference", "true")
        self._progress.phase = "Spark makes the plan"
        plans = self._planner.outputs(self._planner.views())
        self._progress.phase = "The daemon looks up the topics"
        daemon = ask_daemon(self._pipeline, is_local=self._is_local)
        if faults := [*self._planner.faults, *daemon.faults]:
            raise PipelineFaults(in_order(faults), daemon.status)
        self._daemon = daemon
        self._planner.register()
        self._progress.phase = "Spark starts the Python of its tasks"
        register(self._spark)
        self.report.steps = {step.name: None for step in self._pipeline.steps}
        self.report.reads = {step.name: self._pipeline.reads(step) for step in self._pipeline.steps}
        self.report.outputs = [
            OutputReport(plan.output.label, plan.output.view, plan.output.topic is not None) for plan in plans
        ]
        if self._pipeline.is_stream:
            self._progress.phase = "Another run of this stream is looked for"
            self._run_streams(plans)
        else:
            self._progress.writes()
            self._progress.share = self._share
            self._run_batch(plans)

    @property
    def _is_local(self) -> bool:
        return (self._spark.sparkContext.master or "").startswith("local")

    @contextmanager
    def _limited(self) -> Iterator[None]:
        if self._timeout_s is None:
            yield
            return
        timer = threading.Timer(self._timeout_s, self._time_is_over)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _time_is_over(self) -> None:
        self._stop(Stopped(TIMED_OUT, f"The time limit of {self._timeout_s:g} s was reached"))

    def _on_signal(self, number: int) -> None:
        self._stop(Stopped(INTERRUPTED, f"Stopped by {SIGNALS[signal.Signals(number)]}"))

    def _lease_is_lost(self) -> None:
        self._stopping = True
        self._stop(Stopped(FAILED, "Another run took the checkpoint"))

    # --- batch --------------------------------------------------------------------------------------

    def _run_batch(self, plans: list[OutputPlan]) -> None:
        scanned = ScannedRows(self._spark)
        for index in range(len(plans)):
            observed = counted_views(self._planner, self._pipeline, index)
            plan = self._planner.output(index, observed)
            # A view that no step of this output reads is never counted.
            observed = {name: each for name, each in observed.items() if is_counted(plan.frame, each._name)}
            # Of the views that are not counted.
            limits = self._limits(plan, tried_parts(plans[index]))
            scanned.take()
            bad = self._send_good_rows(plan, with_reasons(plan, tried_parts(plan), limits))
            read = scanned.take()
            for name, observation in observed.items():
                self.report.note_rows(name, observation.get[COUNT])
            if SOURCE not in observed and read is not None:
                self.report.note_rows(SOURCE, read)
            if bad:
                rows = with_reasons(plan, tried_parts(plan, keep_row=True), limits)
                self._keep_bad_rows(plan, bad_records(plan, rows, limits))
            self._writes, self._share_of_write = index + 1, 0.0

    def _limits(self, plan: OutputPlan, parts: DataFrame) -> Limits:
        """Where rows name their topics, and bad ones are kept apart, the topics of ``parts`` are looked up."""
        limits = self._daemon.limits(plan.output.topic)
        if plan.output.topic is not None or "partition" not in plan.types or not plan.output.keeps_bad_rows:
            return limits
        return limits._replace(by_topic=self._daemon.partitions_of(greatest_partitions(parts)))

    def _send_good_rows(self, plan: OutputPlan, rows: DataFrame) -> int:
        """Send those of ``rows``, and count both kinds. Returns how many are bad."""
        report = self.report.outputs[plan.index]
        counts = Observation(COUNT)
        rows = rows.observe(counts, f.count(f.lit(1)).alias(COUNT), f.count(REASON).alias(BAD))
        options = {} if plan.output.topic is None else {"topic": plan.output.topic}
        self._save(good_records(plan, rows), options, report.add_commit)
        found = counts.get
        report.counted += found[COUNT]
        report.bad_rows += found[BAD]
        return int(found[BAD])

    def _keep_bad_rows(self, plan: OutputPlan, bad: DataFrame) -> None:
        """Send them to where the output keeps them."""
        report = self.report.outputs[plan.index]
        if plan.output.bad_topic is not None:
            self._save(bad, {"topic": plan.output.bad_topic}, report.add_bad_commit)
            return
        counts = Observation(BAD)
        bad.observe(counts, f.count(f.lit(1)).alias(COUNT)).write.mode("append").json(
            str(plan.output.bad_path)
        )
        report.bad_rows_kept += counts.get[COUNT]

    def _save(
        self,
        frame: DataFrame,
        options: Mapping[str, str],
        add: Callable[[Mapping[str, Any], Mapping[int, int]], None],
    ) -> None:
        """Write the frame through the sidecar. ``add`` gets the counts that it left, also if it fails: those of the
        tasks that had ended.
        """
        if self._cancelled:
            raise Interrupted
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        seen = self._progress.counts()
        try:
            with self._progress.writing(folder):
                writer = frame.write.format("kafka_sidecar").mode("append")
                writer.options(**self._pipeline.sink_options(), **options).option(REPORT, str(folder)).save()
        finally:
            with suppress(FileNotFoundError):  # it failed before its first task
                commit: dict[str, Any] = json.loads((folder / COMMIT_FILE).read_text())
                stage = commit["stage"]
                add(commit, {} if stage is None else self._stages.starts(stage))
                self._progress.committed(commit["rows"], seen)
            shutil.rmtree(folder, ignore_errors=True)

    # --- stream -------------------------------------------------------------------------------------

    def _run_streams(self, plans: list[OutputPlan]) -> None:
        checkpoint = Checkpoint(self._spark, str(self._pipeline.checkpoint))
        checkpoint.claim(self._pipeline)
        with checkpoint.leased(self._pipeline, self.report.run_id, self._lease_is_lost):
            self._run_queries(plans, checkpoint)

    def _run_queries(self, plans: list[OutputPlan], checkpoint: Checkpoint) -> None:
        self._progress.writes()
        self.report.rows_read = 0
        counters: list[_StreamCounter] = []
        # Each view is counted by the first query that reads it: all queries read the same rows.
        uncounted = {SOURCE, *self.report.steps}
        try:
            for plan in plans:
                frame = self._planner.output(plan.index, {name: name for name in uncounted}).frame
                counted = {name for name in uncounted if is_counted(frame, name)}
                uncounted -= counted
                counters.append(_StreamCounter(self.report, self._start(plan, frame, checkpoint), counted))
            # One that fails ends the others, which would run on for good.
            while any(each.query.isActive for each in counters) and not any(map(_failed, counters)):
                if self._cancelled:
                    raise Interrupted
                for counter in counters:
                    counter.take()
                    if self._stopping and not counter.query.status["isTriggerActive"]:
                        counter.query.stop()
                time.sleep(POLL_S)
        finally:
            for counter in counters:
                counter.query.stop()
        for counter in counters:
            counter.take_last(self._last_batch.get(counter.query.name, -1))
            error = counter.query.exception()
            if error is not None and STOPPING not in str(error):
                raise error

    def _start(self, plan: OutputPlan, frame: DataFrame, checkpoint: Checkpoint) -> StreamingQuery:
        """Start the query of one output; ``frame`` has the rows of its step."""
        name = f"{self._pipeline.name}: {plan.output.label} ({plan.index + 1})"
        place = checkpoint.of_output(self._pipeline, plan.index)
        replayed = checkpoint.unfinished_batch(place)

        def batch(rows: DataFrame, number: int) -> None:
            if self._stopping:
                # What is begun now would be broken off in the middle.
                raise Interrupted(STOPPING)
            with self._writing:
                report = self.report.outputs[plan.index]
                before = report.rows
                parts = tried_parts(replace(plan, frame=rows), keep_row=plan.output.keeps_bad_rows)
                if plan.output.keeps_bad_rows:
                    # Else they would be read, and counted, twice. Not earlier: a cached row has no file name any more.
                    parts = parts.persist()
                try:
                    limits = self._limits(plan, parts)
                    tried = with_reasons(plan, parts, limits)
                    if self._send_good_rows(plan, tried):
                        self._keep_bad_rows(plan, bad_records(plan, tried, limits))
                finally:
                    parts.unpersist()
                self.report.batches += 1
                self._last_batch[name] = number
                if number == replayed:
                    report.duplicates += report.rows - before

        writer = frame.writeStream.foreachBatch(batch).queryName(name).option("checkpointLocation", place)
        if self._pipeline.trigger == "available-now":
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=_interval(self._pipeline.trigger)).start()

    # --- end, counts --------------------------------------------------------------------------------

    def _stop(self, cause: Stopped) -> None:
        """A stream ends after its micro-batch; a batch, or a stream that is told twice, at once."""
        self._stopped_as = self._stopped_as or cause
        if self._pipeline.is_stream and not self._stopping:
            self._stopping = True
            self._progress.note("Stopping after this micro-batch; once more ends it at once.")
            return
        if not self._cancelled:
            self._progress.note("Stopping: the tasks of Spark are cancelled.")
        self._cancelled = True
        # Not in this thread: it may be in the middle of a call of the JVM, which an exception would break.
        threading.Thread(target=self._spark.sparkContext.cancelAllJobs, name="cancel", daemon=True).start()

    def _ended_in_order(self) -> Ending | None:
        """Of a stream that was told to end: one with an interval has no other end."""
        if self._stopped_as is None or not self._pipeline.is_stream:
            return None
        head, status = self._stopped_as.head, self._stopped_as.status
        if status == INTERRUPTED and self._pipeline.trigger != "available-now":
            status = OK
        return Ending(f"{head}, after a whole micro-batch. {CONTINUES}.", True, status)

    def _broken_off(self) -> Ending:
        assert self._stopped_as is not None
        if self._pipeline.is_stream:
            next_run = f"{CONTINUES}, and sends the micro-batch that was broken off again."
        else:
            next_run = "The next run begins with the first row again."
        return Ending(
            f"{self._stopped_as.head}. {self.in_kafka()} {next_run}", False, self._stopped_as.status
        )

    def in_kafka(self) -> str:
        time.sleep(POLL_S)  # the tasks write their last counts
        counts = self._progress.counts()
        if not self._is_local:
            known = max(counts.acknowledged, sum(output.rows for output in self.report.outputs))
            return f"At least {known:,} rows are in Kafka; what the tasks that did not end have sent is not known."
        more = counts.rows - counts.acknowledged
        rest = f", and up to {more:,} more, which a daemon had taken" if more else ""
        return f"{counts.acknowledged:,} rows are in Kafka{rest}."

    def _share(self) -> float | None:
        """The share of the outputs that are written; of that which is being written, what Spark knows. None while no
        task runs.
        """
        now = self._stages.share()
        if now is None:
            return None
        # One that reads a shuffle begins at 0 again.
        self._share_of_write = max(self._share_of_write, now)
        return min(1.0, (self._writes + self._share_of_write) / len(self.report.outputs))


class _StreamCounter:
    """Adds the rows of each micro-batch of a query to the report, from the progress that Spark keeps."""

    def __init__(self, report: Report, query: StreamingQuery, names: Collection[str]) -> None:
        self.query = query
        self._report = report
        self._names = names
        self._batch = -1

    def take(self) -> None:
        for progress in self.query.recentProgress:
            found = json.loads(progress.json)
            if found["batchId"] <= self._batch or "addBatch" not in found["durationMs"]:
                continue
            self._batch = found["batchId"]
            for name, counts in found.get("observedMetrics", {}).items():
                if name == SOURCE:
                    self._report.rows_read = (self._report.rows_read or 0) + counts[COUNT]
                elif name in self._names:
                    self._report.steps[name] = (self._report.steps[name] or 0) + counts[COUNT]

    def take_last(self, batch: int) -> None:
        """As take(), once Spark has told of ``batch``: it does so a little after the query's end."""
        end = time.monotonic() + LAST_PROGRESS_S
        self.take()
        while self._batch < batch and time.monotonic() < end:
            time.sleep(POLL_S)
            self.take()


def _failed(counter: _StreamCounter) -> bool:
    return not counter.query.isActive and counter.query.exception() is not None


def _interval(trigger: str) -> str:
    units = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
    number = trigger.rstrip("hms")
    return f"{number} {units[trigger[len(number) :]]}"


@contextmanager
def _signals(stop: Callable[[int], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call ``stop`` with their number while the block works, where it runs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: object) -> None:
        stop(number)

    before = {each: signal.signal(each, on_signal) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
