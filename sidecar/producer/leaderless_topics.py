"""LeaderlessTopics: topics with something to send and a partition without a leader. They are asked for until it has
one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.producer.partition_queue import Line


class LeaderlessTopics:
    """``asked``: those of the last question. ``ask_again_ms``: when they are asked for again."""

    __slots__ = ("_retry_ms", "ask_again_ms", "asked")

    def __init__(self, retry_ms: float) -> None:
        self._retry_ms = retry_ms
        self.asked: frozenset[str] = frozenset()
        self.ask_again_ms = 0.0

    def take(self, line: Line, now_ms: float) -> frozenset[str]:
        """Topics to ask for now; ``line`` has the partitions that wait for a leader. A new topic does not wait."""
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
