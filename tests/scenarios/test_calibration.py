"""The same faults, with Apache Kafka's own Java producer behind the proxy: what it does is what we are held to.

Kafka's VerifiableProducer (kafka-tools) sends numbers as records and prints one line for each outcome. Batches
are of one record each (batch.size=16). Refusals leave the first request alone: when a broker that does not know the
producer yet refuses it with others in flight, Java's later batches are appended before it and the refused ones
fail with OUT_OF_ORDER_SEQUENCE at their deadline; the sidecar sends the first batch of a partition alone.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sidecar.testing.daemon import SidecarDaemon
from sidecar.testing.fault_proxy import FaultProxy
from sidecar.testing.fault_rules import ALWAYS, Rule, on
from sidecar.testing.kafka_cluster import KafkaCluster
from sidecar.testing.kafka_frames import Api
from sidecar.testing.kafka_jars import java_command, resolve_jars
from sidecar.testing.kafka_topics import NewTopic
from sidecar.testing.reading import read_topic

from .scene import FAST, Sender

pytestmark = [pytest.mark.process, pytest.mark.kafka]

RECORDS = 20
CORRUPT_MESSAGE, NOT_LEADER, REQUEST_TIMED_OUT, DUPLICATE_SEQUENCE = 2, 6, 7, 46
SETTINGS = {"retry.backoff.ms": 20, "retry.backoff.max.ms": 100, "delivery.timeout.ms": 3_000}
SETTINGS |= {"request.timeout.ms": 2_000, "linger.ms": 0, "retries": 2_147_483_647, "batch.size": 16}


class Seen(NamedTuple):
    """What one client did under one fault."""

    delivered: int
    failed: int
    requests: int
    codes: list[int]
    read: list[bytes | None]


def java(proxy: FaultProxy, topic: str, folder: Path) -> tuple[int, int]:
    """Send the numbers by Kafka's own producer; (delivered, failed)."""
    properties = folder / "producer.properties"
    properties.write_text("\n".join(f"{name}={value}" for name, value in SETTINGS.items()))
    command = [java_command(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{resolve_jars()}/*"]
    command += ["org.apache.kafka.tools.VerifiableProducer", "--topic", topic, "--acks", "-1"]
    command += ["--bootstrap-server", proxy.bootstrap_servers, "--producer.config", str(properties)]
    run = subprocess.run(
        [*command, "--max-messages", str(RECORDS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    names = [line["name"] for line in lines]
    assert "shutdown_complete" in names, run.stdout + run.stderr
    return names.count("producer_send_success"), names.count("producer_send_error")


def ours(daemon: SidecarDaemon, topic: str) -> tuple[int, int]:
    with Sender(daemon, topic) as sender:
        sender.send()
        sender.deliveries[0].exception(10)  # a request of its own, as the others' slow start makes it there
        for _ in range(RECORDS - 1):
            sender.send()
        told = sender.outcomes()
    return sum(each.error is None for each in told), sum(each.error is not None for each in told)


@pytest.fixture(scope="module")
def proxy(kafka: KafkaCluster) -> Iterator[FaultProxy]:
    with FaultProxy(kafka.bootstrap_servers) as made:
        yield made


@pytest.fixture(scope="module")
def daemon(proxy: FaultProxy) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(proxy.bootstrap_servers, settings={**FAST, **SETTINGS}) as made:
        yield made


ROWS: dict[str, tuple[Callable[[str], Rule], Any]] = {
    "ID-03 lost answers": (
        lambda topic: on(Api.PRODUCE, topic=topic, times=2).cut_answer(),
        lambda seen: seen.delivered == RECORDS and len(seen.read) == RECORDS,
    ),
    "SN-04 NOT_LEADER": (
        lambda topic: on(Api.PRODUCE, topic=topic, skip=1).refuse(NOT_LEADER),
        lambda seen: seen.delivered == RECORDS and len(seen.read) == RECORDS,
    ),
    "ID-05 REQUEST_TIMED_OUT after the append": (
        lambda topic: on(Api.PRODUCE, topic=topic, times=2).answer_with(REQUEST_TIMED_OUT),
        lambda seen: seen.delivered == RECORDS and len(seen.read) == RECORDS,
    ),
    "ID-05 DUPLICATE_SEQUENCE": (
        lambda topic: on(Api.PRODUCE, topic=topic).answer_with(DUPLICATE_SEQUENCE),
        lambda seen: seen.delivered == RECORDS and len(seen.read) == RECORDS,
    ),
    "SN-11 CORRUPT_MESSAGE": (
        lambda topic: on(Api.PRODUCE, topic=topic, skip=1).refuse(CORRUPT_MESSAGE),
        lambda seen: seen.delivered == RECORDS and seen.codes.count(CORRUPT_MESSAGE) == 1,
    ),
    "SN-06 no answer at all": (
        lambda topic: on(Api.PRODUCE, topic=topic, times=ALWAYS).drop_answer(),
        lambda seen: seen.failed == RECORDS,
    ),
    "SN-06 refused to the end": (
        lambda topic: on(Api.PRODUCE, topic=topic, times=ALWAYS).refuse(NOT_LEADER),
        lambda seen: seen.failed == RECORDS and not seen.read,
    ),
}


@pytest.mark.parametrize("client", ["java", "sidecar"])
@pytest.mark.parametrize("row", ROWS)
def test_row(
    kafka: KafkaCluster,
    proxy: FaultProxy,
    daemon: SidecarDaemon,
    new_topic: NewTopic,
    tmp_path: Path,
    row: str,
    client: str,
) -> None:
    make_rule, holds = ROWS[row]
    topic = new_topic(partitions=1)
    rule = proxy.add(make_rule(topic))
    try:
        delivered, failed = java(proxy, topic, tmp_path) if client == "java" else ours(daemon, topic)
    finally:
        proxy.clear_rules()
    requests = proxy.requests(Api.PRODUCE, topic)
    codes = [code for request in requests for code in request.codes.values()]
    read = [record.value for record in read_topic(kafka.bootstrap_servers, topic)]
    seen = Seen(delivered, failed, len(requests), codes, read)
    assert rule.hits
    assert delivered + failed == RECORDS
    assert holds(seen), seen
