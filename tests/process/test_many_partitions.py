"""Goal: a topic may have more partitions than a worker has batch descriptors (4,096; new batches leave 64 free).

Records to all of them are sent in turns. A connection breaks, or the worker is killed, with the table full: batches
on the wire are sent again by the descriptors that they have. Nothing waits for its deadline. The broker is a fake one
that checks sequences; the long form asks a real Kafka the same.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from client_stub import Producer
from client_stub.outbox.delivery import BulkDelivery
from sidecar.producer.request_capacity import DESCRIPTORS_RESERVED
from sidecar.shm.layout import DESCRIPTORS_MAX
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.unmeasured]

WIDE = "wide"
PARTITIONS = 4_300
ON_THE_WIRE = DESCRIPTORS_MAX - DESCRIPTORS_RESERVED
DELIVERY_TIMEOUT_MS = 25_000
TOLD_S = 130
"""Longer than any delivery.timeout.ms here."""
SETTINGS = {
    "daemon.workers": 1,
    "linger.ms": 0,
    "request.timeout.ms": 10_000,
    "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
    "daemon.connections_per_broker": 1,
}


class WideTopic:
    """Numbered records to the first partitions of the topic, each partition a sender of the ledger's."""

    def __init__(self, daemon: SidecarDaemon, kafka: FakeBroker | KafkaCluster) -> None:
        self.daemon = daemon
        self.kafka = kafka
        self.producer = Producer(run_dir=str(daemon.run_dir), client_name="wide", connect_timeout_ms=20_000)
        self._waves: list[tuple[int, BulkDelivery]] = []
        """How many partitions, and what became of their records."""

    def wave(self, partitions: int) -> BulkDelivery:
        """One more record to each, all in one submission."""
        number = len(self._waves)
        rows = [
            (None, RecordId(f"p{partition}", number).encode(), None, partition)
            for partition in range(partitions)
        ]
        delivery = self.producer.send_many(WIDE, rows)
        self._waves.append((partitions, delivery))
        return delivery

    def check(self) -> None:
        """All are delivered, stand in the log once, and in their order."""
        ledger = Ledger()
        for partition in range(self._waves[0][0]):
            ledger.sent(f"p{partition}", len(self._waves))
        for number, (partitions, delivery) in enumerate(self._waves):
            delivery.result(TOLD_S)
            for partition in range(partitions):
                ledger.delivered(RecordId(f"p{partition}", number))
        if isinstance(self.kafka, FakeBroker):
            assert not self.kafka.bad_batches
            found = [(record.value, record.partition) for record in self.kafka.records(WIDE)]
        else:
            records = read_topic(self.kafka.bootstrap_servers, WIDE)
            found = [(record.value or b"", record.partition) for record in records]
        for value, partition in found:
            ledger.read(RecordId.decode(value), partition)
        ledger.check()

    def batches_sent(self) -> float:
        return metric(self.daemon, "kafka_sidecar_batches_sent_total")


VERY_MANY = 20_000


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({WIDE: PARTITIONS, "other": 1}) as broker:
        yield broker


@pytest.fixture
def wide(kafka: FakeBroker) -> Iterator[WideTopic]:
    with SidecarDaemon(kafka.bootstrap_servers, settings=SETTINGS) as daemon:
        topic = WideTopic(daemon, kafka)
        with topic.producer:
            yield topic


def test_one_record_to_each_of_more_partitions_than_descriptors(wide: WideTopic) -> None:
    """No fault at all."""
    wide.wave(PARTITIONS)
    wide.check()


def fill_the_table(wide: WideTopic) -> None:
    """Send until no batch more can be sent: they are appended and not answered."""
    wide.kafka.add(on(Api.PRODUCE, topic=WIDE, times=ALWAYS).hold_answer())
    wide.wave(PARTITIONS)
    wait_until(
        lambda: wide.batches_sent() == ON_THE_WIRE,
        f"{ON_THE_WIRE} batches on the wire",
        describe=lambda: f"{wide.batches_sent():.0f} batches were sent",
    )
    wide.wave(PARTITIONS)


def test_a_connection_that_breaks_with_all_descriptors_on_the_wire(wide: WideTopic) -> None:
    fill_the_table(wide)
    wide.kafka.disconnect()
    wide.kafka.clear_rules()
    other = wide.producer.send("other", b"not held up")
    wide.check()
    assert other.result(5).offset == 0
    wait_until(
        lambda: metric(wide.daemon, "kafka_sidecar_batches_retried_total") >= ON_THE_WIRE,
        f"{ON_THE_WIRE} retries to be counted",
    )


def test_a_worker_killed_with_all_descriptors_on_the_wire(wide: WideTopic) -> None:
    fill_the_table(wide)
    os.kill(wide.daemon.worker_pids()[0], signal.SIGKILL)
    wide.kafka.clear_rules()
    wide.check()


@pytest.mark.long
def test_very_many_partitions_twice_and_a_cut_between() -> None:
    with (
        FakeBroker({WIDE: VERY_MANY}, nodes=2) as kafka,
        SidecarDaemon(
            kafka.bootstrap_servers, settings=SETTINGS | {"delivery.timeout.ms": 120_000}
        ) as daemon,
    ):
        topic = WideTopic(daemon, kafka)
        with topic.producer:
            topic.wave(VERY_MANY)
            wait_until(lambda: topic.batches_sent() > 0, "some of them on the wire")
            kafka.disconnect()
            topic.wave(VERY_MANY)
            topic.check()


@pytest.mark.long
@pytest.mark.kafka
def test_more_partitions_than_descriptors_on_a_real_broker() -> None:
    """Twice, and the connection is cut between."""
    with (
        KafkaCluster(topics={WIDE: PARTITIONS}) as cluster,
        FaultProxy(cluster.bootstrap_servers) as proxy,
        SidecarDaemon(
            proxy.bootstrap_servers, settings=SETTINGS | {"delivery.timeout.ms": 120_000}
        ) as daemon,
    ):
        topic = WideTopic(daemon, cluster)
        with topic.producer:
            topic.wave(PARTITIONS)
            wait_until(lambda: topic.batches_sent() > 0, "some of them on the wire")
            proxy.disconnect()
            topic.wave(PARTITIONS)
            topic.check()
