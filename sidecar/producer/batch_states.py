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
    DECIDED = "decided"
    SPLIT = "split"
    """Replaced by its pieces."""


class BatchEvent(StrEnum):
    CLOSE = "grown as large as it may"
    DRAIN = "drained into a request"
    LEAVE = "its request has ended"
    QUEUE = "put into the deque"
    DECIDE = "its outcome is decided"
    SPLIT = "split, or records set apart"


TRANSITIONS: Final[Mapping[BatchState, Mapping[BatchEvent, BatchState]]] = {
    BatchState.OPEN: {
        BatchEvent.CLOSE: BatchState.QUEUED,
        BatchEvent.DRAIN: BatchState.ON_WIRE,
        BatchEvent.DECIDE: BatchState.DECIDED,
    },
    BatchState.QUEUED: {
        BatchEvent.DRAIN: BatchState.ON_WIRE,
        BatchEvent.DECIDE: BatchState.DECIDED,
    },
    BatchState.ON_WIRE: {
        BatchEvent.LEAVE: BatchState.BETWEEN,
        BatchEvent.DECIDE: BatchState.GIVEN_UP,
    },
    BatchState.BETWEEN: {
        BatchEvent.QUEUE: BatchState.QUEUED,
        BatchEvent.DECIDE: BatchState.DECIDED,
        BatchEvent.SPLIT: BatchState.SPLIT,
    },
    BatchState.GIVEN_UP: {BatchEvent.LEAVE: BatchState.DECIDED},
    BatchState.DECIDED: {},
    BatchState.SPLIT: {},
}
"""State × event → state. An event that a state does not list is a bug and raises AssertionError."""

AFTER_CLOSE: Final = steps_of(TRANSITIONS, BatchEvent.CLOSE)
AFTER_DRAIN: Final = steps_of(TRANSITIONS, BatchEvent.DRAIN)
AFTER_LEAVE: Final = steps_of(TRANSITIONS, BatchEvent.LEAVE)
AFTER_QUEUE: Final = steps_of(TRANSITIONS, BatchEvent.QUEUE)
AFTER_DECIDE: Final = steps_of(TRANSITIONS, BatchEvent.DECIDE)
AFTER_SPLIT: Final = steps_of(TRANSITIONS, BatchEvent.SPLIT)
