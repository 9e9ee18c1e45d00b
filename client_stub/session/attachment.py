"""Attachment: how a client gets a worker and keeps it: HELLO, ATTACH, refusals, pauses and pings. Sans-IO.

Its states are a table: client_stub/session/states.py, drawn in docs/states.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any, Final

import msgpack

from client_stub.contract.wire import (
    PARTITIONER_MASK,
    PARTITIONER_SHIFT,
    PARTITIONERS,
    PARTITIONERS_SINCE,
    SUBMISSION_BYTES_MAX,
    SUBMIT_HEAD_BYTES_MAX,
    Kind,
)
from client_stub.errors import DeliveryFailed, SidecarError
from client_stub.outbox.submission import lost_error
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.effects import CloseSockets, Effect, OpenControl, OpenWorker
from client_stub.session.patience import Patience
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


class Attachment(ABC):
    """The attachment of one client. ``Session`` is built on it, has the client's streams, and calls it."""

    def __init__(self, identity: ClientIdentity, *, delivery_timeout_ms: float, placing: int = 0) -> None:
        self.state = State.IDLE
        self.due_ms = inf
        """When ``Session.tick`` or ``ping_due`` may have something to do; inf: only when something happens. While no
        worker is attached, ``tick`` should be called in every turn.
        """
        self.limits: dict[str, Any] = {}
        """The limits of the last WELCOME; the two attributes below are computed from them."""
        self.payload_bytes_max = MESSAGE_BYTES_MAX - SUBMIT_HEAD_BYTES_MAX
        """The largest payload in bytes of one SUBMIT that the worker reads."""
        self.submission_bytes = SUBMISSION_BYTES_MAX
        """The most payload bytes of records that share one SUBMIT, or the room of the worker's pool if that is less."""
        self.welcome_count = 0
        self.last_word = ""
        self.refusal = ""
        """The code by which the daemon refuses this client until its configuration changes; empty while it does not."""
        self.fatal: SidecarError | None = None
        """Each record fails with this at once: the daemon has not taken this producer yet, or never will."""
        self.has_new_state = False
        """Whether one of the attributes above, ``refused_topics`` or the state has changed. The io thread passes them
        on to the callers and resets this.
        """
        self.effects: list[Effect] = []
        self.ping_at_ms = 0.0
        """``ping_due`` returns None before this time."""
        self._pack: Callable[[list[Any]], bytes] = msgpack.Packer().pack
        """One packer for all messages, as ``packb`` would allocate a buffer for each."""
        self._identity = identity
        self._partitioner = placing >> PARTITIONER_SHIFT & PARTITIONER_MASK
        self._delivery_timeout_ms = delivery_timeout_ms
        self._worker_epoch = 0
        self._patience = Patience()
        self._pings_unanswered = 0
        self._refusals = 0
        self._was_barred = False
        """Whether the last connection was barred: a daemon that just starts opens its socket to its group last, so a
        new producer tries twice.
        """

    def wake(self, now_ms: float) -> None:
        """Connect if nothing was begun yet, as there is something to send."""
        if self.state is State.IDLE:
            self._hello(SessionEvent.WAKE, now_ms)

    def receive_control(self, frames: list[bytes], now_ms: float, *, key_is_replaced: bool = False) -> None:
        """Handle a message from the control endpoint. ``key_is_replaced``: this connection has an earlier key. Raises
        ValueError for a message that our daemon does not send.
        """
        message = checked_message(msgpack.unpackb(frames[0]))
        if self.state is not State.HELLO:
            return
        if message[0] == Kind.ASSIGNED:
            _, endpoint, worker_epoch, ticket = message[:4]
            if not isinstance(endpoint, str):
                raise ValueError("ASSIGNED does not name a worker's endpoint")
            self._worker_epoch = worker_epoch
            self._move(SessionEvent.ASSIGNED)
            self.due_ms = now_ms + ANSWER_TIMEOUT_MS
            attach = self._identity.attach(worker_epoch, ticket)
            self.effects.append(OpenWorker(endpoint, [self._pack(attach)]))
        elif message[0] == Kind.REFUSED:
            self._refused(str(message[1]), str(message[2]), now_ms, key_is_replaced=key_is_replaced)

    def lost(self, reason: str, now_ms: float, *, is_barred: bool = False) -> None:
        """A socket failed, or could not be connected. ``is_barred``: as this user or key may not connect."""
        if self.state not in (State.HELLO, State.ATTACH, State.ATTACHED):
            return
        if is_barred and (self._was_barred or self.welcome_count):
            self._refused("NOT_PERMITTED", reason, now_ms)
        else:
            self._was_barred = is_barred
            self._away(reason, now_ms, at_once=self.state is State.ATTACHED)

    def ping_due(self, now_ms: float, *, is_moving: bool) -> list[Any] | None:
        """The frames of PING when it is due, else None.

        ``is_moving``: the connection would show if its far end is gone, or the far end takes our bytes. Otherwise two
        unanswered pings end the connection. The caller passes all messages read so far to the session before this
        call.
        """
        if self.state is not State.ATTACHED or now_ms < self.ping_at_ms:
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

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    # --- transitions --------------------------------------------------------------------------------

    def _try_again(self, now_ms: float) -> None:
        """Handle elapsed time without a worker: an answer that did not come, the end of a pause, records that waited
        too long.
        """
        if self.state in (State.HELLO, State.ATTACH) and now_ms >= self.due_ms:
            self._away(f"no answer within {ANSWER_TIMEOUT_MS / 1e3:.0f} s", now_ms, at_once=False)
        elif self.state is State.BACKOFF and now_ms >= self.due_ms:
            self._hello(SessionEvent.PAUSE_OVER, now_ms)
        away_since_ms = self._patience.away_since_ms
        if away_since_ms is not None and now_ms - away_since_ms > self._delivery_timeout_ms:
            self._give_up_on_the_old(now_ms)

    def _give_up_on_the_old(self, now_ms: float) -> None:
        """Fail all that was sent and all that has waited for delivery_timeout_ms, as no worker was there for that
        long.
        """
        oldest_ms = now_ms - self._delivery_timeout_ms
        if not self._has_older(oldest_ms):
            return
        refusal, waited_ms = self.refusal, f"{self._delivery_timeout_ms:.0f}"
        if refusal:
            text = (
                f"The daemon refused this client for {waited_ms} ms (delivery_timeout_ms): {self.last_word}"
            )
            self._forget(lambda sent: refusal_error(refusal, text, maybe=sent), older_than_ms=oldest_ms)
        else:
            text = f"No daemon for {waited_ms} ms (delivery_timeout_ms): {self.last_word}."
            self._forget(lambda sent: lost_error(text, maybe=sent), older_than_ms=oldest_ms)
        self._identity.renew()
        if self.state is State.ATTACH:  # its WELCOME would be for the client id that was given up
            self._away(self.last_word, now_ms, at_once=True)

    def _move(self, event: SessionEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        self.has_new_state = True
        if self.state is State.CLOSED:
            self.due_ms = inf

    def _hello(self, event: SessionEvent, now_ms: float) -> None:
        self._move(event)
        self.due_ms = now_ms + ANSWER_TIMEOUT_MS
        self._patience.went_away(now_ms)
        self.effects.append(OpenControl([self._pack(self._identity.hello())]))

    def _welcome(self, message: list[Any], now_ms: float) -> None:
        _, worker_epoch, secret, known, credit_bytes, limits, streams = message[:7]
        if self._identity.secret is not None and not known:
            self._forget(_forgotten)
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
        if self._partitioner and not int(self.limits.get("partitioners", 0)) >> self._partitioner & 1:
            # It would place the keys of these records otherwise, without a word.
            text = (
                f"it is older than kafka-sidecar {PARTITIONERS_SINCE} and does not know the partitioner "
                f"{PARTITIONERS[self._partitioner - 1]}, by which this client places its keys: upgrade the daemon."
            )
            self._refused("UNSUPPORTED_VERSION", text, now_ms)
            return
        self._move(SessionEvent.WELCOME)
        self.welcome_count += 1
        self.last_word = self.refusal = ""
        self.fatal = None
        self._refusals = 0
        self.ping_at_ms, self._pings_unanswered = now_ms + PING_INTERVAL_MS, 0
        self._resume(
            credit_bytes,
            {stream: (position, bool(held)) for stream, _topic, position, held in streams},
            now_ms,
        )
        self._patience.attached(now_ms)  # last: what WELCOME itself says is no progress

    def _away(self, reason: str, now_ms: float, *, at_once: bool, refusal: str = "") -> None:
        self._patience.went_away(now_ms)
        self.effects.append(CloseSockets())
        self.last_word, self.refusal = reason, refusal
        self.fatal = None
        self._move(SessionEvent.AWAY)
        self.due_ms = now_ms + self._patience.next_wait_ms(at_once=at_once, is_refused=bool(refusal))

    def _refused(self, code: str, text: str, now_ms: float, *, key_is_replaced: bool = False) -> None:
        until = lasts(code)
        if code == "NOT_ADMITTED" and self.state is State.ATTACH:
            # A WELCOME was lost together with its secret, or the daemon's records differ: try again with a new client
            # id.
            self._refusals += 1
            self._forget(_forgotten)
            self._identity.renew()
            if self._refusals <= 3:
                until = Lasts.A_MOMENT
        elif code == "NOT_ADMITTED" and key_is_replaced:
            until = (
                Lasts.A_MOMENT
            )  # the daemon has dropped the earlier key; the next connection has the new one
        if until is Lasts.A_MOMENT:
            self._away(text, now_ms, at_once=False)
            return
        if until is Lasts.THE_DAEMON:
            self._away(text, now_ms, at_once=False, refusal=code)
            if self.welcome_count:
                return  # its records wait
        else:
            self.last_word = text
            self.effects.append(CloseSockets())
            self._move(SessionEvent.FATAL)
        text = REFUSED_TEXT.format(text)
        self.fatal = refusal_error(code, text)
        self._fail_all(lambda sent: refusal_error(code, text, maybe=sent))

    # --- what it asks of the streams ----------------------------------------------------------------

    @abstractmethod
    def _resume(self, credit_bytes: int, positions: dict[int, tuple[int, bool]], now_ms: float) -> None:
        """Continue at the worker that has sent WELCOME: stream → (its position there, whether it is held)."""

    @abstractmethod
    def _forget(self, error_of: Callable[[bool], DeliveryFailed], *, older_than_ms: float = -inf) -> None:
        """Fail all that a daemon may have received that no longer knows this client, and all that has waited since
        before ``older_than_ms``; ``error_of(sent)`` makes each error.
        """

    @abstractmethod
    def _has_older(self, than_ms: float) -> bool:
        """Whether an undecided submission has waited since before ``than_ms``."""

    @abstractmethod
    def _fail_all(self, error_of: Callable[[bool], DeliveryFailed]) -> None:
        """Fail everything undecided; ``error_of(sent)`` makes each error."""


def _forgotten(sent: bool) -> DeliveryFailed:
    return lost_error(
        "The daemon no longer knows this client (it was restarted, or the client was away).", maybe=sent
    )


def checked_message(message: object) -> list[Any]:
    """``message`` as a list that is not empty. Raises ValueError."""
    if not isinstance(message, list) or not message:
        raise ValueError("a message is not a msgpack array")
    return message
