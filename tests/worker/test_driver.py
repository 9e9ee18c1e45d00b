"""Driver: when a turn runs, and when its timer rings. The rooms are plain values here: what is due is all that
counts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.common.clock import ManualClock
from sidecar.worker.driver import (
    FAILED_TURN_PAUSE_MS,
    FAILED_TURNS_MAX,
    UNSENT_RETRY_MS,
    Driver,
)

INFINITY = float("inf")


class Handle:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandLoop:
    """call_soon of a loop that goes on when it is told to, and the one timer."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.soon: list[Handle] = []
        self.on_timer: Callable[[], None] = lambda: None
        self.timer_ms = INFINITY

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        self.soon.append(Handle(callback))
        return self.soon[-1]

    def ring_at(self, at_ms: float) -> None:
        self.timer_ms = at_ms

    def run(self, ms: float) -> None:
        """Let so much time pass, step by step from one ring of the timer to the next."""
        end_ms = self.clock.now_ms() + ms
        while True:
            soon, self.soon = self.soon, []
            for handle in soon:
                if not handle.is_cancelled:
                    handle.callback()
            if self.soon:
                continue
            if self.timer_ms > end_ms:
                self.clock.advance(end_ms - self.clock.now_ms())
                return
            self.clock.advance(max(0.0, self.timer_ms - self.clock.now_ms()))
            self.timer_ms = INFINITY
            self.on_timer()


