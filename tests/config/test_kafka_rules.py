"""Kafka's defaults and configuration rules, each as Kafka 4's producer has it (ProducerConfig, KafkaProducerTest)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.config.loader import load_config
from sidecar.config.refused_settings import REFUSED, refusal
from sidecar.config.settings import BY_NAME, ConfigError, SidecarConfig

SERVERS = "bootstrap.servers=localhost:9092"
TOO_MANY = "max.in.flight.requests.per.connection=6"

DEFAULTS = {
    "acks": -1,
    "enable.idempotence": True,
    "retries": 2_147_483_647,
    "max.in.flight.requests.per.connection": 5,
    "batch.size": 16_384,
    "linger.ms": 5,
    "max.request.size": 1_048_576,
    "max.block.ms": 60_000,
    "request.timeout.ms": 30_000,
    "delivery.timeout.ms": 120_000,
    "retry.backoff.ms": 100,
    "retry.backoff.max.ms": 1_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "metadata.max.age.ms": 300_000,
    "metadata.max.idle.ms": 300_000,
    "connections.max.idle.ms": 540_000,
    "send.buffer.bytes": 131_072,
    "receive.buffer.bytes": 32_768,
    "socket.connection.setup.timeout.ms": 10_000,
    "socket.connection.setup.timeout.max.ms": 30_000,
    "compression.type": "none",
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.zstd.level": 3,
    "partitioner.adaptive.partitioning.enable": True,
    "partitioner.availability.timeout.ms": 0,
    "partitioner.ignore.keys": False,
    "partitioner.rack.aware": False,
    "metadata.recovery.strategy": "rebootstrap",
    "metadata.recovery.rebootstrap.trigger.ms": 300_000,
    "client.dns.lookup": "use_all_dns_ips",
    "security.protocol": "PLAINTEXT",
}


def load(*overrides: str) -> SidecarConfig:
    return load_config(None, [SERVERS, *overrides], {})


def faults(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(*overrides)
    return refused.value.sentences


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_defaults_are_those_of_kafka_4(name: str, value: object) -> None:
    assert load().values[name] == value


@pytest.mark.parametrize(
    ("overrides", "acks", "idempotent"),
    [
        ((), -1, True),
        (("acks=0",), 0, False),
        (("acks=1",), 1, False),
        (("retries=0",), -1, False),
        (("enable.idempotence=true",), -1, True),
        (("enable.idempotence=true", "acks=all", "retries=1"), -1, True),
        (("enable.idempotence=false", TOO_MANY), -1, False),
        (("delivery.timeout.ms=1000", "linger.ms=999", "request.timeout.ms=1"), -1, True),
    ],
)
def test_taken(overrides: tuple[str, ...], acks: int, idempotent: bool) -> None:
    config = load(*overrides)
    assert (config.values["acks"], config.values["enable.idempotence"]) == (acks, idempotent)
    meant = idempotent or "enable.idempotence=false" in overrides
    assert ["switches idempotence off" in warning for warning in config.warnings] == [True] * (not meant)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((TOO_MANY,), ["at most 5", "on by default"]),
        (("enable.idempotence=true", "acks=0"), ["acks = 0"]),
        (("enable.idempotence=true", "acks=1"), ["acks = 1"]),
        (("enable.idempotence=true", "retries=0"), ["retries = 0"]),
        (("enable.idempotence=true", TOO_MANY), ["at most 5"]),
        (("transactional.id=x", "enable.idempotence=false"), ["transactional.id"]),
        (("transactional.id=x", "acks=1"), ["transactional.id"]),
        (("delivery.timeout.ms=1000", "linger.ms=1000", "request.timeout.ms=1"), ["at least", "1001"]),
        (("compression.type=abc",), ["none, gzip, snappy, lz4, zstd"]),
        (("security.protocol=abc",), ["one of PLAINTEXT"]),
        (("acks=abc",), ["all, -1, 0, 1"]),
        (("send.buffer.bytes=-2",), ["at least -1"]),
        (("receive.buffer.bytes=-2",), ["at least -1"]),
        (("compression.gzip.level=0",), ["1 … 9", "-1"]),
        (("compression.gzip.level=10",), ["9"]),
        (("compression.lz4.level=18",), ["1 … 17"]),
        (("compression.zstd.level=23",), ["22"]),
        (("metadata.recovery.strategy=abc",), ["none, rebootstrap"]),
        (("metadata.max.idle.ms=4999",), ["at least 5000"]),
        (("partitioner=sticky",), ["murmur2, consistent_random, fnv1a"]),
        (("partitioner.availability.timeout.ms=-1",), ["at least 0"]),
        (("partitioner.rack.aware=true",), ["client.rack"]),
        (("partitioner.ignore.keys=true", "partitioner=random"), ["murmur2"]),
    ],
)
def test_refused(overrides: tuple[str, ...], words: list[str]) -> None:
    (sentence,) = faults(*overrides)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence


def test_case_counts_only_where_it_counts_in_kafka() -> None:
    assert load("security.protocol=plaintext").text("security.protocol") == "PLAINTEXT"
    assert load("metadata.recovery.strategy=NONE").text("metadata.recovery.strategy") == "none"
    assert len(faults("compression.type=GZIP")) == 1


def test_buffers_of_minus_one_are_the_systems() -> None:
    config = load("send.buffer.bytes=-1", "receive.buffer.bytes=-1")
    assert (config.integer("send.buffer.bytes"), config.integer("receive.buffer.bytes")) == (-1, -1)


def test_all_conflicts_are_named_together() -> None:
    found = faults(
        "enable.idempotence=true", "acks=1", "retries=0", TOO_MANY, "linger.ms=x", "delivery.timeout.ms=1",
        "partitioner.rack.aware=true", "key.serializer=a.b.C", 'topics."t*".acks=2',
    )  # fmt: skip
    text = "\n".join(found)
    for word in (
        "acks = 1",
        "retries = 0",
        "at most 5",
        "linger.ms",
        "delivery.timeout.ms = 1",
        "client.rack",
        "key.serializer",
        'topics."t*".acks',
    ):
        assert word in text, word


@pytest.mark.parametrize("name", [*REFUSED, "ssl.keymanager.algorithm", "sasl.kerberos.service.name"])
def test_a_setting_without_meaning_is_refused_with_the_reason(name: str) -> None:
    assert name not in BY_NAME
    (sentence,) = faults(f"{name}=x")
    assert sentence == f"{name} (-X) is not taken: {refusal(name)}."


def test_the_daemon_does_not_start_and_says_all_of_it(tmp_path: Path) -> None:
    words = [f"-X{word}" for word in (SERVERS, "enable.idempotence=true", "acks=0", "compression.type=abc")]
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "run", "--run-dir", str(tmp_path / "run"), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "acks = 0" in done.stderr
    assert "compression.type" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "daemon.json").exists()
