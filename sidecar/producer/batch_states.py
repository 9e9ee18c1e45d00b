"""States of a batch and the events that move it between them (docs/states.md is printed from this table)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from sidecar.common.state_table import steps_of


class BatchState(StrEnum):
    OPEN = "open"
    """The last batch in its partition's deque; it takes more records."""
    QUEUED = "queued"
    """Closed and in the deque: it waits for its first request or for a retry."""
    ON_WIRE = "on_wire"
    """In a request that is prepared or sent and has not ended."""
    BETWEEN = "between"
    """In no deque and no request, while its next step is decided. Pieces of a split batch and batches of a dead worker
    begin here.
    """
    GIVEN_UP = "given_up"
    """Its outcome is decided, but its request has not ended: completing a batch does not recall bytes from a socket."""
    DONE = "done"
    SPLIT = "split"
    """Replaced by its pieces."""


class BatchEvent(StrEnum):
    CLOSE = "grown as large as it may"
    DRAIN = "drained into a request"
    RELEASE = "its request has ended"
    QUEUE = "put into the deque"
    FINISH = "its outcome is decided"
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
"""State × event → state. An event that a state does not list is a bug and raises AssertionError."""

CLOSED: Final = steps_of(TRANSITIONS, BatchEvent.CLOSE)
DRAINED: Final = steps_of(TRANSITIONS, BatchEvent.DRAIN)
RELEASED: Final = steps_of(TRANSITIONS, BatchEvent.RELEASE)
QUEUED: Final = steps_of(TRANSITIONS, BatchEvent.QUEUE)
FINISHED: Final = steps_of(TRANSITIONS, BatchEvent.FINISH)
SPLIT: Final = steps_of(TRANSITIONS, BatchEvent.SPLIT)
