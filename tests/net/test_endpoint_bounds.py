"""Goal: what a peer sends takes bounded memory, descriptors and time of the worker's socket, and others are heard.

Method: as in test_endpoint.py.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from client_stub.native.hot import encode
from client_stub.zmtp.mechanism import opening
from sidecar.net.stubs import endpoint as endpoint_module
from sidecar.net.stubs import pending as pending_module
from sidecar.net.stubs import receive_memory
from sidecar.net.stubs.endpoint import (
    UNATTACHED_BUFFER_BYTES,
)
from sidecar.net.stubs.penalties import (
    SKIPPED_BYTES_PER_POINT,
    Penalties,
)
from sidecar.net.stubs.receive_memory import RECEIVE_BUFFER_BYTES, SHORT_BUFFER_BYTES
from sidecar.net.stubs.stub_connection import UNATTACHED_BYTES_MAX, UNATTACHED_MESSAGES_MAX
from tests.net.harness import MESSAGE_BYTES_MAX, dial, greet, harness_at, is_closed, run, stub_at, until
from tests.patience import PATIENCE_S


def test_a_mute_connection_is_closed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_module, "ATTACH_S", 0.2)

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with dial(harness) as mute, stub_at(harness) as peer:
                peer.sendall(b"".join(encode([b"hello"])))
                await until(lambda: is_closed(mute))
                await until(lambda: harness.messages)
                assert not is_closed(peer)

    run(test)


def test_before_its_client_has_attached_a_connection_gets_64_kib_and_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "ATTACH_S", 0.3)

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            harness.lets_in = False
            with stub_at(harness) as greedy, stub_at(harness) as slow, stub_at(harness) as one_frame:
                small = b"".join(encode([b"x" * 1_000]))
                with pytest.raises(OSError):
                    async with asyncio.timeout(PATIENCE_S):
                        greedy.setblocking(False)
                        while True:
                            with suppress(BlockingIOError):
                                greedy.send(small)
                            await asyncio.sleep(0)
                heard = len(harness.messages)
                assert heard <= UNATTACHED_BYTES_MAX // len(small)
                one_frame.sendall(b"\x02" + (UNATTACHED_BYTES_MAX + 1).to_bytes(8, "big"))
                await until(lambda: is_closed(one_frame))
                slow.sendall(small)  # it speaks, and does not attach
                await until(lambda: is_closed(slow))
                assert len(harness.messages) == heard + 1

    run(test)


def test_an_attach_sent_in_time_is_taken_however_late_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "ATTACH_S", 0.2)

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as peer:
                await until(lambda: harness.endpoint._by_id)
                peer.sendall(b"".join(encode([b"hello"])))
                time.sleep(0.3)  # noqa: ASYNC251 (the loop is busy with something else)
                harness.endpoint._pending.unattached.check()
                await until(lambda: harness.messages)
                assert not is_closed(peer)

    run(test)


def test_half_messages_of_connections_that_did_not_attach_share_a_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "UNATTACHED_UNFINISHED_BYTES_MAX", 4 * UNATTACHED_BUFFER_BYTES)

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            half = [stack.enter_context(stub_at(harness)) for _ in range(12)]
            for peer in half:
                peer.sendall(b"\x01\x05he")
            await until(lambda: sum(map(is_closed, half)) == 8)
            assert not any(map(is_closed, half[8:])), "the oldest give way"
            with stub_at(harness) as peer:
                await greet(harness, peer)

    run(test)


def test_attached_clients_with_half_a_message_take_bounded_memory_and_others_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_memory, "UNFINISHED_BYTES_MAX", 8 << 20)
    monkeypatch.setattr(receive_memory, "USER_UNFINISHED_BYTES_MAX", 8 << 20)
    monkeypatch.setattr(receive_memory, "STALLED_S", 0.2)

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            bound = 4 * MESSAGE_BYTES_MAX
            peers = [stack.enter_context(stub_at(harness)) for _ in range(40)]
            for peer in peers:
                peer.sendall(b"".join(encode([b"hello"])))
            await until(lambda: len(harness.messages) == len(peers))
            for peer in peers:  # more than a short buffer holds, of a message that goes on
                peer.sendall(b"\x01\x01h\x02" + (3 << 20).to_bytes(8, "big") + bytes(60_000))
            heard = len(harness.messages)
            with stub_at(harness) as quick, stub_at(harness) as bulk:
                for peer in (quick, bulk):
                    peer.sendall(b"".join(encode([b"hello"])))
                await until(lambda: len(harness.messages) == heard + 2)
                highest = harness.endpoint._memory.buffers.held_bytes
                for number in range(20):
                    quick.sendall(b"".join(encode([b"small", b"%d" % number])))
                    await until(lambda: harness.messages[-1][1][0] == b"small")
                    harness.messages.append((b"", [b""]))
                    highest = max(highest, harness.endpoint._memory.buffers.held_bytes)
                large = b"".join(encode([b"large", bytes(2 << 20)]))
                bulk.setblocking(False)
                async with asyncio.timeout(PATIENCE_S):
                    while large:
                        with suppress(BlockingIOError):
                            large = large[bulk.send(large) :]
                        await asyncio.sleep(0)
                        highest = max(highest, harness.endpoint._memory.buffers.held_bytes)
                await until(lambda: harness.messages[-1][1][0] == b"large")
                assert len(harness.messages[-1][1][1]) == 2 << 20
                assert not is_closed(quick) and not is_closed(bulk)
            assert highest <= bound + 42 * SHORT_BUFFER_BYTES
            assert any(map(is_closed, peers)), "whoever holds half a message gives way"

    run(test)


def test_a_message_over_the_limit_is_told_by_its_header_and_its_connection_continues(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as peer:
                await greet(harness, peer)
                too_long = b"".join(encode([b"head", bytes(MESSAGE_BYTES_MAX)])) + b"".join(encode([b"next"]))
                peer.setblocking(False)
                highest = 0
                async with asyncio.timeout(PATIENCE_S):
                    while too_long:
                        with suppress(BlockingIOError):
                            too_long = too_long[peer.send(too_long) :]
                        await asyncio.sleep(0)
                        highest = max(highest, harness.endpoint._memory.buffers.held_bytes)
                await until(lambda: len(harness.messages) == 3)
                assert [frames for _, frames in harness.messages[1:]] == [[b"head"], [b"next"]]
                assert harness.skipped[1:] == [MESSAGE_BYTES_MAX, 0]
                assert highest <= RECEIVE_BUFFER_BYTES

    run(test)


def test_at_the_most_connections_who_did_not_attach_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "CONNECTIONS_MAX", 3)

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            first = stack.enter_context(stub_at(harness))
            await greet(harness, first)
            mute = [stack.enter_context(dial(harness)) for _ in range(2)]
            await until(lambda: len(harness.endpoint._by_id) == 3)
            late = [stack.enter_context(stub_at(harness)) for _ in range(2)]
            for peer in late:
                peer.sendall(b"".join(encode([b"hello"])))
            await until(lambda: len(harness.messages) == 3)
            assert all(map(is_closed, mute))
            last = stack.enter_context(stub_at(harness))
            await until(lambda: is_closed(last))
            assert not any(map(is_closed, [first, *late]))

    run(test)


@contextmanager
def few_descriptors() -> Iterator[None]:
    """None is left beyond those that are open now; gaps between them are filled for as long."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 (numbers, not paths)
    fillers = [os.dup(0)]
    while fillers[-1] < highest:
        fillers.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)


