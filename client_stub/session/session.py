"""Session: the stub's side of the protocol: records to a worker, acceptances and outcomes from it. Sans-IO: frames and
the time go in, messages come out.

It has an ``Attachment``, which gets and keeps the worker, the ``Streams`` of its client, and their ``Recovery``. No
record is completed twice: outcome numbers seen before are ignored, and a record keeps its first outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgpack

from client_stub.contract.wire import (
    PARTITIONER_MASK,
    PARTITIONER_SHIFT,
    Kind,
    LocalCode,
    OutcomeKind,
    SubmitFlag,
)
from client_stub.errors import error_for
from client_stub.native.hot import unpack_outcomes
from client_stub.outbox.submission import Submission
from client_stub.outbox.txn_call import TxnCall
from client_stub.session.ack_window import AckWindow
from client_stub.session.attachment import Attachment, checked_message
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.effects import ErrorOf, FailStreams, RestartStreams, ResumeStreams, StreamEffect
from client_stub.session.recovery import Recovery
from client_stub.session.refusals import refusal_error
from client_stub.session.staging import Staging
from client_stub.session.states import State
from client_stub.session.stream_admission import CHECK_MS
from client_stub.session.streams import Streams
from client_stub.session.transactional_id import TransactionalId
from client_stub.session.txn_calls import TxnCalls

_ATTACHED: Final = State.ATTACHED
_FLUSH: Final = int(SubmitFlag.FLUSH)
_SUBMIT, _OUTCOMES, _ACCEPTED = int(Kind.SUBMIT), int(Kind.OUTCOMES), int(Kind.ACCEPTED)
_FAILED: Final = OutcomeKind.FAILED
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each message."""

UNDER_WAY_PER_STREAM: Final = 2
ACK_DELAY_MS: Final = 50.0
"""An ACK is sent with the next SUBMIT, after this time, or when one of the two limits below is reached. The outcome
ring of a client holds 252 KiB. A message for each acknowledgement would cost both sides more than everything else
about it.
"""
ACK_OUTCOMES_MAX: Final = 64
ACK_BYTES_MAX: Final = 32 << 10


