"""Goal: whatever bytes come, the end is a message within the limits, a wait, or ZmtpError; and memory is bounded.

Method: what libzmq wrote (``recorded/``) and long messages of our own, changed at random and cut at random. Some 2,000
streams here, 10^6 in the long form.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.frames import FRAMES_MAX, HEADER_BYTES_MAX, LONG, MORE, ZmtpError, encode
from client_stub.zmtp.mechanism import opening
from tests.stub.zmtp.ends import BUFFER_BYTES, as_bytes, client, feed, joined, null_server, server
from tests.stub.zmtp.transcripts import NAMES, our_end, theirs

MESSAGE_BYTES: Final = 100_000
CHANGES: Final = 4


def changed(chance: random.Random, data: bytes) -> bytes:
    """One to four changes, near the begin or near one another more often than not."""
    made = bytearray(data)
    for _ in range(chance.randint(1, CHANGES)):
        at = min(int(chance.expovariate(1 / 60)), len(made) - 1) if chance.random() < 0.5 else -1
        at = at if at >= 0 else chance.randrange(len(made))
        kind = chance.randrange(6)
        if kind == 0:
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[at] = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            made[at:at] = chance.randbytes(chance.randint(1, 12))
        elif kind == 3:
            del made[at : at + chance.randint(1, 12)]
        elif kind == 4:
            made[at : at + 8] = chance.randbytes(8)
        else:
            made[at:at] = made[: chance.randint(1, 40)]
        if not made:
            return b"\0"
    return bytes(made)


def check(chance: random.Random, end: ZmtpConnection, data: bytes, message_bytes_max: int) -> bool:
    """Feed it in random pieces. True if it was refused."""
    got = 0
    refused = False
    try:
        while data:
            cut = chance.choice((1, 3, 50, 5_000, len(data)))
            for message in feed(end, data[:cut]):
                assert 0 < len(message) <= FRAMES_MAX
                assert len(message[0]) <= HEADER_BYTES_MAX
                assert sum(map(len, message)) <= message_bytes_max
            got += len(data[:cut])
            data = data[cut:]
            assert end._buffers.held_bytes <= 2 * got + BUFFER_BYTES, "memory follows what came"
            assert sum(map(len, end.replies)) <= 10 * got + 400
    except ZmtpError as error:
        refused = bool(str(error))
        assert refused
    end.close()
    assert end._buffers.held_bytes == 0
    return refused


def mutate(name: str, streams: int, seed: int) -> None:
    chance, recorded = random.Random(seed), theirs(name)
    refused = 0
    for _ in range(streams):
        end = our_end(name)
        refused += check(chance, end, changed(chance, recorded), 64 << 20)
    assert streams / 3 < refused <= streams


def mutate_long_messages(streams: int, seed: int) -> None:
    """Of an attached client, whose too long messages are skipped."""
    chance = random.Random(seed)

    def message() -> list[bytes]:
        first = [chance.randbytes(chance.choice((0, 3, 300))) for _ in range(chance.randint(1, 5))]
        return [*first, bytes(chance.choice((0, 10, 2_000, 6_000)))]

    for _ in range(streams):
        end = null_server()
        feed(end, opening(b"DEALER"))
        end.skip_long_messages(Buffers(BUFFER_BYTES), 4_000)
        data = b"".join(b"".join(encode(message())) for _ in range(3))
        check(chance, end, changed(chance, data), 4_000)


@pytest.mark.parametrize("name", NAMES)
def test_changed_streams_are_refused_or_read_within_the_limits(name: str) -> None:
    mutate(name, 150 if name.startswith("curve") else 500, seed=31)


def test_changed_long_messages_are_refused_or_skipped() -> None:
    mutate_long_messages(600, seed=31)


@pytest.mark.long
def test_a_million_changed_streams() -> None:
    for name in NAMES:
        mutate(name, 50_000 if name.startswith("curve") else 250_000, seed=1)
    mutate_long_messages(400_000, seed=1)


def curve_pair() -> tuple[ZmtpConnection, ZmtpConnection]:
    ours, theirs_ = client(), server()
    joined(ours, theirs_)
    return ours, theirs_


@pytest.mark.parametrize("is_curve", [False, True], ids=["NULL", "CURVE"])
def test_half_a_message_holds_little_more_than_came_of_it(is_curve: bool) -> None:
    if is_curve:
        ours, end = curve_pair()
        data = as_bytes(ours, b"head", bytes(MESSAGE_BYTES), bytes(MESSAGE_BYTES))
    else:
        end = null_server()
        feed(end, opening(b"DEALER"))
        data = b"".join(encode([b"head", bytes(MESSAGE_BYTES), bytes(MESSAGE_BYTES)]))
    size = len(data)
    for start in range(0, size - 1_000, 1_000):
        assert not feed(end, data[start : start + 1_000])
        assert end._buffers.held_bytes <= 4 * (start + 1_000) + (64 << 10)
    end.close()
    assert end._buffers.held_bytes == 0


@pytest.mark.parametrize("is_curve", [False, True], ids=["NULL", "CURVE"])
def test_frames_kept_of_a_message_that_is_skipped_are_counted(is_curve: bool) -> None:
    kept = [b"head", bytes(3_000)]
    if is_curve:
        ours, end = curve_pair()
        data = as_bytes(ours, *kept, bytes(MESSAGE_BYTES))
    else:
        end = null_server()
        feed(end, opening(b"DEALER"))
        data = b"".join(
            (bytes((MORE, 4)), b"head", bytes((MORE | LONG,)), (3_000).to_bytes(8, "big"), bytes(3_000))
        ) + (bytes((LONG,)) + MESSAGE_BYTES.to_bytes(8, "big") + bytes(MESSAGE_BYTES))
    buffers = Buffers(BUFFER_BYTES)
    end.skip_long_messages(buffers, 4_000)
    cut = len(data) - 50_000
    assert not feed(end, data[:cut])
    assert end.has_part
    assert 3_000 < buffers.held_bytes <= 3_100 + 2 * BUFFER_BYTES
    assert feed(end, data[cut:]) == [kept]
    assert not end.has_part
    assert buffers.held_bytes == 0
