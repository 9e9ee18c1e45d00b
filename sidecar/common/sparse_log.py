"""SparseLog: writes the same complaint about the same peer at most once a minute, however often it occurs.

Metrics count every event that a hostile or broken client causes. The log must not let it fill the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

from sidecar.common.wording import PLEASE_REPORT

INTERVAL_MS: Final = 60_000.0
KEYS_MAX: Final = 64
"""Limit of keys with lines of their own per minute; all further ones share one line."""


class SparseLog:
    """Lines by key. Not thread-safe."""

    def __init__(self, log: logging.Logger, now_ms: Callable[[], float]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._said: dict[Hashable, tuple[float, int]] = {}
        """When a key's last line was written, and the number of lines suppressed since; oldest first."""

    def warning(self, key: Hashable, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Write the line, or count it for the next one of its key."""
        self._write(logging.WARNING, key, text, args, exc_info)

    def info(self, key: Hashable, text: str, *args: object) -> None:
        """The same for normal events that occur as often as clients come and go."""
        self._write(logging.INFO, key, text, args, None)

    def bug(self, what: str, error: Exception) -> None:
        """The same for an exception that nobody foresaw in something that continues."""
        self.warning(what, f"{what} failed; it is tried again. {PLEASE_REPORT}", exc_info=error)

    def _write(
        self, level: int, key: Hashable, text: str, args: tuple[object, ...], exc_info: BaseException | None
    ) -> None:
        now_ms = self._now_ms()
        if key not in self._said and len(self._said) >= KEYS_MAX:
            self._forget(now_ms)
            if len(self._said) >= KEYS_MAX:
                key = None
        at_ms, missing = self._said.get(key, (float("-inf"), 0))
        if now_ms - at_ms < INTERVAL_MS:
            self._said[key] = (at_ms, missing + 1)
            return
        self._said.pop(key, None)
        self._said[key] = (now_ms, 0)
        if missing:
            text += " (and %d more since the last such line)"
            args = (*args, missing)
        self._log.log(level, text, *args, exc_info=exc_info)

    def _forget(self, now_ms: float) -> None:
        for key, (at_ms, _) in list(self._said.items()):
            if now_ms - at_ms < INTERVAL_MS:
                return
            del self._said[key]
