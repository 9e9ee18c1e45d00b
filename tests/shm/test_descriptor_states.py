"""Every step of a descriptor's table, by the calls of the worker and of an adopter, on a real slot."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

import pytest

from sidecar.shm import descriptors, layout
from sidecar.shm.descriptor_states import TRANSITIONS, DescriptorEvent, DescriptorState
from sidecar.shm.descriptors import DescriptorTable
from sidecar.shm.segment import Segment
from tests.shm.sent import Sent

PARENT, CHILD = 7, 8
"""A descriptor's parent and the half that is looked at. Only :func:`_switch` looks at the parent."""


def _publish(table: DescriptorTable, index: int, pending_on: int | None = None) -> None:
    """Whatever the state of this descriptor, it is the next to be taken."""
    table.free_indexes.append(index)
    Sent(chain_id=0, partition=0, count=1).publish(table, pending_on=pending_on)


def _raise(table: DescriptorTable, index: int) -> None:
    """By the worker: its parent is switched."""
    _publish(table, PARENT)
    table.switch(PARENT, [index])


STEPS: dict[DescriptorEvent, Callable[[DescriptorTable, int], None]] = {
    DescriptorEvent.PUBLISH: _publish,
    DescriptorEvent.PUBLISH_HALF: lambda table, index: _publish(table, index, PARENT),
    DescriptorEvent.SWITCH: lambda table, index: table.switch(index, []),
    DescriptorEvent.RAISE: _raise,
    DescriptorEvent.STORE: lambda table, index: table.store_outcome(index, 0, 5, -1),
    DescriptorEvent.RELEASE: lambda table, index: table.step(DescriptorEvent.RELEASE, index),
    DescriptorEvent.FREE: lambda table, index: table.step(DescriptorEvent.FREE, index),
}
WAYS: dict[DescriptorState, tuple[DescriptorEvent, ...]] = {
    DescriptorState.FREE: (),
    DescriptorState.SENT_UNDER: (DescriptorEvent.PUBLISH,),
    DescriptorState.STORED: (DescriptorEvent.PUBLISH, DescriptorEvent.STORE),
    DescriptorState.RELEASED: (DescriptorEvent.PUBLISH, DescriptorEvent.STORE, DescriptorEvent.RELEASE),
    DescriptorState.PENDING: (DescriptorEvent.PUBLISH_HALF,),
}


def _in(state: DescriptorState, segment: Segment, slot: int) -> DescriptorTable:
    table = DescriptorTable(segment, slot)
    if state is DescriptorState.SPLIT:
        # It lasts from the switch to the end of the call: a worker died between.
        _publish(table, CHILD)
        with pytest.raises(IndexError):
            table.switch(CHILD, [layout.DESCRIPTORS_MAX])
        return DescriptorTable(segment, slot)
    for event in WAYS[state]:
        STEPS[event](table, CHILD)
    return table


@pytest.mark.parametrize("event", DescriptorEvent)
@pytest.mark.parametrize("state", DescriptorState)
def test_a_descriptor_takes_the_steps_of_the_table_and_no_other(
    segment: Segment, slot: int, state: DescriptorState, event: DescriptorEvent
) -> None:
    table = _in(state, segment, slot)
    assert table.state(CHILD) is state
    follows = TRANSITIONS[state].get(event)
    if follows is None:
        with pytest.raises(AssertionError, match=rf"descriptor {CHILD} is {state.name}, which has no "):
            STEPS[event](table, CHILD)
        assert table.state(CHILD) is state
        return
    if event is DescriptorEvent.SWITCH:
        with pytest.raises(IndexError):
            table.switch(CHILD, [layout.DESCRIPTORS_MAX])  # a worker dies before it frees it
    else:
        STEPS[event](table, CHILD)
    assert table.state(CHILD) is follows


def test_an_adopter_raises_the_halves_of_a_switched_parent_and_frees_the_others(
    segment: Segment, slot: int
) -> None:
    table = _in(DescriptorState.SPLIT, segment, slot)
    _publish(table, 1, CHILD)
    _publish(table, 2, PARENT)
    table.finish_splits()
    assert [(each.index, each.state) for each in table] == [(1, DescriptorState.SENT_UNDER)]


def test_every_store_of_a_state_is_a_step_of_the_table() -> None:
    stores = [
        ast.unparse(node.args[2])
        for node in ast.walk(ast.parse(inspect.getsource(descriptors.DescriptorTable)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "store_release_u64"
    ]
    assert stores
    assert set(stores) == {"follows"}
