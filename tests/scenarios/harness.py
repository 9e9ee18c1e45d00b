"""The common part of scenarios: numbered records, their outcomes, and the ledger over both ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from client_stub import Producer
from client_stub.errors import SidecarError
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.client_table import ClientTable
from sidecar.shm.lane_records import LaneRecords
from sidecar.shm.segment import Segment
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kafka_frames import Api, Request
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

if TYPE_CHECKING:
    from client_stub.outbox.delivery import Delivery
    from client_stub.record_metadata import RecordMetadata
    from sidecar.tools.testing.fault_server import FaultServer

OUTCOME_S = 20.0
CONNECT_MS = 20_000
"""No scenario is about how long a daemon takes to answer on a busy machine."""
PAGE_BYTES = 16 << 10
METRIC = "kafka_sidecar_"

_serial = count(1)


class Outcome(NamedTuple):
    """The sender's outcome of one record: its place, or the reason why it has none."""

    metadata: RecordMetadata | None
    error: SidecarError | None

    @property
    def offset(self) -> int:
        assert self.metadata is not None, f"not delivered: {self.error}"
        return self.metadata.offset


class Sender:
    """Sends numbered records to one topic. Every record's value begins with its id and names its place."""

    def __init__(
        self,
        daemon: SidecarDaemon,
        topic: str,
        name: str | None = None,
        *,
        max_block_ms: float = 20_000,
        producer: Producer | None = None,
    ) -> None:
        self.name = name or f"sender-{next(_serial)}"
        self.topic = topic
        self.producer = producer or Producer(
            run_dir=str(daemon.run_dir),
            client_name=self.name,
            max_block_ms=max_block_ms,
            connect_timeout_ms=CONNECT_MS,
        )
        self.deliveries: list[Delivery] = []
        self.told: dict[int, int] = {}
        """Number of the record → how often its callback was called."""
        self.order: list[int] = []
        """Numbers in the order of their callbacks."""

    def send(
        self,
        partition: int | None = 0,
        *,
        size: int = 0,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        number = len(self.deliveries)

        def called(error: object, metadata: object) -> None:
            self.told[number] = self.told.get(number, 0) + 1
            self.order.append(number)

        place = "any" if partition is None else partition
        value = RecordId(self.name, number).encode() + f"{self.topic}-{place}|".encode()
        delivery = self.producer.send(
            self.topic,
            value.ljust(size, b"."),
            key=key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            on_delivery=called,
        )
        self.deliveries.append(delivery)
        return delivery

    def outcomes(self, timeout_s: float = OUTCOME_S) -> list[Outcome]:
        """Wait for all of them, by looking: a caller that waits in result() or exception() would end linger."""
        found = []
        for delivery in self.deliveries:
            wait_until(delivery.done, "the outcome of a record", timeout_s=timeout_s, interval_s=0.002)
            error = delivery.exception(0)
            found.append(Outcome(None if error else delivery.result(0), error))
        return found

    def offsets(self) -> list[int]:
        """Every record was delivered; where."""
        return [outcome.offset for outcome in self.outcomes()]

    def enter(self, ledger: Ledger) -> None:
        """Book what was sent and told. Each callback came exactly once."""
        outcomes = self.outcomes()
        wait_until(lambda: len(self.told) == len(outcomes), "the last callback", timeout_s=5)
        ledger.sent(self.name, len(outcomes))
        for number, outcome in enumerate(outcomes):
            for _ in range(self.told.get(number, 0)):
                if outcome.error is None:
                    ledger.delivered(RecordId(self.name, number))
                else:
                    ledger.failed(
                        RecordId(self.name, number), possibly_persisted=int(outcome.error.persistence) != 0
                    )

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.producer.close(OUTCOME_S if error is None else 0)


class Harness:
    """A fake broker and a real daemon on it; each test takes a topic of its own."""

    def __init__(self, kafka: FakeBroker, daemon: SidecarDaemon) -> None:
        self.kafka = kafka
        self.daemon = daemon

    def new_topic(self, partitions: int = 1) -> str:
        name = f"harness-{next(_serial)}"
        self.kafka.create_topic(name, partitions)
        return name

    def sender(self, topic: str, *, max_block_ms: float = 20_000) -> Sender:
        return Sender(self.daemon, topic, max_block_ms=max_block_ms)

    def primed(self, partitions: int = 1) -> tuple[str, Sender]:
        """A topic whose partitions know the producer: from now on several batches go out at once."""
        topic = self.new_topic(partitions)
        sender = self.sender(topic)
        for partition in range(partitions):
            sender.send(partition)
        sender.offsets()
        return topic, sender

    def send_apart(self, sender: Sender, records: int) -> None:
        """Records in a request each: the next is sent when the one before it was seen on the wire."""
        seen = len(self.produced(sender.topic))
        for number in range(1, records + 1):
            sender.send()
            self.wait_produced(sender.topic, seen + number)

    def replace_worker(self) -> None:
        """Kill the only worker and wait for the next: it asks for an identity of its own."""
        (pid,) = self.daemon.worker_pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.daemon.worker_pids() not in ([], [pid]), "another worker")
        self.daemon.wait_ready()

    def produced(self, topic: str) -> list[Request]:
        """The Produce requests that carried the topic."""
        return self.kafka.requests(Api.PRODUCE, topic)

    def wait_produced(self, topic: str, requests: int) -> None:
        wait_for_requests(self.kafka, topic, requests)

    def balance(self, *senders: Sender, idempotent: bool = True) -> None:
        """The ledger over all of them, the broker's opinion of our bytes, and the pool given back."""
        ledger = Ledger()
        for sender in senders:
            sender.enter(ledger)
        for topic in {sender.topic for sender in senders}:
            enter_records(
                ledger, topic, ((each.value or b"", each.partition) for each in self.kafka.records(topic))
            )
        ledger.check(idempotent=idempotent)
        assert not self.kafka.bad_batches
        self.check_books()

    def check_books(self) -> None:
        """The daemon's own counts."""
        accounts_balance(self.daemon)

    def accepted(self) -> float:
        """Records, of all topics."""
        return metric(self.daemon, f"{METRIC}records_accepted_total")

    def held_bytes(self) -> float:
        """Of the pool."""
        return metric(self.daemon, f"{METRIC}buffer_pages_taken") * PAGE_BYTES


