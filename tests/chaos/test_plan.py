"""Goal: the same seed is the same plan of faults, and the plan has all that it promises."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest

from sidecar.tools.chaos.plan import KILLS, TRANSACTION_WEIGHTS, WEIGHTS, Fault, FaultKind, make_plan

HEARTBEAT_S = 1.0


def plan(seed: int, count: int = 2_000, **options: Any) -> list[Fault]:
    return list(islice(make_plan(seed, heartbeat_s=HEARTBEAT_S, **options), count))


def test_a_seed_is_a_plan() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_this_very_plan_stays() -> None:
    """A seed that found a bug must find it again in a later version."""
    assert [(fault.kind, fault.pick(4)) for fault in plan(1, 5)] == [
        (FaultKind.WORKER_KILLED, 3),
        (FaultKind.CONTROLLER_KILLED, 0),
        (FaultKind.DAEMON_KILLED, 0),
        (FaultKind.CLIENT_KILLED, 1),
        (FaultKind.ANSWERS_LOST, 0),
    ]


@pytest.mark.parametrize("weights", [WEIGHTS, TRANSACTION_WEIGHTS])
def test_every_kind_comes(weights: Mapping[FaultKind, int]) -> None:
    faults = plan(1, weights=weights)
    assert {fault.kind for fault in faults} == set(weights)
    assert any(fault.settles for fault in faults)
    assert not all(fault.settles for fault in faults)
    assert sum(fault.kills for fault in faults) == sum(KILLS.get(fault.kind, 0) for fault in faults) > 1_000


def test_without_a_kind_the_rest_is_the_same() -> None:
    without = FaultKind.BROKER_KILLED
    others = [fault for fault in plan(3, 500, weights=TRANSACTION_WEIGHTS) if fault.kind is not without]
    assert plan(3, len(others), weights=TRANSACTION_WEIGHTS, without=[without]) == others


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_victim_is_one_of_those_alive(count: int) -> None:
    assert {fault.pick(count) for fault in plan(5, 500)} == set(range(count))


def test_pauses_are_shorter_and_stops_longer_than_the_heartbeat() -> None:
    for fault in plan(9):
        if fault.kind in (FaultKind.WORKER_PAUSED, FaultKind.DAEMON_PAUSED, FaultKind.CLIENT_PAUSED):
            assert 0 < fault.hold_s < HEARTBEAT_S
        elif fault.kind is FaultKind.WORKER_STOPPED:
            assert fault.hold_s > HEARTBEAT_S
