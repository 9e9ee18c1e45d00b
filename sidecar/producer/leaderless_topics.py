"""LeaderlessTopics: topics with something to send and a partition without a leader. Metadata for them is requested
until every such partition has a leader.

Sans-IO: the Sender owns it, on the worker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.producer.partition_queue import WaitList


class LeaderlessTopics:
    """``asked``: topics of the last metadata request. ``ask_again_ms``: when they are requested again, monotonic ms."""

    __slots__ = ("_retry_ms", "ask_again_ms", "requested")

    def __init__(self, retry_ms: float) -> None:
        self._retry_ms = retry_ms
        self.requested: frozenset[str] = frozenset()
        self.ask_again_ms = 0.0

    def take(self, wait_list: WaitList, now_ms: float) -> frozenset[str]:
        """Topics to request metadata for now. ``wait_list`` holds the partitions that wait for a leader. New topics are
        requested at once, others after ``retry_ms``.
        """
        if not wait_list:
            self.requested = frozenset()
            self.ask_again_ms = 0.0
            return self.requested
        missing = frozenset(queue.topic for queue in wait_list)
        if now_ms < self.ask_again_ms and missing <= self.requested:
            return frozenset()
        self.requested = missing
        self.ask_again_ms = now_ms + self._retry_ms
        return missing
