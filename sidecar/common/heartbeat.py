"""How often a worker's heart beats and its controller looks, so that a healthy worker never seems silent.

timeout 3 s     looks   |         |         |         |        every 1 s; the third in a row without a beat ends it
                beats   ^    ^    ^    ^    ^    ^    ^        every 0.5 s with work, every 1 s at rest
"""

from __future__ import annotations

from typing import Final

MISSES_MAX: Final = 3
"""Looks in a row without a beat that end a worker."""
HOUSEKEEPING_S: Final = 0.5
"""Between two rounds of housekeeping, at most: heartbeat, silent stubs, row grace, gauges. An idle worker wakes for
this and for nothing else."""
RESTING_S: Final = 1.0
"""Between two rounds of a worker that holds nothing and has no turns, at most."""


def look_s(timeout_s: float) -> float:
    """Between two looks of the controller, for a ``daemon.heartbeat_timeout_s``."""
    return timeout_s / MISSES_MAX


def housekeeping_s(timeout_s: float) -> float:
    """Between two rounds of a worker that has work: two of them, or more, for each look."""
    return min(HOUSEKEEPING_S, look_s(timeout_s) / 2)


def resting_s(timeout_s: float) -> float:
    """Between two rounds of a worker at rest, at most: one of them, or more, for each look."""
    return min(RESTING_S, look_s(timeout_s))
