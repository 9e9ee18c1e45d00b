"""A workload that passes every kill point, and a daemon whose workers are ordered to die at them one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from client_stub import Producer
from sidecar.common.own_process import KILL_POINTS
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.kill_points.orders import PASSED_FILE, give_order
from sidecar.tools.testing.kill_points.points import POINTS
from sidecar.tools.testing.ledger import RecordId
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.steady_load import SteadyClient, judge, keyed_and_keyless
from sidecar.tools.testing.waiting import ConditionTimeout, wait_until

ROW_PARTITIONS = 150
"""Each of these has a batch of its own once a short client has sent to it."""
PLACES = 2
"""So many streams has the producer of twice as many topics."""
TIGHT_BYTES = 2_000
TIGHT_BURST = 40
PATIENT: dict[str, Any] = {
    "connect_timeout_ms": 600_000,
    "max_block_ms": 600_000,
    "delivery_timeout_ms": 600_000,
}
"""Clients come and send while workers die one after the other, on a machine that may have much else to do."""
FINISH_S = 600.0
"""Workers that die at their first request, one after the other, deliver nothing for that long on a busy machine."""
ORDER_PATIENCE_S = 20.0
"""An order that was not carried out by then (it did not come to that point) is given once more."""
TRIES_MAX = 6

ADOPTION_POINTS = tuple(point for point in POINTS if point.startswith(("adopt.", "inquiry.")))
TRANSACTION_POINTS = tuple(
    point for point in POINTS if point.startswith(("stage.", "lane.", "init.", "end.", "txn."))
)
"""Passed by test_stage_kill_points.py and test_lane_kill_points.py in tests/scenarios."""
LIVE_POINTS = tuple(point for point in POINTS if point not in ADOPTION_POINTS + TRANSACTION_POINTS)


def large(name: str, number: int) -> dict[str, Any]:
    return {"value": RecordId(name, number).encode() + bytes(90_000), "partition": 0}


def tight(name: str, number: int) -> dict[str, Any]:
    """Whole batches are too large for the topic, and so is one record amid each burst by itself.

    Batches sent behind that record meet a gap, so they lose their identity: at each burst, not only in a backlog.
    """
    return {
        "value": RecordId(name, number).encode()
        + bytes(2 * TIGHT_BYTES if number % TIGHT_BURST == TIGHT_BURST // 2 else 100)
    }


def stray(name: str, number: int) -> dict[str, Any]:
    """Every other record names a partition that never comes."""
    return {"value": RecordId(name, number).encode(), "partition": 9_999 if number % 2 else 0}


def is_too_large(record: RecordId) -> bool:
    return record.number % TIGHT_BURST == TIGHT_BURST // 2


def is_astray(record: RecordId) -> bool:
    return record.number % 2 == 1


class FewPlaces:
    """One producer for clients of several topics. It believes that a worker keeps fewer of its streams than they have
    topics, so they end and begin all the time.
    """

    def __init__(self, run_dir: Path, topic: str) -> None:
        self._producer = Producer(run_dir=str(run_dir), client_name="few places", **PATIENT)
        self._producer.send(topic, RecordId("first", 0).encode()).result()
        session = self._producer._engine.outbox.io["thread"]._session
        recovery = session._recovery
        resume_all = recovery.resume

        def resume(
            credit_bytes: int, positions: dict[int, tuple[int, bool]], limit: object, now_ms: float
        ) -> bool:
            return resume_all(credit_bytes, positions, PLACES, now_ms)

        recovery.resume = resume
        session.streams.admission.limit = PLACES

    def send(self, topic: str, **record: Any) -> object:
        return self._producer.send(topic, **record)

    def flush(self, timeout: float | None = None) -> None:
        self._producer.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Its other clients may still send."""

    def end(self) -> None:
        self._producer.close(0)


class ShortClients:
    """Clients that come, send a few records to partitions nobody used before, and go."""

    def __init__(self, run_dir: Path, topic: str) -> None:
        self.clients: list[SteadyClient] = []
        self._run_dir, self._topic = run_dir, topic
        self._stop = threading.Event()
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="short clients", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        partitions = itertools.cycle(range(ROW_PARTITIONS))
        try:
            while not self._stop.is_set():
                partition = next(partitions)

                def record(name: str, number: int, partition: int = partition) -> dict[str, Any]:
                    return {"value": RecordId(name, number).encode(), "partition": partition}

                name = f"short-{len(self.clients)}"
                client = SteadyClient(
                    self._run_dir,
                    self._topic,
                    name,
                    record=record,
                    burst=3,
                    pause_s=60.0,
                    **PATIENT,
                )
                self.clients.append(client)
                wait_until(
                    lambda client=client: client.sent >= 3 or client.raised,  # type: ignore[misc]
                    "three records",
                    timeout_s=FINISH_S,
                )
                client.finish(FINISH_S)
                self._stop.wait(0.05)
        except BaseException as error:
            self._raised = error

    def describe(self) -> str:
        last = self.clients[-1]
        raised = last.raised or self._raised
        return f"{len(self.clients)}, last sent {last.sent}, outcomes {last.outcomes}, raised {raised!r}"

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(FINISH_S)
        if self._raised is not None:
            raise self._raised


@dataclass
class Kill:
    """One order: the point, at which of its passes, and whether only passes outside the adoption count."""

    point: str
    nth: int = 1
    during: str | None = None


