"""Goal: a worker says truly how it stands with its brokers, its pool and those who wait; and only what differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from client_stub.contract.wire import Format, Kind
from sidecar.common.condition import SILENT_MS, BrokerRow, HoldRow, WaitRow
from sidecar.common.control import Condition, PartitionUpdate, UpdateMetadata
from sidecar.common.control_codec import decode_message, encode_message
from sidecar.common.model import Node
from sidecar.producer.topic_settings import TopicRules
from sidecar.worker.reporter import BATCHES_SEEN_MAX, REPORT_MS
from tests.configs import producer_config

from .harness import Harness
from .manual_worker import EPOCH, NoLinks
from .port_harness import BASE_TIMESTAMP_MS, RECORD, Peer, PortHarness

LINGER_MS = 60_000.0


class ScriptedLinks(NoLinks):
    """One broker whose state tests set."""

    def __init__(self) -> None:
        self.is_connected = False
        self.error: str | None = None
        self.refuses = True
        """The error is of an attempt to connect, not of a connection that stood."""
        self.step = ""

    def slow_step(self, node_id: int, now_ms: float) -> str:
        return self.step

    def link(self, node_id: int) -> object:  # type: ignore[override]
        return self if self.is_connected else None

    def last_error(self, node_id: int) -> str | None:
        return self.error

    def has_refused(self, node_id: int) -> bool:
        return self.refuses and self.error is not None


class ReporterHarness(PortHarness):
    def __init__(self, path: Path, linger_ms: float = LINGER_MS, partitions: int = 1) -> None:
        self.links = ScriptedLinks()
        self.config = producer_config(linger_ms=linger_ms, enable_idempotence=False, acks=1)
        self.harness = Harness(
            path, self.config, patterns={"slow": {"records.per.second": 1}}, links=self.links
        )
        super().__init__(self.harness)
        self.worker = self.harness.worker
        self.driver = self.harness.rooms.driver
        self.partitions = partitions

    def submit(self, peer: Peer, seq: int = 1, topic: str = "t", payload: bytes = RECORD) -> None:
        fields = [EPOCH, 1, seq, topic, BASE_TIMESTAMP_MS, Format.MSGPACK, 0, len(payload) // len(RECORD)]
        frames = [memoryview(msgpack.packb([Kind.SUBMIT, *fields])), memoryview(payload)]
        self.port.on_message(peer.routing_id, frames)
        self.harness.rooms.turns.run_now()
        self.worker.loop.run()

    def know(self, *topics: str, leader: int = 1) -> None:
        states = tuple(
            PartitionUpdate(topic, None, each, leader) for topic in topics for each in range(self.partitions)
        )
        update = UpdateMetadata(1, 1, EPOCH, (Node(1, "broker", 9092),), states, version=1)
        self.driver.on_update_metadata(update)
        self.worker.loop.run()

    def report(self, after_ms: float = REPORT_MS) -> Condition | None:
        """The report that the worker sends so much later; None when it sends none."""
        self.worker.loop.run(after_ms)
        sent = self.worker.host.sent
        sent.clear()
        self.harness.rooms.reporter.step(self.clock.now_ms())
        if not sent:
            return None
        (condition,) = sent
        assert isinstance(condition, Condition)
        assert decode_message(encode_message(condition)[4:]) == condition, "as the controller reads it"
        return condition

    def broker(self) -> BrokerRow:
        condition = self.report()
        assert condition is not None
        (row,) = condition.brokers
        return row


@pytest.fixture
def port_harness(tmp_path: Path) -> Iterator[ReporterHarness]:
    port_harness = ReporterHarness(tmp_path / "segment")
    yield port_harness
    port_harness.harness.close()


def test_a_worker_without_work_says_nothing_twice(port_harness: ReporterHarness) -> None:
    port_harness.know("t")
    assert port_harness.report() == Condition()
    assert port_harness.report() is None
    assert port_harness.report(0.0) is None, "nor sooner than once a second"


def test_records_that_wait_name_their_broker_and_why(port_harness: ReporterHarness) -> None:
    port_harness.know("t")
    peer = port_harness.client()
    accepted_ms = port_harness.clock.now_ms()
    port_harness.submit(peer, payload=RECORD * 3)
    condition = port_harness.report()
    assert condition is not None
    (row,) = condition.brokers
    assert (row.id, row.state, row.held_records, row.oldest_held_ms) == (1, "connecting", 3, accepted_ms)
    assert condition.waits == (WaitRow("t", 0, 1, accepted_ms, "broker"),)
    assert [each.name for each in condition.topics] == ["t"]
    assert [(each.name, each.pages) for each in condition.clients] == [("client", 1)]

    port_harness.links.error = "Connection refused"
    row = port_harness.broker()
    assert (row.state, row.last_error) == ("down", "Connection refused")
    since_ms = row.since_ms
    port_harness.links.error = "No route to host"
    assert port_harness.broker().since_ms == since_ms, "still down"
    port_harness.links.is_connected, port_harness.links.error = True, None
    condition = port_harness.report()
    assert condition is not None
    assert condition.brokers[0].state == "up"
    assert condition.waits[0].cause == "linger"


def test_a_broker_that_cannot_be_connected_to_for_long_is_down_before_the_attempt_has_failed(
    port_harness: ReporterHarness,
) -> None:
    """The attempt may last 10 s and more. A broker that no record waits for is not judged by it."""
    port_harness.know("t")
    port_harness.links.step = "the name broker.example has not been resolved yet"
    assert port_harness.report() == Condition()
    port_harness.submit(port_harness.client())
    condition = port_harness.report()
    assert condition is not None
    assert [(row.state, row.last_error) for row in condition.brokers] == [("down", port_harness.links.step)]
    assert condition.waits[0].error == port_harness.links.step
    port_harness.links.step, port_harness.links.is_connected = "", True
    assert port_harness.broker().state == "up"


def test_a_lost_link_is_no_broker_down_before_it_could_not_be_made_again(
    port_harness: ReporterHarness,
) -> None:
    port_harness.know("t")
    port_harness.links.is_connected = True
    assert port_harness.broker().state == "up"
    port_harness.links.is_connected = False
    assert (port_harness.broker().state, port_harness.report()) == ("known", None), "an idle connection ends"
    port_harness.links.error, port_harness.links.refuses = "It closed the connection.", False
    row = port_harness.broker()
    assert (row.state, row.last_error) == ("known", port_harness.links.error), (
        "nothing says that it is down, or up"
    )


def test_a_topic_without_leader_and_one_that_is_not_known(port_harness: ReporterHarness) -> None:
    port_harness.know("t", leader=-1)
    peer = port_harness.client()
    port_harness.submit(peer)
    condition = port_harness.report()
    assert condition is not None
    assert [(each.topic, each.partition, each.cause) for each in condition.waits] == [("t", 0, "no_leader")]
    other = port_harness.client("other")
    port_harness.submit(other, topic="nosuch")
    condition = port_harness.report()
    assert condition is not None
    assert [(each.topic, each.partition, each.cause) for each in condition.waits] == [
        ("t", 0, "no_leader"),
        ("nosuch", -1, "unknown_topic"),
    ]


def test_a_paused_topic_neither_needs_a_broker_nor_hides_another_topic(port_harness: ReporterHarness) -> None:
    rooms = port_harness.harness.rooms
    rooms.core.accumulator.use_rules(
        TopicRules(port_harness.config, paused={"later"}), port_harness.clock.now_ms()
    )
    port_harness.know("later", "t")
    peer = port_harness.client()
    paused_ms = port_harness.clock.now_ms()
    port_harness.submit(peer, topic="later")
    condition = port_harness.report()
    assert condition is not None
    paused = WaitRow("later", 0, 1, paused_ms, "paused")
    assert (condition.brokers, condition.waits) == ((), (paused,))

    accepted_ms = port_harness.clock.now_ms()
    port_harness.submit(port_harness.client("other"), topic="t")
    condition = port_harness.report()
    assert condition is not None
    assert condition.waits == (paused, WaitRow("t", 0, 1, accepted_ms, "broker"))
    assert [(row.state, row.held_records) for row in condition.brokers] == [("connecting", 1)]


def test_a_record_for_a_partition_that_its_topic_lacks_does_not_wait_for_the_topic(
    port_harness: ReporterHarness,
) -> None:
    port_harness.know("t")
    port_harness.submit(port_harness.client(), payload=msgpack.packb([None, b"v", None, 7]))
    condition = port_harness.report()
    assert condition is not None
    assert [(each.topic, each.cause) for each in condition.waits] == [("t", "out_of_range")]


RATE_TEXT = "topic slow is at its records.per.second of 1"


def test_a_held_stream_is_reported_since_its_first_hold(port_harness: ReporterHarness) -> None:
    port_harness.know("slow")
    peer = port_harness.client("bulk")
    port_harness.submit(peer, 1, "slow", RECORD * 30)
    held_ms = port_harness.clock.now_ms()
    port_harness.submit(peer, 2, "slow")
    condition = port_harness.report()
    assert condition is not None
    assert condition.holds == (HoldRow("bulk", "rate", "slow", held_ms, 1, RATE_TEXT),)
    port_harness.harness.rooms.stubs.holds.resume(next(iter(port_harness.harness.rooms.stubs.holds.held)))
    condition = port_harness.report()
    assert condition is not None
    assert condition.holds == ()
    port_harness.submit(peer, 2, "slow")
    condition = port_harness.report()
    assert condition is not None
    assert condition.holds == (HoldRow("bulk", "rate", "slow", held_ms, 1, RATE_TEXT),), (
        "the same record waits on"
    )


def test_a_client_with_a_full_ring_is_shown_though_it_sends_nothing(port_harness: ReporterHarness) -> None:
    port_harness.know("t")
    peer = port_harness.client("deaf")
    port_harness.submit(peer)
    (session,) = port_harness.harness.rooms.stubs.sessions
    session.ring_full_since_ms = full_ms = port_harness.clock.now_ms()
    session.unwritten.append(None)  # type: ignore[arg-type]  # nobody writes it here
    condition = port_harness.report()
    assert condition is not None
    assert condition.holds == (HoldRow("deaf", "ring", "", full_ms, 1),)


def test_a_request_without_an_answer_makes_its_broker_silent(tmp_path: Path) -> None:
    port_harness = ReporterHarness(tmp_path / "segment", linger_ms=0.0)
    port_harness.links.is_connected = True
    port_harness.links.connected = frozenset({1})
    port_harness.know("t")
    port = port_harness.harness.rooms.brokers.produce_port
    port_harness.driver._handlers = {  # the request stays on the wire
        each: handler if handler != port.send else (lambda effect, now_ms: None)
        for each, handler in port_harness.driver._handlers.items()
    }
    peer = port_harness.client()
    sent_ms = port_harness.clock.now_ms()
    port_harness.submit(peer)
    condition = port_harness.report(SILENT_MS - 1)
    assert condition is not None
    assert (condition.brokers[0].state, condition.brokers[0].in_flight) == ("up", 1)
    assert condition.waits[0].cause == "unanswered"
    condition = port_harness.report(REPORT_MS)
    assert condition is not None
    assert (condition.brokers[0].state, condition.brokers[0].since_ms) == ("silent", sent_ms)
    assert condition.waits[0].cause == "broker"
    port_harness.harness.close()


def test_held_records_of_so_many_batches_are_counted_by_broker(tmp_path: Path) -> None:
    port_harness = ReporterHarness(tmp_path / "segment", partitions=BATCHES_SEEN_MAX + 1)
    port_harness.know("t")
    peer = port_harness.client()
    records = [[None, b"v", None, each] for each in range(BATCHES_SEEN_MAX + 1)]
    for seq, start in enumerate(range(0, len(records), 500), 1):
        part = records[start : start + 500]
        payload = b"".join(map(msgpack.packb, part))
        fields = [EPOCH, 1, seq, "t", BASE_TIMESTAMP_MS, Format.MSGPACK, 0, len(part)]
        port_harness.port.on_message(
            peer.routing_id, [memoryview(msgpack.packb([Kind.SUBMIT, *fields])), memoryview(payload)]
        )
    port_harness.harness.rooms.turns.run_now()
    port_harness.worker.loop.run()
    assert len(port_harness.harness.rooms.core.accumulator.incomplete) == BATCHES_SEEN_MAX + 1
    assert port_harness.broker().held_records == BATCHES_SEEN_MAX
    port_harness.harness.close()


def test_a_worker_that_has_just_begun_judges_no_broker_before_it_has_metadata(
    port_harness: ReporterHarness,
) -> None:
    """It said that adopted records have no leader, and that no broker is bad; its predecessor knew better."""
    port_harness.submit(port_harness.client("web"))
    first = port_harness.report(0.0)
    assert first is not None, "its clients are seen at once"
    assert (first.knows_cluster, first.brokers, first.waits) == (False, (), ())
    assert [each.name for each in first.clients] == ["web"]
    port_harness.know("t")
    condition = port_harness.report(0.0)
    assert condition is not None, "it reports in the turn in which metadata comes"
    assert condition.knows_cluster
    assert [each.cause for each in condition.waits] == ["broker"]


def test_records_without_metadata_do_not_lack_a_leader(port_harness: ReporterHarness) -> None:
    """A daemon that takes over while Kafka is away has adopted them in batches already."""
    session = port_harness.harness.client("other")
    batch = port_harness.harness.batch(port_harness.harness.accept(session, 1, 1), publish=False)
    assert port_harness.report() == Condition(knows_cluster=False)
    assert port_harness.report(SILENT_MS) == Condition(), "after a while it counts as cut off"
    assert port_harness.harness.rooms.reporter.why(batch, -1, None, 0.0) == ("metadata", "")
    port_harness.know("t", leader=-1)
    assert port_harness.harness.rooms.reporter.why(batch, -1, None, 0.0) == ("no_leader", "")
