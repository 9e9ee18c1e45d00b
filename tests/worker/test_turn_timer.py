"""TurnTimer on a real loop: it rings once, never before its time, and only for the last time it was set to."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import uvloop

from sidecar.worker.turn_timer import TurnTimer
from tests.patience import PATIENCE_S


def now_ms() -> float:
    return time.monotonic_ns() / 1e6


class Bell:
    """A timer and when it rang."""

    def __init__(self) -> None:
        self.rung_ms: list[float] = []
        self._rung = asyncio.Event()
        self.timer = TurnTimer(asyncio.get_running_loop(), self._ring)

    def _ring(self) -> None:
        self.rung_ms.append(now_ms())
        self._rung.set()

    async def wait(self) -> float:
        await asyncio.wait_for(self._rung.wait(), PATIENCE_S)
        self._rung.clear()
        return self.rung_ms[-1]


def run(test: Callable[[Bell], Awaitable[None]]) -> None:
    async def main() -> None:
        bell = Bell()
        try:
            await test(bell)
        finally:
            bell.timer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_it_never_rings_before_its_time() -> None:
    async def test(bell: Bell) -> None:
        for delay_ms in (3.0, 0.4, 1.9, 0.05):
            at_ms = now_ms() + delay_ms
            bell.timer.set(at_ms)
            assert await bell.wait() >= at_ms

    run(test)


def test_a_time_that_has_passed_rings_at_once() -> None:
    async def test(bell: Bell) -> None:
        for at_ms in (now_ms() - 1000, 0.0, -5.0):
            bell.timer.set(at_ms)
            await bell.wait()

    run(test)


def test_only_the_last_time_counts() -> None:
    async def test(bell: Bell) -> None:
        bell.timer.set(now_ms() - 1)  # it has rung, and is set anew before the loop looks
        bell.timer.set(now_ms() + 3_600_000)
        bell.timer.set(at_ms := now_ms() + 20)
        assert await bell.wait() >= at_ms
        assert len(bell.rung_ms) == 1

    run(test)


def test_a_closed_one_is_set_in_vain_and_touches_no_other_descriptor() -> None:
    async def test(bell: Bell) -> None:
        closed = Bell()
        closed.timer.set(now_ms() + 5)
        closed.timer.close()
        reader, writer = os.pipe()  # perhaps with the number that was its own
        closed.timer.set(now_ms() - 1)
        bell.timer.set(now_ms() + 20)
        await bell.wait()
        os.close(reader)
        os.close(writer)
        assert closed.rung_ms == []

    run(test)
