"""The states of a worker's process, and the events that change them (docs/states.md is printed from this table)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class WorkerState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class WorkerEvent(StrEnum):
    READY = "says READY"
    DRAIN = "is sent DRAIN or STOP"
    EXIT = "exits, its pidfd is readable"


TRANSITIONS: Final[Mapping[WorkerState, Mapping[WorkerEvent, WorkerState]]] = {
    WorkerState.STARTING: {
        WorkerEvent.READY: WorkerState.READY,
        WorkerEvent.DRAIN: WorkerState.DRAINING,
        WorkerEvent.EXIT: WorkerState.DEAD,
    },
    WorkerState.READY: {
        WorkerEvent.READY: WorkerState.READY,
        WorkerEvent.DRAIN: WorkerState.DRAINING,
        WorkerEvent.EXIT: WorkerState.DEAD,
    },
    WorkerState.DRAINING: {
        # Its adoption ended while DRAIN was under way: it takes no clients.
        WorkerEvent.READY: WorkerState.DRAINING,
        # A second SIGTERM drains again with less time.
        WorkerEvent.DRAIN: WorkerState.DRAINING,
        WorkerEvent.EXIT: WorkerState.DEAD,
    },
    # Its last messages are read after its exit.
    WorkerState.DEAD: {WorkerEvent.READY: WorkerState.DEAD},
}
"""State × event → state. An event that a state lacks is a bug."""
