"""Goal: each "no" of a daemon lasts as long as its cause, and a record that fails of it names it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import msgpack
import pytest

import sidecar
from client_stub.compat.kafka_error import KafkaError, error_of
from client_stub.contract.wire import Kind, LocalCode
from client_stub.errors import DaemonLost, DaemonRefused, InvalidTopic, TopicLimit
from client_stub.session.backoff import BACKOFF_MAX_MS, REFUSED_FIRST_MS, REFUSED_MAX_MS
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.effects import OpenControl
from client_stub.session.refusals import REFUSALS, Lasts, lasts, refusal_error
from client_stub.session.session import Session
from client_stub.session.states import State
from tests.stub.session.test_session import Harness

ORDERS_ONLY = frozenset({"NOT_PAUSED"})
"""Codes that only the command line gets."""
CLIENTS = [name for name, row in REFUSALS.items() if row.outcome in (None, LocalCode.NOT_ADMITTED)]
TOPICS = [name for name in REFUSALS if name not in CLIENTS]


def test_every_code_that_the_daemon_sends_has_its_row() -> None:
    """A code without a row would last for a moment, whatever its cause."""
    sources = "\n".join(path.read_text() for path in Path(sidecar.__file__).parent.rglob("*.py"))
    sent = set(re.findall(r'Refused\(\s*"(\w+)"', sources))
    sent |= set(re.findall(r'Kind\.REFUSED, "(\w+)"', sources))
    sent |= set(re.findall(r'_refuse\(session, stream_id, "(\w+)"', sources))
    sent |= set(re.findall(r'super\(\).__init__\("([A-Z_]+)"', sources))
    from sidecar.controller.cluster.cluster import _REFUSALS

    sent |= set(_REFUSALS.values())
    assert len(sent) > 15
    assert sent - ORDERS_ONLY <= REFUSALS.keys()


def refused(code: str) -> list[bytes]:
    return [msgpack.packb([Kind.REFUSED, code, f"because of {code}", None])]


def new_session() -> Session:
    identity = ClientIdentity(name="x", pid=1, fork_generation=0, token=None)
    session = Session(identity, delivery_timeout_ms=1e9)
    session.wake(0)
    session.attachment.take_effects()
    return session


@pytest.mark.parametrize("code", [*CLIENTS, "OF_A_LATER_DAEMON"])
def test_a_producer_that_was_never_attached_fails_at_once_unless_it_passes_in_a_moment(code: str) -> None:
    session = new_session()
    session.receive_control(refused(code), 0)
    if lasts(code) is Lasts.A_MOMENT:
        assert session.attachment.state is State.BACKOFF and session.due_ms <= 1.2 * BACKOFF_MAX_MS
        return
    assert session.wants("a"), "a record that comes now fails, and does not wait to fill a message"
    assert isinstance(session.attachment.fatal, DaemonRefused)
    assert session.attachment.fatal.name == code and f"because of {code}" in str(session.attachment.fatal)
    assert session.attachment.fatal.code == LocalCode.NOT_ADMITTED and not session.attachment.fatal.retriable
    if lasts(code) is Lasts.THE_PROGRAM:
        assert session.attachment.state is State.CLOSED
        return
    assert session.attachment.state is State.BACKOFF and session.due_ms >= 0.8 * REFUSED_FIRST_MS
    session.attachment.take_effects()
    session.tick(session.due_ms)
    session.receive_control([msgpack.packb([Kind.ASSIGNED, "w", 1, b"t"])], 0)
    session.receive_worker([msgpack.packb([Kind.WELCOME, 1, b"s", False, 1 << 20, {}, []])], 0)
    assert session.attachment.fatal is None and session.attachment.state is State.ATTACHED, (
        "it was a passing mistake"
    )


@pytest.mark.parametrize("code", [*CLIENTS, "OF_A_LATER_DAEMON"])
@pytest.mark.parametrize("place", ["hello", "attached"])
def test_one_that_was_attached_asks_again_under_its_client_id(code: str, place: str) -> None:
    """Its records at the daemon get their true outcomes, and the others wait."""
    harness = Harness()
    run, session = harness.run, harness.session
    run.add()
    harness.drain()
    run.add()
    client_id = session.attachment._identity.hello()[2]
    if place == "attached":
        session.receive_worker(refused(code), run.now_ms)
    else:
        session.lost("cut", run.now_ms)
        session.tick(run.now_ms)
        session.attachment.take_effects()
        assert session.attachment.state is State.HELLO
        session.receive_control(refused(code), run.now_ms)
    session.attachment.take_effects()
    if lasts(code) is Lasts.THE_PROGRAM:
        assert session.attachment.state is State.CLOSED
        assert all(isinstance(told[0], DaemonRefused) for _, _, told in run.made)
        assert [told[0].persistence for _, _, told in run.made] == [1, 0]
        return
    run.attached = False
    assert session.attachment.state is State.BACKOFF and session.attachment.fatal is None
    wait_ms = session.due_ms - run.now_ms
    if lasts(code) is Lasts.THE_DAEMON:
        assert wait_ms >= 0.8 * REFUSED_FIRST_MS
    else:
        assert wait_ms <= 1.2 * BACKOFF_MAX_MS
    run.now_ms = session.due_ms
    session.tick(run.now_ms)
    (hello,) = session.attachment.effects
    assert isinstance(hello, OpenControl)
    assert msgpack.unpackb(hello.frames[0])[2] == client_id
    run.act()
    assert session.attachment.state is State.ATTACHED and not session.attachment.refusal
    run.finish()
    assert [told for _, _, told in run.made] == [[None], [None]]


def test_a_refused_producer_asks_again_after_1_to_30_s() -> None:
    harness = Harness()
    run, session = harness.run, harness.session
    session.receive_worker(refused("NOT_ALLOWED"), run.now_ms)
    waits_ms = []
    for _ in range(12):
        run.now_ms = session.due_ms
        session.tick(run.now_ms)
        session.receive_control(refused("NOT_ADMITTED"), run.now_ms)
        waits_ms.append(session.due_ms - run.now_ms)
    assert 0.8 * REFUSED_FIRST_MS <= waits_ms[0] <= 1.2 * REFUSED_FIRST_MS
    assert all(later >= earlier for earlier, later in pairwise(waits_ms[:4])), "it grows"
    assert all(0.8 * REFUSED_MAX_MS <= each <= 1.2 * REFUSED_MAX_MS for each in waits_ms[-4:])
    assert len(set(waits_ms)) == len(waits_ms), "a fleet does not come in step"


def test_records_that_wait_too_long_for_it_name_the_refusal() -> None:
    """They were DaemonLost, retriable, and a program sent them again for ever."""
    harness = Harness()
    run, session = harness.run, harness.session
    session.attachment.delivery_timeout_ms = 5_000
    run.add()
    harness.drain()
    run.add()
    session.receive_worker(refused("NOT_ALLOWED"), run.now_ms)
    while not run.made[-1][2]:
        run.now_ms += 500
        session.tick(run.now_ms)
        if any(isinstance(each, OpenControl) for each in session.attachment.take_effects()):
            session.receive_control(refused("NOT_ADMITTED"), run.now_ms)
        assert run.now_ms < 60_000
    sent, waiting = (told[0] for _, _, told in run.made)
    for error in (sent, waiting):
        assert isinstance(error, DaemonRefused) and not isinstance(error, DaemonLost)
        assert (error.code, error.name, error.retriable) == (LocalCode.NOT_ADMITTED, "NOT_ADMITTED", False)
        assert str(error) == (
            "The daemon refused this client for 5000 ms (delivery_timeout_ms): because of NOT_ADMITTED"
        )
    assert (sent.persistence, waiting.persistence) == (1, 0)
    assert session.attachment.fatal is None


@pytest.mark.parametrize("name", TOPICS)
def test_the_outcome_of_a_topics_refusal_has_its_code(name: str) -> None:
    error = refusal_error(name, "text")
    assert error.code == REFUSALS[name].outcome
    assert str(error) == "text" and not isinstance(error, DaemonLost)


def test_a_loop_that_sends_retriable_errors_again_ends_at_a_refusal() -> None:
    """confluent's twin gave _MSG_TIMED_OUT, which such programs send again."""
    for name, code, kind in (
        ("NOT_ADMITTED", KafkaError._AUTHENTICATION, DaemonRefused),
        ("TOO_MANY_STREAMS", KafkaError.POLICY_VIOLATION, TopicLimit),
        ("TOPIC_TABLE_FULL", KafkaError.POLICY_VIOLATION, TopicLimit),
        ("INVALID_TOPIC", KafkaError.TOPIC_EXCEPTION, InvalidTopic),
    ):
        error = refusal_error(name, "text")
        assert isinstance(error, kind)
        twin = error_of(error)
        assert (twin.code(), twin.retriable(), twin.str()) == (code, False, "text")


