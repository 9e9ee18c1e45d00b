"""Goal: a real session takes every step of its table, and no other."""

from __future__ import annotations

import ast
from collections.abc import Callable
from math import inf
from pathlib import Path

import msgpack
import pytest

import client_stub.session.attachment
import client_stub.session.session
from client_stub.contract.wire import Kind
from client_stub.session.backoff import BACKOFF_MAX_MS
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.effects import OpenControl
from client_stub.session.session import Session
from client_stub.session.states import TRANSITIONS, SessionEvent, State

LATE_MS = 60_000.0
"""Later than any answer or pause that a session waits for."""


def session() -> Session:
    return Session(
        ClientIdentity(name="app", pid=1, fork_generation=0, token=None), delivery_timeout_ms=120_000
    )


def control(it: Session, message: list[object]) -> None:
    it.receive_control([msgpack.packb(message)], 0.0)


def worker(it: Session, message: list[object]) -> None:
    it.receive_worker([msgpack.packb(message)], 0.0)


def refuse(it: Session, code: str) -> None:
    """By the control endpoint and by the worker: each is heard only while it is waited for."""
    control(it, [Kind.REFUSED, code, "no"])
    if it.attachment.state is not State.BACKOFF:
        worker(it, [Kind.REFUSED, code, "no"])


def pause_over(it: Session) -> None:
    if it.attachment.state is State.BACKOFF:  # elsewhere the same time would be an answer that never came
        it.tick(LATE_MS)
    else:
        it.tick(0.0)


EVENTS: dict[SessionEvent, tuple[Callable[[Session], object], ...]] = {
    SessionEvent.WAKE: (lambda it: it.wake(0.0),),
    SessionEvent.ASSIGNED: (lambda it: control(it, [Kind.ASSIGNED, "worker-0.sock", 1, b"ticket"]),),
    SessionEvent.WELCOME: (lambda it: worker(it, [Kind.WELCOME, 1, b"secret", False, 1 << 20, {}, []]),),
    SessionEvent.AWAY: (lambda it: it.lost("cut", 0.0), lambda it: refuse(it, "DRAINING")),
    SessionEvent.PAUSE_OVER: (pause_over,),
    SessionEvent.FATAL: (lambda it: refuse(it, "MALFORMED_FRAME"),),
    SessionEvent.CLOSE: (
        lambda it: it.bye(),
        lambda it: it.cancel(lambda _: pytest.fail("nothing is queued")),
    ),
}
WAYS: dict[State, tuple[SessionEvent, ...]] = {
    State.IDLE: (),
    State.HELLO: (SessionEvent.WAKE,),
    State.ATTACH: (SessionEvent.WAKE, SessionEvent.ASSIGNED),
    State.ATTACHED: (SessionEvent.WAKE, SessionEvent.ASSIGNED, SessionEvent.WELCOME),
    State.BACKOFF: (SessionEvent.WAKE, SessionEvent.AWAY),
    State.CLOSED: (SessionEvent.CLOSE,),
}


@pytest.mark.parametrize("event", SessionEvent)
@pytest.mark.parametrize("state", State)
def test_a_session_takes_the_step_of_the_table(state: State, event: SessionEvent) -> None:
    """A frame or a time that the table lacks for this state moves nothing, and is no error."""
    for way in EVENTS[event]:
        it = session()
        for step in WAYS[state]:
            EVENTS[step][0](it)
        assert it.attachment.state is state
        way(it)
        assert it.attachment.state is TRANSITIONS[state].get(event, state)


@pytest.mark.parametrize("state", [State.HELLO, State.ATTACH])
def test_an_answer_that_never_comes_is_a_step_away(state: State) -> None:
    it = session()
    for step in WAYS[state]:
        EVENTS[step][0](it)
    it.tick(LATE_MS)
    assert it.attachment.state is TRANSITIONS[state][SessionEvent.AWAY]
    assert it.due_ms < inf
    it.tick(LATE_MS + 2 * BACKOFF_MAX_MS)
    assert it.attachment.state is TRANSITIONS[State.BACKOFF][SessionEvent.PAUSE_OVER]


def test_nothing_but_the_table_changes_the_state() -> None:
    writes = [
        ast.unparse(node)
        for module in (client_stub.session.attachment, client_stub.session.session)
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, ast.Assign)
        and any(ast.unparse(target) == "self.state" for target in node.targets)
    ]
    assert sorted(writes) == ["self.state = State.IDLE", "self.state = TRANSITIONS[self.state][event]"]


def test_a_refusal_of_a_key_that_was_replaced_meanwhile_is_not_the_last_word() -> None:
    """The daemon's configuration has dropped the earlier key while its HELLO waited for a worker."""
    it = session()
    it.wake(0)
    refused = [msgpack.packb([Kind.REFUSED, "NOT_ADMITTED", "another key"])]
    it.receive_control(refused, 0, key_is_replaced=True)
    assert it.attachment.fatal is None and it.attachment.state is State.BACKOFF
    it.attachment.take_effects()
    it.tick(1_000.0)
    assert isinstance(it.attachment.take_effects()[-1], OpenControl)
    it.receive_control(refused, 1_000.0)
    assert it.attachment.fatal is not None
