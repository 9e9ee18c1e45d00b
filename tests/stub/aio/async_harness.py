"""A harness for AsyncProducer without a daemon: the test plays the io thread, and the loop's clock jumps."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgpack
import pytest

from client_stub import AsyncProducer, errors
from client_stub.engine.engine import Engine
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import Submission

SUBMISSION_BYTES = 600
BUFFER_BYTES = 1_500


class JumpingLoop(asyncio.SelectorEventLoop):
    """Nobody waits in real time: where the loop would sleep until a timer, its clock jumps there."""

    def __init__(self) -> None:
        super().__init__(_Selector(self))
        self.now = 1_000.0

    def time(self) -> float:
        return self.now


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits and no timer runs"
        self._loop.now += max(0.0, timeout)
        return super().select(0)


class PlayedIo:
    """In the place of the io thread: ends when it is told to."""

    has_begun = True

    def __init__(self) -> None:
        self.has_ended = False
        self.cancelled: bool | None = None

    def request_close(self, *, cancel: bool) -> None:
        self.cancelled = cancel
        self.has_ended = True

    def join(self, timeout: float | None) -> None:
        assert self.has_ended

    def abandon(self) -> None:
        self.has_ended = True


class Harness:
    """An AsyncProducer that is attached, with small submissions and a small buffer; nothing is taken unless told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run_dir: Path, **settings: Any) -> None:
        monkeypatch.setattr(Engine, "_start", lambda engine, outbox: None)
        self.producer = AsyncProducer(run_dir, **settings)
        self.outbox: Outbox = self.producer._engine.outbox
        self.outbox.buffer_bytes = BUFFER_BYTES
        self.outbox.submission_bytes = SUBMISSION_BYTES
        self.outbox.attached_once = True
        self.outbox.size_limits.request_bytes_max = 1 << 20
        self.io = PlayedIo()
        self.outbox.io["thread"] = self.io
        self.gathered: deque[Submission] = deque()
        self.taken: list[Submission] = []
        self.log: dict[str, list[bytes]] = {}
        """The values that the daemon has taken, by topic, in the order of acceptance."""

    def accept(self, count: int | None = None) -> int:
        """Play the io thread: hand over what gathered, and take up to ``count`` submissions; how many it were."""
        self.gathered.extend(self.outbox.gather(lambda topic: True)[0])
        taken = [
            self.gathered.popleft()
            for _ in range(len(self.gathered) if count is None else min(count, len(self.gathered)))
        ]
        for submission in taken:
            unpacker = msgpack.Unpacker()
            assert submission.payload is not None
            unpacker.feed(bytes(submission.payload))
            self.log.setdefault(submission.topic, []).extend(record[1] for record in unpacker)
        self.outbox.settle(taken, (), is_news=False)
        self.taken.extend(taken)
        return len(taken)

    def decide(self) -> None:
        """All that was taken fails."""
        for submission in self.taken:
            submission.fail(errors.DeliveryFailed("a broker refused it"))
        self.outbox.settle((), self.taken, is_news=True)
        self.taken.clear()

    async def accept_all(self) -> None:
        await settle()
        while self.accept():
            await settle()


async def settle() -> None:
    """Let the loop do all that is due now."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(
    main: Coroutine[Any, Any, None], make_loop: Callable[[], asyncio.AbstractEventLoop] = JumpingLoop
) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main)
