"""Goal: a session is renewed in time, never with a request outstanding, and never without need; by a manual clock."""

from __future__ import annotations

import itertools
import random
from math import inf

import pytest

from sidecar.protocol.sasl.session import (
    RENEWAL_MS_MIN,
    SESSION_MS_MAX,
    TRANSITIONS,
    LoginEvent,
    LoginState,
    SaslSession,
)


def test_it_is_renewed_in_the_window() -> None:
    for chance in (0.0, 0.5, 0.999):
        session = SaslSession(10_000, 1_000, lambda chance=chance: chance)  # type: ignore[misc]
        assert 9_500 <= session.due_at_ms <= 10_500
        assert session.next_due_ms(1_000) == session.due_at_ms
        assert not session.poll(session.due_at_ms - 1, 0, is_renewable=True)
        assert session.poll(session.due_at_ms, 0, is_renewable=True)
        assert session.is_holding
        session.renewed(10_000, 10_000)
        assert not session.is_holding and 18_500 <= session.due_at_ms <= 19_500


def test_answers_come_first() -> None:
    session = SaslSession(10_000, 0, lambda: 0.0)
    assert not session.poll(8_500, 3, is_renewable=True)
    assert session.is_holding, "new requests wait"
    assert session.next_due_ms(8_500) == inf, "an answer will say"
    assert not session.poll(9_000, 1, is_renewable=True)
    assert session.poll(9_001, 0, is_renewable=True)
    assert not session.poll(9_002, 0, is_renewable=True), "once"


def test_a_token_that_ends_with_the_session_is_waited_for_without_holding() -> None:
    session = SaslSession(10_000, 0, lambda: 0.0)
    assert not session.poll(8_500, 0, is_renewable=False)
    assert not session.is_holding and session.state is LoginState.WANTING
    assert session.next_due_ms(8_500) == 10_000
    assert not session.is_over(9_999)
    assert session.poll(9_500, 0, is_renewable=True)
    assert not session.is_over(20_000)
    late = SaslSession(10_000, 0, lambda: 0.0)
    late.poll(8_500, 0, is_renewable=False)
    assert late.is_over(10_000)
    assert late.next_due_ms(10_000) == inf


@pytest.mark.parametrize("lifetime_ms", [0, -5])
def test_without_a_limit_nothing_is_ever_due(lifetime_ms: int) -> None:
    session = SaslSession(lifetime_ms, 0, lambda: 0.0)
    assert session.next_due_ms(1e15) == inf
    assert not session.poll(1e15, 0, is_renewable=True) and not session.is_holding
    session = SaslSession(10_000, 0, lambda: 0.0)
    session.poll(9_000, 0, is_renewable=True)
    session.renewed(0, 9_000)  # switched off at the broker since
    assert not session.poll(1e15, 0, is_renewable=True) and not session.is_holding


def test_long_lives_by_chance() -> None:
    """Rules of any life: no login while something is in flight, none twice, requests wait only between."""
    for seed in range(200):
        chance = random.Random(seed)
        now_ms, in_flight, logins = 0.0, 0, 0
        session = SaslSession(10_000, 0, chance.random)
        while now_ms < 200_000:
            now_ms += chance.random() * 200
            if session.is_holding:
                in_flight = max(0, in_flight - chance.randrange(2))
            else:
                in_flight = max(0, in_flight + chance.randrange(-2, 3))
            if session.state is LoginState.RENEWING:
                if chance.random() < 0.3:
                    session.renewed(10_000, now_ms)
                continue
            if session.poll(now_ms, in_flight, is_renewable=chance.random() < 0.8):
                assert in_flight == 0, seed
                logins += 1
        assert 15 <= logins <= 24, seed


def test_the_table_has_every_state_and_event() -> None:
    assert TRANSITIONS.keys() == set(LoginState)
    assert {event for row in TRANSITIONS.values() for event in row} == set(LoginEvent)
    reached = {LoginState.OPEN, *itertools.chain.from_iterable(row.values() for row in TRANSITIONS.values())}
    assert reached == set(LoginState)


def test_a_broker_of_tiny_sessions_gets_a_login_a_second_and_no_more() -> None:
    """KIP-368: no renewal is taken sooner than a second after the last. Found with a broker that said 1 ms."""
    for lifetime_ms in (1, 999, RENEWAL_MS_MIN):
        session = SaslSession(lifetime_ms, 0, lambda: 0.0)
        now_ms, logins = 0.0, 0
        while now_ms < 60_000:
            if session.poll(now_ms, 0, is_renewable=True):
                logins += 1
                session.renewed(lifetime_ms, now_ms)
            now_ms += 1
        assert logins == 59
    assert SaslSession(RENEWAL_MS_MIN * 2, 0, lambda: 0.0).due_at_ms > RENEWAL_MS_MIN, (
        "longer ones in their window"
    )


def test_a_tiny_session_that_no_newer_token_renews_is_over_when_the_broker_says_so() -> None:
    session = SaslSession(1, 0, lambda: 0.0)
    assert not session.poll(RENEWAL_MS_MIN, 0, is_renewable=False)
    assert session.is_over(RENEWAL_MS_MIN)


def test_a_session_without_a_sensible_end_is_renewed_within_a_year() -> None:
    for lifetime_ms in (SESSION_MS_MAX, SESSION_MS_MAX + 1, float(2**63)):
        session = SaslSession(lifetime_ms, 0, lambda: 1.0)
        assert session.ends_at_ms == SESSION_MS_MAX and session.due_at_ms < SESSION_MS_MAX
