"""Driver: what each room of a worker waits for is looked at in time. The rooms are those that the product builds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from client_stub.contract.wire import Format, Kind, LocalCode, SubmitFlag
from sidecar.common.control import (
    Drained,
    NeedTopics,
    PartitionUpdate,
    TopicError,
    TopicErrors,
    UpdateMetadata,
)
from sidecar.common.model import Node
from sidecar.shm.share_words import ShareWords
from sidecar.worker.driver import UNSENT_RETRY_MS
from sidecar.worker.housekeeping import TRIM_MS
from sidecar.worker.stubs.stub_port import POSITION_DELAY_MS
from tests.configs import producer_config
from tests.manual_clock import ManualClock

from .harness import Harness
from .manual_worker import EPOCH, NoLinks
from .port_harness import BASE_TIMESTAMP_MS, RECORD, Peer, PortHarness

LINGER_MS = 5.0
MAX_BLOCK_MS = 1_000.0


class DriverHarness(PortHarness):
    """``began``: when each turn began."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(harness)
        self.loop, self.host = harness.worker.loop, harness.worker.host
        self.driver, self.turns = harness.rooms.driver, harness.rooms.turns
        self.began: list[float] = []
        turn = self.turns.turn

        def noting(now_ms: float) -> float:
            self.began.append(now_ms)
            return turn(now_ms)

        self.turns.turn = noting
        self.turns.wake()
        self.loop.run()
        self.began.clear()

    def submit(
        self,
        peer: Peer,
        seq: int = 1,
        topic: str = "t",
        payload: bytes = RECORD,
        flags: int = 0,
        stream: int = 1,
    ) -> None:
        """One submission from a socket, with the turn that follows it."""
        fields = [
            EPOCH,
            stream,
            seq,
            topic,
            BASE_TIMESTAMP_MS,
            Format.MSGPACK,
            flags,
            len(payload) // len(RECORD),
        ]
        frames = [memoryview(msgpack.packb([Kind.SUBMIT, *fields])), memoryview(payload)]
        self.port.on_message(peer.routing_id, frames)
        self.turns.run_now()

    def know(self, topic: str) -> None:
        broker = Node(1, "broker", 9092)
        partitions = (PartitionUpdate(topic, None, 0, 1),)
        self.driver.on_update_metadata(UpdateMetadata(1, 1, EPOCH, (broker,), partitions, version=1))
        self.loop.run()


@pytest.fixture
def port_harness(tmp_path: Path) -> Iterator[DriverHarness]:
    config = producer_config(linger_ms=LINGER_MS, max_block_ms=MAX_BLOCK_MS, enable_idempotence=False, acks=1)
    harness = Harness(tmp_path / "segment", config)
    yield DriverHarness(harness)
    harness.close()


def test_lingering_records_are_sent_when_their_time_is_over(port_harness: DriverHarness) -> None:
    port_harness.know("t")
    peer = port_harness.client()
    port_harness.submit(peer)
    port_harness.loop.run()
    accepted_ms = port_harness.clock.now_ms()
    port_harness.began.clear()
    port_harness.loop.run(LINGER_MS * 3)
    assert port_harness.began[0] == accepted_ms + LINGER_MS


