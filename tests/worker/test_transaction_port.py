"""TransactionPort: no frame of a client harms another one's lane, and a closed lane leaves nothing."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Final

import msgpack
import pytest

from client_stub.contract.wire import Format, Kind, TxnPart
from sidecar.common.model import Node, ProducerIdAndEpoch
from sidecar.producer.transaction_record import unpack_transaction_record
from sidecar.producer.transaction_states import TransactionState
from sidecar.worker.streams.lane import Lane
from tests.worker.harness import EPOCH
from tests.worker.port_harness import BASE_TIMESTAMP_MS, RECORD, Peer, PortHarness


def ready(port_harness: PortHarness, peer: Peer, transactional_id: str = "orders-1") -> Lane:
    """A lane of the client whose coordinator has given it a producer id."""
    peer.send([Kind.TXN_INIT, transactional_id, 60_000, False])
    lane = port_harness.rooms.lanes.of_id(transactional_id)
    assert lane is not None
    lane.manager._transaction_version = lambda: 2
    lane.manager._coordinator = Node(1, "kafka-1", 9092)
    lane.manager.state, lane.manager.identity = TransactionState.READY, ProducerIdAndEpoch(900, 5)
    return lane


def step(port_harness: PortHarness) -> None:
    port_harness.rooms.brokers.transactions.step(port_harness.clock.now_ms())
    port_harness.port.end_turn(port_harness.clock.now_ms())


def offsets_frame(*rows: list[Any]) -> tuple[list[Any], bytes]:
    return [Kind.TXN_OFFSETS, 1, 1, "group", 3, "member", None], msgpack.packb(list(rows))


@pytest.mark.parametrize(
    "row",
    [
        ["in", 1 << 31, 0, -1, None],
        ["in", -1, 0, -1, None],
        ["in", 0, 1 << 63, -1, None],
        ["in", 0, -1, -1, None],
        ["in", 0, 0, 1 << 31, None],
        ["in", 0, 0, -2, None],
        ["", 0, 0, -1, None],
        ["x" * 250, 0, 0, -1, None],
        ["in", 0, 0, -1, "x" * 32_768],
        ["in", 0, 0, -1, "\u20ac" * 10_923],
    ],
)
def test_offsets_that_kafka_has_no_field_for_are_refused(port_harness: PortHarness, row: list[Any]) -> None:
    """They would fail where the request is made, in the turn of all lanes."""
    peer = port_harness.client()
    lane = ready(port_harness, peer)
    peer.heard()
    head, payload = offsets_frame(row)
    peer.send(head, payload)
    assert [message[1] for message in peer.heard(Kind.REFUSED)] == ["MALFORMED_FRAME"]
    assert port_harness.counted("malformed_frames_total") == 1
    assert lane.manager.state is TransactionState.READY


NO_ROWS: Final = msgpack.packb([])


@pytest.mark.parametrize(
    ("head", "payload"),
    [
        ([Kind.TXN_INIT], None),
        ([Kind.TXN_INIT, "", 60_000, False], None),
        ([Kind.TXN_INIT, "x" * 161, 60_000, False], None),
        ([Kind.TXN_INIT, 7, 60_000, False], None),
        ([Kind.TXN_INIT, "mine", 0, False], None),
        ([Kind.TXN_INIT, "mine", 1 << 31, False], None),
        ([Kind.TXN_INIT, "of another", 60_000, False], None),
        ([Kind.TXN_END, 1], NO_ROWS),
        ([Kind.TXN_END, -1, True], NO_ROWS),
        ([Kind.TXN_END, 1, 1], NO_ROWS),
        ([Kind.TXN_END, 1, True], None),
        ([Kind.TXN_END, 1, True], b"\xc1"),
        ([Kind.TXN_END, 1, True], msgpack.packb({})),
        ([Kind.TXN_END, 1, True], msgpack.packb([[1]])),
        ([Kind.TXN_END, 1, True], msgpack.packb([[1, "7"]])),
        ([Kind.TXN_OFFSETS, 1, 1, "group"], NO_ROWS),
        ([Kind.TXN_OFFSETS, 1, 1, None, 3, "member", None], NO_ROWS),
        ([Kind.TXN_OFFSETS, 1, 1, "group", -2, "member", None], NO_ROWS),
        ([Kind.TXN_OFFSETS, 1, 1, "group", 3, "member", None], msgpack.packb([["in", 0, 0]])),
    ],
)
def test_malformed_frame_is_refused_and_leaves_the_lane(
    port_harness: PortHarness, head: list[Any], payload: bytes | None
) -> None:
    peer = port_harness.client()
    lane = ready(port_harness, peer)
    assert lane.manager.begin(1)
    before = lane.manager.record
    peer.heard()
    peer.send(head, *([] if payload is None else [payload]))
    step(port_harness)
    assert [message[1] for message in peer.heard(Kind.REFUSED)] == ["MALFORMED_FRAME"]
    assert port_harness.counted("malformed_frames_total") == 1
    assert lane.manager.record == before
    assert lane.manager.state is TransactionState.IN_TRANSACTION


def test_largest_offset_is_taken(port_harness: PortHarness) -> None:
    peer = port_harness.client()
    lane = ready(port_harness, peer)
    peer.heard()
    head, payload = offsets_frame(["x" * 249, (1 << 31) - 1, (1 << 63) - 1, (1 << 31) - 1, "x" * 32_767])
    peer.send(head, payload)
    assert peer.heard(Kind.REFUSED) == []
    assert lane.manager.state is TransactionState.IN_TRANSACTION


def test_closed_lane_leaves_nothing(port_harness: PortHarness) -> None:
    """Its client is gone before the submissions of its commit have come, or in a transaction that is aborted."""
    left = []
    for number in range(2):
        peer = port_harness.client()
        lane = ready(port_harness, peer)
        peer.heard()
        if number:
            assert lane.manager.begin(1)
            peer.send([Kind.TXN_END, 1, False], msgpack.packb([]))
        else:
            peer.send([Kind.TXN_END, 1, True], msgpack.packb([[1, 7]]))
        step(port_harness)
        left.append(weakref.ref(lane.manager))
        session: Any = lane.session
        session.is_gone = True
        del lane
        for _ in range(3):
            port_harness.rooms.brokers.transactions.check_clients()
            step(port_harness)
        session.lane = None  # it goes as well
    gc.collect()
    assert len(port_harness.rooms.lanes) == 0
    port_harness.rooms.brokers.transactions.check_clients()
    gc.collect()
    assert [each() for each in left] == [None, None]


def test_transaction_that_begins_in_a_drain_waits_for_the_next_daemon(port_harness: PortHarness) -> None:
    """Its stub has not read DRAINING yet. A record of it that was refused, or a commit that was answered, would be
    a commit without its records.
    """
    peer = port_harness.client()
    lane = ready(port_harness, peer)
    assert lane.manager.begin(1)
    port_harness.port.start_draining()
    peer.send([Kind.TXN_END, 1, True], msgpack.packb([]))
    step(port_harness)
    port_harness.port.continue_draining()
    assert lane.manager.state is TransactionState.READY
    fields = [EPOCH, 1, 1, "t", BASE_TIMESTAMP_MS, Format.MSGPACK, 0, 1]
    peer.send([Kind.SUBMIT, *fields, None, 2], RECORD)
    peer.send([Kind.TXN_END, 2, True], msgpack.packb([[1, 1]]))
    step(port_harness)
    assert peer.outcomes() == []
    told = peer.heard(Kind.TXN, Kind.DRAINING, Kind.ACCEPTED)
    assert [message[0] for message in told] == [Kind.TXN, Kind.DRAINING]
    assert told[0][1:4] == [TxnPart.END, 1, 0]
    assert lane.manager.number == 1


def test_commit_does_not_wait_for_a_stream_that_was_ended_since(port_harness: PortHarness) -> None:
    """Of more topics than a client has streams, one was refused for a full table after the commit was asked for. The
    stub ended another stream for it, and the commit waited for that one for ever.
    """
    peer = port_harness.client()
    lane = ready(port_harness, peer)
    for stream in (1, 2):
        if stream == 2:
            peer.send([Kind.TXN_END, 1, True], msgpack.packb([[1, 1], [2, 1]]))
            step(port_harness)
            peer.send([Kind.END_STREAM, 1, 1])
            assert lane.manager.state is TransactionState.IN_TRANSACTION
        fields = [EPOCH, stream, 1, f"t{stream}", BASE_TIMESTAMP_MS, Format.MSGPACK, 0, 1]
        peer.send([Kind.SUBMIT, *fields, None, 1], RECORD)
    step(port_harness)
    assert lane.manager.state is TransactionState.COMMITTING


class Killed(BaseException):
    pass


@pytest.mark.parametrize("is_restarted", [False, True])
def test_record_of_a_lane_is_stored_before_its_records_end(
    port_harness: PortHarness, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """A successor would take a transaction for open of which records have been given up."""
    peer = port_harness.client()
    lane = ready(port_harness, peer)
    assert lane.manager.begin(1)

    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(port_harness.rooms.lanes, "abort", kill)
    with pytest.raises(Killed):
        if is_restarted:
            port_harness.client("other").send([Kind.TXN_INIT, "orders-1", 60_000, False])
        else:
            peer.send([Kind.TXN_END, 1, False], msgpack.packb([]))
            step(port_harness)
    (row,) = port_harness.rooms.memory.lanes
    record = unpack_transaction_record(row.content)
    assert record is not None
    expected = TransactionState.INITIALIZING if is_restarted else TransactionState.ABORTING
    assert record.state is expected


def test_round_of_an_idle_worker_gives_back_what_a_client_left_that_is_gone(
    port_harness: PortHarness,
) -> None:
    """Its records end in the round; without a turn their chain, and so its lane, would stay until somebody sends."""
    releases, turns = port_harness.rooms.releases, port_harness.rooms.turns
    taken: list[int] = []
    turns.turn = lambda now_ms: taken.append(len(releases.take_released_chains())) or float("inf")  # type: ignore[func-returns-value]
    releases.released_chains.add(port_harness.harness.chain)
    port_harness.rooms.housekeeping.round()
    port_harness.harness.worker.loop.run()
    assert taken == [1]
