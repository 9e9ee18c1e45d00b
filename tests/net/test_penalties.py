"""Who pays for connections that only cost: the process that opens them, after a while, and for two seconds at most."""

from __future__ import annotations

import pytest

from sidecar.net.penalties import (
    BROKEN_POINTS,
    CONNECTION_POINTS,
    FREE_POINTS,
    MALFORMED_POINTS,
    POINTS_BACK_A_SECOND,
    PROCESSES_MAX,
    WAIT_MAX_S,
    Penalties,
)


@pytest.mark.parametrize("points", [CONNECTION_POINTS, MALFORMED_POINTS, BROKEN_POINTS])
def test_up_to_its_free_points_a_process_never_waits_and_beyond_them_it_does(points: int) -> None:
    penalties = Penalties()
    for _ in range(FREE_POINTS // points):
        penalties.charge(7, points, 0.0)
        assert penalties.wait_s(7, 0.0) < 1e-9
    penalties.charge(7, points, 0.0)
    assert 0 < penalties.wait_s(7, 0.0) <= points / POINTS_BACK_A_SECOND + 1e-9
    assert penalties.wait_s(8, 0.0) == 0, "its neighbours do not"


def test_who_connects_as_often_as_points_come_back_never_waits() -> None:
    penalties = Penalties()
    for number in range(10_000):
        now_s = number / POINTS_BACK_A_SECOND
        assert penalties.wait_s(7, now_s) < 1e-9
        penalties.charge(7, CONNECTION_POINTS, now_s)


def test_nobody_waits_longer_than_two_seconds_and_time_forgives_all() -> None:
    penalties = Penalties()
    for _ in range(10_000):
        penalties.charge(7, BROKEN_POINTS, 5.0)
    assert penalties.wait_s(7, 5.0) == pytest.approx(WAIT_MAX_S)
    assert penalties.wait_s(7, 5.0 + WAIT_MAX_S + 0.001) == 0
    penalties.charge(7, FREE_POINTS - 1, 5.0 + WAIT_MAX_S + FREE_POINTS / POINTS_BACK_A_SECOND)
    assert penalties.wait_s(7, 5.0 + WAIT_MAX_S + FREE_POINTS / POINTS_BACK_A_SECOND) == 0, (
        "it begins at none again"
    )


def test_processes_that_cannot_be_told_apart_never_wait_for_each_other() -> None:
    penalties = Penalties()
    for _ in range(1_000):
        penalties.charge(0, BROKEN_POINTS, 0.0)
    assert penalties.wait_s(0, 0.0) == 0


def test_beyond_its_bound_the_table_forgets_who_was_quiet_longest() -> None:
    penalties = Penalties()
    penalties.charge(1, 10 * FREE_POINTS, 0.0)
    penalties.charge(2, 10 * FREE_POINTS, 0.0)
    penalties.charge(1, 1, 0.0)
    for process in range(3, PROCESSES_MAX + 1):
        penalties.charge(process, 1, 0.0)
    assert penalties.wait_s(2, 0.0) > 0
    penalties.charge(PROCESSES_MAX + 1, 1, 0.0)
    assert penalties.wait_s(2, 0.0) == 0
    assert penalties.wait_s(1, 0.0) > 0