class Backoff(NoLinks):
    """A broker that may be tried again at ``until_ms``; ``tried``: when it was."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.until_ms = clock.now_ms() + 60_000
        self.tried: list[float] = []

    def ready(self, node: object) -> None:
        self.tried.append(self.clock.now_ms())

    def next_attempt_delay_ms(self, node_id: int, now_ms: float) -> float:
        return max(0.0, self.until_ms - now_ms)


def whose_broker_backs_off(tmp_path: Path) -> tuple[ManualClock, Backoff, DriverHarness]:
    """A worker with a record for a broker that may not be tried yet."""
    clock = ManualClock()
    links = Backoff(clock)
    config = producer_config(linger_ms=0.0, enable_idempotence=False, acks=1)
    harness = Harness(tmp_path / "segment", config, clock=clock, links=links)
    port_harness = DriverHarness(harness)
    port_harness.know("t")
    port_harness.submit(port_harness.client())
    return clock, links, port_harness


def test_a_broker_that_may_not_be_tried_yet_has_one_timer_however_many_turns_there_are(
    tmp_path: Path,
) -> None:
    """Each turn set one more, for the whole of reconnect.backoff.max.ms."""
    clock, links, port_harness = whose_broker_backs_off(tmp_path)
    for _ in range(50):
        port_harness.turns.run_now()
        port_harness.loop.run(1)
    assert len(links.tried) > 50
    assert len([each for each in port_harness.loop.calls if each.at_ms >= links.until_ms]) == 1
    links.tried.clear()
    port_harness.loop.run(links.until_ms - clock.now_ms() - 1)
    assert not links.tried
    port_harness.loop.run(1)
    assert links.tried[0] == links.until_ms
    port_harness.harness.close()


def test_a_shorter_backoff_that_begins_meanwhile_ends_in_time(tmp_path: Path) -> None:
    """A broker had another address, or took the new login, and then was away for a moment. The timer of the longer
    backoff was the only one.
    """
    clock, links, port_harness = whose_broker_backs_off(tmp_path)
    port_harness.turns.run_now()
    links.until_ms = clock.now_ms() + 50
    port_harness.turns.run_now()
    links.tried.clear()
    port_harness.loop.run(50)
    assert links.tried and links.tried[0] == links.until_ms
    port_harness.harness.close()


def test_records_that_wait_for_their_topic_fail_after_max_block_ms(port_harness: DriverHarness) -> None:
    peer = port_harness.client()
    port_harness.submit(peer)
    accepted_ms = port_harness.clock.now_ms()
    assert port_harness.host.sent == [NeedTopics(topics=("t",))]
    port_harness.loop.run(MAX_BLOCK_MS - 1)
    assert not peer.outcomes()
    port_harness.loop.run(1)
    assert [each.code for each in peer.outcomes()] == [LocalCode.METADATA_TIMEOUT]
    assert accepted_ms + MAX_BLOCK_MS in port_harness.began


def test_the_position_of_what_was_flushed_is_written_when_no_outcome_comes(
    port_harness: DriverHarness,
) -> None:
    peer = port_harness.client()
    port_harness.submit(peer, flags=SubmitFlag.FLUSH)
    assert not peer.heard(Kind.ACCEPTED), "its stub waits for outcomes"
    port_harness.loop.run(POSITION_DELAY_MS)
    assert [each[-1] for each in peer.heard(Kind.ACCEPTED)] == [[[1, 1]]]


def test_a_stream_over_its_topic_s_rate_continues_in_time(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "segment", patterns={"t": {"records.per.second": 10}})
    port_harness = DriverHarness(harness)
    peer = port_harness.client()
    port_harness.submit(peer, 1, payload=RECORD * 10)
    port_harness.submit(peer, 2)
    assert peer.heard(Kind.HOLD)
    port_harness.loop.run(800)
    assert not peer.heard(Kind.RESUME)
    port_harness.loop.run(200)
    assert peer.heard(Kind.RESUME) == [[Kind.RESUME, 1, 2]]
    harness.close()


def test_a_stub_that_did_not_read_is_tried_again(port_harness: DriverHarness) -> None:
    peer = port_harness.client()
    send, port_harness.endpoint.send = port_harness.endpoint.send, lambda routing_id, frames: False  # type: ignore[method-assign]
    port_harness.submit(peer)
    port_harness.loop.run()
    port_harness.began.clear()
    port_harness.loop.run(UNSENT_RETRY_MS * 3.5)
    assert len(port_harness.began) == 3
    port_harness.endpoint.send = send  # type: ignore[method-assign]
    port_harness.loop.run(UNSENT_RETRY_MS)
    assert peer.heard(Kind.ACCEPTED)


def test_held_streams_continue_here_and_at_other_workers_once_pages_are_given_back(
    port_harness: DriverHarness,
) -> None:
    peer = port_harness.client()
    seq = 1
    while not peer.heard(Kind.HOLD):
        port_harness.submit(peer, seq, payload=RECORD * 5_000)
        seq += 1
    port_harness.harness.segment.prepare_slot(1)
    other = port_harness.harness.segment.slot(1)
    other.claim(incarnation=6)
    other.store_heartbeat(int(port_harness.clock.now_ms() * 1e6))
    ShareWords(port_harness.harness.segment, 1).store_waits(True)
    port_harness.driver.on_pool_wake()
    assert not peer.heard(Kind.RESUME), "nothing was given back"
    woken = port_harness.host.woken
    port_harness.driver.on_topic_errors(TopicErrors({"t": TopicError(29, "not authorized")}))
    port_harness.loop.run()
    (session,) = port_harness.harness.sessions
    while session.row.acked_number + 1 < session.row.next_number:
        peer.send([Kind.ACK, session.row.next_number - 1])
        port_harness.turns.run_now()
        port_harness.loop.run()
    assert peer.heard(Kind.RESUME) == [[Kind.RESUME, 1, seq - 1]]
    assert port_harness.host.woken > woken


@pytest.mark.rule("S2")
def test_a_drain_waits_for_records_without_a_partition(port_harness: DriverHarness) -> None:
    """Their topic is not known yet: the drain ends once they have failed for that, and their client knows it."""
    peer = port_harness.client()
    port_harness.submit(peer, topic="late")
    port_harness.rooms.drain.begin(10 * MAX_BLOCK_MS)
    port_harness.loop.run(MAX_BLOCK_MS - 1)
    assert drained(port_harness) == [] and peer.outcomes() == []
    port_harness.loop.run(1)
    assert [each.code for each in peer.outcomes()] == [LocalCode.METADATA_TIMEOUT]
    assert drained(port_harness) == []
    peer.send([Kind.ACK, peer.outcomes()[-1].number])
    port_harness.turns.run_now()
    assert drained(port_harness) == [0]


@pytest.mark.rule("S2")
def test_records_left_at_the_end_of_a_drain_fail_with_the_reason(port_harness: DriverHarness) -> None:
    peer = port_harness.client()
    port_harness.submit(peer, topic="late")
    port_harness.know("t")
    port_harness.submit(peer, seq=1, topic="t", stream=2)
    port_harness.rooms.drain.begin(MAX_BLOCK_MS / 2)
    port_harness.loop.run(MAX_BLOCK_MS / 2 - 1)
    assert drained(port_harness) == [] and peer.outcomes() == []
    port_harness.loop.run(1)
    assert [each.code for each in peer.outcomes()] == [LocalCode.ABORTED] * 2
    assert drained(port_harness) == []
    peer.send([Kind.ACK, peer.outcomes()[-1].number])
    port_harness.turns.run_now()
    assert drained(port_harness) == [0]


def drained(port_harness: DriverHarness) -> list[int]:
    """What the worker has said of the end of its drain: the records that it leaves."""
    return [each.left for each in port_harness.host.sent if isinstance(each, Drained)]


def test_request_buffers_that_nothing_uses_go_back_while_others_are_used(port_harness: DriverHarness) -> None:
    buffers = port_harness.driver._sender.capacity.buffers
    trim = port_harness.rooms.housekeeping._trim
    lent = [buffers.take(1_000) for _ in range(8)]
    for buffer in lent:
        assert buffer is not None
        buffers.give(buffer)
    one_bytes = buffers.free_bytes // 8
    trim.step(TRIM_MS)
    assert buffers.free_bytes == 8 * one_bytes, "all of them were used"
    for now_ms in (2 * TRIM_MS - 1, 2 * TRIM_MS):
        assert buffers.free_bytes == 8 * one_bytes
        used = buffers.take(1_000)
        assert used is not None
        buffers.give(used)
        trim.step(now_ms)
    assert buffers.free_bytes == one_bytes, "one was enough"
    trim.step(3 * TRIM_MS)
    assert buffers.free_bytes == 0, "an idle worker keeps none"
