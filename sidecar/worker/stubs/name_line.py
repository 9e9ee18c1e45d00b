"""NameLine: streams that found the table of topics full for names that Kafka has not confirmed, and wait for its word.

The last rows of the table are kept for topics that Kafka has (sidecar.worker.topics.topics.ROWS_FOR_KNOWN). So a
client whose topic the worker does not know yet cannot have one of them at once: its stream is held, the controller is
asked, and a stream whose topic is there goes on. Processes that send to names nobody made fill their part and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sidecar.worker.streams.session import ClientSession

WAITING_MAX: Final = 256
"""Streams in the line of one worker. A process may have as many as there are places left for others."""
WAIT_MS: Final = 1_000.0
"""A stream that is still in the line after this time is to send again, for a row that became free meanwhile."""


class Place(NamedTuple):
    """One stream in the line. It has no StreamState yet: nothing of it was accepted."""

    session: ClientSession
    stream_id: int


def _process(place: Place) -> int:
    """The process behind a stream; the client itself where its process cannot be seen."""
    row = place.session.row
    return row.pid or -1 - row.index


class NameLine:
    """Not thread-safe; takes ``now_ms``, sends nothing."""

    def __init__(self) -> None:
        self.waiting: dict[Place, tuple[str, float]] = {}
        """Topic, and the end of the wait; longest waiting first. Only this object changes it."""
        self._by_process: dict[int, int] = {}

    def next_due_ms(self) -> float:
        return next((due_ms for _, due_ms in self.waiting.values()), float("inf"))

    def join(self, place: Place, topic: str, now_ms: float) -> bool:
        """False where its process has enough of them in the line."""
        process = _process(place)
        mine = self._by_process.get(process, 0)
        if mine >= WAITING_MAX - len(self.waiting):
            return False
        self.waiting[place] = topic, now_ms + WAIT_MS
        self._by_process[process] = mine + 1
        return True

    def take_known(self, is_known: Callable[[str], bool]) -> list[tuple[Place, str]]:
        """Those whose topic Kafka has by now."""
        return self._take([place for place, (topic, _) in self.waiting.items() if is_known(topic)])

    def take_due(self, now_ms: float) -> list[tuple[Place, str]]:
        """Those that waited long enough."""
        return self._take([place for place, (_, due_ms) in self.waiting.items() if due_ms <= now_ms])

    def take_of(self, session: ClientSession) -> list[tuple[Place, str]]:
        """Those of a session that ended."""
        return self._take([place for place in self.waiting if place.session is session])

    def _take(self, places: list[Place]) -> list[tuple[Place, str]]:
        taken = []
        for place in places:
            taken.append((place, self.waiting.pop(place)[0]))
            process = _process(place)
            left = self._by_process.pop(process) - 1
            if left:
                self._by_process[process] = left
        return taken
