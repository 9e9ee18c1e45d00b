"""Seeded runs of the producer core against the cluster model. A failing seed is named; run it alone with
``SIMULATION_SEED=n pytest tests/simulation``, and as many as you like with ``SIMULATION_SEEDS=100000 pytest --long
tests/simulation``, from ``SIMULATION_FIRST`` on."""

from __future__ import annotations

import logging
import os
from collections import Counter
from math import inf

import pytest
from producer.harness import ready_nodes, take_batches

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.producer.batch_states import BatchState
from sidecar.producer.producer_batch import ProducerBatch

from .sim_calm import SimCalm
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
    "id forgotten between two batches",
    "id forgotten by timestamps",
    "late copy processed",
    "leader moved",
    "leader silent",
    "metadata of an earlier topic",
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
    "topic paused",
    "topic takes no older records",
    "topic's limit lowered",
    "went express",
    "partition rested",
    "epoch begun for resting partitions",
}
"""Faults of the model: all of them must have happened in a run of some size."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of runs with faults on purpose: their warnings say nothing."""
    caplog.set_level(logging.CRITICAL, logger="sidecar")


def run_seeds(seeds: range, make: type[SimWorld] = SimWorld) -> Counter[str]:
    """How often each kind of fault struck."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        world = make(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed} failed (SIMULATION_SEED={seed}): {error}") from error
        happened += world.happened
    return happened


@pytest.mark.rule("S4")
@pytest.mark.rule("A6")
@pytest.mark.rule("A8")
@pytest.mark.slow
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
    first = int(os.environ.get("SIMULATION_FIRST", SEEDS))
    happened = run_seeds(range(first, first + seeds))
    with capsys.disabled():
        print(f"\n{seeds:,} seeds from {first:,} on; faults:")
        for kind, times in happened.most_common():
            print(f"{times:12,} {kind}")
    assert happened.keys() >= FAULTS


def test_a_seed_replays_exactly() -> None:
    first, second = SimWorld(7), SimWorld(7)
    first.run()
    second.run()
    assert first.ledger.outcomes == second.ledger.outcomes
    assert first.happened == second.happened
    assert logs_of(first) == logs_of(second)


def test_only_a_calm_within_a_records_own_time_counts() -> None:
    """The rule that runs are judged by: a record may expire under faults, and not after a long calm."""
    calm = SimCalm()
    assert calm.longest_ms(0, 120_000) == 0
    calm.begin(2_000)
    assert calm.longest_ms(0, 120_000) == 118_000, "it lasts"
    calm.begin(3_000)
    calm.end(50_000)
    assert calm.longest_ms(0, 120_000) == 48_000
    assert calm.longest_ms(30_000, 150_000) == 20_000
    calm.begin(100_000)
    assert calm.longest_ms(40_000, 160_000) == 60_000, "one calm, not the sum of two"


def test_a_broker_holds_still_until_the_copy_that_follows_its_answer_arrives() -> None:
    """Also when the batch was given up after the request with its copy was made: that one leaves all the same."""
    world = plain_world()
    world.submit()
    batch, *_ = world.accumulator.incomplete.oldest_first()
    world.asked[batch] = batch.attempts
    assert not world.may_check(), "it waits in its queue"
    drain(world, batch)
    assert not world.may_check(), "it is on its way"
    batch.decide(code=LocalCode.EXPIRED, persistence=Persistence.POSSIBLY_PERSISTED, text="expired")
    assert not world.may_check(), "it still is, though its time has ended"
    batch.leave_wire()
    assert world.may_check(), "nothing more comes of it"


def test_a_broker_holds_still_for_the_halves_of_a_batch_that_it_was_asked_about() -> None:
    world = plain_world()
    for _ in range(10):
        world.submit()
    batch = next(each for each in world.accumulator.incomplete.oldest_first() if each.records.count > 1)
    world.asked[batch] = batch.attempts
    drain(world, batch)
    batch.leave_wire()
    halves = batch.split()
    world.accumulator.replace(batch, halves, world.now_ms)
    for half in halves:
        assert not world.may_check()
        drain(world, half)
        half.decide(code=LocalCode.EXPIRED, persistence=Persistence.POSSIBLY_PERSISTED, text="expired")
    assert not world.may_check(), "both have their outcome and are on their way"
    for half in halves:
        half.leave_wire()
    assert world.may_check()


def plain_world() -> SimWorld:
    """Without sequences, so that both halves of a batch may be on the wire at once; nobody passes anybody."""
    found = next(
        world
        for world in map(SimWorld, range(1_000))
        if world.config.batch_size > 500
        and not world.idempotent
        and world.config.max_in_flight_requests_per_connection > 1
    )
    found.client_count = 1
    return found


def drain(world: SimWorld, batch: ProducerBatch) -> None:
    """Into a request, with the first batch of every other partition."""
    world.accumulator.schedule.begin_close(world.now_ms)
    world.accumulator.follow(world.snapshot, world.now_ms)
    for node_id in ready_nodes(world.accumulator.schedule):
        take_batches(world, node_id, world.lane, inf, world.now_ms)
    assert batch.state is BatchState.ON_WIRE


def logs_of(world: SimWorld) -> list[list[object]]:
    return [log.records for generation in world.cluster.generations for log in generation.values()]
