"""Runs a pipeline: a batch is one job for each output, a stream one query for each.

Every write leaves its counts in a folder of this host (see client_stub/spark/write_report.py), which the report is made
of. Nothing is counted as sent that the brokers have not acknowledged.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as f

from client_stub.contract.run_dir import default_run_dir
from client_stub.errors import SidecarError
from client_stub.pipeline.checkpoint import Checkpoint
from client_stub.pipeline.counting import ScannedRows, counted_views, is_counted
from client_stub.pipeline.file import SOURCE, Pipeline, PipelineFaults
from client_stub.pipeline.plan import COUNT, OutputPlan, Planner
from client_stub.pipeline.progress import RunProgress
from client_stub.pipeline.records import REASON, bad_records, good_records, with_reasons
from client_stub.pipeline.report import OutputReport, Report
from client_stub.producer import Producer
from client_stub.spark import register
from client_stub.spark.options import REPORT
from client_stub.spark.write_report import COMMIT_FILE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BAD = "bad"
POLL_S: Final = 0.3
SIZE_WAIT_S: Final = 5.0
MAX_REQUEST_SIZE: Final = 1 << 20
"""Kafka's default, of a daemon that this run starts."""
LAST_PROGRESS_S: Final = 10.0
STOPPING: Final = "the run is being stopped"


class Interrupted(Exception):
    """Ctrl-C or SIGTERM has ended the run. The text says what is in Kafka."""


