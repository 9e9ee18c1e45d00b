"""Session: the stub's side of the protocol as a state machine. Sans-IO: frames and the time go in, effects come out.

Its states are a table: client_stub/session_states.py, drawn in docs/states.md.

After each WELCOME the daemon's positions decide which submissions are sent again. No record is completed twice:
outcome numbers seen before are ignored, and a record keeps its first outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final

import msgpack

from client_stub.ack_window import AckWindow
from client_stub.client_identity import ClientIdentity
from client_stub.errors import DaemonRefused, DeliveryFailed, SidecarError, TopicLimit, error_for
from client_stub.frames import MESSAGE_BYTES_MAX
from client_stub.hot import unpack_outcomes
from client_stub.patience import Patience
from client_stub.session_effects import CloseSockets, Effect, OpenControl, OpenWorker
from client_stub.session_states import TRANSITIONS, SessionEvent, State
from client_stub.stream_table import StreamTable
from client_stub.submission import Submission, as_delivery_failure
from client_stub.wire import (
    SUBMISSION_BYTES_MAX,
    SUBMIT_HEAD_BYTES_MAX,
    Kind,
    LocalCode,
    OutcomeKind,
    SubmitFlag,
)

_ATTACHED: Final = State.ATTACHED
_FLUSH: Final = int(SubmitFlag.FLUSH)
_SUBMIT, _OUTCOMES, _ACCEPTED = int(Kind.SUBMIT), int(Kind.OUTCOMES), int(Kind.ACCEPTED)
_FAILED: Final = OutcomeKind.FAILED
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each message."""

ANSWER_TIMEOUT_MS: Final = 5_000.0
UNDER_WAY_PER_STREAM: Final = 2
PING_INTERVAL_MS: Final = 10_000.0
PINGS_UNANSWERED_MAX: Final = 2
"""After so many unanswered pings without any traffic the next would not be answered either, so the connection is given
up.
"""
ACK_DELAY_MS: Final = 50.0
"""An ACK is sent with the next SUBMIT, after this time, or when one of the two limits below is reached. The outcome
ring of a client holds 252 KiB. A message for each acknowledgement would cost both sides more than everything else
about it.
"""
ACK_OUTCOMES_MAX: Final = 64
ACK_BYTES_MAX: Final = 32 << 10
FATAL_REFUSALS: Final = frozenset({"UNSUPPORTED_VERSION", "MALFORMED_FRAME"})
"""A new try would get the same answer. All other refusals (draining, no worker yet, table full) may pass."""


