"""Shares: how much of the pool one topic, one client, and all that does not move may hold (isolation).

Pages hold what was accepted and not settled; the index beside them costs 16 bytes a record and counts as well.
Over a share the stream is held and its stub keeps the frame: others go on. A share never refuses the first entry
of a topic or client, so that a small pool cannot lock anybody out; only the share of topics that do not move does
(a topic is asked for when its stream opens, so a new one that is good soon moves).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.worker.session import ClientSession
    from sidecar.worker.topic_queue import TopicQueue

TOPIC_SHARE = 0.5
"""One topic: a topic that does not drain leaves room for the rest."""
CLIENT_SHARE = 0.5
"""One client: a bulk load leaves room for everybody else."""
STALLED_SHARE = 0.75
"""All topics together that are unknown, without a leader, or had nothing settled for request.timeout.ms."""
RESUME_AT = 0.75
"""A held stream goes on when this part of the share is reached again, not at its very edge."""
INDEX_BYTES = 16


class Shares:
    """Decides, changes nothing. ``queues`` gives the worker's topics."""

    def __init__(
        self,
        *,
        page_count: int,
        page_bytes: int,
        request_timeout_ms: float,
        queues: Callable[[], Iterable[TopicQueue]],
    ) -> None:
        self._pool_bytes = page_count * page_bytes
        self._page_bytes = page_bytes
        self._request_timeout_ms = request_timeout_ms
        self._queues = queues

    def refusal(
        self,
        queue: TopicQueue,
        session: ClientSession,
        needed_pages: int,
        now_ms: float,
        *,
        part: float = 1.0,
    ) -> str | None:
        """Why an entry of ``needed_pages`` more may not be taken now; None when it may.

        ``part`` of each share counts: 1 to take, RESUME_AT to go on after a hold.
        """
        needed_bytes = needed_pages * self._page_bytes
        held_bytes = self._held_bytes(queue)
        if held_bytes and held_bytes + needed_bytes > TOPIC_SHARE * part * self._pool_bytes:
            return f"topic {queue.topic} holds its share of the buffer pool"
        mine = session.unsettled_bytes
        if mine and mine + needed_bytes > CLIENT_SHARE * part * self._pool_bytes:
            return f"client {session.name} holds its share of the buffer pool"
        if self.is_stalled(queue, now_ms):
            stalled = sum(self._held_bytes(each) for each in self._queues() if self.is_stalled(each, now_ms))
            if stalled and stalled + needed_bytes > STALLED_SHARE * part * self._pool_bytes:
                return (
                    f"topic {queue.topic} does not move, and such topics hold their share of the buffer pool"
                )
        return None

    def is_stalled(self, queue: TopicQueue, now_ms: float) -> bool:
        """Unknown, without any leader, or nothing settled for request.timeout.ms while records wait."""
        if queue.partitioner is None or not queue.has_leader:
            return True
        return queue.chain.live_entries > 0 and now_ms - queue.last_settled_ms > self._request_timeout_ms

    def _held_bytes(self, queue: TopicQueue) -> int:
        chain = queue.chain
        if not chain.live_entries:
            return 0
        return chain.page_count * self._page_bytes + chain.live_records * INDEX_BYTES
