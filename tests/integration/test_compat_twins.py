"""Goal: a small program does the same with confluent-kafka, or kafka-python, and with its twin over the daemon."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import confluent_kafka
import kafka as kafka_python_library
import pytest
from kafka.errors import KafkaTimeoutError as TheirTimeout
from kafka.partitioner import DefaultPartitioner, Partitioner

from client_stub import errors
from client_stub.compat import confluent, kafka_python
from client_stub.contract.wire import PARTITIONERS
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic, quiet_config
from sidecar.tools.testing.reading import read_topic

pytestmark = [pytest.mark.process, pytest.mark.kafka]

WAIT_S = 30
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def shared_daemon(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(kafka.bootstrap_servers, settings={"max.block.ms": 5_000}) as daemon:
        yield daemon


@pytest.fixture(params=["theirs", "twin"])
def of_confluent(
    request: pytest.FixtureRequest, kafka: KafkaCluster, shared_daemon: SidecarDaemon
) -> tuple[ModuleType, dict[str, Any]]:
    servers = {"bootstrap.servers": kafka.bootstrap_servers, "client.id": "twins"}
    if request.param == "theirs":
        return confluent_kafka, quiet_config(kafka.bootstrap_servers, {"client.id": "twins"})
    return confluent, {**servers, "sidecar.run_dir": str(shared_daemon.run_dir)}


@pytest.fixture(params=["theirs", "twin"])
def new_kafka_python(
    request: pytest.FixtureRequest, kafka: KafkaCluster, shared_daemon: SidecarDaemon
) -> Callable[..., Any]:
    servers = {"bootstrap_servers": kafka.bootstrap_servers, "client_id": "twins"}
    if request.param == "theirs":
        return lambda **more: kafka_python_library.KafkaProducer(**servers, **more)
    return lambda **more: kafka_python.KafkaProducer(
        **servers, sidecar_run_dir=str(shared_daemon.run_dir), **more
    )


KEYS = [
    b"",
    *(b"key-%d" % number for number in range(60)),
    *("\u00e4" * size for size in range(1, 6)),
    bytes(200),
]


def places_by_key(module: ModuleType, config: dict[str, Any], topic: str) -> dict[Any, int]:
    """Where a producer puts the keys; a null key's place is left out, as it is a matter of chance or sticky."""
    found: dict[Any, int] = {}
    producer = module.Producer(config)
    for key in KEYS:
        producer.produce(
            topic,
            b"v",
            key,
            on_delivery=lambda error, message, key=key: found.setdefault(
                key, -1 if error is not None else message.partition()
            ),
        )
    assert producer.flush(WAIT_S) == 0
    return found


@pytest.mark.parametrize("partitions", [1, 3, 8, 17])
def test_a_key_lies_where_the_original_puts_it(
    kafka: KafkaCluster, shared_daemon: SidecarDaemon, new_topic: NewTopic, partitions: int
) -> None:
    """The twin placed by murmur2 whatever it was told, so all keys of a program moved when it was switched over."""
    topic = new_topic(partitions=partitions)
    ours = {"sidecar.run_dir": str(shared_daemon.run_dir)}
    for name in (None, *PARTITIONERS):
        more = {} if name is None else {"partitioner": name}
        theirs = places_by_key(confluent_kafka, quiet_config(kafka.bootstrap_servers, more), topic)
        twins = places_by_key(confluent, {**ours, **more}, topic)
        if name == "random":
            assert {len(set(each.values())) > 1 for each in (twins, theirs)} == {partitions > 1}
            continue
        if name in (None, "consistent_random"):
            del theirs[b""], twins[b""]  # by chance
        assert twins == theirs, name
        assert -1 not in twins.values()


@pytest.mark.parametrize("partitions", [1, 3, 8, 17])
def test_a_key_lies_where_kafka_python_puts_it(
    kafka: KafkaCluster, shared_daemon: SidecarDaemon, new_topic: NewTopic, partitions: int
) -> None:
    topic = new_topic(partitions=partitions)
    keys = [key.encode() if isinstance(key, str) else key for key in KEYS]
    found = []
    for kind, settings in (
        (kafka_python_library.KafkaProducer, {"bootstrap_servers": kafka.bootstrap_servers}),
        (kafka_python.KafkaProducer, {"sidecar_run_dir": str(shared_daemon.run_dir)}),
    ):
        for partitioner in ({}, {"partitioner": DefaultPartitioner()}, {"partitioner": Last()}):
            with kind(**settings, **partitioner) as producer:
                futures = [producer.send(topic, b"v", key=key) for key in keys]
                found.append([future.get(WAIT_S).partition for future in futures])
    assert found[0] == found[1] == found[3] == found[4]
    assert found[2] == found[5] == [partitions - 1] * len(keys)


