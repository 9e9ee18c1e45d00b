"""IdleWatch: when a daemon that nobody uses may end (daemon.idle_timeout_s). Sans-IO."""

from __future__ import annotations


class IdleWatch:
    """Asked again and again; a client that comes and goes between two questions is seen by its record count."""

    def __init__(self, now_s: float) -> None:
        self._used_s = now_s
        self._accepted = 0

    def is_over(self, clients: int, accepted: int, timeout_s: float, now_s: float) -> bool:
        """``accepted``: all records so far. Whether there was no client for ``timeout_s`` (0: never)."""
        if clients or accepted != self._accepted:
            self._used_s, self._accepted = now_s, accepted
        return 0 < timeout_s <= now_s - self._used_s