class Rooms:
    """A driver whose rooms have nothing to do but what a test says. ``turns``: when each began."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=0.0)
        self.loop = HandLoop(self.clock)
        self.turns: list[float] = []
        self.given_up: list[str] = []
        self.fails = False
        self.sender = SimpleNamespace(
            next_wakeup_ms=INFINITY,
            watches_lateness=False,
            room=SimpleNamespace(lacks_descriptors=False),
            poll=self._poll,
        )
        self.topics = SimpleNamespace(
            waiting_queues={},
            missing=set(),
            next_due_ms=INFINITY,
            queue_of=lambda chain: SimpleNamespace(stalled_bytes=0, held_bytes=9),
        )
        self.looked_at_held: list[float] = []
        self.intake = SimpleNamespace(
            next_timed_ms=INFINITY, share_held=[], shares_freed=self.looked_at_held.append
        )
        self.stub_port = SimpleNamespace(
            has_heard=False,
            to_tell=set(),
            to_tell_later={},
            next_due_ms=INFINITY,
            end_turn=lambda now_ms: None,
        )
        self.rung: list[float] = []
        self.shares = SimpleNamespace(
            look_is_due=False,
            looked=lambda: setattr(self.shares, "look_is_due", False),
            others_wait=lambda: True,
            count=lambda queue, now_ms: None,
        )
        self.settlement = SimpleNamespace(finished_chains=set(), take_finished_chains=self._finished)
        rest: Any = SimpleNamespace(
            unanswered={}, finished_chains=set(), waiters=[], is_exhausted=False, current=None
        )
        rest.inc = lambda row: None
        self.driver = Driver(
            loop=self.loop,  # type: ignore[arg-type]
            clock=self.clock,  # type: ignore[arg-type]
            worker_epoch=1,
            cache=rest,
            accumulator=rest,
            sender=self.sender,  # type: ignore[arg-type]
            ids=rest,
            links=rest,
            pool=rest,
            counters=rest,
            topics=self.topics,  # type: ignore[arg-type]
            sessions=rest,
            intake=self.intake,  # type: ignore[arg-type]
            stub_port=self.stub_port,  # type: ignore[arg-type]
            produce_port=rest,
            producer_id_port=rest,
            settlement=self.settlement,  # type: ignore[arg-type]
            shares=self.shares,  # type: ignore[arg-type]
            dead_letters=rest,
            inquiry=rest,
            send_control=lambda message: None,
            wake_workers=lambda: self.rung.append(self.clock.now_ms()),
            ring_at=self.loop.ring_at,
            store_heartbeat=lambda: None,
            give_up=self.given_up.append,
        )
        self.loop.on_timer = self.driver.on_timer

    def _finished(self) -> list[Any]:
        self.settlement.finished_chains = set()
        return [SimpleNamespace(release_pages=list, live_entries=1)]

    def _poll(self, snapshot: object, links: object, now_ms: float) -> list[Any]:
        self.turns.append(now_ms)
        if self.sender.next_wakeup_ms <= now_ms:
            self.sender.next_wakeup_ms = INFINITY  # done
        if self.fails:
            raise RuntimeError("a bug")
        return []


@pytest.fixture
def rooms() -> Rooms:
    return Rooms()


def test_a_turn_follows_what_is_due_and_never_before(rooms: Rooms) -> None:
    for delay_ms in (7.0, 8.3, 0.4):
        rooms.sender.next_wakeup_ms = due_ms = rooms.clock.now_ms() + delay_ms
        rooms.driver.wake()
        rooms.loop.run(0)
        rooms.turns.clear()
        rooms.loop.run(10)
        (turn_ms,) = rooms.turns
        assert turn_ms == due_ms
        rooms.turns.clear()
    rooms.loop.run(10_000)
    assert rooms.turns == [], "nothing is due any more"


@pytest.mark.parametrize("room", ["sender", "intake", "topics", "stub_port"])
def test_what_any_room_waits_for_is_looked_at_in_time(rooms: Rooms, room: str) -> None:
    name = {"sender": "next_wakeup_ms", "intake": "next_timed_ms"}.get(room, "next_due_ms")
    setattr(getattr(rooms, room), name, 50.0)
    rooms.topics.waiting_queues["t"] = None
    looked_ms: list[float] = []

    def look(now_ms: float) -> None:
        looked_ms.append(now_ms)
        if now_ms >= 50.0:
            setattr(getattr(rooms, room), name, INFINITY)

    rooms.topics.expire = rooms.intake.timed_due = rooms.stub_port.end_turn = look
    rooms.topics.take_stale = lambda now_ms: ()
    rooms.topics.go_on = lambda now_ms: False
    rooms.stub_port.to_tell_later["session"] = 50.0
    rooms.driver.wake()
    rooms.loop.run(49)
    assert rooms.turns == [0.0]
    rooms.loop.run(1)
    assert rooms.turns[1] == 50.0
    assert rooms.turns[1] in looked_ms


def test_a_timer_for_what_is_settled_runs_no_turn(rooms: Rooms) -> None:
    rooms.sender.next_wakeup_ms = 5.0
    rooms.driver.wake()
    rooms.loop.run(1)
    rooms.sender.next_wakeup_ms = 100.0
    rooms.driver.wake()
    rooms.loop.run(1)
    assert rooms.loop.timer_ms == 5.0, "the earlier one is left"
    turns = len(rooms.turns)
    rooms.loop.run(90)
    assert len(rooms.turns) == turns
    rooms.loop.run(20)
    assert len(rooms.turns) == turns + 1
    assert rooms.turns[-1] == 100.0


def test_what_is_due_sooner_gets_the_timer(rooms: Rooms) -> None:
    rooms.sender.next_wakeup_ms = 1000.0
    rooms.driver.wake()
    rooms.loop.run(1)
    rooms.sender.next_wakeup_ms = 10.0
    rooms.driver.wake()
    rooms.loop.run(1)
    rooms.loop.run(10)
    assert rooms.turns[-1] == 10.0


def test_a_stub_that_did_not_read_is_tried_again(rooms: Rooms) -> None:
    rooms.stub_port.to_tell.add("session")
    rooms.driver.wake()
    rooms.loop.run(UNSENT_RETRY_MS * 3.5)
    assert len(rooms.turns) == 4


def test_the_endpoint_s_turn_needs_a_message_or_somebody_to_tell(rooms: Rooms) -> None:
    rooms.driver.turn_now()
    assert rooms.turns == [], "a part of a frame came"
    rooms.stub_port.has_heard = True
    rooms.driver.turn_now()
    rooms.driver.turn_now()
    assert len(rooms.turns) == 1, "one turn for all it had"
    rooms.stub_port.to_tell.add("session")
    rooms.driver.turn_now()
    assert len(rooms.turns) == 2


def test_a_turn_asked_for_and_run_now_is_one_turn(rooms: Rooms) -> None:
    rooms.driver.wake()
    rooms.driver.wake()
    rooms.stub_port.has_heard = True
    rooms.driver.turn_now()
    rooms.loop.run(1)
    assert len(rooms.turns) == 1


def test_a_turn_that_failed_comes_again_after_a_pause_until_the_worker_gives_up(rooms: Rooms) -> None:
    rooms.fails = True
    rooms.driver.wake()
    rooms.loop.run(FAILED_TURN_PAUSE_MS * 3.5)
    assert len(rooms.turns) == 4
    rooms.loop.run(FAILED_TURN_PAUSE_MS * FAILED_TURNS_MAX)
    assert len(rooms.given_up) == 1


def test_held_streams_are_looked_at_when_another_worker_rings(rooms: Rooms) -> None:
    rooms.driver.on_pool_wake()
    assert not rooms.looked_at_held, "nothing is held"
    rooms.intake.share_held = ["a stream"]
    rooms.clock.advance(5)
    rooms.driver.on_pool_wake()
    assert rooms.looked_at_held == [5.0]


def test_what_was_given_back_lets_streams_go_on_here_and_rings_the_others(rooms: Rooms) -> None:
    rooms.intake.share_held = ["a stream"]
    for is_due, seen in ((False, []), (True, [0.0])):
        rooms.shares.look_is_due = is_due
        rooms.settlement.finished_chains = {"a chain"}
        rooms.driver.wake()
        rooms.loop.run(0)
        assert rooms.looked_at_held == rooms.rung == seen
