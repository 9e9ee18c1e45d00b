"""A chaos run from start to end: broker, proxy, daemon, clients, faults, reader, ledger.

``run_chaos`` is what ``kafka-sidecar chaos`` calls.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.chaos.client_journal import Head
from sidecar.chaos.faults import Faults
from sidecar.chaos.ledger import Account, ChaosLedger
from sidecar.chaos.plan import FaultKind, make_plan
from sidecar.chaos.recovery import Recovery, RecoveryWatch
from sidecar.chaos.report import Books, ChaosReport
from sidecar.chaos.workload import Workload, WorkloadFailed
from sidecar.demo.steps import Steps
from sidecar.testing.daemon import DaemonFailed, SidecarDaemon
from sidecar.testing.fault_proxy import FaultProxy
from sidecar.testing.kafka_cluster import KafkaCluster, exit_on_sigterm
from sidecar.testing.kafka_jars import KafkaUnavailable
from sidecar.testing.kafka_topics import create_topics, delete_topics
from sidecar.testing.metrics import metric
from sidecar.testing.reading import end_offsets, iterate_messages
from sidecar.testing.waiting import ConditionTimeout, wait_until

HEARTBEAT_S = 1.0
RECOVERY_S_MAX = 60.0
BOOKS_S_MAX = 150.0
"""Longer than delivery.timeout.ms: by then everything has an end."""
SAID_EVERY_S = 10.0
REQUEST_LOG_MAX = 1_000
BAD_LINES = re.compile(r"Traceback|ALARM|CRITICAL")
BAD_LINES_MAX = 20


@dataclass(frozen=True)
class ChaosOptions:
    """The options of the command line. The run ends when all that is asked for has been reached."""

    bootstrap_servers: str | None = None
    topic: str | None = None
    partitions: int = 6
    seed: int | None = None
    kills: int | None = None
    duration_s: float | None = None
    records: int = 0
    clients: int = 4
    rate: float = 20_000.0
    value_bytes: int = 64
    settings: Mapping[str, str] = field(default_factory=dict)
    json: bool = False


def bad_lines(lines: Iterable[str]) -> list[str]:
    """Alarms and tracebacks of the daemon's log, each traceback whole and as one text; the first few of them."""
    found: list[str] = []
    inside = False
    for line in lines:
        if inside:
            found[-1] += line
            inside = line.startswith((" ", "\n"))
        elif BAD_LINES.search(line):
            found.append(line)
            inside = line.startswith("Traceback")
    return found[:BAD_LINES_MAX]


def run_chaos(options: ChaosOptions) -> int:
    """Run it; 0 = nothing lost, doubled or reordered, no wrong outcome; 1 = a violation, or the run broke off;
    130 = Ctrl-C.

    Needs the main thread. Everything started here is gone at return.
    """
    steps = Steps(stderr=options.json)
    try:
        with exit_on_sigterm(), contextlib.ExitStack() as stack:
            report = Chaos(options, steps, stack).run()
    except KeyboardInterrupt:
        steps.say("stopped; nothing is left behind")
        return 130
    except (KafkaUnavailable, DaemonFailed, WorkloadFailed, ConditionTimeout) as error:
        steps.console.print(f"[bold red]chaos broke off:[/] {error}", markup=True, soft_wrap=True)
        return 1
    if options.json:
        print(json.dumps(report.as_json(), indent=1))
    else:
        for table in report.tables():
            steps.console.print(table)
        for problem in [*report.problems, *report.alarms]:
            steps.console.print(problem, style="red", markup=False, soft_wrap=True)
        verdict = "[bold green]nothing lost, nothing doubled, nothing reordered[/]"
        steps.console.print(verdict if report.ok else "[bold red]NOT AS IT MUST BE[/]")
    return 0 if report.ok else 1


