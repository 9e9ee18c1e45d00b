"""Seeded runs of the producer core against the cluster model. A failing seed is named; run it alone with
``SIMULATION_SEED=n pytest tests/simulation``."""

from __future__ import annotations

import logging
import os

import pytest

from .sim_world import SimWorld

SEEDS = 400
SEEDS_LONG = 10_000


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of runs with faults on purpose: their warnings say nothing."""
    caplog.set_level(logging.CRITICAL, logger="sidecar")


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        try:
            SimWorld(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed} failed (SIMULATION_SEED={seed}): {error}") from error


@pytest.mark.rule("S4")
@pytest.mark.rule("A6")
@pytest.mark.rule("A8")
def test_nothing_is_lost_doubled_or_reordered_under_faults() -> None:
    """accepted = delivered + failed, each told once; nothing twice in the log; order kept per partition."""
    seed = os.environ.get("SIMULATION_SEED")
    run_seeds(range(SEEDS) if seed is None else range(int(seed), int(seed) + 1))


@pytest.mark.long
@pytest.mark.rule("S4")
def test_nothing_is_lost_doubled_or_reordered_under_faults_long() -> None:
    run_seeds(range(SEEDS, SEEDS + SEEDS_LONG))


def test_a_seed_replays_exactly() -> None:
    first, second = SimWorld(7), SimWorld(7)
    first.run()
    second.run()
    assert first.ledger.fates == second.ledger.fates
    assert {n: log.records for n, log in first.logs.items()} == {
        n: log.records for n, log in second.logs.items()
    }
