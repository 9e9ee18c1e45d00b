"""Intake: from a SUBMIT frame to *accepted*, and everything that may stand between.

A submission is taken exactly when it is the next of its stream and pages are there for it; else the stream is
told what to do (RESEND, HOLD, HELLO_AGAIN) and the stub still has the frame. Nothing is half taken: the copy
into the journal becomes true by one store of the chain's tail.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from client_stub.wire import SUBMISSION_RECORDS_MAX, TOPIC_BYTES_MAX, Format, Kind, SubmitFlag
from sidecar.common.kill_points import ARMED, passed
from sidecar.kernel import records_from_columns
from sidecar.worker.session import ClientSession, StreamState
from sidecar.worker.shares import RESUME_AT, client_bytes

if TYPE_CHECKING:
    from sidecar.kernel import Entry
    from sidecar.shm.buffer_pool import BufferPool
    from sidecar.shm.slots import Counters
    from sidecar.worker.group_commit import GroupCommit
    from sidecar.worker.shares import Shares
    from sidecar.worker.topic_queue import TopicQueue

log = logging.getLogger(__name__)

RESERVATION_MS_MAX = 5_000.0
"""How long pages granted to a held stream wait for its stub to send again."""
RING_NEARLY_FULL = 0.25
"""A client whose outcome ring has less than this share free is accepted no more until it ACKs."""


class Intake:
    """The accept path of one worker. ``send`` queues a control message for a session."""

    def __init__(
        self,
        *,
        worker_epoch: int,
        pool: BufferPool,
        shares: Shares,
        credit_window_bytes: int,
        counters: Counters,
        topic_queue: Callable[[str], TopicQueue | None],
        on_entry: Callable[[TopicQueue, Entry, float, bool], None],
        send: Callable[[ClientSession, list[Any]], None],
        commit: GroupCommit | None = None,
    ) -> None:
        self.worker_epoch = worker_epoch
        self.draining = False
        self._pool = pool
        self._shares = shares
        self._credit_window_bytes = credit_window_bytes
        self._counters = counters
        self._topic_queue = topic_queue
        self._on_entry = on_entry
        self._send = send
        self._commit = commit
        """What must be on disk before it is accepted goes there; None: the journal is enough."""
        self._commit_held: list[StreamState] = []
        self.share_held: deque[tuple[StreamState, int]] = deque()
        """Streams over a share with the pages they need, longest waiting first."""
        self._rate_held: list[tuple[float, StreamState]] = []
        """Streams of topics at their rate, with the time to go on; longest waiting first."""
        self.next_rate_ms = float("inf")
        """When the next of them goes on."""
        self.ring_held: dict[ClientSession, deque[StreamState]] = {}

    def submit(self, session: ClientSession, fields: list[Any], payload: Any, now_ms: float) -> None:
        """Take one SUBMIT, or tell the stream why not. Raises ValueError on a frame that no stub of ours sends."""
        worker_epoch, stream_id, seq, topic, base_timestamp_ms, format_, flags, count = fields
        if worker_epoch != self.worker_epoch:
            self._send(session, [Kind.HELLO_AGAIN, self.worker_epoch])
            return
        stream = session.streams.get(stream_id)
        if stream is None:
            stream = self._open_stream(session, stream_id, seq, topic)
            if stream is None:
                return
        expected = stream.position + 1
        if seq < expected:
            session.accepted_streams.add(stream)  # a repeat: tell the position again
            return
        if seq > expected:
            if stream.awaited != expected:
                stream.awaited = expected
                if not stream.held:
                    self._send(session, [Kind.RESEND, stream_id, expected])
            return
        if stream.hold_reason is not None or self.draining:
            return
        payload_bytes = len(payload)
        self._check(count, format_, base_timestamp_ms, payload_bytes)
        if self._commit is not None and self._commit.refusal:
            self._hold(stream, self._commit.refusal)
            self._commit_held.append(stream)
            return
        sent_bytes = payload_bytes
        if format_ == Format.ARROW:
            # Columns become rows once, natively, before they are accepted: the journal has one reader.
            payload, format_ = records_from_columns(payload, count), Format.MSGPACK
            payload_bytes = len(payload)
        stream.awaited = None
        queue = stream.topic_queue
        chain = queue.chain
        if queue.rate is not None:
            over = queue.rate.refusal(now_ms)
            if over is not None:
                self._hold(stream, over[0])
                self._rate_held.append((over[1], stream))
                self.next_rate_ms = min(self.next_rate_ms, over[1])
                return
        needed = chain.pages_needed(count, payload_bytes)
        if needed:
            if session.row.ring_free_bytes < session.row.ring_bytes * RING_NEARLY_FULL:
                self._hold(stream, "the client does not read its outcomes")
                self.ring_held.setdefault(session, deque()).append(stream)
                return
            refusal = self._shares.claim(queue, session, needed, now_ms)
            if refusal is not None:
                self._hold(stream, refusal)
                self.share_held.append((stream, needed))
                return
            pages = self._take(stream, needed)
            if pages is None:
                self._shares.count(queue, now_ms)
                self._hold(stream, "the buffer pool is full")
                stream.waiting_pages = needed
                self._counters.inc("buffer_exhausted_total")
                self._pool.enqueue(stream, needed, float("inf"))
                return
            chain.link_pages(pages)
        entry = chain.append(
            payload,
            count=count,
            client_row=session.row.index,
            client_generation=session.row.generation,
            stream=stream_id,
            seq=seq,
            base_timestamp_ms=base_timestamp_ms,
            format=format_,
            flags=flags & ~SubmitFlag.FLUSH,
        )
        entry.accepted_ms = now_ms
        if needed:
            self._shares.count(queue, now_ms)
        if queue.rate is not None:
            queue.rate.charge(count, payload_bytes, now_ms)
        if chain.live_entries == 1:
            queue.last_settled_ms = now_ms  # it was empty: whether it moves is counted from here
        session.unsettled_records += count
        session.unsettled_bytes += client_bytes(count, payload_bytes)
        stream.position = seq
        session.row.store_position(stream_id, seq)
        if ARMED:
            passed("accept.position")
        session.accepted_bytes += sent_bytes
        if self._commit is None:
            stream.accepted = seq
            session.accepted_streams.add(stream)
        else:
            # A copy of its own: what came from the socket is overwritten before the disk has it.
            self._commit.add(queue, stream, entry, bytes(payload))
        queue.last_used_ms = now_ms
        self._counters.count_accepted(count, payload_bytes)
        if ARMED:
            passed("accept.counted")
        self._on_entry(queue, entry, now_ms, bool(flags & SubmitFlag.FLUSH))

    def acceptance(self, session: ClientSession) -> list[Any]:
        """The fields of ACCEPTED for everything that moved in this turn, with the credit that follows from it."""
        self.grant_credit(session)
        positions = [[stream.stream, stream.accepted] for stream in session.accepted_streams]
        session.accepted_streams.clear()
        return [session.credit_bytes, positions]

    def grant_credit(self, session: ClientSession) -> None:
        """Let the stub send one window beyond what was accepted; an absolute limit, so a repeat does no harm."""
        session.credit_bytes = session.accepted_bytes + self._credit_window_bytes

    def pool_granted(self, stream: StreamState, pages: list[int], now_ms: float) -> None:
        """Pages for a stream that waited: kept for it while its stub sends again, else nobody would be served first."""
        stream.reserved_pages = pages
        stream.reserved_since_ms = now_ms
        self.resume(stream)

    def reclaim_reservations(self, streams: list[StreamState], now_ms: float) -> None:
        """Give back what was kept for stubs that did not come back for it."""
        for stream in streams:
            if stream.reserved_pages and now_ms - stream.reserved_since_ms > RESERVATION_MS_MAX:
                self._give_reserved(stream)

    def shares_freed(self, now_ms: float) -> None:
        """Pages went back, or a topic moves again: streams held over a share go on, first come first served."""
        for _ in range(len(self.share_held)):
            stream, needed = self.share_held.popleft()
            if not stream.held:
                continue  # its session ended meanwhile
            refusal = self._shares.refusal(stream.topic_queue, stream.session, needed, now_ms, part=RESUME_AT)
            if refusal is None:
                self.resume(stream)
            else:
                self.share_held.append((stream, needed))
        self._shares.tell_waiting(bool(self.share_held))

    def rates_due(self, now_ms: float) -> None:
        """Streams held by their topic's rate go on as time passes."""
        due = [stream for due_ms, stream in self._rate_held if due_ms <= now_ms]
        self._rate_held = [each for each in self._rate_held if each[0] > now_ms]
        self.next_rate_ms = min((due_ms for due_ms, _ in self._rate_held), default=float("inf"))
        for stream in due:
            if stream.held:
                self.resume(stream)

    def committed(self, streams: set[StreamState]) -> set[ClientSession]:
        """These reached the disk: who is to be told. Streams that waited for the disk go on."""
        for stream in streams:
            stream.session.accepted_streams.add(stream)
        if self._commit_held and self._commit is not None and not self._commit.refusal:
            held, self._commit_held = self._commit_held, []
            for stream in held:
                if stream.held:
                    self.resume(stream)
        return {stream.session for stream in streams if stream.session.attached}

    def ring_acked(self, session: ClientSession) -> None:
        """A client read its outcomes: its streams held for that go on once half of the ring is free."""
        held = self.ring_held.get(session)
        if held and session.row.ring_free_bytes >= session.row.ring_bytes // 2:
            del self.ring_held[session]
            while held:
                self.resume(held.popleft())

    def resume(self, stream: StreamState) -> None:
        stream.hold_reason = None
        stream.waiting_pages = 0
        if not stream.session.attached:
            return
        stream.awaited = stream.position + 1
        self._send(stream.session, [Kind.RESUME, stream.stream, stream.position + 1])

    def forget(self, session: ClientSession) -> None:
        """The session ended: none of its streams waits for anything any more."""
        self.ring_held.pop(session, None)
        for stream in session.streams.values():
            if stream.waiting_pages:
                self._pool.cancel(stream)
            self._give_reserved(stream)
            stream.hold_reason = None
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

    def _open_stream(
        self, session: ClientSession, stream_id: int, seq: int, topic: str
    ) -> StreamState | None:
        if not isinstance(topic, str) or not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX:
            self._send(
                session, [Kind.REFUSED, "INVALID_TOPIC", f"Topic name {topic!r} is not valid.", stream_id]
            )
            return None
        queue = self._topic_queue(topic)
        if queue is None:
            text = (
                "The daemon's table of topics is full; drain topics that are no longer used and restart it."
            )
            self._send(session, [Kind.REFUSED, "TOPIC_TABLE_FULL", text, stream_id])
            return None
        position = session.row.stream_position(stream_id)
        if position is None:
            if not session.row.place_stream(stream_id, queue.chain.chain_id):
                text = (
                    f"This client already sends to {len(session.streams)} topics, the most one client may; "
                    "close it or use another."
                )
                self._send(session, [Kind.REFUSED, "TOO_MANY_STREAMS", text, stream_id])
                return None
            position = 0
        stream = StreamState(session, stream_id, queue, position)
        session.streams[stream_id] = stream
        return stream

    def _hold(self, stream: StreamState, reason: str) -> None:
        stream.hold_reason = reason
        self._counters.inc("holds_total")
        self._send(stream.session, [Kind.HOLD, stream.stream, stream.position + 1, reason])

    @staticmethod
    def _check(count: Any, format_: Any, base_timestamp_ms: Any, payload_bytes: int) -> None:
        if not isinstance(count, int) or not 0 < count <= SUBMISSION_RECORDS_MAX:
            raise ValueError(f"record count {count!r} is not between 1 and {SUBMISSION_RECORDS_MAX}")
        if count > payload_bytes:
            raise ValueError(f"{count} records cannot stand in {payload_bytes} payload bytes")
        if format_ not in (Format.MSGPACK, Format.ARROW):
            raise ValueError(f"payload format {format_!r} is not known")
        if not isinstance(base_timestamp_ms, int) or base_timestamp_ms < 0:
            raise ValueError(f"base timestamp {base_timestamp_ms!r} is negative or no integer")
