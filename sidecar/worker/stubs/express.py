"""Express: decides whether a submission goes into its topic's bulk chain or passes the backlog there.

A client that sends without a limit fills its share of the pool, and the records of all other clients of the topic
would wait for it. So clients that hold little share a second chain, the express chain. Records that were never in a
request have no sequence yet, so express batches can be sent before bulk ones and no broker notices.

Order holds per client and partition. A client can change from express to bulk at any time, because its records in
express are sent first. It can change back when none of its records is left in bulk; for that it is held for a while.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from sidecar.common.condition import HoldCause

if TYPE_CHECKING:
    from sidecar.worker.streams.session import StreamState
    from sidecar.worker.streams.topic_queue import TopicQueue
    from sidecar.worker.stubs.holds import Holds
    from sidecar.worker.stubs.shares import Shares
    from sidecar.worker.topics.topics import Topics

BACKLOG_BYTES: Final = 2 << 20
"""A topic whose bulk chain holds at least this many bytes has an express chain too. Clients that pass continue to do
so down to a quarter of it, because each change back to express is a wait.
"""
QUIET_BYTES: Final = 64 << 10
"""A client with more unsettled bytes than this, in all topics and with its next submission, uses the bulk chain."""
EXPRESS_BYTES_MAX: Final = 4 << 20
EXPRESS_SHARE: Final = 1 / 32
"""Limits of all express chains of a worker, in bytes and as a share of the pool; the lower one counts. Above it, every
client uses the bulk chain.
"""
CHANGE_MS_MAX: Final = 1_000.0
"""Limit in ms of the hold of a quiet client's stream, until its records in bulk have ended. Then it continues
in bulk.
"""
CHANGE_AGAIN_MS: Final = 5_000.0
"""Time in ms after which another hold may be tried, if one reached the limit."""


class Express:
    """Chooses the chain of each submission. Belongs to the worker's loop."""

    def __init__(self, topics: Topics, holds: Holds, shares: Shares) -> None:
        self._topics = topics
        self._holds = holds
        self._shares = shares
        self.backlog_pages = -(-BACKLOG_BYTES // shares.page_bytes)
        self.is_on = True
        self._pages_max = min(EXPRESS_BYTES_MAX, int(EXPRESS_SHARE * shares.pool_bytes)) // shares.page_bytes
        self.changing: dict[StreamState, None] = {}
        """Streams held until their records in bulk have ended."""

    def queue_for(self, stream: StreamState, payload_bytes: int, now_ms: float) -> TopicQueue:
        """Queue of the stream's next submission, for a topic with a backlog. It may hold the stream for a while."""
        bulk = stream.topic_queue
        is_passing, stream.is_passing = stream.is_passing, False
        if bulk.chain.page_count < (self.backlog_pages // 4 if is_passing else self.backlog_pages):
            return bulk
        if stream.session.unsettled_bytes + payload_bytes > QUIET_BYTES:
            return bulk
        if stream.hold_reason is not None or not self.is_on:
            return bulk
        if bulk.partitioner is None or bulk.is_deleted or bulk.waiting:
            return bulk  # entries without partitions keep their order
        if bulk.express is not None and bulk.express.waiting:
            return bulk
        if self._shares.express_pages >= self._pages_max:
            return bulk
        if not self._may_change(stream):
            if now_ms < stream.change_again_ms:
                return bulk
            stream.change_again_ms = now_ms + CHANGE_AGAIN_MS
            self.changing[stream] = None
            reason = f"it is about to pass the backlog of topic {bulk.topic}"
            self._holds.hold_until(stream, HoldCause.EXPRESS, (reason, now_ms + CHANGE_MS_MAX), now_ms)
            return bulk
        express = self._topics.express_of(bulk)
        stream.is_passing = express is not None
        return express or bulk

    def check_changing(self) -> None:
        """Resume streams that have nothing left in bulk, after an entry ended. Forget those that were released
        meanwhile.
        """
        for stream in list(self.changing):
            if not stream.held or stream.hold_cause is not HoldCause.EXPRESS:
                del self.changing[stream]
            elif self._may_change(stream):
                del self.changing[stream]
                stream.change_again_ms = 0.0
                self._holds.resume(stream)

    @staticmethod
    def _may_change(stream: StreamState) -> bool:
        """True if the stream has nothing left in bulk: its last entry there is older than the oldest of the chain."""
        if stream.bulk_ordinal >= 0:
            oldest = stream.topic_queue.chain.ordinals(0, 1)
            if oldest and int.from_bytes(oldest, sys.byteorder) <= stream.bulk_ordinal:
                return False
            stream.bulk_ordinal = -1
        return True
