"""Goal: the worker's socket for stubs takes everybody who speaks ZMTP, and nobody else costs it anything.

Method: a real Endpoint under uvloop; libzmq's DEALERs and bare sockets at the other end.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
import zmq

from client_stub.hot import encode
from client_stub.zmtp import SHORT_BUFFER_BYTES, opening
from sidecar.net import endpoint as endpoint_module
from sidecar.net import newcomers as newcomers_module
from sidecar.net import receive_room
from sidecar.net.endpoint import (
    MALFORMED_MAX,
    MESSAGES_PER_TURN_MAX,
    UNATTACHED_BUFFER_BYTES,
    Endpoint,
)
from sidecar.net.peer import GONE, Peer
from sidecar.net.penalties import (
    SKIPPED_BYTES_PER_POINT,
    Penalties,
)
from sidecar.net.receive_room import RECEIVE_BUFFER_BYTES
from sidecar.net.stub_connection import UNATTACHED_BYTES_MAX, UNATTACHED_MESSAGES_MAX

PATIENCE_S = 20.0
MESSAGE_BYTES_MAX = 4 << 20


class Desk:
    """Keeps what came, and answers by the endpoint."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "worker.sock")
        self.messages: list[tuple[bytes, list[bytes]]] = []
        self.turns = 0
        self.endpoint = Endpoint(
            asyncio.get_running_loop(),
            self.path,
            on_message=self._take,
            on_turn_end=self._turn,
            message_bytes_max=MESSAGE_BYTES_MAX,
        )
        self.skipped: list[int] = []
        self.lets_in = True
        """Who sends something has attached."""

    def _take(self, routing_id: bytes, frames: list[memoryview], skipped_bytes: int) -> None:
        self.messages.append((routing_id, [bytes(frame) for frame in frames]))
        self.skipped.append(skipped_bytes)
        if self.lets_in:
            self.endpoint.has_attached(routing_id)

    def _turn(self) -> None:
        self.turns += 1


@asynccontextmanager
async def desk_at(path: Path) -> AsyncIterator[Desk]:
    desk = Desk(path)
    try:
        yield desk
    finally:
        desk.endpoint.close()


