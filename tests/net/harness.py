"""A real Endpoint under uvloop that keeps the messages that came, and the ways to dial it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from client_stub.native.hot import encode
from client_stub.zmtp.mechanism import opening
from sidecar.net.stubs.endpoint import (
    Endpoint,
)
from tests.patience import PATIENCE_S

MESSAGE_BYTES_MAX = 4 << 20


class Harness:
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
        """A peer that sends something has attached."""

    def _take(self, routing_id: bytes, frames: list[memoryview], skipped_bytes: int) -> None:
        self.messages.append((routing_id, [bytes(frame) for frame in frames]))
        self.skipped.append(skipped_bytes)
        if self.lets_in:
            self.endpoint.has_attached(routing_id)

    def _turn(self) -> None:
        self.turns += 1


@asynccontextmanager
async def harness_at(path: Path) -> AsyncIterator[Harness]:
    harness = Harness(path)
    try:
        yield harness
    finally:
        harness.endpoint.close()


def run(test: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (any condition, not one event)
            await asyncio.sleep(0.001)


def dial(harness: Harness) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(PATIENCE_S)
    peer.connect(harness.path)
    return peer


def stub_at(harness: Harness) -> socket.socket:
    peer = dial(harness)
    peer.sendall(opening(b"DEALER"))
    return peer


async def greet(harness: Harness, peer: socket.socket) -> bytes:
    """A first message of ``peer`` has arrived; the routing id it came under."""
    peer.sendall(b"".join(encode([b"hello"])))
    await until(lambda: harness.messages)
    return harness.messages[0][0]


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
