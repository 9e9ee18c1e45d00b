"""Seeded runs in which workers die and others adopt. The variables are those of test_simulation.py."""

from __future__ import annotations

import os

import pytest

from .mortal_world import MortalWorld
from .test_simulation import SEEDS_LONG, run_seeds

SEEDS = 120
FAULTS = {
    "asked about a dead worker's: send_again",
    "asked about a dead worker's: unknown",
    "batch adopted",
    "batch split",
    "duplicate recognised",
    "worker died",
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of runs with faults on purpose: their warnings say nothing."""
    caplog.set_level("CRITICAL", logger="sidecar")


@pytest.mark.rule("S4")
@pytest.mark.slow
def test_nothing_is_lost_doubled_or_reordered_over_deaths() -> None:
    seed = os.environ.get("SIMULATION_SEED")
    if seed is not None:
        run_seeds(range(int(seed), int(seed) + 1), MortalWorld)
        return
    assert run_seeds(range(SEEDS), MortalWorld).keys() >= FAULTS


@pytest.mark.long
@pytest.mark.rule("S4")
def test_nothing_is_lost_doubled_or_reordered_over_deaths_long(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = int(os.environ.get("SIMULATION_SEEDS", SEEDS_LONG))
    first = int(os.environ.get("SIMULATION_FIRST", SEEDS))
    happened = run_seeds(range(first, first + seeds), MortalWorld)
    with capsys.disabled():
        print(f"\n{seeds:,} seeds from {first:,} on, with deaths; faults:")
        for kind, times in happened.most_common():
            print(f"{times:12,} {kind}")
    assert happened.keys() >= FAULTS
