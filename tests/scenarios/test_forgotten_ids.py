"""A real broker that forgets producer ids within two seconds: ID-07, read back by a consumer that is not ours."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from client_stub import errors
from client_stub.contract.wire import Persistence
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.fault_rules import Rule, on
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, METRIC, Sender, accounts_balance, enter_records

pytestmark = [pytest.mark.process, pytest.mark.kafka]

PROPERTIES = {"producer.id.expiration.ms": "2000", "producer.id.expiration.check.interval.ms": "200"}
TOPICS = {"t": 2, "silent": 1, "killed": 1, "old": 1, "strict": 1, "anew": 1}
NOT_ENOUGH_REPLICAS = 19
DAYS_MS = 3 * 86_400_000


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaCluster]:
    with KafkaCluster(light=True, heap_mb=256, properties=PROPERTIES, topics=TOPICS) as cluster:
        yield cluster


def known_producers(kafka: KafkaCluster, partition: int, topic: str = "t") -> list[int]:
    """Ids that the partition's leader remembers."""
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        where = TopicPartition(topic, partition)
        return [each.producer_id for each in admin.describe_producers([where])[where].active_producers]
    finally:
        admin.close()


def delete_all_records(kafka: KafkaCluster, partition: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for done in admin.delete_records([TopicPartition("t", partition, -1)]).values():
        done.result(30)


def test_id_07_after_a_real_expiry(forgetful: KafkaCluster) -> None:
    """ID-07: the id expires on a partition while the producer is idle, twice, and another partition stays in use;
    then all records are deleted, and the id expires again: sends just work, each record is there once."""
    with (
        SidecarDaemon(forgetful.bootstrap_servers, settings={**FAST, "daemon.workers": 1}) as daemon,
        Sender(daemon, "t") as sender,
    ):

        def send_20() -> list[int]:
            begun = len(sender.deliveries)
            for _ in range(20):
                sender.send(0)
            return [delivery.result(20).offset for delivery in sender.deliveries[begun:]]

        def forgotten() -> bool:
            sender.send(1).result(20)
            return not known_producers(forgetful, 0)

        for round_ in range(2):
            assert send_20() == list(range(20 * round_, 20 * round_ + 20))
            wait_until(forgotten, "the broker to forget the producer id", interval_s=0.3)
        ledger = Ledger()
        sender.enter(ledger)
        found = read_topic(forgetful.bootstrap_servers, "t")
        enter_records(ledger, "t", ((each.value or b"", each.partition) for each in found))
        ledger.check()
        delete_all_records(forgetful, 0)
        assert send_20() == list(range(40, 60))
        delete_all_records(forgetful, 0)
        wait_until(forgotten, "the broker to forget the producer id", interval_s=0.3)
        assert send_20() == list(range(60, 80))
        assert forgetful.admin().end_offsets("t")[0] == 80
        accounts_balance(daemon)


@pytest.fixture(scope="module")
def proxy(forgetful: KafkaCluster) -> Iterator[FaultProxy]:
    with FaultProxy(forgetful.bootstrap_servers) as made:
        yield made


@pytest.fixture(scope="module")
def daemon(proxy: FaultProxy) -> Iterator[SidecarDaemon]:
    settings = {**FAST, "daemon.workers": 1, "metadata.max.age.ms": 500}
    with SidecarDaemon(proxy.bootstrap_servers, settings=settings) as made:
        yield made


def accepted(daemon: SidecarDaemon) -> float:
    return metric(daemon, f"{METRIC}records_accepted_total")


def three_beside_a_refusal(
    proxy: FaultProxy, daemon: SidecarDaemon, sender: Sender, timestamp_ms: int | None = None
) -> Rule:
    """The first is refused once, as too few replicas would have it, and that is told only after the rule's release; the
    daemon has the other two by then."""
    refused = proxy.add(on(Api.PRODUCE, topic=sender.topic).refuse(NOT_ENOUGH_REPLICAS).hold_answer())
    before = accepted(daemon)
    sender.send(timestamp_ms=timestamp_ms)
    refused.wait()
    for _ in range(2):
        sender.send(timestamp_ms=timestamp_ms)
    wait_until(lambda: accepted(daemon) == before + 3, "the daemon to have all three", interval_s=0.05)
    return refused


def read_values(forgetful: KafkaCluster, topic: str) -> list[bytes]:
    return [each.value or b"" for each in read_topic(forgetful.bootstrap_servers, topic)]


def check(forgetful: KafkaCluster, daemon: SidecarDaemon, sender: Sender) -> None:
    ledger = Ledger()
    sender.enter(ledger)
    enter_records(ledger, sender.topic, ((value, 0) for value in read_values(forgetful, sender.topic)))
    ledger.check()
    accounts_balance(daemon)


@pytest.mark.rule("S4")
def test_refused_after_the_id_expired(
    forgetful: KafkaCluster, proxy: FaultProxy, daemon: SidecarDaemon
) -> None:
    """The broker would take any first sequence, so what comes behind the refused batch waits for it."""
    with Sender(daemon, "silent") as sender:
        sender.send()
        sender.offsets()
        wait_until(
            lambda: not known_producers(forgetful, 0, "silent"), "the broker to forget the producer id"
        )
        three_beside_a_refusal(proxy, daemon, sender).release()
        assert sender.offsets() == [0, 1, 2, 3]
        check(forgetful, daemon, sender)


@pytest.mark.rule("S4")
def test_refused_and_killed_after_the_id_expired(
    forgetful: KafkaCluster, proxy: FaultProxy, daemon: SidecarDaemon
) -> None:
    """The worker dies before it hears of the refusal: nobody is told that a record is there because a later one is."""
    with Sender(daemon, "killed") as sender:
        sender.send()
        sender.offsets()
        wait_until(
            lambda: not known_producers(forgetful, 0, "killed"), "the broker to forget the producer id"
        )
        three_beside_a_refusal(proxy, daemon, sender)
        os.kill(daemon.worker_pids()[0], signal.SIGKILL)
        assert sender.offsets() == [0, 1, 2, 3]
        check(forgetful, daemon, sender)


@pytest.mark.rule("S4")
def test_refused_in_a_backfill(forgetful: KafkaCluster, proxy: FaultProxy, daemon: SidecarDaemon) -> None:
    """Records of three days ago: forgotten at each check, five times a second, while they are being sent."""
    old_ms = time.time_ns() // 1_000_000 - DAYS_MS
    with Sender(daemon, "old") as sender:
        for _ in range(3):
            sender.send(timestamp_ms=old_ms)
            sender.offsets()
            wait_until(
                lambda: not known_producers(forgetful, 0, "old"), "the broker to forget the producer id"
            )
            three_beside_a_refusal(proxy, daemon, sender, old_ms).release()
            sender.offsets()
        assert sender.offsets() == list(range(12))
        check(forgetful, daemon, sender)


@pytest.mark.rule("S4")
def test_refused_by_a_topic_made_anew(
    forgetful: KafkaCluster, proxy: FaultProxy, daemon: SidecarDaemon
) -> None:
    """Deleted and created again, as the daemon has heard by its refresh."""
    with Sender(daemon, "anew") as sender:
        sender.send()
        sender.offsets()
        forgetful.admin().delete_topic("anew")
        forgetful.create_topics({"anew": 1})
        asked = len(proxy.requests(Api.METADATA))
        wait_until(lambda: len(proxy.requests(Api.METADATA)) >= asked + 2, "a refresh of the metadata")
        three_beside_a_refusal(proxy, daemon, sender).release()
        assert sender.offsets()[1:] == [0, 1, 2]


@pytest.mark.rule("A6")
def test_judged_before_it_is_looked_for(
    forgetful: KafkaCluster, proxy: FaultProxy, daemon: SidecarDaemon
) -> None:
    """A batch is appended and its answer lost; the topic becomes compacted and refuses the copy for its record without
    a key. Both stand there once, and nobody is told that they do not."""
    with Sender(daemon, "strict") as sender:
        sender.send(key=b"k")
        sender.offsets()
        lost = proxy.add(on(Api.PRODUCE, topic="strict").cut_answer())
        again = proxy.add(on(Api.PRODUCE, topic="strict").hold())
        both = sender.producer.send_many("strict", [(None, b"keyless"), (b"k", b"keyed")])
        lost.wait()
        again.wait()
        forgetful.admin().set_topic_config("strict", {"cleanup.policy": "compact"})
        again.release()
        with pytest.raises(errors.InvalidRecord) as failed:
            both.result(20)
        assert failed.value.persistence == Persistence.POSSIBLY_PERSISTED
        sender.send(key=b"k")
        assert sender.offsets() == [0, 3]
    assert read_values(forgetful, "strict")[1:3] == [b"keyless", b"keyed"]
