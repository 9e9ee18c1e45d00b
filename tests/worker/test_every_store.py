"""Goal: a worker may die after any single store of its life, and after any of the adoption that follows.

Each history is recorded store by store, and a successor begins at every moment of it. Of some of those adoptions
every store is recorded again, and a third worker begins there. All must end in one ledger (``World.check``).
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.common.errors import Code
from sidecar.shm.segment import Segment

from .histories import Step, Stub, World
from .slot_harness import MemoryBroker
from .store_recorder import StoreRecorder

HISTORIES: dict[str, list[Step]] = {
    "plain": [
        ("accept", 3),
        ("metadata", 0),
        ("accept", 2),
        ("turn", 3),
        ("ack", 0),
        ("accept", 3),
        ("turn", 3),
    ],
    "pages": [
        ("metadata", 0),
        ("accept", 90),
        ("turn", 4),
        ("accept", 60),
        ("turn", 4),
        ("ack", 0),
        ("idle", 0),
    ],
    "failures": [
        ("metadata", 0),
        ("astray", 3),
        ("accept", 2),
        ("turn", 2),
        ("late", 0),
        ("turn", 2),
        ("ack", 0),
    ],
    "refused": [
        *[("metadata", 0), ("accept", 2), ("turn", 3), ("refuse", Code.NOT_ENOUGH_REPLICAS)],
        *[("accept", 2), ("turn", 1), ("accept", 2), ("turn", 4)],
    ],
    "unanswered": [
        *[
            ("metadata", 0),
            ("accept", 2),
            ("turn", 3),
            ("deaf", 0),
            ("accept", 3),
            ("turn", 1),
            ("accept", 2),
        ],
        *[("turn", 2), ("cut", 0), ("hears", 0), ("turn", 3)],
    ],
    "split": [
        ("metadata", 0),
        ("limit", 2),
        ("accept", 9),
        ("turn", 6),
        ("accept", 5),
        ("turn", 8),
        ("ack", 0),
    ],
    # Appended, not answered; then the topic takes smaller batches only: what is there is refused as too large.
    "split of what is there": [
        *[("metadata", 0), ("accept", 2), ("turn", 3), ("deaf", 0), ("accept", 8), ("turn", 2), ("cut", 0)],
        *[("hears", 0), ("limit", 3), ("turn", 9), ("accept", 2), ("turn", 4)],
    ],
}

Outside: TypeAlias = tuple[MemoryBroker, Stub]


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = new_segment(tmp_path / "segment")
    yield made
    made.close()


def new_segment(path: Path) -> Segment:
    return Segment.create(
        path, page_bytes=4096, buffer_memory_bytes=48 << 10, clients_max=4, instance_id=b"test"
    )


def recorded(world: World) -> StoreRecorder[Outside]:
    return StoreRecorder(world.segment, version=world.version, copy=world.outside)


def at(world: World, outside: Outside) -> World:
    """The same world at a moment; its segment is put back already."""
    other = World(world.segment, world.steps)
    other.broker, other.stub = copy.deepcopy(outside)
    return other


def inherit(world: World, recorder: StoreRecorder[Outside], *, step: int = 1, start: int = 0) -> int:
    """Let a successor begin at the recorded moments; returns at how many."""
    number = start
    for put_back, outside in recorder.moments(step=step, start=start):
        put_back()
        heir = at(world, outside)
        try:
            heir.finish()
            heir.check()
        except Exception as error:
            raise AssertionError(
                f"death after store {number} of {len(recorder)} ({recorder.change(number)}): {error!r}"
            ) from error
        number += step
    return (number - start) // step


@pytest.mark.slow
@pytest.mark.parametrize("name", HISTORIES)
def test_every_store_of_a_life(segment: Segment, name: str, request: pytest.FixtureRequest) -> None:
    """Every one; of the long history of many words each fourth in the short form."""
    world = World(segment, HISTORIES[name])
    with recorded(world) as recorder:
        world.live()
    step = 4 if len(recorder) > 500 and not request.config.getoption("--long") else 1
    print(f"\n{name}: {inherit(world, recorder, step=step)} deaths at {len(recorder)} moments")


@pytest.mark.slow
@pytest.mark.parametrize("name", HISTORIES)
def test_every_store_of_an_adoption(segment: Segment, name: str, request: pytest.FixtureRequest) -> None:
    """Deaths of the second worker too. Short: three first deaths, and a part of the second ones."""
    is_long = request.config.getoption("--long")
    world = World(segment, HISTORIES[name])
    with recorded(world) as recorder:
        world.live()
    random_ = random.Random(name)
    firsts = sorted(random_.sample(range(len(recorder)), 40 if is_long else 3))
    deaths = 0
    for number, (put_back, outside) in enumerate(recorder.moments()):
        if number in firsts:
            put_back()
            second = at(world, outside)
            with recorded(second) as again:
                second.finish()
            step = 1 if is_long else max(1, len(again) // 12)
            deaths += inherit(second, again, step=step, start=random_.randrange(step))
    print(f"\n{name}: {deaths} second deaths")


STEPS = st.one_of(
    st.tuples(st.just("accept"), st.integers(1, 12)),
    st.tuples(st.just("astray"), st.integers(2, 4)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
    st.tuples(st.just("refuse"), st.sampled_from([Code.NOT_ENOUGH_REPLICAS, Code.NOT_LEADER_OR_FOLLOWER])),
    st.sampled_from(
        [("deaf", 0), ("hears", 0), ("cut", 0), ("ack", 0), ("late", 0), ("idle", 0), ("metadata", 0)]
    ),
    st.tuples(st.just("limit"), st.integers(2, 6)),
)
_folders = itertools.count()


def any_history(tmp_path: Path, steps: list[Step], random_: random.Random, deaths: int) -> None:
    segment = new_segment(tmp_path / f"any-{next(_folders)}")
    try:
        world = World(segment, [("metadata", 0), ("accept", 2), *steps])
        with recorded(world) as recorder:
            world.live()
        step = max(1, len(recorder) // deaths)
        inherit(world, recorder, step=step, start=random_.randrange(step))
    finally:
        segment.close()
        (tmp_path / f"any-{next(_folders) - 1}").unlink(missing_ok=True)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=3, max_size=10), random_=st.randoms(use_true_random=False))
def test_any_history(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], random_: random.Random
) -> None:
    any_history(tmp_path_factory.getbasetemp(), steps, random_, deaths=12)


@pytest.mark.long
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=3, max_size=16), random_=st.randoms(use_true_random=False))
def test_any_history_for_long(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], random_: random.Random
) -> None:
    any_history(tmp_path_factory.getbasetemp(), steps, random_, deaths=40)
