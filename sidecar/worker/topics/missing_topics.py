"""MissingTopics: topics whose records wait for metadata, and those of them that the controller was not asked for yet.

A turn asks for what is new only. With a thousand names that nobody ever makes, comparing all of them in each turn
would cost every client of the worker.
"""

from __future__ import annotations

from collections.abc import Iterable


class MissingTopics:
    """Not thread-safe."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """All that wait. Only this object changes it."""
        self.unasked: set[str] = set()
        """Those of them to be asked for at the end of the turn."""

    def add(self, topic: str) -> None:
        if topic not in self.names:
            self.names.add(topic)
            self.unasked.add(topic)

    def discard(self, topic: str) -> None:
        """It is known, or nobody wants it any more."""
        self.names.discard(topic)
        self.unasked.discard(topic)

    def ask_again(self, topics: Iterable[str]) -> None:
        """An answer about these came and did not help: those that are still missing are asked for once more."""
        self.unasked.update(self.names.intersection(topics))

    def take_unasked(self) -> tuple[str, ...]:
        taken = tuple(self.unasked)
        self.unasked.clear()
        return taken