class Chaos:
    """One run. What it starts goes onto ``stack``."""

    def __init__(self, options: ChaosOptions, steps: Steps, stack: contextlib.ExitStack) -> None:
        self._options = options
        self._steps = steps
        self._stack = stack
        self._seed = secrets.randbits(31) if options.seed is None else options.seed
        self._topic = options.topic or f"kafka-sidecar-chaos-{secrets.token_hex(4)}"
        self._problems: list[str] = []
        self._kills = 0
        self._faults: Counter[FaultKind] = Counter()

    def run(self) -> ChaosReport:
        options, steps, stack = self._options, self._steps, self._stack
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ks-chaos-")))
        bootstrap_servers = self._start_broker()
        starts = end_offsets(bootstrap_servers, self._topic)
        with steps.step("The fault proxy, the daemon and its clients"):
            proxy = stack.enter_context(FaultProxy(bootstrap_servers, log_max=REQUEST_LOG_MAX))
            daemon = stack.enter_context(
                SidecarDaemon(
                    proxy.bootstrap_servers,
                    settings={"daemon.heartbeat_timeout_s": HEARTBEAT_S, **options.settings},
                )
            )
            workload = Workload(
                run_dir=daemon.run_dir,
                topic=self._topic,
                folder=folder,
                run=secrets.randbits(32),
                places=options.clients,
                rate=options.rate,
                value_bytes=options.value_bytes,
            )
            stack.callback(workload.close)
            watch = RecoveryWatch()
            stack.callback(watch.stop)
        start_s = time.monotonic()
        with steps.step(f"Faults by plan {self._seed}"):
            self._inflict(Faults(daemon, proxy, workload, watch), workload)
        with steps.step("The clients end: every record has its outcome"):
            proxy.clear_rules()
            seconds = time.monotonic() - start_s
            try:
                workload.finish()
            except ConditionTimeout as error:
                self._problems.append(str(error))
                workload.stop()
            seconds = max(seconds, time.monotonic() - start_s)
            self._problems += workload.raised
            books = self._books(daemon)
        with steps.step("A librdkafka consumer reads everything back"):
            ledger = self._judge(bootstrap_servers, starts, workload)
        alarms = bad_lines(daemon.log_lines())
        return ChaosReport(
            self._seed,
            seconds,
            ledger.counts,
            books,
            self._faults,
            self._kills,
            watch.times(),
            self._problems + ledger.examples,
            alarms,
        )

    def _start_broker(self) -> str:
        options, steps, stack = self._options, self._steps, self._stack
        given = options.bootstrap_servers
        if given is None:
            with steps.step("A real Apache Kafka of one node"):
                cluster = KafkaCluster(topics={self._topic: options.partitions}, heap_mb=512)
                return stack.enter_context(cluster).bootstrap_servers
        with steps.step(f"Topic {self._topic} on {given}"):
            create_topics(given, {self._topic: options.partitions})
            if options.topic is None:
                stack.callback(delete_topics, given, [self._topic])
        return given

    def _inflict(self, faults: Faults, workload: Workload) -> None:
        """One fault after the other until what was asked for is reached."""
        start_s = said_s = time.monotonic()
        wait_until(
            lambda: all(client.journal.head[Head.NEWEST] for client in workload.live),
            "records to flow",
            timeout_s=RECOVERY_S_MAX,
        )
        for fault in make_plan(self._seed, heartbeat_s=HEARTBEAT_S):
            if self._is_enough(time.monotonic() - start_s, workload):
                break
            time.sleep(fault.gap_s)
            workload.tend()
            try:
                recovery = faults.inflict(fault)
            except ConditionTimeout as error:
                self._problems.append(f"{fault.kind.value}: {error}")
                continue
            self._faults[fault.kind] += 1
            self._kills += fault.kills
            if recovery is not None and fault.settles:
                self._await(recovery, workload)
            if time.monotonic() - said_s > SAID_EVERY_S:
                said_s = time.monotonic()
                self._steps.say(
                    f"{said_s - start_s:.0f} s: {sum(self._faults.values())} faults, {self._kills} kills, "
                    f"{workload.sent:,} records sent by {len(workload.clients)} clients"
                )
        if workload.sent < self._options.records:
            workload.hurry()
            self._fill(workload)

    def _is_enough(self, elapsed_s: float, workload: Workload) -> bool:
        """Kills and seconds are reached; without either, the records, or a minute."""
        options = self._options
        if options.kills is None and options.duration_s is None:
            return workload.sent >= options.records if options.records else elapsed_s >= 60.0
        return (options.kills is None or self._kills >= options.kills) and (
            options.duration_s is None or elapsed_s >= options.duration_s
        )

    def _fill(self, workload: Workload) -> None:
        """No more faults: the rest of the records."""
        while workload.sent < self._options.records:
            before = workload.sent
            wait_until(
                lambda before=before: workload.sent > before,  # type: ignore[misc]
                "the clients to send the rest of the records",
                timeout_s=RECOVERY_S_MAX,
            )
            workload.tend()

    def _await(self, recovery: Recovery, workload: Workload) -> None:
        try:
            wait_until(
                lambda: recovery.took_s is not None, "recovery", timeout_s=RECOVERY_S_MAX, interval_s=0.01
            )
        except ConditionTimeout:
            self._problems.append(
                f"{recovery.kind.value}: no recovery within {RECOVERY_S_MAX:g} s ({recovery.describe})"
            )
        workload.tend()

    def _books(self, daemon: SidecarDaemon) -> Books:
        """The daemon's counts once everything has an end, or when it should have."""

        def read() -> Books:
            def count(name: str) -> int:
                return int(metric(daemon, f"kafka_sidecar_records_{name}_total"))

            names = ("accepted", "delivered", "failed", "dead_lettered", "adopted", "resent_unknown")
            return Books(**{name: count(name) for name in names})

        with contextlib.suppress(ConditionTimeout):
            wait_until(
                lambda: read().held == 0,
                "the daemon's books to balance",
                timeout_s=BOOKS_S_MAX,
                interval_s=0.2,
            )
        return read()

    def _judge(self, bootstrap_servers: str, starts: Mapping[int, int], workload: Workload) -> ChaosLedger:
        accounts = {
            client.number: Account(client.number, client.journal, killed=client.killed)
            for client in workload.clients
        }
        ledger = ChaosLedger(workload.run, accounts)
        for message in iterate_messages(bootstrap_servers, self._topic, start=starts):
            ledger.read(message.value(), message.partition(), message.offset())
        ledger.close()
        return ledger
