"""MissingTopics: topics whose records wait for metadata, and those that the controller was not asked for yet.

A turn asks only for new names. Comparing all names in each turn would slow down every client of the worker, if there
are a thousand topics that are never created.
"""

from __future__ import annotations

from collections.abc import Iterable


class MissingTopics:
    """Names of missing topics. Not thread-safe: belongs to the worker's loop."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """All missing topics. Only this object changes it."""
        self.unrequested: set[str] = set()
        """Topics among them to be asked for at the end of the turn."""

    def add(self, topic: str) -> None:
        if topic not in self.names:
            self.names.add(topic)
            self.unrequested.add(topic)

    def discard(self, topic: str) -> None:
        """Remove a topic that is known, or that no record needs any more."""
        self.names.discard(topic)
        self.unrequested.discard(topic)

    def ask_again(self, topics: Iterable[str]) -> None:
        """Ask again for those of ``topics`` that are still missing, because an answer did not resolve them."""
        self.unrequested.update(self.names.intersection(topics))

    def take_unrequested(self) -> tuple[str, ...]:
        taken = tuple(self.unrequested)
        self.unrequested.clear()
        return taken
