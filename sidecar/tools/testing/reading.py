"""Read a topic back with a consumer that shares no code with the producer (librdkafka, which checks CRCs)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sidecar.tools.testing.kafka_topics import quiet_config
from sidecar.tools.testing.waiting import wait_until

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
    """Return every record of ``topic`` up to the ends seen at the start, in offset order per partition.

    Raises ReadTimeout when the ends are not reached within ``timeout_s``, KafkaException on a broker error.
    """
    return list(iterate_topic(bootstrap_servers, topic, isolation=isolation, timeout_s=timeout_s))


def iterate_topic(
    bootstrap_servers: str, topic: str, *, isolation: str = "read_committed", timeout_s: float = 60.0
) -> Iterator[ReadRecord]:
    """Yield the records of :func:`read_topic`, without holding all of them in memory."""
    for message in iterate_messages(bootstrap_servers, topic, isolation=isolation, timeout_s=timeout_s):
        yield ReadRecord(
            _int(message.partition()),
            _int(message.offset()),
            message.key(),
            message.value(),
            _headers(message.headers()),
            message.timestamp()[1],
        )


def iterate_messages(
    bootstrap_servers: str,
    topic: str,
    *,
    start: Mapping[int, int] | None = None,
    isolation: str = "read_committed",
    timeout_s: float = 60.0,
    is_over: Callable[[], bool] | None = None,
) -> Iterator[Any]:
    """Yield confluent-kafka's own messages, from the offsets in ``start`` (else 0) to the ends seen on the way.

    With ``is_over`` it goes on behind the ends, and while a broker is away, until ``is_over()`` is True. Raises the
    errors of :func:`read_topic`.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    consumer = _consumer(bootstrap_servers, isolation)
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, (start or {}).get(index, 0)) for index in partitions])
        unfinished = set(partitions)
        deadline = time.monotonic() + timeout_s
        while unfinished and not (is_over is not None and is_over()):
            messages = consumer.consume(CONSUME_BATCH, timeout=0.2)
            if messages or is_over is not None:
                deadline = time.monotonic() + timeout_s
            elif time.monotonic() > deadline:
                raise ReadTimeout(f"{topic}: partitions {sorted(unfinished)} not read to their ends")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif is_over is not None and (error.retriable() or error.code() == KafkaError._PARTITION_EOF):
                    continue
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(_int(message.partition()))
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def end_offsets(bootstrap_servers: str, topic: str, timeout_s: float = 60.0) -> dict[int, int]:
    """Return the end offset of each partition. Raises KafkaException when it cannot be learned in time."""
    from confluent_kafka import KafkaException, TopicPartition

    consumer = _consumer(bootstrap_servers, "read_uncommitted")
    deadline = time.monotonic() + timeout_s

    def end(partition: int) -> int | None:
        try:
            found = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
        except KafkaException:
            # The leader of a new topic may not know the partition yet.
            if time.monotonic() > deadline:
                raise
            return None
        return None if found is None else _int(found[1])

    def known(partition: int) -> int:
        return wait_until(
            lambda: None if (place := end(partition)) is None else (place,),
            f"the end of {topic}-{partition}",
            timeout_s=timeout_s,
        )[0]

    try:
        return {
            partition: known(partition)
            for partition in consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        }
    finally:
        consumer.close()


def wait_transactions_ended(bootstrap_servers: str, topic: str, *, timeout_s: float = 60.0) -> None:
    """Wait until no transaction holds up readers of ``topic``: a coordinator writes the markers after it has answered.

    Raises ConditionTimeout with the partitions that one still holds up.
    """
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

    admin = AdminClient(quiet_config(bootstrap_servers))
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    partitions = admin.list_topics(topic, timeout=timeout_s).topics[topic].partitions

    def ends(isolation: IsolationLevel) -> dict[int, int]:
        asked = admin.list_offsets(
            {TopicPartition(topic, index): latest for index in partitions},
            isolation_level=isolation,
            request_timeout=timeout_s,
        )
        return {each.partition: int(answer.result(timeout_s).offset) for each, answer in asked.items()}

    def held_up() -> list[int] | None:
        """None while a broker is away."""
        try:
            stable = ends(IsolationLevel.READ_COMMITTED)
            return [
                index for index, end in ends(IsolationLevel.READ_UNCOMMITTED).items() if stable[index] < end
            ]
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            return None

    wait_until(
        lambda: held_up() == [],
        f"the end of every transaction of {topic}",
        timeout_s=timeout_s,
        describe=lambda: f"Partitions that one holds up: {held_up()}.",
    )


def _consumer(bootstrap_servers: str, isolation: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
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


def _int(value: int | None) -> int:
    assert value is not None
    return value


def _headers(found: Any) -> tuple[tuple[str, bytes | None], ...]:
    # The type stub says str or a list of pairs; at run time it is None or a list of (str, bytes or None).
    return tuple((name, value) for name, value in found or ())
