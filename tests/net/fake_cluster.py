"""Scripted brokers that answer Metadata v4, encoded by hand, and write down when they were asked for what."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from .fake_broker import FakeBroker, Peer, Request, api_versions_body


class Asked(NamedTuple):
    """One metadata request: the node that answered it, the time in ms, and the topics (None = all)."""

    broker: int
    at_ms: float
    topics: list[str] | None


def _string(text: str | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text.encode()


class FakeCluster:
    """``topics`` maps a name to its leaders (one per partition, -1 = none) or to an error code.

    ``listed`` are the broker ids that answers name; ``answering(broker_id)`` False leaves requests unanswered.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, FakeBroker] = {}
        self.topics: dict[str, list[int] | int] = {}
        self.listed: list[int] = []
        self.asked: list[Asked] = []
        self.answering: Callable[[int], bool] = lambda broker_id: True
        self._stack = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def running(self, *broker_ids: int) -> AsyncIterator[FakeCluster]:
        async with self._stack:
            for broker_id in broker_ids:
                await self.start(broker_id)
            yield self

    async def start(self, broker_id: int, port: int = 0) -> None:
        async def answer(peer: Peer, request: Request) -> None:
            await self._answer(broker_id, peer, request)

        async def versions(peer: Peer, request: Request) -> None:
            if request.version == 0:
                await peer.answer(request, api_versions_body((0, 3, 8), (3, 4, 4), (18, 0, 0), (22, 0, 1)))
            else:
                await peer.answer(request, struct.pack(">h", 35))

        broker = FakeBroker(answer, on_api_versions=versions)
        broker.port = port
        self.brokers[broker_id] = broker
        if broker_id not in self.listed:
            self.listed.append(broker_id)
        await self._stack.enter_async_context(broker)

    async def stop(self, broker_id: int) -> int:
        """Stop a broker; returns its port."""
        broker = self.brokers[broker_id]
        await broker.__aexit__()
        return broker.port

    def bootstrap(self, *broker_ids: int) -> list[tuple[str, int]]:
        return [("127.0.0.1", self.brokers[broker_id].port) for broker_id in broker_ids]

    async def _answer(self, broker_id: int, peer: Peer, request: Request) -> None:
        assert (request.api_key, request.version) == (3, 4)
        position = 8 + 2 + struct.unpack_from(">h", request.frame, 8)[0]
        (count,) = struct.unpack_from(">i", request.frame, position)
        position += 4
        names: list[str] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", request.frame, position)
            names.append(request.frame[position + 2 : position + 2 + length].decode())
            position += 2 + length
        self.asked.append(Asked(broker_id, time.monotonic() * 1000, None if count < 0 else names))
        if self.answering(broker_id):
            await peer.answer(request, self._body(list(self.topics) if count < 0 else names))

    def _body(self, names: list[str]) -> bytes:
        body = struct.pack(">ii", 0, len(self.listed))
        for broker_id in self.listed:
            body += struct.pack(">i", broker_id) + _string("127.0.0.1")
            body += struct.pack(">i", self.brokers[broker_id].port) + _string(None)
        body += _string("fake") + struct.pack(">ii", 1, len(names))
        for name in names:
            found = self.topics.get(name, 3)
            leaders = found if isinstance(found, list) else []
            body += struct.pack(">h", found if isinstance(found, int) else 0) + _string(name) + b"\0"
            body += struct.pack(">i", len(leaders))
            for index, leader in enumerate(leaders):
                body += struct.pack(">hii", 0 if leader >= 0 else 5, index, leader)
                body += struct.pack(">ii", 1, leader) * 2
        return body
