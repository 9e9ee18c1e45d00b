"""StubPort: the worker's side of the stub protocol. Dispatches frames, and writes to each stub once per turn.

Data that cannot be written now waits: positions as a set, outcomes in the outcome ring, other messages in a bounded
outbox. A stub that does not read never delays others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgpack

from client_stub.contract.wire import (
    PARTITIONERS,
    STAGE_BIT,
    SUBMISSION_RECORDS_MAX,
    SUBMIT_HEAD_BYTES_MAX,
    Format,
    Kind,
    SubmitFlag,
)
from sidecar.common.errors import Refused
from sidecar.common.sparse_log import SparseLog
from sidecar.common.wording import PLEASE_REPORT, counted
from sidecar.shm.client_table import NeverWritten
from sidecar.shm.layout import STREAMS_MAX
from sidecar.worker.streams.client_row_shares import TableFull
from sidecar.worker.streams.refusal import MalformedFrame
from sidecar.worker.streams.session import ClientSession
from sidecar.worker.streams.sessions import Sessions, welcome
from sidecar.worker.stubs.intake import SUBMIT_FIELDS

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.net.stubs.endpoint import Endpoint
    from sidecar.shm.slots import Counters
    from sidecar.worker.outcomes.acker import Acker
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.stubs.client_processes import ClientProcesses
    from sidecar.worker.stubs.holds import Holds
    from sidecar.worker.stubs.intake import Intake
    from sidecar.worker.stubs.openings import StreamOpenings
    from sidecar.worker.topics.topics import Topics

log = logging.getLogger(__name__)

_SUBMIT: Final = Kind.SUBMIT
_ACCEPTED: Final = Kind.ACCEPTED
_OUTCOMES: Final = Kind.OUTCOMES
_FLUSH: Final = int(SubmitFlag.FLUSH)
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each message."""
_unpackb: Final = msgpack.unpackb
_UNPACK_ERRORS: Final = (ValueError, TypeError, OverflowError, msgpack.UnpackException)
_OF_TRANSACTIONS: Final = frozenset({Kind.TXN_INIT, Kind.TXN_END, Kind.TXN_OFFSETS})
_OF_STAGES: Final = frozenset(
    {Kind.STAGE_OPEN, Kind.STAGE_SEAL, Kind.STAGE_DROP, Kind.STAGES_DROP, Kind.TXN_INCLUDE}
)
OnTransaction = Callable[[ClientSession, int, list[Any], Any, float], None]
ATTACH_FIELDS = 7
_ATTACHED_TEXT: Final = "this connection has attached already; each client needs its own"
POSITION_DELAY_MS = 5.0
"""Time in ms that ACCEPTED waits, to travel with the outcomes of a flushed submission. Most brokers answer within it,
which saves a message, and its timer expires rarely.
"""
LAST_TEXT = "The daemon has ended its drain; what it did not accept goes to its successor."
DRAINING_TEXT = (
    "The daemon is draining; what it has accepted is being delivered, send again to its successor."
)


