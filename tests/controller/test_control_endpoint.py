"""Goal: the control socket answers HELLO and TOPICS, and survives everything else that is written to it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio

from client_stub import AsyncProducer, PartitionInfo
from client_stub.contract.wire import Kind
from client_stub.errors import InvalidTopic, TopicAuthorizationFailed
from sidecar.common.errors import Refused
from sidecar.common.explanation import NAME_CHARACTERS_MAX
from sidecar.config.client_rules import Caller
from sidecar.controller.cluster.cluster import refused
from sidecar.controller.front.control_endpoint import ControlEndpoint
from sidecar.metadata.errors import InvalidTopicError, TopicAuthorizationError
from sidecar.net.stubs.endpoint import MALFORMED_MAX
from sidecar.net.stubs.peer import Peer
from tests.patience import PATIENCE_S

Play = Callable[[Callable[[bytes], Awaitable[list[Any]]], ControlEndpoint], Awaitable[None]]


READY: set[object] = set()


def hello(fields: list[Any], caller: Caller) -> tuple[str, int, bytes] | None:
    if fields == ["refuse me"]:
        raise Refused("NOT_ADMITTED", "No.")
    if fields[0] == "later" and "later" not in READY:
        return None
    return "ipc://worker", 17, b"ticket"


async def topics(names: list[str] | None, max_wait_ms: float | None, caller: Caller) -> list[list[object]]:
    if names == ["broken"]:
        raise RuntimeError("a bug")
    if names in (["secret"], ["un/fit"]) and max_wait_ms is not None:
        kind = TopicAuthorizationError if names == ["secret"] else InvalidTopicError
        raise refused(kind(names[0]))
    return [[name, 0, [[0, 1, [1]]]] for name in names or ["all"]]


def perform(short_dir: Path, play: Play) -> None:
    async def run() -> None:
        endpoint = ControlEndpoint(short_dir / "control.sock")
        endpoint.serve(hello, topics)
        context = zmq.asyncio.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"ipc://{short_dir}/control.sock")

        async def ask(frame: bytes) -> list[Any]:
            await dealer.send(frame)
            answer: list[Any] = msgpack.unpackb(await asyncio.wait_for(dealer.recv(), PATIENCE_S))
            return answer

        try:
            await play(ask, endpoint)
        finally:
            dealer.close()
            context.term()
            endpoint.close()

    asyncio.run(run())


def test_hello_and_topics(short_dir: Path) -> None:
    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        assert await ask(msgpack.packb([Kind.HELLO, 1])) == [Kind.ASSIGNED, "ipc://worker", 17, b"ticket"]
        assert await ask(msgpack.packb([Kind.HELLO, "refuse me"])) == [
            Kind.REFUSED,
            "NOT_ADMITTED",
            "No.",
            None,
        ]
        reply = [Kind.TOPICS_REPLY, [["a", 0, [[0, 1, [1]]]]]]
        assert await ask(msgpack.packb([Kind.TOPICS, ["a"]])) == reply
        endpoint.why_waits = lambda topic, rows: f"{topic} waits"
        assert await ask(msgpack.packb([Kind.TOPICS, ["a"]])) == reply, "an older asker takes two fields"
        assert await ask(msgpack.packb([Kind.TOPICS, ["a"], 1_000, None, True])) == [*reply, "a waits"]
        assert (await ask(msgpack.packb([Kind.TOPICS, None])))[1][0][0] == "all"
        assert await ask(msgpack.packb([Kind.PING])) == [Kind.PONG]
        assert endpoint.refused == {"NOT_ADMITTED": 1}

    perform(short_dir, play)


def test_a_client_that_tries_tokens_is_cut_and_pays(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sidecar.net.stubs.penalties.POINTS_BACK_A_SECOND", 1.0
    )  # however slow this machine is

    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        for _ in range(MALFORMED_MAX + 1):
            assert (await ask(msgpack.packb([Kind.HELLO, "refuse me"])))[1] == "NOT_ADMITTED"
        assert not endpoint._endpoint._by_id, "the connection is closed behind its last answer"
        penalties = endpoint._endpoint._listener._penalties
        assert penalties._processes._clear_s[os.getpid()] - asyncio.get_running_loop().time() > 200.0

    perform(short_dir, play)


def test_a_hello_waits_for_its_worker(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered when the worker is there; without one it is refused after a while, as by a full waiting room."""

    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        waiting = asyncio.ensure_future(ask(msgpack.packb([Kind.HELLO, "later"])))
        while not endpoint._waiting:  # noqa: ASYNC110 - a count, seen between two turns of the loop
            await asyncio.sleep(0)
        endpoint.ask_again()
        assert len(endpoint._waiting) == 1, "still not ready"
        READY.add("later")
        endpoint.ask_again()
        assert await waiting == [Kind.ASSIGNED, "ipc://worker", 17, b"ticket"]
        READY.clear()
        monkeypatch.setattr("sidecar.controller.front.control_endpoint.HELLO_WAIT_S", 0.0)
        assert (await ask(msgpack.packb([Kind.HELLO, "later"])))[:2] == [Kind.REFUSED, "NOT_READY"]
        monkeypatch.setattr("sidecar.controller.front.control_endpoint.HELLOS_WAITING_MAX", 0)
        assert (await ask(msgpack.packb([Kind.HELLO, "later"])))[:2] == [Kind.REFUSED, "NOT_READY"]
        assert not endpoint._waiting

    perform(short_dir, play)