def run(test: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (any condition, not one event)
            await asyncio.sleep(0.001)


def dial(desk: Desk) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(PATIENCE_S)
    peer.connect(desk.path)
    return peer


def stub_at(desk: Desk) -> socket.socket:
    peer = dial(desk)
    peer.sendall(opening(b"DEALER"))
    return peer


async def greet(desk: Desk, peer: socket.socket) -> bytes:
    """A first message of ``peer`` has arrived; the routing id it came under."""
    peer.sendall(b"".join(encode([b"hello"])))
    await until(lambda: desk.messages)
    return desk.messages[0][0]


def is_closed(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        while peer.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_libzmq_is_heard_and_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            dealer = context.socket(zmq.DEALER)
            try:
                dealer.connect(f"ipc://{desk.path}")
                payload = os.urandom(2_000_000)
                dealer.send(b"here I am")
                dealer.send_multipart([b"one", payload])
                dealer.send(b"two")
                await until(lambda: len(desk.messages) == 3)
                _, (routing_id, first), (_, second) = desk.messages
                assert (first, second) == ([b"one", payload], [b"two"])
                assert desk.endpoint.peer(routing_id) == Peer(os.getpid(), os.getuid(), os.getgid())
                assert desk.endpoint.send(routing_id, [b"head", b"x" * 100_000]) is True
                await until(lambda: dealer.poll(0))
                assert dealer.recv_multipart() == [b"head", b"x" * 100_000]
            finally:
                context.destroy(linger=0)

    run(test)


def test_a_peer_that_does_not_read_is_written_to_once_more_when_it_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with stub_at(desk) as peer:
                routing_id = await greet(desk, peer)
                sent = 0
                while desk.endpoint.send(routing_id, [b"x" * 50_000]):
                    sent += 1
                    assert sent < 1_000, "nothing bounds what a silent reader may have waiting"
                assert desk.endpoint.send(routing_id, [b"more"]) is False
                turns = desk.turns
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
                assert desk.turns > turns  # the worker had its turn to go on
                assert desk.endpoint.send(routing_id, [b"more"]) is True

    run(test)


def test_who_is_gone_is_told_as_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with stub_at(desk) as peer:
                routing_id = await greet(desk, peer)
            await until(lambda: desk.endpoint.send(routing_id, [b"answer"]) is None)
            await until(lambda: desk.endpoint.peer(routing_id) == GONE)

    run(test)


def test_what_came_before_the_end_is_taken_though_answers_fail(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            told: list[bool | None] = []

            def answer(routing_id: bytes, frames: list[memoryview], skipped_bytes: int) -> None:
                desk.messages.append((routing_id, []))
                desk.endpoint.has_attached(routing_id)
                told.append(desk.endpoint.send(routing_id, [b"answer"]))

            desk.endpoint._on_message = answer
            with stub_at(desk) as peer:
                peer.sendall(b"".join(encode([b"x" * 40_000])) * 4)  # more than one read, and then it is gone
            await until(lambda: len(told) == 4)
            assert told == [True] * 4  # its end is told behind all that it said
            (routing_id,) = {routing_id for routing_id, _ in desk.messages}
            await until(lambda: desk.endpoint.send(routing_id, [b"answer"]) is None)

    run(test)


def test_noise_closes_its_own_connection_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with dial(desk) as noisy, stub_at(desk) as peer:
                noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
                await until(lambda: is_closed(noisy))
                await greet(desk, peer)

    run(test)


def test_a_pinger_that_does_not_read_is_closed(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with stub_at(desk) as peer:
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


def test_a_mute_connection_is_closed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers_module, "ATTACH_S", 0.2)

    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with dial(desk) as mute, stub_at(desk) as peer:
                peer.sendall(b"".join(encode([b"hello"])))
                await until(lambda: is_closed(mute))
                await until(lambda: desk.messages)
                assert not is_closed(peer)

    run(test)


def test_before_its_client_has_attached_a_connection_gets_64_kib_and_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newcomers_module, "ATTACH_S", 0.3)

    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            desk.lets_in = False
            with stub_at(desk) as greedy, stub_at(desk) as slow, stub_at(desk) as one_frame:
                small = b"".join(encode([b"x" * 1_000]))
                with pytest.raises(OSError):
                    async with asyncio.timeout(PATIENCE_S):
                        greedy.setblocking(False)
                        while True:
                            with suppress(BlockingIOError):
                                greedy.send(small)
                            await asyncio.sleep(0)
                heard = len(desk.messages)
                assert heard <= UNATTACHED_BYTES_MAX // len(small)
                one_frame.sendall(b"\x02" + (UNATTACHED_BYTES_MAX + 1).to_bytes(8, "big"))
                await until(lambda: is_closed(one_frame))
                slow.sendall(small)  # it speaks, and does not attach
                await until(lambda: is_closed(slow))
                assert len(desk.messages) == heard + 1

    run(test)


def test_who_has_sent_its_attach_in_time_is_let_in_however_late_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newcomers_module, "ATTACH_S", 0.2)

    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with stub_at(desk) as peer:
                await until(lambda: desk.endpoint._by_id)
                peer.sendall(b"".join(encode([b"hello"])))
                time.sleep(0.3)  # noqa: ASYNC251 (the loop is busy with something else)
                desk.endpoint._newcomers.unattached.look()
                await until(lambda: desk.messages)
                assert not is_closed(peer)

    run(test)


def test_half_messages_of_connections_that_did_not_attach_share_a_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "UNATTACHED_UNFINISHED_BYTES_MAX", 4 * UNATTACHED_BUFFER_BYTES)

    async def test() -> None:
        async with desk_at(tmp_path) as desk, AsyncExitStack() as stack:
            half = [stack.enter_context(stub_at(desk)) for _ in range(12)]
            for peer in half:
                peer.sendall(b"\x01\x05he")
            await until(lambda: sum(map(is_closed, half)) == 8)
            assert not any(map(is_closed, half[8:])), "the oldest give way"
            with stub_at(desk) as peer:
                await greet(desk, peer)

    run(test)


