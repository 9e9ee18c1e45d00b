"""Goal: the number of Python calls, functions and files that a record passes does not grow unseen.

The bounds are three per cent above the counts in docs/benchmarks.md, whose upper ends are a busy machine's: its timers
become due. For the stub's calls they are five, since its io thread wakes two or three times for a record. Counts, not
times: a slow machine does not fail.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

from sidecar.bench.steps import BULK, SPREAD, WAITED_FOR, count_walks


class Bound(NamedTuple):
    calls: float
    functions: int
    files: int
    passes: str
    """A function of this way: a counter that misses the product would stay below every bound."""


BOUNDS: Final = {
    (WAITED_FOR, "stub"): Bound(36, 28, 7, "ProducerCore.send"),
    (WAITED_FOR, "worker"): Bound(94, 78, 32, "Sender.poll"),
    (BULK, "stub"): Bound(71, 49, 11, "Producer.send_many"),
    (BULK, "worker"): Bound(131, 103, 38, "Sender.on_produce_response"),
    (SPREAD, "stub"): Bound(82, 50, 11, "Producer.send_many"),
    (SPREAD, "worker"): Bound(169, 103, 38, "Sender.on_produce_response"),
}


@pytest.mark.process
def test_a_record_passes_no_more_calls_functions_and_files_than_were_counted() -> None:
    walks = count_walks()
    assert {(each.what, each.side) for each in walks} == BOUNDS.keys()
    for walk in walks:
        bound = BOUNDS[walk.what, walk.side]
        names = [step.function.partition(" ")[2] for step in walk.steps]
        found = (round(walk.calls, 1), len(walk.steps), walk.files)
        assert bound.passes in names, (walk.what, walk.side, names)
        assert all(each <= most for each, most in zip(found, bound[:3], strict=True)), (
            walk.what,
            walk.side,
            found,
        )
