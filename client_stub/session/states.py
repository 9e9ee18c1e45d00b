"""The states of a stub's session, and the events that change them (docs/states.md is printed from this table)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    IDLE = "idle"
    BACKOFF = "backoff"
    HELLO = "hello"
    ATTACH = "attach"
    ATTACHED = "attached"
    CLOSED = "closed"


class SessionEvent(StrEnum):
    WAKE = "there is something to send"
    ASSIGNED = "ASSIGNED names a worker"
    WELCOME = "WELCOME"
    AWAY = "socket lost, no answer, HELLO_AGAIN, or a refusal that may pass"
    PAUSE_OVER = "the pause is over"
    FATAL = "a refusal that lasts"
    CLOSE = "close() or cancel()"


TRANSITIONS: Final[Mapping[State, Mapping[SessionEvent, State]]] = {
    State.IDLE: {SessionEvent.WAKE: State.HELLO, SessionEvent.CLOSE: State.CLOSED},
    State.HELLO: {
        SessionEvent.ASSIGNED: State.ATTACH,
        SessionEvent.AWAY: State.BACKOFF,
        SessionEvent.FATAL: State.CLOSED,
        SessionEvent.CLOSE: State.CLOSED,
    },
    State.ATTACH: {
        SessionEvent.WELCOME: State.ATTACHED,
        SessionEvent.AWAY: State.BACKOFF,
        SessionEvent.FATAL: State.CLOSED,
        SessionEvent.CLOSE: State.CLOSED,
    },
    State.ATTACHED: {
        SessionEvent.AWAY: State.BACKOFF,
        SessionEvent.FATAL: State.CLOSED,
        SessionEvent.CLOSE: State.CLOSED,
    },
    State.BACKOFF: {SessionEvent.PAUSE_OVER: State.HELLO, SessionEvent.CLOSE: State.CLOSED},
    # A client that gives up after close() cancels a session that is already closed.
    State.CLOSED: {SessionEvent.CLOSE: State.CLOSED},
}
"""State × event → state. An event that a state lacks is a bug."""