class Session:
    """One client identity and its streams. The io thread owns it; not thread-safe."""

    def __init__(
        self,
        *,
        name: str,
        pid: int,
        fork_generation: int,
        token: str | None,
        delivery_timeout_ms: float,
        hello_flags: int = 0,
    ) -> None:
        self.state = State.IDLE
        self.limits: dict[str, Any] = {}
        """The limits of the last WELCOME; the two attributes below are computed from them."""
        self.payload_bytes_max = MESSAGE_BYTES_MAX - SUBMIT_HEAD_BYTES_MAX
        """The largest payload in bytes of one SUBMIT that the worker reads."""
        self.submission_bytes = SUBMISSION_BYTES_MAX
        """The most payload bytes of records that share one SUBMIT, or the room of the worker's pool if that is less."""
        self.welcome_count = 0
        self.last_word = ""
        self.fatal: SidecarError | None = None
        self.effects: list[Effect] = []
        self.streams = StreamTable()
        self.has_new_fates = False
        """Whether a record got its outcome, even if its submission is not complete. The io thread notifies callers and
        resets this.
        """
        self.refused_topics: list[tuple[str, SidecarError]] = []
        self._pack: Callable[[list[Any]], bytes] = msgpack.Packer().pack
        """One packer for all messages, as ``packb`` would allocate a buffer for each."""
        self._identity = ClientIdentity(
            name=name, pid=pid, fork_generation=fork_generation, token=token, hello_flags=hello_flags
        )
        self._delivery_timeout_ms = delivery_timeout_ms
        self._worker_epoch = 0
        self._credit_bytes = 0
        self._accepted_bytes = 0
        self._sent_bytes = 0
        self._outcomes_seen = 0
        self._acked = 0
        self._unacked_bytes = 0
        self._ack_at_ms: float | None = None
        self._ack_is_due = self._draining = False
        self._deadline_ms = 0.0
        self._patience = Patience()
        self.ping_at_ms = 0.0
        """``ping_due`` returns None before this time."""
        self._pings_unanswered = 0
        self._refusals = 0

    # --- what the caller's side brings --------------------------------------------------------------

    def wake(self, now_ms: float) -> None:
        """Connect if nothing was begun yet, as there is something to send."""
        if self.state is State.IDLE:
            self._hello(SessionEvent.WAKE, now_ms)

    def add(self, submissions: Iterable[Submission], now_ms: float) -> None:
        """Take over sealed submissions, in order."""
        for submission in submissions:
            submission.queued_ms = now_ms
            if self.fatal is not None:
                submission.fail(as_delivery_failure(self.fatal))
                self.streams.finish(submission)
            else:
                self.streams.add(submission)

    def wants(self, topic: str) -> bool:
        """True when a submission of ``topic`` could be sent now; otherwise it should continue to fill."""
        if self.state is not _ATTACHED or self._draining:
            return self.state is State.CLOSED
        window = self.streams.by_topic.get(topic)
        if window is None:
            return True
        # Two submissions under way keep the worker busy; a third would only be smaller (as in Nagle's algorithm).
        return not window.held and window.sent_count == len(window.queue) < UNDER_WAY_PER_STREAM

    def request_flush(self) -> None:
        self.streams.request_flush(self.streams.by_number.values())

    def cancel(self, error_of: Callable[[bool], DeliveryFailed]) -> list[Any] | None:
        """Fail everything undecided; ``error_of(sent)`` makes each error. Returns the frames of BYE, or None without a
        worker.
        """
        attached = self.state is _ATTACHED
        for window in self.streams:
            self.streams.fail(window, error_of)
        self._move(SessionEvent.CLOSE)
        return [self._pack([Kind.BYE, True])] if attached else None

    def bye(self) -> list[Any] | None:
        """Leave when nothing is undecided. Returns the frames of BYE, or None without a worker."""
        attached = self.state is _ATTACHED
        self._move(SessionEvent.CLOSE)
        return [self._pack([Kind.BYE, False])] if attached else None

    # --- what goes to the worker --------------------------------------------------------------------

    def next_frames(self) -> list[Any] | None:
        """The next message for the worker; None when nothing can or need be sent. The caller must send it."""
        if self.state is not _ATTACHED:
            return None
        streams = self.streams
        if streams.turns and not self._draining:
            frames = self._submit()
            if frames is not None:
                return frames
        if streams.flushing:
            flush = streams.next_flush()
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
            return [self._pack([Kind.ACK, self._take_ack()])]
        return None

    def _submit(self) -> list[Any] | None:
        """The SUBMIT whose turn it is; None when there is none or no credit for it."""
        while True:
            turn = self.streams.next_to_send()
            if turn is None:
                return None
            window, submission = turn
            if submission.payload_bytes <= self.payload_bytes_max:
                break
            # The worker would end the connection because of it, receive it again, and so on without end. Callers
            # cannot queue larger ones; this handles those that they queued under the limits of an earlier daemon.
            text = (
                f"{submission.payload_bytes} bytes of {submission.topic} are more than the {self.payload_bytes_max} "
                "that the daemon reads in one message."
            )
            self.streams.fail_next(window, error_for(LocalCode.RECORD_TOO_LARGE, text))
        under_way = self._accepted_bytes + self._sent_bytes
        # A submission larger than the whole window may be sent when nothing else is under way.
        alone = not self._sent_bytes and self._accepted_bytes < self._credit_bytes
        if not alone and under_way + submission.payload_bytes > self._credit_bytes:
            return None
        submission.sent = True
        window.sent_count += 1
        self.streams.pass_turn(window)
        self._sent_bytes += submission.payload_bytes
        flags = submission.flags
        if self.streams.flushing and self.streams.flush_goes_with(window, submission):
            flags |= _FLUSH
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
            self._take_ack(),
        ]
        return [self._pack(header), submission.payload()]

    def _take_ack(self) -> int:
        """The outcome number up to which the present message acknowledges."""
        self._acked, self._unacked_bytes, self._ack_is_due = self._outcomes_seen, 0, False
        return self._acked

    # --- what the sockets bring ---------------------------------------------------------------------

    def receive_control(self, frames: list[bytes], now_ms: float, *, key_is_replaced: bool = False) -> None:
        """As ``receive_worker``, from the control endpoint. ``key_is_replaced``: this connection has an earlier key."""
        message = _unpack(frames)
        if self.state is not State.HELLO:
            return
        if message[0] == Kind.ASSIGNED:
            _, endpoint, worker_epoch, ticket = message[:4]
            if not isinstance(endpoint, str):
                raise ValueError("ASSIGNED does not name a worker's endpoint")
            self._worker_epoch = worker_epoch
            self._move(SessionEvent.ASSIGNED)
            self._deadline_ms = now_ms + ANSWER_TIMEOUT_MS
            attach = self._identity.attach(worker_epoch, ticket)
            self.effects.append(OpenWorker(endpoint, [self._pack(attach)]))
        elif message[0] == Kind.REFUSED:
            self._refused(str(message[1]), str(message[2]), now_ms, key_is_replaced=key_is_replaced)

    def receive_worker(self, frames: list[bytes], now_ms: float) -> None:
        """Handle a message from the worker. Raises ValueError for a message that our daemon does not send."""
        self._pings_unanswered = 0
        message = _unpack(frames)
        kind = message[0]
        if self.state is _ATTACHED and kind == _OUTCOMES:
            if len(message) > 3:
                self._accepted(message[3], message[4])
            self._outcomes(frames[1], message[2])
        elif self.state is _ATTACHED and kind == _ACCEPTED:
            self._accepted(message[1], message[2])
        elif kind == Kind.WELCOME and self.state is State.ATTACH:
            self._welcome(message, now_ms)
        elif kind == Kind.REFUSED and self.state in (State.ATTACH, _ATTACHED):
            stream = message[3] if len(message) > 3 else None
            if stream is not None:
                self._refuse_stream(stream, str(message[1]), str(message[2]))
            else:
                self._refused(str(message[1]), str(message[2]), now_ms)
        elif kind == Kind.HELLO_AGAIN and self.state in (State.ATTACH, _ATTACHED):
            self._away("the worker asked for a new HELLO", now_ms, at_once=self.state is _ATTACHED)
        elif self.state is _ATTACHED:
            self._order(kind, message)

    def _order(self, kind: int, message: list[Any]) -> None:
        """Handle HOLD, RESEND and RESUME, by which the worker directs the sending."""
        if kind in (Kind.HOLD, Kind.RESEND, Kind.RESUME):
            window = self.streams.by_number.get(message[1])
            if window is not None:
                reason = str(message[3]) if len(message) > 3 else ""
                held = kind == Kind.HOLD
                self._sent_bytes -= self.streams.resend(window, message[2], held=held, reason=reason)
        elif kind == Kind.DRAINING:
            self._draining = True
            self.last_word = str(message[1])
            if len(message) > 2:
                self._last_positions(message[2])

    def _last_positions(self, streams: list[tuple[int, int]]) -> None:
        """Handle the worker's last message: it will never take anything beyond these positions.

        Everything after them therefore counts as never sent, and survives a successor that does not know this client.
        """
        positions = dict(streams)
        for window in self.streams:
            self._accept(window, positions.get(window.number, 0))
            self._sent_bytes -= window.rewind(0)
            window.not_taken()

    def lost(self, reason: str, now_ms: float) -> None:
        """A socket failed, or could not be connected."""
        if self.state in (State.HELLO, State.ATTACH, _ATTACHED):
            self._away(reason, now_ms, at_once=self.state is _ATTACHED)

    def tick(self, now_ms: float) -> None:
        """Handle elapsed time: answers that did not come, the end of a backoff, records that waited too long."""
        if self._patience.attached_at_ms is not None:
            self._patience.tick(now_ms)
        if self._ack_at_ms is not None and now_ms >= self._ack_at_ms:
            self._ack_at_ms, self._ack_is_due = None, True
        if self.state is _ATTACHED:
            return  # there is a worker, though nothing has come from it yet
        if self.state in (State.HELLO, State.ATTACH) and now_ms >= self._deadline_ms:
            self._away(f"no answer within {ANSWER_TIMEOUT_MS / 1e3:.0f} s", now_ms, at_once=False)
        elif self.state is State.BACKOFF and now_ms >= self._deadline_ms:
            self._hello(SessionEvent.PAUSE_OVER, now_ms)
        away_since_ms = self._patience.away_since_ms
        if away_since_ms is not None and now_ms - away_since_ms > self._delivery_timeout_ms:
            self._give_up_on_the_old(now_ms)

    def _give_up_on_the_old(self, now_ms: float) -> None:
        """Fail all that was sent and all that has waited for delivery_timeout_ms, as no worker was there for that
        long.
        """
        oldest_ms = now_ms - self._delivery_timeout_ms
        if not self.streams.has_older(oldest_ms):
            return
        text = f"No daemon for {self._delivery_timeout_ms:.0f} ms (delivery_timeout_ms): {self.last_word}."
        self._forget(text, older_than_ms=oldest_ms)
        self._identity.renew()
        if self.state is State.ATTACH:  # its WELCOME would be for the client id that was given up
            self._away(self.last_word, now_ms, at_once=True)

    def ping_due(self, now_ms: float, *, is_moving: bool) -> list[Any] | None:
        """The frames of PING when it is due, else None.

        ``is_moving``: the connection would show if its far end is gone, or the far end takes our bytes. Otherwise two
        unanswered pings end the connection. The caller passes all messages read so far to the session before this
        call.
        """
        if self.state is not _ATTACHED or now_ms < self.ping_at_ms:
            return None
        if is_moving:
            self._pings_unanswered = 0
        elif self._pings_unanswered >= PINGS_UNANSWERED_MAX:
            seconds = PINGS_UNANSWERED_MAX * PING_INTERVAL_MS / 1e3
            self._away(f"the daemon has answered nothing for {seconds:g} s", now_ms, at_once=True)
            return None
        self._pings_unanswered += 1
        self.ping_at_ms = now_ms + PING_INTERVAL_MS
        return [self._pack([Kind.PING])]

    def next_wakeup_ms(self, now_ms: float) -> float | None:
        """When ``tick`` or ``ping_due`` should be called next; None: only when something happens."""
        if self.state is _ATTACHED:
            if self._acked == self._outcomes_seen:
                self._ack_at_ms = None
            elif self._ack_at_ms is None:
                self._ack_at_ms = now_ms + ACK_DELAY_MS
            return self.ping_at_ms if self._ack_at_ms is None else min(self.ping_at_ms, self._ack_at_ms)
        return self._deadline_ms if self.state in (State.HELLO, State.ATTACH, State.BACKOFF) else None

    @property
    def undecided(self) -> bool:
        return self.streams.undecided

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    # --- transitions --------------------------------------------------------------------------------

    def _move(self, event: SessionEvent) -> None:
        self.state = TRANSITIONS[self.state][event]

    def _hello(self, event: SessionEvent, now_ms: float) -> None:
        self._move(event)
        self._deadline_ms = now_ms + ANSWER_TIMEOUT_MS
        self._patience.went_away(now_ms)
        self.effects.append(OpenControl([self._pack(self._identity.hello())]))

    def _welcome(self, message: list[Any], now_ms: float) -> None:
        _, worker_epoch, secret, known, credit_bytes, limits, streams = message[:7]
        if self._identity.secret is not None and not known:
            self._forget("The daemon no longer knows this client (it was restarted, or the client was away).")
        self._worker_epoch = worker_epoch
        self._identity.secret = secret
        self.limits = dict(limits)
        limit = self.limits.get("message_bytes")
        self.payload_bytes_max = (
            limit if isinstance(limit, int) else MESSAGE_BYTES_MAX
        ) - SUBMIT_HEAD_BYTES_MAX
        limit = self.limits.get("submission_bytes")
        self.submission_bytes = SUBMISSION_BYTES_MAX
        if isinstance(limit, int) and limit > 0:
            self.submission_bytes = min(limit, SUBMISSION_BYTES_MAX)
        self._credit_bytes = credit_bytes
        self._accepted_bytes = self._sent_bytes = 0
        # The earlier worker may not have noted our last ACK, so it is sent again.
        self._acked = 0
        self._draining = False
        self._move(SessionEvent.WELCOME)
        self.welcome_count += 1
        self.last_word = ""
        self._patience.attached(now_ms)
        self._refusals = 0
        self.ping_at_ms, self._pings_unanswered = now_ms + PING_INTERVAL_MS, 0
        self.streams.resume({stream: (position, bool(held)) for stream, _topic, position, held in streams})

    def _away(self, reason: str, now_ms: float, *, at_once: bool) -> None:
        self._patience.went_away(now_ms)
        self.effects.append(CloseSockets())
        self.last_word = reason
        self._move(SessionEvent.AWAY)
        self._deadline_ms = now_ms + self._patience.next_wait_ms(at_once=at_once)

    def _refused(self, code: str, text: str, now_ms: float, *, key_is_replaced: bool = False) -> None:
        if code == "NOT_ADMITTED" and self.state is State.ATTACH:
            # A WELCOME was lost together with its secret, or the daemon's records differ: try again with a new client
            # id.
            self._refusals += 1
            self._forget("The daemon no longer knows this client.")
            self._identity.renew()
            fatal = self._refusals > 3
        elif code == "NOT_ADMITTED" and key_is_replaced:
            fatal = False  # the daemon has dropped the earlier key; the next connection has the new one
        else:
            fatal = code in FATAL_REFUSALS or (code == "NOT_ADMITTED" and self.state is State.HELLO)
        if not fatal:
            self._away(text, now_ms, at_once=False)
            return
        self.fatal = DaemonRefused(f"The daemon refused this client: {text}", name=code)
        self.last_word = text
        self.effects.append(CloseSockets())
        self._move(SessionEvent.FATAL)
        for window in self.streams:
            self.streams.fail(window, lambda sent: as_delivery_failure(self.fatal, maybe=sent))

    def _refuse_stream(self, number: int, code: str, text: str) -> None:
        window = self.streams.by_number.get(number)
        if window is None:
            return
        error = TopicLimit(f"The daemon refused topic {window.topic}: {text}", name=code)
        self.refused_topics.append((window.topic, error))
        self.streams.hold_reasons.pop(window.topic, None)
        self._sent_bytes -= window.rewind(0)
        self.streams.fail(window, lambda sent: as_delivery_failure(error))

    def _forget(self, text: str, *, older_than_ms: float = -inf) -> None:
        """The daemon no longer knows this client: fail all that it may have received as possibly persisted.

        Submissions that were never sent stay and get new numbers, unless they have waited since before
        ``older_than_ms``.
        """
        self._outcomes_seen = self._acked = 0
        for window in self.streams:
            self.streams.restart(window, text, older_than_ms=older_than_ms)

    # --- acceptance and outcomes --------------------------------------------------------------------

    def _accepted(self, credit_bytes: int, positions: list[list[int]]) -> None:
        self._credit_bytes = credit_bytes
        for number, up_to_seq in positions:
            window = self.streams.by_number.get(number)
            if window is not None:
                self._accept(window, up_to_seq)

    def _accept(self, window: AckWindow, up_to_seq: int) -> None:
        sent_before = window.sent_count
        news = window.accept(up_to_seq)
        if news:
            self._patience.progressed()
        for submission in news[:sent_before]:
            self._sent_bytes -= submission.payload_bytes
            self._accepted_bytes += submission.payload_bytes
        self.streams.released.extend(news)

    def _outcomes(self, data: bytes, last_number: int) -> None:
        seen = self._outcomes_seen
        for outcome in unpack_outcomes(data):
            if outcome.number <= seen:
                continue
            if outcome.kind == _FAILED:
                self._ack_is_due = True  # the daemon keeps a failed record until it is acknowledged
            window = self.streams.by_number.get(outcome.stream)
            if window is not None:
                submission = window.apply(outcome)
                if submission is not None:
                    self.streams.finished.append(submission)
        if last_number > seen:
            self._outcomes_seen = last_number
            self._patience.progressed()
        self._unacked_bytes += len(data)
        self.has_new_fates = True


def _unpack(frames: list[bytes]) -> list[Any]:
    message = msgpack.unpackb(frames[0])
    if not isinstance(message, list) or not message:
        raise ValueError("a message is not a msgpack array")
    return message