def test_a_bug_after_it_is_an_answer(short_dir: Path) -> None:
    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        answer = await ask(msgpack.packb([Kind.TOPICS, ["broken"]]))
        assert answer[:2] == [Kind.REFUSED, "FAILED"]
        assert await ask(msgpack.packb([Kind.PING])) == [Kind.PONG]

    perform(short_dir, play)


def test_so_many_may_ask_for_topics_at_once_and_the_next_asks_again(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.controller.front.control_endpoint.TOPICS_UNDER_WAY_MAX", 2)

    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        go_on = asyncio.Event()

        async def slow(*question: object) -> list[list[object]]:
            await go_on.wait()
            return []

        endpoint.serve(hello=hello, topics=slow)
        others = [zmq.asyncio.Context.instance().socket(zmq.DEALER) for _ in range(2)]
        try:
            for other in others:
                other.connect(f"ipc://{short_dir}/control.sock")
                await other.send(msgpack.packb([Kind.TOPICS, None]))
            while len(endpoint._tasks) < 2:  # noqa: ASYNC110 - a count, seen between two turns of the loop
                await asyncio.sleep(0)
            assert (await ask(msgpack.packb([Kind.TOPICS, None])))[:2] == [Kind.REFUSED, "NOT_READY"]
            go_on.set()
            for other in others:
                assert msgpack.unpackb(await asyncio.wait_for(other.recv(), PATIENCE_S)) == [
                    Kind.TOPICS_REPLY,
                    [],
                ]
            assert await ask(msgpack.packb([Kind.TOPICS, None])) == [Kind.TOPICS_REPLY, []]
        finally:
            for other in others:
                other.close(linger=0)

    perform(short_dir, play)


def test_the_questions_of_one_user_leave_room_for_those_of_others(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.controller.front.control_endpoint.TOPICS_UNDER_WAY_MAX", 8)

    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        go_on = asyncio.Event()

        async def slow(*question: object) -> list[list[object]]:
            await go_on.wait()
            return []

        endpoint.serve(hello=hello, topics=slow)
        greedy = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        try:
            greedy.connect(f"ipc://{short_dir}/control.sock")
            for _ in range(8):
                await greedy.send(msgpack.packb([Kind.TOPICS, ["t"], 30_000]))
            for _ in range(2):
                answer = msgpack.unpackb(await asyncio.wait_for(greedy.recv(), PATIENCE_S))
                assert answer[:2] == [Kind.REFUSED, "NOT_READY"]
            monkeypatch.setattr(endpoint._endpoint, "peer", lambda routing_id: Peer(1, 4711, 4711))
            waiting = asyncio.ensure_future(ask(msgpack.packb([Kind.TOPICS, None])))
            while len(endpoint._tasks) < 7:
                assert not waiting.done()
                await asyncio.sleep(0)
            go_on.set()
            assert await waiting == [Kind.TOPICS_REPLY, []]
            assert not endpoint._tasks
        finally:
            greedy.close(linger=0)

    perform(short_dir, play)


def test_a_connection_stays_for_a_while_only(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody needs one for long, and who keeps thousands would keep them from others."""
    monkeypatch.setattr("sidecar.controller.front.control_endpoint.CONNECTION_S", 0.2)

    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as idle:
            idle.connect(f"{short_dir}/control.sock")
            idle.setblocking(False)
            loop = asyncio.get_running_loop()
            heard = b"greeting"
            async with asyncio.timeout(PATIENCE_S):
                while heard:
                    heard = await loop.sock_recv(idle, 1_000)
        assert await ask(msgpack.packb([Kind.PING])) == [Kind.PONG], "who comes again is let in"

    perform(short_dir, play)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\xff" * 100,
        msgpack.packb([]),
        msgpack.packb(7),
        msgpack.packb({"a": 1}),
        msgpack.packb(["HELLO"]),
        msgpack.packb([99]),
        msgpack.packb([Kind.SUBMIT, 1]),
        msgpack.packb([Kind.TOPICS, "not a list"]),
        msgpack.packb([Kind.TOPICS, [1]]),
        msgpack.packb([Kind.TOPICS, ["a"], -1]),
        msgpack.packb([Kind.TOPICS, ["a"], "long"]),
    ],
)
def test_malformed_frames_are_answered_and_counted(short_dir: Path, frame: bytes) -> None:
    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        answer = await ask(frame)
        assert answer[:2] == [Kind.REFUSED, "MALFORMED_FRAME"]
        assert endpoint.refused == {"MALFORMED_FRAME": 1}
        assert await ask(msgpack.packb([Kind.PING])) == [Kind.PONG]

    perform(short_dir, play)


@pytest.mark.rule("M5")
def test_partitions_that_nobody_may_have_fail_at_once(short_dir: Path) -> None:
    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        async with AsyncProducer(run_dir=short_dir) as producer:
            with pytest.raises(TopicAuthorizationFailed, match="Not authorized to access topic 'secret'"):
                await producer.partitions_for("secret")
            with pytest.raises(InvalidTopic, match="'un/fit' is not a valid topic name"):
                await producer.partitions_for("un/fit")
            found = await producer.partitions_for("a")
            assert found == (PartitionInfo("a", 0, 1, (), (1,), ()),), "an older daemon names no replicas"

    perform(short_dir, play)


def test_explain_takes_a_name_of_bounded_length(short_dir: Path) -> None:
    async def explain(name: str, caller: Caller) -> list[object]:
        return [{"name": len(name), "uid": caller.uid}]

    async def play(ask: Any, endpoint: ControlEndpoint) -> None:
        refusal = await ask(msgpack.packb([Kind.EXPLAIN, ""]))
        assert refusal[:2] == [Kind.REFUSED, "NOT_READY"]
        endpoint.serve(hello, topics, explain=explain)
        for length in (0, NAME_CHARACTERS_MAX):
            found = await ask(msgpack.packb([Kind.EXPLAIN, "é" * length]))
            assert found == [Kind.EXPLAIN_REPLY, {"name": length, "uid": os.getuid()}]
        for name in ("x" * (NAME_CHARACTERS_MAX + 1), None, 7, ["orders"]):
            assert (await ask(msgpack.packb([Kind.EXPLAIN, name])))[:2] == [Kind.REFUSED, "MALFORMED_FRAME"]

    perform(short_dir, play)
