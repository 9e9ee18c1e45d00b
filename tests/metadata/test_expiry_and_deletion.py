"""Goal: expiry at the controller never looks like deletion to a worker that uses the topic. A deletion is reported to
every worker that does, whatever the controller had forgotten and the worker had missed."""

from __future__ import annotations

import random

import pytest

from sidecar.common.control import UpdateMetadata
from sidecar.metadata.cache import MetadataCache
from sidecar.metadata.diff import diff_snapshots, partition_updates
from sidecar.metadata.metadata import DELETION_ANSWERS, DELETION_MS, Metadata, MetadataConfig
from tests.configs import config_with
from tests.manual_clock import ManualClock

from .answers import answer, good, topic, topic_id

NAMES = "abcd"
IDLE_MS = 5_000.0


class Worker:
    """Keeps its cache by what it hears, and may miss updates: then one full update comes in their place."""

    def __init__(self) -> None:
        self.cache = MetadataCache(worker_epoch=1)
        self.in_use: set[str] = set()
        self.lags = False
        self.has_missed = False

    def hear(self, update: UpdateMetadata) -> tuple[set[str], set[str]]:
        """(topics of which something was deleted, topics to ask for)."""
        in_use = self.in_use if update.is_full else set[str]()
        deleted = self.cache.update_metadata(update, in_use, self.in_use)
        named = {each.topic for each in update.partitions}
        return {each.topic for each in deleted}, in_use & self.cache.current.topics.keys() - named


class World:
    """One cluster, one Metadata, three workers; every step is a second or so."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.metadata = Metadata(config_with(MetadataConfig, metadata_max_idle_ms=IDLE_MS), self.rng.random)
        self.workers = [Worker() for _ in range(3)]
        self.ids = dict.fromkeys(NAMES, 1)
        """Topics that are there, with their ids."""
        self.made = 1
        self.wrongly: list[str] = []
        self.seen = {"expired": 0, "gone": 0, "full": 0}

    def step(self) -> None:
        self.clock.advance(self.rng.choice([100, 700, 1_500, 6_000]))
        for name in NAMES:
            roll = self.rng.random()
            if roll < 0.05 and name in self.ids:
                del self.ids[name]
            elif roll > 0.85 and name not in self.ids:
                self.made += 1
                self.ids[name] = self.made
        for worker in self.workers:
            worker.lags = self.rng.random() < 0.3
            worker.in_use = {name for name in NAMES if self.rng.random() < 0.4}
            if self.rng.random() < 0.8:  # its word that it uses them may come late
                for name in worker.in_use:
                    self.metadata.add(name, self.clock.now_ms())
        self.ask()

    def ask(self) -> None:
        asked = self.metadata.topics
        heard = [
            good(name, id=topic_id(self.ids[name])) if name in self.ids else topic(name, error=3)
            for name in asked
        ]
        result = self.metadata.update(answer(*heard), self.clock.now_ms(), requested=asked)
        self.seen["expired"] += len(result.expired)
        self.seen["gone"] += len(result.gone)
        updates = diff_snapshots(*result).partitions
        asks: set[str] = set()
        for worker in self.workers:
            if worker.lags:
                worker.has_missed = True
                continue
            is_full, worker.has_missed = worker.has_missed, False
            self.seen["full"] += is_full
            told = tuple(partition_updates(result.new)) if is_full else updates
            before = worker.cache.current
            deleted, unnamed = worker.hear(UpdateMetadata(1, 1, 1, (), told, is_full=is_full))
            for name in deleted & worker.in_use:
                state = before.topics.get(name)
                is_same = (
                    state is not None and name in self.ids and state.topic_id == topic_id(self.ids[name])
                )
                if is_same and name in result.new.topics:
                    self.wrongly.append(name)
            asks |= unnamed
        self.metadata.recheck(asks)
        for name in asks:
            self.metadata.add(name, self.clock.now_ms())


@pytest.mark.rule("U1")
@pytest.mark.rule("U4")
@pytest.mark.parametrize("seed", range(40))
def test_users_of_a_topic_end_with_its_true_state(seed: int) -> None:
    world = World(seed)
    for _ in range(120):
        world.step()
    assert not world.wrongly, "nothing that is there was taken for deleted"
    for worker in world.workers:
        worker.lags = False
    for _ in range(2 * DELETION_ANSWERS + 2):  # nothing changes any more, and all is in use
        for worker in world.workers:
            worker.in_use = set(NAMES)
        for name in NAMES:
            world.metadata.add(name, world.clock.now_ms())
        world.clock.advance(DELETION_MS / 2)
        world.ask()
    for worker in world.workers:
        known = {name: state.topic_id for name, state in worker.cache.current.topics.items()}
        assert known == {name: topic_id(id) for name, id in world.ids.items()}


def test_the_histories_had_it_all() -> None:
    seen = {"expired": 0, "gone": 0, "full": 0}
    for seed in range(40):
        world = World(seed)
        for _ in range(120):
            world.step()
        for kind, times in world.seen.items():
            seen[kind] += times
    assert min(seen.values()) > 100, seen
