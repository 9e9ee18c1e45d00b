"""Goal: the oldest and the newest Kafka we speak for: same records, same order, the best protocol each offers.

The broker's own request log says what was asked in which version; two foreign consumers read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from kafka import KafkaConsumer, TopicPartition

from client_stub import Producer
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_request_log import logged_requests
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.reading import ReadRecord, read_topic
from sidecar.tools.testing.waiting import wait_until

from .flow import PATIENCE_S, Flow, check

pytestmark = [pytest.mark.process, pytest.mark.kafka]

RECORDS = 1_000


class Expected(NamedTuple):
    """The version of each API that both sides speak best."""

    produce: int
    metadata: int
    init_producer_id: int


NEGOTIATED = {"3.9": Expected(11, 12, 5), "4.1": Expected(13, 13, 5), "4.4": Expected(13, 13, 5)}


class Versioned(NamedTuple):
    release: str
    cluster: KafkaCluster


@pytest.fixture(scope="module", params=sorted(NEGOTIATED))
def versioned(request: pytest.FixtureRequest) -> Iterator[Versioned]:
    release = str(request.param)
    with KafkaCluster(version=release, heap_mb=256, light=True, log_requests=True) as cluster:
        yield Versioned(release, cluster)


def read_by_kafka_python(bootstrap_servers: str, topic: str, partitions: int) -> list[ReadRecord]:
    """A second opinion that shares no code with librdkafka, CRCs checked."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers.split(","), enable_auto_commit=False, check_crcs=True
    )
    try:
        assigned = [TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(assigned)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(assigned)
        found: list[ReadRecord] = []
        while any(consumer.position(each) < ends[each] for each in assigned):
            for records in consumer.poll(timeout_ms=500).values():
                found += [
                    ReadRecord(
                        each.partition, each.offset, each.key, each.value, tuple(each.headers), each.timestamp
                    )
                    for each in records
                ]
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_back_by_two_consumers(
    versioned: Versioned, start_daemon: StartDaemon, codec: str
) -> None:
    cluster = versioned.cluster
    topic = f"codec-{codec}"
    cluster.create_topics({topic: 2})
    daemon = start_daemon(
        cluster.bootstrap_servers,
        settings={"compression.type": codec, "daemon.workers": 1, "linger.ms": 20, "client.id": codec},
    )
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        deliveries = [
            producer.send(
                topic,
                value=b"%06d " % number * 10,
                key=b"key-%d" % (number % 50),
                headers=[("number", b"%d" % number), ("nothing", None)],
                timestamp_ms=1_700_000_000_000 + number,
            )
            for number in range(RECORDS)
        ]
        told = [each.result(timeout=PATIENCE_S) for each in deliveries]
    expected = sorted(
        ReadRecord(
            metadata.partition,
            metadata.offset,
            b"key-%d" % (number % 50),
            b"%06d " % number * 10,
            (("number", b"%d" % number), ("nothing", None)),
            1_700_000_000_000 + number,
        )
        for number, metadata in enumerate(told)
    )
    assert sorted(read_topic(cluster.bootstrap_servers, topic)) == expected
    assert sorted(read_by_kafka_python(cluster.bootstrap_servers, topic, 2)) == expected


def test_the_best_version_of_each_api_is_used(versioned: Versioned, start_daemon: StartDaemon) -> None:
    cluster = versioned.cluster
    cluster.create_topics({"negotiated": 1})
    daemon = start_daemon(cluster.bootstrap_servers, settings={"client.id": "negotiator"})
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        producer.send("negotiated", value=b"x").result(timeout=PATIENCE_S)
    # The broker writes its log of a request after it has sent the answer.
    wait_until(lambda: logged_requests(cluster.nodes, "negotiator", "PRODUCE"), "the request to be logged")
    asked = logged_requests(cluster.nodes, "negotiator")
    expected = NEGOTIATED[versioned.release]
    used = {(each.api, each.version) for each in asked}
    assert used == {
        ("API_VERSIONS", 3),
        ("METADATA", expected.metadata),
        ("INIT_PRODUCER_ID", expected.init_producer_id),
        ("PRODUCE", expected.produce),
    }
    (produce,) = (each for each in asked if each.api == "PRODUCE")
    (of_topic,) = produce.request["topicData"]
    assert ("topicId" in of_topic) == (expected.produce >= 13)
    versions = next(each for each in asked if each.api == "API_VERSIONS")
    assert versions.request["clientSoftwareName"] == "kafka-sidecar"


def test_idempotent_over_a_restart_on_the_same_port(
    versioned: Versioned, start_daemon: StartDaemon, ledger: Ledger
) -> None:
    cluster = versioned.cluster
    topic = "restarted"
    cluster.create_topics({topic: 3})
    daemon = start_daemon(cluster.bootstrap_servers)
    with Flow(daemon.run_dir, topic) as flow:
        flow.wait_more()
        cluster.kill_node(0)
        cluster.restart_node(0)
        flow.wait_more(what="after the broker is back on its port")
    check(ledger, cluster.bootstrap_servers, topic, flow)
