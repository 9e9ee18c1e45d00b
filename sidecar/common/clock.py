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