class StubPort:
    """Handles frames from stubs and sends messages to them. Belongs to the worker's loop."""

    def __init__(
        self,
        *,
        clock: MonotonicClock,
        worker_epoch: int,
        limits: dict[str, int],
        credit_window_bytes: int,
        sessions: Sessions,
        processes: ClientProcesses,
        openings: StreamOpenings,
        holds: Holds,
        intake: Intake,
        topics: Topics,
        acker: Acker,
        outboxes: Outboxes,
        counters: Counters,
    ) -> None:
        self._clock = clock
        self._worker_epoch = worker_epoch
        self._welcome_limits = limits | {
            "submission_records": SUBMISSION_RECORDS_MAX,
            "formats": 1 << Format.MSGPACK | 1 << Format.ARROW,
            "streams": STREAMS_MAX,
            "partitioners": (2 << len(PARTITIONERS)) - 2,
        }
        self._credit_window_bytes = credit_window_bytes
        self._sessions = sessions
        self._processes = processes
        self._intake = intake
        self._holds = holds
        openings.on_useless = self._sent_useless
        self._acker = acker
        self._counters = counters
        self._topics = topics
        self._outboxes = outboxes
        self._pack = outboxes.pack
        self._sparse_log = SparseLog(log, clock.now_ms)
        self._handlers: dict[int, Callable[[ClientSession, list[Any], float], None]] = {
            Kind.ACK: self._on_ack,
            Kind.FLUSH: self._on_flush,
            Kind.BYE: self._on_bye,
            Kind.PING: self._on_ping,
            Kind.END_STREAM: self._on_end_stream,
        }
        self.on_transaction: OnTransaction = _refuse_transaction
        """Takes a transaction's frames: (client, kind, fields, payload, now_ms). Set by whoever builds the rooms."""
        self.on_stages: OnTransaction = _refuse_transaction
        """The same for frames about stages."""
        self.on_lane_left: Callable[[], None] = lambda: None
        """Called when a client with a transactional id is gone for good. Set likewise."""
        self.on_table_full: Callable[[float], None] = lambda now_ms: None
        """Called when no row is free for a new client. Set by the client watch."""
        self._in_transactions: set[ClientSession] = set()
        """While it drains: clients that may send more, until their transactions have ended."""
        self.endpoint: Endpoint | None = None
        """Set once it is bound; it needs this object's ``on_message`` first."""

    def on_message(self, routing_id: bytes, frames: list[memoryview], skipped_bytes: int = 0) -> None:
        """Handle one multipart message of a stub. A malformed one is counted and answered, and affects no other
        client.

        An internal error is counted and logged, and not blamed on the client. ``skipped_bytes`` of a long message's
        payload were not kept.
        """
        now_ms = self._clock.now_ms()
        session = self._sessions.by_routing_id.get(routing_id)
        try:
            fields = _unpack(frames[0])
            kind = fields.pop(0)
            if session is None:
                self._on_stranger(routing_id, kind, fields, now_ms)
                return
            session.last_heard_ms = now_ms
            if kind == _SUBMIT:
                payload = frames[1] if len(frames) > 1 else b""
                self._on_submit(session, fields, payload, skipped_bytes, now_ms)
                return
            if kind in _OF_TRANSACTIONS:
                self.on_transaction(session, kind, fields, frames[1] if len(frames) > 1 else b"", now_ms)
                return
            if kind in _OF_STAGES:
                self.on_stages(session, kind, fields, frames[1] if len(frames) > 1 else b"", now_ms)
                return
            handler = self._handlers.get(kind)
            if handler is None:
                raise MalformedFrame(
                    _ATTACHED_TEXT if kind == Kind.ATTACH else f"kind {kind} is none of a stub's"
                )
            handler(session, fields, now_ms)
        except (MalformedFrame, NeverWritten) as error:
            self._refuse(routing_id, session, error)
        except Exception as error:
            self._counters.inc("accept_errors_total")
            self._sparse_log.warning(
                "error",
                f"A message of a client could not be handled. {PLEASE_REPORT}",
                exc_info=error,
            )

    def _on_submit(
        self, session: ClientSession, fields: list[Any], payload: Any, skipped_bytes: int, now_ms: float
    ) -> None:
        """Handle a SUBMIT. It may carry the ACK of outcomes, the number of a transaction or stage, and a FLUSH, as a
        flag.
        """
        transaction = 0
        if len(fields) > SUBMIT_FIELDS:
            if len(fields) > SUBMIT_FIELDS + 1:
                transaction = _transaction(fields.pop())
                if fields[-1] is None:
                    fields[-1] = 0  # no ACK
            acked = fields.pop()
            if type(acked) is not int:
                acked = _number(acked)  # raises
            if acked > session.row.acked_number:
                session.row.ring_ack(acked)
                if (
                    session.unacked
                    or session.unwritten
                    or session.ring_full_since_ms is not None
                    or self._holds.ring_held
                ):
                    self._acked(session, now_ms)
        is_taken = self._intake.submit(session, fields, payload, now_ms, skipped_bytes, transaction)
        outboxes = self._outboxes
        if fields[6] & _FLUSH:
            if not is_taken:
                self._on_flush(session, fields[1:], now_ms)
            if session not in outboxes.pending:
                # Its stub waits for outcomes; a position alone would wake it for nothing.
                if session not in outboxes.later:
                    outboxes.later[session] = now_ms + POSITION_DELAY_MS
                return
        outboxes.pending.add(session)

    def _on_stranger(self, routing_id: bytes, kind: int, fields: list[Any], now_ms: float) -> None:
        """Handle a message of a connection that has not attached."""
        if kind == Kind.ATTACH:
            self._on_attach(routing_id, fields, now_ms)
        else:
            # A stub of a session that ended, or whose worker was replaced under the same path.
            assert self.endpoint is not None
            self._send_now(routing_id, [Kind.HELLO_AGAIN, self._worker_epoch])
            self.endpoint.sent_nonsense(routing_id)

    def _refuse(self, routing_id: bytes, session: ClientSession | None, error: ValueError) -> None:
        """Count and answer a malformed frame."""
        assert self.endpoint is not None
        self._counters.inc("malformed_frames_total")
        name = session.name if session is not None else "not attached"
        peer = self.endpoint.peer(routing_id)
        self._sparse_log.warning(
            (peer.payer or name, peer.uid),
            "A malformed frame of client %s (%s) was refused: %s",
            name,
            peer.words,
            error,
        )
        self._send_now(routing_id, [Kind.REFUSED, "MALFORMED_FRAME", f"Malformed frame: {error}", None])
        self.endpoint.sent_nonsense(routing_id)

    def _sent_useless(self, session: ClientSession) -> None:
        assert self.endpoint is not None
        self.endpoint.sent_useless(session.routing_id)

    def end_turn(self, now_ms: float) -> None:
        """Write positions, messages and outcomes of this turn to the stubs.

        A stub's credit is one window beyond its accepted bytes. It is an absolute limit, so repeats are harmless.
        """
        outboxes, endpoint = self._outboxes, self.endpoint
        later = outboxes.later
        for session, due_ms in later.items():
            if due_ms > now_ms:
                break
            outboxes.pending.add(session)
        if not outboxes.pending:
            return
        if outboxes.overfull:
            self._detach_overfull(now_ms)
        sessions, outboxes.pending = outboxes.pending, set()
        assert endpoint is not None
        for session in sessions:
            later.pop(session, None)
            if not session.attached or (session.outbox and not self._empty_outbox(session, now_ms)):
                continue
            # All streams that advanced in this turn travel in one message, with the new credit and the new outcomes.
            streams = session.accepted_streams
            outcomes = session.row.ring_slice_from(session.sent_number + 1)
            head: list[Any] = []
            if streams:
                session.credit_bytes = session.accepted_bytes + self._credit_window_bytes
                positions = []
                for stream in streams:
                    positions.append([stream.stream, stream.accepted])
                head = [session.credit_bytes, positions]
            if outcomes is not None:
                first, last, data = outcomes
                frames = [self._pack([_OUTCOMES, first, last, *head]), data]
            elif streams:
                frames = [self._pack([_ACCEPTED, *head])]
            else:
                if session.after_outcomes:
                    self._tell_after_outcomes(session, now_ms)
                continue
            taken = endpoint.send(session.routing_id, frames)
            if not taken:
                self._not_taken(session, taken, now_ms)
                continue
            streams.clear()
            if outcomes is not None:
                session.sent_number = last
            if session.after_outcomes:
                self._tell_after_outcomes(session, now_ms)

    def _tell_after_outcomes(self, session: ClientSession, now_ms: float) -> None:
        """Write the messages that follow all outcomes, once none of these is left."""
        if session.unwritten:
            return
        if session.row.ring_slice_from(session.sent_number + 1) is not None:
            self._outboxes.pending.add(session)
            return
        session.outbox.extend(session.after_outcomes)
        session.after_outcomes.clear()
        self._empty_outbox(session, now_ms)

    def _empty_outbox(self, session: ClientSession, now_ms: float) -> bool:
        """Write the control messages of one stub. False if its socket does not take all."""
        assert self.endpoint is not None
        while session.outbox:
            taken = self.endpoint.send(session.routing_id, session.outbox[0])
            if not taken:
                self._not_taken(session, taken, now_ms)
                return False
            session.outbox.popleft()
            # kill point: txn.told if session.lane is not None
        return True

    def _not_taken(self, session: ClientSession, taken: bool | None, now_ms: float) -> None:
        """Handle a refused write. ``taken`` None: the connection is gone, so the session ends."""
        if taken is None:
            self.end(session, now_ms)
        if session.attached:
            self._outboxes.pending.add(session)

    def _detach_overfull(self, now_ms: float) -> None:
        sessions, self._outboxes.overfull = self._outboxes.overfull, set()
        for session in sessions:
            if session.attached:
                self._sparse_log.warning(
                    ("unread", session.name),
                    "Client %s does not read its messages and is detached. Look at that process.",
                    session.name,
                )
                self.end(session, now_ms)

    def start_draining(self) -> None:
        """Stop accepting records, and send DRAINING to all stubs: to one in a transaction once that has ended."""
        self._intake.draining = True
        self._in_transactions = set(self._sessions)
        self.continue_draining()

    def continue_draining(self) -> None:
        """Send DRAINING to those whose transactions have ended meanwhile."""
        for session in list(self._in_transactions):
            if not session.is_in_transaction():
                self._in_transactions.discard(session)
                if session.attached:
                    self._outboxes.send(session, [Kind.DRAINING, DRAINING_TEXT])

    def end_draining(self) -> None:
        """Send the final positions of all streams, when all records have an outcome: so stubs know which were not
        accepted.
        """
        for session in self._sessions:
            positions = [[stream.stream, stream.position] for stream in session.streams.values()]
            self._outboxes.send(session, [Kind.DRAINING, LAST_TEXT, positions])
        self.end_turn(self._clock.now_ms())

    def expel(self, session: ClientSession, why: str, now_ms: float) -> None:
        """Detach a client that may not stay. Its last positions and outcomes go first. It may send HELLO again, which
        decides about it.
        """
        self._outboxes.pending.add(session)
        self.end_turn(now_ms)
        if session not in self._outboxes.pending:
            self._send_now(session.routing_id, [Kind.REFUSED, "NOT_ALLOWED", why, None])
        self.end(session, now_ms)

    def is_connected(self, session: ClientSession) -> bool:
        """Whether the connection by which the client attached is open."""
        return self.endpoint is None or self.endpoint.has(session.routing_id)

    def end(self, session: ClientSession, now_ms: float, *, for_good: bool = False) -> None:
        """Detach a client. ``for_good``: it will not come back, so its unread outcomes count as acknowledged."""
        self._holds.forget(session)
        self._sessions.detach(session, now_ms, for_good=for_good)
        if self.endpoint is not None:
            self.endpoint.has_detached(session.routing_id)
        session.outbox.clear()
        session.after_outcomes.clear()
        if for_good:
            self._acker.abandon(session)
            if session.lane is not None:
                self.on_lane_left()

    def _on_attach(self, routing_id: bytes, fields: list[Any], now_ms: float) -> None:
        if len(fields) != ATTACH_FIELDS:
            raise MalformedFrame(f"ATTACH has {len(fields)} fields of {ATTACH_FIELDS}")
        if self._intake.draining:
            self._send_now(routing_id, [Kind.REFUSED, "DRAINING", DRAINING_TEXT, None])
            return
        assert self.endpoint is not None
        peer, caller = self.endpoint.peer(routing_id), self.endpoint.caller(routing_id)
        # If the kernel and the stub name different pids, they are in different pid namespaces.
        process = peer.pid if fields[3] == peer.pid else 0
        try:
            try:
                session, known = self._sessions.attach(
                    routing_id, fields, now_ms, process=process, caller=caller
                )
            except TableFull:
                self.on_table_full(now_ms)
                session, known = self._sessions.attach(
                    routing_id, fields, now_ms, process=process, caller=caller
                )
        except Refused as refusal:
            if refusal.code == "MALFORMED_FRAME":
                raise MalformedFrame(str(refusal)) from None
            self._send_now(routing_id, [Kind.REFUSED, refusal.code, str(refusal), None])
            return
        self.endpoint.has_detached(session.earlier_routing_id)
        self.endpoint.has_attached(routing_id)
        self._processes.watch(session.row.index, process)
        session.credit_bytes = session.accepted_bytes + self._credit_window_bytes
        message = welcome(session, known, self._worker_epoch, self._welcome_limits)
        session.outbox.append([self._pack(message)])
        self._acker.acked(session, now_ms)
        self._outboxes.pending.add(session)
        log.debug("Client %s attached.", session.name)

    def _on_ack(self, session: ClientSession, fields: list[Any], now_ms: float) -> None:
        number = _number(*fields[:1])
        if number > session.row.acked_number:
            session.row.ring_ack(number)
            self._acked(session, now_ms)
            self._outboxes.pending.add(session)

    def _acked(self, session: ClientSession, now_ms: float) -> None:
        """Continue with everything that waited for an ACK."""
        self._acker.acked(session, now_ms)
        if self._holds.ring_held:
            self._holds.ring_acked(session)

    def _on_flush(self, session: ClientSession, fields: list[Any], now_ms: float) -> None:
        """Carry out a FLUSH that came without records, or with records that are not accepted now."""
        stream = session.streams.get(_number(*fields[:1]))
        if stream is not None and stream.refusal is None:  # only for clients that may send to the topic
            self._topics.flush(stream.topic_queue, now_ms)

    def _on_end_stream(self, session: ClientSession, fields: list[Any], now_ms: float) -> None:
        self._intake.end_stream(session, _number(*fields[:1]), _number(*fields[1:2]))

    def _on_bye(self, session: ClientSession, fields: list[Any], now_ms: float) -> None:
        if not fields:
            raise MalformedFrame("BYE does not say whether it cancels")
        if fields[0]:
            session.has_cancelled = True
            left = session.unsettled_records
            if left:
                self._sparse_log.info(
                    ("left", session.name),
                    "Client %s left without waiting for %s.",
                    session.name,
                    counted(left, "record"),
                )
        self.end(session, now_ms, for_good=True)

    def _on_ping(self, session: ClientSession, fields: list[Any], now_ms: float) -> None:
        self._outboxes.send(session, [Kind.PONG])

    def _send_now(self, routing_id: bytes, message: list[Any]) -> None:
        assert self.endpoint is not None
        self.endpoint.send(routing_id, [self._pack(message)])


def _refuse_transaction(
    session: ClientSession, kind: int, fields: list[Any], payload: Any, now_ms: float
) -> None:
    raise MalformedFrame("this worker takes no transactions")


def _unpack(head: memoryview) -> list[Any]:
    """The fields of a message's first frame, kind first."""
    if len(head) > SUBMIT_HEAD_BYTES_MAX:
        raise MalformedFrame(
            f"a first frame of {len(head)} bytes; no message has more than {SUBMIT_HEAD_BYTES_MAX}"
        )
    try:
        fields = _unpackb(head)
    except _UNPACK_ERRORS as error:
        raise MalformedFrame(f"{type(error).__name__}: {error}") from None
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise MalformedFrame("it is not an array that begins with a kind")
    return fields


def _transaction(value: Any) -> int:
    if type(value) is not int or not 0 < value < 2 * STAGE_BIT:
        raise MalformedFrame(f"{value!r:.40} is no number of a transaction or stage")
    return value


def _number(value: Any = None) -> int:
    if type(value) is not int:
        raise MalformedFrame(f"a number is missing, or {value!r:.40} is none")
    return value
