"""Session: the stub's side of the protocol: records to a worker, acceptances and outcomes from it. Sans-IO: frames and
the time go in, messages come out.

``Attachment`` gets and keeps the worker. After each WELCOME the worker's positions decide which submissions are sent
again. No record is completed twice: outcome numbers seen before are ignored, and a record keeps its first outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, Final

import msgpack

from client_stub.contract.wire import Kind, LocalCode, OutcomeKind, SubmitFlag
from client_stub.errors import DeliveryFailed, SidecarError, error_for
from client_stub.native.hot import unpack_outcomes
from client_stub.outbox.submission import Submission, lost_error
from client_stub.outbox.wait_reasons import topics_text
from client_stub.session.ack_window import AckWindow
from client_stub.session.attachment import Attachment, checked_message
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.refusals import Lasts, lasts, refusal_error
from client_stub.session.states import SessionEvent, State
from client_stub.session.stream_places import LOOK_MS, StreamPlaces
from client_stub.system.log import log

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
_NO_PLACE: Final = "this producer has as many topics under way as one may, and waits until one of them rests"
_LEAVES: Final = (
    "another topic of this producer has its turn, as more are under way than one may have at a time"
)
ACK_OUTCOMES_MAX: Final = 64
ACK_BYTES_MAX: Final = 32 << 10


class Session(Attachment):
    """One client identity and its streams. The io thread owns it; not thread-safe."""

    def __init__(self, identity: ClientIdentity, *, delivery_timeout_ms: float, placing: int = 0) -> None:
        """``placing``: the bits of ``Outbox.placing``."""
        super().__init__(identity, delivery_timeout_ms=delivery_timeout_ms, placing=placing)
        self.windows: dict[int, AckWindow] = {}
        """Stream number → its window. Numbers are never reused, so late messages for old streams are ignored."""
        self.released: list[Submission] = []
        """Submissions whose bytes can be freed. The io thread takes them."""
        self.finished: list[Submission] = []
        """Submissions with all outcomes known. The io thread takes them."""
        self.has_new_fates = False
        """Whether a record got its outcome, even if its submission is not complete. The io thread notifies callers and
        resets this.
        """
        self.refused_topics: list[tuple[str, SidecarError]] = []
        self.hold_reasons: dict[str, str] = {}
        """Topic → the reason why the worker holds its stream. Callers read it. A topic that is not held has no
        entry.
        """
        self._by_topic: dict[str, AckWindow] = {}
        self._next_number = 1
        self._turns: deque[AckWindow] = deque()
        """Windows with something to send; they take turns, so that no topic starves another."""
        self._in_use: dict[int, AckWindow] = {}
        """Windows with something undecided, and perhaps some without: a flush looks at no others."""
        self._places = StreamPlaces()
        self._orders: deque[list[Any]] = deque()
        """Messages for the worker that go before any other: streams that end, and linger that ends with them."""
        self._flushing: set[int] = set()
        """Numbers of streams whose FLUSH is to be sent."""
        self._draining = False
        self._credit_bytes = self._accepted_bytes = self._sent_bytes = 0
        self._outcomes_seen = self._acked = self._unacked_bytes = 0
        self._ack_at_ms = 0.0
        """When the oldest outcome that is not acknowledged makes an ACK due."""
        self._ack_is_due = False

    # --- what the caller's side brings --------------------------------------------------------------

    def add(self, submissions: Iterable[Submission], now_ms: float, *, flush: bool = False) -> None:
        """Take over sealed submissions, in order. Each gets the next seq of its stream, and its window a turn.

        ``flush``: the present submissions of all streams, with these, are sent without linger.
        """
        for submission in submissions:
            submission.queued_ms = now_ms
            if self.fatal is not None:
                submission.fail(refusal_error(self.fatal.name, str(self.fatal)))
                self._finish(submission)
                continue
            window = self._by_topic.get(submission.topic)
            is_new = window is None
            if window is None:
                window = self._open(submission.topic, now_ms)
            window.used_ms = now_ms
            submission.seq = window.next_seq
            window.next_seq += 1
            window.queue.append(submission)
            self._in_use[window.number] = window
            if is_new:
                self._give_places(now_ms)  # behind its submission: without one it would be at rest
            if not (window.has_turn or window.held):
                window.has_turn = True
                self._turns.append(window)
        if not flush:
            return
        for window in list(self._in_use.values()):
            if not (window.queue or window.accepted):
                del self._in_use[window.number]
                continue
            window.flush_to_seq = window.next_seq - 1
            if window.flush_to_seq > window.flush_sent_seq:
                self._flushing.add(window.number)

    def wants(self, topic: str) -> bool:
        """True when a submission of ``topic`` could be sent now; otherwise it should continue to fill."""
        if self.state is not _ATTACHED or self._draining:
            return self.fatal is not None or self.state is State.CLOSED  # it fails
        window = self._by_topic.get(topic)
        if window is None:
            return True
        # Two submissions under way keep the worker busy; a third would only be smaller (as in Nagle's algorithm).
        return not window.held and window.sent_count == len(window.queue) < UNDER_WAY_PER_STREAM

    def cancel(self, error_of: Callable[[bool], DeliveryFailed]) -> list[Any] | None:
        """Fail everything undecided; ``error_of(sent)`` makes each error. Returns the frames of BYE, or None without a
        worker.
        """
        attached = self.state is _ATTACHED
        self._fail_all(error_of)
        self._move(SessionEvent.CLOSE)
        return [self._pack([Kind.BYE, True])] if attached else None

    def bye(self) -> list[Any] | None:
        """Leave when nothing is undecided. Returns the frames of BYE, or None without a worker."""
        attached = self.state is _ATTACHED
        self._move(SessionEvent.CLOSE)
        return [self._pack([Kind.BYE, False])] if attached else None

    @property
    def undecided(self) -> bool:
        return any(
            window.accepted or any(not submission.completed for submission in window.queue)
            for window in self._in_use.values()
        )

    # --- what goes to the worker --------------------------------------------------------------------

    def next_frames(self) -> list[Any] | None:
        """The next message for the worker; None when nothing can or need be sent. The caller must send it."""
        if self.state is not _ATTACHED:
            return None
        if self._orders:
            return [self._pack(self._orders.popleft())]
        turns = self._turns
        while turns and not self._draining:
            window = turns[0]
            queue, place = window.queue, window.sent_count
            if place == len(queue) or window.held:
                turns.popleft()
                window.has_turn = False
                continue
            submission = queue[place]
            size = submission.payload_bytes
            if size > self.payload_bytes_max:
                self._fail_too_large(window)
                continue
            # A submission larger than the whole credit may be sent when nothing else is under way.
            alone = not self._sent_bytes and self._accepted_bytes < self._credit_bytes
            if not alone and self._accepted_bytes + self._sent_bytes + size > self._credit_bytes:
                break
            submission.sent = True
            self._sent_bytes += size
            window.sent_count = place + 1
            if window.sent_count < len(queue):
                turns.rotate(-1)
            else:
                turns.popleft()
                window.has_turn = False
            flags = submission.flags
            if window.flush_to_seq == submission.seq and window.number in self._flushing:
                # The flush ends at this submission and travels with it.
                window.flush_sent_seq = submission.seq
                self._flushing.discard(window.number)
                flags |= _FLUSH
            self._acked, self._unacked_bytes, self._ack_is_due = self._outcomes_seen, 0, False
            header = [
                _SUBMIT,
                self._worker_epoch,
                window.number,
                submission.seq,
                submission.topic,
                submission.base_timestamp_ms,
                submission.format,
                flags,
                submission.count,
                self._acked,
            ]
            return [self._pack(header), submission.payload]
        if self._flushing:
            flush = self._next_flush()
            if flush is not None:
                return [self._pack([Kind.FLUSH, *flush])]
        # This ACK cannot wait for the next SUBMIT.
        behind = self._outcomes_seen - self._acked
        if behind and (
            self._ack_is_due
            or self._draining
            or behind >= ACK_OUTCOMES_MAX
            or self._unacked_bytes >= ACK_BYTES_MAX
        ):
            self._acked, self._unacked_bytes, self._ack_is_due = self._outcomes_seen, 0, False
            return [self._pack([Kind.ACK, self._acked])]
        return None

    def _fail_too_large(self, window: AckWindow) -> None:
        """Fail the next submission of ``window``. The ones after it are not affected.

        The worker would end the connection because of it, receive it again, and so on without end. Callers cannot
        queue larger ones; this handles those that they queued under the limits of an earlier daemon.
        """
        submission = window.drop_next()
        text = (
            f"{submission.payload_bytes} bytes of {submission.topic} are more than the {self.payload_bytes_max} "
            "that the daemon reads in one message."
        )
        submission.fail(error_for(LocalCode.RECORD_TOO_LARGE, text))
        self._finish(submission)

    def _next_flush(self) -> tuple[int, int] | None:
        """(stream, up to seq) of a FLUSH that is due now; it then counts as sent."""
        for number in list(self._flushing):
            window = self.windows.get(number)
            if window is None or window.flush_to_seq <= window.flush_sent_seq:
                self._flushing.discard(number)
                continue
            seq = window.flush_seq_due()
            if seq is not None:
                window.flush_sent_seq = seq
                self._flushing.discard(number)
                return number, seq
        return None

    # --- what comes from the worker -----------------------------------------------------------------

    def receive_worker(self, frames: list[bytes], now_ms: float) -> None:
        """Handle a message from the worker. Raises ValueError for a message that our daemon does not send."""
        self._pings_unanswered = 0
        message = msgpack.unpackb(frames[0])
        kind = message[0] if isinstance(message, list) and message else None
        if self.state is not _ATTACHED or kind not in (_OUTCOMES, _ACCEPTED):
            self._receive_other(checked_message(message), now_ms)
            return
        if kind == _ACCEPTED:
            self._accept(message[1], message[2])
            if self._places.line:
                self._give_places(now_ms)
            return
        # OUTCOMES, mostly with the positions that ACCEPTED has.
        if len(message) > 3:
            self._accept(message[3], message[4])
        data, last_number, seen = frames[1], message[2], self._outcomes_seen
        # Records get their outcomes, except those of outcomes that were seen before.
        for outcome in unpack_outcomes(data):
            if outcome.number <= seen:
                continue
            if outcome.kind == _FAILED:
                self._ack_is_due = True  # the daemon keeps a failed record until it is acknowledged
            window = self.windows.get(outcome.stream)
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
                window.accepted.pop(outcome.seq, None)
                self.finished.append(submission)
        if last_number > seen:
            if self._acked == seen:
                self._ack_at_ms = now_ms + ACK_DELAY_MS
                self.due_ms = min(self.due_ms, self._ack_at_ms)
            self._outcomes_seen = last_number
            if self._patience.attached_at_ms is not None:
                self._patience.progressed()
        self._unacked_bytes += len(data)
        self.has_new_fates = True
        if self._places.line:
            self._give_places(now_ms)

    def _accept(self, credit_bytes: int, positions: Iterable[tuple[int, int]]) -> None:
        """Record (stream, seq) up to which the worker has everything. Repeats are harmless."""
        self._credit_bytes = credit_bytes
        for number, up_to_seq in positions:
            window = self.windows.get(number)
            if window is None:
                continue
            queue = window.queue
            while queue and queue[0].seq <= up_to_seq:
                submission = queue.popleft()
                if window.sent_count:
                    window.sent_count -= 1
                    self._sent_bytes -= submission.payload_bytes
                    self._accepted_bytes += submission.payload_bytes
                submission.was_accepted = submission.sent = True  # sent, even if DRAINING has said otherwise
                if submission.remaining > 0:  # what was sent is closed: ``remaining`` is final
                    window.accepted[submission.seq] = submission
                self.released.append(submission)
                if self._patience.attached_at_ms is not None:
                    self._patience.progressed()

    def _receive_other(self, message: list[Any], now_ms: float) -> None:
        """Handle a message that begins, directs or ends the sending."""
        kind, attached = message[0], self.state is _ATTACHED
        if kind == Kind.WELCOME and self.state is State.ATTACH:
            self._welcome(message, now_ms)
        elif not attached and self.state is not State.ATTACH:
            return
        elif kind == Kind.REFUSED:
            stream = message[3] if len(message) > 3 else None
            if stream is not None:
                self._refuse_stream(stream, str(message[1]), str(message[2]), now_ms)
            else:
                self._refused(str(message[1]), str(message[2]), now_ms)
        elif kind == Kind.HELLO_AGAIN:
            self._away("the worker asked for a new HELLO", now_ms, at_once=attached)
        elif not attached:
            return
        elif kind in (Kind.HOLD, Kind.RESEND, Kind.RESUME):
            reason = str(message[3]) if len(message) > 3 else ""
            self._resend(message[1], message[2], held=kind == Kind.HOLD, reason=reason)
        elif kind == Kind.DRAINING:
            self._draining = True
            self.last_word = str(message[1])
            self.has_new_state = True
            if len(message) > 2:
                self._last_positions(message[2])

    def tick(self, now_ms: float) -> None:
        """Handle elapsed time, and find when the next call is due."""
        if self.state is not _ATTACHED:
            self._try_again(now_ms)
            return
        self.due_ms = self.ping_at_ms
        if self._acked != self._outcomes_seen and not self._ack_is_due:
            if now_ms >= self._ack_at_ms:
                self._ack_is_due = True
            else:
                self.due_ms = min(self.due_ms, self._ack_at_ms)
        if self._places.has_waiting:
            self._fail_late(now_ms - self._delivery_timeout_ms)
            self._places.try_again(now_ms)
            self._give_places(now_ms)

    # --- streams: sent again, held, restarted, ended ------------------------------------------------

    def _resend(self, number: int, from_seq: int, *, held: bool, reason: str) -> None:
        """Go back to ``from_seq``, to send from there once the stream is not held."""
        window = self.windows.get(number)
        if window is None or self._places.is_waiting(window):
            return
        self._sent_bytes -= window.rewind(from_seq)
        window.is_leaving = window.is_leaving and not held  # the worker keeps a stream that it holds
        window.held = held or window.is_leaving
        if held:
            self.hold_reasons[window.topic] = reason
        else:
            self.hold_reasons.pop(window.topic, None)
        self._send_on(window)

    def _send_on(self, window: AckWindow) -> None:
        """Give a window that went back its turn, and repeat its flush."""
        if window.flush_to_seq > window.flush_sent_seq and (window.queue or window.accepted):
            self._flushing.add(window.number)
        if window.sent_count < len(window.queue) and not (window.held or window.has_turn):
            window.has_turn = True
            self._turns.append(window)

    def _last_positions(self, streams: list[tuple[int, int]]) -> None:
        """Handle the worker's last message: it will never take anything beyond these positions.

        Everything after them therefore counts as never sent, and survives a successor that does not know this client.
        """
        self._accept(self._credit_bytes, streams)
        for window in self.windows.values():
            self._sent_bytes -= window.rewind(0)
            window.not_taken()

    def _resume(self, credit_bytes: int, positions: dict[int, tuple[int, bool]], now_ms: float) -> None:
        self._credit_bytes = credit_bytes
        self._accepted_bytes = self._sent_bytes = 0
        self._draining = False
        # The earlier worker may not have noted our last ACK, so it is sent again.
        self._acked = 0
        self._ack_at_ms = now_ms + ACK_DELAY_MS
        self.due_ms = min(self.ping_at_ms, self._ack_at_ms)
        self._resume_places(positions)
        lost: dict[str, tuple[int, int]] = {}
        for window in list(self.windows.values()):  # some are restarted
            if self._places.is_waiting(window):
                continue
            position, window.held = positions.get(window.number, (0, False))
            window.is_leaving = False
            window.rewind(0)
            if not window.held:
                self.hold_reasons.pop(window.topic, None)
            first = window.queue[0].seq if window.queue else window.next_seq
            if position < first - 1:
                # The worker's state is older than its last ACCEPTED, and those frames are gone here, so the stream
                # restarts.
                lost[window.topic] = position + 1, first - 1
                self._restart(window, _lost)
                continue
            self._accept(credit_bytes, ((window.number, position),))
            self._send_on(window)
        if lost:
            places = next(iter(lost.values()))
            log.error("The daemon has lost accepted submissions %d to %d of %s.", *places, topics_text(lost))
        self._give_places(now_ms)

    def _refuse_stream(self, number: int, code: str, text: str, now_ms: float) -> None:
        window = self.windows.get(number)
        if window is None:
            return
        passes = lasts(code) is Lasts.A_MOMENT and not (
            code == "TOO_MANY_STREAMS" and self._places.most == inf  # a daemon that ends no streams
        )
        if passes and not window.last_seq:  # a worker that has taken nothing of it gives it no place
            self._sent_bytes -= window.rewind(0)
            window.not_taken()
            self._places.refuse(window, code, now_ms)
            self.hold_reasons[window.topic] = text
            self.due_ms = min(self.due_ms, now_ms + LOOK_MS)
            return
        text = f"The daemon refused topic {window.topic}: {text}"
        self.refused_topics.append((window.topic, _topic_error(code, text)))
        self.has_new_state = True
        self.hold_reasons.pop(window.topic, None)
        self._sent_bytes -= window.rewind(0)
        self._fail(window, lambda sent: _topic_error(code, text))

    def _forget(self, error_of: Callable[[bool], DeliveryFailed], *, older_than_ms: float = -inf) -> None:
        """The daemon no longer knows this client: restart all streams."""
        self._outcomes_seen = self._acked = 0
        for window in list(self.windows.values()):
            self._restart(window, error_of, older_than_ms=older_than_ms)

    def _restart(
        self, window: AckWindow, error_of: Callable[[bool], DeliveryFailed], *, older_than_ms: float = -inf
    ) -> None:
        """The daemon no longer knows this stream: fail all that it may have received as possibly persisted.

        Submissions that were never sent continue in a new stream, unless they have waited since before
        ``older_than_ms``. It waits for a place until ``_give_places``.
        """
        kept: list[Submission] = []
        for submission in window.undecided():
            if submission.sent or submission.queued_ms < older_than_ms:
                submission.fail(error_of(submission.sent))
                self._finish(submission)
            else:
                kept.append(submission)
        self._go_on(window, kept)

    def _go_on(self, window: AckWindow, kept: Sequence[Submission]) -> None:
        """End a window here. Its last submissions, which no daemon has, go on in a new stream, if there are any."""
        self._drop(window)
        if not kept:
            return
        fresh = self._open(window.topic, window.used_ms)
        fresh.flush_to_seq = sum(each.seq <= window.flush_to_seq for each in kept)
        for seq, submission in enumerate(kept, start=1):
            submission.seq = seq
        fresh.queue.extend(kept)
        fresh.next_seq += len(kept)
        self._in_use[fresh.number] = fresh

    # --- places of streams ----------------------------------------------------------------------------

    def _resume_places(self, positions: dict[int, tuple[int, bool]]) -> None:
        """Find the places that this client has at a worker that has sent WELCOME.

        Its streams that have no window ended here while no worker could be told, or the worker did not read it.
        """
        most = self.limits.get("streams")
        places = self._places
        places.most = most if isinstance(most, int) and most > 0 else inf
        self._orders.clear()
        if places.most < inf:
            for number, (position, _) in positions.items():
                if number not in self.windows:
                    self._orders.append([Kind.END_STREAM, number, position])
        places.try_again(inf)
        room = places.most - sum(number in positions for number in places.taken)
        for number, window in list(places.taken.items()):
            if number not in positions and not window.last_seq:
                room -= 1
                if room < 0:  # opened before it was known how many there may be
                    window.rewind(0)
                    places.drop(window)
                    places.join(window)
                    self.hold_reasons[window.topic] = _NO_PLACE

    def _give_places(self, now_ms: float) -> None:
        """Give places to the streams that wait for one, as far as others are at rest."""
        places = self._places
        while places.line:
            if len(places.taken) >= places.most and not self._end_resting():
                for window in places.let_leave(now_ms):
                    self.hold_reasons[window.topic] = _LEAVES
                    self._orders.append([Kind.FLUSH, window.number, window.last_seq + window.sent_count])
                break
            window = places.give(now_ms)
            self.hold_reasons.pop(window.topic, None)
            self._send_on(window)
        if places.has_waiting:
            self.due_ms = min(self.due_ms, now_ms + LOOK_MS)

    def _end_resting(self) -> bool:
        """End the stream whose place is needed least. False if none is at rest.

        Each of its records has its outcome, so none of them can overtake one of a later stream of its topic. What is
        under way to the worker under its number was processed before: END_STREAM comes behind it on the same
        connection, and WELCOME ends what came by an earlier one.
        """
        window = self._places.resting()
        if window is None:
            return False
        self._orders.append([Kind.END_STREAM, window.number, window.last_seq])
        self._go_on(window, window.queue)
        return True

    def _fail_late(self, oldest_ms: float) -> None:
        """Fail submissions without a place that have waited since before ``oldest_ms``."""
        for window in self._places.waiting():
            if window.queue and window.queue[0].queued_ms < oldest_ms:
                reason = self.hold_reasons.get(window.topic, _NO_PLACE).rstrip(".")
                text = (
                    f"The record for topic {window.topic} has waited {self._delivery_timeout_ms:.0f} ms "
                    f"(delivery_timeout_ms) for a place at the daemon: {reason}."
                )
                error = _topic_error(window.refusal or "TOO_MANY_STREAMS", text)
                kept = []
                for submission in window.queue:
                    if submission.queued_ms < oldest_ms:
                        submission.fail(error)
                        self._finish(submission)
                    else:
                        kept.append(submission)
                self._go_on(window, kept)

    def _has_older(self, than_ms: float) -> bool:
        return any(
            each.queued_ms < than_ms for window in self.windows.values() for each in window.undecided()
        )

    def _fail_all(self, error_of: Callable[[bool], DeliveryFailed]) -> None:
        for window in list(self.windows.values()):
            self._fail(window, error_of)

    def _fail(self, window: AckWindow, error_of: Callable[[bool], DeliveryFailed]) -> None:
        for submission in window.undecided():
            submission.fail(error_of(submission.sent))
            self._finish(submission)
        self._drop(window)

    def _finish(self, submission: Submission) -> None:
        """Note that every record of a submission has its outcome, and release its bytes unless ``_accept`` has."""
        self.finished.append(submission)
        if not submission.was_accepted:
            self.released.append(submission)

    def _open(self, topic: str, now_ms: float) -> AckWindow:
        """Open a stream, which waits for a place until ``_give_places``."""
        window = AckWindow(self._next_number, topic)
        window.used_ms = now_ms
        self._next_number += 1
        self.windows[window.number] = self._by_topic[topic] = window
        self._places.join(window)
        self.hold_reasons[topic] = _NO_PLACE
        return window

    def _drop(self, window: AckWindow) -> None:
        self.windows.pop(window.number, None)
        self._in_use.pop(window.number, None)
        self._places.drop(window)
        self.hold_reasons.pop(window.topic, None)
        if self._by_topic.get(window.topic) is window:
            del self._by_topic[window.topic]
        if window.has_turn:
            window.has_turn = False
            self._turns.remove(window)


def _topic_error(code: str, text: str) -> DeliveryFailed:
    return refusal_error(code, text, unknown=LocalCode.TOPIC_REFUSED)


def _lost(sent: bool) -> DeliveryFailed:
    return lost_error(
        "The daemon lost records it had accepted; they may or may not be in the log.", maybe=sent
    )
