"""Patience: how long to wait before the next connection, and since when nothing has come of any. Sans-IO."""

from __future__ import annotations

import random
from typing import Final

BACKOFF_FIRST_MS: Final = 20.0
BACKOFF_MAX_MS: Final = 1_000.0
STEADY_MS: Final = 1_000.0
"""A connection that lived as long after WELCOME, or brought an acceptance or an outcome, was good for something."""


class Patience:
    """Of one session.

    WELCOME is no progress by itself: a worker that ends each connection over what is sent would be asked without end,
    hundreds of times a second, and no record would ever have waited too long.
    """

    def __init__(self) -> None:
        self.away_since_ms: float | None = None
        """Since when there was no connection that was good for something; None: there is one."""
        self._backoff_ms = 0.0
        self.attached_at_ms: float | None = None
        """Since when there is a connection that has not shown what it is good for; else None."""

    def went_away(self, now_ms: float) -> None:
        """There is no connection, or it ends."""
        self.tick(now_ms)
        self.attached_at_ms = None
        if self.away_since_ms is None:
            self.away_since_ms = now_ms

    def attached(self, now_ms: float) -> None:
        self.attached_at_ms = now_ms

    def progressed(self) -> None:
        """Records were accepted, or their outcomes came."""
        self.away_since_ms = None
        self._backoff_ms = 0.0

    def tick(self, now_ms: float) -> None:
        attached_at_ms = self.attached_at_ms
        if attached_at_ms is not None and now_ms - attached_at_ms >= STEADY_MS:
            self.attached_at_ms = None  # said once
            self.progressed()

    def next_wait_ms(self, *, at_once: bool) -> float:
        """The backoff before the next HELLO; none ``at_once``, unless that has just been tried in vain."""
        if at_once and not self._backoff_ms:
            self._backoff_ms = BACKOFF_FIRST_MS
            return 0.0
        self._backoff_ms = min(BACKOFF_MAX_MS, max(BACKOFF_FIRST_MS, self._backoff_ms * 2))
        return self._backoff_ms * random.uniform(0.8, 1.2)
