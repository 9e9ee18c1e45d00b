"""Turns: decides when the worker's next turn runs: on request, at a due time, or again after a failed one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sidecar.common.wording import PLEASE_REPORT

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.shm.slots import Counters
    from sidecar.worker.host import Host

log = logging.getLogger(__name__)

NEVER_MS: Final = float("inf")
FAILED_TURNS_MAX = 20
"""After this many failed turns in a row the worker ends. Its successor begins with the state in the segment."""
FAILED_TURN_PAUSE_MS = 20.0
"""Pause in ms before a failed turn is tried again. Work that was due then is due now."""


class Turns:
    """Schedules turns. Belongs to the worker's loop. Other objects ask it for a turn."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: MonotonicClock,
        host: Host,
        counters: Counters,
        *,
        housekeeping_s: float,
        resting_s: float,
    ) -> None:
        """``housekeeping_s`` and ``resting_s``: see :mod:`sidecar.common.heartbeat`."""
        self._loop = loop
        self._clock = clock
        self._host = host
        self._counters = counters
        self.turn: Callable[[float], float] = _no_turn
        """The driver's function that runs one turn at ``now_ms``. Returns when the next is due without an event."""
        self._handle: asyncio.Handle | None = None
        self._timer_ms = NEVER_MS
        """When the timer expires, monotonic ms."""
        self._due_ms = NEVER_MS
        """When the next turn is due without an event, as the last turn returned it."""
        self._failed = 0
        """Number of failed turns in a row."""
        self.count = 0
        """Number of turns so far."""
        self._halted = False
        self.housekeeping_s = housekeeping_s
        """Seconds between two rounds of periodic work while there is work."""
        self._resting_s = resting_s
        self._resting: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Request a turn in this iteration of the loop. Any number of requests make one turn."""
        if self._handle is None:
            self._handle = self._loop.call_soon(self.run_now)

    def halt(self) -> None:
        """Stop running turns: after a fault, later effects must not overtake the one that failed."""
        self._halted = True

    async def rest(self) -> None:
        """Wait for ``resting_s`` or until a turn runs, so that the turn's numbers are published without more delay."""
        resting = self._resting = self._loop.create_future()
        timer = self._loop.call_later(self._resting_s, _end, resting)
        try:
            await resting
        finally:
            timer.cancel()
            self._resting = None

    def on_timer(self) -> None:
        """Handle the timer. Unlike a loop timer it is never early; otherwise idle turns would run until the
        due time.
        """
        self._timer_ms = NEVER_MS
        if self._due_ms <= self._clock.now_ms():
            self.wake()
        elif self._due_ms < NEVER_MS:
            self._arm()  # the work it was set for is done; set it for the next

    def run_now(self) -> None:
        """Run a turn at once. It also counts as the requested one."""
        if self._handle is not None:
            self._handle.cancel()  # has no effect if the loop is the caller
            self._handle = None
        if self._halted:
            return
        if self._resting is not None:
            _end(self._resting)
        self.count += 1
        now_ms = self._clock.now_ms()
        try:
            due_ms = self.turn(now_ms)
            self._failed = 0
        except Exception:
            # S1: a failed iteration is logged and counted, and the loop continues.
            self._counters.inc("sender_exceptions_total")
            log.exception(f"An iteration of the sender failed. The worker continues. {PLEASE_REPORT}")
            due_ms = now_ms + FAILED_TURN_PAUSE_MS
            self._failed += 1
            if self._failed == FAILED_TURNS_MAX:
                self._host.give_up(f"{FAILED_TURNS_MAX} iterations of the sender failed one after the other")
        self._due_ms = due_ms
        if due_ms <= now_ms:
            self.wake()
        elif due_ms < self._timer_ms:
            # A timer that expires too early is left alone: setting it costs every turn.
            self._arm()

    def _arm(self) -> None:
        self._timer_ms = self._due_ms
        self._host.set_timer(self._due_ms)


def _end(resting: asyncio.Future[None]) -> None:
    if not resting.done():
        resting.set_result(None)


def _no_turn(now_ms: float) -> float:
    raise AssertionError("a turn runs before there is a driver")
