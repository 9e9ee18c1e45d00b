"""WorkerDeaths: counts how often each worker was replaced, by cause, and keeps how it last ended.

Supervisor and Heartbeats fill it, on the controller's loop.
"""

from __future__ import annotations

import time
from collections import Counter
from enum import StrEnum
from typing import Any


class DeathCause(StrEnum):
    """Why a worker was replaced. These are values of a metric's label, so they are few and do not change."""

    KILLED = "killed"
    """Killed by a signal that we did not send: from the kernel for lack of memory, by a crash, by an operator."""
    SILENT = "silent"
    """Its heartbeat stopped, and we ended it."""
    CHANNEL = "channel"
    """Its messages to the controller could not be read, and we ended it."""
    EXITED = "exited"
    """It ended with an exit status."""
    NOT_STARTED = "not_started"
    """The host could not start a process."""


class WorkerDeaths:
    """The deaths of one daemon's workers, by index. Belongs to the controller's loop."""

    def __init__(self, workers: int) -> None:
        self._counts: list[Counter[DeathCause]] = [Counter() for _ in range(workers)]
        self._last: list[dict[str, Any] | None] = [None] * workers
        self.last: dict[str, Any] | None = None
        """How the last replaced worker ended, and when (Unix time); None if none was."""

    @property
    def total(self) -> int:
        return sum(counts.total() for counts in self._counts)

    def note(self, index: int, cause: DeathCause, sentence: str) -> None:
        """Note that worker ``index`` will be replaced."""
        self._counts[index][cause] += 1
        self.last = self._last[index] = {
            "sentence": sentence,
            "cause": str(cause),
            "at_ms": time.time_ns() // 1_000_000,
        }

    def of(self, index: int) -> dict[str, Any]:
        """The fields of the worker's row in ``status``."""
        counts, last = self._counts[index], self._last[index]
        return {
            "restarts": counts.total(),
            "restarts_by_cause": {str(cause): counts[cause] for cause in DeathCause},
            "last_death": "" if last is None else last["sentence"],
            "last_death_ms": None if last is None else last["at_ms"],
        }
