"""SharedAnswer: what many ask for at once is made once, and making answers never takes more than a part of the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

LOOK_S: Final = 1.0
"""All who ask for the page's state within this time get the same answer; of other answers those who ask at once do."""
RENDER_SHARE: Final = 0.05
"""Of the loop's time at most goes into answers, in the long run."""
RENDER_BURST_S: Final = 0.5
"""So much of it may be taken at once: a reader that asks now and then gets an answer of this moment."""

Made = TypeVar("Made")


class RenderBudget:
    """The CPU time that went into answers, for all of them together. Sans-IO, not thread-safe.

    Not the time that passed: on a busy machine that would make answers old which cost next to nothing.
    """

    def __init__(self) -> None:
        self._paid_s = 0.0
        """When all that was taken will be paid for."""

    def allows(self, now_s: float) -> bool:
        return self._paid_s - now_s < RENDER_BURST_S / RENDER_SHARE

    def spend(self, cpu_s: float, now_s: float) -> None:
        self._paid_s = max(self._paid_s, now_s) + cpu_s / RENDER_SHARE


class SharedAnswer(Generic[Made]):
    """One kind of answer. ``now_s`` reads a monotonic clock, ``cpu_s`` that of the loop's thread."""

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
        """When the last one was made, and that one."""

    def get(self, *, is_crowded: bool) -> Made:
        """The answer of this moment, or the last one while it will do. ``is_crowded``: others are being answered."""
        now_s = self._now_s()
        if self._last is not None:
            made_s, made = self._last
            if (is_crowded and now_s - made_s < LOOK_S) or not self._budget.allows(now_s):
                return made
        before_s = self._cpu_s()
        made = self._make()
        now_s = self._now_s()
        self._budget.spend(self._cpu_s() - before_s, now_s)
        self._last = now_s, made
        return made
