"""Goal: whose connections wait at the gate, how many, and that others come in meanwhile.

Method: a real Endpoint under uvloop and bare sockets; peers of other processes and users by hand.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from client_stub.native.hot import encode
from client_stub.zmtp.mechanism import opening
from sidecar.net.stubs import listener as listener_module
from sidecar.net.stubs import penalties as penalties_module
from sidecar.net.stubs.listener import PARKED_PER_PROCESS_MAX, PARKED_PER_USER_MAX, UNWELCOME_MAX
from sidecar.net.stubs.peer import Peer
from sidecar.net.stubs.penalties import (
    BROKEN_POINTS,
    FREE_POINTS,
    USERS_CONNECTION_POINTS,
    USERS_FREE_POINTS,
    Penalties,
)
from tests.net.harness import dial, greet, harness_at, is_closed, run, stub_at, until

NEIGHBOUR = """
import socket, sys
peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
peer.connect(sys.argv[1])
peer.sendall(bytes.fromhex(sys.argv[2]))
sys.stdin.readline()
"""


def penalise(monkeypatch: pytest.MonkeyPatch, wait_s: float) -> None:
    """Connections of this process wait so long."""
    own = os.getpid()
    monkeypatch.setattr(Penalties, "wait_s", lambda self, peer, now_s: wait_s if peer.pid == own else 0.0)


def test_a_process_that_only_costs_waits_and_its_neighbour_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penalties_module, "POINTS_BACK_A_SECOND", 1.0)  # however slow this machine is

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            for _ in range(FREE_POINTS // BROKEN_POINTS + 1):
                with dial(harness) as noisy:
                    noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    await until(partial(is_closed, noisy))
            hello = opening(b"DEALER") + b"".join(encode([b"neighbour"]))
            with stub_at(harness) as again:
                again.sendall(b"".join(encode([b"again"])))
                await until(lambda: harness.endpoint._listener._parked)
                neighbour = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", NEIGHBOUR, harness.path, hello.hex(), stdin=asyncio.subprocess.PIPE
                )
                try:
                    await until(lambda: len(harness.messages) == 2)
                finally:
                    neighbour.kill()
                    await neighbour.wait()
                assert [frames for _, frames in harness.messages] == [[b"neighbour"], [b"again"]]

    run(test)


def test_of_a_process_that_has_to_wait_four_connections_do_and_the_next_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    penalise(monkeypatch, 0.3)

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            peers = [stack.enter_context(stub_at(harness)) for _ in range(PARKED_PER_PROCESS_MAX + 1)]
            await until(lambda: is_closed(peers[-1]))
            assert not any(map(is_closed, peers[:-1]))
            assert not harness.endpoint._by_id
            for peer in peers[:-1]:
                peer.sendall(b"".join(encode([b"hello"])))
            await until(lambda: len(harness.messages) == PARKED_PER_PROCESS_MAX)
            assert (
                not harness.endpoint._listener._parked_of and not harness.endpoint._listener._parked_of_user
            )

    run(test)


def test_connections_that_wait_have_a_bound_over_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    penalise(monkeypatch, 60.0)
    monkeypatch.setattr(listener_module, "PARKED_MAX", 2)

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            peers = [stack.enter_context(stub_at(harness)) for _ in range(3)]
            await until(lambda: is_closed(peers[2]))
            harness.endpoint.close()
            assert all(map(is_closed, peers)), "who waits is not forgotten at the end"

    run(test)


def each_a_process(monkeypatch: pytest.MonkeyPatch, uids: list[int], pid: int | None = None) -> None:
    """Connections come from these users one after the other, the last for ever: each from a process of its own."""
    pids = itertools.count(1)

    def peer_of(connected: socket.socket) -> Peer:
        uid = uids.pop(0) if len(uids) > 1 else uids[0]
        return Peer(next(pids) if pid is None else pid, uid, uid)

    monkeypatch.setattr(listener_module, "peer_of", peer_of)


def test_processes_that_offend_and_begin_again_wait_as_their_user_and_another_user_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """None of them is beyond its own points. One of the same user that did nothing is late, and let in."""
    offences = int(USERS_FREE_POINTS // (BROKEN_POINTS + USERS_CONNECTION_POINTS)) + 1
    each_a_process(monkeypatch, [*[1_000] * (offences + 1), 2_000])
    monkeypatch.setattr(penalties_module, "USERS_POINTS_BACK_A_SECOND", 1e-6)  # time forgives nothing here
    monkeypatch.setattr(penalties_module, "USERS_WAIT_MAX_S", 3_600.0)

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            for _ in range(offences):
                with dial(harness) as noisy:
                    noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    await until(partial(is_closed, noisy))
            listener = harness.endpoint._listener
            with stub_at(harness) as sibling, stub_at(harness) as neighbour:
                sibling.sendall(b"".join(encode([b"sibling"])))
                neighbour.sendall(b"".join(encode([b"neighbour"])))
                await until(lambda: len(harness.messages) == 1)
                assert [frames for _, frames in harness.messages] == [[b"neighbour"]]
                ((parked, (peer, _, timer)),) = listener._parked.items()
                assert peer.uid == 1_000
                timer.cancel()
                listener._let_in(parked)
                await until(lambda: len(harness.messages) == 2)
            assert not listener._parked_of and not listener._parked_of_user

    run(test)


def test_of_a_user_that_has_to_wait_so_many_connections_do_and_another_user_finds_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of processes that cannot be seen. The next ones of that user are closed, which is said once."""
    monkeypatch.setattr(Penalties, "wait_s", lambda self, peer, now_s: 3_600.0)
    monkeypatch.setattr(listener_module, "UNWELCOME_MAX", 1_000)
    each_a_process(monkeypatch, [*[1_000] * (PARKED_PER_USER_MAX + 5), 2_000], pid=0)

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            peers = [stack.enter_context(dial(harness)) for _ in range(PARKED_PER_USER_MAX + 5)]
            await until(lambda: all(map(is_closed, peers[PARKED_PER_USER_MAX:])))
            other = stack.enter_context(dial(harness))
            await until(lambda: len(harness.endpoint._listener._parked) == PARKED_PER_USER_MAX + 1)
            assert not any(map(is_closed, [*peers[:PARKED_PER_USER_MAX], other]))

    with caplog.at_level("WARNING"):
        run(test)
    (line,) = [each for each in caplog.messages if "are closed" in each]
    assert line.startswith("Connections of uid 1000 are closed: its processes open more than they use well")


def test_a_storm_of_connections_shuts_the_gate_for_moments_and_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            good = stack.enter_context(stub_at(harness))
            await greet(harness, good)
            with monkeypatch.context() as patched:
                patched.setattr(listener_module, "SHUT_S", 3_600.0)
                penalise(patched, 60.0)
                storm = [stack.enter_context(dial(harness)) for _ in range(UNWELCOME_MAX)]
                await until(lambda: harness.endpoint._listener._shut)
                storm.append(stack.enter_context(dial(harness)))
                good.sendall(b"".join(encode([b"meanwhile"])))
                await until(lambda: len(harness.messages) == 2)
                assert [is_closed(peer) for peer in storm] == [
                    *[False] * PARKED_PER_PROCESS_MAX,
                    *[True] * (UNWELCOME_MAX - PARKED_PER_PROCESS_MAX),
                    False,
                ]
            for fd in list(harness.endpoint._listener._shut):
                harness.endpoint._listener._reopen(fd)
            late = stack.enter_context(stub_at(harness))
            late.sendall(b"".join(encode([b"late"])))
            await until(lambda: len(harness.messages) == 3)

    run(test)
