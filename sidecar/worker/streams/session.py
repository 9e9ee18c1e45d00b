"""ClientSession: a worker's state of one connected stub. Plain state; no sockets, no clock."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from sidecar.common.condition import HoldCause
from sidecar.config.client_rules import ANY_TOKEN, Caller

if TYPE_CHECKING:
    from sidecar.shm.client_table import ClientRow
    from sidecar.worker.streams.client_outcomes import ClientOutcomes
    from sidecar.worker.streams.lane import Lane
    from sidecar.worker.streams.rate_limit import RateLimit
    from sidecar.worker.streams.refusal import Refusal
    from sidecar.worker.streams.stage import LaneStage
    from sidecar.worker.streams.topic_queue import TopicQueue

NOBODY: Final = Caller(0xFFFF_FFFF)
"""Stands for the user of a client that is not connected."""
OUTBOX_FRAMES_MAX = 4096
"""Limit of control messages (HOLD, RESUME, RESEND ...) queued for a stub that does not read its socket. Above it the
stub is detached: when it reads again it sends HELLO, and WELCOME gives it the whole state.
"""


class StreamState:
    """State of one (client, topic): its position, and whether it is held.

    ``position`` is the last sequence number in the journal. ``accepted`` is the last one reported to the stub; it is
    lower only while a group is being written to disk. ``awaited`` is the sequence number from which the stub sends
    again (after RESEND or RESUME). Until that arrives, all other submissions of the stream are dropped without an
    answer.
    """

    __slots__ = (
        "accepted",
        "awaited",
        "bulk_ordinal",
        "change_again_ms",
        "hold_cause",
        "hold_position",
        "hold_reason",
        "hold_since_ms",
        "is_passing",
        "position",
        "refusal",
        "reserved_pages",
        "reserved_since_ms",
        "session",
        "stream",
        "topic_queue",
        "waiting_pages",
    )

    def __init__(self, session: ClientSession, stream: int, topic_queue: TopicQueue, position: int) -> None:
        self.session = session
        self.stream = stream
        self.topic_queue = topic_queue
        self.position = position
        self.accepted = position
        self.awaited: int | None = None
        self.hold_reason: str | None = None
        self.hold_cause = HoldCause.POOL
        """Cause of the present or last hold."""
        self.hold_since_ms = 0.0
        """When its next submission was first held, monotonic ms."""
        self.hold_position = -1
        """The position at the last hold. Another hold at the same position continues that one."""
        self.refusal: Refusal | None = None
        """Set if its client may not send to this topic: its records fail at once."""
        self.bulk_ordinal = -1
        """Ordinal of its last entry in the topic's bulk chain, while one there may not have ended; else -1. See
        :class:`Express`.
        """
        self.is_passing = False
        """Its last entry passed a backlog. It continues to do so until the backlog has nearly ended."""
        self.change_again_ms = 0.0
        """Earliest time of the next hold for a change from bulk to express, monotonic ms."""
        self.waiting_pages = 0
        self.reserved_pages: list[int] = []
        """Pages granted after a wait, reserved for this stream until its stub has sent again."""
        self.reserved_since_ms = 0.0

    @property
    def held(self) -> bool:
        return self.hold_reason is not None


class ClientSession:
    """One client: its routing id, its row in the client table, its streams, and messages and outcomes still to be
    read.
    """

    __slots__ = (
        "accepted_bytes",
        "accepted_streams",
        "after_outcomes",
        "attached",
        "caller",
        "credit_bytes",
        "earlier_routing_id",
        "has_cancelled",
        "is_gone",
        "lane",
        "last_heard_ms",
        "name",
        "outbox",
        "rate",
        "ring_full_since_ms",
        "routing_id",
        "row",
        "sent_number",
        "share_waiters",
        "stages",
        "streams",
        "token_digest",
        "unacked",
        "unopened",
        "unsettled_bytes",
        "unsettled_records",
        "unwritten",
    )

    def __init__(self, routing_id: bytes, row: ClientRow, name: str, now_ms: float) -> None:
        self.routing_id = routing_id
        self.earlier_routing_id = b""
        """Routing id of the client's previous connection."""
        self.row = row
        self.name = name
        self.caller = NOBODY
        """User of its connection."""
        self.token_digest = ANY_TOKEN
        """Digest of the token with which it used its name."""
        self.rate: RateLimit | None = None
        """Rate shared by all clients of its name; None without a limit."""
        self.lane: Lane | None = None
        """Its transactional id, once it was initialized, or once it has a stage of it. Then all its records are in
        transactions, or in stages.
        """
        self.stages: dict[int, LaneStage] | None = None
        """By its own numbers of them, of a client that stages: open ones, those that failed, and sealed ones whose
        token it may not have. None for any other client.
        """
        self.attached = True
        self.last_heard_ms = now_ms
        self.streams: dict[int, StreamState] = {}
        self.unopened: set[int] = set()
        """Streams without a row whose stub was told to begin with their first submission."""
        self.accepted_bytes = 0
        """Payload bytes accepted since WELCOME. The credit is an absolute limit of this count."""
        self.credit_bytes = 0
        self.accepted_streams: set[StreamState] = set()
        """Streams whose ACCEPTED is still to be sent. One message per turn has all of them."""
        self.outbox: deque[list[bytes]] = deque()
        self.after_outcomes: deque[list[bytes]] = deque()
        """Messages that follow all outcomes. One transaction is open at a time, so they are few."""
        self.sent_number = row.acked_number
        """Number of the last outcome written to this session's socket."""
        self.unsettled_records = 0
        """Records accepted and not released yet. The client's row must outlive them."""
        self.unsettled_bytes = 0
        """Bytes of these records in the client's share, spread evenly over the records of each submission."""
        self.share_waiters = 0
        """Number of its streams that wait for this client's share of the pool."""
        self.unwritten: deque[ClientOutcomes] = deque()
        """Completions that found the outcome ring full, in order. Written when the stub ACKs."""
        self.unacked: deque[tuple[int, ClientOutcomes, float]] = deque()
        """Failures in the outcome ring without an ACK: (outcome number, its outcomes, monotonic ms when written)."""
        self.is_gone = False
        """The client will not come back for outcomes: it said goodbye, was cut off, or its grace period is over."""
        self.has_cancelled = False
        """It said goodbye without waiting, so its callers know that their records may fail."""
        self.ring_full_since_ms: float | None = None

    def is_in_transaction(self, transaction: int = 0) -> bool:
        """Whether its transaction, or this one, has begun and not ended."""
        lane = self.lane
        return lane is not None and lane.is_open(self, transaction or lane.manager.number)

    def has_all(self, positions: list[tuple[int, int]]) -> bool:
        """Whether every (stream, last sequence number) has arrived. Those that have are taken out of ``positions``, as
        their stub may end the stream.
        """
        positions[:] = [
            (stream, last_seq)
            for stream, last_seq in positions
            if stream not in self.streams or self.streams[stream].position < last_seq
        ]
        return not positions

    def take_over(self, before: ClientSession) -> None:
        """Move streams and unwritten outcomes of the client's earlier connection to this one."""
        self.earlier_routing_id = before.routing_id
        self.streams, self.unwritten = before.streams, before.unwritten
        self.unacked = before.unacked
        self.unsettled_records = before.unsettled_records
        self.unsettled_bytes = before.unsettled_bytes
        self.lane = before.lane
        if self.lane is not None and self.lane.session is before:
            self.lane.session = self
        self.stages = before.stages
        for stage in (self.stages or {}).values():
            stage.session = self
        for stream in self.streams.values():
            stream.session = self
            stream.awaited = None
