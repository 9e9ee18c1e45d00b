"""Goal: nothing that one client sends costs another one anything, and no fault of ours is blamed on a client.

Method: the worker's rooms between socket and journal on a real segment (tests/worker/port_harness.py).
"""

from __future__ import annotations

import logging
import os
from typing import Any, cast

import msgpack
import pytest

from client_stub.contract.wire import (
    SUBMIT_HEAD_BYTES_MAX,
    Format,
    Kind,
    Outcome,
    SubmitFlag,
    pack_outcome,
)
from sidecar.shm.client_table import ClientRow, ClientTable
from sidecar.shm.layout import STREAMS_MAX
from sidecar.worker.streams.session import OUTBOX_FRAMES_MAX
from tests.worker.harness import EPOCH, Harness
from tests.worker.port_harness import BASE_TIMESTAMP_MS, RECORD, PortHarness
from tests.worker.test_topics import snapshot


def fill_ring(port_harness: PortHarness, name: str = "client") -> None:
    """Outcomes until less than a quarter of the ring is free."""
    (session,) = [each for each in port_harness.harness.sessions if each.name == name]
    row = session.row
    while row.ring_free_bytes > row.ring_bytes // 5:
        number = row.next_number
        assert row.ring_append(
            pack_outcome(Outcome(1, 2, 0, number, 1, 0, 5, 0, 0, 1, 9, -1, b"", "x" * 4_000))
        )


def test_a_stream_held_for_unread_outcomes_continues_after_a_reconnect(port_harness: PortHarness) -> None:
    peer = port_harness.client()
    fill_ring(port_harness)
    peer.submit(1)
    assert [message[:3] for message in peer.heard(Kind.HOLD)] == [[Kind.HOLD, 1, 1]]
    again = peer.again(b"another connection")
    welcome = again.attach()
    assert welcome[6] == [[1, "t", 0, True]], "it is still held"
    (session,) = port_harness.harness.sessions
    again.send([Kind.ACK, session.row.next_number - 1])
    assert again.heard(Kind.RESUME) == [[Kind.RESUME, 1, 1]]
    again.submit(1)
    assert again.heard(Kind.ACCEPTED)[0][2] == [[1, 1]]


class NoRoom:
    """Outcomes for which the outcome ring has no room."""

    is_failure = False

    def write(self, _row: ClientRow) -> bool:
        return False


def test_an_ack_of_nothing_new_gives_a_deaf_client_no_more_time(port_harness: PortHarness) -> None:
    """One that repeated an old ACK was never cut, and kept the batches that it shares with others."""
    peer = port_harness.client()
    fill_ring(port_harness)
    (session,) = port_harness.harness.sessions
    session.unwritten.append(cast(Any, NoRoom()))
    session.ring_full_since_ms = full_since_ms = port_harness.clock.now_ms() - 1_000
    for number in (0, -1, 0):
        peer.send([Kind.ACK, number])
        assert session.ring_full_since_ms == full_since_ms
    peer.send([Kind.ACK, 1])
    assert session.ring_full_since_ms > full_since_ms, "it has read something"


def test_the_credit_is_a_window_beyond_what_was_accepted(port_harness: PortHarness) -> None:
    peer = port_harness.client()
    (session,) = port_harness.harness.sessions
    window = session.credit_bytes
    assert window
    for seq in (1, 2):
        peer.submit(seq)
        (accepted,) = peer.heard(Kind.ACCEPTED)
        assert accepted[1:] == [seq * len(RECORD) + window, [[1, seq]]]


@pytest.mark.parametrize("why", ["a repeat", "too large"])
def test_a_flush_with_records_that_are_not_taken_reaches_earlier_ones(
    port_harness: PortHarness, why: str
) -> None:
    peer = port_harness.client()
    port_harness.topics.on_snapshot(snapshot(t=1), 0.0)
    peer.submit(1)
    (batch,) = port_harness.harness.rooms.core.accumulator.batches_of("t", None)
    assert not batch.expedited
    if why == "a repeat":
        peer.submit(1, flags=SubmitFlag.FLUSH)
    else:
        peer.submit(2, payload=b"", skipped_bytes=port_harness.limit + 1, flags=SubmitFlag.FLUSH)
    assert batch.expedited


