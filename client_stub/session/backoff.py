"""Backoff: the pause before the next connection, and the time since the last useful one. Sans-IO."""

from __future__ import annotations

import random
from typing import Final

BACKOFF_FIRST_MS: Final = 20.0
BACKOFF_MAX_MS: Final = 1_000.0
REFUSED_FIRST_MS: Final = 1_000.0
REFUSED_MAX_MS: Final = 30_000.0
"""The same for a daemon that refuses this client until its configuration changes."""
STEADY_MS: Final = 1_000.0
"""A connection is useful if it lives this long after WELCOME, or brings an acceptance or an outcome."""


class Backoff:
    """The backoff of one session.

    WELCOME alone is no progress. A worker may end each connection because of a message that it gets. The stub would
    then connect again hundreds of times a second without end, and no record would ever time out.
    """

    def __init__(self) -> None:
        self.away_since_ms: float | None = None
        """Since when there has been no useful connection; None while there is one."""
        self._backoff_ms = 0.0
        self._attached_at_ms: float | None = None
        """When the present connection began, until it has proved useful; else None."""

    def went_away(self, now_ms: float) -> None:
        """Note that there is no connection, or that it ends."""
        attached_at_ms = self._attached_at_ms
        if attached_at_ms is not None and now_ms - attached_at_ms >= STEADY_MS:
            self.progressed()
        self._attached_at_ms = None
        if self.away_since_ms is None:
            self.away_since_ms = now_ms

    def attached(self, now_ms: float) -> None:
        self._attached_at_ms = now_ms

    def progressed(self) -> None:
        """Note progress: records were accepted, or outcomes arrived. Needed only while ``_attached_at_ms`` is set."""
        self._attached_at_ms = self.away_since_ms = None
        self._backoff_ms = 0.0

    def next_wait_ms(self, *, at_once: bool, is_refused: bool = False) -> float:
        """The pause before the next HELLO in ms. With ``at_once`` it is 0, unless that was just tried in vain."""
        if at_once and not self._backoff_ms:
            self._backoff_ms = BACKOFF_FIRST_MS
            return 0.0
        first_ms, most_ms = (
            (REFUSED_FIRST_MS, REFUSED_MAX_MS) if is_refused else (BACKOFF_FIRST_MS, BACKOFF_MAX_MS)
        )
        self._backoff_ms = min(most_ms, max(first_ms, self._backoff_ms * 2))
        return self._backoff_ms * random.uniform(0.8, 1.2)
