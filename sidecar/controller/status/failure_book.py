"""FailureBook: failed records by topic and error, for the log, the metrics and `status`. Sans-IO."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from client_stub.contract.wire import Persistence
from sidecar.common.control import FailureRow
from sidecar.common.errors import classify
from sidecar.common.wording import counted, masked
from sidecar.controller.status.advice import failure_advice

log = logging.getLogger(__name__)

TOPICS_MAX: Final = 200
"""The most topics with their own counts; records of further topics are counted under ``OTHER``."""
BUSIER: Final = 2
"""A topic with this many times the failures of the topic with the fewest replaces that."""
OTHER: Final = "other"
LAST_MAX: Final = 20
"""How many pairs of topic and error `status` shows, the latest first."""
LINE_INTERVAL_MS: Final = 60_000.0
"""Each topic and error is logged at most once in this time, with the count of all failures since."""


@dataclass(slots=True)
class _Pair:
    """The failures of one topic and error."""

    topic: str
    error: str
    advice: str = ""
    text: str = ""
    client: str = ""
    persistence: int = 0
    count: int = 0
    unlogged: int = 0
    next_line_ms: float = 0.0
    first_ms: float = 0.0
    last_ms: float = 0.0


class FailureBook:
    """The failures of all workers. Belongs to the controller's loop. Counts begin with the daemon and survive
    workers.
    """

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str], _Pair] = OrderedDict()
        """The pairs; the one that failed last is last."""
        self._topics: dict[str, int] = {}
        """Topic → its failures, for topics with their own counts."""
        self._others: dict[str, int] = {}
        """The busiest of the other topics, by Metwally's Space-Saving: a new topic replaces the one with the least
        count.
        """

    def add(self, rows: Iterable[FailureRow], wall_ms: float, now_ms: float) -> None:
        """Add a worker's report and log due lines. ``wall_ms`` is Unix time, ``now_ms`` monotonic."""
        for row in rows:
            known = classify(row.code)
            topic = masked(self._counted_as(row.topic, row.count))
            pair = self._pairs.get((topic, known.name))
            if pair is None:
                pair = self._pairs[topic, known.name] = _Pair(topic, known.name, first_ms=wall_ms)
            self._pairs.move_to_end((topic, known.name))
            # Names and texts come from clients and brokers: shown in one line, whatever they contain.
            pair.text, pair.client = masked(row.text or known.text), masked(row.client)
            pair.persistence = row.persistence
            pair.advice = failure_advice(known.name, row.cause, is_retriable=known.retriable)
            pair.count += row.count
            pair.unlogged += row.count
            pair.last_ms = wall_ms
        self.tick(now_ms)

    def tick(self, now_ms: float) -> None:
        """Log due lines: each pair at once when it first fails, then once per LINE_INTERVAL_MS."""
        for pair in self._pairs.values():
            if pair.unlogged and now_ms >= pair.next_line_ms:
                self._write(pair)
                pair.next_line_ms = now_ms + LINE_INTERVAL_MS

    def close(self) -> None:
        """Log all remaining failures, as the daemon ends."""
        for pair in self._pairs.values():
            if pair.unlogged:
                self._write(pair)

    def counts(self) -> list[tuple[tuple[str, str], float]]:
        """((topic, error), records), for the metrics."""
        return [(key, float(pair.count)) for key, pair in self._pairs.items()]

    def last(self) -> list[dict[str, Any]]:
        """The latest pairs first, for `status` and the page."""
        latest = list(self._pairs.values())[-LAST_MAX:][::-1]
        return [
            {
                "topic": pair.topic,
                "error": pair.error,
                "text": pair.text,
                "advice": pair.advice,
                "persistence": Persistence(pair.persistence).words,
                "records": pair.count,
                "client": pair.client,
                "first_ms": int(pair.first_ms),
                "last_ms": int(pair.last_ms),
            }
            for pair in latest
        ]

    def _counted_as(self, topic: str, count: int) -> str:
        """The topic, or OTHER. The topics that fail most have their own counts, whatever order they came in."""
        if not topic:
            return OTHER
        if topic in self._topics or len(self._topics) < TOPICS_MAX:
            self._topics[topic] = self._topics.get(topic, 0) + count
            return topic
        seen = self._others.pop(topic, 0)
        if not seen and len(self._others) >= TOPICS_MAX:
            seen = self._others.pop(min(self._others, key=self._others.__getitem__))
        seen += count
        quietest = min(self._topics, key=self._topics.__getitem__)
        if seen <= BUSIER * self._topics[quietest]:
            self._others[topic] = seen
            return OTHER
        self._others[quietest] = self._topics.pop(quietest)
        self._give_to_others(masked(quietest))
        self._topics[topic] = seen
        return topic

    def _give_to_others(self, topic: str) -> None:
        """Move a topic's counts, also the earlier ones, to OTHER. No sum changes."""
        for key in [key for key in self._pairs if key[0] == topic]:
            pair = self._pairs.pop(key)
            other = self._pairs.get((OTHER, pair.error))
            if other is None:
                pair.topic = OTHER
                self._pairs[OTHER, pair.error] = pair
                continue
            other.count += pair.count
            other.unlogged += pair.unlogged
            other.first_ms = min(other.first_ms, pair.first_ms)
            other.last_ms = max(other.last_ms, pair.last_ms)

    @staticmethod
    def _write(pair: _Pair) -> None:
        log.warning(
            "%s of topic %s failed: %s: %s (%s; the last one from client %s).%s",
            counted(pair.unlogged, "record"),
            pair.topic,
            pair.error,
            pair.text.rstrip("."),
            Persistence(pair.persistence).words,
            pair.client or "that is gone",
            pair.advice and f" {pair.advice}",
        )
        pair.unlogged = 0
