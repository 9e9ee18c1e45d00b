"""ClientSession: what a worker remembers of one connected stub. Plain state; no sockets, no clock."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from sidecar.common.client_rules import ANY_TOKEN, Caller
from sidecar.common.condition import HoldCause

if TYPE_CHECKING:
    from sidecar.shm.client_table import ClientRow
    from sidecar.worker.streams.completion import Completion
    from sidecar.worker.streams.rate_limit import RateLimit
    from sidecar.worker.streams.refusal import Refusal
    from sidecar.worker.streams.topic_queue import TopicQueue

NOBODY: Final = Caller(0xFFFF_FFFF)
"""In place of the user of a client that is not connected."""
OUTBOX_FRAMES_MAX = 4096
"""Control messages (HOLD, RESUME, RESEND ...) that may wait for a stub that does not read its socket.

Over it the stub is detached: it says HELLO again when it reads, and learns everything from WELCOME."""


class StreamState:
    """One (client, topic): where it stands and whether it is held.

    ``position`` is the last sequence in the journal, ``accepted`` the last that its stub knows: behind it while a
    group is being written to disk, else the same. ``awaited`` is the sequence from which the stub sends again
    (by RESEND or RESUME); until it arrives everything else of the stream is dropped without another answer.
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
        """Why it is held, or was last held."""
        self.hold_since_ms = 0.0
        """When its next submission was first held."""
        self.hold_position = -1
        """The position at which it was last held: another hold at the same one goes on with the first."""
        self.refusal: Refusal | None = None
        """Its client may not send to this topic: its records fail at once."""
        self.bulk_ordinal = -1
        """Its last entry in the topic's bulk chain, if something there may not have ended: see :class:`Express`."""
        self.is_passing = False
        """Its last entry passed a backlog: it does so until that has nearly ended."""
        self.change_again_ms = 0.0
        """When it may be held again for the way from bulk to express."""
        self.waiting_pages = 0
        self.reserved_pages: list[int] = []
        """Pages granted after a wait: they stay this stream's until its stub has sent again."""
        self.reserved_since_ms = 0.0

    @property
    def held(self) -> bool:
        return self.hold_reason is not None


class ClientSession:
    """One attached stub: its routing id, its row in the client table, its streams, and what it has not read yet."""

    __slots__ = (
        "accepted_bytes",
        "accepted_streams",
        "attached",
        "caller",
        "credit_bytes",
        "earlier_routing_id",
        "has_cancelled",
        "is_gone",
        "last_heard_ms",
        "name",
        "outbox",
        "rate",
        "ring_full_since_ms",
        "routing_id",
        "row",
        "sent_number",
        "share_line",
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
        """Of the connection that the client had until it came by this one."""
        self.row = row
        self.name = name
        self.caller = NOBODY
        """The user behind its connection."""
        self.token_digest = ANY_TOKEN
        """Of the token that opened its name."""
        self.rate: RateLimit | None = None
        """Of its name, with all others of that name; None: no limit."""
        self.attached = True
        self.last_heard_ms = now_ms
        self.streams: dict[int, StreamState] = {}
        self.unopened: set[int] = set()
        """Streams that did not begin with their first submission and got a RESEND."""
        self.accepted_bytes = 0
        """Payload bytes accepted since WELCOME; the credit is an absolute limit over this count."""
        self.credit_bytes = 0
        self.accepted_streams: set[StreamState] = set()
        """Streams whose ACCEPTED is not sent yet: one message a turn has them all."""
        self.outbox: deque[list[bytes]] = deque()
        self.sent_number = row.acked_number
        """Outcomes up to this number were put on the socket of this session."""
        self.unsettled_records = 0
        """Accepted and not yet completed: the client's row must outlive them."""
        self.unsettled_bytes = 0
        """Their bytes in the client's share, spread evenly over the records of each submission."""
        self.share_line = 0
        """Streams that wait for this client's share of the pool."""
        self.unwritten: deque[Completion] = deque()
        """Completions that found the outcome ring full, in order; written when the stub ACKs."""
        self.unacked: deque[tuple[int, Completion, float]] = deque()
        """Failures in the outcome ring without an ACK yet: outcome number, completion, when it was written."""
        self.is_gone = False
        """Nobody will come back for outcomes: it said goodbye, was cut, or its grace is over."""
        self.has_cancelled = False
        """It said goodbye without waiting: its callers know already that its records may fail."""
        self.ring_full_since_ms: float | None = None
