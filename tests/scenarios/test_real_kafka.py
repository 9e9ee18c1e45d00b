"""The faults that matter most, once more between the daemon and a real Kafka: ID-02, ID-03, ID-05, ID-13, SN-05,
SN-10, ER-01, BF-04 through the fault proxy, read back by a consumer that is not ours."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from client_stub import errors
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.reading import read_topic

from .harness import (
    FAST,
    Sender,
    accounts_balance,
    enter_records,
    pool_is_whole,
    sequences,
    wait_for_requests,
)

pytestmark = [pytest.mark.process, pytest.mark.kafka]

LEADER_NOT_AVAILABLE, NOT_LEADER, REQUEST_TIMED_OUT = 5, 6, 7


class RealHarness:
    """The daemon, the proxy, and the Kafka behind it."""

    def __init__(self, kafka: KafkaCluster, proxy: FaultProxy, daemon: SidecarDaemon) -> None:
        self.kafka = kafka
        self.proxy = proxy
        self.daemon = daemon

    def new_sender(self, topic: str) -> Sender:
        return Sender(self.daemon, topic)

    def sender(self, topic: str, partitions: int = 1) -> Sender:
        """A sender whose partitions know the producer already."""
        sender = self.new_sender(topic)
        for partition in range(partitions):
            sender.send(partition)
        sender.outcomes()
        return sender

    def send_apart(self, sender: Sender, records: int) -> None:
        seen = len(self.proxy.requests(Api.PRODUCE, sender.topic))
        for number in range(1, records + 1):
            sender.send()
            wait_for_requests(self.proxy, sender.topic, seen + number)

    def balance(self, *senders: Sender, idempotent: bool = True) -> None:
        ledger = Ledger()
        for sender in senders:
            sender.enter(ledger)
        for topic in {sender.topic for sender in senders}:
            found = read_topic(self.kafka.bootstrap_servers, topic)
            enter_records(ledger, topic, ((each.value or b"", each.partition) for each in found))
        ledger.check(idempotent=idempotent)
        self.check_books()

    def check_books(self) -> None:
        accounts_balance(self.daemon)


@pytest.fixture(scope="module")
def shared(kafka: KafkaCluster) -> Iterator[RealHarness]:
    with (
        FaultProxy(kafka.bootstrap_servers) as proxy,
        SidecarDaemon(proxy.bootstrap_servers, settings=FAST) as daemon,
    ):
        made = RealHarness(kafka, proxy, daemon)
        yield made
        proxy.clear_rules()
        kafka.create_topics({"scenario-probe": 1})
        with Sender(daemon, "scenario-probe") as probe:
            pool_is_whole(daemon, probe)


@pytest.fixture
def harness(shared: RealHarness) -> Iterator[RealHarness]:
    yield shared
    shared.proxy.clear_rules()


def test_id_02_one_identity_no_holes(harness: RealHarness, new_topic: NewTopic) -> None:
    """ID-02: on the wire: one producer id, sequences from 0 that grow by the number of records."""
    topic = new_topic(partitions=3)
    with harness.sender(topic, 3) as sender:
        for number in range(3_000):
            sender.send(number % 3)
        sender.offsets()
        harness.balance(sender)
    sent = harness.proxy.requests(Api.PRODUCE, topic)
    assert len({batch.header.producer_id for request in sent for batch in request.batches}) == 1
    for partition in range(3):
        # The leader of a topic this young may not know it yet: what it refused came again.
        batches = [
            b.header
            for r in sent
            for b in r.batches
            if b.partition == partition and r.codes[topic, partition] == 0
        ]
        assert [b.base_sequence for b in batches] == [
            sum(b.record_count for b in batches[:index]) for index in range(len(batches))
        ]


@pytest.mark.parametrize("lost", [1, 3, 5])
def test_id_03_lost_answers(harness: RealHarness, new_topic: NewTopic, lost: int) -> None:
    """ID-03: appended, the answers lost, then lost again: one copy, the original offset, in order."""
    topic = new_topic(partitions=1)
    with harness.sender(topic) as sender:
        held = harness.proxy.add(on(Api.PRODUCE, topic=topic).hold_answer().cut_answer())
        harness.send_apart(sender, lost)
        harness.proxy.add(on(Api.PRODUCE, topic=topic).cut_answer())
        held.release()
        assert sender.offsets() == list(range(lost + 1))
        harness.balance(sender)


def test_id_04_refused_first_in_flight(harness: RealHarness, new_topic: NewTopic) -> None:
    """ID-04, SN-04: the first of five never arrives, a real broker refuses those behind it: again in order, no bump."""
    topic = new_topic(partitions=1)
    with harness.sender(topic) as sender:
        first = harness.proxy.add(on(Api.PRODUCE, topic=topic).refuse(NOT_LEADER).hold_answer())
        harness.send_apart(sender, 5)
        sender.send()
        first.release()
        assert sender.offsets() == list(range(7))
        harness.balance(sender)
    sent = harness.proxy.requests(Api.PRODUCE, topic)
    assert [request.codes[topic, 0] for request in sent] == [0, NOT_LEADER, 45, 45, 45, 45, *[0] * 6]
    epoch = sequences(sent)[0][0]
    assert sequences(sent) == [(epoch, n) for n in (0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6)]


def test_id_05_unknown_fates(harness: RealHarness, new_topic: NewTopic) -> None:
    """ID-05, ID-13: REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND for batches that are there."""
    topic = new_topic(partitions=1)
    with harness.sender(topic) as sender:
        first = harness.proxy.add(
            on(Api.PRODUCE, topic=topic).answer_with(REQUEST_TIMED_OUT, 20, 20).hold_answer()
        )
        harness.send_apart(sender, 2)
        first.release()
        assert sender.offsets() == [0, 1, 2]
        harness.balance(sender)


def test_sn_05_compacted_topic(harness: RealHarness, new_topic: NewTopic) -> None:
    """SN-05: a compacted topic, every tenth record keyless: those fail with the broker's reason, the rest is there."""
    topic = new_topic(partitions=1, cleanup_policy="compact")
    held = harness.proxy.add(on(Api.METADATA, times=ALWAYS).hold_answer())
    with harness.new_sender(topic) as sender:
        for number in range(100):
            sender.send(key=None if number % 10 == 0 else b"k-%d" % number)
        held.remove()
        told = sender.outcomes()
        assert [type(outcome.error) for outcome in told[::10]] == [errors.InvalidRecord] * 10
        assert sum(outcome.error is None for outcome in told) == 90
        harness.balance(sender)


