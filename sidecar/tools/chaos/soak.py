"""A soak: load for minutes or hours while clients come and go, workers die and the broker restarts. Does anything
grow?

One worker, the controller, one client and the probe run for the whole time: their memory is checked for growth.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import tempfile
import time
from pathlib import Path
from typing import Final

from sidecar.tools.chaos.books import bad_lines, balanced_books
from sidecar.tools.chaos.broker import start_broker
from sidecar.tools.chaos.client_journal import Head
from sidecar.tools.chaos.faults import kill
from sidecar.tools.chaos.follower import Follower
from sidecar.tools.chaos.options import ChaosOptions
from sidecar.tools.chaos.recovery import Recovery, RecoveryWatch
from sidecar.tools.chaos.samples import Sampler
from sidecar.tools.chaos.soak_report import SoakReport, SoakStep, trends_of
from sidecar.tools.chaos.workload import Place, Workload
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.reading import end_offsets
from sidecar.tools.testing.waiting import ConditionTimeout, wait_until

DURATION_S: Final = 1_800.0
EVERY_S: Final = 20.0
"""The time from one event to the next; a shorter run uses a tenth of its duration."""
SAMPLE_S: Final = 5.0
ROTATION: Final = (
    SoakStep.CLIENT_ENDED,
    SoakStep.WORKER_KILLED,
    SoakStep.CLIENT_KILLED,
    SoakStep.BROKER_RESTARTED,
    SoakStep.CLIENT_ENDED,
    SoakStep.WORKER_KILLED,
    SoakStep.CLIENT_KILLED,
    SoakStep.BROKER_KILLED,
)
"""The events, repeated. The broker only if it belongs to the run."""
OF_BROKER: Final = (SoakStep.BROKER_RESTARTED, SoakStep.BROKER_KILLED)
RESIDENT: Final = 0
"""The index of the place of the client that stays."""
RESIDENT_RECORDS_MAX: Final = 1 << 27
VICTIM: Final = 0
"""The index of the worker that is killed; the others stay."""
PROBE_RECORDS_PER_S: Final = 100
VISIT_RECORDS_PER_S: Final = 200
"""The records of a visit, for a client that opens a producer per second."""
POOL_BYTES: Final = 256 << 20
RECOVERY_S_MAX: Final = 90.0
LOOK_S: Final = 0.2
SAID_EVERY_S: Final = 30.0
REST_S_MAX: Final = 90.0


class Soak:
    """One run. Processes and files that it starts go onto ``stack``. Needs the main thread."""

    def __init__(self, options: ChaosOptions, steps: Steps, stack: contextlib.ExitStack) -> None:
        self._options = options
        self._steps = steps
        self._stack = stack
        self._duration_s = DURATION_S if options.duration_s is None else options.duration_s
        self._every_s = min(EVERY_S, self._duration_s / 10)
        self._topic = options.topic or f"kafka-sidecar-soak-{secrets.token_hex(4)}"
        self._problems: list[str] = []
        self._events: list[tuple[float, SoakStep]] = []
        self._start_s = time.monotonic()

    def run(self) -> SoakReport:
        options, steps, stack = self._options, self._steps, self._stack
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ks-soak-")))
        broker = start_broker(options, self._topic, steps, stack)
        starts = end_offsets(broker.bootstrap_servers, self._topic)
        with steps.step("The daemon and its clients"):
            daemon = stack.enter_context(
                SidecarDaemon(
                    broker.bootstrap_servers, settings={"buffer.memory": POOL_BYTES, **options.settings}
                )
            )
            workload = Workload(
                run_dir=daemon.run_dir,
                topic=self._topic,
                folder=folder,
                run=secrets.randbits(32),
                places=self._places(),
                value_bytes=options.value_bytes,
            )
            stack.callback(workload.close)
            watch = RecoveryWatch[SoakStep]()
            stack.callback(watch.stop)
            follower = Follower(broker.bootstrap_servers, self._topic, starts, workload)
            stack.callback(follower.thread.stop)
            sampler = Sampler(daemon, workload, self._probe, RESIDENT, min(SAMPLE_S, self._every_s / 4))
            stack.callback(sampler.close)
            wait_until(
                lambda: all(client.journal.head[Head.NEWEST] for client in workload.live),
                "records to flow",
                timeout_s=RECOVERY_S_MAX,
            )
        self._start_s = time.monotonic()
        follower.thread.start()
        sampler.thread.start()
        with steps.step(f"{self._duration_s:g} s of load, something every {self._every_s:g} s"):
            self._disturb(broker.cluster, daemon, workload, watch, sampler)
        sampler.thread.stop()
        with steps.step("The clients end: every record has its outcome, and nothing is left in the segment"):
            workload.finish()
            seconds = time.monotonic() - self._start_s
            self._problems += workload.raised
            books = balanced_books(daemon)
            self._rest(sampler)
        with steps.step("A librdkafka consumer reads the rest"):
            ledger = follower.finish()
        return SoakReport(
            seconds,
            ledger.counts,
            books,
            self._events,
            watch.times(),
            sampler.samples,
            trends_of(sampler.samples),
            self._problems + ledger.examples + sampler.errors,
            bad_lines(daemon.log_lines()),
        )

    @property
    def _visitor(self) -> int:
        return self._options.clients

    @property
    def _probe(self) -> int:
        return self._options.clients + 1

    def _places(self) -> list[Place]:
        options = self._options
        rate = max(1, int(options.rate / options.clients)) if options.rate else 0
        return [
            Place(rate, records_max=RESIDENT_RECORDS_MAX),
            *[Place(rate)] * (options.clients - 1),
            Place(VISIT_RECORDS_PER_S, visit_records=VISIT_RECORDS_PER_S),
            Place(PROBE_RECORDS_PER_S, module="sidecar.tools.chaos.probe", records_max=RESIDENT_RECORDS_MAX),
        ]

    def _disturb(
        self,
        cluster: KafkaCluster | None,
        daemon: SidecarDaemon,
        workload: Workload,
        watch: RecoveryWatch[SoakStep],
        sampler: Sampler,
    ) -> None:
        # In turn, so that each of the clients that come and go is ended and killed.
        victims = itertools.cycle(range(RESIDENT + 1, self._visitor + 1))
        for step in itertools.cycle(ROTATION):
            if step in OF_BROKER and cluster is None:
                continue
            if not self._wait(workload, set(ROTATION).difference(OF_BROKER if cluster is None else ())):
                return
            self._events.append((self._elapsed_s, step))
            with sampler.disturbance():
                try:
                    self._await(self._do(step, cluster, daemon, workload, next(victims), watch))
                except ConditionTimeout as error:
                    self._problems.append(f"{step.value}: {error}")
            workload.tend()

    def _do(
        self,
        step: SoakStep,
        cluster: KafkaCluster | None,
        daemon: SidecarDaemon,
        workload: Workload,
        place: int,
        watch: RecoveryWatch[SoakStep],
    ) -> Recovery[SoakStep]:
        match step:
            case SoakStep.CLIENT_ENDED:
                return watch.begin(step, [workload.end(workload.at(place))])
            case SoakStep.CLIENT_KILLED:
                return watch.begin(step, [workload.kill(workload.at(place))])
            case SoakStep.WORKER_KILLED:
                kill(_ready_worker(daemon, VICTIM))
            case SoakStep.BROKER_RESTARTED | SoakStep.BROKER_KILLED:
                assert cluster is not None
                (cluster.kill_node if step is SoakStep.BROKER_KILLED else cluster.stop_node)(0)
                recovery = watch.begin(step, workload.live)
                cluster.restart_node(0)
                return recovery
        return watch.begin(step, workload.live)

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def _wait(self, workload: Workload, steps: set[SoakStep]) -> bool:
        """Wait until the next step is due. Returns False when the run is over, which it is only after each of
        ``steps`` was done.
        """
        due_s = self._elapsed_s + self._every_s
        while self._elapsed_s < due_s:
            is_enough = self._elapsed_s >= self._duration_s and workload.sent >= self._options.records
            if is_enough and steps.issubset(step for _, step in self._events):
                return False
            before_s = self._elapsed_s
            time.sleep(LOOK_S)
            workload.tend()
            if before_s // SAID_EVERY_S < self._elapsed_s // SAID_EVERY_S:
                self._steps.say(
                    f"{self._elapsed_s:.0f} s: {workload.sent:,} records sent by {len(workload.clients)} clients, "
                    f"{len(self._events)} disturbances"
                )
        return True

    def _await(self, recovery: Recovery[SoakStep]) -> None:
        wait_until(
            lambda: recovery.took_s is not None,
            "records to flow again",
            timeout_s=RECOVERY_S_MAX,
            interval_s=0.01,
            describe=lambda: recovery.describe,
        )

    def _rest(self, sampler: Sampler) -> None:
        """Check that nothing of the segment is in use, after all clients have left and every record has its outcome."""

        def in_use() -> str:
            tables = sampler.tables()
            return ", ".join(
                f"{count} {name.replace('_', ' ')}"
                for name, count in tables._asdict().items()
                if count and name != "chain_rows"  # a topic keeps its row for a while
            )

        try:
            wait_until(lambda: not in_use(), "an empty segment", timeout_s=REST_S_MAX, describe=in_use)
        except ConditionTimeout as error:
            self._problems.append(str(error))


def _ready_worker(daemon: SidecarDaemon, index: int) -> int:
    """The pid of a worker, once it takes clients."""

    def ready() -> int | None:
        with contextlib.suppress(OSError, ValueError):
            for worker in daemon.info()["workers"]:
                if worker["index"] == index and worker["state"] == "ready":
                    return int(worker["pid"])
        return None

    return wait_until(
        ready, f"worker {index} to be ready", timeout_s=RECOVERY_S_MAX, describe=daemon.log_tail
    )
