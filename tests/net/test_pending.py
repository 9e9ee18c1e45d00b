"""Goal: strangers over TCP have few places and little time, and take nothing from those who are known.

Method: a real Endpoint with a gate of CURVE on loopback. Hosts and users are given by hand: a test has one of each.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from client_stub.native.hot import encode
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.curve import KeyPair
from client_stub.zmtp.keys import key_file_text
from sidecar.config.client_rules import ClientRule, ClientRules
from sidecar.net.stubs import endpoint as endpoint_module
from sidecar.net.stubs import listener as listener_module
from sidecar.net.stubs import pending as pending_module
from sidecar.net.stubs.curve_gate import CurveGate
from sidecar.net.stubs.listener import UNWELCOME_MAX
from sidecar.net.stubs.peer import Peer, host_of, peer_of, user_of
from sidecar.net.stubs.penalties import FREE_POINTS
from sidecar.net.stubs.tcp_listen import listen_on
from sidecar.tools.testing.tcp_access import HOST, free_ports
from tests.net.harness import Harness, dial, harness_at, is_closed, run, stub_at, until
from tests.patience import PATIENCE_S
from tests.stub.zmtp.ends import as_bytes, client

DAEMON, CLIENT = KeyPair.new(), KeyPair.new()
RULES = ClientRules({"billing": ClientRule("billing", keys=(CLIENT.public,))})


class GateHarness:
    """A harness with a gate, and the port of that gate."""

    def __init__(self, harness: Harness, folder: Path) -> None:
        self.harness = harness
        self.port = free_ports(1)
        key_file = folder / "daemon.key"
        key_file.touch(0o600)
        key_file.write_text(key_file_text(DAEMON.secret, DAEMON.public))
        self.gate = CurveGate(listen_on(f"tcp://{HOST}:{self.port}"), str(key_file), lambda: RULES)
        harness.endpoint.add_gate(self.gate)

    @property
    def pending(self) -> pending_module.PendingConnections:
        return self.harness.endpoint._pending

    def dial(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), timeout=PATIENCE_S)

    async def proved(self, peer: socket.socket) -> ZmtpConnection:
        """Its end after a whole handshake."""
        loop, ours = asyncio.get_running_loop(), client(DAEMON.public, CLIENT)
        peer.setblocking(False)
        await loop.sock_sendall(peer, ours.mechanism.opening)
        async with asyncio.timeout(PATIENCE_S):
            while not ours.is_ready:
                ours.received(await loop.sock_recv_into(peer, ours.space()))
                assert ours.next_message() is None
                await loop.sock_sendall(peer, b"".join(ours.replies))
                ours.replies.clear()
        return ours


@asynccontextmanager
async def gate_harness_in(folder: Path) -> AsyncIterator[GateHarness]:
    async with harness_at(folder) as harness:
        yield GateHarness(harness, folder)


def from_hosts(monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> None:
    """The next connections over TCP are of these hosts; the last one stays."""

    def found(connected: socket.socket) -> object:
        peer = peer_of(connected)
        if not peer.host:
            return peer
        host = hosts.pop(0) if len(hosts) > 1 else hosts[0]
        return peer._replace(uid=user_of(host.encode()), address=host, host=host)

    monkeypatch.setattr(listener_module, "peer_of", found)


def test_a_stranger_has_a_few_seconds_also_where_others_may_stay_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(pending_module, "ATTACH_S", 60.0)

    async def test() -> None:
        async with gate_harness_in(tmp_path) as gate_harness:
            with gate_harness.dial() as mute, gate_harness.dial() as half, gate_harness.dial() as known:
                half.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE")
                await gate_harness.proved(known)
                await until(lambda: is_closed(mute) and is_closed(half))
                assert not is_closed(known)

    run(test)


def test_a_proved_key_has_a_place_of_its_own_and_bounds_of_its_own(tmp_path: Path) -> None:
    async def test() -> None:
        async with gate_harness_in(tmp_path) as gate_harness:
            with gate_harness.dial() as peer, gate_harness.dial() as second:
                await until(lambda: len(gate_harness.pending.strangers) == 2)
                assert gate_harness.pending.strangers.count_of(user_of(HOST.encode())) == 2
                ours = await gate_harness.proved(peer)
                await until(lambda: len(gate_harness.pending.strangers) == 1)
                assert gate_harness.pending.unattached.count_of(user_of(CLIENT.public)) == 1
                await asyncio.get_running_loop().sock_sendall(peer, as_bytes(ours, b"hello"))
                await until(lambda: gate_harness.harness.messages)
                assert not len(gate_harness.pending.unattached), "its client has attached"
                assert not is_closed(second)

    run(test)


def test_strangers_have_places_of_their_own_and_share_them_by_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "HANDSHAKES_MAX", 16)
    from_hosts(monkeypatch, ["10.0.0.1"] * 40 + ["10.0.0.2"])

    async def test() -> None:
        async with gate_harness_in(tmp_path) as gate_harness, AsyncExitStack() as stack:
            local = [stack.enter_context(stub_at(gate_harness.harness)) for _ in range(20)]
            many = [stack.enter_context(gate_harness.dial()) for _ in range(40)]
            await until(lambda: sum(map(is_closed, many)) == 28)
            assert gate_harness.pending.strangers.count_of(user_of(b"10.0.0.1")) == 12, "three quarters of 16"
            other = stack.enter_context(gate_harness.dial())
            await gate_harness.proved(other)
            assert sum(map(is_closed, many)) == 28, "it took a free place"
            assert not any(map(is_closed, local))

    run(test)


def test_with_many_hosts_the_bound_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_module, "HANDSHAKES_MAX", 16)
    from_hosts(monkeypatch, [f"10.0.1.{number}" for number in range(41)])

    async def test() -> None:
        async with gate_harness_in(tmp_path) as gate_harness, AsyncExitStack() as stack:
            many = [stack.enter_context(gate_harness.dial()) for _ in range(40)]
            await until(lambda: sum(map(is_closed, many)) == 24)
            assert len(gate_harness.pending.strangers) == 16
            await gate_harness.proved(stack.enter_context(gate_harness.dial()))

    run(test)


def test_a_full_endpoint_spares_a_stranger_for_its_own_host_and_nobody_for_a_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "CONNECTIONS_MAX", 8)

    async def test() -> None:
        async with gate_harness_in(tmp_path) as gate_harness, AsyncExitStack() as stack:
            local = []
            for number in range(1, 7):
                local.append(stack.enter_context(stub_at(gate_harness.harness)))
                local[-1].sendall(b"".join(encode([b"attach"])))
                await until(lambda number=number: len(gate_harness.harness.messages) == number)
            strangers = [stack.enter_context(gate_harness.dial()) for _ in range(5)]
            await until(lambda: sum(map(is_closed, strangers)) == 3)
            assert not any(map(is_closed, local))
            for number in (7, 8):
                local.append(stack.enter_context(stub_at(gate_harness.harness)))
                local[-1].sendall(b"".join(encode([b"attach"])))
                await until(lambda number=number: len(gate_harness.harness.messages) == number)
            await until(lambda: all(map(is_closed, strangers)))
            late = stack.enter_context(gate_harness.dial())
            await until(lambda: is_closed(late))
            assert not any(map(is_closed, local))

    run(test)


def test_a_storm_over_tcp_shuts_its_own_gate_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "SHUT_S", 60.0)

    async def test() -> None:
        async with gate_harness_in(tmp_path) as gate_harness, AsyncExitStack() as stack:
            penalties = gate_harness.harness.endpoint._listener._penalties
            penalties.charge(
                Peer(0, user_of(HOST.encode()), 0, HOST, HOST),
                2 * FREE_POINTS,
                asyncio.get_running_loop().time(),
            )
            for _ in range(UNWELCOME_MAX):
                stack.enter_context(gate_harness.dial())
            await until(lambda: gate_harness.harness.endpoint._listener._shut)
            assert list(gate_harness.harness.endpoint._listener._shut) == [gate_harness.gate.socket.fileno()]
            peer = stack.enter_context(stub_at(gate_harness.harness))
            peer.sendall(b"".join(encode([b"hello"])))
            await until(lambda: gate_harness.harness.messages)

    run(test)


def test_a_connection_whose_client_has_gone_is_a_newcomer_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one process could attach and leave until all connections are taken."""
    monkeypatch.setattr(pending_module, "ATTACH_S", 0.2)

    async def test() -> None:
        async with harness_at(tmp_path) as harness:
            with dial(harness) as staying, stub_at(harness) as peer:
                peer.sendall(b"".join(encode([b"hello"])))
                await until(lambda: harness.messages)
                staying.close()
                harness.endpoint.has_detached(harness.messages[0][0])
                await until(lambda: is_closed(peer))

    run(test)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_network_of_ipv6_is_one_host(address: str, host: str) -> None:
    assert host_of(address) == host