def test_attached_clients_with_half_a_message_take_bounded_memory_and_others_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_room, "UNFINISHED_BYTES_MAX", 8 << 20)
    monkeypatch.setattr(receive_room, "USER_UNFINISHED_BYTES_MAX", 8 << 20)
    monkeypatch.setattr(receive_room, "STALLED_S", 0.2)

    async def test() -> None:
        async with desk_at(tmp_path) as desk, AsyncExitStack() as stack:
            bound = 4 * MESSAGE_BYTES_MAX
            peers = [stack.enter_context(stub_at(desk)) for _ in range(40)]
            for peer in peers:
                peer.sendall(b"".join(encode([b"hello"])))
            await until(lambda: len(desk.messages) == len(peers))
            for peer in peers:  # more than a short buffer holds, of a message that goes on
                peer.sendall(b"\x01\x01h\x02" + (3 << 20).to_bytes(8, "big") + bytes(60_000))
            heard = len(desk.messages)
            with stub_at(desk) as quick, stub_at(desk) as bulk:
                for peer in (quick, bulk):
                    peer.sendall(b"".join(encode([b"hello"])))
                await until(lambda: len(desk.messages) == heard + 2)
                highest = desk.endpoint._room.buffers.held_bytes
                for number in range(20):
                    quick.sendall(b"".join(encode([b"small", b"%d" % number])))
                    await until(lambda: desk.messages[-1][1][0] == b"small")
                    desk.messages.append((b"", [b""]))
                    highest = max(highest, desk.endpoint._room.buffers.held_bytes)
                large = b"".join(encode([b"large", bytes(2 << 20)]))
                bulk.setblocking(False)
                async with asyncio.timeout(PATIENCE_S):
                    while large:
                        with suppress(BlockingIOError):
                            large = large[bulk.send(large) :]
                        await asyncio.sleep(0)
                        highest = max(highest, desk.endpoint._room.buffers.held_bytes)
                await until(lambda: desk.messages[-1][1][0] == b"large")
                assert len(desk.messages[-1][1][1]) == 2 << 20
                assert not is_closed(quick) and not is_closed(bulk)
            assert highest <= bound + 42 * SHORT_BUFFER_BYTES
            assert any(map(is_closed, peers)), "whoever holds half a message gives way"

    run(test)


def test_a_message_over_the_limit_is_told_by_its_header_and_its_connection_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with stub_at(desk) as peer:
                await greet(desk, peer)
                too_long = b"".join(encode([b"head", bytes(MESSAGE_BYTES_MAX)])) + b"".join(encode([b"next"]))
                peer.setblocking(False)
                highest = 0
                async with asyncio.timeout(PATIENCE_S):
                    while too_long:
                        with suppress(BlockingIOError):
                            too_long = too_long[peer.send(too_long) :]
                        await asyncio.sleep(0)
                        highest = max(highest, desk.endpoint._room.buffers.held_bytes)
                await until(lambda: len(desk.messages) == 3)
                assert [frames for _, frames in desk.messages[1:]] == [[b"head"], [b"next"]]
                assert desk.skipped[1:] == [MESSAGE_BYTES_MAX, 0]
                assert highest <= RECEIVE_BUFFER_BYTES

    run(test)


def test_a_thousand_messages_in_one_read_are_taken_in_turns(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with stub_at(desk) as many, stub_at(desk) as other:
                await greet(desk, many)
                await until(lambda: desk.messages)
                turns = desk.turns
                many.sendall(b"".join(encode([b"x"])) * 1_000)
                other.sendall(b"".join(encode([b"other"])))
                await until(lambda: len(desk.messages) == 1_002)
                assert desk.turns - turns >= 1_000 // MESSAGES_PER_TURN_MAX
                place = [frames for _, frames in desk.messages].index([b"other"])
                assert place <= 3 * MESSAGES_PER_TURN_MAX

    run(test)


def test_many_that_send_at_once_are_taken_in_turns_and_none_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "TURN_MS", 0.0)  # each turn ends behind its first connection

    async def test() -> None:
        async with desk_at(tmp_path) as desk, AsyncExitStack() as stack:
            peers = [stack.enter_context(stub_at(desk)) for _ in range(5)]
            for number, peer in enumerate(peers):
                peer.sendall(b"".join(encode([b"%d" % number])) * 400)
            await until(lambda: len(desk.messages) == 2_000)
            order = [frames[0] for _, frames in desk.messages]
            assert Counter(order) == {b"%d" % number: 400 for number in range(5)}
            # In each turn one that had none yet, and one that has more.
            assert max(order.index(b"%d" % number) for number in range(5)) <= 2 * 5 * MESSAGES_PER_TURN_MAX

    run(test)


