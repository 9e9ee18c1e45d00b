"""A chaos run from start to end: broker, proxy, daemon, clients, faults, reader, ledger.

``run_chaos`` is what ``kafka-sidecar chaos`` calls.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.table import Table

from sidecar.tools.chaos.books import bad_lines, balanced_books
from sidecar.tools.chaos.broker import start_broker
from sidecar.tools.chaos.client_journal import Head
from sidecar.tools.chaos.faults import Faults
from sidecar.tools.chaos.ledger import ChaosLedger
from sidecar.tools.chaos.options import ChaosOptions
from sidecar.tools.chaos.plan import TRANSACTION_WEIGHTS, WEIGHTS, FaultKind, make_plan
from sidecar.tools.chaos.recovery import Recovery, RecoveryWatch
from sidecar.tools.chaos.report import ChaosReport
from sidecar.tools.chaos.soak import Soak
from sidecar.tools.chaos.transactional_ledger import TransactionalLedger, TransactionCounts
from sidecar.tools.chaos.workload import Place, Workload, WorkloadFailed
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.daemon import DaemonFailed, SidecarDaemon
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.kafka_cluster import exit_on_sigterm
from sidecar.tools.testing.kafka_jars import KafkaUnavailable
from sidecar.tools.testing.reading import end_offsets, iterate_messages, wait_transactions_ended
from sidecar.tools.testing.waiting import ConditionTimeout, wait_until

HEARTBEAT_S = 1.0
RECOVERY_S_MAX = 60.0
SAID_EVERY_S = 10.0
REQUEST_LOG_MAX = 1_000
TRANSACTIONAL_CLIENT = "sidecar.tools.chaos.transactional_client"


class Findings(Protocol):
    """A report, of either kind of run."""

    problems: list[str]
    alarms: list[str]

    @property
    def ok(self) -> bool: ...
    def as_json(self) -> dict[str, Any]: ...
    def tables(self) -> list[Table]: ...


def run_chaos(options: ChaosOptions) -> int:
    """Run it. Returns 0 if nothing was lost, duplicated or reordered, and no outcome was wrong; 1 for a violation or a
    failed run; 130 for Ctrl-C.

    Needs the main thread. Everything started here has ended on return.
    """
    return _reported(options, lambda steps, stack: Chaos(options, steps, stack).run())


def run_soak(options: ChaosOptions, draw: Callable[[dict[str, Any]], None] | None = None) -> int:
    """As :func:`run_chaos`, but 1 also when something grows. ``draw`` gets the JSON of the report."""
    return _reported(options, lambda steps, stack: Soak(options, steps, stack).run(), draw)


def _reported(
    options: ChaosOptions,
    run: Callable[[Steps, contextlib.ExitStack], Findings],
    draw: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    steps = Steps(stderr=options.json)
    try:
        with exit_on_sigterm(), contextlib.ExitStack() as stack:
            report = run(steps, stack)
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
    if draw is not None:
        draw(report.as_json())
    return 0 if report.ok else 1


class Chaos:
    """One run. Processes and files that it starts are put onto ``stack``."""

    def __init__(self, options: ChaosOptions, steps: Steps, stack: contextlib.ExitStack) -> None:
        self._options = options
        self._steps = steps
        self._stack = stack
        self._seed = secrets.randbits(31) if options.seed is None else options.seed
        self._topic = options.topic or f"kafka-sidecar-chaos-{secrets.token_hex(4)}"
        self._problems: list[str] = []
        self._kills = 0
        self._transactions: TransactionCounts | None = None
        self._faults: Counter[FaultKind] = Counter()

    def run(self) -> ChaosReport:
        options, steps, stack = self._options, self._steps, self._stack
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ks-chaos-")))
        broker = start_broker(options, self._topic, steps, stack)
        bootstrap_servers = broker.bootstrap_servers
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
                places=[self._place()] * options.clients,
                value_bytes=options.value_bytes,
            )
            stack.callback(workload.close)
            watch = RecoveryWatch[FaultKind]()
            stack.callback(watch.stop)
        start_s = time.monotonic()
        with steps.step(f"Faults by plan {self._seed}"):
            self._inflict(Faults(daemon, proxy, broker.cluster, self._topic, workload, watch), workload)
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
            books = balanced_books(daemon)
            if options.transactions and books.dead_lettered:
                self._problems.append(f"{books.dead_lettered:,} records of transactions are dead letters")
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
            self._transactions,
            self._problems + ledger.examples,
            alarms,
        )

    def _place(self) -> Place:
        options = self._options
        rate = max(1, int(options.rate / options.clients)) if options.rate else 0
        return Place(rate, module=TRANSACTIONAL_CLIENT) if options.transactions else Place(rate)

    def _inflict(self, faults: Faults, workload: Workload) -> None:
        """Carry out one fault after the other until the requested end is reached."""
        start_s = said_s = time.monotonic()
        wait_until(
            lambda: all(client.journal.head[Head.NEWEST] for client in workload.live),
            "records to flow",
            timeout_s=RECOVERY_S_MAX,
        )
        weights = TRANSACTION_WEIGHTS if self._options.transactions else WEIGHTS
        without = () if faults.may_kill_brokers else (FaultKind.BROKER_KILLED,)
        for fault in make_plan(self._seed, heartbeat_s=HEARTBEAT_S, weights=weights, without=without):
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
        """Whether the kills and seconds are reached; without either, the records, or a minute."""
        options = self._options
        if options.kills is None and options.duration_s is None:
            return workload.sent >= options.records if options.records else elapsed_s >= 60.0
        return (options.kills is None or self._kills >= options.kills) and (
            options.duration_s is None or elapsed_s >= options.duration_s
        )

    def _fill(self, workload: Workload) -> None:
        """Wait for the rest of the records, without further faults."""
        while workload.sent < self._options.records:
            before = workload.sent
            wait_until(
                lambda before=before: workload.sent > before,  # type: ignore[misc]
                "the clients to send the rest of the records",
                timeout_s=RECOVERY_S_MAX,
            )
            workload.tend()

    def _await(self, recovery: Recovery[FaultKind], workload: Workload) -> None:
        try:
            wait_until(
                lambda: recovery.took_s is not None, "recovery", timeout_s=RECOVERY_S_MAX, interval_s=0.01
            )
        except ConditionTimeout:
            self._problems.append(
                f"{recovery.kind.value}: no recovery within {RECOVERY_S_MAX:g} s ({recovery.describe})"
            )
        workload.tend()

    def _judge(self, bootstrap_servers: str, starts: Mapping[int, int], workload: Workload) -> ChaosLedger:
        ledger: ChaosLedger
        if self._options.transactions:
            wait_transactions_ended(bootstrap_servers, self._topic)
            ledger = transactional = TransactionalLedger(workload.run)
            self._transactions = transactional.transactions
        else:
            ledger = ChaosLedger(workload.run)
        for client in workload.clients:
            ledger.open_account(client.number, client.journal)
        for message in iterate_messages(bootstrap_servers, self._topic, start=starts):
            ledger.read(message.value(), message.partition(), message.offset())
        ledger.close(workload.killed)
        return ledger
