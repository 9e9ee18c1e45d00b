"""The demo from start to end: broker, daemon, job, judge, comparison, one table.

``run_demo`` is what ``kafka-sidecar demo`` calls. It returns 0 only if every count agrees.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sidecar.tools.demo import flights
from sidecar.tools.demo.connections import ConnectionPeak
from sidecar.tools.demo.jobs import Job, JobFailed, forked_job, pipeline_job
from sidecar.tools.demo.judge import Judge, LiveReading, TopicReader, Verdict
from sidecar.tools.demo.short_lived import PROCESSES, RECORDS, ShortLived, run_short_lived
from sidecar.tools.demo.steps import Steps, rows_table
from sidecar.tools.testing.daemon import DaemonFailed, SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster, exit_on_sigterm
from sidecar.tools.testing.kafka_jars import KafkaUnavailable, kafka_version
from sidecar.tools.testing.kafka_topics import create_topics, delete_topics, quiet_config
from sidecar.tools.testing.metrics import http_address, metric
from sidecar.tools.testing.mock_broker import MockBroker

TOPIC = "flights"
PARTITIONS = 6
DELIVERED = "kafka_sidecar_records_delivered_total"
JUDGE_SILENCE_S = 10.0
"""The judge stops waiting for missing rows when nothing new has come for this time."""


@dataclass(frozen=True)
class Comparison:
    """One side of the fork comparison."""

    name: str
    connections: int
    result: ShortLived


@dataclass(frozen=True)
class JobResult:
    """The rate at which rows arrived, and the records delivered by the daemon's count."""

    rows_per_s: float
    delivered: int


