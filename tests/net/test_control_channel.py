"""Controller and worker over a socketpair: the codec, and a channel that never blocks."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import MappingProxyType
from typing import Any

import msgpack
import pytest

from sidecar.common.control import (
    ControlMessage,
    Drain,
    Drained,
    NeedTopics,
    PartitionUpdate,
    Ready,
    Start,
    Stop,
    TopicError,
    TopicErrors,
    UpdateMetadata,
    UpdateMetadataReply,
)
from sidecar.common.control_codec import MESSAGE_BYTES_MAX, ControlDecoder, ControlError, encode_message
from sidecar.common.model import Node
from sidecar.net.control_channel import QUEUE_BYTES_MAX, ControlChannel

from .conftest import Run
from .links import until

MESSAGES: list[ControlMessage] = [
    Start(
        worker_index=1,
        worker_epoch=2,
        slot=3,
        incarnation=2**40,
        endpoint="ipc:///run/x/worker-1.2.sock",
        instance_key=b"\x00\xff" * 16,
        segment_fd=9,
        wake_fds=(10, 11),
        config={"linger.ms": 5, "acks": -1, "nested": {"a": [1, None, True]}},
        extra={"limits": {"x": 1.5}},
    ),
    Ready(pid=123, worker_epoch=2),
    UpdateMetadata(
        controller_id=1,
        controller_epoch=2,
        worker_epoch=3,
        brokers=(Node(1, "h", 9092, "rack"), Node(2, "::1", 9093)),
        partitions=(
            PartitionUpdate("t", bytes(range(16)), 0, 1, 7, (1, 2), (1, 2, 3), (3,)),
            PartitionUpdate("u", None, 5, -2),
        ),
        is_full=True,
        cluster_id="k",
        version=9,
    ),
    UpdateMetadataReply(error=11, worker_epoch=3, version=9),
    NeedTopics(topics=("a", "b"), refresh=True, used=("c",)),
    TopicErrors({"t": TopicError(3, "Topic 't' does not exist in the cluster.")}, cluster_error="no"),
    Drain(timeout_ms=1500.5),
    Drained(left=7),
    Stop(),
]


def test_every_message_comes_back_equal_however_it_is_cut() -> None:
    stream = b"".join(encode_message(message) for message in MESSAGES)
    for size in (1, 3, 7, 100, len(stream)):
        decoder = ControlDecoder()
        got: list[ControlMessage] = []
        for start in range(0, len(stream), size):
            got += decoder.feed(stream[start : start + size])
        assert got == MESSAGES


def packed(value: object) -> bytes:
    body: bytes = msgpack.packb(value)
    return struct.pack(">I", len(body)) + body


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    assert ControlDecoder().feed(packed([2, {"pid": 5, "news": 1}])) == [Ready(pid=5)]
    assert encode_message(Start(0, 0, 0, 0, "", b"", -1, config=MappingProxyType({"a": 1})))


@pytest.mark.parametrize(
    "stream",
    [
        packed([99, {}]),
        packed([2, {}]),
        packed([2]),
        packed("READY"),
        packed([5, {"topics": 3}]),
        packed([3, {"brokers": [[1]]}]),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 0),
        struct.pack(">I", MESSAGE_BYTES_MAX + 1),
        struct.pack(">I", 1 << 31),
    ],
)
def test_bytes_that_are_no_message_are_a_control_error(stream: bytes) -> None:
    with pytest.raises(ControlError):
        ControlDecoder().feed(stream)


class Ends:
    """Both ends of a socketpair as channels, and what they hear."""

    def __init__(self) -> None:
        left, right = socket.socketpair()
        self.heard: dict[str, list[ControlMessage]] = {"left": [], "right": []}
        self.closed: dict[str, list[str | None]] = {"left": [], "right": []}
        self.left = self._channel("left", left)
        self.right = self._channel("right", right)
        self.sockets = (left, right)

    def _channel(self, name: str, sock: socket.socket) -> ControlChannel:
        channel = ControlChannel(sock, on_message=self.heard[name].append, on_closed=self.closed[name].append)
        channel.start()
        return channel

    def close(self) -> None:
        self.left.close()
        self.right.close()


def test_messages_cross_in_order_beyond_the_socket_buffer(run: Run) -> None:
    async def test() -> None:
        ends = Ends()
        big = [TopicErrors({"t": TopicError(number, "x" * 300_000)}) for number in range(20)]
        for message in big:
            ends.left.send(message)
            ends.right.send(Drained(1))
        assert ends.left._queued_bytes > 0, "this test needs a send that would block"
        await until(lambda: len(ends.heard["right"]) == 20 and len(ends.heard["left"]) == 20)
        assert ends.heard["right"] == big
        assert ends.left._queued_bytes == 0
        ends.close()
        assert ends.closed == {"left": [], "right": []}, "our own close is no news"

    run(test)


def test_the_death_of_the_peer_is_told_once_after_its_last_words(run: Run) -> None:
    async def test() -> None:
        ends = Ends()
        ends.right.send(Drained(3))
        ends.right.close()
        ends.left.send(Stop())  # into a dead socket: no exception
        await until(lambda: bool(ends.closed["left"]))
        assert ends.heard["left"] == [Drained(3)]
        ends.left.send(Stop())
        await asyncio.sleep(0)
        assert ends.closed["left"] == [None]
        assert ends.left.is_closed

    run(test)


def test_a_broken_stream_closes_with_a_sentence(run: Run) -> None:
    async def test() -> None:
        left, right = socket.socketpair()
        closed: list[str | None] = []
        channel = ControlChannel(left, on_message=lambda _: None, on_closed=closed.append)
        channel.start()
        right.send(packed([99, {}]))
        await until(lambda: bool(closed))
        assert closed[0] is not None
        assert "not a control message" in closed[0]
        assert channel.is_closed
        right.close()

    run(test)


def test_a_handler_that_raises_costs_no_other_message(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        left, right = socket.socketpair()
        heard: list[ControlMessage] = []

        def on_message(message: ControlMessage) -> Any:
            heard.append(message)
            raise RuntimeError("boom")

        channel = ControlChannel(left, on_message=on_message, on_closed=lambda _: None)
        channel.start()
        right.send(encode_message(Stop()) + encode_message(Drained(1)))
        await until(lambda: len(heard) == 2)
        assert "STOP control message failed" in caplog.text
        channel.close()
        right.close()

    run(test)


def test_a_peer_that_never_reads_is_given_up_at_the_limit(run: Run) -> None:
    async def test() -> None:
        left, right = socket.socketpair()
        closed: list[str | None] = []
        channel = ControlChannel(left, on_message=lambda _: None, on_closed=closed.append)
        channel.start()
        message = TopicErrors({}, cluster_error="x" * (8 << 20))
        for _ in range(QUEUE_BYTES_MAX // (8 << 20) + 2):
            channel.send(message)
        await until(lambda: bool(closed))
        assert closed[0] is not None
        assert "unread" in closed[0]
        right.close()

    run(test)
