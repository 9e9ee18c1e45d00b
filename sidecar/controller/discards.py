"""Discards: records that were discarded because a client exceeded its rate, by topic, from all workers. Bounded."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.common.control import DISCARD_TOPICS_MAX, OTHER_TOPICS, Discard


class Discards:
    """Counts since this daemon's start. Belongs to the controller's loop."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Discard] = {}

    def add(self, more: Mapping[str, Discard]) -> None:
        for name, new in more.items():
            topic = name
            if topic not in self._by_topic and len(self._by_topic) >= DISCARD_TOPICS_MAX:
                topic = OTHER_TOPICS
            old = self._by_topic.get(topic, Discard(0, new.first_ms, new.last_ms))
            self._by_topic[topic] = Discard(
                old.records + new.records, min(old.first_ms, new.first_ms), max(old.last_ms, new.last_ms)
            )

    def to_list(self) -> list[dict[str, object]]:
        """The rows for status, the largest count first."""
        busiest = sorted(self._by_topic.items(), key=lambda each: -each[1].records)
        return [{"topic": topic, **each._asdict()} for topic, each in busiest]
