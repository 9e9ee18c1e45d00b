"""LeaderlessTopics: topics with something to send and a partition without a leader. Metadata for them is requested
until every such partition has a leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.producer.partition_queue import Line


class LeaderlessTopics:
    """``asked``: topics of the last metadata request. ``ask_again_ms``: when they are requested again, monotonic ms."""

    __slots__ = ("_retry_ms", "ask_again_ms", "asked")

    def __init__(self, retry_ms: float) -> None:
        self._retry_ms = retry_ms
        self.asked: frozenset[str] = frozenset()
        self.ask_again_ms = 0.0

    def take(self, line: Line, now_ms: float) -> frozenset[str]:
        """Topics to request metadata for now. ``line`` holds the partitions that wait for a leader. New topics are
        requested at once, others after ``retry_ms``.
        """
        if not line:
            self.asked = frozenset()
            self.ask_again_ms = 0.0
            return self.asked
        missing = frozenset(queue.topic for queue in line)
        if now_ms < self.ask_again_ms and missing <= self.asked:
            return frozenset()
        self.asked = missing
        self.ask_again_ms = now_ms + self._retry_ms
        return missing
