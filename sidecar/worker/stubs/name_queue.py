"""NameQueue: streams whose topics are not confirmed by Kafka, waiting for a row in the nearly full table of topics.

The last rows of the table are reserved for topics that Kafka has (sidecar.worker.topics.topics.ROWS_FOR_KNOWN). So a
client with an unknown topic cannot have one of them at once. Its stream is held, the controller is asked, and the
stream continues once its topic is confirmed. Processes that use names that do not exist fill only their part.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sidecar.worker.streams.session import ClientSession

WAITING_MAX: Final = 1_024
"""Limit of streams in the queue of one worker. One process may have as many as it leaves free for others."""
CHECK_MS: Final = 1_000.0
"""Interval in ms at which a free row is searched for a waiting stream."""
STAY_MS: Final = 60_000.0
"""A stream leaves the queue after this time in ms. It joins again if its client still sends."""


class StreamKey(NamedTuple):
    """One stream in the queue. It has no StreamState yet, because none of its records was accepted."""

    session: ClientSession
    stream_id: int


class Wait(NamedTuple):
    topic: str
    since_ms: float
    check_ms: float
    """Monotonic ms of the next check for a row."""


def _process(key: StreamKey) -> int:
    """Process of a stream's client; a number for the client itself if its process is not known."""
    row = key.session.row
    return row.pid or -1 - row.index


class NameQueue:
    """Line of waiting streams. Not thread-safe: belongs to the worker's loop. It sends nothing."""

    def __init__(self) -> None:
        self.waiting: dict[StreamKey, Wait] = {}
        """Only this object changes it."""
        self._by_process: dict[int, int] = {}
        self.next_check_ms = inf
        """Lower bound of all ``check_ms``, monotonic ms."""

    def join(self, key: StreamKey, topic: str, now_ms: float) -> bool:
        """Join the queue. False if the process has its share of it."""
        process = _process(key)
        mine = self._by_process.get(process, 0)
        if mine >= WAITING_MAX - len(self.waiting):
            return False
        self.waiting[key] = Wait(topic, now_ms, now_ms + CHECK_MS)
        self._by_process[process] = mine + 1
        self.next_check_ms = min(self.next_check_ms, now_ms + CHECK_MS)
        return True

    def take_known(self, is_known: Callable[[str], bool]) -> list[tuple[StreamKey, str]]:
        """Remove and return the streams whose topic Kafka has by now."""
        return self._take([key for key, wait in self.waiting.items() if is_known(wait.topic)])

    def take_due(
        self, may_open: Callable[[StreamKey, str], bool], now_ms: float
    ) -> list[tuple[StreamKey, str]]:
        """Remove and return the streams for which a row is free by now, and those that stayed long enough."""
        taken = []
        for key, wait in list(self.waiting.items()):
            if wait.check_ms > now_ms:
                continue
            if now_ms - wait.since_ms >= STAY_MS or may_open(key, wait.topic):
                taken.append(key)
            else:
                self.waiting[key] = wait._replace(check_ms=now_ms + CHECK_MS)
        found = self._take(taken)
        self.next_check_ms = min((wait.check_ms for wait in self.waiting.values()), default=inf)
        return found

    def take_of(self, session: ClientSession) -> list[tuple[StreamKey, str]]:
        """Remove and return the streams of a session that ended."""
        return self._take([key for key in self.waiting if key.session is session])

    def _take(self, keys: list[StreamKey]) -> list[tuple[StreamKey, str]]:
        taken = []
        for key in keys:
            taken.append((key, self.waiting.pop(key).topic))
            process = _process(key)
            left = self._by_process.pop(process) - 1
            if left:
                self._by_process[process] = left
        return taken
