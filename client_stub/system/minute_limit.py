"""MinuteLimit: one line of the log a minute, or a few, however often its cause occurs.

Each log that could repeat has one, in whichever thread logs.
"""

from __future__ import annotations

from typing import Final

MINUTE_MS: Final = 60_000.0


class MinuteLimit:
    """At most ``lines`` lines a minute, counted from the first. Any thread; two at once may log a line more."""

    __slots__ = ("_lines", "left", "next_ms")

    def __init__(self, lines: int = 1) -> None:
        self._lines = lines
        self.left = 0
        """Lines that may follow in this minute."""
        self.next_ms = 0.0
        """When the next minute may begin (monotonic clock)."""

    def may_log(self, now_ms: float) -> bool:
        """Whether a line may be logged now, which is then counted."""
        if now_ms >= self.next_ms:
            self.next_ms, self.left = now_ms + MINUTE_MS, self._lines
        if not self.left:
            return False
        self.left -= 1
        return True
