"""Goal: a process whose messages change nothing is read more slowly, and nobody else is.

Method: a real Endpoint whose owner calls every message useless; the points of processes are given by hand.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client_stub.native.hot import encode
from sidecar.net.stubs import endpoint as endpoint_module
from sidecar.net.stubs import listener as listener_module
from sidecar.net.stubs import penalties as penalties_module
from sidecar.net.stubs.peer import Peer
from sidecar.net.stubs.penalties import FREE_POINTS, USELESS_POINTS, Penalties
from sidecar.net.stubs.stub_connection import UNATTACHED_FREE_MESSAGES, UNATTACHED_MESSAGES_MAX
from tests.net.harness import Harness, greet, harness_at, run, stub_at, until

FREE = int(FREE_POINTS / USELESS_POINTS)
MESSAGE = b"".join(encode([b"useless"]))


def judge(harness: Harness, routing_id: bytes) -> None:
    """From now on the owner calls each message of this connection useless."""
    take = harness.endpoint._on_message

    def on_message(sender: bytes, frames: list[memoryview], skipped_bytes: int) -> None:
        take(sender, frames, skipped_bytes)
        if sender == routing_id:
            harness.endpoint.sent_useless(sender)

    harness.endpoint._on_message = on_message


def as_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    pids = iter([4711, 4712])
    monkeypatch.setattr(listener_module, "peer_of", lambda connected: Peer(next(pids), 0, 0))


def test_a_connection_with_useless_messages_is_read_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_two_processes(monkeypatch)
    # A turn may end just above the free points. Then the first rest is as long as any other, too.
    monkeypatch.setattr(penalties_module, "POINTS_BACK_A_SECOND", 1.0)

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as flood, stub_at(harness) as quiet:
                routing_id = await greet(harness, flood)
                quiet.sendall(MESSAGE)
                await until(lambda: len(harness.messages) == 2)
                judge(harness, routing_id)
                flood.sendall(MESSAGE * (FREE + 200))
                connection = harness.endpoint._by_id[routing_id]
                await until(lambda: connection.is_resting)
                heard = len(harness.messages)
                assert heard >= FREE
                quiet.sendall(MESSAGE)
                await until(lambda: len(harness.messages) > heard)
                assert harness.messages[heard][0] != routing_id, "the other is heard meanwhile"
                assert connection.is_resting
                await until(lambda: len(harness.messages) == FREE + 200 + 3)  # all of it, in the end

    run(test)


def test_one_that_leaves_while_it_rests_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "REST_MAX_S", 1_000.0)
    monkeypatch.setattr(penalties_module, "POINTS_BACK_A_SECOND", 0.01)  # none on a machine that stands still
    monkeypatch.setattr(listener_module, "peer_of", lambda connected: Peer(os.getpid(), 0, 0))

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with stub_at(harness) as flood:
                routing_id = await greet(harness, flood)
                judge(harness, routing_id)
                flood.sendall(MESSAGE * (FREE + 64))
                await until(lambda: harness.endpoint._by_id[routing_id].is_resting)
            await until(lambda: not harness.endpoint._by_id)
            assert len(harness.messages) == FREE + 64 + 1

    run(test)


def test_messages_of_one_that_does_not_attach_are_paid_for_beyond_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of connections with 127 HELLOs each cost its process no more than the connections."""
    charged: list[float] = []
    monkeypatch.setattr(Penalties, "charge", lambda self, peer, points, now_s: charged.append(points))

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            harness.lets_in = False
            with stub_at(harness) as peer:
                for sent in (UNATTACHED_FREE_MESSAGES, UNATTACHED_FREE_MESSAGES + 1, UNATTACHED_MESSAGES_MAX):
                    peer.sendall(MESSAGE * (sent - len(harness.messages)))
                    await until(lambda sent=sent: len(harness.messages) == sent)  # type: ignore[misc]
                    assert sum(charged) == USELESS_POINTS * (sent - UNATTACHED_FREE_MESSAGES)

    run(test)