class Last(Partitioner):  # type: ignore[misc]  # without types
    def partition(
        self, topic: str, key: Any, serialized_key: Any, value: Any, serialized_value: Any, cluster: Any
    ) -> int:
        return max(cluster.partitions_for_topic(topic))


def test_a_partition_that_does_not_exist_fails_at_once(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    """It held flush() for max.block.ms, a minute by default."""
    topic = new_topic(partitions=2)
    with SidecarDaemon(kafka.bootstrap_servers) as daemon:
        told: list[Any] = []
        producer = confluent.Producer({"sidecar.run_dir": str(daemon.run_dir)})
        for partition in (2, 1, 99):
            producer.produce(topic, b"v", partition=partition, callback=lambda *both: told.append(both))
        assert producer.flush(WAIT_S) == 0
        assert sorted((error and error.name()) or "" for error, _ in told) == [
            *("", "_UNKNOWN_PARTITION", "_UNKNOWN_PARTITION")
        ]
        twin = kafka_python.KafkaProducer(sidecar_run_dir=str(daemon.run_dir))
        with pytest.raises(errors.InvalidPartition, match=r"2 is not in the range \[0\.\.\.2\)"):
            twin.send(topic, b"v", partition=2).get(WAIT_S)
        twin.close()


# --- confluent-kafka ------------------------------------------------------------------------------------


def test_produce_poll_and_flush(
    of_confluent: tuple[ModuleType, dict[str, Any]], kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    module, config = of_confluent
    topic = new_topic(partitions=2)
    here = threading.current_thread()
    told: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        assert threading.current_thread() is here
        told.append(
            (
                *(error, message.error(), message.topic(), message.partition(), message.offset()),
                *(message.key(), message.value(), message.timestamp(), len(message)),
            )
        )

    producer = module.Producer(config)
    for number in range(20):
        producer.produce(
            topic,
            value=f"välue {number}",
            key=b"k",
            partition=number % 2,
            on_delivery=on_delivery,
            timestamp=START_MS + number,
            headers={"h": "text", "n": None},
        )
        assert producer.poll(0) >= 0
    assert len(producer) + len(told) == 20 and bool(producer)
    assert producer.flush(WAIT_S) == 0
    assert len(producer) == 0 and producer.poll(0) == 0
    assert sorted(told, key=lambda each: each[7]) == [
        (
            *(None, None, topic, number % 2, number // 2),
            *(b"k", f"välue {number}".encode(), (1, START_MS + number), len(f"välue {number}".encode())),
        )
        for number in range(20)
    ]
    found = read_topic(kafka.bootstrap_servers, topic)
    assert {each.headers for each in found} == {(("h", b"text"), ("n", None))}
    assert len(found) == 20


def test_confluents_faults(of_confluent: tuple[ModuleType, dict[str, Any]], new_topic: NewTopic) -> None:
    module, config = of_confluent
    topic = new_topic(partitions=1)
    told: list[Any] = []
    producer = module.Producer(
        {**config, "on_delivery": lambda error, message: told.append((error, message))}
    )
    with pytest.raises(module.KafkaException) as raised:
        producer.produce(topic, bytes(2_000_000))
    (error,) = raised.value.args
    assert (error.code(), error.name(), error.fatal()) == (10, "MSG_SIZE_TOO_LARGE", False)
    assert error == module.KafkaError.MSG_SIZE_TOO_LARGE
    with pytest.raises(TypeError):
        producer.produce(topic, 5)
    try:
        producer.produce(topic, b"lost", partition=99)
    except module.KafkaException as known:  # the topic's partitions are known already
        (lost,) = known.args
    else:
        lost = None
    producer.produce(topic, b"kept")
    assert producer.flush(WAIT_S) == 0
    outcomes = {message.value(): (error, message) for error, message in told}
    if lost is None:
        lost, message = outcomes[b"lost"]
        assert message.error() == lost
    assert (lost.code(), lost.name()) == (-190, "_UNKNOWN_PARTITION")
    assert outcomes[b"kept"][0] is None and outcomes[b"kept"][1].offset() == 0

    def fail(error: Any, message: Any) -> None:
        raise RuntimeError("the program's own")

    producer.produce(topic, b"third", callback=fail)
    with pytest.raises(RuntimeError, match="the program's own"):
        producer.flush(WAIT_S)


def test_a_batch_in_a_with_block(
    of_confluent: tuple[ModuleType, dict[str, Any]], kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    library, config = of_confluent
    topic = new_topic(2)
    told: list[tuple[str, Any, bytes, int]] = []

    def tell(who: str) -> Any:
        return lambda error, message: told.append((who, error, message.value(), message.partition()))

    with library.Producer(config) as producer:
        messages = [
            {"value": "one", "key": "k"},
            {"value": b"two", "callback": tell("own")},
        ]
        assert producer.produce_batch(topic, messages, partition=1, on_delivery=tell("all")) == 2
        assert producer.produce_batch(topic, []) == 0
    assert sorted(told) == [("all", None, b"one", 1), ("own", None, b"two", 1)]
    assert producer.close() is True
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce(topic, b"late")
    assert sorted(record.value for record in read_topic(kafka.bootstrap_servers, topic)) == [b"one", b"two"]


def test_poll_waits_for_the_first_outcome(
    of_confluent: tuple[ModuleType, dict[str, Any]], new_topic: NewTopic
) -> None:
    module, config = of_confluent
    topic = new_topic(partitions=1)
    told: list[Any] = []
    producer = module.Producer(config)
    producer.produce(topic, "v", on_delivery=lambda error, message: told.append(message.offset()))
    assert producer.poll(WAIT_S) == 1
    assert told == [0]


# --- kafka-python ---------------------------------------------------------------------------------------


def test_send_get_and_callbacks(
    new_kafka_python: Callable[..., Any], kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=2)
    told: list[Any] = []
    both = threading.Event()
    with new_kafka_python(
        key_serializer=str.encode, value_serializer=lambda value: json.dumps(value).encode()
    ) as producer:
        assert producer.partitions_for(topic) == {0, 1}
        futures = [
            producer.send(
                topic,
                {"n": number},
                key="key",
                headers=[("h", b"v")],
                partition=number % 2,
                timestamp_ms=START_MS + number,
            )
            for number in range(10)
        ]
        found = [future.get(timeout=WAIT_S) for future in futures]
        assert [(each.topic, each.partition, each.offset, each.timestamp) for each in found] == [
            (topic, number % 2, number // 2, START_MS + number) for number in range(10)
        ]
        assert tuple(found[1].topic_partition) == (topic, 1)
        assert (found[0].serialized_key_size, found[0].serialized_value_size, found[0].checksum) == (
            3,
            8,
            None,
        )
        assert all(future.is_done and future.succeeded() and not future.failed() for future in futures)
        assert futures[0].value == found[0] and futures[0].exception is None
        late = producer.send(topic, 1, key="key")
        late.add_callback(lambda first, metadata, last: told.append((first, metadata.topic, last)), 1, last=2)
        late.add_errback(told.append).add_both(lambda _: both.set())
        producer.flush(WAIT_S)
        assert both.wait(WAIT_S)
        assert told == [(1, topic, 2)]
        assert "producer-metrics" in producer.metrics()
    values = sorted(each.value for each in read_topic(kafka.bootstrap_servers, topic) if each.value)
    assert values == sorted([b"1", *(b'{"n": %d}' % number for number in range(10))])


def test_kafka_pythons_faults(new_kafka_python: Callable[..., Any], new_topic: NewTopic) -> None:
    topic = new_topic(partitions=1)
    producer = new_kafka_python(max_block_ms=2_000)
    try:
        with pytest.raises(ValueError, match="Need at least one: key or value"):
            producer.send(topic)
        with pytest.raises(TypeError):
            producer.send(topic, "text")
        producer.send(topic, b"v").get(WAIT_S)
        with pytest.raises((TheirTimeout, kafka_python.KafkaTimeoutError)):
            producer.partitions_for("no-such-topic")
    finally:
        producer.close(WAIT_S)
