"""Goal: what an application sends is what a foreign consumer reads, with every field and every codec."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from client_stub import Producer, errors
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.reading import ReadRecord, read_topic

pytestmark = [pytest.mark.process, pytest.mark.kafka]

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def shared_daemon(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(kafka.bootstrap_servers, settings={"max.block.ms": 2_000}) as daemon:
        yield daemon


@pytest.fixture
def producer(shared_daemon: SidecarDaemon) -> Iterator[Producer]:
    with Producer(run_dir=str(shared_daemon.run_dir), client_name="round-trip") as made:
        yield made


def by_value(records: list[ReadRecord]) -> dict[bytes | None, ReadRecord]:
    return {record.value: record for record in records}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs(kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, codec: str) -> None:
    daemon = start_daemon(
        kafka.bootstrap_servers,
        settings={"compression.type": codec, "daemon.workers": 1, "linger.ms": 20},
    )
    topic = new_topic(partitions=2)
    with Producer(run_dir=str(daemon.run_dir), client_name=codec) as producer:
        deliveries = [
            producer.send(
                topic,
                value=b"%06d " % number * 20,
                key=b"key-%d" % (number % 50),
                headers=[("number", b"%d" % number), ("nothing", None)],
                timestamp_ms=1_700_000_000_000 + number,
            )
            for number in range(2_000)
        ]
        told = [delivery.result(timeout=TIMEOUT_S) for delivery in deliveries]
    found = by_value(read_topic(kafka.bootstrap_servers, topic))
    assert len(found) == 2_000
    for number, metadata in enumerate(told):
        record = found[b"%06d " % number * 20]
        assert (record.partition, record.offset) == (metadata.partition, metadata.offset)
        assert record.key == b"key-%d" % (number % 50)
        assert record.headers == (("number", b"%d" % number), ("nothing", None))
        assert record.timestamp_ms == metadata.timestamp_ms == 1_700_000_000_000 + number


@pytest.mark.parametrize("key", [None, b"", b"k"])
@pytest.mark.parametrize("value", [None, b"", b"v"])
def test_null_is_not_empty(
    kafka: KafkaCluster, new_topic: NewTopic, producer: Producer, key: bytes | None, value: bytes | None
) -> None:
    topic = new_topic(partitions=1)
    producer.send(topic, value=value, key=key).result(timeout=TIMEOUT_S)
    (record,) = read_topic(kafka.bootstrap_servers, topic)
    assert (record.key, record.value) == (key, value)


def test_keys_go_where_other_clients_put_them(
    kafka: KafkaCluster, new_topic: NewTopic, producer: Producer
) -> None:
    topic = new_topic(partitions=6)
    keys = [b"", *(b"key-%d" % number for number in range(300)), bytes(range(256))]
    for key in keys:
        producer.send(topic, value=key + b".", key=key)
    producer.flush(timeout=TIMEOUT_S)
    found = by_value(read_topic(kafka.bootstrap_servers, topic))
    for key in keys:
        assert found[key + b"."].partition == (murmur2(key) & 0x7FFFFFFF) % 6


@pytest.mark.parametrize("way", ["rows", "arrow"])
def test_a_bulk_call_says_where_its_records_stand(
    kafka: KafkaCluster, new_topic: NewTopic, producer: Producer, way: str
) -> None:
    topic = new_topic(partitions=3)
    values = [b"%05d" % number for number in range(5_000)]
    producer.send_many(topic, [(value, b"of others") for value in values[:100]])
    if way == "rows":
        delivery = producer.send_many(topic, [(value, value) for value in values])
    else:
        delivery = producer.send_arrow(topic, pa.table({"key": values, "value": values}))
    assert delivery.result(timeout=TIMEOUT_S) == len(values)
    told = {
        (each.partition, offset)
        for each in delivery.offsets()
        for offset in range(each.first_offset, each.end_offset)
    }
    found = [each for each in read_topic(kafka.bootstrap_servers, topic) if each.value != b"of others"]
    assert told == {(each.partition, each.offset) for each in found}
    assert len(told) == len(values)


def test_explicit_partition(kafka: KafkaCluster, new_topic: NewTopic, producer: Producer) -> None:
    topic = new_topic(partitions=4)
    for number in range(20):
        metadata = producer.send(topic, value=b"%d" % number, key=b"k", partition=number % 4).result(
            TIMEOUT_S
        )
        assert metadata.partition == number % 4
    found = by_value(read_topic(kafka.bootstrap_servers, topic))
    assert [found[b"%d" % number].partition for number in range(20)] == [number % 4 for number in range(20)]


def test_one_bad_record_fails_alone(kafka: KafkaCluster, new_topic: NewTopic, producer: Producer) -> None:
    topic = new_topic(partitions=2)
    good = [producer.send(topic, value=b"%d" % number) for number in range(10)]
    bad = producer.send(topic, value=b"nowhere", partition=99)
    good += [producer.send(topic, value=b"%d" % number) for number in range(10, 20)]
    with pytest.raises(errors.InvalidPartition, match="partition"):
        bad.result(timeout=TIMEOUT_S)
    for delivery in good:
        delivery.result(timeout=TIMEOUT_S)
    assert len(read_topic(kafka.bootstrap_servers, topic)) == 20


def test_too_large_names_size_and_setting(new_topic: NewTopic, producer: Producer) -> None:
    topic = new_topic(partitions=1)
    with pytest.raises(errors.RecordTooLarge, match=r"max\.request\.size"):
        producer.send(topic, value=b"x" * 1_048_577).result(timeout=TIMEOUT_S)
    producer.send(topic, value=b"x" * 1_000_000).result(timeout=TIMEOUT_S)


def test_unknown_topic_fails_alone_and_is_named(new_topic: NewTopic, producer: Producer) -> None:
    known = new_topic(partitions=1)
    lost = producer.send("no-such-topic", value=b"x")
    found = producer.send(known, value=b"x")
    found.result(timeout=TIMEOUT_S)
    with pytest.raises(errors.SidecarError, match="no-such-topic"):
        lost.result(timeout=TIMEOUT_S)
    producer.send(known, value=b"y").result(timeout=TIMEOUT_S)


def test_callbacks_come_once_each(new_topic: NewTopic, producer: Producer) -> None:
    topic = new_topic(partitions=3)
    told: list[int] = []
    for number in range(1_000):

        def on_delivery(error: object, metadata: object, number: int = number) -> None:
            assert error is None
            assert metadata is not None
            told.append(number)

        producer.send(topic, value=b"%d" % number, on_delivery=on_delivery)
    producer.flush(timeout=TIMEOUT_S)
    assert sorted(told) == list(range(1_000))


def test_send_many_keeps_order(kafka: KafkaCluster, new_topic: NewTopic, producer: Producer) -> None:
    topic = new_topic(partitions=1)
    for start in range(0, 10_000, 1_000):
        producer.send_many(topic, [(b"k", b"%d" % number) for number in range(start, start + 1_000)])
    producer.flush(timeout=TIMEOUT_S)
    values = [record.value for record in read_topic(kafka.bootstrap_servers, topic)]
    assert values == [b"%d" % number for number in range(10_000)]


def test_a_topic_that_another_worker_knows_already(shared_daemon: SidecarDaemon, new_topic: NewTopic) -> None:
    """Found by the demo: worker 1 made its topic's queue after the metadata push that worker 0's client had caused.
    It asked the controller for the topic again, and the controller had no news to push: its records waited."""
    topic = new_topic(partitions=2)
    for number in range(4):  # clients go to the least loaded worker: these cover both
        with Producer(run_dir=str(shared_daemon.run_dir), client_name=f"c{number}") as first:
            first.send(topic, value=b"x").result(timeout=TIMEOUT_S)
            with Producer(run_dir=str(shared_daemon.run_dir), client_name=f"d{number}") as second:
                second.send(topic, value=b"x").result(timeout=TIMEOUT_S)
