"""The plan of faults: their order, targets and pauses. Sans-IO, determined by a seed.

The same seed gives the same plan on every machine. In the plan a fault's target is only a number in [0, 1). It becomes
one of the running workers when the fault is carried out.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class FaultKind(StrEnum):
    WORKER_KILLED = "worker killed"
    REPLACEMENT_KILLED = "worker killed, then its replacement"
    DAEMON_KILLED = "whole daemon killed"
    CONTROLLER_KILLED = "controller killed"
    CLIENT_KILLED = "client killed"
    WORKER_STOPPED = "worker stopped past its heartbeat"
    WORKER_PAUSED = "worker paused"
    DAEMON_PAUSED = "daemon paused"
    CLIENT_PAUSED = "client paused"
    CONNECTIONS_CUT = "connections cut"
    ANSWERS_LOST = "answers lost"
    BROKER_AWAY = "broker unreachable"
    TAKEN_OVER = "daemon taken over by another"
    BROKER_KILLED = "broker killed"
    ENDS_LOST = "answers to commits and aborts lost"


KILLS: Mapping[FaultKind, int] = MappingProxyType(
    {
        FaultKind.WORKER_KILLED: 1,
        FaultKind.REPLACEMENT_KILLED: 2,
        FaultKind.DAEMON_KILLED: 1,
        FaultKind.CONTROLLER_KILLED: 1,
        FaultKind.CLIENT_KILLED: 1,
        FaultKind.WORKER_STOPPED: 1,
        FaultKind.BROKER_KILLED: 1,
    }
)
"""The number of kills that a fault counts as; the whole daemon counts as one, however many processes it has."""

WEIGHTS: Mapping[FaultKind, int] = MappingProxyType(
    {
        FaultKind.WORKER_KILLED: 30,
        FaultKind.REPLACEMENT_KILLED: 5,
        FaultKind.DAEMON_KILLED: 9,
        FaultKind.CONTROLLER_KILLED: 5,
        FaultKind.CLIENT_KILLED: 25,
        FaultKind.WORKER_STOPPED: 3,
        FaultKind.WORKER_PAUSED: 4,
        FaultKind.DAEMON_PAUSED: 2,
        FaultKind.CLIENT_PAUSED: 3,
        FaultKind.CONNECTIONS_CUT: 6,
        FaultKind.ANSWERS_LOST: 6,
        FaultKind.BROKER_AWAY: 2,
    }
)
TRANSACTION_WEIGHTS: Mapping[FaultKind, int] = MappingProxyType(
    {**WEIGHTS, FaultKind.TAKEN_OVER: 9, FaultKind.BROKER_KILLED: 5, FaultKind.ENDS_LOST: 6}
)
"""Of a run with transactions. Its own, so that an earlier seed of the other runs stays the same plan."""

GAP_S_MAX = 0.3
SETTLED_SHARE = 0.7
"""The share of faults after which the workload may recover; the others overlap with the next fault."""


@dataclass(frozen=True)
class Fault:
    """One fault. ``choice`` in [0, 1) selects the victim among the running ones; ``hold_s`` is its duration."""

    kind: FaultKind
    gap_s: float
    """Pause before it."""
    choice: float
    hold_s: float
    settles: bool
    """Whether to wait for the recovery before the next fault."""
    times: int
    """The number of answers that are lost."""

    @property
    def kills(self) -> int:
        return KILLS.get(self.kind, 0)

    def pick(self, count: int) -> int:
        """The victim's index among ``count`` running processes."""
        return min(int(self.choice * count), count - 1)


def make_plan(
    seed: int,
    *,
    heartbeat_s: float,
    weights: Mapping[FaultKind, int] = WEIGHTS,
    without: Container[FaultKind] = (),
) -> Iterator[Fault]:
    """An endless sequence of faults, ``without`` those that nothing can carry out.

    Every fault takes the same number of random draws, so that a plan without some differs in nothing else.
    """
    source = random.Random(seed)
    while True:
        (kind,) = source.choices(list(weights), list(weights.values()))
        gap_s, choice, hold, settles = (source.random() for _ in range(4))
        times = source.randint(1, 4)
        if kind in without:
            continue
        yield Fault(
            kind, gap_s * GAP_S_MAX, choice, _hold_s(kind, hold, heartbeat_s), settles < SETTLED_SHARE, times
        )


def _hold_s(kind: FaultKind, share: float, heartbeat_s: float) -> float:
    match kind:
        case FaultKind.WORKER_STOPPED:
            return heartbeat_s * (2.0 + share)
        case FaultKind.WORKER_PAUSED | FaultKind.DAEMON_PAUSED | FaultKind.CLIENT_PAUSED:
            return heartbeat_s * (0.1 + 0.5 * share)
        case FaultKind.REPLACEMENT_KILLED:
            return 0.02 + 0.4 * share
        case FaultKind.DAEMON_KILLED | FaultKind.CONTROLLER_KILLED:
            return 0.3 * share
        case FaultKind.BROKER_AWAY:
            return 0.1 + 0.9 * share
        case FaultKind.BROKER_KILLED:
            return 3.0 * share
        case _:
            return 0.0
