"""SlowTopics: warns once when records wait for a topic that Kafka does not have. Io thread only; it never waits.

When a first program misspells a topic, its flush(), close() or result() would otherwise be silent until max.block.ms.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from client_stub.topic_lookup import NOT_IN_METADATA, TopicQuestion
from client_stub.wait_reasons import topics_text, why_not_taken

if TYPE_CHECKING:
    from client_stub.outbox import Outbox
    from client_stub.submission import Submission

log = logging.getLogger("client_stub")

SLOW_MS: Final = 2_000.0
"""The daemon is asked about records that have waited this long. A cluster that creates topics has done so by then."""
LOOK_MS: Final = 500.0
"""How often it checks for records that have waited that long, while any wait."""
REPEAT_MS: Final = 60_000.0
"""The minimum time between two warnings of one producer."""
AGAIN_MS: Final = 10_000.0
"""The minimum time until it asks again after the daemon knew all topics. Kafka may be slow for long, and every producer
of the host asks.
"""
STEP_MS: Final = 10.0
"""How often it checks for the daemon's answer."""
TOPICS_ASKED_MAX: Final = 8
"""How many topics it asks about in one round."""


class SlowTopics:
    """The check of one producer. ``ask(topic, now_ms)`` begins a question to the daemon."""

    def __init__(self, outbox: Outbox, ask: Callable[[str, float], TopicQuestion]) -> None:
        self.due_ms = 0.0
        """When ``look`` should be called next, while records are pending."""
        self._outbox = outbox
        self._ask = ask
        self._question: TopicQuestion | None = None
        self._left: deque[str] = deque()
        """Topics to ask about after the one under way."""
        self._found: dict[str, str] = {}
        """Topic → why its records wait, in this round."""

    def look(self, now_ms: float) -> None:
        """Check the pending records, or continue the question under way."""
        if self._question is None:
            self.due_ms = now_ms + LOOK_MS
            slow = self._slow(now_ms)
            if not slow:
                return
            self._sort(slow)
            if self._left or self._found:
                self._next(now_ms)
        else:
            said = self._question.step(now_ms, 0.0)
            if said is not None:
                if said:
                    self._found[self._question.topic] = said
                self._question = None
                self._next(now_ms)
        if self._question is not None:
            self.due_ms = now_ms + STEP_MS

    def close(self) -> None:
        """Give up the question under way."""
        if self._question is not None:
            self._question.lookup.close()
            self._question = None

    def forked(self) -> None:
        """In a forked child: drop the question, which is the parent's."""
        if self._question is not None:
            self._question.lookup.forked()

    def _slow(self, now_ms: float) -> list[Submission]:
        if self._outbox.last_word:
            return []  # the daemon is away, and AwayLog warns about that
        return [
            each
            for each in list(self._outbox.pending)
            if each.queued_ms and now_ms - each.queued_ms >= SLOW_MS and not each.completed
        ]

    def _sort(self, slow: list[Submission]) -> None:
        """Find the reasons of held topics, which are known here, and list the topics to ask the daemon about, which
        has accepted their records.
        """
        self._found = {}
        self._left.clear()
        for submission in slow:
            topic = submission.topic
            if topic in self._found or topic in self._left:
                continue
            if not submission.is_accepted:
                why = why_not_taken(self._outbox, topic).removeprefix(": ")
                if why:
                    self._found[topic] = why
            elif len(self._left) < TOPICS_ASKED_MAX:
                self._left.append(topic)

    def _next(self, now_ms: float) -> None:
        if self._left:
            self._question = self._ask(self._left.popleft(), now_ms)
            self._question.step(now_ms, 0.0)
        elif self._found:
            self._warn(now_ms)
            self.due_ms = now_ms + REPEAT_MS
        else:
            self.due_ms = now_ms + AGAIN_MS

    def _warn(self, now_ms: float) -> None:
        waiting = [each for each in list(self._outbox.pending) if each.topic in self._found]
        count = sum(each.undecided_count for each in waiting)
        since_ms = min((each.queued_ms for each in waiting if each.queued_ms), default=now_ms)
        if not count:
            return
        topic, why = next(iter(self._found.items()))
        log.warning(
            "%d record%s for %s %s waited %.0f s: %s. %s",
            count,
            "" if count == 1 else "s",
            topics_text(self._found),
            "has" if count == 1 else "have",
            (now_ms - since_ms) / 1e3,
            why,
            "Create it, or correct the name; after max.block.ms of the daemon its records fail."
            if why == NOT_IN_METADATA.format(topic)
            else f"`kafka-sidecar explain {topic}` says more.",
        )
