"""Goal: a partition of a forgotten topic costs a number, and no record is doubled or refused when it is used again.
Beyond some thousand such partitions even the numbers go.
"""

from __future__ import annotations

import sys
from uuid import UUID

import pytest

from sidecar.common.errors import Code
from sidecar.kernel import StickyPartitioner
from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lane_queues import RESTING_MAX
from sidecar.producer.lanes import IDEMPOTENT_LANE, PLAIN_LANE
from sidecar.producer.partition_queue import PartitionQueue
from sidecar.producer.producer_batch import ProducerBatch

from .harness import PRODUCER_ID, TOPIC, Core, answer, snapshot_of


def deliver(core: Core, *payloads: str, partition: int = 0) -> ProducerBatch:
    """Send the records in one batch, which the broker takes."""
    core.append(*payloads, partition=partition)
    (request,) = core.poll()
    (batch,) = request.batches
    core.respond(request, answer(partition))
    core.poll()
    return batch


def queue_of(core: Core, partition: int = 0) -> PartitionQueue:
    return core.accumulator.queue(TOPIC, core.lane, partition)


@pytest.mark.rule("S4")
def test_a_partition_continues_with_its_next_number_when_its_topic_is_used_again() -> None:
    core = Core()
    before = queue_of(core)
    assert deliver(core, "a", "b", "c").base_sequence == 0
    core.accumulator.forget_topic(TOPIC, core.lane)
    assert not core.accumulator.lanes[core.lane].of(TOPIC)
    assert queue_of(core) is not before
    batch = deliver(core, "d")
    assert (batch.producer_id, batch.epoch, batch.base_sequence) == (PRODUCER_ID, 0, 3)
    assert deliver(core, "e").base_sequence == 4


def test_a_lane_without_sequences_keeps_nothing() -> None:
    core = Core(lane=PLAIN_LANE, acks=1, enable_idempotence=False)
    deliver(core, "a")
    core.accumulator.forget_topic(TOPIC, core.lane)
    lane = core.accumulator.lanes[core.lane]
    assert not (lane.of(TOPIC) or lane._resting or lane._forgotten)


@pytest.mark.rule("S4")
def test_queue_of_a_forgotten_topic_stays_until_its_batch_is_answered() -> None:
    core = Core()
    core.append("a", "b")
    (request,) = core.poll()
    before, lane = queue_of(core), core.accumulator.lanes[core.lane]
    core.accumulator.forget_topic(TOPIC, core.lane)
    assert queue_of(core) is before
    core.respond(request, answer())
    core.poll()
    assert not (lane.of(TOPIC) or lane._forgotten) and len(lane._resting) == 1
    assert deliver(core, "c").base_sequence == 2


def give_up_on_the_wire(core: Core) -> ProduceRequest:
    """A batch expires while its request has no answer, and its topic is forgotten."""
    core.append("lost")
    (request,) = core.poll()
    core.sender.give_up(request.batches[0], Code.UNKNOWN_SERVER_ERROR, "given up", core.now_ms)
    core.poll()
    core.accumulator.forget_topic(TOPIC, core.lane)
    assert core.accumulator.lanes[core.lane].of(TOPIC)
    return request


@pytest.mark.rule("S4")
def test_late_answer_lets_a_forgotten_partition_rest() -> None:
    """A batch was given up, and its late answer shows that the broker has it. A later gap takes a new epoch."""
    core = Core()
    lane = core.accumulator.lanes[core.lane]
    core.respond(give_up_on_the_wire(core), answer())
    core.poll()
    assert not (lane.of(TOPIC) or lane._forgotten) and len(lane._resting) == 1
    sequences = queue_of(core).sequences
    assert sequences is not None and sequences.takes_epoch
    assert deliver(core, "b").base_sequence == 1


@pytest.mark.rule("S4")
def test_lost_answer_lets_a_forgotten_partition_go() -> None:
    """Nobody knows whether the broker has the batch, so the partition would begin under a new epoch."""
    core = Core()
    lane = core.accumulator.lanes[core.lane]
    give_up_on_the_wire(core)
    core.sender.on_disconnect(1, core.now_ms, reason="cut")
    core.poll()
    assert not (lane.of(TOPIC) or lane._forgotten or lane._resting)
    batch = deliver(core, "b")
    assert (batch.epoch, batch.base_sequence) == (1, 0)


