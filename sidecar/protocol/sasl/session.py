"""SaslSession: when a login has to be renewed on its own connection (KIP-368). Sans-IO.

A broker that limits sessions (connections.max.reauth.ms, or a token's end) ends the connection at the first request
after the limit. So the client logs in again before. No byte of that may lie between a request and its answer: new
requests are held, the outstanding answers come, the login runs, the held requests go out.
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
"""From one login to the next on a connection, however short a broker says its sessions are: brokers take no renewal
sooner (KIP-368)."""
SESSION_MS_MAX: Final = 365 * 86_400_000
"""A session that is said to last longer is renewed within a year."""


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
"""A login that fails moves nothing: the connection ends."""


class SaslSession:
    """The session of one connection. ``is_holding``: requests must wait now."""

    def __init__(self, lifetime_ms: float, now_ms: float, random: Callable[[], float]) -> None:
        """``lifetime_ms`` 0: the session ends with the connection, and nothing here is ever due."""
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
        """True, once, when the login should run now: it is due and nothing is in flight any more.

        ``is_renewable``: the credentials would outlive this session. While they do not, requests go on.
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
        """When ``poll`` should run though nothing happens; ``inf`` while an event will say."""
        if self.state is LoginState.OPEN:
            return self.due_at_ms
        return self.ends_at_ms if self.state is LoginState.WANTING and now_ms < self.ends_at_ms else inf

    def is_over(self, now_ms: float) -> bool:
        """The session ended without credentials for the next one: the broker takes no request any more."""
        return self.state is LoginState.WANTING and now_ms >= self.ends_at_ms

    def renewed(self, lifetime_ms: float, now_ms: float) -> None:
        """The broker has accepted the new login: requests may go out."""
        self._move(LoginEvent.RENEWED)
        self._begin(lifetime_ms, now_ms)

    def _move(self, event: LoginEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        self.is_holding = self.state in {LoginState.HOLDING, LoginState.RENEWING}