class Pace:
    """The rows per second between the first and the last rows seen, without Spark's own start."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last = (0.0, 0)

    def note(self, rows: int) -> None:
        now = time.monotonic()
        if self._first is None:
            if rows:
                self._first = self._last = (now, rows)
        elif rows > self._last[1]:
            self._last = (now, rows)

    @property
    def rows_per_s(self) -> float:
        if self._first is None or self._last[0] == self._first[0]:
            return 0.0
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


def run_demo(*, bootstrap_servers: str | None = None, mock: bool = False, keep: bool = False) -> int:
    """Run the demo. Returns 0 if all counts agree, 1 if they do not or something is missing, 130 for Ctrl-C.

    Needs the main thread (signals). Everything started here has ended on return. With ``keep`` it first waits for
    Ctrl-C with everything running.
    """
    steps = Steps()
    try:
        with exit_on_sigterm(), contextlib.ExitStack() as stack:
            return _Demo(steps, stack, mock=mock, keep=keep).run(bootstrap_servers)
    except KeyboardInterrupt:
        steps.say("stopped; nothing is left behind")
        return 130
    except (KafkaUnavailable, flights.FlightsMissing, DaemonFailed, JobFailed, RuntimeError) as error:
        steps.console.print(f"[bold red]demo failed:[/] {error}", markup=True, soft_wrap=True)
        return 1


class _Demo:
    def __init__(self, steps: Steps, stack: contextlib.ExitStack, *, mock: bool, keep: bool) -> None:
        self._steps = steps
        self._stack = stack
        self._mock = mock
        self._keep = keep
        self._bootstrap = ""
        self._topics = (TOPIC, f"{TOPIC}-short-lived")

    def run(self, bootstrap_servers: str | None) -> int:
        steps, stack = self._steps, self._stack
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ks-demo-")))
        with steps.step("The flights that left New York in 2013, counted from the CSV itself"):
            csv = flights.extract(folder)
            expected = flights.count(csv)
            steps.say(f"{expected.rows:,} rows, {len(expected.by_key)} carriers")
        self._start_broker(bootstrap_servers)
        with steps.step("The daemon, with two workers"):
            daemon = stack.enter_context(SidecarDaemon(self._bootstrap))
            steps.say(f"run dir {daemon.run_dir}, metrics at {http_address(daemon)}/metrics")
        reader = TopicReader(self._bootstrap, self._topics[0])
        stack.callback(reader.close)
        judge = Judge()
        job = self._run_job(csv, daemon, reader, judge, expected.rows)
        with steps.step("The judge: a librdkafka consumer reads everything back and compares with the CSV"):
            verdict = self._judge(reader, judge, expected)
            if verdict.agrees:
                steps.say("all counts agree")
            elif mock_lost := self._mock and expected.rows - verdict.counts.rows:
                steps.say(f"the mock cluster threw away {mock_lost:,} rows before they could be read")
            else:
                steps.say("[bold red]the counts do not agree[/]")
        reader.close()  # or its connections would be counted as the sidecar's
        comparisons = self._compare(daemon)
        self._report(expected, job, verdict, comparisons, daemon)
        if self._keep:
            steps.aloud("Everything stays up until Ctrl-C.")
            steps.say(f"bootstrap.servers={self._bootstrap}  KAFKA_SIDECAR_RUN_DIR={daemon.run_dir}")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
        # With the mock cluster a difference may be the mock's, as it drops old batches.
        return 0 if self._agrees(expected, job, verdict) else 1

    def _agrees(self, expected: flights.Counts, job: JobResult, verdict: Verdict) -> bool:
        return job.delivered == expected.rows and (verdict.agrees or self._mock)

    def _start_broker(self, bootstrap_servers: str | None) -> None:
        steps, stack = self._steps, self._stack
        if bootstrap_servers is not None:
            with steps.step(f"Topics on the running cluster {bootstrap_servers}"):
                name = f"kafka-sidecar-demo-{secrets.token_hex(4)}"
                self._bootstrap, self._topics = bootstrap_servers, (name, f"{name}-short-lived")
                create_topics(bootstrap_servers, dict.fromkeys(self._topics, PARTITIONS))
                if not self._keep:
                    stack.callback(delete_topics, bootstrap_servers, self._topics)
        elif self._mock:
            steps.aloud(
                "Mock cluster: no Java needed, and neither Spark nor exactness is shown. "
                "It checks no sequences and throws away old batches."
            )
            with steps.step("librdkafka's mock cluster of three brokers"):
                broker = stack.enter_context(MockBroker(dict.fromkeys(self._topics, PARTITIONS)))
                self._bootstrap = broker.bootstrap_servers
        else:
            with steps.step(f"A real Apache Kafka {kafka_version()} of one node"):
                cluster = stack.enter_context(KafkaCluster(topics=dict.fromkeys(self._topics, PARTITIONS)))
                self._bootstrap = cluster.bootstrap_servers
                steps.say(f"bootstrap.servers={self._bootstrap}, topic {TOPIC} with {PARTITIONS} partitions")

    def _run_job(
        self, csv: Path, daemon: SidecarDaemon, reader: TopicReader, judge: Judge, rows: int
    ) -> JobResult:
        """Run the job while a progress bar follows the offsets that the broker reports."""
        steps = self._steps
        before = int(metric(daemon, DELIVERED))
        title = "send_many() from 2 forked processes" if self._mock else "A pipeline in Spark local[2]"
        with steps.step(f"{title} writes them through the sidecar, keyed by carrier, JSON values"):
            start = self._start_job(csv, daemon)
            with start as job, steps.bar("rows", rows) as update:
                pace = Pace()

                def follow() -> None:
                    seen = judge.rows if self._mock else reader.written()
                    pace.note(seen)
                    update(seen)

                # The mock keeps only the newest batches, so the judge reads along.
                with LiveReading(reader, judge) if self._mock else contextlib.nullcontext():
                    job.watch(follow)
                follow()
            delivered = int(metric(daemon, DELIVERED)) - before
            steps.say(f"{delivered:,} delivered, {pace.rows_per_s:,.0f} rows/s from the first to the last")
        return JobResult(pace.rows_per_s, delivered)

    def _start_job(self, csv: Path, daemon: SidecarDaemon) -> Job:
        if self._mock:
            return forked_job(csv, daemon.run_dir, self._topics[0])
        return pipeline_job(csv, daemon.run_dir, self._topics[0])

    def _judge(self, reader: TopicReader, judge: Judge, expected: flights.Counts) -> Verdict:
        start = last = time.monotonic()
        with self._steps.bar("rows read back", expected.rows) as update:
            while True:
                found = reader.read_into(judge)
                update(judge.rows)
                now = time.monotonic()
                if found:
                    last = now
                # Nothing came after the last row: duplicates at the end would have been seen.
                elif judge.rows >= expected.rows or now - last > JUDGE_SILENCE_S:
                    break
        verdict = judge.verdict(expected)
        verdict.seconds = time.monotonic() - start
        if not self._mock:
            for problem in verdict.problems:
                self._steps.say(f"[red]{problem}[/]")
        return verdict

    def _compare(self, daemon: SidecarDaemon) -> list[Comparison]:
        """Short-lived processes: peak connections at the brokers' ports, first ack, total time."""
        ports = broker_ports(self._bootstrap)
        found = []
        with self._steps.step(f"{PROCESSES} short-lived processes send {RECORDS} records each, both ways"):
            for name, kind, target in (
                ("through the sidecar", "sidecar", str(daemon.run_dir)),
                ("by confluent-kafka", "confluent", self._bootstrap),
            ):
                with ConnectionPeak(ports) as peak:
                    idle = peak.peak
                    result = run_short_lived(kind, target, self._topics[1])
                # The daemon stays connected in both runs; its connections are those of the sidecar's side.
                connections = peak.peak if kind == "sidecar" else peak.peak - idle
                found.append(Comparison(name, connections, result))
        return found

    def _report(
        self,
        expected: flights.Counts,
        job: JobResult,
        verdict: Verdict,
        comparisons: list[Comparison],
        daemon: SidecarDaemon,
    ) -> None:
        agreement = "yes" if verdict.agrees else f"NO: {verdict.problems[0]}"
        if self._mock:
            agreement = "not shown with the mock"
        lines = [
            ("rows in the CSV", f"{expected.rows:,}"),
            ("rows delivered, as the daemon counts", f"{job.delivered:,}"),
            ("rows read back by the judge", f"{verdict.counts.rows:,}"),
            ("rows/s from the first row to the last", f"{job.rows_per_s:,.0f}"),
            (f"{len(expected.by_key)} keys: counts, sums and order agree", agreement),
        ]
        for side in comparisons:
            result = side.result
            lines += [
                (f"{PROCESSES} processes {side.name}: peak connections to Kafka", f"{side.connections}"),
                (
                    "    first ack, median / slowest",
                    f"{result.first_ack_median_s * 1000:.0f} / {result.first_ack_max_s * 1000:.0f} ms",
                ),
                (f"    all {result.acked:,} records", f"{result.total_s:.2f} s"),
            ]
        if self._keep:
            lines.append(("metrics", f"{http_address(daemon)}/metrics"))
        self._steps.console.print(rows_table("The main job, counted", lines))


def broker_ports(bootstrap_servers: str) -> list[int]:
    """The ports of all brokers as the cluster's own metadata names them."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(quiet_config(bootstrap_servers))
    return sorted({int(broker.port) for broker in admin.list_topics(timeout=30).brokers.values()})
