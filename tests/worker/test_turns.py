"""Turns: when a turn runs, and when its timer rings."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.worker.turns import FAILED_TURN_PAUSE_MS, FAILED_TURNS_MAX, Turns
from tests.manual_clock import ManualClock

from .manual_worker import INFINITY, ManualHost, ManualLoop


class Harness:
    """``began``: when each turn began. ``due_ms``: what a turn finds due next; when that has come, it is done."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=0.0)
        self.loop = ManualLoop(self.clock)
        self.host = self.loop.host = ManualHost()
        self.counted: Counter[str] = Counter()
        self.turns = Turns(self.loop, self.clock, self.host, self, housekeeping_s=0.5, resting_s=1.0)  # type: ignore[arg-type]
        self.turns.turn = self.turn
        self.host.on_timer = self.turns.on_timer
        self.began: list[float] = []
        self.due_ms = INFINITY
        self.fails = False

    def inc(self, name: str) -> None:
        self.counted[name] += 1

    def turn(self, now_ms: float) -> float:
        self.began.append(now_ms)
        if self.fails:
            raise RuntimeError("a bug")
        if self.due_ms <= now_ms:
            self.due_ms = INFINITY
        return self.due_ms


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_a_turn_follows_what_is_due_and_never_before(harness: Harness) -> None:
    for delay_ms in (7.0, 8.3, 0.4):
        harness.due_ms = due_ms = harness.clock.now_ms() + delay_ms
        harness.turns.wake()
        harness.loop.run()
        harness.began.clear()
        harness.loop.run(10)
        assert harness.began == [due_ms]
        harness.began.clear()
    harness.loop.run(10_000)
    assert harness.began == [], "nothing is due any more"


def test_a_timer_for_what_is_settled_runs_no_turn(harness: Harness) -> None:
    harness.due_ms = 5.0
    harness.turns.wake()
    harness.loop.run(1)
    harness.due_ms = 100.0
    harness.turns.wake()
    harness.loop.run(1)
    assert harness.host.timer_ms == 5.0, "the earlier one is left"
    turns = len(harness.began)
    harness.loop.run(90)
    assert len(harness.began) == turns
    harness.loop.run(20)
    assert harness.began[turns:] == [100.0]


def test_the_earliest_turn_gets_the_timer(harness: Harness) -> None:
    for due_ms in (1000.0, 10.0):
        harness.due_ms = due_ms
        harness.turns.wake()
        harness.loop.run(1)
    harness.loop.run(10)
    assert harness.began[-1] == 10.0


@pytest.mark.parametrize(
    ("ask", "turns"),
    [
        (lambda turns: (turns.wake(), turns.wake()), 1),
        (lambda turns: (turns.wake(), turns.run_now()), 1),
        (lambda turns: (turns.run_now(), turns.wake()), 2),
        (lambda turns: (turns.halt(), turns.wake(), turns.run_now()), 0),
    ],
    ids=["two asks", "asked for and run now", "asked for after it", "halted"],
)
def test_asks_in_one_iteration_are_one_turn(
    harness: Harness, ask: Callable[[Turns], Any], turns: int
) -> None:
    ask(harness.turns)
    harness.loop.run(1)
    assert len(harness.began) == turns


def test_a_turn_that_failed_comes_again_after_a_pause_until_the_worker_gives_up(harness: Harness) -> None:
    harness.fails = True
    harness.turns.wake()
    harness.loop.run(FAILED_TURN_PAUSE_MS * 3.5)
    assert harness.began == [0.0, *(FAILED_TURN_PAUSE_MS * turn for turn in (1, 2, 3))]
    assert not harness.host.given_up
    harness.loop.run(FAILED_TURN_PAUSE_MS * FAILED_TURNS_MAX)
    assert len(harness.host.given_up) == 1
    assert harness.counted["sender_exceptions_total"] == len(harness.began)


def test_one_good_turn_forgets_the_failed_ones(harness: Harness) -> None:
    for _ in range(2):
        harness.fails = True
        harness.turns.wake()
        harness.loop.run(FAILED_TURN_PAUSE_MS * (FAILED_TURNS_MAX - 2))
        harness.fails = False
        harness.loop.run(FAILED_TURN_PAUSE_MS)
    assert not harness.host.given_up


def test_a_turn_ends_a_rest() -> None:
    harness = Harness()

    async def rest() -> None:
        loop = asyncio.get_running_loop()
        turns = Turns(loop, harness.clock, harness.host, harness, housekeeping_s=0.5, resting_s=3_600.0)  # type: ignore[arg-type]
        turns.turn = harness.turn
        turns.wake()
        await turns.rest()

    asyncio.run(rest())
    assert harness.began == [0.0]
