"""Intervals of a worker's heartbeats and its controller's checks, such that a healthy worker never seems silent.

Pure functions: the worker beats and the controller checks by them.

timeout 3 s     looks   |         |         |         |        every 1 s; the third in a row without a beat ends it
                beats   ^    ^    ^    ^    ^    ^    ^        every 0.5 s with work, every 1 s at rest
"""

from __future__ import annotations

from typing import Final

MISSES_MAX: Final = 3
"""Number of checks in a row without a heartbeat after which a worker is ended."""
HOUSEKEEPING_S: Final = 0.5
"""Longest interval in seconds between two rounds of periodic work: heartbeat, silent stubs, grace periods, gauges. An
idle worker wakes up only for this.
"""
RESTING_S: Final = 1.0
"""Longest interval in seconds between two rounds of a worker that holds nothing and has no turns."""


def check_interval_s(timeout_s: float) -> float:
    """Seconds between two checks of the controller, for a ``daemon.heartbeat_timeout_s``."""
    return timeout_s / MISSES_MAX


def housekeeping_s(timeout_s: float) -> float:
    """Seconds between two rounds of a worker that has work: at least two per check."""
    return min(HOUSEKEEPING_S, check_interval_s(timeout_s) / 2)


def resting_s(timeout_s: float) -> float:
    """Longest interval in seconds between two rounds of a worker at rest: at least one per check."""
    return min(RESTING_S, check_interval_s(timeout_s))
