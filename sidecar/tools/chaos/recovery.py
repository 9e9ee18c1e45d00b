"""RecoveryWatch: how long after a fault records flow again, for the slowest client.

A client has recovered when a record that it sent *after* the fault has been delivered.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from sidecar.tools.chaos.client_journal import Head
from sidecar.tools.chaos.side_thread import SideThread
from sidecar.tools.chaos.workload import ClientRun

LOOK_S = 0.003

Kind = TypeVar("Kind", bound=StrEnum)


class RecoveryTimes(NamedTuple):
    """Seconds."""

    median_s: float
    max_s: float


class Recovery(Generic[Kind]):
    """The recovery from one fault. Clients that have ended do not count."""

    def __init__(self, kind: Kind, clients: Sequence[ClientRun]) -> None:
        self.kind = kind
        self.took_s: float | None = None
        self._waiting = [(client, client.journal.sent) for client in clients]
        self._start_s = time.monotonic()

    def look(self) -> bool:
        """Whether it is over, as all clients have recovered or ended."""
        self._waiting = [
            (client, mark)
            for client, mark in self._waiting
            if not client.over and client.journal.head[Head.NEWEST] <= mark
        ]
        if self._waiting:
            return False
        self.took_s = time.monotonic() - self._start_s
        return True

    @property
    def describe(self) -> str:
        return ", ".join(
            f"client {client.number} at {client.journal.head[Head.NEWEST]} of {mark}"
            for client, mark in self._waiting
        )


class RecoveryWatch(Generic[Kind]):
    """Watches in its own thread, so that the thread of the faults may block."""

    def __init__(self) -> None:
        self._pending: list[Recovery[Kind]] = []
        self._done: dict[Kind, list[float]] = defaultdict(list)
        self._lock = threading.Lock()
        self._thread = SideThread("recovery-watch", self._run)
        self._thread.start()

    def begin(self, kind: Kind, clients: Sequence[ClientRun]) -> Recovery[Kind]:
        """Begin to watch the recovery from a fault, from now on."""
        recovery = Recovery(kind, clients)
        with self._lock:
            self._pending.append(recovery)
        return recovery

    def times(self) -> dict[Kind, RecoveryTimes]:
        with self._lock:
            return {
                kind: RecoveryTimes(statistics.median(found), max(found))
                for kind, found in self._done.items()
            }

    def stop(self) -> None:
        self._thread.stop()

    def _run(self, end: threading.Event) -> None:
        while not end.wait(LOOK_S):
            with self._lock:
                for recovery in [each for each in self._pending if each.look()]:
                    self._pending.remove(recovery)
                    assert recovery.took_s is not None
                    self._done[recovery.kind].append(recovery.took_s)
