"""Connections that only cost are paid for by the process that opens them, for two seconds at most, and by its user,
less."""

from __future__ import annotations

import pytest

from sidecar.net.stubs.endpoint import CONNECTIONS_MAX
from sidecar.net.stubs.peer import Peer
from sidecar.net.stubs.penalties import (
    BROKEN_POINTS,
    CONNECTION_POINTS,
    FREE_POINTS,
    MALFORMED_POINTS,
    POINTS_BACK_A_SECOND,
    PROCESSES_MAX,
    USERS_CONNECTION_POINTS,
    USERS_FREE_POINTS,
    USERS_MAX,
    USERS_POINTS_BACK_A_SECOND,
    USERS_WAIT_MAX_S,
    WAIT_MAX_S,
    Penalties,
)

UID = 1_000


def of(pid: int, uid: int = UID) -> Peer:
    return Peer(pid, uid, uid)


@pytest.mark.parametrize("points", [MALFORMED_POINTS, BROKEN_POINTS])
def test_up_to_its_free_points_a_process_never_waits_and_beyond_them_it_does(points: int) -> None:
    penalties = Penalties()
    for _ in range(FREE_POINTS // points):
        penalties.charge(of(7), points, 0.0)
        assert penalties.wait_s(of(7), 0.0) < 1e-9
    penalties.charge(of(7), points, 0.0)
    assert 0 < penalties.wait_s(of(7), 0.0) <= points / POINTS_BACK_A_SECOND + 1e-9
    assert penalties.own_wait_s(of(7), 0.0) == penalties.wait_s(of(7), 0.0)
    assert penalties.wait_s(of(8), 0.0) == 0, "its neighbours do not"


def test_connecting_as_often_as_points_come_back_never_waits() -> None:
    penalties = Penalties()
    for number in range(10_000):
        now_s = number / POINTS_BACK_A_SECOND
        assert penalties.wait_s(of(7), now_s) < 1e-9
        penalties.charge_connection(of(7), now_s)
    for _ in range(FREE_POINTS // CONNECTION_POINTS + 1):
        penalties.charge_connection(of(8), 0.0)
    assert penalties.wait_s(of(8), 0.0) > 0


def test_nobody_waits_longer_than_two_seconds_and_time_forgives_all() -> None:
    penalties = Penalties()
    for _ in range(10_000):
        penalties.charge(of(7), BROKEN_POINTS, 5.0)
    assert penalties.wait_s(of(7), 5.0) == pytest.approx(WAIT_MAX_S)
    assert penalties.wait_s(of(7), 5.0 + WAIT_MAX_S + 0.001) == 0
    later_s = 5.0 + WAIT_MAX_S + USERS_FREE_POINTS / USERS_POINTS_BACK_A_SECOND
    penalties.charge(of(7), FREE_POINTS - 1, later_s)
    assert penalties.wait_s(of(7), later_s) == 0, "it begins at none again"


def test_a_user_whose_processes_come_and_go_waits_half_a_second_at_most() -> None:
    """Each process offends once and is gone: none of them is ever beyond its own points."""
    penalties = Penalties()
    pid = 0
    while not penalties.wait_s(of(pid + 1), 0.0):
        pid += 1
        penalties.charge_connection(of(pid), 0.0)
        penalties.charge(of(pid), BROKEN_POINTS, 0.0)
    assert pid == USERS_FREE_POINTS // (BROKEN_POINTS + USERS_CONNECTION_POINTS) + 1
    assert penalties.own_wait_s(of(pid + 1), 0.0) == 0
    for another in range(10_000):
        penalties.charge(of(pid + another), BROKEN_POINTS, 0.0)
    pid += 10_000
    assert penalties.wait_s(of(pid + 1), 0.0) == pytest.approx(USERS_WAIT_MAX_S)
    assert penalties.wait_s(of(pid + 1, UID + 1), 0.0) == 0, "other users do not"
    assert penalties.wait_s(of(pid + 1), USERS_WAIT_MAX_S + 0.001) == 0


def test_such_a_user_offends_no_more_often_than_its_points_come_back() -> None:
    """A loop of processes that does as it is told: each waits before it offends."""
    penalties = Penalties()
    now_s, offences = 0.0, 0
    while now_s < 600.0:
        peer = of(offences + 1)
        now_s += max(0.001, penalties.wait_s(peer, now_s))
        penalties.charge(peer, MALFORMED_POINTS, now_s)
        offences += 1
    allowed = (USERS_FREE_POINTS + 600.0 * USERS_POINTS_BACK_A_SECOND) / MALFORMED_POINTS
    assert offences <= allowed + 2


def test_all_clients_of_a_large_host_may_come_back_at_once() -> None:
    penalties = Penalties()
    for pid in range(1, CONNECTIONS_MAX + 1):
        assert penalties.wait_s(of(pid), 0.0) < 1e-9
        penalties.charge_connection(of(pid), 0.0)
    penalties.charge_connection(of(1), 0.0)
    assert penalties.wait_s(of(1), 0.0) > 0


def test_one_process_alone_never_makes_its_user_wait() -> None:
    penalties = Penalties()
    for millisecond in range(60_000):
        now_s = millisecond / 1_000
        if not penalties.wait_s(of(7), now_s):
            penalties.charge(of(7), BROKEN_POINTS, now_s)
        assert penalties.wait_s(of(8), now_s) == 0


def test_hosts_take_no_room_from_users_of_this_one() -> None:
    penalties = Penalties()
    penalties.charge(of(0), 2 * USERS_FREE_POINTS, 0.0)
    for number in range(2 * USERS_MAX):
        far = Peer(0, 1 << 62 | number, 0, f"10.0.0.{number}", f"10.0.0.{number}")
        penalties.charge_connection(far, 0.0)
        penalties.charge(far, 2 * FREE_POINTS, 0.0)
        assert penalties.wait_s(far, 0.0) == pytest.approx(WAIT_MAX_S)
    assert penalties.wait_s(of(0), 0.0) > 0


def test_processes_that_cannot_be_told_apart_never_wait_for_each_other_but_for_their_user() -> None:
    penalties = Penalties()
    penalties.charge(of(0), 2 * FREE_POINTS, 0.0)
    assert penalties.wait_s(of(0), 0.0) == 0
    penalties.charge(of(0), USERS_FREE_POINTS, 0.0)
    assert penalties.wait_s(of(0), 0.0) > 0 == penalties.own_wait_s(of(0), 0.0)
    assert penalties.wait_s(of(0, UID + 1), 0.0) == 0


def test_beyond_its_bound_the_table_forgets_who_was_quiet_longest() -> None:
    penalties = Penalties()

    def charge(pid: int, points: float) -> None:
        penalties.charge(of(pid, uid=pid), points, 0.0)

    charge(1, 10 * USERS_FREE_POINTS)
    charge(2, 10 * USERS_FREE_POINTS)
    charge(1, 1)
    assert PROCESSES_MAX == USERS_MAX
    for holder in range(3, PROCESSES_MAX + 1):
        charge(holder, 1)
    for other, own in ((0, 2), (2, 0)):
        assert penalties.wait_s(Peer(other, own, 0), 0.0) > 0
    charge(PROCESSES_MAX + 1, 1)
    for other, own in ((0, 2), (2, 0)):
        assert penalties.wait_s(Peer(other, own, 0), 0.0) == 0
    for other, own in ((0, 1), (1, 0)):
        assert penalties.wait_s(Peer(other, own, 0), 0.0) > 0