def submit_fields(**changes: Any) -> list[Any]:
    fields = {
        "epoch": EPOCH,
        "stream": 1,
        "seq": 1,
        "topic": "t",
        "base_timestamp_ms": BASE_TIMESTAMP_MS,
        "format": Format.MSGPACK,
        "flags": 0,
        "count": 1,
    }
    return [Kind.SUBMIT, *(fields | changes).values()]


ABSURD: list[list[Any]] = [
    submit_fields(base_timestamp_ms=1 << 63),
    submit_fields(base_timestamp_ms=(1 << 64) - 1),
    submit_fields(base_timestamp_ms=-1),
    submit_fields(base_timestamp_ms=1.5),
    submit_fields(flags=256),
    submit_fields(flags=1 << 40),
    submit_fields(flags=-1),
    submit_fields(flags="x"),
    submit_fields(count=0),
    submit_fields(count=65_536),
    submit_fields(count=True),
    submit_fields(seq=1.0),
    submit_fields(seq=0),
    submit_fields(seq=-1),
    submit_fields(seq=None),
    submit_fields(stream=0),
    submit_fields(stream=-1),
    submit_fields(stream=1 << 32),
    submit_fields(stream=[1]),
    submit_fields(stream={}),
    submit_fields(format=99),
    submit_fields(format=[]),
    submit_fields()[:-1],
    [*submit_fields(), "ack"],
    [*submit_fields(), 1 << 63],
    [*submit_fields(), 0, 0],
    [Kind.SUBMIT],
    [Kind.ACK],
    [Kind.ACK, 1],
    [Kind.ACK, (1 << 64) - 1],
    [Kind.ACK, "all"],
    [Kind.FLUSH],
    [Kind.FLUSH, [1], 1],
    [Kind.FLUSH, {"a": 1}, 1],
    [Kind.BYE],
    [Kind.WELCOME],
    [Kind.HELLO, 1],
    [255],
    [-1],
    [1.5],
    ["SUBMIT"],
    [[12]],
    [],
    [Kind.ATTACH],
]


@pytest.mark.parametrize("message", ABSURD, ids=str)
def test_malformed_frames_are_refused_and_counted_and_change_nothing(
    port_harness: PortHarness, message: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    peer = port_harness.client()
    names = len(port_harness.harness.chain_table)
    peer.send(message, RECORD)
    assert [each[:2] for each in peer.heard(Kind.REFUSED)] == [[Kind.REFUSED, "MALFORMED_FRAME"]]
    assert port_harness.counted("malformed_frames_total") == 1
    assert port_harness.counted("accept_errors_total") == 0
    assert port_harness.endpoint.nonsense[peer.routing_id] == 1
    assert len(port_harness.harness.chain_table) == names
    assert not port_harness.topics.missing.names
    assert not any(record.exc_info for record in caplog.records), "a traceback is for faults of ours"
    peer.submit(1)
    assert peer.heard(Kind.ACCEPTED)[0][2] == [[1, 1]], "an ordinary one is taken as ever"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x91" * 1_000,
        b"\x9f" + bytes(60_000),
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        msgpack.packb({0: 12}),
    ],
    ids=["nothing", "unused", "nested", "long", "array of 4 billion", "map of 4 billion", "a map"],
)
def test_frames_that_are_no_message_are_refused(port_harness: PortHarness, frame: bytes) -> None:
    peer = port_harness.client()
    port_harness.port.on_message(peer.routing_id, [memoryview(frame)])
    assert [each[1] for each in peer.heard(Kind.REFUSED)] == ["MALFORMED_FRAME"]
    assert port_harness.counted("malformed_frames_total") == 1


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_first_frame_above_its_bound_is_not_unpacked(port_harness: PortHarness, beyond: int) -> None:
    """A good message but for its size: an unknown kind's text fills it up."""
    peer = port_harness.client()
    filler = "x" * (SUBMIT_HEAD_BYTES_MAX - len(msgpack.packb([255, "x" * 500])) + 500 + beyond)
    frame = msgpack.packb([255, filler])
    assert len(frame) == SUBMIT_HEAD_BYTES_MAX + beyond
    port_harness.port.on_message(peer.routing_id, [memoryview(frame)])
    (refused,) = peer.heard(Kind.REFUSED)
    assert ("a first frame of" in refused[2]) == bool(beyond)


