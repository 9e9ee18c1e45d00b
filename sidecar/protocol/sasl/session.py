"""SaslSession: decides when a login must be renewed on its own connection (KIP-368). Sans-IO.

A broker that limits sessions (connections.max.reauth.ms, or a token's end) closes the connection at the first request
after the limit. So the client logs in again before. The exchange must not lie between a request and its answer: new
requests are held, outstanding answers arrive, the login runs, then the held requests are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from math import inf
from typing import Final

WINDOW_FIRST: Final = 0.85
WINDOW_WIDTH: Final = 0.10
"""A session is renewed after 85 to 95 % of its life (Kafka: SaslClientAuthenticator)."""
RENEWAL_MS_MIN: Final = 1_000.0
"""Minimum interval in ms between logins on a connection, however short a session is: brokers accept no earlier renewal
(KIP-368).
"""
SESSION_MS_MAX: Final = 365 * 86_400_000
"""A longer session is renewed after this many ms, a year."""


class LoginState(StrEnum):
    OPEN = "open"
    WANTING = "wanting"
    HOLDING = "holding"
    RENEWING = "renewing"


class LoginEvent(StrEnum):
    DUE = "due, credentials are there"
    LACKING = "due, credentials end with the session"
    ANSWERED = "nothing in flight"
    RENEWED = "broker accepted the login"


TRANSITIONS: Final[Mapping[LoginState, Mapping[LoginEvent, LoginState]]] = {
    LoginState.OPEN: {
        LoginEvent.DUE: LoginState.HOLDING,
        LoginEvent.LACKING: LoginState.WANTING,
    },
    LoginState.WANTING: {
        LoginEvent.DUE: LoginState.HOLDING,
        LoginEvent.LACKING: LoginState.WANTING,
    },
    LoginState.HOLDING: {LoginEvent.ANSWERED: LoginState.RENEWING},
    LoginState.RENEWING: {LoginEvent.RENEWED: LoginState.OPEN},
}
"""A failed login has no event: the connection ends."""


class SaslSession:
    """The session of one connection. ``is_holding``: requests must wait now."""

    def __init__(self, lifetime_ms: float, now_ms: float, random: Callable[[], float]) -> None:
        """``lifetime_ms`` 0: the session lasts as long as the connection, and is never due."""
        self._random = random
        self.state = LoginState.OPEN
        self.is_holding = False
        self.due_at_ms = inf
        self.ends_at_ms = inf
        self._begin(lifetime_ms, now_ms)

    def _begin(self, lifetime_ms: float, now_ms: float) -> None:
        if lifetime_ms > 0:
            lifetime_ms = min(lifetime_ms, SESSION_MS_MAX)
            self.ends_at_ms = now_ms + lifetime_ms
            part_ms = lifetime_ms * (WINDOW_FIRST + WINDOW_WIDTH * self._random())
            self.due_at_ms = now_ms + max(part_ms, RENEWAL_MS_MIN)
        else:
            self.ends_at_ms = self.due_at_ms = inf

    def poll(self, now_ms: float, in_flight: int, *, is_renewable: bool) -> bool:
        """True, once, if the login should run now: it is due and nothing is in flight.

        ``is_renewable``: the credentials would outlive this session. If not, requests continue meanwhile.
        """
        if self.state in {LoginState.OPEN, LoginState.WANTING}:
            if now_ms < self.due_at_ms:
                return False
            self._move(LoginEvent.DUE if is_renewable else LoginEvent.LACKING)
        if self.state is LoginState.HOLDING and not in_flight:
            self._move(LoginEvent.ANSWERED)
            return True
        return False

    def next_due_ms(self, now_ms: float) -> float:
        """When ``poll`` should run without an event, monotonic ms; ``inf`` if an event will follow."""
        if self.state is LoginState.OPEN:
            return self.due_at_ms
        return self.ends_at_ms if self.state is LoginState.WANTING and now_ms < self.ends_at_ms else inf

    def is_over(self, now_ms: float) -> bool:
        """True if the session ended without credentials for the next one: the broker accepts no more requests."""
        return self.state is LoginState.WANTING and now_ms >= self.ends_at_ms

    def renewed(self, lifetime_ms: float, now_ms: float) -> None:
        """Begin a new session after the broker accepted the login: requests may be sent."""
        self._move(LoginEvent.RENEWED)
        self._begin(lifetime_ms, now_ms)

    def _move(self, event: LoginEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        self.is_holding = self.state in {LoginState.HOLDING, LoginState.RENEWING}
