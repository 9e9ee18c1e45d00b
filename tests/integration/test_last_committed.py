"""Goal: the last committed record of a key is the one that Kafka's readers with read_committed see, whatever else its
partition has.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from client_stub import AsyncProducer, LastCommitted, Producer
from client_stub.errors import DaemonRefused, InvalidTopic
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic

pytestmark = [pytest.mark.process, pytest.mark.kafka]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def daemon(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(kafka.bootstrap_servers, settings={"daemon.workers": 1}) as daemon:
        yield daemon


@pytest.fixture
def producer(daemon: SidecarDaemon) -> Iterator[Producer]:
    with Producer(daemon.run_dir) as producer:
        yield producer


@pytest.fixture
def commits(producer: Producer) -> str:
    """A compacted topic that the daemon has made."""
    topic = f"commits-{uuid.uuid4().hex[:12]}"
    assert producer.last_committed(topic, b"nobody", WAIT_S, creates=True).record is None
    return topic


def value_of(producer: Producer, topic: str, key: bytes) -> bytes | None:
    found = producer.last_committed(topic, key, WAIT_S).record
    return None if found is None else found.value


def transactional(kafka: KafkaCluster, name: str) -> confluent_kafka.Producer:
    made = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    made.init_transactions(WAIT_S)
    return made


def test_aborted_and_open_transactions_do_not_count(
    kafka: KafkaCluster, producer: Producer, commits: str
) -> None:
    own = transactional(kafka, f"{commits}-own")
    partition = producer.last_committed(commits, b"key", WAIT_S).partition
    for number in range(3):
        own.begin_transaction()
        own.produce(commits, f"committed {number}", b"key", partition=partition)
        own.commit_transaction(WAIT_S)
        own.begin_transaction()
        own.produce(commits, f"aborted {number}", b"key", partition=partition)
        own.flush(WAIT_S)
        own.abort_transaction(WAIT_S)
        assert value_of(producer, commits, b"key") == f"committed {number}".encode()

    # Another producer's open transaction holds the last stable offset, not the answer.
    other = transactional(kafka, f"{commits}-other")
    other.begin_transaction()
    other.produce(commits, "open", b"key", partition=partition)
    other.flush(WAIT_S)
    own.begin_transaction()
    own.produce(commits, "newest", b"key", partition=partition)
    own.commit_transaction(WAIT_S)
    assert value_of(producer, commits, b"key") == b"newest"
    other.commit_transaction(WAIT_S)
    # It was committed last, and a consumer sees it before the newest one.
    assert value_of(producer, commits, b"key") == b"newest"


def test_own_transaction_is_found_with_its_headers_and_place(
    producer: Producer, daemon: SidecarDaemon, commits: str
) -> None:
    with Producer(daemon.run_dir, transactional_id=f"{commits}-id") as writer:
        partition = writer.last_committed(commits, b"key", WAIT_S).partition
        with writer.transaction():
            sent = writer.send(commits, b"value", b"key", headers=[("name", b"x"), ("none", None)])
        place = sent.result(WAIT_S)
    found = producer.last_committed(commits, b"key", WAIT_S)
    assert found.record is not None
    assert (
        (found.partition, found.record.offset) == (place.partition, place.offset) == (partition, place.offset)
    )
    assert found.record[2:] == (b"value", (("name", b"x"), ("none", None)))


def test_plain_records_count_and_a_tombstone_is_none(producer: Producer, commits: str) -> None:
    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None)):
        producer.send(commits, value, key).result(WAIT_S)
    assert value_of(producer, commits, b"a") == b"3"
    assert value_of(producer, commits, b"b") is None


def test_a_restarted_daemon_reads_from_the_start(
    kafka: KafkaCluster, producer: Producer, commits: str
) -> None:
    for number in range(1000):
        producer.send(commits, str(number).encode(), b"key")
    producer.flush(WAIT_S)
    with SidecarDaemon(kafka.bootstrap_servers) as other, Producer(other.run_dir) as asking:
        assert value_of(asking, commits, b"key") == b"999"


def test_an_event_loop_asks_too(daemon: SidecarDaemon, producer: Producer, commits: str) -> None:
    async def ask() -> LastCommitted:
        async with AsyncProducer(daemon.run_dir) as asking:
            return await asking.last_committed(commits, b"key", WAIT_S)

    producer.send(commits, b"value", b"key").result(WAIT_S)
    found = asyncio.run(ask())
    assert found.record is not None and found.record.value == b"value"


def test_made_topic_is_compacted(kafka: KafkaCluster, commits: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, commits)
    found = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert found["cleanup.policy"].value == "compact"


def test_topic_that_forgets_is_refused(producer: Producer, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=1)
    with pytest.raises(DaemonRefused, match=rf"Topic {topic} has cleanup\.policy=delete, .* --add-config"):
        producer.last_committed(topic, b"key", WAIT_S)


def test_missing_topic_is_refused_with_the_command_that_makes_it(producer: Producer) -> None:
    with pytest.raises(
        InvalidTopic, match=r"Topic absent is not in Kafka; make it: kafka-topics\.sh --create"
    ):
        producer.last_committed("absent", b"key", WAIT_S)
