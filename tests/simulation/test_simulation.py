"""Seeded runs of the producer core against the cluster model. A failing seed is named; run it alone with
``SIMULATION_SEED=n pytest tests/simulation``, and as many as you like with ``SIMULATION_SEEDS=100000 pytest --long
tests/simulation``."""

from __future__ import annotations

import logging
import os
from collections import Counter

import pytest

from .sim_world import SimWorld

SEEDS = 400
SEEDS_LONG = 10_000
FAULTS = {
    "answer stalled",
    "asked about an old batch: send_again",
    "asked about an old batch: unknown",
    "batch of a forgotten id taken",
    "batch split",
    "batches renumbered",
    "connection cut",
    "duplicate recognised",
    "error after append",
    "id forgotten after a silence",
    "id forgotten by timestamps",
    "late copy processed",
    "leader moved",
    "leader silent",
    "old topic id refused",
    "producer id refused",
    "refused before append",
    "refused for good",
    "refused with 10 by the log",
    "refused with 32 by the log",
    "refused with 45 by the log",
    "refused with 87 by the log",
    "request not sent",
    "sent to another than the leader",
    "throttled",
    "told as failed, not_persisted",
    "told as failed, possibly_persisted",
    "too few replicas",
    "too few replicas after a silence",
    "topic compacted",
    "topic made anew",
    "topic not there",
    "topic takes no older records",
    "topic's limit lowered",
}
"""What the model can do wrong: all of it must have happened in a run of some size."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of runs with faults on purpose: their warnings say nothing."""
    caplog.set_level(logging.CRITICAL, logger="sidecar")


def run_seeds(seeds: range) -> Counter[str]:
    """How often each kind of fault struck."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        world = SimWorld(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed} failed (SIMULATION_SEED={seed}): {error}") from error
        happened += world.happened
    return happened


@pytest.mark.rule("S4")
@pytest.mark.rule("A6")
@pytest.mark.rule("A8")
def test_nothing_is_lost_doubled_or_reordered_under_faults() -> None:
    """accepted = delivered + failed, each told once; nothing twice in the log; order kept per partition."""
    seed = os.environ.get("SIMULATION_SEED")
    if seed is not None:
        run_seeds(range(int(seed), int(seed) + 1))
        return
    assert run_seeds(range(SEEDS)).keys() >= FAULTS


@pytest.mark.long
@pytest.mark.rule("S4")
def test_nothing_is_lost_doubled_or_reordered_under_faults_long(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints how often each kind of fault struck."""
    seeds = int(os.environ.get("SIMULATION_SEEDS", SEEDS_LONG))
    happened = run_seeds(range(SEEDS, SEEDS + seeds))
    with capsys.disabled():
        print(f"\n{seeds:,} seeds; faults:")
        for kind, times in happened.most_common():
            print(f"{times:12,} {kind}")
    assert happened.keys() >= FAULTS


def test_a_seed_replays_exactly() -> None:
    first, second = SimWorld(7), SimWorld(7)
    first.run()
    second.run()
    assert first.ledger.fates == second.ledger.fates
    assert first.happened == second.happened
    assert logs_of(first) == logs_of(second)


def logs_of(world: SimWorld) -> list[list[object]]:
    return [log.records for generation in world.cluster.generations for log in generation.values()]
