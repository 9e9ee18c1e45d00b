"""States of a descriptor and the events that move it between them (docs/states.md is printed from this table)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final


class DescriptorState(IntEnum):
    """The first word of a descriptor in the segment (docs/segment.md)."""

    FREE = 0
    SENT_UNDER = 1
    """Published: its records may be on the wire (fact 2)."""
    STORED = 2
    """Code, base offset and append time are known (fact 3)."""
    RELEASED = 3
    """Every client has its outcome: words may become done."""
    PENDING = 4
    """Half of a batch that is being split. It is valid once its parent's state is SPLIT."""
    SPLIT = 5
    """Refused as too large, and replaced by its halves, which have its sequences."""


class DescriptorEvent(StrEnum):
    PUBLISH = "publish()"
    PUBLISH_HALF = "publish() pending on its parent"
    SWITCH = "switch() to its halves"
    RAISE = "its parent is split"
    STORE = "store_outcome() with the broker's answer"
    RELEASE = "all clients have their outcomes"
    FREE = "it is freed"


TRANSITIONS: Final[Mapping[int, Mapping[DescriptorEvent, DescriptorState]]] = {
    DescriptorState.FREE: {
        DescriptorEvent.PUBLISH: DescriptorState.SENT_UNDER,
        DescriptorEvent.PUBLISH_HALF: DescriptorState.PENDING,
    },
    DescriptorState.SENT_UNDER: {
        DescriptorEvent.STORE: DescriptorState.STORED,
        DescriptorEvent.SWITCH: DescriptorState.SPLIT,
        # Its batch gets another identity, or an adopter finds none of its records.
        DescriptorEvent.FREE: DescriptorState.FREE,
    },
    DescriptorState.STORED: {
        DescriptorEvent.RELEASE: DescriptorState.RELEASED,
        # An adopter finds none of its records.
        DescriptorEvent.FREE: DescriptorState.FREE,
    },
    DescriptorState.RELEASED: {
        # An adopter releases it once more.
        DescriptorEvent.RELEASE: DescriptorState.RELEASED,
        DescriptorEvent.FREE: DescriptorState.FREE,
    },
    DescriptorState.PENDING: {
        DescriptorEvent.RAISE: DescriptorState.SENT_UNDER,
        # An adopter finds that its parent was not switched.
        DescriptorEvent.FREE: DescriptorState.FREE,
    },
    DescriptorState.SPLIT: {DescriptorEvent.FREE: DescriptorState.FREE},
}
"""State × event → state. An event that a state does not list is a bug and raises AssertionError."""
