"""Shares: limits how much of the pool one topic, one client, and all stalled topics together may hold (isolation).

Pages hold accepted records that are not settled. Their index counts too: 40 bytes per submission and 24 per record.
Records of stages count for none of these. They have a share of their own: what finds it full is not held, but fails.

All workers use one pool, so shares are counted over all of them: each worker publishes the bytes of its topics in
words that the others read (shm/share_words.py). A client has one worker, which counts it alone.

A stream over a share is held and its stub keeps the frame; other streams continue. A share never refuses the first
entry of a topic or client at a worker, so neither a small pool nor the holdings of others lock it out. The share of
stalled topics is the exception. (A topic's metadata is requested when its stream opens, so a valid new topic soon
stops being stalled.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from sidecar.common.condition import HoldCause
from sidecar.kernel import ENTRY_INDEX_BYTES, RECORD_INDEX_BYTES

if TYPE_CHECKING:
    from sidecar.shm.share_words import ShareWords
    from sidecar.worker.streams.session import ClientSession
    from sidecar.worker.streams.topic_queue import TopicQueue

TOPIC_SHARE = 0.5
"""Share of the pool for one topic, so that a topic that does not drain leaves room for the rest."""
CLIENT_SHARE = 0.5
"""Share of the pool for one client, so that a bulk load leaves room for others."""
STALLED_SHARE = 0.75
"""Share of the pool for all stalled topics: unknown, without a leader, or nothing settled for request.timeout.ms."""
RESUME_AT = 0.75
"""A held stream continues when usage is below this part of the share, not right at its limit."""
LOOK_SHARE = 1 / 64
"""Held streams are examined again, here and in other workers, when this share of the pool was given back or a topic
moves again. The periodic work notices smaller amounts.
"""


class OverShare(NamedTuple):
    """Why a stream is held. ``holder``: the topic or client whose share it waits for, before later streams."""

    text: str
    holder: TopicQueue | ClientSession | None = None
    cause: HoldCause = HoldCause.SHARE


class Shares:
    """Decides about shares, and publishes this worker's usage. ``queues`` iterates over the worker's topics."""

    def __init__(
        self,
        *,
        page_count: int,
        page_bytes: int,
        request_timeout_ms: float,
        queues: Iterable[TopicQueue],
        words: ShareWords,
        staged_share: float,
    ) -> None:
        self.pool_bytes = page_count * page_bytes
        self.staged_bytes = 0
        """Bytes held here by records of stages, included ones too, as last counted."""
        self.staged_bytes_max = 0
        """Limit of these bytes over all workers."""
        self.set_staged_share(staged_share)
        self.page_bytes = page_bytes
        self._request_timeout_ms = request_timeout_ms
        self._queues = queues
        self._words = words
        self._stalled_bytes = 0
        """Bytes held here by stalled topics, as last counted."""
        self.express_pages = 0
        """Pages of all express chains here, as last counted."""
        self._fallen_bytes = 0
        """Bytes given back since held streams were last examined."""
        self.check_is_due = False
        """True if enough was given back that streams held by a share may continue, here or at another worker."""
        self._waits = False

    def set_staged_share(self, part: float) -> None:
        """Set the part of the pool for records of stages."""
        self.staged_bytes_max = int(part * self.pool_bytes)

    def begin(self, now_ms: float) -> None:
        """Replace the published usage of a dead owner by the present one, after adoption."""
        self._words.forget_topics()
        self._words.store_stalled(0)
        self._words.store_staged(0)
        self._words.store_waits(False)
        self.count_all(now_ms)

    def claim(
        self, queue: TopicQueue, session: ClientSession, needed_pages: int, now_ms: float
    ) -> OverShare | None:
        """As :meth:`refusal`, but the usage is published before other workers' usage is read, so that two workers
        never take the same rest.

        If it does not refuse, :meth:`count` must follow, whether the pages were had or not. While streams wait for the
        share of this topic or client it refuses: otherwise small submissions would keep the share too full for a large
        one.
        """
        if queue.share_waiters:
            return self._over_topic(queue)
        if session.share_waiters:
            return self._over_client(session)
        self._words.claim(
            queue.chain.chain_id,
            needed_pages * self.page_bytes,
            is_stalled=self.is_stalled(queue, now_ms),
        )
        refusal = self.refusal(queue, session, needed_pages, now_ms)
        if refusal is not None:
            self.count(queue, now_ms)
            self.tell_waiting(True)
        return refusal

    def refusal(
        self,
        queue: TopicQueue,
        session: ClientSession,
        needed_pages: int,
        now_ms: float,
        *,
        part: float = 1.0,
    ) -> OverShare | None:
        """Why an entry that needs ``needed_pages`` may not be accepted now; None if it may.

        ``part`` of each share counts: 1 to accept, RESUME_AT to continue after a hold.
        """
        needed_bytes = needed_pages * self.page_bytes
        # Express chains have a limit of their own.
        held_bytes = 0 if queue.is_express else self._held_bytes(queue)
        if held_bytes:
            held_bytes += self._words.topic_elsewhere(queue.topic)
            if held_bytes + needed_bytes > TOPIC_SHARE * part * self.pool_bytes:
                return self._over_topic(queue)
        mine = session.unsettled_bytes
        if mine and mine + needed_bytes > CLIENT_SHARE * part * self.pool_bytes:
            return self._over_client(session)
        if self.is_stalled(queue, now_ms):
            stalled = self._stalled_bytes + self._words.stalled_elsewhere(now_ms)
            if stalled and stalled + needed_bytes > STALLED_SHARE * part * self.pool_bytes:
                return OverShare(
                    f"topic {queue.topic} does not move, and such topics hold their share of the buffer pool",
                    cause=HoldCause.SHARE if queue.partitioner is not None else HoldCause.UNKNOWN_TOPIC,
                )
        return None

    @staticmethod
    def _over_topic(queue: TopicQueue) -> OverShare:
        return OverShare(f"topic {queue.topic} holds its share of the buffer pool", queue)

    @staticmethod
    def _over_client(session: ClientSession) -> OverShare:
        return OverShare(f"client {session.name} holds its share of the buffer pool", session)

    def is_stalled(self, queue: TopicQueue, now_ms: float) -> bool:
        """True if the topic is unknown, has no leader, or had nothing settled for request.timeout.ms while records
        wait.
        """
        if queue.partitioner is None or not queue.has_leader:
            return True
        return queue.chain.live_entries > 0 and now_ms - queue.last_settled_ms > self._request_timeout_ms

    def count(self, queue: TopicQueue, now_ms: float) -> None:
        """Count a topic again after its bytes or its progress may have changed, and publish the result."""
        held = self._held_bytes(queue)
        if queue.is_staged:
            self._count_staged(held - queue.held_bytes)
            queue.held_bytes = held
            return
        stalled = held if held and self.is_stalled(queue, now_ms) else 0
        if queue.stalled_bytes and not stalled:
            self.check_is_due = True  # it moves again, or is empty
        elif held < queue.held_bytes:
            self._fallen_bytes += queue.held_bytes - held
            if self._fallen_bytes >= LOOK_SHARE * self.pool_bytes:
                self.check_is_due = True
        if queue.is_express:
            self.express_pages += queue.chain.page_count - queue.counted_pages
            queue.counted_pages = queue.chain.page_count
        self._stalled_bytes += stalled - queue.stalled_bytes
        queue.held_bytes, queue.stalled_bytes = held, stalled
        self._words.store_topic(queue.chain.chain_id, held)
        self._words.store_stalled(self._stalled_bytes)

    def _count_staged(self, more_bytes: int) -> None:
        self.staged_bytes += more_bytes
        self._words.store_staged(self.staged_bytes)
        if more_bytes < 0:
            self._fallen_bytes -= more_bytes
            if self._fallen_bytes >= LOOK_SHARE * self.pool_bytes:
                self.check_is_due = True

    @property
    def staged_everywhere(self) -> int:
        """Bytes held by records of stages, of all workers."""
        return self.staged_bytes + self._words.staged_elsewhere()

    def claim_staged(self, needed_pages: int) -> bool:
        """Claim pages of the stages' share. False if it is full; else :meth:`count` must follow. The first entry of all
        always fits.
        """
        needed_bytes = needed_pages * self.page_bytes
        self._words.store_staged(self.staged_bytes + needed_bytes)
        held_bytes = self.staged_everywhere
        if not held_bytes or held_bytes + needed_bytes <= self.staged_bytes_max:
            return True
        self._words.store_staged(self.staged_bytes)
        return False

    def count_all(self, now_ms: float) -> None:
        """Count all topics: they stall and move again with time and metadata, even if no page is taken or given."""
        stalled_bytes = 0
        for queue in self._queues:
            if queue.held_bytes or queue.chain.live_entries:
                self.count(queue, now_ms)
                stalled_bytes += queue.stalled_bytes
        self._stalled_bytes = stalled_bytes
        self._words.store_stalled(stalled_bytes)

    def checked(self) -> None:
        """Note that held streams are being examined: count returned bytes from here on."""
        self.check_is_due = False
        self._fallen_bytes = 0

    def others_wait(self) -> bool:
        """Whether another worker holds streams by a share."""
        return self._words.others_wait()

    def tell_waiting(self, waits: bool) -> None:
        """Publish whether streams are held by a share here, so that other workers wake this one when they give much
        back.
        """
        if waits != self._waits:
            self._waits = waits
            self._words.store_waits(waits)

    def _held_bytes(self, queue: TopicQueue) -> int:
        chain = queue.chain
        if not chain.live_entries:
            return 0
        return (
            chain.page_count * self.page_bytes
            + chain.live_entries * ENTRY_INDEX_BYTES
            + chain.live_records * RECORD_INDEX_BYTES
        )
