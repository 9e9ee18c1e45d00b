"""Penalties: how long a misbehaving process waits until its next connection is heard.

A connection has its bounds (messages a turn, bytes before ATTACH, malformed messages), and the next one begins them
again. So what connections cost is counted by process as well, in points that time takes back: regular
use never gets near the bound, and a process that offends and comes back gets a connection or two a second.
"""

from __future__ import annotations

from typing import Final

CONNECTION_POINTS: Final = 1
"""A connection, whatever comes of it."""
MALFORMED_POINTS: Final = 16
"""A message that no stub sends."""
BROKEN_POINTS: Final = 50
"""A connection that had to be closed for what came on it."""
USELESS_POINTS: Final = 0.25
"""A submission that opens nothing: for a stream that has not begun, or that may not."""
SKIPPED_BYTES_PER_POINT: Final = 1 << 20
"""Of a message that is too long and is read away: a stub knows the bound and never sends it."""
FREE_POINTS: Final = 512
"""Points of a process before its connections wait: as many connections as a quarter of all clients make twice."""
POINTS_BACK_A_SECOND: Final = 100.0
WAIT_MAX_S: Final = 2.0
"""A stub waits 5 s for an answer: a stub in the same process as the one at fault is late, but not refused."""
PROCESSES_MAX: Final = 1_024
"""Processes remembered; beyond them the one that has been quiet longest is forgotten."""


class Penalties:
    """Points by process, or by host over TCP. Sans-IO: ``now_s`` comes from the caller. Not thread-safe.

    Process 0 stands for all that cannot be seen (of another pid namespace): nobody pays for another of them.
    """

    def __init__(self) -> None:
        self._clear_s: dict[int | str, float] = {}
        """By process: when its points will all be gone. Quiet longest first."""

    def charge(self, process: int | str, points: float, now_s: float) -> None:
        if not process:
            return
        clear_s = max(self._clear_s.pop(process, 0.0), now_s) + points / POINTS_BACK_A_SECOND
        if len(self._clear_s) >= PROCESSES_MAX:
            del self._clear_s[next(iter(self._clear_s))]
        self._clear_s[process] = min(clear_s, now_s + FREE_POINTS / POINTS_BACK_A_SECOND + WAIT_MAX_S)

    def wait_s(self, process: int | str, now_s: float) -> float:
        """How long its next connection is to wait; 0 for nearly everybody."""
        clear_s = self._clear_s.get(process, 0.0)
        return max(0.0, clear_s - now_s - FREE_POINTS / POINTS_BACK_A_SECOND)
