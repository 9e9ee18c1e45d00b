"""Goal: the worker's socket for stubs takes everybody who speaks ZMTP, and nobody else costs it anything.

Method: a real Endpoint under uvloop; libzmq's DEALERs and bare sockets at the other end.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
import termios
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import zmq

from client_stub.native.hot import encode
from client_stub.zmtp.mechanism import opening
from sidecar.net.stubs import endpoint as endpoint_module
from sidecar.net.stubs.endpoint import (
    MALFORMED_MAX,
    MESSAGES_PER_TURN_MAX,
)
from sidecar.net.stubs.peer import GONE, Peer
from tests.net.harness import Harness, dial, greet, harness_at, is_closed, run, stub_at, until
from tests.patience import PATIENCE_S


def test_libzmq_is_heard_and_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            dealer = context.socket(zmq.DEALER)
            try:
                dealer.connect(f"ipc://{harness.path}")
                payload = os.urandom(2_000_000)
                dealer.send(b"here I am")
                dealer.send_multipart([b"one", payload])
                dealer.send(b"two")
                await until(lambda: len(harness.messages) == 3)
                _, (routing_id, first), (_, second) = harness.messages
                assert (first, second) == ([b"one", payload], [b"two"])
                assert harness.endpoint.peer(routing_id) == Peer(os.getpid(), os.getuid(), os.getgid())
                assert harness.endpoint.send(routing_id, [b"head", b"x" * 100_000]) is True
                await until(lambda: dealer.poll(0))
                assert dealer.recv_multipart() == [b"head", b"x" * 100_000]
            finally:
                context.destroy(linger=0)

    run(test)


@pytest.mark.parametrize("kind", ["PAIR", "PUB", "PUSH", "REP", "REQ", "SUB"])
def test_a_socket_of_a_wrong_type_is_refused_by_its_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with dial(harness) as peer:
                peer.sendall(opening(kind.encode()) + b"".join(encode([b"", b"question"])))
                await until(lambda: is_closed(peer))
            assert not harness.messages

    run(test)
    words = f"is closed: its socket is of the type b'{kind}', not DEALER or ROUTER."
    assert caplog.records[0].getMessage().endswith(words)


def test_a_req_of_libzmq_is_refused_and_not_left_without_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            try:
                asking = context.socket(zmq.REQ)
                asking.connect(f"ipc://{harness.path}")
                asking.send(b"let in, and never answered")
                await until(lambda: caplog.records)
            finally:
                context.destroy(linger=0)
            assert not harness.messages

    run(test)
    assert "its socket is of the type b'REQ', not DEALER or ROUTER" in caplog.records[0].getMessage()


def test_a_peer_that_does_not_read_is_written_to_once_more_when_it_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as peer:
                routing_id = await greet(harness, peer)
                sent = 0
                while harness.endpoint.send(routing_id, [b"x" * 50_000]):
                    sent += 1
                    assert sent < 1_000, "nothing bounds what a silent reader may have waiting"
                assert harness.endpoint.send(routing_id, [b"more"]) is False
                turns = harness.turns
                wanted = len(opening(b"ROUTER")) + sent * len(b"".join(encode([b"x" * 50_000])))
                got = 0
                peer.setblocking(False)
                async with asyncio.timeout(PATIENCE_S):
                    while got < wanted:
                        try:
                            got += len(peer.recv(1 << 20))
                        except BlockingIOError:
                            await asyncio.sleep(0)
                assert got == wanted
                assert harness.turns > turns  # the worker had its turn to go on
                assert harness.endpoint.send(routing_id, [b"more"]) is True

    run(test)


def test_a_closed_connection_is_reported_as_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as peer:
                routing_id = await greet(harness, peer)
            await until(lambda: harness.endpoint.send(routing_id, [b"answer"]) is None)
            await until(lambda: harness.endpoint.peer(routing_id) == GONE)

    run(test)


def test_messages_before_the_end_are_taken_though_answers_fail(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            told: list[bool | None] = []

            def answer(routing_id: bytes, frames: list[memoryview], skipped_bytes: int) -> None:
                harness.messages.append((routing_id, []))
                harness.endpoint.has_attached(routing_id)
                told.append(harness.endpoint.send(routing_id, [b"answer"]))

            harness.endpoint._on_message = answer
            with stub_at(harness) as peer:
                peer.sendall(b"".join(encode([b"x" * 40_000])) * 4)  # more than one read, and then it is gone
            await until(lambda: len(told) == 4)
            assert told == [True] * 4  # its end is told behind all that it said
            (routing_id,) = {routing_id for routing_id, _ in harness.messages}
            await until(lambda: harness.endpoint.send(routing_id, [b"answer"]) is None)

    run(test)


def test_noise_closes_its_own_connection_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with dial(harness) as noisy, stub_at(harness) as peer:
                noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
                await until(lambda: is_closed(noisy))
                await greet(harness, peer)

    run(test)


def test_a_pinger_that_does_not_read_is_closed(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as peer:
                peer.setblocking(False)
                ping = b"\x04\x17\x04PING\x00\x10" + b"c" * 16
                async with asyncio.timeout(PATIENCE_S):
                    with pytest.raises((BrokenPipeError, ConnectionResetError)):
                        while True:
                            try:
                                peer.send(ping * 1_000)
                            except BlockingIOError:
                                await asyncio.sleep(0)

    run(test)


def test_the_owner_has_a_turn_after_whole_messages_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as peer:
                await greet(harness, peer)
                turns = harness.turns
                message = b"".join(encode([b"x" * 100]))
                peer.sendall(message[:50])
                await until(lambda: not _unread_bytes(peer))
                assert harness.turns == turns, "a part of a message came"
                peer.sendall(message[50:] + message)
                await until(lambda: len(harness.messages) == 3)
                assert harness.turns == turns + 1, "one turn for all that came"

    run(test)


def _unread_bytes(peer: socket.socket) -> int:
    """Bytes, with the kernel's overhead, that were written to ``peer`` and not read at the other end."""
    return int.from_bytes(fcntl.ioctl(peer, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def test_a_thousand_messages_in_one_read_are_taken_in_turns(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as many, stub_at(harness) as other:
                await greet(harness, many)
                await until(lambda: harness.messages)
                turns = harness.turns
                many.sendall(b"".join(encode([b"x"])) * 1_000)
                other.sendall(b"".join(encode([b"other"])))
                await until(lambda: len(harness.messages) == 1_002)
                assert harness.turns - turns >= 1_000 // MESSAGES_PER_TURN_MAX
                place = [frames for _, frames in harness.messages].index([b"other"])
                assert place <= 3 * MESSAGES_PER_TURN_MAX

    run(test)


def test_many_that_send_at_once_are_taken_in_turns_and_none_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "TURN_MS", 0.0)  # each turn ends behind its first connection

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            peers = [stack.enter_context(stub_at(harness)) for _ in range(5)]
            for number, peer in enumerate(peers):
                peer.sendall(b"".join(encode([b"%d" % number])) * 400)
            await until(lambda: len(harness.messages) == 2_000)
            order = [frames[0] for _, frames in harness.messages]
            assert Counter(order) == {b"%d" % number: 400 for number in range(5)}
            # In each turn one that had none yet, and one that has more.
            assert max(order.index(b"%d" % number) for number in range(5)) <= 2 * 5 * MESSAGES_PER_TURN_MAX

    run(test)


def test_a_connection_that_continues_with_nonsense_is_closed(tmp_path: Path) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as peer:
                routing_id = await greet(harness, peer)
                for _ in range(MALFORMED_MAX):
                    harness.endpoint.sent_nonsense(routing_id)
                assert not is_closed(peer)
                harness.endpoint.sent_nonsense(routing_id)
                assert is_closed(peer)

    run(test)


def test_closing_removes_the_path_and_gives_the_last_words(tmp_path: Path) -> None:
    async def test() -> None:
        harness = Harness(tmp_path)
        with stub_at(harness) as peer:
            routing_id = await greet(harness, peer)
            assert harness.endpoint.send(routing_id, [b"last words"])
            harness.endpoint.close(linger_ms=200)
            assert not Path(harness.path).exists()  # noqa: ASYNC240
            heard = b""
            while part := peer.recv(65_536):
                heard += part
            assert heard.endswith(b"last words")

    run(test)


def test_a_quiet_connection_does_not_wait_for_busy_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose messages fill a turn were read first in the next one, and who had one message waited for them."""
    monkeypatch.setattr(endpoint_module, "TURN_MS", 0.0)  # each turn ends behind its first connection

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            loud = [stack.enter_context(stub_at(harness)) for _ in range(4)]
            quiet = stack.enter_context(stub_at(harness))
            await greet(harness, quiet)
            for peer in loud:
                peer.sendall(b"".join(encode([b"loud"])) * 1_000)
            await until(lambda: len(harness.endpoint._unread) == len(loud))
            came = len(harness.messages)
            quiet.sendall(b"".join(encode([b"quiet"])))
            await until(lambda: any(frames == [b"quiet"] for _, frames in harness.messages))
            place = [frames for _, frames in harness.messages].index([b"quiet"])
            assert place - came <= 2 * MESSAGES_PER_TURN_MAX

    run(test)