def test_without_a_descriptor_left_a_stub_is_turned_away_and_the_others_continue(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with (
                stub_at(harness) as peer,
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as late,
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as later,
            ):
                await greet(harness, peer)
                with few_descriptors():
                    late.connect(harness.path)
                    await until(lambda: is_closed(late))
                    peer.sendall(b"".join(encode([b"again"])))
                    await until(lambda: len(harness.messages) == 2)
                later.connect(harness.path)
                later.sendall(opening(b"DEALER") + b"".join(encode([b"later"])))
                await until(lambda: len(harness.messages) == 3)

    run(test)


def test_before_its_client_has_attached_a_connection_has_128_messages(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            harness.lets_in = False
            with stub_at(harness) as peer:
                peer.sendall(b"".join(encode([b"x"])) * UNATTACHED_MESSAGES_MAX)
                await until(lambda: len(harness.messages) == UNATTACHED_MESSAGES_MAX)
                assert not is_closed(peer)
                peer.setblocking(True)
                peer.sendall(b"".join(encode([b"x"])))
                await until(lambda: is_closed(peer))

    run(test)


def test_a_message_that_is_read_away_is_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[int] = []
    monkeypatch.setattr(Penalties, "charge", lambda self, peer, points, now_s: charged.append(points))

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as peer:
                await greet(harness, peer)
                data = b"".join(encode([b"head", bytes(MESSAGE_BYTES_MAX + (3 << 20))]))
                await asyncio.to_thread(peer.sendall, data)
                await until(lambda: len(harness.messages) == 2)
                assert charged == [(MESSAGE_BYTES_MAX + (3 << 20)) // SKIPPED_BYTES_PER_POINT]

    run(test)
