"""Goal: a batch takes the steps of the table (docs/states.md), and every other step is refused by name."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Final

import pytest

from sidecar import producer, worker
from sidecar.common.state_table import steps_of
from sidecar.producer import batch_states
from sidecar.producer.batch_states import TRANSITIONS, BatchEvent, BatchState
from sidecar.producer.lanes import PLAIN_LANE
from sidecar.producer.producer_batch import ProducerBatch

from .harness import Core, take_batches


def _close(core: Core, batch: ProducerBatch) -> None:
    """More records come than it may grow by. A batch that is closed already is not asked."""
    core.append(*range(9))


def _drain(core: Core, batch: ProducerBatch) -> None:
    """As the sender does it. A batch that waits nowhere is put into the deque by a fault of ours."""
    queue = batch.queue
    if batch not in queue.batches:
        queue.batches.appendleft(batch)
    core.accumulator.schedule.begin_close(core.now_ms)
    core.accumulator.follow(core.snapshot, core.now_ms)
    core.accumulator.schedule.touch(queue, core.now_ms)
    take_batches(core, 1, core.lane, inf, core.now_ms)


def _queue(core: Core, batch: ProducerBatch) -> None:
    core.accumulator.reenqueue(batch, retry_at_ms=0.0, now_ms=core.now_ms)


STEPS: Final[dict[BatchEvent, Callable[[Core, ProducerBatch], object]]] = {
    BatchEvent.CLOSE: _close,
    BatchEvent.DRAIN: _drain,
    BatchEvent.LEAVE: lambda core, batch: batch.leave_wire(),
    BatchEvent.QUEUE: _queue,
    BatchEvent.DECIDE: lambda core, batch: batch.decide(base_offset=1),
    BatchEvent.SPLIT: lambda core, batch: batch.split(),
}
WAYS: Final[dict[BatchState, tuple[BatchEvent, ...]]] = {
    BatchState.OPEN: (),
    BatchState.QUEUED: (BatchEvent.DRAIN, BatchEvent.LEAVE, BatchEvent.QUEUE),
    BatchState.ON_WIRE: (BatchEvent.DRAIN,),
    BatchState.BETWEEN: (BatchEvent.DRAIN, BatchEvent.LEAVE),
    BatchState.GIVEN_UP: (BatchEvent.DRAIN, BatchEvent.DECIDE),
    BatchState.DECIDED: (BatchEvent.DRAIN, BatchEvent.LEAVE, BatchEvent.DECIDE),
    BatchState.SPLIT: (BatchEvent.DRAIN, BatchEvent.LEAVE, BatchEvent.SPLIT),
}


@pytest.mark.parametrize("event", BatchEvent)
@pytest.mark.parametrize("state", BatchState)
def test_a_batch_takes_the_steps_of_the_table_and_no_other(state: BatchState, event: BatchEvent) -> None:
    core = Core(lane=PLAIN_LANE, enable_idempotence=False, acks=1, linger_ms=50, batch_size=600)
    core.append("a", "b")
    (batch,) = core.accumulator.incomplete.oldest_first()
    for step in WAYS[state]:
        STEPS[step](core, batch)
    assert batch.state is state
    follows = TRANSITIONS[state].get(event)
    if follows is not None or event is BatchEvent.CLOSE:
        STEPS[event](core, batch)
        assert batch.state is (follows or state)
    else:
        refusal = rf"^<ProducerBatch orders-0 .*> is {state.name}, which has no {event.name}$"
        with pytest.raises(AssertionError, match=refusal):
            STEPS[event](core, batch)
        assert batch.state is state
    if event is not BatchEvent.DRAIN:
        is_waiting = batch.state in (BatchState.OPEN, BatchState.QUEUED)
        assert (batch in batch.queue.batches) is is_waiting, (
            "a batch in the deque waits, and the others do not"
        )


def test_pieces_begin_between_and_a_batch_set_apart_is_split() -> None:
    core = Core(lane=PLAIN_LANE, enable_idempotence=False, acks=1)
    (batch,) = core.send("a", "b", "c").batches
    batch.leave_wire()
    ((bad, _),), good = batch.isolate({1: "no key"})
    assert good is not None
    assert [each.state for each in (batch, bad, good)] == ["split", "between", "between"]


def test_the_table_has_every_state_and_event() -> None:
    assert TRANSITIONS.keys() == set(BatchState)
    assert {event for steps in TRANSITIONS.values() for event in steps} == set(BatchEvent)
    reached = set(itertools.chain.from_iterable(steps.values() for steps in TRANSITIONS.values()))
    assert {BatchState.OPEN, *reached} == set(BatchState)


def test_nothing_but_the_table_changes_the_state() -> None:
    """Every assignment is a lookup in the event's column, or refuses that event, but for a batch's first state."""
    written: Counter[str] = Counter()
    for room in (producer, worker):
        for path in sorted(Path(room.__path__[0]).rglob("*.py")):
            if path.name in ("transaction_manager.py", "stage.py"):
                continue  # they have tables of their own
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (
                    "batch.state",
                    "self.state",
                ):
                    written[f"{path.name}: {ast.unparse(node.value)}"] += 1
    columns = {
        event: name
        for event in BatchEvent
        for name, column in vars(batch_states).items()
        if column == steps_of(TRANSITIONS, event)
    }
    assert columns.keys() == set(BatchEvent)

    def step(event: BatchEvent, of: str = "batch") -> str:
        return f"{columns[event]}.get({of}.state) or {of}.refuse(BatchEvent.{event.name})"

    assert written == {
        "partition_queue.py: " + step(BatchEvent.QUEUE): 1,
        "producer_batch.py: state": 1,
        "producer_batch.py: " + step(BatchEvent.LEAVE, of="self"): 1,
        "producer_batch.py: follows": 1,
        "producer_batch.py: " + step(BatchEvent.CLOSE, "self"): 1,
        "producer_batch.py: " + step(BatchEvent.SPLIT, "self"): 2,
        "partition_queue.py: " + step(BatchEvent.DRAIN): 1,
    }
