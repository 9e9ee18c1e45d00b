"""NameLine: streams that found the table of topics full for names that Kafka has not confirmed, and wait for its word.

The last rows of the table are kept for topics that Kafka has (sidecar.worker.topics.topics.ROWS_FOR_KNOWN). So a
client whose topic the worker does not know yet cannot have one of them at once: its stream is held, the controller is
asked, and a stream whose topic is there goes on. Processes that send to names nobody made fill their part and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sidecar.worker.streams.session import ClientSession

WAITING_MAX: Final = 1_024
"""Streams in the line of one worker. A process may have as many as there are places left for others."""
LOOK_MS: Final = 1_000.0
"""So often a row is looked for that became free meanwhile."""
STAY_MS: Final = 60_000.0
"""A stream that is still in the line after this time leaves it, and joins again if its client still sends."""


class Place(NamedTuple):
    """One stream in the line. It has no StreamState yet: nothing of it was accepted."""

    session: ClientSession
    stream_id: int


class Wait(NamedTuple):
    topic: str
    since_ms: float
    look_ms: float
    """When a row is looked for next."""


def _process(place: Place) -> int:
    """The process behind a stream; the client itself where its process cannot be seen."""
    row = place.session.row
    return row.pid or -1 - row.index


class NameLine:
    """Not thread-safe; takes ``now_ms``, sends nothing."""

    def __init__(self) -> None:
        self.waiting: dict[Place, Wait] = {}
        """Only this object changes it."""
        self._by_process: dict[int, int] = {}
        self.next_look_ms = inf
        """When a row is looked for next; it may be too early."""

    def join(self, place: Place, topic: str, now_ms: float) -> bool:
        """False where its process has enough of them in the line."""
        process = _process(place)
        mine = self._by_process.get(process, 0)
        if mine >= WAITING_MAX - len(self.waiting):
            return False
        self.waiting[place] = Wait(topic, now_ms, now_ms + LOOK_MS)
        self._by_process[process] = mine + 1
        self.next_look_ms = min(self.next_look_ms, now_ms + LOOK_MS)
        return True

    def take_known(self, is_known: Callable[[str], bool]) -> list[tuple[Place, str]]:
        """Those whose topic Kafka has by now."""
        return self._take([place for place, wait in self.waiting.items() if is_known(wait.topic)])

    def take_due(self, may_open: Callable[[Place, str], bool], now_ms: float) -> list[tuple[Place, str]]:
        """Those for which there is a row by now, and those that stayed long enough."""
        taken = []
        for place, wait in list(self.waiting.items()):
            if wait.look_ms > now_ms:
                continue
            if now_ms - wait.since_ms >= STAY_MS or may_open(place, wait.topic):
                taken.append(place)
            else:
                self.waiting[place] = wait._replace(look_ms=now_ms + LOOK_MS)
        found = self._take(taken)
        self.next_look_ms = min((wait.look_ms for wait in self.waiting.values()), default=inf)
        return found

    def take_of(self, session: ClientSession) -> list[tuple[Place, str]]:
        """Those of a session that ended."""
        return self._take([place for place in self.waiting if place.session is session])

    def _take(self, places: list[Place]) -> list[tuple[Place, str]]:
        taken = []
        for place in places:
            taken.append((place, self.waiting.pop(place).topic))
            process = _process(place)
            left = self._by_process.pop(process) - 1
            if left:
                self._by_process[process] = left
        return taken