def test_a_barred_user_is_refused_after_the_second_try() -> None:
    """A daemon that just starts opens its socket to its group last."""
    session = new_session()
    session.lost("Permission denied: for a moment", 0, is_barred=True)
    assert session.attachment.state is State.BACKOFF and session.due_ms <= 50
    session.tick(session.due_ms)
    session.lost("Permission denied: group x", 50, is_barred=True)
    assert isinstance(session.attachment.fatal, DaemonRefused)
    assert (session.attachment.fatal.name, session.attachment.fatal.retriable) == ("NOT_PERMITTED", False)
    assert str(session.attachment.fatal) == "The daemon refused this client: Permission denied: group x"


def test_an_attached_producer_that_may_not_connect_any_more_asks_again() -> None:
    harness = Harness()
    run, session = harness.run, harness.session
    run.add()
    session.lost("cut", run.now_ms)
    session.tick(run.now_ms)
    session.attachment.take_effects()
    session.lost("Permission denied: group x", run.now_ms, is_barred=True)
    assert session.attachment.state is State.BACKOFF and session.attachment.refusal == "NOT_PERMITTED"
    assert session.due_ms - run.now_ms >= 0.8 * REFUSED_FIRST_MS
    run.now_ms = session.due_ms
    run.attached = False
    session.tick(run.now_ms)
    run.act()
    run.finish()
    assert [told for _, _, told in run.made] == [[None]]