def test_bf_04_the_broker_bounces(harness: RealHarness, new_topic: NewTopic) -> None:
    """BF-04: its port refuses for a while, with records under way: they arrive by the new connection."""
    topic = new_topic(partitions=1)
    with harness.sender(topic) as sender:
        for _ in range(3):
            held = harness.proxy.add(on(Api.PRODUCE, topic=topic).hold_answer())
            sender.send()
            held.wait()
            harness.proxy.stop_listening(1)
            held.release()
            for _ in range(5):
                sender.send()
            harness.proxy.listen_again(1)
            sender.outcomes()
        assert sender.offsets() == list(range(19))
        harness.balance(sender)


def test_er_01_everything_at_once(harness: RealHarness, new_topic: NewTopic) -> None:
    """ER-01: thousands of records under random cuts, lost answers, refusals and delays: each told once and delivered
    once, in order."""
    topic = new_topic(partitions=4)
    chance = random.Random(7)

    def sometimes(share: float) -> Any:
        return lambda request: chance.random() < share

    senders = [harness.sender(topic, 4) for _ in range(2)]
    proxy = harness.proxy
    for rule in (
        on(Api.PRODUCE, topic=topic).cut_answer(),  # one of each for certain, however few requests it takes
        on(Api.PRODUCE, topic=topic).cut(),
        on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.05)).cut_answer(),
        on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.05)).cut(),
        on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.05)).refuse(LEADER_NOT_AVAILABLE),
        on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.05)).answer_with(REQUEST_TIMED_OUT),
        on(Api.PRODUCE, topic=topic, times=ALWAYS, where=sometimes(0.05)).delay_answer(30),
    ):
        proxy.add(rule)
    for burst in range(20):
        for number in range(1_000):
            senders[burst % 2].send(number % 4)
        senders[burst % 2].deliveries[-1].exception(30)
    harness.balance(*senders)
    for sender in senders:
        assert all(outcome.error is None for outcome in sender.outcomes())
        sender.producer.close(10)
    fates = {request.fate for request in proxy.requests(Api.PRODUCE, topic)}
    assert {"cut", "answer cut", "answered"} <= fates


def test_sn_10_acks_0_oversize(
    kafka: KafkaCluster, shared: RealHarness, start_daemon: StartDaemon, new_topic: NewTopic
) -> None:
    """SN-10: acks=0: no offset, no wait; a record above the topic's limit raises nothing, and records after it and
    an idle connection are none the worse."""
    daemon = start_daemon(shared.proxy.bootstrap_servers, settings={**FAST, "acks": 0})
    topic = new_topic(partitions=1, max_message_bytes="20000")
    with Sender(daemon, topic) as sender:
        for _ in range(100):
            sender.send()
        assert sender.offsets() == [-1] * 100
        sender.send(size=100_000)
        assert sender.outcomes()[-1].error is None
    found = [record.value for record in read_topic(kafka.bootstrap_servers, topic)]
    numbers = [int((value or b"").split(b"|")[0].split(b"/")[1]) for value in found]
    assert numbers == list(range(100))
