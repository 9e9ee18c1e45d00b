"""Goal: half messages take no more memory than their user and all users together may have."""

from __future__ import annotations

import struct

from client_stub.native.hot import encode
from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.frames import LONG
from client_stub.zmtp.mechanism import opening
from sidecar.net.stubs.receive_memory import SHORT_BUFFER_BYTES, UserBuffers
from tests.stub.zmtp.ends import BUFFER_BYTES, feed, null_client


def test_a_users_buffers_have_their_own_limit_and_count_for_the_whole() -> None:
    size = 4 * SHORT_BUFFER_BYTES
    whole = Buffers(size)
    greedy, other = UserBuffers(whole, 5 * size, 2 * size), UserBuffers(whole, 5 * size, 4 * size)
    lent = [greedy.first() for _ in range(4)]
    assert [len(view) for view in lent] == [size, size, SHORT_BUFFER_BYTES, SHORT_BUFFER_BYTES]
    assert greedy.larger(size) is None, "its limit is reached"
    assert whole.held_bytes == greedy.held_bytes == 2 * (size + SHORT_BUFFER_BYTES)
    mine = other.first()
    assert len(mine) == size, "another share is not touched"
    assert other.larger(size) is None, "the whole has no room for it"
    greedy.give(lent[0])
    larger = other.larger(size)
    assert larger is not None and len(larger) == 2 * size
    for share, views in ((greedy, lent[1:]), (other, [mine, larger])):
        for view in views:
            share.give(view)
    assert (whole.held_bytes, greedy.held_bytes, other.held_bytes) == (0, 0, 0)


def test_half_messages_take_no_more_than_the_limit_and_continue_below_it() -> None:
    limit = 4 * BUFFER_BYTES
    buffers = UserBuffers(Buffers(BUFFER_BYTES), limit, limit)
    half = opening(b"ROUTER") + b"\x01\x01h" + bytes([LONG]) + struct.pack(">Q", 100_000) + b"x" * 10_000
    many = [null_client(buffers) for _ in range(8)]
    for peer in many[:4]:
        feed(peer, half)
    assert buffers.held_bytes >= limit
    quick = null_client(buffers)
    assert feed(quick, opening(b"ROUTER") + b"".join(encode([b"small", b"one"]))) == [[b"small", b"one"]]
    for peer in many[4:]:
        feed(peer, half)
    assert buffers.held_bytes == 4 * (BUFFER_BYTES + SHORT_BUFFER_BYTES)
    stuck = many[0]
    while len(space := stuck.space()):
        stuck.received(len(space))
        assert stuck.next_message() is None
    for peer in many[1:]:
        peer.close()
    assert buffers.held_bytes == BUFFER_BYTES
    assert len(stuck.space())
    stuck.close()
    assert buffers.held_bytes == 0
