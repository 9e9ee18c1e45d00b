"""IdleWatch: a daemon without clients ends, and one that is used does not."""

from __future__ import annotations

from sidecar.controller.idle_watch import IdleWatch


def test_time_without_a_client_ends_it() -> None:
    idle = IdleWatch(now_s=100.0)
    assert not idle.is_over(0, 0, timeout_s=60.0, now_s=159.9)
    assert idle.is_over(0, 0, timeout_s=60.0, now_s=160.0)


def test_a_client_begins_the_time_anew() -> None:
    idle = IdleWatch(now_s=0.0)
    assert not idle.is_over(1, 5, timeout_s=60.0, now_s=1_000.0)
    assert not idle.is_over(0, 5, timeout_s=60.0, now_s=1_059.9)
    assert idle.is_over(0, 5, timeout_s=60.0, now_s=1_060.0)


def test_a_client_between_two_questions_is_seen_by_its_records() -> None:
    idle = IdleWatch(now_s=0.0)
    assert not idle.is_over(0, 7, timeout_s=1.0, now_s=5.0)
    assert idle.is_over(0, 7, timeout_s=1.0, now_s=6.0)


def test_zero_is_never() -> None:
    assert not IdleWatch(now_s=0.0).is_over(0, 0, timeout_s=0.0, now_s=1e9)
