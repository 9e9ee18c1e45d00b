"""Random histories of Metadata: whatever is asked and answered in whatever order, rules M1-M3 and M6 hold."""

from __future__ import annotations

import random

import pytest

from sidecar.metadata.metadata import Metadata, MetadataConfig
from tests.configs import config_with
from tests.manual_clock import ManualClock

from .answers import answer, good, topic

NAMES = "abcdef"
IDLE_MS = 5_000.0
BACKOFF_MS = 100.0


class History:
    """One seeded run: a driver that asks when Metadata says so, a cluster that answers late, wrong or not."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        config = config_with(MetadataConfig, metadata_max_idle_ms=IDLE_MS, metadata_max_age_ms=2_000.0)
        self.metadata = Metadata(config, self.rng.random)
        self.asked: frozenset[str] | None = None
        self.answer_at_ms = 0.0
        self.last_end_ms = float("-inf")
        self.last_use_ms: dict[str, float] = {}
        self.requests = 0

    def step(self) -> None:
        now_ms = self.clock.advance(self.rng.choice([0, 1, 20, 100, 400]))
        for name in self.rng.sample(NAMES, self.rng.choice([0, 0, 1, 2])):
            is_new = name not in self.metadata.topics
            assert self.metadata.add(name, now_ms) == is_new, "M1: only a new topic is news"
            self.last_use_ms[name] = now_ms
        if self.rng.random() < 0.1:
            assert self.metadata.request_update() == self.metadata.version
            assert self.metadata.need_update
        if self.asked is None:
            self._maybe_ask(now_ms)
        elif now_ms >= self.answer_at_ms:
            self._hear(self.asked, now_ms)

    def _maybe_ask(self, now_ms: float) -> None:
        if self.metadata.time_to_next_update(now_ms) > 0:
            return
        assert now_ms - self.last_end_ms >= BACKOFF_MS, "M6: two updates are the backoff apart"
        self.asked = self.metadata.topics
        self.answer_at_ms = now_ms + self.rng.choice([0, 5, 300])
        self.requests += 1

    def _hear(self, asked: frozenset[str], now_ms: float) -> None:
        metadata, version, in_use = self.metadata, self.metadata.version, self.metadata.topics
        self.asked = None
        self.last_end_ms = now_ms
        if self.rng.random() < 0.2:
            metadata.failed_update(now_ms)
            assert metadata.version == version
            assert metadata.topics == in_use
            return
        heard = [
            topic(name, error=self.rng.choice([3, 5, 29])) if self.rng.random() < 0.2 else good(name)
            for name in asked
        ]
        result = metadata.update(answer(*heard), now_ms, requested=asked)
        assert metadata.version == version + 1, "M3"
        assert result.expired == in_use - metadata.topics
        for name in result.expired:
            assert now_ms - self.last_use_ms[name] >= IDLE_MS, "M2: only the unused are dropped"
        assert set(metadata.snapshot.topics) <= metadata.topics
        assert set(metadata.topic_errors) <= metadata.topics
        if in_use - asked:
            assert metadata.need_update, "M1: what came meanwhile is asked for next"


@pytest.mark.rule("M1")
@pytest.mark.rule("M2")
@pytest.mark.rule("M3")
@pytest.mark.rule("M6")
@pytest.mark.parametrize("seed", range(40))
def test_a_random_history_keeps_the_rules(seed: int) -> None:
    history = History(seed)
    for _ in range(400):
        history.step()
    assert history.requests > 10
    # Liveness: with the cluster answering, everything in use becomes known.
    metadata, clock = history.metadata, history.clock
    for name in NAMES:
        metadata.add(name, clock.now_ms())
    metadata.request_update()
    clock.advance(1_000)
    assert metadata.time_to_next_update(clock.now_ms()) == 0
    metadata.update(answer(*(good(name) for name in NAMES)), clock.now_ms())
    assert all(metadata.snapshot.partition_count(name) == 2 for name in NAMES)
    assert not metadata.need_update
