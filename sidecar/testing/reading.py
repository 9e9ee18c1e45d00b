"""Read a topic back by a consumer that shares no code with the producer (librdkafka, CRCs checked)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from sidecar.testing.kafka_topics import quiet_config

CONSUME_BATCH = 10_000


class ReadRecord(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class ReadTimeout(AssertionError):
    """The topic's end was not reached in time."""


def read_topic(
    bootstrap_servers: str, topic: str, *, isolation: str = "read_committed", timeout_s: float = 60.0
) -> list[ReadRecord]:
    """Every record of ``topic`` up to the ends seen at the start, in partition order of arrival.

    Raises ReadTimeout when the ends are not reached within ``timeout_s``, KafkaException on a broker error.
    """
    return list(iterate_topic(bootstrap_servers, topic, isolation=isolation, timeout_s=timeout_s))


def iterate_topic(
    bootstrap_servers: str, topic: str, *, isolation: str = "read_committed", timeout_s: float = 60.0
) -> Iterator[ReadRecord]:
    """As :func:`read_topic`, without holding all records in memory."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        quiet_config(
            bootstrap_servers,
            {
                "group.id": "sidecar-judge",
                "enable.auto.commit": "false",
                "auto.offset.reset": "error",
                "enable.partition.eof": "true",
                "check.crcs": "true",
                "isolation.level": isolation,
                "fetch.wait.max.ms": 50,
                "queued.max.messages.kbytes": 65_536,
            },
        )
    )
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        unfinished = set(partitions)
        deadline = time.monotonic() + timeout_s
        while unfinished:
            messages = consumer.consume(CONSUME_BATCH, timeout=0.2)
            if messages:
                deadline = time.monotonic() + timeout_s
            elif time.monotonic() > deadline:
                raise ReadTimeout(f"{topic}: partitions {sorted(unfinished)} not read to their ends")
            for message in messages:
                error = message.error()
                partition = message.partition()
                assert partition is not None
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        unfinished.discard(partition)
                        continue
                    raise KafkaException(error)
                yield ReadRecord(
                    partition,
                    _int(message.offset()),
                    message.key(),
                    message.value(),
                    _headers(message.headers()),
                    message.timestamp()[1],
                )
    finally:
        consumer.close()


def _int(value: int | None) -> int:
    assert value is not None
    return value


def _headers(found: Any) -> tuple[tuple[str, bytes | None], ...]:
    # Its stub says str or a list of pairs; at run time it is None or a list of (str, bytes or None).
    return tuple((name, value) for name, value in found or ())
