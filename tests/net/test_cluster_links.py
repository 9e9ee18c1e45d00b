"""ClusterLinks: every address tried, setup timeout, backoff, idle close, brokers that move (rules S5, S6)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

import pytest

from sidecar.common.condition import SILENT_MS
from sidecar.common.model import Node, second_of
from sidecar.net.kafka import cluster_links
from sidecar.net.kafka.cluster_links import ClusterLinks
from sidecar.net.kafka.name_lookup import AddressInfo
from sidecar.protocol.connection_states import ConnectionConfig
from tests.configs import config_with
from tests.patience import PATIENCE_S

from .conftest import Run
from .fake_broker import FakeBroker
from .links import NotingLinks, node_of, until
from .test_broker_link import answer_anything


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def resolve_to(monkeypatch: pytest.MonkeyPatch, *first: str) -> list[str]:
    """``broker.test`` has these addresses, in this order; later those that the list has then."""
    addresses = list(first)

    async def addresses_of(_: object, host: str, port: int) -> list[AddressInfo]:
        assert host == "broker.test"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr("sidecar.net.kafka.connector.addresses_of", addresses_of)
    return addresses


def close_when_idle(noting: NotingLinks, max_idle_ms: float) -> None:
    """From now on, also for the links that are there: a link may be idle for longer before its test sees it."""
    noting.links.use(config_with(ConnectionConfig, connections_max_idle_ms=max_idle_ms))
    noting.links._check()


@pytest.mark.rule("S6")
def test_every_resolved_address_is_tried(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, mute, then good: the link comes up on the third, the mute one given up at the setup timeout."""

    async def test() -> None:
        async with FakeBroker(accepts_only=True, host="127.0.0.3") as mute:
            good = FakeBroker(answer_anything, host="127.0.0.4")
            good.port = mute.port
            async with good:
                resolve_to(monkeypatch, "127.0.0.2", "127.0.0.3", "127.0.0.4")
                noting = NotingLinks(socket_connection_setup_timeout_ms=1_000.0)
                link = await noting.connect(node_of(good.port, "broker.test"))
                assert link.is_ready
                assert len(mute.peers) == 1
                assert noting.states == [(1, True, None)]
                noting.links.close_all()

    run(test)


