"""TX on a real Kafka whose ``transaction.version`` is raised under living producers.

The cluster begins with transaction.version 1. A proxy logs which version of each request the broker got.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from client_stub import Producer
from client_stub.errors import TransactionStateError
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_frames import Api

from .real_bed import CALL_S, RealBed, new_id

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.unmeasured]

UNKNOWN_TOPIC: Final = 3
PRODUCE_BELOW_2: Final = 11
END_BELOW_2: Final = 4


class OldKafka(RealBed):
    """A cluster whose transaction.version can be raised, behind a proxy."""

    def __init__(self, kafka: KafkaCluster, proxy: FaultProxy, daemon: SidecarDaemon) -> None:
        super().__init__(kafka, daemon)
        self.proxy = proxy

    def raise_version(self) -> None:
        """To 2. Returns once the broker tells it to new connections."""
        words = ["upgrade", "--feature", "transaction.version=2"]
        self.kafka.run_tool("org.apache.kafka.tools.FeatureCommand", *words)


@pytest.fixture
def old(start_daemon: StartDaemon) -> Iterator[OldKafka]:
    cluster = KafkaCluster(heap_mb=256, light=True)
    cluster.features["transaction.version"] = 1
    with cluster, FaultProxy(cluster.bootstrap_servers) as proxy:
        settings = {
            "daemon.workers": 1,
            "request.timeout.ms": 3_000,
            "metadata.max.age.ms": 1_000,
            "linger.ms": 5,
        }
        yield OldKafka(cluster, proxy, start_daemon(proxy.bootstrap_servers, settings=settings))


def transact(producer: Producer, topic: str, value: bytes, *, commit: bool = True) -> None:
    """One transaction with the value in each of three partitions."""
    producer.begin_transaction()
    for partition in range(3):
        producer.send(topic, value, partition=partition)
    (producer.commit_transaction if commit else producer.abort_transaction)(CALL_S)


def test_tx_17_version_that_is_raised_counts_from_the_next_transaction_on(old: OldKafka) -> None:
    topic = old.topic(3)
    with old.producer() as producer, old.producer() as other:
        for each in (producer, other):
            each.init_transactions(CALL_S)
            transact(each, topic, b"first")
            each.begin_transaction()
            each.send(topic, b"second", partition=0).result(CALL_S)
        old.raise_version()
        old.proxy.disconnect()  # a broker tells its features to new connections only
        for each in (producer, other):
            each.send(topic, b"second", partition=1).result(CALL_S)
        producer.commit_transaction(CALL_S)
        other.abort_transaction(CALL_S)
        added = len(old.proxy.requests(Api.ADD_PARTITIONS_TO_TXN))
        assert max(each.version for each in old.proxy.requests(Api.PRODUCE)) <= PRODUCE_BELOW_2
        assert {each.version for each in old.proxy.requests(Api.END_TXN)} == {END_BELOW_2}
        assert added, "partitions are added by the client below 2"
        produced, ended = len(old.proxy.requests(Api.PRODUCE)), len(old.proxy.requests(Api.END_TXN))
        for each in (producer, other):
            transact(each, topic, b"third")
            transact(each, topic, b"aborted", commit=False)
            transact(each, topic, b"fourth")
        assert min(each.version for each in old.proxy.requests(Api.PRODUCE)[produced:]) > PRODUCE_BELOW_2
        assert min(each.version for each in old.proxy.requests(Api.END_TXN)[ended:]) > END_BELOW_2
        assert len(old.proxy.requests(Api.ADD_PARTITIONS_TO_TXN)) == added
    found = old.settled(topic, 3)
    rest = [b"third", b"third", b"fourth", b"fourth"]
    assert found.count(b"first") == 6
    assert found.count(b"second") == 2, "of the producer that committed, in two partitions"
    assert sorted(found[-4:]) == sorted(rest)
    assert found.count(b"third") == found.count(b"fourth") == 6
    assert b"aborted" not in found


def test_tx_17_broker_that_offers_less_gets_less(old: OldKafka, start_daemon: StartDaemon) -> None:
    """Its feature says 2, but it lacks the requests of version 2: partitions are added before their records."""

    def capped(answer: Any) -> Any:
        most = {Api.PRODUCE: PRODUCE_BELOW_2, Api.END_TXN: END_BELOW_2, Api.TXN_OFFSET_COMMIT: END_BELOW_2}
        keys = tuple(
            dataclasses.replace(each, max_version=min(each.max_version, most.get(each.api_key, 99)))
            for each in answer.api_keys
        )
        return dataclasses.replace(answer, api_keys=keys)

    old.raise_version()
    old.proxy.add(on(Api.API_VERSIONS, times=ALWAYS).edit_answer(capped))
    topic = old.topic(3)
    daemon = start_daemon(old.proxy.bootstrap_servers, settings={"daemon.workers": 1})
    with old.producer(daemon=daemon) as producer:
        producer.init_transactions(CALL_S)
        transact(producer, topic, b"first")
        transact(producer, topic, b"aborted", commit=False)
        transact(producer, topic, b"second")
    assert old.proxy.requests(Api.ADD_PARTITIONS_TO_TXN)
    assert max(each.version for each in old.proxy.requests(Api.PRODUCE)) <= PRODUCE_BELOW_2
    assert old.settled(topic, 3) == [b"first", b"second"] * 3


def test_tx_17_second_call_at_once_is_refused_and_the_first_completes(old: OldKafka) -> None:
    topic = old.topic(3)
    with old.producer() as producer, ThreadPoolExecutor(1) as threads:
        producer.init_transactions(CALL_S)
        producer.begin_transaction()
        producer.send(topic, b"kept", partition=0)
        held = old.proxy.add(on(Api.END_TXN).hold())
        commit = threads.submit(producer.commit_transaction, CALL_S)
        held.wait()
        for call in (
            producer.commit_transaction,
            producer.abort_transaction,
            producer.begin_transaction,
            producer.init_transactions,
            lambda: producer.send_offsets_to_transaction({(topic, 0): 1}, "group"),
        ):
            with pytest.raises(TransactionStateError, match="runs in another thread"):
                call()
        held.release()
        commit.result(CALL_S)
        transact(producer, topic, b"next")
    assert old.settled(topic, 3) == [b"kept", b"next", b"next", b"next"]


def test_tx_16_restarted_producer_has_the_id_with_the_next_epoch(old: OldKafka) -> None:
    topic, name = old.topic(3), new_id()
    identities = []
    for number in range(3):
        with old.producer(name) as producer:
            producer.init_transactions(CALL_S)
            transact(producer, topic, b"%d" % number)
            ended = old.proxy.requests(Api.END_TXN)[-1].message
            identities.append((int(ended.producer_id), int(ended.producer_epoch)))
    first = identities[0]
    assert identities == [(first[0], first[1] + number) for number in range(3)]
    assert old.settled(topic, 3) == [b"0", b"1", b"2"] * 3


def test_tx_16_topic_that_is_not_in_metadata_for_a_while(old: OldKafka) -> None:
    """Between two transactions. Its sequences continue, so that no record is taken for one that was there before."""
    topic = old.topic(3)
    with old.producer() as producer:
        producer.init_transactions(CALL_S)
        transact(producer, topic, b"first")
        transact(producer, topic, b"second")
        gone = old.proxy.add(on(Api.METADATA, times=ALWAYS).answer_with(UNKNOWN_TOPIC))
        producer.begin_transaction()
        sent = [producer.send(topic, b"third", partition=partition) for partition in range(3)]
        gone.wait(hits=gone.hits + 2)
        gone.remove()
        producer.commit_transaction(CALL_S)
        assert all(each.exception(0) is None for each in sent)
        transact(producer, topic, b"fourth")
    assert old.settled(topic, 3) == [b"first", b"second", b"third", b"fourth"] * 3
