"""The states of a batch and what moves it between them (docs/states.md is printed from this table)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class BatchState(StrEnum):
    OPEN = "open"
    """In its partition's deque, as the last one: it takes more records."""
    QUEUED = "queued"
    """In the deque and closed: it waits for its first request, or to be sent again."""
    ON_WIRE = "on_wire"
    """In a request that is prepared or sent and has not ended."""
    BETWEEN = "between"
    """In no deque and in no request: what happens to it is decided now. Pieces of a batch and batches of a dead worker
    begin here."""
    GIVEN_UP = "given_up"
    """It has its fate, and its request has not ended: no completion calls bytes back from a socket."""
    DONE = "done"
    SPLIT = "split"
    """Its pieces stand in its place."""


class BatchEvent(StrEnum):
    CLOSE = "grown as large as it may"
    DRAIN = "drained into a request"
    RELEASE = "its request has ended"
    QUEUE = "put into the deque"
    FINISH = "its fate is decided"
    SPLIT = "split, or records set apart"


TRANSITIONS: Final[Mapping[BatchState, Mapping[BatchEvent, BatchState]]] = {
    BatchState.OPEN: {
        BatchEvent.CLOSE: BatchState.QUEUED,
        BatchEvent.DRAIN: BatchState.ON_WIRE,
        BatchEvent.FINISH: BatchState.DONE,
    },
    BatchState.QUEUED: {
        BatchEvent.DRAIN: BatchState.ON_WIRE,
        BatchEvent.FINISH: BatchState.DONE,
    },
    BatchState.ON_WIRE: {
        BatchEvent.RELEASE: BatchState.BETWEEN,
        BatchEvent.FINISH: BatchState.GIVEN_UP,
    },
    BatchState.BETWEEN: {
        BatchEvent.QUEUE: BatchState.QUEUED,
        BatchEvent.FINISH: BatchState.DONE,
        BatchEvent.SPLIT: BatchState.SPLIT,
    },
    BatchState.GIVEN_UP: {BatchEvent.RELEASE: BatchState.DONE},
    BatchState.DONE: {},
    BatchState.SPLIT: {},
}
"""State × event → state. An event that a state lacks is an error of ours."""


def steps_of(event: BatchEvent) -> dict[BatchState, BatchState]:
    """The event's column of the table: state → state, for one lookup per step."""
    return {state: steps[event] for state, steps in TRANSITIONS.items() if event in steps}


CLOSED: Final = steps_of(BatchEvent.CLOSE)
DRAINED: Final = steps_of(BatchEvent.DRAIN)
RELEASED: Final = steps_of(BatchEvent.RELEASE)
QUEUED: Final = steps_of(BatchEvent.QUEUE)
FINISHED: Final = steps_of(BatchEvent.FINISH)
SPLIT: Final = steps_of(BatchEvent.SPLIT)
