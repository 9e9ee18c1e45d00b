"""Goal: connections that never attach leave room for everybody else, whatever one user opens.

Method: the table by itself, and a real Endpoint whose peers are given users by hand (a test has one user).
"""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from client_stub.native.hot import encode
from client_stub.zmtp.buffers import Buffers
from sidecar.net.stubs import endpoint as endpoint_module
from sidecar.net.stubs import listener as listener_module
from sidecar.net.stubs import receive_memory
from sidecar.net.stubs.peer import Peer, peer_of
from sidecar.net.stubs.receive_memory import RECEIVE_BUFFER_BYTES, SHORT_BUFFER_BYTES
from sidecar.net.stubs.stub_connection import StubConnection
from sidecar.net.stubs.unattached import PER_FREE, Unattached
from tests.net.harness import MESSAGE_BYTES_MAX, dial, harness_at, is_closed, run, stub_at, until

PLACES = 64


def connection(pid: int, uid: int) -> StubConnection:
    return StubConnection(socket.socket(socket.AF_UNIX), Peer(pid, uid, uid), b"", Buffers(1))


def open_all(table: Unattached, open_: list[StubConnection], peers: list[Peer]) -> list[StubConnection]:
    """Open one connection for each peer; those that gave way."""
    gone = []
    for peer in peers:
        given = table.gives_way(peer, PLACES - len(open_))
        if given is not None:
            table.remove(given)
            open_.remove(given)
            given.socket.close()
            gone.append(given)
        open_.append(connection(peer.pid, peer.uid))
        table.add(open_[-1], 0.0)
    return gone


def test_one_user_has_three_quarters_and_newcomers_of_others_find_places() -> None:
    table, opened = Unattached(), list[StubConnection]()
    gone = open_all(table, opened, [Peer(1, 100, 100)] * 1_000)
    assert len(opened) == PLACES * PER_FREE // (PER_FREE + 1)
    assert {each.peer.uid for each in gone} == {100}
    for uid in range(101, 151):
        gone = open_all(table, opened, [Peer(uid, uid, uid)])
        assert {each.peer.uid for each in gone} <= {100}, "nobody else has to go for it"
    assert len(opened) == PLACES and table.count_of(100) == PLACES - 50
    for each in opened:
        each.socket.close()


def test_the_oldest_connection_of_the_largest_process_gives_way() -> None:
    table, opened = Unattached(), list[StubConnection]()
    open_all(table, opened, [Peer(7, 100, 100)])
    open_all(table, opened, [Peer(1, 100, 100)] * 40 + [Peer(2, 100, 100)] * 7)
    oldest_of_1 = opened[1]
    assert open_all(table, opened, [Peer(3, 100, 100)] * 2)[0] is oldest_of_1
    assert opened[0].peer.pid == 7, "a process with one of them is left alone"
    for each in opened:
        table.remove(each)
        table.remove(each)  # repeatable
        each.socket.close()
    assert table.oldest() is None and table.count_of(100) == 0


def as_users(monkeypatch: pytest.MonkeyPatch, users: list[int]) -> None:
    """The next connections are of these users; the last one stays."""

    def found(connected: socket.socket) -> Peer:
        return peer_of(connected)._replace(uid=users.pop(0) if len(users) > 1 else users[0])

    monkeypatch.setattr(listener_module, "peer_of", found)


def test_idle_connections_of_one_user_leave_places_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "CONNECTIONS_MAX", 40)
    as_users(monkeypatch, [1001] * 100 + [1002])

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            idle = [stack.enter_context(dial(harness)) for _ in range(100)]
            await until(lambda: sum(map(is_closed, idle)) == 70)
            other = stack.enter_context(stub_at(harness))
            other.sendall(b"".join(encode([b"hello"])))
            await until(lambda: harness.messages)
            assert sum(map(is_closed, idle)) == 70, "it took a free place"

    run(test)


def test_half_messages_of_one_user_leave_buffers_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_users(monkeypatch, [1001] * 40 + [1002])

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            peers = [stack.enter_context(stub_at(harness)) for _ in range(40)]
            for peer in peers:
                peer.sendall(b"".join(encode([b"hello"])))
            await until(lambda: len(harness.messages) == len(peers))
            for peer in peers:
                peer.sendall(b"\x01\x01h\x02" + (3 << 20).to_bytes(8, "big") + bytes(60_000))
            users = harness.endpoint._memory.by_user
            await until(lambda: users[1001].held_bytes > harness.endpoint._memory.user_bytes_max)
            other = stack.enter_context(stub_at(harness))
            other.sendall(b"".join(encode([b"hello"])))
            await until(lambda: len(harness.messages) == len(peers) + 1)
            other.sendall(b"\x01\x01h\x02" + (3 << 20).to_bytes(8, "big") + b"x")
            await until(lambda: 1002 in users and users[1002].held_bytes)
            assert users[1002].held_bytes == RECEIVE_BUFFER_BYTES, "a whole buffer, no short one"
            assert harness.endpoint._memory.user_bytes_max >= 4 * MESSAGE_BYTES_MAX

    run(test)


def test_half_messages_of_many_users_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them keeps to its own, and all together would take three times as much."""
    monkeypatch.setattr(receive_memory, "UNFINISHED_BYTES_MAX", 1)
    users = [1001 + number // 20 for number in range(120)]
    as_users(monkeypatch, [*users, 1])

    async def test() -> None:
        async with harness_at(tmp_path) as harness, AsyncExitStack() as stack:
            peers = [stack.enter_context(stub_at(harness)) for _ in users]
            for peer in peers:
                peer.sendall(b"".join(encode([b"hello"])))
            await until(lambda: len(harness.messages) == len(peers))
            for peer in peers:
                peer.sendall(b"\x01\x01h\x02" + (3 << 20).to_bytes(8, "big") + bytes(60_000))
            whole, bound = harness.endpoint._memory.buffers, 2 * harness.endpoint._memory.user_bytes_max
            highest = 0

            def is_tight() -> bool:
                nonlocal highest
                highest = max(highest, whole.held_bytes)
                return all(harness.endpoint._memory.by_user[user].held_bytes for user in set(users))

            await until(is_tight)
            with stub_at(harness) as other:
                other.sendall(b"".join(encode([b"hello"])))
                await until(lambda: is_tight() and len(harness.messages) == len(peers) + 1)
            assert bound / 2 < highest <= bound + len(peers) * SHORT_BUFFER_BYTES

    run(test)
