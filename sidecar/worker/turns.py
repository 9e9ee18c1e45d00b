"""Turns: when the worker's next turn runs. Asked for, due by time, or again after one that failed."""

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
"""So many turns in a row that failed will not be followed by a good one: the worker ends, and its successor begins
with what the segment says."""
FAILED_TURN_PAUSE_MS = 20.0
"""Before a turn that failed is tried again; what was due then is due now."""


class Turns:
    """Belongs to the worker's loop. Rooms that are made before the driver ask here for a turn of it."""

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
        """See :mod:`sidecar.common.heartbeat` for the two times."""
        self._loop = loop
        self._clock = clock
        self._host = host
        self._counters = counters
        self.turn: Callable[[float], float] = _no_turn
        """Runs one turn at ``now_ms``; returns when the next one is due though nothing happens. The driver's."""
        self._handle: asyncio.Handle | None = None
        self._timer_ms = NEVER_MS
        """When the timer expires."""
        self._due_ms = NEVER_MS
        """When the next turn is due though nothing happens, as the last turn left things."""
        self._failed = 0
        """Turns that failed, one after the other."""
        self._halted = False
        self.housekeeping_s = housekeeping_s
        """Between two rounds of housekeeping while there is work."""
        self._resting_s = resting_s
        self._resting: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Ask for a turn in this iteration of the loop; any number of asks make one turn."""
        if self._handle is None:
            self._handle = self._loop.call_soon(self.run_now)

    def halt(self) -> None:
        """No turn runs any more: what comes behind a fault must not overtake what it struck."""
        self._halted = True

    async def rest(self) -> None:
        """Until its time is over or a turn runs: what that one does is published no later than ever."""
        resting = self._resting = self._loop.create_future()
        timer = self._loop.call_later(self._resting_s, _end, resting)
        try:
            await resting
        finally:
            timer.cancel()
            self._resting = None

    def on_timer(self) -> None:
        """The timer expires. Other than the loop's, never before its time: a turn would follow the other until then."""
        self._timer_ms = NEVER_MS
        if self._due_ms <= self._clock.now_ms():
            self.wake()
        elif self._due_ms < NEVER_MS:
            self._arm()  # what it was set for has been settled since

    def run_now(self) -> None:
        """Run a turn without waiting for the loop; it is the one that was asked for, too."""
        if self._handle is not None:
            self._handle.cancel()  # nothing, when it is the loop that calls
            self._handle = None
        if self._halted:
            return
        if self._resting is not None:
            _end(self._resting)
        now_ms = self._clock.now_ms()
        try:
            due_ms = self.turn(now_ms)
            self._failed = 0
        except Exception:
            # S1: one bad iteration is logged and counted, and the loop goes on.
            self._counters.inc("sender_exceptions_total")
            log.exception(f"An iteration of the sender failed. The worker goes on. {PLEASE_REPORT}")
            due_ms = now_ms + FAILED_TURN_PAUSE_MS
            self._failed += 1
            if self._failed == FAILED_TURNS_MAX:
                self._host.give_up(f"{FAILED_TURNS_MAX} iterations of the sender failed one after the other")
        self._due_ms = due_ms
        if due_ms <= now_ms:
            self.wake()
        elif due_ms < self._timer_ms:
            # One that expires too early is left: setting it costs every turn.
            self._arm()

    def _arm(self) -> None:
        self._timer_ms = self._due_ms
        self._host.set_timer(self._due_ms)


def _end(resting: asyncio.Future[None]) -> None:
    if not resting.done():
        resting.set_result(None)


def _no_turn(now_ms: float) -> float:
    raise AssertionError("a turn runs before there is a driver")
