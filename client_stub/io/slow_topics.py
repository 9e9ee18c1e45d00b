"""SlowTopics: warns once when records wait for a topic or partition that Kafka does not have. Io thread only; it never
waits.

When a first program misspells a topic, its flush(), close() or result() would otherwise be silent until max.block.ms.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from client_stub.io.topic_question import NOT_IN_METADATA, TopicQuestion
from client_stub.outbox.wait_reasons import topics_text
from client_stub.system.log import log

if TYPE_CHECKING:
    from client_stub.outbox.outbox import Outbox
    from client_stub.outbox.submission import Submission

SLOW_MS: Final = 2_000.0
"""The daemon is asked about records that have waited this long. A cluster that creates topics has done so by then."""
CHECK_MS: Final = 500.0
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
    """The check of one producer. ``ask(topic, partition, now_ms)`` begins a question to the daemon."""

    def __init__(self, outbox: Outbox, ask: Callable[[str, int, float], TopicQuestion]) -> None:
        self.due_ms = 0.0
        """When ``check`` should be called next, while records are pending."""
        self._outbox = outbox
        self._ask = ask
        self._question: TopicQuestion | None = None
        self._left: dict[str, int] = {}
        """Topics to ask about after the one under way → the highest partition that their slow records name."""
        self._found: dict[str, tuple[str, int]] = {}
        """Topic → (why its records wait, the lowest partition for which they wait), in this round."""

    def check(self, now_ms: float) -> None:
        """Check the pending records, or continue the question under way."""
        if self._question is None:
            self.due_ms = now_ms + CHECK_MS
            slow = self._slow(now_ms)
            if not slow:
                return
            self._sort(slow)
            if self._left or self._found:
                self._next(now_ms)
        else:
            said = self._question.step(now_ms)
            if said is not None:
                if said:
                    self._found[self._question.topic] = said, self._question.missing_from
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
        """The submissions that have waited for SLOW_MS. The oldest come first, so it stops at the first young one.

        Submissions that are still open are passed over. One of another topic may come after a young one that was open
        for longer, but only for STAY_OPEN_MS_MAX.
        """
        if self._outbox.waiters.reasons.last_word:
            return []  # the daemon is away, and AwayLog warns about that
        young_ms = now_ms - SLOW_MS
        # Callers add to the pending ones meanwhile. Copying all is one step under the GIL, copying a part would be two.
        slow = takewhile(lambda each: each.queued_ms <= young_ms, list(self._outbox.pending))
        return [each for each in slow if each.queued_ms and not each.completed]

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
                why = self._outbox.waiters.reasons.why_not_taken(topic).removeprefix(": ")
                if why:
                    self._found[topic] = why, 0
            elif len(self._left) < TOPICS_ASKED_MAX:
                self._left[topic] = max(each.partition_max for each in slow if each.topic == topic)

    def _next(self, now_ms: float) -> None:
        if self._left:
            topic = next(iter(self._left))
            self._question = self._ask(topic, self._left.pop(topic), now_ms)
            self._question.step(now_ms)
        elif self._found:
            self._warn(now_ms)
            self.due_ms = now_ms + REPEAT_MS
        else:
            self.due_ms = now_ms + AGAIN_MS

    def _warn(self, now_ms: float) -> None:
        count, since_ms = 0, now_ms
        for submission in self._slow(now_ms):
            why, missing_from = self._found.get(submission.topic, ("", 0))
            if why and submission.partition_max >= missing_from:
                if submission.is_accepted:
                    submission.why_slow = why
                count += submission.undecided_count
                since_ms = min(since_ms, submission.queued_ms)
        if not count:
            return
        topic, (why, missing_from) = next(iter(self._found.items()))
        advice = f"`kafka-sidecar explain {topic}` says more."
        if missing_from or why == NOT_IN_METADATA.format(topic):
            wrong = "number" if missing_from else "name"
            advice = f"Create it, or correct the {wrong}; after max.block.ms of the daemon its records fail."
        log.warning(
            "%d record%s for %s %s waited %.0f s: %s. %s",
            count,
            "" if count == 1 else "s",
            topics_text(self._found),
            "has" if count == 1 else "have",
            (now_ms - since_ms) / 1e3,
            why,
            advice,
        )
