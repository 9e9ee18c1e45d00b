"""Goal: settings by topic, as a foreign reader and the broker's own log dump see them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.outbox.delivery import Delivery
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic, quiet_config
from sidecar.tools.testing.reading import end_offsets, read_topic
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.kafka]

TIMEOUT_S = 30
RECORDS = 400
RATE = 200_000
KEYS = 3_000


@pytest.fixture(scope="module")
def topic_daemon(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarDaemon]:
    settings = {
        'topics."zero-*".acks': 0,
        'topics."one-*".acks': 1,
        'topics."gz-*".compression.type': "gzip",
        'topics."gz-*".compression.gzip.level': 9,
        'topics."zs-*".compression.type': "zstd",
        'topics."rr-*".partitioner': "round_robin",
        'topics."crc-*".partitioner': "consistent_random",
        'topics."fnv-*".partitioner': "fnv1a",
        'topics."slow-*".rate': RATE,
        "linger.ms": 20,
    }
    with SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon:
        yield daemon


@pytest.fixture
def producer(topic_daemon: SidecarDaemon) -> Iterator[Producer]:
    with Producer(run_dir=str(topic_daemon.run_dir), client_name="topics") as made:
        yield made


class Batch:
    """One record batch as it stands in the broker's log file: what the producer put into its header."""

    CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, data: bytes) -> None:
        self.codec = self.CODECS[int.from_bytes(data[21:23], "big") & 7]
        self.producer_id = int.from_bytes(data[43:51], "big", signed=True)
        self.count = int.from_bytes(data[57:61], "big")


def batches_of(kafka: KafkaCluster, topic: str) -> list[Batch]:
    """All batches of a topic, out of the segment files of the broker."""
    found: list[Batch] = []
    for log in sorted(log_folder(kafka).glob(f"**/{topic}-*/*.log")):
        data = log.read_bytes()
        at = 0
        while at + 61 <= len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            if size == 12:
                break
            found.append(Batch(data[at : at + size]))
            at += size
    return found


def log_folder(kafka: KafkaCluster) -> Path:
    return kafka.nodes[0].folder / "data"


def test_acks_0_and_acks_all_side_by_side(
    kafka: KafkaCluster, new_topic: NewTopic, producer: Producer
) -> None:
    names = {kind: f"{kind}-{new_topic(partitions=2)}" for kind in ("zero", "one", "all")}
    kafka.create_topics(dict.fromkeys(names.values(), 2))
    told: dict[str, list[Delivery]] = {kind: [] for kind in names}
    for number in range(RECORDS):
        for kind, topic in names.items():
            told[kind].append(producer.send(topic, value=b"%d" % number, key=b"%d" % (number % 7)))
    for deliveries in told.values():
        for delivery in deliveries:
            delivery.result(timeout=TIMEOUT_S)
    for kind, topic in names.items():
        # With acks=0 a record counts as delivered once its request is handed to the socket. The broker reads it later.
        wait_until(
            lambda topic=topic: sum(end_offsets(kafka.bootstrap_servers, topic).values()) >= RECORDS,
            f"the records of {kind} in the log",
        )
        values = Counter(record.value for record in read_topic(kafka.bootstrap_servers, topic))
        assert values == {b"%d" % number: 1 for number in range(RECORDS)}, kind
        with_id = {batch.producer_id >= 0 for batch in batches_of(kafka, topic)}
        assert with_id == {kind == "all"}, kind
    assert {delivery.result().offset for delivery in told["zero"]} == {-1}
    assert -1 not in {delivery.result().offset for delivery in told["one"]}


def test_each_topic_has_its_codec(kafka: KafkaCluster, new_topic: NewTopic, producer: Producer) -> None:
    names = {codec: f"{codec[:2]}-{new_topic(partitions=1)}" for codec in ("gzip", "zstd", "none")}
    kafka.create_topics(dict.fromkeys(names.values(), 1))
    for number in range(RECORDS):
        for topic in names.values():
            producer.send(topic, value=b"%06d " % number * 20)
    producer.flush(timeout=TIMEOUT_S)
    for codec, topic in names.items():
        values = [record.value for record in read_topic(kafka.bootstrap_servers, topic)]
        assert values == [b"%06d " % number * 20 for number in range(RECORDS)]
        batches = batches_of(kafka, topic)
        assert {batch.codec for batch in batches} == {codec}
        assert sum(batch.count for batch in batches) == RECORDS