@pytest.mark.rule("S4")
def test_late_answers_count_towards_the_limit_of_resting_partitions() -> None:
    core = Core()
    lane = core.accumulator.lanes[core.lane]
    lane.resting_max = 0
    core.respond(give_up_on_the_wire(core), answer())
    core.poll()
    assert not (lane.of(TOPIC) or lane._forgotten or lane._resting)
    assert core.ids.identity == (PRODUCER_ID, 1)


def test_topic_that_is_used_again_keeps_its_queue_when_an_old_batch_is_answered() -> None:
    core = Core()
    core.append("a")
    (first,) = core.poll()
    queue = queue_of(core)
    core.accumulator.forget_topic(TOPIC, core.lane)
    core.append("b")
    (second,) = core.poll()
    core.respond(first, answer())
    core.respond(second, answer())
    core.poll()
    assert queue_of(core) is queue


@pytest.mark.rule("S4")
def test_beyond_the_limit_partitions_begin_again_under_a_new_epoch() -> None:
    core = Core(leaders=(1, 1, 1, 1))
    lane = core.accumulator.lanes[IDEMPOTENT_LANE]
    assert lane.resting_max == RESTING_MAX
    lane.resting_max = 2
    for partition in range(3):
        assert deliver(core, "a", "b", partition=partition).epoch == 0
    assert deliver(core, "other", partition=3).base_sequence == 0
    for partition in range(3):
        queue_of(core, partition)
    core.accumulator.forget_topic(TOPIC, core.lane)
    assert not lane._resting
    assert core.ids.identity == (PRODUCER_ID, 1)
    assert core.ids.epoch_bumps == 0, "nothing went wrong"
    batch = deliver(core, "c")
    assert (batch.epoch, batch.base_sequence) == (1, 0)


@pytest.mark.rule("S4")
def test_a_partition_with_batches_under_way_changes_its_epoch_after_them() -> None:
    core = Core(leaders=(1, 1))
    core.append("a")
    (request,) = core.poll()
    core.ids.begin_epoch()
    core.append("b")
    assert not core.poll(), "the old epoch's batch is not answered yet"
    core.respond(request, answer())
    (second,) = core.poll()
    assert [(each.epoch, each.base_sequence) for each in (*request.batches, *second.batches)] == [
        (0, 0),
        (1, 0),
    ]


@pytest.mark.rule("S4")
def test_a_topic_that_was_recreated_while_its_partitions_rested_is_known_to_be() -> None:
    core = Core()
    deliver(core, "a")
    core.accumulator.forget_topic(TOPIC, core.lane)
    for version, topic_id in ((2, UUID(int=1)), (3, UUID(int=2))):
        core.snapshot = snapshot_of({TOPIC: [1]}, version=version, topic_id=topic_id)
        core.poll()
    sequences = queue_of(core).sequences
    assert sequences is not None
    assert (sequences.next_sequence, sequences.recreations, sequences.takes_epoch) == (1, 1, True)


def test_a_resting_partition_costs_a_tenth_of_a_queue() -> None:
    core = Core()
    deliver(core, "a")
    queue = queue_of(core)
    parts = (
        queue.batches,
        queue.express,
        queue.sequences,
        queue.sequences.in_flight if queue.sequences else None,
    )
    queue_bytes = sys.getsizeof(queue) + sum(map(sys.getsizeof, parts))
    core.accumulator.forget_topic(TOPIC, core.lane)
    ((key, number),) = core.accumulator.lanes[core.lane]._resting.items()
    assert 10 * (sys.getsizeof(key) + sys.getsizeof(number)) < queue_bytes


def test_a_topic_that_is_used_again_keeps_its_partitioner_over_the_next_epoch() -> None:
    """Its queue stayed, as a batch was in flight; the epoch begins when another topic is forgotten."""
    core = Core()
    lane = core.accumulator.lanes[core.lane]
    core.append("a")
    core.poll()
    core.accumulator.forget_topic(TOPIC, core.lane)
    again = StickyPartitioner(1, [0], 16_384, 1)
    lane.follow_loads(TOPIC, again)
    lane.resting_max = -1
    core.accumulator.forget_topic("another", core.lane)
    assert queue_of(core).partitioner is again
