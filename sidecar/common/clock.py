"""The only importer of ``time`` among the sans-IO packages: cores take ``now_ms`` as an argument.

There are two clocks on purpose. Deadlines use the monotonic clock, because a step of the wall clock must not expire
anything. Record timestamps use the wall clock.
"""

from __future__ import annotations

import time


class MonotonicClock:
    """Milliseconds for deadlines (monotonic, as float) and for record timestamps (Unix epoch, as int)."""

    def now_ms(self) -> float:
        return time.monotonic() * 1e3

    def timestamp_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that tests set. Its two clocks start far apart, so that mixing them up is noticed."""

    def __init__(self, now_ms: float = 10_000.0, timestamp_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._timestamp_ms = float(timestamp_ms)

    def now_ms(self) -> float:
        return self._now_ms

    def timestamp_ms(self) -> int:
        return int(self._timestamp_ms)

    def advance(self, ms: float) -> float:
        """Move both clocks forward by ``ms`` and return the new monotonic time."""
        self._now_ms += ms
        self._timestamp_ms += ms
        return self._now_ms
