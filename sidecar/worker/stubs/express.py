"""Express: whether a submission goes into its topic's bulk chain, or passes the backlog there.

A client that sends without a limit fills its share of the pool, and all that others send to the topic would stand
behind it. A client that holds little gets a chain of its own kind there, with all others that hold little. What was
never in a request has no sequence yet, so express batches go before bulk ones and no broker sees it.

Order is that of a client and partition. From express to bulk a client goes at any time: what it has in express is sent
first. From bulk to express it goes when nothing of it is left in bulk; for that it is held for a while.
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
"""A topic whose bulk chain has so much in the pool has an express chain beside it. Who passes goes on to do so down to
a quarter of it: each way back to express is a wait."""
QUIET_BYTES: Final = 64 << 10
"""A client with more than this unsettled, in all topics and with its next submission, is not quiet: it goes in bulk."""
EXPRESS_BYTES_MAX: Final = 4 << 20
EXPRESS_SHARE: Final = 1 / 32
"""Of the pool in all express chains of a worker, whichever is less; beyond it everybody goes in bulk."""
CHANGE_MS_MAX: Final = 1_000.0
"""How long a quiet client's stream is held until what it has in bulk has ended. Then it goes on in bulk."""
CHANGE_AGAIN_MS: Final = 5_000.0
"""After which it may be tried again, if it was too long."""


class Express:
    """Belongs to the worker's loop."""

    def __init__(self, topics: Topics, holds: Holds, shares: Shares) -> None:
        self._topics = topics
        self._holds = holds
        self._shares = shares
        self.backlog_pages = -(-BACKLOG_BYTES // shares.page_bytes)
        self.is_on = True
        self._pages_max = min(EXPRESS_BYTES_MAX, int(EXPRESS_SHARE * shares.pool_bytes)) // shares.page_bytes
        self.changing: dict[StreamState, None] = {}
        """Held until what they have in bulk has ended."""

    def queue_for(self, stream: StreamState, payload_bytes: int, now_ms: float) -> TopicQueue:
        """Where the next submission of a stream goes whose topic has a backlog. It may be held for a while instead."""
        bulk = stream.topic_queue
        is_passing, stream.is_passing = stream.is_passing, False
        if bulk.chain.page_count < (self.backlog_pages // 4 if is_passing else self.backlog_pages):
            return bulk
        if stream.session.unsettled_bytes + payload_bytes > QUIET_BYTES:
            return bulk
        if stream.hold_reason is not None or not self.is_on:
            return bulk
        if bulk.partitioner is None or bulk.is_deleted or bulk.waiting:
            return bulk  # what has no partition yet goes on in order
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

    def look(self) -> None:
        """Something ended: streams go on that have nothing in bulk any more, or were released meanwhile."""
        for stream in list(self.changing):
            if not stream.held or stream.hold_cause is not HoldCause.EXPRESS:
                del self.changing[stream]
            elif self._may_change(stream):
                del self.changing[stream]
                stream.change_again_ms = 0.0
                self._holds.resume(stream)

    @staticmethod
    def _may_change(stream: StreamState) -> bool:
        """Nothing of the stream is left in bulk. Its last entry there tells, and the oldest that anybody has there."""
        if stream.bulk_ordinal >= 0:
            oldest = stream.topic_queue.chain.ordinals(0, 1)
            if oldest and int.from_bytes(oldest, sys.byteorder) <= stream.bulk_ordinal:
                return False
            stream.bulk_ordinal = -1
        return True
