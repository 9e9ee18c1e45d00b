"""A clock that a test sets, in the place of ``sidecar.common.clock.MonotonicClock``."""

from __future__ import annotations


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