class Run:
    """One run of a pipeline. ``quiet`` shows no progress."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, *, quiet: bool = False) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._quiet = quiet
        self._planner = Planner(spark, pipeline)
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-sidecar-pipeline-"))
        self._progress = RunProgress(self._share)
        self._size_limit: int | None = None
        self._stopping = False
        self._cancelled = False
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
            with _signals(self._stop):
                self._run()
        except PipelineFaults:
            raise
        except Exception:
            if self._cancelled:
                raise Interrupted(self.in_kafka()) from None
            raise
        finally:
            self.report.seconds = time.monotonic() - began
            self.report.samples = self._progress.samples
            shutil.rmtree(self._folder, ignore_errors=True)
        return self.report

    def _run(self) -> None:
        if self._pipeline.is_stream:
            self._spark.conf.set("spark.sql.streaming.schemaInference", "true")
        plans = self._planner.outputs(self._planner.views())
        if self._planner.faults:
            raise PipelineFaults(self._planner.faults)
        self._planner.register()
        register(self._spark)
        self._size_limit = self._known_size_limit()
        self.report.steps = {step.name: None for step in self._pipeline.steps}
        self.report.outputs = [
            OutputReport(plan.output.label, plan.output.view, plan.output.topic is not None) for plan in plans
        ]
        with self._progress.shown(quiet=self._quiet):
            if self._pipeline.is_stream:
                self._run_streams(plans)
            else:
                self._run_batch(plans)

    # --- batch --------------------------------------------------------------------------------------

    def _run_batch(self, plans: list[OutputPlan]) -> None:
        scanned = ScannedRows(self._spark)
        for index in range(len(plans)):
            observed = counted_views(self._planner, self._pipeline, index)
            plan = self._planner.output(index, observed)
            # A view that no step of this output reads is never counted.
            observed = {name: each for name, each in observed.items() if is_counted(plan.frame, each._name)}
            scanned.take()
            self._write(plan, keeps_bad_rows=False)
            read = scanned.take()
            for name, observation in observed.items():
                self.report.note_rows(name, observation.get[COUNT])
            if SOURCE not in observed and read is not None:
                self.report.note_rows(SOURCE, read)
            self._keep_bad_rows(plan)

    def _write(self, plan: OutputPlan, *, keeps_bad_rows: bool = True) -> None:
        """Send the good rows of one output, and then its bad rows to where it keeps them."""
        report = self.report.outputs[plan.index]
        counts = Observation(COUNT)
        rows = with_reasons(plan, self._size_limit).observe(
            counts, f.count(f.lit(1)).alias(COUNT), f.count(REASON).alias(BAD)
        )
        options = {} if plan.output.topic is None else {"topic": plan.output.topic}
        commit = self._save(good_records(plan, rows), options)
        report.add_commit(commit)
        found = counts.get
        report.counted += found[COUNT]
        bad = found[BAD]
        report.bad_rows += bad
        if bad and keeps_bad_rows:
            self._keep_bad_rows(plan, bad)

    def _keep_bad_rows(self, plan: OutputPlan, expected: int | None = None) -> None:
        report = self.report.outputs[plan.index]
        if expected is None:
            expected = report.bad_rows
        if not expected:
            return
        counts = Observation(BAD)
        rows = with_reasons(plan, self._size_limit, keep_row=True)
        bad = bad_records(plan, rows, self._size_limit)
        if plan.output.bad_topic is not None:
            report.bad_rows_kept += self._save(bad, {"topic": plan.output.bad_topic})["rows"]
            return
        bad.observe(counts, f.count(f.lit(1)).alias(COUNT)).write.mode("append").json(
            str(plan.output.bad_path)
        )
        report.bad_rows_kept += counts.get[COUNT]

    def _save(self, frame: DataFrame, options: Mapping[str, str]) -> dict[str, Any]:
        """Write the frame through the sidecar. Returns the counts that its commit left."""
        if self._cancelled:
            raise Interrupted
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        seen = self._progress.counts()
        with self._progress.writing(folder):
            writer = frame.write.format("kafka_sidecar").mode("append")
            writer.options(**self._pipeline.sink_options(), **options).option(REPORT, str(folder)).save()
        commit: dict[str, Any] = json.loads((folder / COMMIT_FILE).read_text())
        self._progress.committed(commit["rows"], seen)
        shutil.rmtree(folder, ignore_errors=True)
        return commit

    # --- stream -------------------------------------------------------------------------------------

    def _run_streams(self, plans: list[OutputPlan]) -> None:
        checkpoint = Checkpoint(self._spark, str(self._pipeline.checkpoint))
        checkpoint.claim(self._pipeline)
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
                # Else the bad rows would be read, and counted, a second time.
                rows = rows.persist() if plan.output.keeps_bad_rows else rows
                try:
                    self._write(replace(plan, frame=rows))
                finally:
                    rows.unpersist()
                self.report.batches += 1
                self._last_batch[name] = number
                if number == replayed:
                    report.duplicates += report.rows - before

        writer = frame.writeStream.foreachBatch(batch).queryName(name).option("checkpointLocation", place)
        if self._pipeline.trigger == "available-now":
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=_interval(self._pipeline.trigger)).start()

    # --- end, counts --------------------------------------------------------------------------------

    def _stop(self) -> None:
        """For a signal: a stream ends after its micro-batch; a batch, or a stream that is told twice, at once."""
        if self._pipeline.is_stream and not self._stopping:
            self._stopping = True
            print("Stopping after this micro-batch; once more ends it at once.", file=sys.stderr, flush=True)
            return
        self._cancelled = True
        # Not in this thread: it may be in the middle of a call of the JVM, which an exception would break.
        threading.Thread(target=self._spark.sparkContext.cancelAllJobs, name="cancel", daemon=True).start()

    def in_kafka(self) -> str:
        time.sleep(POLL_S)  # the tasks write their last counts
        counts = self._progress.counts()
        more = counts.rows - counts.acknowledged
        rest = f", and up to {more:,} more, which a daemon had taken" if more else ""
        return f"Stopped: {counts.acknowledged:,} rows are in Kafka{rest}."

    def _share(self) -> float | None:
        """The share of tasks that are over, of the jobs that run; None in a stream, whose end nobody knows."""
        if self._pipeline.is_stream:
            return None
        tracker = self._spark.sparkContext.statusTracker()
        tasks = done = 0
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                tasks, done = tasks + info.numTasks, done + info.numCompletedTasks
        return done / tasks if tasks else None

    def _known_size_limit(self) -> int | None:
        """The largest record that the daemon of this host takes; None without one here, as on a driver of a cluster."""
        if self._pipeline.daemon is not None:
            return int(self._pipeline.daemon.get("max.request.size", MAX_REQUEST_SIZE))
        topic = next((output.topic for output in self._pipeline.outputs if output.topic), None)
        if topic is None:
            return None
        with (
            suppress(SidecarError),
            Producer(
                self._pipeline.run_dir or default_run_dir(),
                client_name="pipeline",
                max_block_ms=SIZE_WAIT_S * 1e3,
                connect_timeout_ms=POLL_S * 1e3,
            ) as producer,
        ):
            return producer.size_limit(topic)
        return None


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
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call ``stop`` while the block works, where it runs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: object) -> None:
        stop()

    before = {each: signal.signal(each, on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
