"""RF-08 on a real Kafka: which timestamp a record gets, what the sender is told, what the broker refuses.

Read back by kafka-python, which tells the kind of timestamp beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from kafka import KafkaConsumer, TopicPartition

from client_stub import Producer, errors
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster

from .harness import FAST, OUTCOME_S, accounts_balance

pytestmark = [pytest.mark.process, pytest.mark.kafka]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CREATE_TIME, LOG_APPEND_TIME = 0, 1
HOUR_MS = 3_600_000
BOUND_MS = 600_000
NOT_PERSISTED = 0


class Stamped(NamedTuple):
    offset: int
    timestamp_ms: int
    kind: int
    value: bytes


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def stamping(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    """Its topics are compressed as their names end."""
    codecs = {f'topics."*-{codec}".compression.type': codec for codec in CODECS}
    with SidecarDaemon(kafka.bootstrap_servers, settings={**FAST, **codecs}) as daemon:
        yield daemon
        accounts_balance(daemon)


@pytest.fixture
def producer(stamping: SidecarDaemon) -> Iterator[Producer]:
    with Producer(run_dir=str(stamping.run_dir), client_name="stamps") as made:
        yield made


def read(kafka: KafkaCluster, topic: str) -> list[Stamped]:
    """The one partition of a topic from its start to its end."""
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers.split(","), enable_auto_commit=False, check_crcs=True
    )
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([partition])[partition]
        found: list[Stamped] = []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=500).values():
                found += [Stamped(r.offset, r.timestamp, r.timestamp_type, r.value) for r in records]
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_rf_08_create_time(kafka: KafkaCluster, producer: Producer, codec: str) -> None:
    """RF-08: the record's own timestamp is kept exactly, also where it goes down inside a batch, and told; a record
    without one gets the time it was sent."""
    topic = f"create-time-{codec}"
    kafka.create_topics({topic: 1}, config={"retention.ms": "-1"})
    given: list[int | None] = [123_456 + number for number in range(10)] + [9_999_999, 0, None, None]
    called: list[int] = []
    began = now_ms()
    deliveries = [
        producer.send(
            topic,
            b"%d" % number,
            timestamp_ms=each,
            on_delivery=lambda error, metadata: called.append(metadata.timestamp_ms if metadata else -1),
        )
        for number, each in enumerate(given)
    ]
    told = [delivery.result(OUTCOME_S) for delivery in deliveries]
    ended = now_ms()
    producer.flush(OUTCOME_S)
    records = read(kafka, topic)
    assert {record.kind for record in records} == {CREATE_TIME}
    assert [(record.offset, record.value) for record in records] == [
        (n, b"%d" % n) for n in range(len(given))
    ]
    found = [record.timestamp_ms for record in records]
    assert found == [metadata.timestamp_ms for metadata in told] == called
    assert found[:-2] == given[:-2]
    # Records of one submission share the time at which it was opened.
    assert all(began - 1_000 <= each <= ended for each in found[-2:])


def test_rf_08_negative(kafka: KafkaCluster, producer: Producer) -> None:
    """RF-08: a negative timestamp is a mistake of the caller's: raised at once, nothing is sent."""
    kafka.create_topics({"negative": 1})
    with pytest.raises(ValueError, match="Invalid timestamp: -1"):
        producer.send("negative", b"x", timestamp_ms=-1)
    with pytest.raises(ValueError, match="Invalid timestamp: -5"):
        producer.send_many("negative", [(None, b"x"), (None, b"y", None, None, -5)])
    assert producer.send("negative", b"z", timestamp_ms=1).result(OUTCOME_S).offset == 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("off_ms", [-HOUR_MS, HOUR_MS], ids=["before", "after"])
def test_rf_08_out_of_bounds(kafka: KafkaCluster, producer: Producer, codec: str, off_ms: int) -> None:
    """RF-08: beyond message.timestamp.before.max.ms or after.max.ms the record fails with the broker's reason, alone
    or amid a batch of good ones, which are delivered in order."""
    topic = f"bounds{off_ms}-{codec}"
    bounds = {f"message.timestamp.{side}.max.ms": str(BOUND_MS) for side in ("before", "after")}
    kafka.create_topics({topic: 1}, config=bounds)
    wrong = now_ms() + off_ms
    alone = producer.send(topic, b"alone", timestamp_ms=wrong).exception(OUTCOME_S)
    assert isinstance(alone, errors.InvalidTimestamp)
    assert "out of range" in str(alone)
    assert int(alone.persistence) == NOT_PERSISTED

    fates: dict[bool, int] = {True: 0, False: 0}

    def note(error: BaseException | None, metadata: object) -> None:
        fates[isinstance(error, errors.InvalidTimestamp)] += 1

    rows = [(None, b"%d" % n, None, None, wrong if n % 3 == 1 else now_ms()) for n in range(9)]
    bulk = producer.send_many(topic, rows, on_delivery=note)
    with pytest.raises(errors.InvalidTimestamp):
        bulk.result(OUTCOME_S)
    producer.flush(OUTCOME_S)
    assert bulk.failed_count == 3
    assert fates == {True: 3, False: 6}
    assert [record.value for record in read(kafka, topic)] == [b"0", b"2", b"3", b"5", b"6", b"8"]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_rf_08_log_append_time(kafka: KafkaCluster, producer: Producer, codec: str) -> None:
    """RF-08: the broker's clock counts in a topic with LogAppendTime, and the sender is told that time."""
    topic = f"append-time-{codec}"
    kafka.create_topics({topic: 1}, config={"message.timestamp.type": "LogAppendTime"})
    called: list[int] = []
    began = now_ms()
    deliveries = [
        producer.send(
            topic,
            b"%d" % number,
            timestamp_ms=123_456 if number % 2 else None,
            on_delivery=lambda error, metadata: called.append(metadata.timestamp_ms if metadata else -1),
        )
        for number in range(10)
    ]
    told = [delivery.result(OUTCOME_S).timestamp_ms for delivery in deliveries]
    ended = now_ms()
    producer.flush(OUTCOME_S)
    records = read(kafka, topic)
    assert {record.kind for record in records} == {LOG_APPEND_TIME}
    assert [record.timestamp_ms for record in records] == told == called
    assert all(began <= each <= ended for each in told)