def test_values_at_the_edge_are_taken(port_harness: PortHarness) -> None:
    peer = port_harness.client()
    peer.send(submit_fields(base_timestamp_ms=(1 << 63) - 1, flags=255, stream=0xFFFFFFFF), RECORD)
    assert peer.heard(Kind.REFUSED) == []
    assert port_harness.counted("records_accepted_total") == 1


def test_flushes_and_acks_of_what_is_not_there_do_nothing(port_harness: PortHarness) -> None:
    peer = port_harness.client()
    for message in ([Kind.FLUSH, 99, 1], [Kind.FLUSH, 1 << 62, 1 << 62], [Kind.ACK, 0], [Kind.ACK, -5]):
        peer.send(message)
    assert peer.heard(Kind.REFUSED) == []
    assert port_harness.counted("malformed_frames_total") == 0


def test_one_line_a_minute_says_that_a_client_sends_nonsense(
    port_harness: PortHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bad, worse = port_harness.client("bad"), port_harness.client("worse")
    for _ in range(50):
        bad.send([255])
        worse.send([255])
    assert [record.getMessage().count("bad") for record in caplog.records] == [1, 0]
    port_harness.clock.advance(60_000)
    bad.send([255])
    assert "and 49 more" in caplog.records[-1].getMessage()


def test_a_flood_of_pings_is_bounded_and_costs_its_own_client_only(port_harness: PortHarness) -> None:
    peer, other = port_harness.client(), port_harness.client("other")
    port_harness.endpoint.send = lambda routing_id, frames: routing_id != peer.routing_id  # type: ignore[method-assign]
    for _ in range(10_000):
        port_harness.port.on_message(peer.routing_id, [memoryview(msgpack.packb([Kind.PING]))])
    (session,) = (session for session in port_harness.harness.sessions if session.name == "client")
    assert len(session.outbox) == OUTBOX_FRAMES_MAX
    port_harness.port.end_turn(port_harness.clock.now_ms())
    names = [session.name for session in port_harness.harness.sessions]
    assert names == ["other"], "who does not read its answers is detached"
    assert other.routing_id in port_harness.endpoint.attached


def test_one_connection_attaches_one_client(port_harness: PortHarness) -> None:
    first = port_harness.client("first")
    second = port_harness.connect("second")
    second.routing_id = first.routing_id
    assert second.attach()[:2] == [Kind.REFUSED, "MALFORMED_FRAME"]
    assert [session.name for session in port_harness.harness.sessions] == ["first"]
    assert len(list(ClientTable(port_harness.harness.segment).rows())) == 1


def test_a_connection_that_its_client_has_left_is_given_back(port_harness: PortHarness) -> None:
    """Else a client that attaches by one connection after the other takes them all."""
    first = port_harness.client()
    second = first.again(b"second")
    assert second.attach()[0] == Kind.WELCOME
    assert port_harness.endpoint.attached == {b"second"}
    second.send([Kind.BYE, False])
    assert not port_harness.endpoint.attached


def test_one_process_takes_a_quarter_of_the_clients_and_no_more(port_harness: PortHarness) -> None:
    quarter = ClientTable(port_harness.harness.segment).capacity // 4
    peers = [port_harness.client(f"c{number}", os.getpid()) for number in range(quarter)]
    late = port_harness.connect("late", os.getpid())
    answer = late.attach()
    assert answer[:2] == [Kind.REFUSED, "TOO_MANY_CLIENTS"]
    assert f"Process {os.getpid()}" in answer[2]
    assert port_harness.connect("other", 1).attach()[0] == Kind.WELCOME
    peers[0].send([Kind.BYE, False])
    assert late.attach()[0] == Kind.WELCOME, "who has left is made room of"


def test_submissions_that_open_nothing_are_counted_on_their_connection(port_harness: PortHarness) -> None:
    peer = port_harness.client()
    for stream in range(1, STREAMS_MAX + 4):
        peer.submit(1, stream=stream, topic=f"t{stream}")
    assert port_harness.endpoint.useless[peer.routing_id] >= 3, "more streams than one may have"
    before = port_harness.endpoint.useless[peer.routing_id]
    peer.submit(5, stream=STREAMS_MAX + 100)
    assert port_harness.endpoint.useless[peer.routing_id] == before + 1, "no stream begins with 5"
    peer.submit(1)
    peer.submit(3)
    assert port_harness.endpoint.useless[peer.routing_id] == before + 1, (
        "a repeat and a gap are an honest stub's"
    )


def test_one_user_leaves_a_quarter_of_the_clients_to_others_and_the_sentence_says_who_has_them(
    port_harness: PortHarness,
) -> None:
    table = ClientTable(port_harness.harness.segment)
    held = [port_harness.connect(f"c{number}") for number in range(table.capacity)]
    for peer in held:
        port_harness.endpoint.users[peer.routing_id] = 1001
    answers = [peer.attach() for peer in held]
    allowed = table.capacity * 3 // 4
    assert [answer[0] for answer in answers[:allowed]] == [Kind.WELCOME] * allowed
    assert {tuple(answer[:2]) for answer in answers[allowed:]} == {(Kind.REFUSED, "TOO_MANY_CLIENTS")}
    assert answers[-1][2] == (
        f"The client table is full: {allowed} of {table.capacity} rows are taken, {allowed} of them by uid 1001. "
        "Raise daemon.clients_max; a quarter of it is left for other users."
    )
    for uid in (1002, 1003):
        other = port_harness.connect("other")
        port_harness.endpoint.users[other.routing_id] = uid
        assert other.attach()[0] == Kind.WELCOME
    held[0].send([Kind.BYE, False])
    held[1].send([Kind.BYE, False])
    held[2].send([Kind.BYE, False])
    assert held[-1].attach()[0] == Kind.WELCOME, "after some have left there is room again"


def test_a_ticket_that_was_seen_lets_nobody_else_in(port_harness: PortHarness) -> None:
    peer = port_harness.client()
    peer.submit(1)
    thief = peer.again(b"thief")
    for secret in (None, b"", b"x" * 16):
        thief.secret = secret
        assert thief.attach()[:2] == [Kind.REFUSED, "NOT_ADMITTED"]
    for wrong in ("text", 5, [b"x"]):
        thief.secret = wrong  # type: ignore[assignment]
        assert thief.attach()[:2] == [Kind.REFUSED, "MALFORMED_FRAME"]
    peer.submit(2)
    assert peer.heard(Kind.ACCEPTED)[-1][2] == [[1, 2]]


def test_an_unattached_client_gets_an_answer_and_counts_on_its_connection(port_harness: PortHarness) -> None:
    stranger = port_harness.connect()
    for _ in range(3):
        stranger.submit(1)
    assert stranger.heard(Kind.HELLO_AGAIN) == [[Kind.HELLO_AGAIN, EPOCH]] * 3
    assert port_harness.endpoint.nonsense[stranger.routing_id] == 3


def test_streams_that_do_not_begin_at_the_first_make_nothing(port_harness: PortHarness) -> None:
    """1,100 such frames once took every row of the table of topics, for the life of the segment."""
    peer, other = port_harness.client(), port_harness.client("other")
    names = len(port_harness.harness.chain_table)
    for number in range(1, 1_101):
        peer.submit(5, stream=number, topic=f"nobody-{number}")
    assert len(port_harness.harness.chain_table) == names
    assert not port_harness.topics.missing.names, "Kafka is not asked for them"
    assert len(peer.heard(Kind.RESEND)) == STREAMS_MAX
    other.submit(1, topic="new")
    assert other.heard(Kind.ACCEPTED)[0][2] == [[1, 1]]
    peer.submit(1, stream=3, topic="nobody-3")
    assert peer.heard(Kind.ACCEPTED)[0][2] == [[3, 1]]


def test_a_client_has_two_hundred_topics_and_the_next_is_refused_without_a_trace(
    port_harness: PortHarness,
) -> None:
    peer = port_harness.client()
    port_harness.shares.refusal = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    harness = port_harness.harness
    for number in range(1, STREAMS_MAX + 2):
        port_harness.holds._take = lambda stream, needed: None  # type: ignore[method-assign]
        peer.submit(1, stream=number, topic=f"t{number}")
    assert [each[1] for each in peer.heard(Kind.REFUSED)] == ["TOO_MANY_STREAMS"]
    assert (0, f"t{STREAMS_MAX}") in harness.chain_table.ids()
    assert (0, f"t{STREAMS_MAX + 1}") not in harness.chain_table.ids()


def test_what_follows_a_refused_first_submission_is_not_asked_for_again(port_harness: PortHarness) -> None:
    """The stub tries again by itself. RESEND made it go back after it had done so, while the worker took what was on
    its way.
    """
    peer = port_harness.client()
    port_harness.topics.open = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    port_harness.topics.is_known = lambda topic: True  # type: ignore[method-assign]
    for seq in (1, 2, 3):
        peer.submit(seq, stream=1, topic="t")
    port_harness.topics.is_known = lambda topic: False  # type: ignore[method-assign]
    peer.submit(1, stream=2, topic="u")
    port_harness.openings._resume(port_harness.openings.queue.take_known(lambda topic: True))
    for seq in (2, 3):
        peer.submit(seq, stream=2, topic="u")
    heard = peer.heard(Kind.REFUSED, Kind.HOLD, Kind.RESUME, Kind.RESEND)
    assert [message[0] for message in heard] == [Kind.REFUSED, Kind.HOLD, Kind.RESUME]


def test_a_stream_at_rest_gives_its_place_and_its_name_to_other_topics(port_harness: PortHarness) -> None:
    peer = port_harness.client()
    port_harness.shares.refusal = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    for number in range(1, STREAMS_MAX + 1):
        take = port_harness.holds._take
        if number > 1:  # a page each is more than there are
            port_harness.holds._take = lambda stream, needed: None  # type: ignore[method-assign]
        peer.submit(stream=number, topic=f"t{number}")
        port_harness.holds._take = take  # type: ignore[method-assign]
    peer.submit(2, stream=1, topic="t1")
    for fields in ([1, 1], [1, 3], [999, 1]):
        peer.send([Kind.END_STREAM, *fields])
    peer.submit(stream=500, topic="one more")
    assert [each[1] for each in peer.heard(Kind.REFUSED)] == ["TOO_MANY_STREAMS"], "none was ended"
    peer.send([Kind.END_STREAM, 1, 2])
    peer.send([Kind.END_STREAM, 1, 2])
    peer.submit(stream=500, topic="one more")
    assert [each[:3] for each in peer.heard(Kind.REFUSED, Kind.HOLD)] == [[Kind.HOLD, 500, 1]], (
        "it has a place"
    )
    again = peer.again(b"again")
    listed = {stream: (topic, position) for stream, topic, position, _ in again.attach()[6]}
    assert (
        1 not in listed and listed[500] == ("one more", 0) and listed[STREAMS_MAX] == (f"t{STREAMS_MAX}", 0)
    )
    row = port_harness.harness.sessions.by_row[0].row
    chain_id = port_harness.topics.get("t1").chain.chain_id  # type: ignore[union-attr]
    assert chain_id not in set(row.chain_ids) | port_harness.harness.sessions.chains_in_use()


def test_a_held_stream_and_one_that_is_not_on_disk_keep_their_places(port_harness: PortHarness) -> None:
    peer = port_harness.client()
    peer.submit()
    session = port_harness.harness.sessions.by_row[0]
    stream = session.streams[1]
    stream.hold_reason = "paused"
    peer.send([Kind.END_STREAM, 1, 1])
    stream.hold_reason, stream.accepted = None, 0
    peer.send([Kind.END_STREAM, 1, 1])
    assert session.streams == {1: stream}
    stream.accepted = 1
    stream.reserved_pages = port_harness.harness.pool.take(1) or []
    taken = port_harness.harness.pool.taken_count
    peer.send([Kind.END_STREAM, 1, 1])
    assert session.streams == {}
    assert port_harness.harness.pool.taken_count == taken - 1
    peer.send([Kind.END_STREAM, 1])
    assert peer.heard(Kind.REFUSED)[0][1] == "MALFORMED_FRAME"


def test_a_drained_daemon_holds_streams_and_keeps_none_of_a_client_that_left(harness: Harness) -> None:
    port_harness = PortHarness(harness)
    port_harness.intake.open_to_records(False)
    stays, leaves = port_harness.client("stays"), port_harness.client("leaves")
    for peer in (stays, leaves):
        peer.submit(1)
        assert [message[0] for message in peer.heard(Kind.HOLD, Kind.ACCEPTED)] == [Kind.HOLD]
    leaves.send([Kind.BYE, True])
    assert len(port_harness.holds._closed) == 1
    port_harness.intake.open_to_records(True)
    port_harness.port.end_turn(port_harness.clock.now_ms())
    assert stays.heard(Kind.RESUME) == [[Kind.RESUME, 1, 1]]
    assert not port_harness.holds._closed
    stays.submit(1)
    assert stays.heard(Kind.HOLD, Kind.ACCEPTED)[0][0] == Kind.ACCEPTED