def test_who_goes_on_sending_nonsense_is_closed(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with stub_at(desk) as peer:
                routing_id = await greet(desk, peer)
                for _ in range(MALFORMED_MAX):
                    desk.endpoint.sent_nonsense(routing_id)
                assert not is_closed(peer)
                desk.endpoint.sent_nonsense(routing_id)
                assert is_closed(peer)

    run(test)


def test_at_the_most_connections_who_did_not_attach_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "CONNECTIONS_MAX", 3)

    async def test() -> None:
        async with desk_at(tmp_path) as desk, AsyncExitStack() as stack:
            first = stack.enter_context(stub_at(desk))
            await greet(desk, first)
            mute = [stack.enter_context(dial(desk)) for _ in range(2)]
            await until(lambda: len(desk.endpoint._by_id) == 3)
            late = [stack.enter_context(stub_at(desk)) for _ in range(2)]
            for peer in late:
                peer.sendall(b"".join(encode([b"hello"])))
            await until(lambda: len(desk.messages) == 3)
            assert all(map(is_closed, mute))
            last = stack.enter_context(stub_at(desk))
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


def test_without_a_descriptor_left_a_stub_is_turned_away_and_the_others_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with (
                stub_at(desk) as peer,
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as late,
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as later,
            ):
                await greet(desk, peer)
                with few_descriptors():
                    late.connect(desk.path)
                    await until(lambda: is_closed(late))
                    peer.sendall(b"".join(encode([b"again"])))
                    await until(lambda: len(desk.messages) == 2)
                later.connect(desk.path)
                later.sendall(opening(b"DEALER") + b"".join(encode([b"later"])))
                await until(lambda: len(desk.messages) == 3)

    run(test)


def test_closing_removes_the_path_and_gives_the_last_words(tmp_path: Path) -> None:
    async def test() -> None:
        desk = Desk(tmp_path)
        with stub_at(desk) as peer:
            routing_id = await greet(desk, peer)
            assert desk.endpoint.send(routing_id, [b"last words"])
            desk.endpoint.close(linger_ms=200)
            assert not Path(desk.path).exists()  # noqa: ASYNC240
            heard = b""
            while part := peer.recv(65_536):
                heard += part
            assert heard.endswith(b"last words")

    run(test)


def test_before_its_client_has_attached_a_connection_has_128_messages(tmp_path: Path) -> None:
    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            desk.lets_in = False
            with stub_at(desk) as peer:
                peer.sendall(b"".join(encode([b"x"])) * UNATTACHED_MESSAGES_MAX)
                await until(lambda: len(desk.messages) == UNATTACHED_MESSAGES_MAX)
                assert not is_closed(peer)
                peer.setblocking(True)
                peer.sendall(b"".join(encode([b"x"])))
                await until(lambda: is_closed(peer))

    run(test)


def test_who_says_little_does_not_wait_for_who_says_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose messages fill a turn were read first in the next one, and who had one message waited for them."""
    monkeypatch.setattr(endpoint_module, "TURN_MS", 0.0)  # each turn ends behind its first connection

    async def test() -> None:
        async with desk_at(tmp_path) as desk, AsyncExitStack() as stack:
            loud = [stack.enter_context(stub_at(desk)) for _ in range(4)]
            quiet = stack.enter_context(stub_at(desk))
            await greet(desk, quiet)
            for peer in loud:
                peer.sendall(b"".join(encode([b"loud"])) * 1_000)
            await until(lambda: len(desk.endpoint._unread) == len(loud))
            came = len(desk.messages)
            quiet.sendall(b"".join(encode([b"quiet"])))
            await until(lambda: any(frames == [b"quiet"] for _, frames in desk.messages))
            place = [frames for _, frames in desk.messages].index([b"quiet"])
            assert place - came <= 2 * MESSAGES_PER_TURN_MAX

    run(test)


def test_a_message_that_is_read_away_is_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[int] = []
    monkeypatch.setattr(Penalties, "charge", lambda self, peer, points, now_s: charged.append(points))

    async def test() -> None:
        async with desk_at(tmp_path) as desk:
            with stub_at(desk) as peer:
                await greet(desk, peer)
                data = b"".join(encode([b"head", bytes(MESSAGE_BYTES_MAX + (3 << 20))]))
                await asyncio.to_thread(peer.sendall, data)
                await until(lambda: len(desk.messages) == 2)
                assert charged == [(MESSAGE_BYTES_MAX + (3 << 20)) // SKIPPED_BYTES_PER_POINT]

    run(test)
