"""Tables of states, of which docs/states.md is printed: state × event → state.

Each file with a table of states calls it at its import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")
State = TypeVar("State")
Event = TypeVar("Event")


def steps_of(table: Mapping[Key, Mapping[Event, State]], event: Event) -> dict[Key, State]:
    """One event's column of the table: state → next state, so that a step costs one lookup. Keys are states, or their
    numbers.
    """
    return {state: steps[event] for state, steps in table.items() if event in steps}
