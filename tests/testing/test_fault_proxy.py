"""Goal: the proxy is invisible until a rule says otherwise, and then it does to a real Kafka what the rule says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.kafka_topics import NewTopic, quiet_config
from sidecar.tools.testing.reading import read_topic

pytestmark = [pytest.mark.process, pytest.mark.kafka]


@pytest.fixture
def proxy(kafka: KafkaCluster) -> Iterator[FaultProxy]:
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        yield proxy


def produce(proxy: FaultProxy, topic: str, count: int = 1) -> list[str]:
    from confluent_kafka import Producer

    producer = Producer(quiet_config(proxy.bootstrap_servers, {"enable.idempotence": True, "linger.ms": 0}))
    told: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        told.append("" if error is None else error.name())

    for number in range(count):
        producer.produce(topic, b"%d" % number, None, 0, on_delivery=delivered)
    assert producer.flush(20) == 0
    return told


def values(kafka: KafkaCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(kafka.bootstrap_servers, topic)]


def test_producers_and_consumers_come_through_it(proxy: FaultProxy, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=1)
    assert produce(proxy, topic, 5) == [""] * 5
    # Read through it as well: the coordinator's address and the leaders' are the proxy's own.
    assert len(read_topic(proxy.bootstrap_servers, topic)) == 5
    nodes = {request.node for request in proxy.requests(Api.PRODUCE)}
    assert nodes == {1}, "records went to the broker's listener, not to the bootstrap one"
    (produced, *_) = proxy.requests(Api.PRODUCE, topic)
    assert produced.batches[0].header.base_sequence == 0
    assert produced.codes == {(topic, 0): 0}


def test_an_answer_that_is_lost(kafka: KafkaCluster, proxy: FaultProxy, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=1)
    rule = proxy.add(on(Api.PRODUCE, topic=topic).cut_answer())
    assert produce(proxy, topic) == [""]
    assert rule.hits == 1
    first, second = proxy.requests(Api.PRODUCE, topic)
    assert (first.fate, second.fate) == ("answer cut", "answered")
    assert first.batches[0].records[17:] == second.batches[0].records[17:]
    assert values(kafka, topic) == [b"0"]


def test_a_request_that_never_arrives(kafka: KafkaCluster, proxy: FaultProxy, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=1)
    proxy.add(on(Api.PRODUCE, topic=topic, times=2).cut())
    proxy.add(on(Api.PRODUCE, topic=topic).refuse(6))
    proxy.add(on(Api.INIT_PRODUCER_ID).refuse(14))
    assert produce(proxy, topic) == [""]
    fates = [request.fate for request in proxy.requests(Api.PRODUCE, topic)]
    assert fates == ["cut", "cut", "answered", "answered"]
    assert values(kafka, topic) == [b"0"]


def test_another_code_than_the_brokers(kafka: KafkaCluster, proxy: FaultProxy, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=1)
    proxy.add(on(Api.PRODUCE, topic=topic).answer_with(20))
    assert produce(proxy, topic) == [""]
    codes = [request.codes[topic, 0] for request in proxy.requests(Api.PRODUCE, topic)]
    assert codes == [20, 0]
    assert values(kafka, topic) == [b"0"], "it was appended at the first attempt and recognised at the second"


def test_metadata_can_lie(proxy: FaultProxy, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=1)
    rule = proxy.add(on(Api.METADATA, times=2).answer_with(5))
    assert produce(proxy, topic) == [""]
    assert rule.hits == 2
