"""Holds: the streams that wait, what each of them waits for, and how it continues.

A held stream gets HOLD with the reason, and its stub keeps the records. RESUME ends the hold; the stub then sends
again from the position that it names.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import Kind
from sidecar.common.condition import HoldCause
from sidecar.worker.stubs.shares import RESUME_AT

if TYPE_CHECKING:
    from sidecar.shm.buffer_pool import BufferPool
    from sidecar.shm.slots import Counters
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.session import ClientSession, StreamState
    from sidecar.worker.streams.topic_queue import TopicQueue
    from sidecar.worker.stubs.openings import StreamOpenings
    from sidecar.worker.stubs.shares import Shares

RESERVATION_MS_MAX = 5_000.0
"""Time in ms for which pages granted to a held stream wait for its stub to send again."""
RING_NEARLY_FULL = 0.25
"""If less than this share of its outcome ring is free, a client's records are held until it ACKs."""
_HELD_ONCE: Final = {"holds_total": 1, "frames_resent_total": 1}
"""The submission that meets the limit will be sent again, so it counts as resent."""


class Holds:
    """Holds and resumes streams. Belongs to the worker's loop. The intake holds streams; the code that frees the
    resource resumes them.
    """

    def __init__(
        self,
        pool: BufferPool,
        shares: Shares,
        outboxes: Outboxes,
        counters: Counters,
        openings: StreamOpenings,
    ) -> None:
        self._pool = pool
        self.pages_max = pool.pages_max
        """Limit of pages for one submission."""
        self._shares = shares
        self._outboxes = outboxes
        self._counters = counters
        self._openings = openings
        self._closed: dict[StreamState, None] = {}
        """Streams held because nothing is accepted: an operator has drained the daemon, or the disk fails."""
        self.share_held: deque[tuple[StreamState, int, TopicQueue | ClientSession | None]] = deque()
        """Streams over a share, longest waiting first, each with its pages needed and the holder of that share."""
        self._timed: list[tuple[float, StreamState]] = []
        """Streams held for a time (for instance at a rate): (monotonic ms of its end, stream)."""
        self.next_timed_ms = float("inf")
        """Monotonic ms at which the next timed hold ends."""
        self.ring_held: dict[int, deque[StreamState]] = {}
        """By client row (it outlives a connection): streams whose client must first read its outcomes."""
        self.held: dict[StreamState, None] = {}
        """All held streams."""

    def hold(self, stream: StreamState, cause: HoldCause, reason: str, now_ms: float) -> None:
        stream.hold_reason = reason
        stream.hold_cause = cause
        if stream.hold_position != stream.position:
            stream.hold_position = stream.position
            stream.hold_since_ms = now_ms
        self.held[stream] = None
        self._counters.add(_HELD_ONCE)
        self._outboxes.send(stream.session, [Kind.HOLD, stream.stream, stream.position + 1, reason])

    def hold_until(
        self, stream: StreamState, cause: HoldCause, over: tuple[str, float], now_ms: float
    ) -> None:
        """Hold a stream for a time. ``over``: the reason, and the monotonic ms of the end."""
        reason, due_ms = over
        self.hold(stream, cause, reason, now_ms)
        self._timed.append((due_ms, stream))
        self.next_timed_ms = min(self.next_timed_ms, due_ms)

    def link_pages(self, stream: StreamState, queue: TopicQueue, needed: int, now_ms: float) -> bool:
        """Give the queue's chain the pages for the stream's next entry. If that is not possible, hold the stream: then
        False.
        """
        session = stream.session
        if session.row.ring_free_bytes < session.row.ring_bytes * RING_NEARLY_FULL:
            self.hold(stream, HoldCause.RING, "the client does not read its outcomes", now_ms)
            self.ring_held.setdefault(session.row.index, deque()).append(stream)
            return False
        over_share = self._shares.claim(queue, session, needed, now_ms)
        if over_share is not None:
            self.hold(stream, over_share.cause, over_share.text, now_ms)
            self._wait_for_share(stream, needed, over_share.holder)
            return False
        return self.link_staged(stream, queue, needed, now_ms)

    def link_staged(self, stream: StreamState, queue: TopicQueue, needed: int, now_ms: float) -> bool:
        """As :meth:`link_pages`, for an entry whose share is claimed already."""
        pages = self._take(stream, needed)
        if pages is None:
            self._shares.count(queue, now_ms)
            self.hold(stream, HoldCause.POOL, "the buffer pool is full", now_ms)
            stream.waiting_pages = needed
            self._counters.inc("buffer_exhausted_total")
            self._pool.enqueue(stream, needed)
            return False
        queue.chain.link_pages(pages)
        return True

    def pool_granted(self, stream: StreamState, pages: list[int], now_ms: float) -> None:
        """Reserve granted pages for a stream that waited, and resume it. Without a reservation another stream could
        take them first.
        """
        stream.reserved_pages = pages
        stream.reserved_since_ms = now_ms
        stream.waiting_pages = 0
        self.resume(stream)

    def reclaim_reservations(self, streams: list[StreamState], now_ms: float) -> None:
        """Give back pages reserved for streams whose stubs did not send again in time."""
        for stream in streams:
            if stream.reserved_pages and now_ms - stream.reserved_since_ms > RESERVATION_MS_MAX:
                self.give_reserved(stream)

    def shares_freed(self, now_ms: float) -> None:
        """Resume streams held over a share, in order, after pages were given back or a topic moves again.

        No stream passes one that waits longer for the share of the same topic or client: otherwise small submissions
        would keep the share too full for a large one.
        """
        held, self.share_held = self.share_held, deque()
        blocked: set[TopicQueue | ClientSession] = set()
        for stream, needed, holder in held:
            if holder is not None:
                holder.share_waiters -= 1
            if not stream.held:
                continue  # its session ended meanwhile
            if holder in blocked:
                self._wait_for_share(stream, needed, holder)
                continue
            over = self._shares.refusal(stream.topic_queue, stream.session, needed, now_ms, part=RESUME_AT)
            if over is None:
                self.resume(stream)
                continue
            self._wait_for_share(stream, needed, over.holder)
            if over.holder is not None:
                blocked.add(over.holder)
        self._shares.tell_waiting(bool(self.share_held))

    def _wait_for_share(
        self, stream: StreamState, needed: int, holder: TopicQueue | ClientSession | None
    ) -> None:
        self.share_held.append((stream, needed, holder))
        if holder is not None:
            holder.share_waiters += 1

    def timed_due(self, now_ms: float) -> None:
        """Resume streams whose time is over: at a rate, after an internal error, or waiting for a topic name."""
        due = [stream for due_ms, stream in self._timed if due_ms <= now_ms]
        self._timed = [each for each in self._timed if each[0] > now_ms]
        self._openings.names_due(now_ms)
        first_ms = min((due_ms for due_ms, _ in self._timed), default=float("inf"))
        self.next_timed_ms = min(first_ms, self._openings.next_due_ms())
        for stream in due:
            if stream.held:
                self.resume(stream)

    def hold_closed(self, stream: StreamState, cause: HoldCause, reason: str, now_ms: float) -> None:
        """Hold a stream while nothing at all is accepted, until :meth:`open_again` ends that cause."""
        self._closed[stream] = None
        self.hold(stream, cause, reason, now_ms)

    def open_again(self, cause: HoldCause) -> None:
        for stream in [each for each in self._closed if each.hold_cause is cause]:
            self.resume(stream)

    def name_waits(self) -> None:
        """Note that a stream waits for a name that may be free later: see :class:`StreamOpenings`."""
        self.next_timed_ms = min(self.next_timed_ms, self._openings.next_due_ms())

    def ring_acked(self, session: ClientSession) -> None:
        """Resume a client's streams that were held for its outcome ring, once half of that is free."""
        held = self.ring_held.get(session.row.index)
        if held and session.row.ring_free_bytes >= session.row.ring_bytes // 2:
            del self.ring_held[session.row.index]
            while held:
                self.resume(held.popleft())

    def resume(self, stream: StreamState) -> None:
        """Let a stream send again, unless it waits for pages; then it is resumed with its pages.

        Such a stream may still be noted for the cause of a hold on an earlier connection, and would otherwise get a
        second turn there.
        """
        if stream.waiting_pages:
            return
        stream.hold_reason = None
        self.held.pop(stream, None)
        self._closed.pop(stream, None)
        if not stream.session.attached:
            return
        stream.awaited = stream.position + 1
        self._outboxes.send(stream.session, [Kind.RESUME, stream.stream, stream.position + 1])

    def forget(self, session: ClientSession) -> None:
        """Forget the streams of a session that ended: none of them waits any more."""
        self.ring_held.pop(session.row.index, None)
        self._openings.forget(session)
        for stream in session.streams.values():
            if stream.waiting_pages:
                self._pool.cancel(stream)
            self.give_reserved(stream)
            stream.hold_reason = None
            self.held.pop(stream, None)
            self._closed.pop(stream, None)
            stream.waiting_pages = 0

    def _take(self, stream: StreamState, needed: int) -> list[int] | None:
        """Take pages for one submission, first those reserved for the stream. Surplus ones are given back."""
        reserved = stream.reserved_pages
        if not reserved:
            return self._pool.take(needed)
        stream.reserved_pages = []
        if len(reserved) > needed:
            self._pool.give(reserved[needed:])
            return reserved[:needed]
        if len(reserved) < needed:
            more = self._pool.take(needed - len(reserved))
            if more is None:
                self._pool.give(reserved)
                return None
            return reserved + more
        return reserved

    def give_reserved(self, stream: StreamState) -> None:
        """Give back the pages that are reserved for a stream."""
        if stream.reserved_pages:
            self._pool.give(stream.reserved_pages)
            stream.reserved_pages = []
