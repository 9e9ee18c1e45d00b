"""Attachment: how a client gets a worker and keeps it: HELLO, ATTACH, refusals, pauses and pings. Sans-IO.

Its states are a table: client_stub/session/states.py, drawn in docs/states.md. It knows no stream: what becomes of them
is returned to the session, and what becomes of the sockets is left in ``effects`` for the io thread.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final, NamedTuple

import msgpack

from client_stub.contract.wire import (
    PARTITIONERS,
    PARTITIONERS_SINCE,
    SUBMISSION_BYTES_MAX,
    SUBMIT_HEAD_BYTES_MAX,
    Kind,
)
from client_stub.errors import DeliveryFailed, SidecarError
from client_stub.outbox.submission import lost_error
from client_stub.session.backoff import Backoff
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.effects import (
    CloseSockets,
    Effect,
    FailStreams,
    OpenControl,
    OpenWorker,
    RestartStreams,
    ResumeStreams,
    StreamEffect,
)
from client_stub.session.refusals import Lasts, lasts, refusal_error
from client_stub.session.states import TRANSITIONS, SessionEvent, State
from client_stub.zmtp.frames import MESSAGE_BYTES_MAX

ANSWER_TIMEOUT_MS: Final = 5_000.0
PING_INTERVAL_MS: Final = 10_000.0
PINGS_UNANSWERED_MAX: Final = 2
"""After so many unanswered pings without any traffic the next would not be answered either, so the connection is given
up.
"""
REFUSED_TEXT: Final = "The daemon refused this client: {}"


class Standing(NamedTuple):
    """What callers may know of an attachment."""

    welcome_count: int
    limits: dict[str, Any]
    payload_bytes_max: int
    submission_bytes: int
    last_word: str
    is_refused: bool
    fatal: SidecarError | None


class Attachment:
    """The attachment of one client. Its ``Session`` owns it; the io thread carries out its effects."""

    def __init__(self, identity: ClientIdentity, *, delivery_timeout_ms: float, partitioner: int = 0) -> None:
        """``partitioner``: the number of the one by which this client partitions its keys."""
        self.state = State.IDLE
        self.due_ms = inf
        """When ``tick`` or ``ping_due`` may have something to do; inf: only when something happens."""
        self.limits: dict[str, Any] = {}
        """The limits of the last WELCOME; the two attributes below are computed from them."""
        self.payload_bytes_max = MESSAGE_BYTES_MAX - SUBMIT_HEAD_BYTES_MAX
        """The largest payload in bytes of one SUBMIT that the worker reads."""
        self.submission_bytes = SUBMISSION_BYTES_MAX
        """The most payload bytes of records that share one SUBMIT, or the capacity of the worker's pool if that is
        less.
        """
        self.welcome_count = 0
        self.last_word = ""
        self.refusal = ""
        """The code by which the daemon refuses this client until its configuration changes; empty while it does not."""
        self.fatal: SidecarError | None = None
        """Each record fails with this at once: the daemon has not taken this producer yet, or never will."""
        self.has_new_state = False
        """Whether ``take_standing`` would return something new."""
        self.effects: list[Effect] = []
        self.worker_epoch = 0
        self.ping_at_ms = 0.0
        """``ping_due`` returns None before this time."""
        self.pings_unanswered = 0
        """The session sets it to 0 at each message, as a call for each would cost more than the rest of this."""
        self.is_proven = True
        """False while the present connection has brought neither an acceptance nor an outcome: see ``progressed``."""
        self.pack: Callable[[list[Any]], bytes] = msgpack.Packer().pack
        """One packer for all messages, as ``packb`` would allocate a buffer for each."""
        self._identity = identity
        self._partitioner = partitioner
        self.delivery_timeout_ms = delivery_timeout_ms
        self._backoff = Backoff()
        self._refusals = 0
        self._was_barred = False
        """Whether the last connection was barred: a daemon that just starts opens its socket to its group last, so a
        new producer tries twice.
        """

    # --- what happens -------------------------------------------------------------------------------

    def wake(self, now_ms: float) -> None:
        """Connect if nothing was begun yet, as there is something to send."""
        if self.state is State.IDLE:
            self._hello(SessionEvent.WAKE, now_ms)

    def receive_control(
        self, frames: list[bytes], now_ms: float, *, key_is_replaced: bool = False
    ) -> list[StreamEffect]:
        """Handle a message from the control endpoint. ``key_is_replaced``: this connection has an earlier key. Raises
        ValueError for a message that our daemon does not send.
        """
        message = checked_message(msgpack.unpackb(frames[0]))
        if self.state is not State.HELLO:
            return []
        if message[0] == Kind.ASSIGNED:
            _, endpoint, worker_epoch, ticket = message[:4]
            if not isinstance(endpoint, str):
                raise ValueError("ASSIGNED does not name a worker's endpoint")
            self.worker_epoch = worker_epoch
            self._move(SessionEvent.ASSIGNED)
            self.due_ms = now_ms + ANSWER_TIMEOUT_MS
            attach = self._identity.attach(worker_epoch, ticket)
            self.effects.append(OpenWorker(endpoint, [self.pack(attach)]))
        elif message[0] == Kind.REFUSED:
            return self.refused(str(message[1]), str(message[2]), now_ms, key_is_replaced=key_is_replaced)
        return []

    def welcome(self, message: list[Any], now_ms: float) -> list[StreamEffect]:
        """Handle WELCOME, the worker's answer to ATTACH. ``attached`` must follow the session's part of it."""
        _, worker_epoch, secret, known, credit_bytes, limits, streams = message[:7]
        positions = {stream: (position, bool(held)) for stream, _topic, position, held in streams}
        self.limits = dict(limits)
        limit = self.limits.get("message_bytes")
        self.payload_bytes_max = (
            limit if isinstance(limit, int) else MESSAGE_BYTES_MAX
        ) - SUBMIT_HEAD_BYTES_MAX
        limit = self.limits.get("submission_bytes")
        self.submission_bytes = SUBMISSION_BYTES_MAX
        if isinstance(limit, int) and limit > 0:
            self.submission_bytes = min(limit, SUBMISSION_BYTES_MAX)
        partitioners = int(self.limits.get("partitioners", 0))
        was_forgotten = self._identity.secret is not None and not known
        effects: list[StreamEffect] = [RestartStreams(_forgotten)] if was_forgotten else []
        self.worker_epoch = worker_epoch
        self._identity.secret = secret
        if self._partitioner and not partitioners >> self._partitioner & 1:
            # Otherwise it would silently send the keys of these records to other partitions.
            text = (
                f"it is older than kafka-sidecar {PARTITIONERS_SINCE} and does not know the partitioner "
                f"{PARTITIONERS[self._partitioner - 1]}, by which this client partitions its keys: upgrade the daemon."
            )
            return effects + self.refused("UNSUPPORTED_VERSION", text, now_ms)
        self._move(SessionEvent.WELCOME)
        self.welcome_count += 1
        self.last_word = self.refusal = ""
        self.fatal = None
        self._refusals = 0
        self.due_ms = self.ping_at_ms = now_ms + PING_INTERVAL_MS
        self.pings_unanswered = 0
        return [*effects, ResumeStreams(credit_bytes, positions)]

    def attached(self, now_ms: float) -> None:
        """Note that the streams have continued after WELCOME: what WELCOME itself says is no progress."""
        self._backoff.attached(now_ms)
        self.is_proven = False

    def progressed(self) -> None:
        """Note that records were accepted, or outcomes arrived. Needed only while ``is_proven`` is False."""
        self._backoff.progressed()
        self.is_proven = True

    def refused(
        self, code: str, text: str, now_ms: float, *, key_is_replaced: bool = False
    ) -> list[StreamEffect]:
        """Handle a refusal of this client, by the controller or by the worker."""
        effects: list[StreamEffect] = []
        until = lasts(code)
        if code == "NOT_ADMITTED" and self.state is State.ATTACH:
            # A WELCOME was lost together with its secret, or the daemon's records differ: try again with a new client
            # id.
            self._refusals += 1
            effects.append(RestartStreams(_forgotten))
            self._identity.renew()
            if self._refusals <= 3:
                until = Lasts.A_MOMENT
        elif code == "NOT_ADMITTED" and key_is_replaced:
            # The daemon has dropped the earlier key; the next connection has the new one.
            until = Lasts.A_MOMENT
        if until is Lasts.A_MOMENT:
            self.away(text, now_ms)
            return effects
        if until is Lasts.THE_DAEMON:
            self.away(text, now_ms, refusal=code)
            if self.welcome_count:
                return effects  # its records wait
        else:
            self.last_word = text
            self.effects.append(CloseSockets())
            self._move(SessionEvent.FATAL)
        text = REFUSED_TEXT.format(text)
        self.fatal = refusal_error(code, text)
        return [*effects, FailStreams(lambda sent: refusal_error(code, text, maybe=sent))]

    def draining(self, reason: str) -> None:
        """Note that the worker takes nothing more; its outcomes still arrive."""
        self.last_word = reason
        self.has_new_state = True

    def lost(self, reason: str, now_ms: float, *, is_barred: bool = False) -> list[StreamEffect]:
        """A socket failed, or could not be connected. ``is_barred``: as this user or key may not connect."""
        if self.state not in (State.HELLO, State.ATTACH, State.ATTACHED):
            return []
        if is_barred and (self._was_barred or self.welcome_count):
            return self.refused("NOT_PERMITTED", reason, now_ms)
        self._was_barred = is_barred
        self.away(reason, now_ms, at_once=self.state is State.ATTACHED)
        return []

    def away(self, reason: str, now_ms: float, *, at_once: bool = False, refusal: str = "") -> None:
        """Leave the worker, and connect again after a pause; with ``at_once`` the first time without one."""
        self._backoff.went_away(now_ms)
        self.is_proven = True
        self.effects.append(CloseSockets())
        self.last_word, self.refusal = reason, refusal
        self.fatal = None
        self._move(SessionEvent.AWAY)
        self.due_ms = now_ms + self._backoff.next_wait_ms(at_once=at_once, is_refused=bool(refusal))

    def close(self, *, is_cancelled: bool) -> list[Any] | None:
        """Leave for good. Returns the frames of BYE, or None without a worker."""
        was_attached = self.state is State.ATTACHED
        self._move(SessionEvent.CLOSE)
        return [self.pack([Kind.BYE, is_cancelled])] if was_attached else None

    # --- what is due --------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Handle elapsed time without a worker: an answer that did not come, or the end of a pause."""
        if now_ms < self.due_ms:
            return
        if self.state in (State.HELLO, State.ATTACH):
            self.away(f"no answer within {ANSWER_TIMEOUT_MS / 1e3:.0f} s", now_ms)
        elif self.state is State.BACKOFF:
            self._hello(SessionEvent.PAUSE_OVER, now_ms)

    def is_away_too_long(self, now_ms: float) -> bool:
        """Whether no connection has been useful for delivery_timeout_ms."""
        away_since_ms = self._backoff.away_since_ms
        return away_since_ms is not None and now_ms - away_since_ms > self.delivery_timeout_ms

    def give_up(self, now_ms: float) -> list[StreamEffect]:
        """Fail all that was sent and all that has waited for delivery_timeout_ms, as no worker was there for that
        long. The client becomes another one.
        """
        refusal, waited_ms = self.refusal, f"{self.delivery_timeout_ms:.0f}"
        if refusal:
            text = (
                f"The daemon refused this client for {waited_ms} ms (delivery_timeout_ms): {self.last_word}"
            )
        else:
            text = f"No daemon for {waited_ms} ms (delivery_timeout_ms): {self.last_word}."

        def error_of(sent: bool) -> DeliveryFailed:
            return refusal_error(refusal, text, maybe=sent) if refusal else lost_error(text, maybe=sent)

        self._identity.renew()
        if self.state is State.ATTACH:  # its WELCOME would be for the client id that was given up
            self.away(self.last_word, now_ms, at_once=True)
        return [RestartStreams(error_of, now_ms - self.delivery_timeout_ms)]

    def ping_due(self, now_ms: float, *, is_moving: bool) -> list[Any] | None:
        """The frames of PING when it is due, else None.

        ``is_moving``: the connection would show if its far end is gone, or the far end takes our bytes. Otherwise two
        unanswered pings end the connection. The caller passes all messages read so far to the session before this
        call.
        """
        if self.state is not State.ATTACHED or now_ms < self.ping_at_ms:
            return None
        if is_moving:
            self.pings_unanswered = 0
        elif self.pings_unanswered >= PINGS_UNANSWERED_MAX:
            seconds = PINGS_UNANSWERED_MAX * PING_INTERVAL_MS / 1e3
            self.away(f"the daemon has answered nothing for {seconds:g} s", now_ms, at_once=True)
            return None
        self.pings_unanswered += 1
        self.ping_at_ms = now_ms + PING_INTERVAL_MS
        return [self.pack([Kind.PING])]

    # --- what the io thread takes -------------------------------------------------------------------

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def take_standing(self) -> Standing:
        self.has_new_state = False
        return Standing(
            self.welcome_count,
            self.limits,
            self.payload_bytes_max,
            self.submission_bytes,
            self.last_word,
            bool(self.refusal),
            self.fatal,
        )

    # --- transitions --------------------------------------------------------------------------------

    def _move(self, event: SessionEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        self.has_new_state = True
        if self.state is State.CLOSED:
            self.due_ms = inf

    def _hello(self, event: SessionEvent, now_ms: float) -> None:
        self._move(event)
        self.due_ms = now_ms + ANSWER_TIMEOUT_MS
        self._backoff.went_away(now_ms)
        self.effects.append(OpenControl([self.pack(self._identity.hello())]))


def _forgotten(sent: bool) -> DeliveryFailed:
    return lost_error(
        "The daemon no longer knows this client (it was restarted, or the client was away).", maybe=sent
    )


def checked_message(message: object) -> list[Any]:
    """``message`` as a list that is not empty. Raises ValueError."""
    if not isinstance(message, list) or not message:
        raise ValueError("a message is not a msgpack array")
    return message