@pytest.mark.rule("S6")
def test_a_name_is_resolved_anew_at_each_connect(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that comes back at another address under its old name, as in Kubernetes."""

    async def test() -> None:
        addresses = resolve_to(monkeypatch, "127.0.0.3")
        noting = NotingLinks(reconnect_backoff_ms=1.0)
        async with FakeBroker(answer_anything, host="127.0.0.3") as before:
            await noting.connect(node_of(before.port, "broker.test"))
        await until(lambda: noting.links.link(1) is None)
        after = FakeBroker(answer_anything, host="127.0.0.4")
        after.port = before.port
        async with after:
            addresses[:] = ["127.0.0.4"]
            await until(lambda: noting.links.ready(node_of(before.port, "broker.test")) is not None)
            assert len(after.peers) == 1
            noting.links.close_all()

    run(test)


@pytest.mark.rule("S6")
def test_when_all_addresses_fail_each_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with FakeBroker(accepts_only=True, host="127.0.0.3") as mute:
            resolve_to(monkeypatch, "127.0.0.2", "127.0.0.3")
            noting = NotingLinks(socket_connection_setup_timeout_ms=100.0)
            assert noting.links.ready(node_of(mute.port, "broker.test")) is None
            assert noting.links.next_attempt_delay_ms(1, 0.0) == float("inf")
            await until(lambda: bool(noting.states))
            _, connected, error = noting.states[0]
            assert not connected
            assert error is not None
            assert f"broker.test:{mute.port}" in error
            assert "127.0.0.2: Connection refused" in error
            assert "127.0.0.3: not connected and negotiated within" in error
            noting.links.close_all()

    run(test)


@pytest.mark.rule("S6")
def test_an_address_that_drops_packets_is_given_up_at_the_setup_timeout(run: Run) -> None:
    """A listen queue that is full drops SYNs: connect neither succeeds nor fails."""

    async def test() -> None:
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            noting = NotingLinks(socket_connection_setup_timeout_ms=150.0)
            assert noting.links.ready(node_of(full.getsockname()[1])) is None
            soon_ms = monotonic() * 1e3 + SILENT_MS + 1
            await until(
                lambda: noting.links.slow_step(1, soon_ms) == "127.0.0.1 has not accepted the connection yet"
            )
            assert not noting.links.slow_step(1, soon_ms - SILENT_MS)
            await until(lambda: bool(noting.states))
            assert not noting.links.slow_step(1, soon_ms)
            assert "not connected and negotiated within" in (noting.states[0][2] or "")
            noting.links.close_all()

    run(test)


def test_a_name_with_addresses_of_both_families_is_connected(run: Run) -> None:
    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            assert (await noting.connect(node_of(broker.port, "localhost"))).is_ready
            noting.links.close_all()

    run(test)


def test_a_name_that_does_not_resolve_says_so(run: Run) -> None:
    async def test() -> None:
        noting = NotingLinks()
        noting.links.ready(node_of(9092, "no-such-host.invalid"))
        await until(lambda: bool(noting.states))
        said = noting.states[0][2] or ""
        assert said.startswith("The name no-such-host.invalid cannot be resolved (")
        assert said.endswith(
            "): correct advertised.listeners of broker 1, from which it comes, or this host's DNS."
        )
        noting.links.close_all()

    run(test)


def test_a_name_server_that_hangs_holds_up_neither_the_loop_nor_its_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker whose address is known is reached meanwhile; a name is asked for once at a time."""
    answers, asked = threading.Event(), []
    resolve = socket.getaddrinfo

    def hang(host: str, port: int, **more: int) -> object:
        if not more.get("flags"):
            asked.append(host)
            answers.wait(PATIENCE_S)
        return resolve(host, port, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hang)

    async def test() -> None:
        noting = NotingLinks(socket_connection_setup_timeout_ms=50.0, reconnect_backoff_ms=1.0)
        unknown = node_of(9092, "broker.example")._replace(id=7)
        async with FakeBroker(answer_anything) as good:
            await noting.connect(node_of(good.port))
            for tries in range(1, 4):
                await until(lambda: noting.links.next_attempt_delay_ms(7, monotonic() * 1e3) == 0)
                noting.links.ready(unknown)
                soon_ms = monotonic() * 1e3 + SILENT_MS + 1
                step = "the name broker.example has not been resolved yet"
                await until(lambda at_ms=soon_ms, step=step: noting.links.slow_step(7, at_ms) == step)  # type: ignore[misc]
                await until(lambda count=tries: len(failures(noting)) == count)  # type: ignore[misc]
            words = "The name broker.example cannot be resolved (no answer within"
            assert all(words in each for each in failures(noting))
            noting.links.close_all()
        assert asked == ["broker.example"]

    def failures(noting: NotingLinks) -> list[str]:
        return [str(error) for node_id, _, error in noting.states if node_id == 7]

    before = set(threading.enumerate())
    run(test)
    (hanging,) = set(threading.enumerate()) - before
    assert hanging.daemon, "neither the loop nor the process waits for it"
    answers.set()
    hanging.join(PATIENCE_S)


@pytest.mark.rule("S6")
def test_a_refused_port_is_retried_with_growing_backoff(run: Run) -> None:
    async def test() -> None:
        node = node_of(free_port())
        noting = NotingLinks(reconnect_backoff_ms=20.0, reconnect_backoff_max_ms=100.0)
        clock = noting.links._clock
        delays: list[float] = []

        def note(node_id: int, connected: bool, error: str | None) -> None:
            if not connected:
                delays.append(noting.links.next_attempt_delay_ms(1, clock.now_ms()))

        noting.links.report_to(on_state=note, on_response=lambda *_: None)
        for attempt in range(5):
            await until(lambda: noting.links.next_attempt_delay_ms(1, clock.now_ms()) <= 0)
            assert noting.links.ready(node) is None
            assert noting.links.ready(node) is None, "only one attempt at a time"
            await until(lambda: len(delays) == attempt + 1)  # noqa: B023
        assert delays[0] <= 24
        assert max(delays) <= 100
        assert delays[3] > delays[0]
        async with FakeBroker(answer_anything) as broker:
            await noting.connect(node_of(broker.port))
        noting.links.close_all()

    run(test)


@pytest.mark.rule("S6")
def test_idle_connections_close_without_a_backoff(run: Run) -> None:
    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            close_when_idle(noting, 80.0)
            await until(lambda: link.is_closed)
            assert noting.states == [(1, True, None), (1, False, None)]
            assert noting.links.next_attempt_delay_ms(1, noting.links._clock.now_ms()) == 0
            close_when_idle(noting, inf)
            assert (await noting.connect(node_of(broker.port))).is_ready
            noting.links.close_all()

    run(test)


@pytest.mark.rule("S6")
def test_an_idle_second_connection_closes_sooner(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_links, "SECOND_MAX_IDLE_MS", 80.0)

    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks(connections_max_idle_ms=-1.0)
            first = await noting.connect(node_of(broker.port))
            second = await noting.connect(node_of(broker.port)._replace(id=second_of(1)))
            await until(lambda: second.is_closed)
            assert first.is_ready
            assert noting.states[-1] == (second_of(1), False, None)
            noting.links.close_all()

    run(test)


@pytest.mark.rule("S5")
def test_a_throttled_link_is_mute_for_that_long(run: Run) -> None:
    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            node = node_of(broker.port)
            link = await noting.connect(node)
            noting.links.throttle(1, 120.0)
            assert noting.links.ready(node) is None
            assert not noting.links.is_ready(1)
            assert noting.links.link(1) is link, "what it carries goes on"
            assert 0 < noting.links.next_attempt_delay_ms(1, noting.links._clock.now_ms()) <= 120
            assert await noting.connect(node) is link
            noting.links.close_all()

    run(test)


def test_brokers_that_leave_or_move_lose_their_links(run: Run) -> None:
    async def test() -> None:
        async with FakeBroker(answer_anything) as first, FakeBroker(answer_anything) as second:
            noting = NotingLinks()
            one = await noting.connect(node_of(first.port, id=1))
            two = await noting.connect(node_of(first.port, id=2))  # two brokers may share one address
            way_in = await noting.connect(node_of(first.port, id=-1))
            assert one is not two
            assert noting.links.connection_count == 3
            noting.links.update_nodes([node_of(first.port, id=1), node_of(second.port, id=2)])
            assert not one.is_closed
            assert two.is_closed
            assert not way_in.is_closed
            assert (await noting.connect(node_of(second.port, id=2))).node.port == second.port
            noting.links.update_nodes([])
            assert one.is_closed
            moved = await noting.connect(
                Node(2, "127.0.0.1", first.port)
            )  # ready() itself sees a new address
            assert moved.node.port == first.port
            noting.links.close_all()
            assert noting.links.connection_count == 0
            assert noting.links.ready(node_of(first.port, id=1)) is None

    run(test)


def test_a_link_that_fails_while_it_is_watched_leaves_the_others_watched(run: Run) -> None:
    """It ends itself, as nobody would watch it any more, and the failure is reported."""

    async def test() -> None:
        seen: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

        def fail(now_ms: float) -> None:
            raise RuntimeError("a bug")

        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            links = [await noting.connect(node_of(broker.port, id=id)) for id in (1, 2, 3)]
            close_when_idle(noting, 80.0)
            links[1].check_deadlines = fail  # type: ignore[method-assign]
            await until(lambda: all(link.is_closed for link in links))
            assert [str(context["exception"]) for context in seen] == ["a bug"]
            ends = {node_id: reason for node_id, connected, reason in noting.states if not connected}
            assert ends == {1: None, 2: f"Watching {links[1].node} failed: RuntimeError: a bug", 3: None}
            close_when_idle(noting, inf)
            assert (await noting.connect(links[1].node)).is_ready
            noting.links.close_all()

    run(test)


@pytest.mark.parametrize("end", [ClusterLinks.close_all, lambda links: links.update_nodes([])])
def test_an_owner_that_fails_at_one_link_s_end_leaves_no_other_open(
    run: Run, end: Callable[[ClusterLinks], None]
) -> None:
    async def test() -> None:
        def fail(node_id: int, connected: bool, error: str | None) -> None:
            raise RuntimeError("a bug of the owner")

        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            links = [await noting.connect(node_of(broker.port, id=id)) for id in (1, 2, 3)]
            noting.links.report_to(on_state=fail, on_response=lambda *_: None)
            with pytest.raises(RuntimeError, match="a bug of the owner"):
                end(noting.links)
            assert all(link.is_closed for link in links)
            assert noting.links.connection_count == 0

    run(test)


def test_closing_while_connecting_leaves_nothing_behind(run: Run) -> None:
    async def test() -> None:
        async with FakeBroker(accepts_only=True) as mute:
            noting = NotingLinks()
            noting.links.ready(node_of(mute.port))
            await until(lambda: bool(mute.peers))
            noting.links.close_all()
            assert noting.states == [(1, False, None)]
            assert await mute.peers[0].read_frame() is not None, "what had been asked"
            assert await mute.peers[0].read_frame() is None, "then the end"

    run(test)


@pytest.mark.parametrize(("send_bytes", "receive_bytes"), [(-1, -1), (40_000, 20_000)])
def test_sockets_have_the_buffers_asked_for(run: Run, send_bytes: int, receive_bytes: int) -> None:
    """Linux doubles what is asked for, for its own bookkeeping."""

    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks(send_buffer_bytes=send_bytes, receive_buffer_bytes=receive_bytes)
            link = await noting.connect(node_of(broker.port))
            sock = link._sock
            assert sock is not None
            found = [
                sock.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_SNDBUF, socket.SO_RCVBUF)
            ]
            if send_bytes >= 0:
                assert found == [2 * send_bytes, 2 * receive_bytes]
            else:
                assert 2 * 40_000 not in found and 2 * 20_000 not in found
            noting.links.close_all()

    run(test)
