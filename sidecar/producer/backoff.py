"""Backoff: exponential with jitter, as Kafka's ``ExponentialBackoff`` (KIP-580). No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

JITTER: Final = 0.2


class Backoff:
    """``initial_ms`` doubled per failure up to ``max_ms``, then ±20 %. ``random`` returns a float in [0,
    1)."""

    __slots__ = ("_initial_ms", "_max_ms", "_random")

    def __init__(self, initial_ms: float, max_ms: float, random: Callable[[], float]) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max(initial_ms, max_ms)
        self._random = random

    def delay_ms(self, failures: int) -> float:
        """The delay before try number ``failures + 1``; at most ``max_ms``."""
        delay = self._initial_ms * 2.0 ** min(max(failures - 1, 0), 32)
        jittered = min(delay, self._max_ms) * (1.0 + JITTER * (2.0 * self._random() - 1.0))
        return min(jittered, self._max_ms)
