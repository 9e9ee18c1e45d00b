"""Goal: the worked examples do what they say on a real Kafka: a stream is stopped, and goes on; values of a topic are
Avro by a schema registry.

The other example, the flights, is what the demo runs (tests/process/test_demo.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sidecar.common.python_child import python_command
from sidecar.tools.bench.spark_sinks import connector_jars
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_jars import KafkaUnavailable
from sidecar.tools.testing.kafka_topics import quiet_config
from sidecar.tools.testing.reading import end_offsets
from sidecar.tools.testing.schema_registry import SchemaRegistry
from sidecar.tools.testing.spark_formats import format_jars
from sidecar.tools.testing.waiting import wait_until
from tests.tools import needs

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/pipelines/kafka_to_kafka.toml"
AVRO_EXAMPLE = ROOT / "examples/pipelines/flights_avro.toml"
AVRO_TOPIC = "flights-avro"
TOPICS = {"orders": 3, "orders-by-customer": 3, "orders-bad": 1, "large-orders": 2}
TIMEOUT_S = 400.0


@pytest.fixture(scope="module")
def jars() -> Path:
    """Of Spark's Kafka source."""
    try:
        return connector_jars(pyspark.__version__)[0]
    except KafkaUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def daemon(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    kafka.create_topics(TOPICS)
    with SidecarDaemon(kafka.bootstrap_servers) as started:
        yield started


def rows_in(kafka: KafkaCluster, topic: str) -> int:
    return sum(end_offsets(kafka.bootstrap_servers, topic).values())


def feed(kafka: KafkaCluster, start: int, end: int) -> None:
    """Orders of 10 each, of which each tenth is none."""
    from confluent_kafka import Producer

    producer = Producer(quiet_config(kafka.bootstrap_servers))
    for number in range(start, end):
        order = {"id": number, "customer": f"c{number % 7}", "amount": number * 10}
        producer.produce("orders", key=str(number), value=json.dumps(order) if number % 10 else "no order")
    producer.flush()


class Program:
    """A run of an example as a program."""

    def __init__(self, daemon: SidecarDaemon, jars: Path, file: Path, variables: Mapping[str, str]) -> None:
        settings = (
            "spark.driver.bindAddress=127.0.0.1",
            "spark.driver.host=127.0.0.1",
            "spark.ui.enabled=false",
        )
        self.process = subprocess.Popen(
            dying_with_parent(
                python_command(
                    *("client_stub.pipeline", "run", str(file), "--json", "--master", "local[2]", "--quiet"),
                    *("--run-dir", str(daemon.run_dir), "--conf", f"spark.driver.extraClassPath={jars}/*"),
                    *(word for each in settings for word in ("--conf", each)),
                )
            ),
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def report(self) -> dict[str, Any]:
        out, errors = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 0, errors[-3000:]
        found = json.loads(out)
        assert isinstance(found, dict)
        return found


class Stream(Program):
    """Of the example of a stream."""

    def __init__(
        self, kafka: KafkaCluster, daemon: SidecarDaemon, jars: Path, folder: Path, file: Path = EXAMPLE
    ) -> None:
        variables = {"IN_SERVERS": kafka.bootstrap_servers, "CHECKPOINT": str(folder / "checkpoint")}
        super().__init__(daemon, jars, file, variables)


@pytest.mark.timeout(1500)
def test_a_stream_is_stopped_and_continues(
    kafka: KafkaCluster, daemon: SidecarDaemon, jars: Path, tmp_path: Path
) -> None:
    feed(kafka, 0, 200)
    first = Stream(kafka, daemon, jars, tmp_path).report()
    assert first["rows_read"] == 200
    assert first["steps"] == [{"name": "orders", "rows": 200}, {"name": "large", "rows": 90}]
    by_customer, large = first["outputs"]
    assert (by_customer["rows"], by_customer["bad_rows"], large["rows"]) == (180, 20, 90)
    for topic, output in (("orders-by-customer", by_customer), ("large-orders", large)):
        ends = end_offsets(kafka.bootstrap_servers, topic)
        assert {int(number): place["last"] + 1 for number, place in output["partitions"].items()} == ends
    assert rows_in(kafka, "orders-bad") == 20

    endless = tmp_path / "endless.toml"
    endless.write_text(EXAMPLE.read_text().replace('"available-now"', '"1s"'))
    running = Stream(kafka, daemon, jars, tmp_path, endless)
    feed(kafka, 200, 300)
    wait_until(lambda: rows_in(kafka, "orders-by-customer") == 270, "rows of the stream", timeout_s=TIMEOUT_S)
    running.process.send_signal(signal.SIGINT)
    second = running.report()
    assert second["ok"]
    assert second["outputs"][0]["rows"] == 90

    feed(kafka, 300, 320)
    third = Stream(kafka, daemon, jars, tmp_path).report()
    assert rows_in(kafka, "orders-by-customer") <= 288 + third["outputs"][0]["duplicates"]
    assert rows_in(kafka, "large-orders") <= 90 + 108 + third["outputs"][1]["duplicates"]
    assert rows_in(kafka, "orders-by-customer") >= 288


@needs("spark-avro", "schema-registry")
@pytest.mark.timeout(900)
def test_values_are_avro_that_others_read(kafka: KafkaCluster, daemon: SidecarDaemon, tmp_path: Path) -> None:
    """By Confluent's consumer and its deserializer, with the registry alone."""
    from confluent_kafka import Consumer
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    rows = 500
    lines = [f"C{number % 7},{number},{number / 2 if number % 5 else ''}" for number in range(rows)]
    csv = tmp_path / "flights.csv"
    csv.write_text(
        "\n".join(["carrier,flight,arr_delay,time_hour", *(f"{each},2013-01-01 05:00:00" for each in lines)])
    )
    kafka.create_topics({AVRO_TOPIC: 3})
    with SchemaRegistry(tmp_path) as registry:
        variables = {"FLIGHTS_CSV": str(csv), "REGISTRY": registry.url}
        report = Program(daemon, format_jars("avro"), AVRO_EXAMPLE, variables).report()
        assert (report["ok"], report["rows_read"], report["outputs"][0]["rows"]) == (True, rows, rows)
        read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
        consumer = Consumer(
            quiet_config(kafka.bootstrap_servers) | {"group.id": "avro", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([AVRO_TOPIC])
        found = {}
        while len(found) < rows:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None and message.error() is None
            flight = read(message.value(), SerializationContext(AVRO_TOPIC, MessageField.VALUE))
            assert flight["carrier"].encode() == message.key()
            found[flight["flight"]] = flight["arr_delay"]
        consumer.close()
    assert found == {number: number / 2 if number % 5 else None for number in range(rows)}
