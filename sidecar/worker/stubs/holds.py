"""Holds: the streams that wait, what each of them waits for, and how it goes on.

A held stream gets HOLD with the reason; its stub keeps the records. It goes on with RESUME, and the stub sends again
from the position that is named there.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from client_stub.wire import Kind
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
"""How long pages granted to a held stream wait for its stub to send again."""
RING_NEARLY_FULL = 0.25
"""A client whose outcome ring has less than this share free is accepted no more until it ACKs."""
_HELD_ONCE: Final = {"holds_total": 1, "frames_resent_total": 1}
"""The submission that finds its stream over a bound is the first that comes again."""


class Holds:
    """Belongs to the worker's loop. The intake holds streams; whatever frees what they wait for lets them go on."""

    def __init__(
        self,
        pool: BufferPool,
        shares: Shares,
        outboxes: Outboxes,
        counters: Counters,
        openings: StreamOpenings,
    ) -> None:
        self._pool = pool
        self._shares = shares
        self._outboxes = outboxes
        self._counters = counters
        self._openings = openings
        self._closed: dict[StreamState, None] = {}
        """Streams held because nothing is taken: an operator has drained the daemon, or the disk fails."""
        self.share_held: deque[tuple[StreamState, int, TopicQueue | ClientSession | None]] = deque()
        """Streams over a share with the pages they need and the line they stand in, longest waiting first."""
        self._timed: list[tuple[float, StreamState]] = []
        """Streams held for a time (their topic is at its rate), with the end of it; longest waiting first."""
        self.next_timed_ms = float("inf")
        """When the next of them goes on."""
        self.ring_held: dict[int, deque[StreamState]] = {}
        """By client row, which outlives a connection: streams whose client has to read its outcomes first."""
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
        """``over``: the reason, and when to go on."""
        reason, due_ms = over
        self.hold(stream, cause, reason, now_ms)
        self._timed.append((due_ms, stream))
        self.next_timed_ms = min(self.next_timed_ms, due_ms)

    def link_pages(self, stream: StreamState, queue: TopicQueue, needed: int, now_ms: float) -> bool:
        """Give the queue's chain the pages for the stream's next entry, or hold the stream: then False."""
        session = stream.session
        if session.row.ring_free_bytes < session.row.ring_bytes * RING_NEARLY_FULL:
            self.hold(stream, HoldCause.RING, "the client does not read its outcomes", now_ms)
            self.ring_held.setdefault(session.row.index, deque()).append(stream)
            return False
        over_share = self._shares.claim(queue, session, needed, now_ms)
        if over_share is not None:
            self.hold(stream, over_share.cause, over_share.text, now_ms)
            self._wait_for_share(stream, needed, over_share.line)
            return False
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
        """Pages for a stream that waited: kept for it while its stub sends again, else nobody would be served first."""
        stream.reserved_pages = pages
        stream.reserved_since_ms = now_ms
        stream.waiting_pages = 0
        self.resume(stream)

    def reclaim_reservations(self, streams: list[StreamState], now_ms: float) -> None:
        """Give back what was kept for stubs that did not come back for it."""
        for stream in streams:
            if stream.reserved_pages and now_ms - stream.reserved_since_ms > RESERVATION_MS_MAX:
                self._give_reserved(stream)

    def shares_freed(self, now_ms: float) -> None:
        """Pages went back, or a topic moves again: streams held over a share go on, first come first served.

        Nobody passes who waits longer for the share of the same topic or client: a small submission would keep it too
        full for a large one.
        """
        held, self.share_held = self.share_held, deque()
        blocked: set[TopicQueue | ClientSession] = set()
        for stream, needed, line in held:
            if line is not None:
                line.share_line -= 1
            if not stream.held:
                continue  # its session ended meanwhile
            if line in blocked:
                self._wait_for_share(stream, needed, line)
                continue
            over = self._shares.refusal(stream.topic_queue, stream.session, needed, now_ms, part=RESUME_AT)
            if over is None:
                self.resume(stream)
                continue
            self._wait_for_share(stream, needed, over.line)
            if over.line is not None:
                blocked.add(over.line)
        self._shares.tell_waiting(bool(self.share_held))

    def _wait_for_share(
        self, stream: StreamState, needed: int, line: TopicQueue | ClientSession | None
    ) -> None:
        self.share_held.append((stream, needed, line))
        if line is not None:
            line.share_line += 1

    def timed_due(self, now_ms: float) -> None:
        """Streams held by their topic's rate, after an error of ours, or for a name, go on as time passes."""
        due = [stream for due_ms, stream in self._timed if due_ms <= now_ms]
        self._timed = [each for each in self._timed if each[0] > now_ms]
        self._openings.names_due(now_ms)
        first_ms = min((due_ms for due_ms, _ in self._timed), default=float("inf"))
        self.next_timed_ms = min(first_ms, self._openings.next_due_ms())
        for stream in due:
            if stream.held:
                self.resume(stream)

    def hold_closed(self, stream: StreamState, cause: HoldCause, reason: str, now_ms: float) -> None:
        """Nothing is taken at all, until :meth:`open_again` says that the cause is gone."""
        self._closed[stream] = None
        self.hold(stream, cause, reason, now_ms)

    def open_again(self, cause: HoldCause) -> None:
        for stream in [each for each in self._closed if each.hold_cause is cause]:
            self.resume(stream)

    def name_waits(self) -> None:
        """A stream waits for a name that may be free later: see :class:`StreamOpenings`."""
        self.next_timed_ms = min(self.next_timed_ms, self._openings.next_due_ms())

    def ring_acked(self, session: ClientSession) -> None:
        """A client read its outcomes: its streams held for that go on once half of the outcome ring is free."""
        held = self.ring_held.get(session.row.index)
        if held and session.row.ring_free_bytes >= session.row.ring_bytes // 2:
            del self.ring_held[session.row.index]
            while held:
                self.resume(held.popleft())

    def resume(self, stream: StreamState) -> None:
        """Let it send again. One in the line for pages goes on with its pages and not before: it may still be noted
        for what it waited for on an earlier connection, and would get a second place in that line."""
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
        """The session ended: none of its streams waits for anything any more."""
        self.ring_held.pop(session.row.index, None)
        self._openings.forget(session)
        for stream in session.streams.values():
            if stream.waiting_pages:
                self._pool.cancel(stream)
            self._give_reserved(stream)
            stream.hold_reason = None
            self.held.pop(stream, None)
            self._closed.pop(stream, None)
            stream.waiting_pages = 0

    def _take(self, stream: StreamState, needed: int) -> list[int] | None:
        """Pages for one submission: first those kept for the stream after its wait; what is over goes back."""
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

    def _give_reserved(self, stream: StreamState) -> None:
        if stream.reserved_pages:
            self._pool.give(stream.reserved_pages)
            stream.reserved_pages = []
