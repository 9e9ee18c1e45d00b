"""RF-02: the same keys by the daemon, by Kafka's own Java producer and by librdkafka, into one topic."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from client_stub import Producer, errors
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_jars import java_command, resolve_jars
from sidecar.tools.testing.kafka_topics import NewTopic, quiet_config
from sidecar.tools.testing.reading import read_topic

from .harness import FAST

pytestmark = [pytest.mark.process, pytest.mark.kafka]

PARTITIONS = 12
TIMEOUT_S = 120.0
KEYS = [
    *(b"%d" % number * (1 + number % 7) for number in range(9_701)),
    *(bytes(range(number, number + 9)) for number in range(240)),
    *(bytes([0x80 | number]) * (1 + number * 31) for number in range(59)),
]
"""10,000 of all lengths, not only text. (The empty key is RF-03's.)"""


def by_java(bootstrap_servers: str, topic: str) -> None:
    command = [java_command(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{resolve_jars()}/*"]
    command += [str(Path(__file__).with_name("KeyedSender.java")), bootstrap_servers, topic]
    done = subprocess.run(
        command,
        input="".join(f"{key.hex()}\n" for key in KEYS),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def by_librdkafka(bootstrap_servers: str, topic: str) -> None:
    from confluent_kafka import Producer as Librdkafka

    settings = {"partitioner": "murmur2_random", "linger.ms": 20}
    producer = Librdkafka(quiet_config(bootstrap_servers, settings))
    for key in KEYS:
        producer.produce(topic, value=b"librdkafka", key=key)
    assert producer.flush(TIMEOUT_S) == 0


def test_rf_02_a_key_has_one_partition(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic
) -> None:
    """RF-02: one partition per key over all three; a partition out of range is an error and no hang."""
    topic = new_topic(partitions=PARTITIONS)
    daemon = start_daemon(kafka.bootstrap_servers, settings={**FAST, "max.block.ms": 1_000})
    with Producer(run_dir=str(daemon.run_dir), client_name="keys") as producer:
        outside = producer.send(topic, b"nowhere", partition=PARTITIONS)
        sent = producer.send_many(topic, [(key, b"sidecar") for key in KEYS])
        by_java(kafka.bootstrap_servers, topic)
        by_librdkafka(kafka.bootstrap_servers, topic)
        assert sent.result(TIMEOUT_S) == len(KEYS)
        assert isinstance(outside.exception(TIMEOUT_S), errors.InvalidPartition)
    records = read_topic(kafka.bootstrap_servers, topic)
    counts = Counter(record.value for record in records)
    assert counts == dict.fromkeys((b"sidecar", b"java", b"librdkafka"), len(KEYS))
    places: dict[bytes | None, set[int]] = {}
    for record in records:
        places.setdefault(record.key, set()).add(record.partition)
    assert {key: found for key, found in places.items() if len(found) != 1} == {}
    assert set.union(*places.values()) == set(range(PARTITIONS))