def test_each_topic_has_its_partitioner(kafka: KafkaCluster, new_topic: NewTopic, producer: Producer) -> None:
    names = {kind: f"{kind}-{new_topic(partitions=1)}" for kind in ("rr", "crc", "plain")}
    kafka.create_topics(dict.fromkeys(names.values(), 17))
    for topic in names.values():
        for _ in range(34):
            producer.send(topic, value=b"v", key=b"hejsan")
    producer.flush(timeout=TIMEOUT_S)
    found = {
        kind: Counter(record.partition for record in read_topic(kafka.bootstrap_servers, topic))
        for kind, topic in names.items()
    }
    assert found == {"rr": dict.fromkeys(range(17), 2), "crc": {14: 34}, "plain": {5: 34}}


@pytest.mark.parametrize(
    ("prefix", "theirs"), [("murmur", "murmur2_random"), ("crc", "consistent_random"), ("fnv", "fnv1a")]
)
def test_a_key_has_one_partition_whoever_sends_it(
    kafka: KafkaCluster, new_topic: NewTopic, producer: Producer, prefix: str, theirs: str
) -> None:
    """The same keys by librdkafka into the same topic."""
    from confluent_kafka import Producer as Librdkafka

    topic = f"{prefix}-{new_topic(partitions=1)}"
    kafka.create_topics({topic: 12})
    keys = [b"%d" % number * (1 + number % 7) for number in range(KEYS)]
    keys += [bytes(range(number, number + 9)) for number in range(200)]
    other = Librdkafka(quiet_config(kafka.bootstrap_servers, {"partitioner": theirs, "linger.ms": 20}))
    for key in keys:
        producer.send(topic, value=b"ours", key=key)
        other.produce(topic, value=b"theirs", key=key)
    producer.flush(timeout=TIMEOUT_S)
    assert other.flush(TIMEOUT_S) == 0
    found: dict[bytes | None, set[int]] = {}
    records = read_topic(kafka.bootstrap_servers, topic)
    for record in records:
        found.setdefault(record.key, set()).add(record.partition)
    assert Counter(record.value for record in records) == {b"ours": len(keys), b"theirs": len(keys)}
    assert {key: partitions for key, partitions in found.items() if len(partitions) != 1} == {}
    assert {next(iter(partitions)) for partitions in found.values()} == set(range(12))


def test_a_rate_holds_its_topic_and_no_other(
    kafka: KafkaCluster, new_topic: NewTopic, producer: Producer
) -> None:
    slow = f"slow-{new_topic(partitions=1)}"
    kafka.create_topics({slow: 2})
    quick = new_topic(partitions=2)
    producer.send(slow, value=b"primer").result(timeout=TIMEOUT_S)
    producer.send(quick, value=b"primer").result(timeout=TIMEOUT_S)
    began = time.monotonic()
    # Three seconds' worth. Each call, with a callback of its own, is a submission: what passes whole is one of them.
    held = [
        producer.send_many(slow, [(None, bytes(10_000))] * 3, on_delivery=lambda _error, _metadata: None)
        for _ in range(20)
    ]
    free = [producer.send(quick, value=b"x") for _ in range(100)]
    for delivery in free:
        delivery.result(timeout=TIMEOUT_S)
    assert not held[-1].done(), "the other topic has not waited for this one"
    for delivery in held:
        delivery.result(timeout=TIMEOUT_S)
    # Never faster than the rate: what the burst and the last frame may let through is taken off.
    assert time.monotonic() - began > 60 * 10_000 / RATE * 0.5
    assert len(read_topic(kafka.bootstrap_servers, slow)) == 61
