"""Seeded runs of transactions over faults and deaths, judged by a reader of committed records (``lane_world.py``).

The variables are those of test_simulation.py: ``SIMULATION_SEED=n`` runs one seed, and ``SIMULATION_SEEDS=5000 pytest
--long`` as many as you like, from ``SIMULATION_FIRST`` on.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from .lane_client import Plan
from .lane_world import LaneWorld, new_segment

SEEDS: Final = 60
SEEDS_LONG: Final = 5_000
FAULTS: Final = {
    "NOT_COORDINATOR",
    "aborted",
    "batch refused with 47",
    "client died",
    "committed",
    "duplicate recognised",
    "lose_answer",
    "lose_request",
    "late_request",
    "refuse_batch",
    "taken over",
    "timed out",
    "topic made anew",
    "unknown",
    "worker died",
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of runs with faults on purpose: their warnings say nothing."""
    caplog.set_level("CRITICAL", logger="sidecar")


def draw_plans(draw: random.Random) -> list[Plan]:
    def plan() -> Plan:
        sends = tuple(
            (draw.choice("ab"), draw.choice((1, 1, 2, 5))) for _ in range(draw.choice((0, 1, 2, 2, 4)))
        )
        gap_ms = draw.choice((0.1, 2.0, 10.0, 60.0))
        return Plan(sends, draw.random() < 0.4, draw.random() < 0.75, gap_ms, draw.random() < 0.3)

    return [plan() for _ in range(draw.choice((1, 3, 6)))]


def play(seed: int, path: Path) -> Counter[str]:
    """One run. Returns how often each kind of fault struck."""
    segment = new_segment(path)
    try:
        return _play(LaneWorld(segment, version=seed % 3, seed=seed, linger_ms=(0.0, 5.0)[seed // 3 % 2]))
    finally:
        segment.close()
        path.unlink()


def _play(world: LaneWorld) -> Counter[str]:
    draw = world.random
    for fault in ("lose_request", "late_request", "lose_answer", "refuse_batch"):
        world.rates[fault] = draw.choice((0.0, 0.0, 0.02, 0.1))  # type: ignore[assignment]
    world.begin_worker()
    # A short timeout lets the coordinator abort what is open; one id may belong to two clients at once.
    timeout_ms = draw.choice((60_000, 60_000, 150))
    # A client that is away for its delivery timeout gives up what it has sent.
    world.absent_ms_max, delivery_timeout_ms = draw.choice(
        ((30.0, 600_000.0), (30.0, 600_000.0), (600.0, 150.0))
    )
    names = ["id-1", "id-2"] if draw.random() < 0.7 else ["id-1", "id-1"]
    for number, name in enumerate(names):
        begins_ms = world.now_ms + draw.choice((0.0, 5.0, 150.0))
        plans, label = draw_plans(draw), f"c{number}"
        world.at(
            begins_ms,
            partial(
                world.add_client,
                label,
                name,
                plans,
                timeout_ms=timeout_ms,
                delivery_timeout_ms=delivery_timeout_ms,
            ),
        )
    world.happened["taken over"] += names[0] == names[1]
    if draw.random() < 0.3:
        at_ms = world.now_ms + draw.uniform(20.0, 300.0)
        world.at(at_ms, lambda: world.kill_client(draw.choice(world.clients)) if world.clients else None)
    if draw.random() < 0.25:
        world.at(world.now_ms + draw.uniform(5.0, 300.0), lambda: world.make_topic_anew(draw.choice("ab")))
    if draw.random() < 0.3:
        world.at(world.now_ms + draw.uniform(5.0, 300.0), world.move_coordinator)
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        moment, stores = round(draw.expovariate(1 / 200)) + 1, draw.choice((0, 0, 1, 2))
        world.at(
            world.now_ms + draw.uniform(0.0, 400.0),
            partial(world.doom, moment, stores),
        )
    world.run(lambda: len(world.clients) == len(names))
    world.finish()
    world.check()
    world.happened["timed out"] += world.cluster.coordinator.timed_out
    for client in world.clients:
        for each in client.told:
            world.happened[each.result] += 1
    return world.happened


def play_all(seeds: range, folder: Path) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            happened += play(seed, folder / f"segment-{seed}")
        except Exception as error:
            raise AssertionError(f"seed {seed} failed (SIMULATION_SEED={seed}): {error}") from error
    return happened


@pytest.mark.slow
def test_each_transaction_is_whole_and_as_it_was_told(tmp_path: Path) -> None:
    seed = os.environ.get("SIMULATION_SEED")
    if seed is not None:
        play_all(range(int(seed), int(seed) + 1), tmp_path)
        return
    assert play_all(range(SEEDS), tmp_path).keys() >= FAULTS


@pytest.mark.long
def test_each_transaction_is_whole_and_as_it_was_told_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints how often each kind of fault struck."""
    seeds = int(os.environ.get("SIMULATION_SEEDS", SEEDS_LONG))
    first = int(os.environ.get("SIMULATION_FIRST", SEEDS))
    happened = play_all(range(first, first + seeds), tmp_path)
    with capsys.disabled():
        print(f"\n{seeds:,} seeds from {first:,} on, with transactions; faults:")
        for kind, times in happened.most_common():
            print(f"{times:12,} {kind}")
    assert happened.keys() >= FAULTS


def test_a_seed_of_transactions_replays_exactly(tmp_path: Path) -> None:
    assert play(4, tmp_path / "first") == play(4, tmp_path / "second")
