"""A real broker that forgets producer ids within two seconds: ID-07, read back by a consumer that is not ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.testing.daemon import SidecarDaemon
from sidecar.testing.kafka_cluster import KafkaCluster
from sidecar.testing.ledger import Ledger
from sidecar.testing.reading import read_topic
from sidecar.testing.waiting import wait_until

from .scene import FAST, Sender, accounts_balance, enter_records

pytestmark = [pytest.mark.process, pytest.mark.kafka]

PROPERTIES = {"producer.id.expiration.ms": "2000", "producer.id.expiration.check.interval.ms": "200"}


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaCluster]:
    with KafkaCluster(light=True, heap_mb=256, properties=PROPERTIES, topics={"t": 2}) as cluster:
        yield cluster


def known_producers(kafka: KafkaCluster, partition: int) -> list[int]:
    """Ids that the partition's leader remembers."""
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        where = TopicPartition("t", partition)
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