class Session:
    """One client at its workers. The io thread owns it; not thread-safe."""

    _attachment_type: type[Attachment] = Attachment
    _streams_type: type[Streams] = Streams
    """``TracedSession`` has its own of both."""

    def __init__(
        self,
        identity: ClientIdentity,
        *,
        delivery_timeout_ms: float,
        partitioning: int = 0,
        transactional: tuple[str, int] | None = None,
        stages: bool = False,
    ) -> None:
        """``partitioning``: the bits of ``Outbox.partitioning``. ``transactional``: the transactional id and its
        timeout in ms. ``stages``: all its records are those of stages.
        """
        self.attachment = self._attachment_type(
            identity,
            delivery_timeout_ms=delivery_timeout_ms,
            partitioner=partitioning >> PARTITIONER_SHIFT & PARTITIONER_MASK,
        )
        self.streams = self._streams_type()
        self._recovery = Recovery(self.streams)
        self.transactional: TxnCalls | None = None
        if transactional is not None:
            self.transactional = TransactionalId(*transactional, self.streams)
        elif stages:
            self.transactional = Staging(self.streams)
        self.due_ms = self.attachment.due_ms
        """When ``tick`` or ``ping_due`` may have something to do; inf: only when something happens. While no worker is
        attached, ``tick`` should be called in every turn.
        """
        self._pack = self.attachment.pack
        self._draining = False
        self._outcomes_seen = self._acked = self._unacked_bytes = 0
        self._ack_at_ms = 0.0
        """When the oldest outcome that is not acknowledged makes an ACK due."""
        self._ack_is_due = False

    # --- what the caller's side brings --------------------------------------------------------------

    def wake(self, now_ms: float) -> None:
        """Connect if nothing was begun yet, as there is something to send."""
        self.attachment.wake(now_ms)
        self.due_ms = self.attachment.due_ms

    def add(self, submissions: Iterable[Submission], now_ms: float, *, flush: bool = False) -> None:
        """Take over sealed submissions, in order. Each gets the next seq of its stream, and its window a turn.

        ``flush``: the present submissions of all streams, with these, are sent without linger.
        """
        streams = self.streams
        for submission in submissions:
            submission.queued_ms = now_ms
            calls = None if submission.transaction is None else self.transactional
            if calls is not None and not calls.queued(submission):
                continue
            fatal = self.attachment.fatal
            if fatal is not None:
                submission.fail(refusal_error(fatal.name, str(fatal)))
                streams.finish(submission)
                continue
            window = streams.by_topic.get(submission.topic)
            is_new = window is None
            if window is None:
                window = streams.open(submission.topic, now_ms)
            window.used_ms = now_ms
            submission.seq = window.next_seq
            window.next_seq += 1
            window.queue.append(submission)
            streams.in_use[window.number] = window
            if is_new:
                self._admit(now_ms)  # after its submission: without one it would be at rest
            if not (window.has_turn or window.held):
                window.has_turn = True
                streams.turns.append(window)
        if flush:
            streams.flush()

    def add_calls(self, calls: Iterable[TxnCall]) -> None:
        """Take over calls of transactions, after the submissions that were closed before them."""
        assert self.transactional is not None
        self.transactional.add(calls, is_attached=self.attachment.state is _ATTACHED)

    def wants(self, topic: str) -> bool:
        """True when a submission of ``topic`` could be sent now; otherwise it should continue to fill."""
        attachment = self.attachment
        if attachment.state is not _ATTACHED or self._draining:
            return attachment.fatal is not None or attachment.state is State.CLOSED  # it fails
        window = self.streams.by_topic.get(topic)
        if window is None:
            return True
        # Two submissions under way keep the worker busy; a third would only be smaller (as in Nagle's algorithm).
        return not window.held and window.sent_count == len(window.queue) < UNDER_WAY_PER_STREAM

    def cancel(self, error_of: ErrorOf) -> list[Any] | None:
        """Fail everything undecided. Returns the frames of BYE, or None without a worker."""
        self.streams.fail_all(error_of)
        return self._close(is_cancelled=True)

    def bye(self) -> list[Any] | None:
        """Leave when nothing is undecided. Returns the frames of BYE, or None without a worker."""
        return self._close(is_cancelled=False)

    def _close(self, *, is_cancelled: bool) -> list[Any] | None:
        frames = self.attachment.close(is_cancelled=is_cancelled)
        self.due_ms = self.attachment.due_ms
        return frames

    # --- what goes to the worker --------------------------------------------------------------------

    def next_frames(self) -> list[Any] | None:
        """The next message for the worker; None when nothing can or need be sent. The caller must send it."""
        if self.attachment.state is not _ATTACHED:
            return None
        streams, transactional = self.streams, self.transactional
        if transactional is not None and (frames := transactional.first_frames()) is not None:
            return frames
        if streams.orders:
            return [self._pack(streams.orders.popleft())]
        if (
            streams.turns
            and not self._draining
            and not (transactional is not None and transactional.holds_records)
        ):
            frames = self._next_submit()
            if frames is not None:
                return frames
        if transactional is not None and (frames := transactional.last_frames()) is not None:
            return frames
        if streams.flushing:
            flush = streams.next_flush()
            if flush is not None:
                return [self._pack([Kind.FLUSH, *flush])]
        if self._outcomes_seen != self._acked and self._ack_cannot_wait():
            return [self._pack([Kind.ACK, self._ack()])]
        return None

    def _next_submit(self) -> list[Any] | None:
        """SUBMIT with the next submission; None without one, or without credit."""
        streams = self.streams
        while (window := streams.next_window()) is not None:
            submission = window.queue[window.sent_count]
            if submission.payload_bytes > self.attachment.payload_bytes_max:
                self._fail_too_large(window)
                continue
            if not streams.has_credit(submission.payload_bytes):
                return None
            ends_flush = streams.send_next(window)
            header = [
                _SUBMIT,
                self.attachment.worker_epoch,
                window.number,
                submission.seq,
                submission.topic,
                submission.base_timestamp_ms,
                submission.format,
                submission.flags | _FLUSH if ends_flush else submission.flags,
                submission.count,
                self._ack(),
            ]
            if submission.transaction is not None:
                header.append(submission.transaction.number)
            return [self._pack(header), submission.payload]
        return None

    def _ack_cannot_wait(self) -> bool:
        """Whether outcomes are to be acknowledged before the next SUBMIT."""
        return (
            self._ack_is_due
            or self._draining
            or self._outcomes_seen - self._acked >= ACK_OUTCOMES_MAX
            or self._unacked_bytes >= ACK_BYTES_MAX
        )

    def _ack(self) -> int:
        """Acknowledge everything in the message that is sent now. Returns the number of the last outcome."""
        self._acked, self._unacked_bytes, self._ack_is_due = self._outcomes_seen, 0, False
        return self._acked

    def _fail_too_large(self, window: AckWindow) -> None:
        """Fail the next submission of ``window``. The ones after it are not affected.

        The worker would end the connection because of it, receive it again, and so on without end. Callers cannot
        queue larger ones; this handles those that they queued under the limits of an earlier daemon.
        """
        submission = window.drop_next()
        text = (
            f"{submission.payload_bytes} bytes of {submission.topic} are more than the "
            f"{self.attachment.payload_bytes_max} that the daemon reads in one message."
        )
        submission.fail(error_for(LocalCode.RECORD_TOO_LARGE, text))
        self.streams.finish(submission)

    def ping_due(self, now_ms: float, *, is_moving: bool) -> list[Any] | None:
        """As ``Attachment.ping_due``."""
        frames = self.attachment.ping_due(now_ms, is_moving=is_moving)
        self._follow((), now_ms)
        return frames

    # --- what comes from the worker -----------------------------------------------------------------

    def receive_worker(self, frames: list[bytes], now_ms: float) -> None:
        """Handle a message from the worker. Raises ValueError for a message that our daemon does not send."""
        attachment, streams = self.attachment, self.streams
        attachment.pings_unanswered = 0
        message = msgpack.unpackb(frames[0])
        kind = message[0] if isinstance(message, list) and message else None
        if attachment.state is not _ATTACHED or kind not in (_OUTCOMES, _ACCEPTED):
            self._receive_other(checked_message(message), now_ms)
            return
        if kind == _ACCEPTED:
            if streams.accept(message[1], message[2]) and not attachment.is_proven:
                attachment.progressed()
            if streams.admission.queue:
                self._admit(now_ms)
            return
        # OUTCOMES, mostly with the positions that ACCEPTED has.
        if len(message) > 3 and streams.accept(message[3], message[4]) and not attachment.is_proven:
            attachment.progressed()
        data, last_number, seen = frames[1], message[2], self._outcomes_seen
        # Records get their outcomes, except those of outcomes that were seen before.
        for outcome in unpack_outcomes(data):
            if outcome.number <= seen:
                continue
            if outcome.kind == _FAILED:
                self._ack_is_due = True  # the daemon keeps a failed record until it is acknowledged
            window = streams.windows.get(outcome.stream)
            if window is None:
                continue
            submission = window.accepted.get(outcome.seq)
            if submission is None:
                # An outcome may overtake its ACCEPTED: the worker sends both at the end of a turn, from different
                # queues.
                submission = next((each for each in window.queue if each.seq == outcome.seq), None)
            if submission is None:
                continue
            was_completed = submission.remaining <= 0
            submission.apply(outcome)
            if submission.remaining <= 0 and not was_completed:
                streams.completed(window, submission)
        if last_number > seen:
            if self._acked == seen:
                self._ack_at_ms = now_ms + ACK_DELAY_MS
                self.due_ms = min(self.due_ms, self._ack_at_ms)
            self._outcomes_seen = last_number
            if not attachment.is_proven:
                attachment.progressed()
        self._unacked_bytes += len(data)
        streams.has_outcomes = streams.has_progress = True
        if streams.admission.queue:
            self._admit(now_ms)

    def _receive_other(self, message: list[Any], now_ms: float) -> None:
        """Handle a message that begins, directs or ends the sending."""
        attachment, kind = self.attachment, message[0]
        is_attached = attachment.state is _ATTACHED
        if kind == Kind.WELCOME and attachment.state is State.ATTACH:
            self._follow(attachment.welcome(message, now_ms), now_ms)
        elif not is_attached and attachment.state is not State.ATTACH:
            return
        elif kind == Kind.REFUSED:
            stream = message[3] if len(message) > 3 else None
            if stream is not None:
                if self._recovery.refuse(stream, str(message[1]), str(message[2]), now_ms):
                    self.due_ms = min(self.due_ms, now_ms + CHECK_MS)
            else:
                self._follow(attachment.refused(str(message[1]), str(message[2]), now_ms), now_ms)
        elif kind == Kind.HELLO_AGAIN:
            attachment.away("the worker asked for a new HELLO", now_ms, at_once=is_attached)
            self._follow((), now_ms)
        elif not is_attached:
            return
        elif kind in (Kind.HOLD, Kind.RESEND, Kind.RESUME):
            reason = str(message[3]) if len(message) > 3 else ""
            self._recovery.resend(message[1], message[2], held=kind == Kind.HOLD, reason=reason)
        elif kind in (Kind.TXN, Kind.STAGE) and self.transactional is not None:
            self.transactional.receive(message)
        elif kind == Kind.DRAINING:
            self._draining = True
            attachment.draining(str(message[1]))
            if len(message) > 2 and self._recovery.last_positions(message[2]) and not attachment.is_proven:
                attachment.progressed()

    # --- what happens to the attachment -------------------------------------------------------------

    def receive_control(self, frames: list[bytes], now_ms: float, *, key_is_replaced: bool = False) -> None:
        """As ``Attachment.receive_control``."""
        self._follow(self.attachment.receive_control(frames, now_ms, key_is_replaced=key_is_replaced), now_ms)

    def lost(self, reason: str, now_ms: float, *, is_barred: bool = False) -> None:
        """As ``Attachment.lost``."""
        self._follow(self.attachment.lost(reason, now_ms, is_barred=is_barred), now_ms)

    def tick(self, now_ms: float) -> None:
        """Handle elapsed time, and find when the next call is due."""
        attachment = self.attachment
        if attachment.state is not _ATTACHED:
            attachment.tick(now_ms)
            oldest_ms = now_ms - attachment.delivery_timeout_ms
            if attachment.is_away_too_long(now_ms) and self.streams.has_older(oldest_ms):
                self._follow(attachment.give_up(now_ms), now_ms)
            self.due_ms = attachment.due_ms
            return
        self.due_ms = attachment.ping_at_ms
        if self._acked != self._outcomes_seen and not self._ack_is_due:
            if now_ms >= self._ack_at_ms:
                self._ack_is_due = True
            else:
                self.due_ms = min(self.due_ms, self._ack_at_ms)
        admission = self.streams.admission
        if admission.has_waiting:
            timeout_ms = attachment.delivery_timeout_ms
            self.streams.fail_late(now_ms - timeout_ms, timeout_ms)
            admission.retry_refused(now_ms)
            self._admit(now_ms)

    def _follow(self, effects: Iterable[StreamEffect], now_ms: float) -> None:
        """Let the streams follow the attachment."""
        if self.attachment.state is not _ATTACHED:
            self.due_ms = self.attachment.due_ms
        for effect in effects:
            match effect:
                case ResumeStreams(credit_bytes, positions):
                    self._resume(credit_bytes, positions, now_ms)
                case RestartStreams(error_of, older_than_ms):
                    self._outcomes_seen = self._acked = 0
                    self._recovery.restart_all(error_of, older_than_ms)
                case FailStreams(error_of):
                    self.streams.fail_all(error_of)

    def _resume(self, credit_bytes: int, positions: dict[int, tuple[int, bool]], now_ms: float) -> None:
        """Continue at the worker that has sent WELCOME."""
        attachment = self.attachment
        self._draining = False
        # The earlier worker may not have noted our last ACK, so it is sent again.
        self._acked = 0
        self._ack_at_ms = now_ms + ACK_DELAY_MS
        self.due_ms = min(attachment.ping_at_ms, self._ack_at_ms)
        if self._recovery.resume(credit_bytes, positions, attachment.limits.get("streams"), now_ms):
            self.due_ms = min(self.due_ms, now_ms + CHECK_MS)
        if self.transactional is not None:
            self.transactional.attached(attachment.limits)
        attachment.attached(now_ms)

    def _admit(self, now_ms: float) -> None:
        if self.streams.admit(now_ms):
            self.due_ms = min(self.due_ms, now_ms + CHECK_MS)
