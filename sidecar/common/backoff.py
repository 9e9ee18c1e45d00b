"""ExponentialBackoff: the wait between attempts. No clock and no randomness of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BACKOFF_BASE: Final = 2.0
JITTER: Final = 0.2


class ExponentialBackoff:
    """``initial * 2**attempt`` up to ``maximum``, each ±20 % by ``random()`` in [0, 1).

    As in Kafka the jitter is applied before the cap, so the maximum is never passed.
    (Kafka: common.utils.ExponentialBackoff.)
    """

    def __init__(self, initial_ms: float, maximum_ms: float, random: Callable[[], float]) -> None:
        self._initial_ms = initial_ms
        self._maximum_ms = max(initial_ms, maximum_ms)
        self._random = random

    def backoff_ms(self, attempts: int) -> float:
        """``attempts`` counts from 0: the first failure waits about ``initial_ms``."""
        # Beyond 2**60 the cap holds anyway; the bound keeps the power from overflowing.
        term = self._initial_ms * BACKOFF_BASE ** min(attempts, 60)
        jitter = 1.0 + JITTER * (2.0 * self._random() - 1.0)
        return min(term * jitter, self._maximum_ms)