def enter_records(ledger: Ledger, topic: str, records: Iterable[tuple[bytes, int]]) -> None:
    """Book what a reader found; a record that lies elsewhere than its value says is an error at once."""
    for value, partition in records:
        place = value.split(b"|")[1].decode()
        assert place in (f"{topic}-{partition}", f"{topic}-any"), (
            f"a record for {place} lies in {topic}-{partition}"
        )
        ledger.read(RecordId.decode(value), partition)


def accounts_balance(daemon: SidecarDaemon) -> None:
    """The daemon's own books: accepted = delivered + failed + aborted, and no error of its own meanwhile."""

    def count_of(name: str) -> float:
        return metric(daemon, f"{METRIC}{name}_total")

    ends = ("records_delivered", "records_failed", "records_aborted")
    wait_until(
        lambda: count_of("records_accepted") == sum(map(count_of, ends)),
        "the daemon's books to balance",
        timeout_s=10,
    )
    assert count_of("sender_exceptions") == count_of("accept_errors") == 0, daemon.log_tail()


def pool_is_whole(daemon: SidecarDaemon, probe: Sender) -> None:
    """Pages taken equal pages given back once the daemon is idle.

    Gauges are stored now and then: one more record, and its batch counted, show that they are of now.
    """
    before = metric(daemon, f"{METRIC}batches_sent_total")
    probe.send()
    probe.producer.flush(OUTCOME_S)
    wait_until(lambda: metric(daemon, f"{METRIC}batches_sent_total") > before, "fresh gauges")
    pages = f"{METRIC}buffer_pages_taken"
    wait_until(
        lambda: metric(daemon, pages) == 0,
        "the pool to be whole again",
        timeout_s=10,
        describe=lambda: f"{metric(daemon, pages):.0f} pages are taken",
    )


def wait_for_requests(server: FaultServer, topic: str, requests: int) -> None:
    wait_until(
        lambda: len(server.requests(Api.PRODUCE, topic)) >= requests,
        f"{requests} Produce requests for {topic}",
        timeout_s=OUTCOME_S,
        interval_s=0.005,
    )


def sequences(requests: Iterable[Request], partition: int = 0) -> list[tuple[int, int]]:
    """(epoch, base sequence) of that partition's batches as they were sent."""
    return [
        (batch.header.epoch, batch.header.base_sequence)
        for request in requests
        for batch in request.batches
        if batch.partition == partition
    ]


FAST: Mapping[str, object] = {
    "daemon.workers": 1,
    "linger.ms": 0,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "buffer.memory": 32 << 20,
}
"""Settings with which retries come quickly; a scenario sets the settings that it is about."""


def rows_of(daemon: SidecarDaemon) -> tuple[int, int, int]:
    """Rows of the only worker that are in use: chains, lanes, clients."""
    segment = Segment.attach(Path(daemon.info()["segment"]))
    try:
        chains = len(ChainTable(segment, 0).ids())
        return chains, len(list(LaneRecords(segment, 0))), ClientTable(segment).taken()
    finally:
        segment.close()
