"""ConnectionStates: reconnect backoff, setup timeout and throttle by a manual clock (rules S5, S6)."""

from __future__ import annotations

import math

import pytest

from sidecar.common.backoff import ExponentialBackoff
from sidecar.protocol.connection_states import (
    ConnectionConfig,
    ConnectionStates,
)
from tests.configs import config_with
from tests.manual_clock import ManualClock


@pytest.fixture
def states() -> ConnectionStates:
    return ConnectionStates(config_with(ConnectionConfig), lambda: 0.5)


@pytest.mark.rule("S6")
def test_backoff_doubles_to_its_maximum_and_a_success_forgets_it(states: ConnectionStates) -> None:
    clock = ManualClock()
    delays = []
    for _ in range(7):
        assert states.may_connect(1, clock.now_ms())
        states.connecting(1)
        assert not states.may_connect(1, clock.now_ms())
        assert states.delay_ms(1, clock.now_ms()) == math.inf
        states.disconnected(1, clock.now_ms(), "refused")
        delays.append(states.delay_ms(1, clock.now_ms()))
        clock.advance(delays[-1] - 1)
        assert not states.may_connect(1, clock.now_ms())
        clock.advance(1)
    assert delays == [50, 100, 200, 400, 800, 1000, 1000]
    states.connecting(1)
    states.ready(1)
    assert states.last_error(1) is None
    states.disconnected(1, clock.now_ms(), "reset")
    assert states.delay_ms(1, clock.now_ms()) == 50
    assert states.last_error(1) == "reset"
    assert states.may_connect(2, clock.now_ms()), "another node is another story"


def test_a_refused_login_waits_longer(states: ConnectionStates) -> None:
    """It would be refused again, and costs the broker work: at most 10 attempts in 10 s by three links."""
    clock = ManualClock()
    delays = []
    for _ in range(4):
        states.connecting(1)
        states.disconnected(1, clock.now_ms(), "the login is refused", is_refused=True)
        delays.append(states.delay_ms(1, clock.now_ms()))
        clock.advance(delays[-1])
    assert delays == [1_000, 2_000, 4_000, 4_000]
    assert states.connecting(1) == 10_000, "the setup timeout does not grow by it"
    states.disconnected(1, clock.now_ms(), "the login is refused", is_refused=True)
    states.login_changed()
    assert states.may_connect(1, clock.now_ms()), "there are other credentials"
    states.connecting(1)
    states.disconnected(1, clock.now_ms(), "reset")
    assert states.delay_ms(1, clock.now_ms()) == 50, "another fault has a backoff of its own"


@pytest.mark.rule("S6")
def test_the_setup_timeout_grows_only_with_failed_setups(states: ConnectionStates) -> None:
    timeouts = []
    for _ in range(4):
        timeouts.append(states.connecting(1))
        states.disconnected(1, 0.0, "mute")
    assert timeouts == [10_000, 20_000, 30_000, 30_000]
    states.connecting(1)
    states.ready(1)
    states.disconnected(1, 0.0, "reset")  # a connection that once stood says nothing about setting one up
    assert states.connecting(1) == 10_000


@pytest.mark.rule("S5")
def test_throttle_mutes_until_its_end_and_dies_with_the_connection(states: ConnectionStates) -> None:
    states.connecting(1)
    states.ready(1)
    states.throttle(1, 500.0)
    states.throttle(1, 300.0)  # a shorter one does not shorten it
    assert states.is_throttled(1, 499.0)
    assert states.delay_ms(1, 100.0) == 400
    assert not states.is_throttled(1, 500.0)
    states.throttle(1, 900.0)
    states.disconnected(1, 600.0, "reset")
    assert not states.is_throttled(1, 601.0)


def test_closing_in_good_order_owes_no_backoff(states: ConnectionStates) -> None:
    states.connecting(1)
    states.ready(1)
    states.closed(1)
    assert states.may_connect(1, 0.0)
    states.disconnected(1, 0.0, "x")
    states.forget(1)
    assert states.may_connect(1, 0.0)


@pytest.mark.rule("S6")
def test_jitter_is_a_fifth_either_way_and_never_passes_the_maximum() -> None:
    assert ExponentialBackoff(100, 1000, lambda: 0.0).backoff_ms(1) == pytest.approx(160)
    assert ExponentialBackoff(100, 1000, lambda: 1.0).backoff_ms(1) == pytest.approx(240)
    assert ExponentialBackoff(100, 1000, lambda: 1.0).backoff_ms(10_000) == 1000
    assert ExponentialBackoff(100, 1000, lambda: 0.0).backoff_ms(10_000) == pytest.approx(800)


@pytest.mark.rule("S6")
def test_a_maximum_not_above_the_start_is_the_wait_without_jitter() -> None:
    for start in (10, 100):
        assert {ExponentialBackoff(start, 10, lambda: 0.0).backoff_ms(n) for n in range(5)} == {10}
    assert ExponentialBackoff(0, 1000, lambda: 1.0).backoff_ms(5) == 0
