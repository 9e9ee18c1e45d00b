"""Goal: messages come out as they went in, however the bytes are cut; who speaks something else is refused.

Method: connections fed by hand. (For libzmq at the other end see test_interop.py.)
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_stub.native.hot import encode
from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import COMMAND_BYTES_MAX, SKIPPED_BYTES_MAX, ZmtpConnection
from client_stub.zmtp.frames import (
    COMMAND,
    FRAMES_MAX,
    HEADER_BYTES_MAX,
    LONG,
    MESSAGE_BYTES_MAX,
    MORE,
    ZmtpError,
    unsent,
)
from client_stub.zmtp.mechanism import GREETING_BYTES, opening
from tests.stub.zmtp.ends import BUFFER_BYTES, feed, null_client


def as_bytes(frames: list[bytes]) -> bytes:
    return b"".join(encode(frames))


def frames_of(size_max: int) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=300), st.integers(0, size_max).map(lambda size: b"x" * size))


frames_lists = st.lists(
    st.tuples(frames_of(HEADER_BYTES_MAX), st.lists(frames_of(70_000), max_size=3)).map(
        lambda frames: [frames[0], *frames[1]]
    ),
    max_size=8,
)


@given(messages=frames_lists, cuts=st.lists(st.integers(1, 40_000), max_size=12), are_kept=st.booleans())
def test_whatever_the_cuts_the_messages_are_the_same(
    messages: list[list[bytes]], cuts: list[int], are_kept: bool
) -> None:
    data = opening(b"ROUTER") + b"".join(as_bytes(each) for each in messages)
    peer = null_client(Buffers(BUFFER_BYTES, are_kept=are_kept))
    found: list[list[bytes]] = []
    for cut in cuts:
        found += feed(peer, data[:cut])
        data = data[cut:]
    found += feed(peer, data)
    assert found == messages
    assert peer.is_ready


@given(frames=st.lists(st.binary(max_size=9_000), min_size=1, max_size=4), sent=st.integers(0, 40_000))
def test_the_rest_after_a_short_write(frames: list[bytes], sent: int) -> None:
    buffers = encode(frames)
    whole = b"".join(buffers)
    assert b"".join(unsent(buffers, sent)) == whole[sent:]


def test_a_large_frame_is_not_copied() -> None:
    payload = memoryview(bytes(100_000))
    buffers = encode([b"header", payload])
    assert buffers[-1] is payload
    assert buffers[0] == b"\x01\x06header\x02" + struct.pack(">Q", 100_000)


def test_a_connection_without_half_a_message_holds_no_buffer() -> None:
    buffers = Buffers(BUFFER_BYTES)
    one, two = null_client(buffers), null_client(buffers)
    feed(one, opening(b"ROUTER") + as_bytes([b"whole"]))
    lent = buffers.first()
    buffers.give(lent)
    feed(two, opening(b"ROUTER"))
    assert buffers.first() is lent
    assert feed(one, as_bytes([b"again"])) == [[b"again"]]


def test_a_kept_buffer_stays_until_it_has_grown_or_its_connection_closes() -> None:
    buffers = Buffers(BUFFER_BYTES, are_kept=True)
    peer = null_client(buffers)
    feed(peer, opening(b"ROUTER") + as_bytes([b"short"]))
    assert buffers.held_bytes == len(peer.space()) == BUFFER_BYTES, "all of it is free again"
    assert feed(peer, as_bytes([b"head", b"x" * 3 * BUFFER_BYTES]))
    assert buffers.held_bytes == 0, "the grown one is not kept"
    feed(peer, as_bytes([b"short"]))
    peer.close()
    assert buffers.held_bytes == 0


def test_memory_follows_what_came_not_what_was_announced() -> None:
    peer = null_client()
    announced = bytes([MORE, 1]) + b"h" + bytes([LONG]) + struct.pack(">Q", MESSAGE_BYTES_MAX - 12)
    feed(peer, opening(b"ROUTER") + announced + b"x" * 100)
    assert len(peer.space()) < BUFFER_BYTES


def test_a_first_frame_has_64_kib_and_not_a_byte_more() -> None:
    at_it = b"x" * HEADER_BYTES_MAX
    assert feed(null_client(), opening(b"ROUTER") + as_bytes([at_it, b"y"])) == [[at_it, b"y"]]
    peer = null_client()
    with pytest.raises(ZmtpError, match="first frame of more than 65536"):
        # It is refused by its length: none of it need come.
        feed(peer, opening(b"ROUTER") + bytes([LONG]) + struct.pack(">Q", HEADER_BYTES_MAX + 1))


def skipping(message_bytes_max: int) -> ZmtpConnection:
    peer = null_client()
    peer.skip_long_messages(Buffers(BUFFER_BYTES), message_bytes_max)
    return peer


@given(
    sizes=st.lists(st.integers(0, 5_000), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 900), max_size=40),
)
def test_a_message_over_the_limit_is_told_by_its_size_and_the_next_one_is_whole(
    sizes: list[int], cuts: list[int]
) -> None:
    limit = 1_000
    messages = [[b"h%d" % size, b"x" * size] for size in sizes]
    data = opening(b"ROUTER") + b"".join(as_bytes(each) for each in messages)
    peer = skipping(limit)
    found: list[tuple[list[bytes], int]] = []
    for cut in [*cuts, len(data)]:
        piece, data = data[:cut], data[cut:]
        while piece:
            space = peer.space()
            count = min(len(space), len(piece))
            space[:count] = piece[:count]
            peer.received(count)
            piece = piece[count:]
            while (frames := peer.next_message()) is not None:
                found.append(([bytes(frame) for frame in frames], peer.skipped_bytes))
    expected = [
        ([head], len(body)) if len(as_bytes([head, body])) > limit else ([head, body], 0)
        for head, body in messages
    ]
    assert found == expected
    assert not peer.has_part


def test_frames_after_one_that_is_too_long_are_skipped_with_it() -> None:
    peer = skipping(1_000)
    data = as_bytes([b"head", b"kept", b"x" * 2_000, b"y" * 300, b""])
    assert feed(peer, opening(b"ROUTER") + data) == [[b"head", b"kept"]]
    assert peer.skipped_bytes == 0  # of what was looked for behind it
    assert feed(peer, as_bytes([b"next"])) == [[b"next"]]


@pytest.mark.parametrize(
    "behind",
    [
        bytes([LONG]) + struct.pack(">Q", SKIPPED_BYTES_MAX + 1),
        bytes([LONG | MORE]) + struct.pack(">Q", 5_000) + bytes(5_000) + b"\x05\x00",
        bytes([LONG | MORE]) + struct.pack(">Q", 5_000) + bytes(5_000) + b"\x01\x00" * FRAMES_MAX,
    ],
    ids=["endless", "a command inside", "too many frames"],
)
def test_a_skipped_message_has_its_bounds(behind: bytes) -> None:
    with pytest.raises(ZmtpError):
        feed(skipping(1_000), opening(b"ROUTER") + b"\x01\x01h" + behind)


def test_a_command_has_one_kibibyte_and_before_ready_that_is_all() -> None:
    greeting, ready = opening(b"ROUTER")[:GREETING_BYTES], opening(b"ROUTER")[GREETING_BYTES:]
    announced = bytes([COMMAND | LONG]) + struct.pack(">Q", COMMAND_BYTES_MAX + 1)
    for before in (greeting, greeting + ready):
        with pytest.raises(ZmtpError, match=f"a command of more than {COMMAND_BYTES_MAX} bytes"):
            feed(null_client(), before + announced)
    with pytest.raises(ZmtpError, match="a command of more than"):
        feed(null_client(), greeting + bytes([LONG]) + struct.pack(">Q", COMMAND_BYTES_MAX + 1))
    padding = b"\x01x" + struct.pack(">I", 900) + bytes(900)
    body = ready[2:] + padding
    longest = bytes([COMMAND | LONG]) + struct.pack(">Q", len(body)) + body
    assert len(longest) <= COMMAND_BYTES_MAX
    peer = null_client()
    assert feed(peer, greeting + longest + as_bytes([b"hello"])) == [[b"hello"]]


GREETING = opening(b"ROUTER")[:GREETING_BYTES]
READY = opening(b"ROUTER")[GREETING_BYTES:]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"GET / HTTP/1.1\r\n", "does not speak ZMTP"),
        (b"\xff" + bytes(8) + b"\x00", "does not speak ZMTP"),
        (b"\xff" + bytes(8) + b"\x7f\x02", "version 2"),
        (GREETING[:12] + b"PLAIN".ljust(20, b"\0") + GREETING[32:], "PLAIN"),
        (opening(b"PUB"), "its socket is of the type b'PUB', not ROUTER"),
        (GREETING + as_bytes([b"too early"]), "flags 0x0"),
        (GREETING + b"\x04\x06\x05HELLO", "before READY"),
        (GREETING + b"\x04\x07\x05ERROR\x00", "refuses"),
        (GREETING + b"\x04\x03\x09REA", "ends in the middle"),
        (GREETING + b"\x04\x0c\x05READY\x01a\x00\x00\x00\x09", "ends in the middle"),
        (GREETING + READY + bytes([LONG]) + struct.pack(">Q", 1 << 63), "bytes"),
        (GREETING + READY + b"\x08\x00", "flags 0x8"),
        (GREETING + READY + bytes([COMMAND | MORE, 0]), "flags 0x5"),
        (GREETING + READY + b"\x01\x00" + b"\x04\x06\x04PING\x00", "flags 0x4"),
        (GREETING + READY + b"\x01\x00" * (FRAMES_MAX + 1), "frames"),
    ],
)
def test_bytes_that_break_the_rules_are_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(ZmtpError, match=sentence):
        feed(null_client(), data)


@given(data=st.binary(min_size=1, max_size=400))
def test_noise_is_refused_or_waited_for_never_more(data: bytes) -> None:
    for begin in (b"", GREETING, GREETING + READY):
        try:
            feed(null_client(), begin + data)
        except ZmtpError as error:
            assert str(error)


def test_a_ping_is_answered() -> None:
    peer = null_client()
    feed(peer, opening(b"ROUTER") + b"\x04\x0a\x04PING\x00\x10abc")
    assert peer.replies == [b"\x04\x08\x04PONGabc"]
