"""ExponentialBackoff: the wait between attempts. No clock and no randomness of its own.

Sans-IO: the worker's producer core and the tasks of the controller, on their loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

BACKOFF_BASE: Final = 2.0
JITTER: Final = 0.2


class ExponentialBackoff:
    """Waits of ``initial_ms * 2**attempts`` up to ``maximum_ms``, each varied by ±20 % with ``random()`` in [0, 1).

    As in Kafka (KIP-580; common.utils.ExponentialBackoff) the power stops growing when it reaches the maximum; then
    jitter is applied, then the cap. So the longest waits are 80 to 100 % of the maximum. If the maximum is not above
    ``initial_ms``, every wait is the maximum, without jitter.
    """

    __slots__ = ("_exponent_max", "_initial_ms", "_maximum_ms", "_random")

    def __init__(self, initial_ms: float, maximum_ms: float, random: Callable[[], float]) -> None:
        self._initial_ms = min(initial_ms, maximum_ms)
        self._maximum_ms = maximum_ms
        self._exponent_max = (
            math.log(maximum_ms / max(initial_ms, 1.0), BACKOFF_BASE) if maximum_ms > initial_ms else 0.0
        )
        self._random = random

    def backoff_ms(self, attempts: int) -> float:
        """The wait in ms. ``attempts`` counts from 0: the first failure waits about ``initial_ms``."""
        if not self._exponent_max:
            return self._initial_ms
        term_ms: float = self._initial_ms * BACKOFF_BASE ** min(attempts, self._exponent_max)
        jitter = 1.0 + JITTER * (2.0 * self._random() - 1.0)
        return min(term_ms * jitter, self._maximum_ms)
