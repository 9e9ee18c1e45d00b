"""AwayLog: warns once when the daemon is away for long, and logs one line when it is back. Sans-IO, io thread only."""

from __future__ import annotations

from typing import Final

from client_stub.system.log import log
from client_stub.system.minute_limit import MinuteLimit

QUIET_MS: Final = 1_000.0
"""A worker that is replaced within this time is not logged."""


class AwayLog:
    """The log of one producer; ``path`` is the daemon's control socket."""

    def __init__(self, path: str) -> None:
        self.is_away = False
        """Whether ``back`` is still to be called."""
        self._path = path
        self._since_ms = 0.0
        self._limit = MinuteLimit()
        self._warned = False

    def away(
        self,
        reason: str,
        waiting_bytes: int,
        now_ms: float,
        *,
        is_refused: bool = False,
        sends_fail: bool = False,
    ) -> None:
        """Note that no worker is connected now. Call it repeatedly until one is. ``is_refused``: the daemon is there,
        and does not admit this producer; ``sends_fail``: nor did it before.
        """
        if not self.is_away:
            self.is_away, self._warned = True, False
            self._since_ms, self._limit = now_ms, MinuteLimit()
        elif now_ms >= self._since_ms + QUIET_MS and self._limit.may_log(now_ms):
            self._warned = True
            log.warning(
                "The kafka-sidecar daemon at %s has %s for %.0f s: %s. %s",
                self._path,
                "refused this producer" if is_refused else "been away",
                (now_ms - self._since_ms) / 1e3,
                reason.rstrip(".") or "no connection yet",
                "Sends fail until it does not."
                if sends_fail
                else f"Records wait, {waiting_bytes} bytes so far."
                if waiting_bytes
                else "Sends wait for it.",
            )

    def back(self, now_ms: float) -> None:
        """Note that a worker has welcomed this producer."""
        if self._warned:
            log.info(
                "The kafka-sidecar daemon at %s is back after %.0f s.",
                self._path,
                (now_ms - self._since_ms) / 1e3,
            )
        self.is_away = False
