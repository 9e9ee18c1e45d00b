"""SharedAnswer: concurrent requests share one answer, and making answers never takes more than a share of the loop's
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

SHARED_S: Final = 1.0
"""Requests for the page's state within this time get the same answer; other answers are shared only by concurrent
requests.
"""
RENDER_SHARE: Final = 0.05
"""The greatest share of the loop's time for answers in the long run."""
RENDER_BURST_S: Final = 0.5
"""How much of that time may be used at once: a reader that asks rarely gets a new answer."""

Made = TypeVar("Made")


class RenderBudget:
    """The CPU time spent on all answers together. Sans-IO, not thread-safe.

    It is not elapsed time: on a busy machine that would make cheap answers stale.
    """

    def __init__(self) -> None:
        self._paid_s = 0.0
        """The time at which the CPU time spent will be paid for."""

    def allows(self, now_s: float) -> bool:
        return self._paid_s - now_s < RENDER_BURST_S / RENDER_SHARE

    def spend(self, cpu_s: float, now_s: float) -> None:
        self._paid_s = max(self._paid_s, now_s) + cpu_s / RENDER_SHARE


class SharedAnswer(Generic[Made]):
    """One kind of answer. ``now_s`` reads a monotonic clock, ``cpu_s`` the CPU clock of the loop's thread."""

    def __init__(
        self,
        make: Callable[[], Made],
        budget: RenderBudget,
        *,
        now_s: Callable[[], float],
        cpu_s: Callable[[], float],
    ) -> None:
        self._make = make
        self._budget = budget
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._last: tuple[float, Made] | None = None
        """(when the last answer was made, that answer)."""

    def get(self, *, is_crowded: bool) -> Made:
        """A new answer, or the last one while it is good enough. ``is_crowded``: other requests are being answered."""
        now_s = self._now_s()
        if self._last is not None:
            made_s, made = self._last
            if (is_crowded and now_s - made_s < SHARED_S) or not self._budget.allows(now_s):
                return made
        before_s = self._cpu_s()
        made = self._make()
        now_s = self._now_s()
        self._budget.spend(self._cpu_s() - before_s, now_s)
        self._last = now_s, made
        return made
