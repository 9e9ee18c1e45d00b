"""WorkerDeaths: how often each worker was replaced, for which cause, and how it ended last."""

from __future__ import annotations

import time
from collections import Counter
from enum import StrEnum
from typing import Any


class DeathCause(StrEnum):
    """Why a worker was replaced: a label of a metric, so the words are few and stay."""

    KILLED = "killed"
    """By a signal that we did not send: the kernel for want of memory, a crash, an operator."""
    SILENT = "silent"
    """Its heartbeat stood still, and we ended it."""
    CHANNEL = "channel"
    """Its messages to the controller could not be read, and we ended it."""
    EXITED = "exited"
    """By itself, with an exit status."""
    NOT_STARTED = "not_started"
    """The host gave no process."""


class WorkerDeaths:
    """Of the workers of one daemon, by index. Belongs to the controller's loop."""

    def __init__(self, workers: int) -> None:
        self._counts: list[Counter[DeathCause]] = [Counter() for _ in range(workers)]
        self._last: list[dict[str, Any] | None] = [None] * workers
        self.last: dict[str, Any] | None = None
        """How the last worker that was replaced ended, and when (Unix time); None: none was."""

    @property
    def total(self) -> int:
        return sum(counts.total() for counts in self._counts)

    def note(self, index: int, cause: DeathCause, sentence: str) -> None:
        """Worker ``index`` is to be replaced."""
        self._counts[index][cause] += 1
        self.last = self._last[index] = {
            "sentence": sentence,
            "cause": str(cause),
            "at_ms": time.time_ns() // 1_000_000,
        }

    def of(self, index: int) -> dict[str, Any]:
        """Fields of the worker's row in ``status``."""
        counts, last = self._counts[index], self._last[index]
        return {
            "restarts": counts.total(),
            "restarts_by_cause": {str(cause): counts[cause] for cause in DeathCause},
            "last_death": "" if last is None else last["sentence"],
            "last_death_ms": None if last is None else last["at_ms"],
        }