class KillWorkload:
    """Topics, clients and daemon together; :meth:`carry_out` gives the orders, :meth:`check` judges all of it."""

    def __init__(
        self, kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, folder: Path
    ) -> None:
        self.folder = folder
        folder.mkdir()
        self._kafka = kafka
        self.topics = {
            "plain": new_topic(partitions=3),
            "packed": new_topic(partitions=2),
            "large": new_topic(partitions=1),
            "tight": new_topic(partitions=1, max_message_bytes=str(TIGHT_BYTES)),
            "stray": new_topic(partitions=1),
            "short": new_topic(partitions=ROW_PARTITIONS),
            "first": new_topic(partitions=1),
        } | {f"turn-{number}": new_topic(partitions=1) for number in range(2 * PLACES)}
        self.daemon: SidecarDaemon = start_daemon(
            kafka.bootstrap_servers,
            settings={
                "daemon.workers": 1,
                "daemon.restart_backoff_max_ms": 20,
                "max.block.ms": 4_000,
                "delivery.timeout.ms": 600_000,
                f'topics."{self.topics["packed"]}".compression.type': "lz4",
            },
            environment={KILL_POINTS: str(folder)},
        )
        run_dir = self.daemon.run_dir
        self.clients = [
            SteadyClient(
                run_dir, self.topics["plain"], "plain", record=keyed_and_keyless, pause_s=0.01, **PATIENT
            ),
            SteadyClient(run_dir, self.topics["packed"], "packed", pause_s=0.02, **PATIENT),
            SteadyClient(
                run_dir, self.topics["large"], "large", record=large, burst=6, pause_s=0.4, **PATIENT
            ),
            SteadyClient(
                run_dir,
                self.topics["tight"],
                "tight",
                record=tight,
                burst=TIGHT_BURST,
                pause_s=0.6,
                **PATIENT,
            ),
            SteadyClient(
                run_dir, self.topics["stray"], "stray", record=stray, burst=2, pause_s=0.1, **PATIENT
            ),
        ]
        self.few_places = FewPlaces(run_dir, self.topics["first"])
        self.clients += [
            SteadyClient(
                run_dir,
                self.topics[name],
                name,
                producer=cast(Producer, self.few_places),
                burst=3,
                pause_s=0.1,
            )
            for name in self.topics
            if name.startswith("turn-")
        ]
        self.short = ShortClients(run_dir, self.topics["short"])
        self._serial = itertools.count()
        self.slow: list[str] = []
        """Orders that had to be given again."""

    def passed(self) -> list[list[str]]:
        """(point, pass, phase, pid) of every order carried out."""
        with contextlib.suppress(FileNotFoundError):
            return [line.split() for line in (self.folder / PASSED_FILE).read_text().splitlines()]
        return []

    def carry_out(self, kills: Sequence[Kill]) -> None:
        """All of them, each by one worker: the first by who replaces the one that runs now."""
        wanted = Counter(line[0] for line in self.passed())
        for kill in kills:
            self._give(kill)
        self._end_worker()
        for kill in kills:
            wanted[kill.point] += 1
            given = kill
            for _ in range(TRIES_MAX):
                try:
                    wait_until(
                        lambda kill=kill: self._count_of(kill.point) >= wanted[kill.point],  # type: ignore[misc]
                        kill.point,
                        timeout_s=ORDER_PATIENCE_S,
                        interval_s=0.02,
                    )
                    break
                except ConditionTimeout:
                    # Nothing passed there this time (nobody was sending just then): another worker tries. Some points
                    # are passed once in a worker's life, or in an adoption only when it finds a failed batch. From
                    # now on the first pass at any time will do.
                    self.slow.append(kill.point)
                    given = dataclasses.replace(given, nth=1, during=None)
                    self._give(given, first=True)
                    self._end_worker()
            else:
                raise AssertionError(
                    f"nobody came to {kill.point}; short clients: {self.short.describe()}\n"
                    f"{self.daemon.log_tail()}"
                )

    def _count_of(self, point: str) -> int:
        return sum(line[0] == point for line in self.passed())

    def _give(self, kill: Kill, *, first: bool = False) -> None:
        name = f"{0 if first else 1}-{next(self._serial):06d}"
        give_order(self.folder, name, kill.point, nth=kill.nth, during=kill.during)

    def _end_worker(self) -> None:
        for pid in self.daemon.worker_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check(self) -> None:
        """End the clients; compare what each was told with what stands in the topics; the counters balance."""
        for client in self.clients:
            client.finish(FINISH_S)
        self.short.finish()
        servers = self._kafka.bootstrap_servers
        by_name = {client.name: client for client in self.clients}
        for name in ("plain", "packed", "large", *(name for name in by_name if name.startswith("turn-"))):
            judge(servers, self.topics[name], [by_name[name]])
        judge(servers, self.topics["tight"], [by_name["tight"]], may_fail=is_too_large)
        judge(servers, self.topics["stray"], [by_name["stray"]], may_fail=is_astray)
        judge(servers, self.topics["short"], self.short.clients)
        balance = ("accepted", "delivered", "failed")
        wait_until(
            lambda: self._count("accepted") == self._count("delivered") + self._count("failed"),
            "the counters to balance",
            timeout_s=10.0,
            describe=lambda: str({what: self._count(what) for what in balance}),
        )
        log = self.daemon.log_path.read_text()
        assert "Traceback" not in log, self.daemon.log_tail(80)
        assert "ALARM" not in log, self.daemon.log_tail(80)

    def _count(self, what: str) -> float:
        return metric(self.daemon, f"kafka_sidecar_records_{what}_total")

    def __enter__(self) -> KillWorkload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in [*self.clients, *self.short.clients[-1:]]:
            client.abandon()
        self.few_places.end()
