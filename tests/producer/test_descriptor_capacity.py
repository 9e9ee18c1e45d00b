"""Descriptors bound requests, too: with a table small enough to be full."""

from __future__ import annotations

import pytest

from sidecar.producer.effects import SendProduce
from sidecar.producer.lanes import IDEMPOTENT_LANE, PLAIN_LANE
from sidecar.producer.request_capacity import DESCRIPTORS_RESERVED, NEW_BATCHES_MAX
from sidecar.producer.topic_settings import TopicRules
from sidecar.shm.descriptor_states import DescriptorEvent

from .harness import (
    TOPIC,
    Core,
    answer,
    count,
    descriptor_table,
    everywhere,
    payloads_of,
    plain_core,
    snapshot_of,
)

NOT_LEADER = 6
NOT_ENOUGH_REPLICAS = 19


def test_more_partitions_than_descriptors_are_sent_in_turns() -> None:
    core = Core(leaders=[1] * 40, descriptors=8)
    everywhere(core, "a", 40)
    turns = 0
    for requests in core.turns():
        turns += bool(requests)
        assert count(requests) <= 8
        for request in requests:
            core.acknowledge(request)
    assert turns >= 5
    assert sorted(payloads_of(core.decided)) == sorted(f"a{partition}" for partition in range(40))
    assert core.descriptors.free_count == 8 + DESCRIPTORS_RESERVED


@pytest.mark.rule("S1")
def test_a_retry_needs_no_further_descriptor() -> None:
    core = Core(leaders=[1] * 12, descriptors=8)
    everywhere(core, "a", 12)
    first = core.poll()
    assert count(first) == 8
    core.sender.on_disconnect(1, core.now_ms)
    assert core.poll() == [], "they back off, and nobody else can go"
    again = core.poll(200)
    assert count(again) == 8
    assert {batch for request in again for batch in request.batches} == {
        batch for request in first for batch in request.batches
    }
    for request in again:
        core.acknowledge(request)
    core.poll()
    assert count(core.poll()) == 4


def test_a_request_takes_all_the_descriptors_it_needs_or_none() -> None:
    core = Core(leaders=[1] * 4)
    everywhere(core, "a", 4)
    (request,) = core.poll()
    for batch in request.batches:
        core.descriptors.step(DescriptorEvent.FREE, batch.descriptor)
        batch.descriptor = -1
    small = descriptor_table(3 - DESCRIPTORS_RESERVED)
    assert not small.publish(request.batches, 1)
    assert small.free_count == 3
    assert all(batch.descriptor == -1 for batch in request.batches)
    assert small.publish(request.batches[:3], 1)
    assert small.publish(request.batches[:3], 1), "they have theirs"
    assert small.free_count == 0


def test_a_request_has_no_more_new_batches_than_leave_the_next_ones_some() -> None:
    core = Core(leaders=[1] * (NEW_BATCHES_MAX + 1))
    everywhere(core, "a", NEW_BATCHES_MAX + 1)
    assert [len(request.batches) for request in core.poll()] == [NEW_BATCHES_MAX, 1]


def test_a_broker_that_does_not_answer_leaves_descriptors_to_the_others() -> None:
    """Of what is free a broker takes half, the next one half of what is left."""
    core = Core(
        leaders=[1] * 30 + [2] * 30 + [3] * 30, descriptors=24, max_in_flight_requests_per_connection=5
    )
    everywhere(core, "silent", 30)
    taken = 0
    for requests in core.turns():
        taken += count(requests)
    assert taken == 12
    for partition in range(30, 90):
        core.append(f"a{partition}", partition=partition)
    told: list[object] = []
    for requests in core.turns():
        for request in requests:
            assert request.node_id != 1
            told += payloads_of(request.batches)
            core.acknowledge(request)
    assert len(told) == 60, "both others got all of theirs through"


@pytest.mark.rule("S1")
def test_descriptors_that_come_back_while_as_many_are_taken_are_used_at_once() -> None:
    """A poll frees four and promises four, so that as many are free as before it. The batches that found none may go:
    nothing else would wake the sender while the socket takes no byte."""
    core = Core(leaders=[1] * 12, descriptors=8)
    everywhere(core, "a", 4)
    (first,) = core.poll()
    core.links.stalled_since[1] = core.now_ms
    for partition in range(4, 12):
        core.append(f"a{partition}", partition=partition)
    core.acknowledge(first)
    (second,) = core.poll()
    assert (count([second]), core.descriptors.free_count) == (4, 4 + DESCRIPTORS_RESERVED)
    assert core.sender.next_wakeup_ms <= core.now_ms
    assert count(core.poll()) == 4


def pause(core: Core, *topics: str) -> None:
    core.accumulator.use_rules(TopicRules(core.config, paused=topics), core.now_ms)
    core.sender.wake()


@pytest.mark.rule("S1")
def test_a_paused_topic_gives_the_descriptors_back_that_its_retries_have() -> None:
    """Found by reading: halves of a batch had the whole table, and the pause kept them from their broker."""
    core = Core(leaders=[1], descriptors=3 - DESCRIPTORS_RESERVED)
    core.snapshot = snapshot_of({TOPIC: [1], "other": [1]})
    core.append(*"abcd")
    (whole,) = core.poll()
    core.respond(whole, answer(code=10))
    core.poll()
    (half,) = core.poll()
    core.respond(half, answer(code=10))
    pause(core, TOPIC)
    core.append("new")
    core.append("x", topic="other")
    for requests in core.turns():
        for request in requests:
            core.acknowledge(request)
    assert sorted(payloads_of(core.decided)) == ["a", "b", "c", "d", "x"]
    assert core.descriptors.free_count == 3
    pause(core)
    (resumed,) = core.poll()
    assert payloads_of(resumed.batches) == ["new"]


@pytest.mark.rule("S1")
@pytest.mark.parametrize("lane", [IDEMPOTENT_LANE, PLAIN_LANE], ids=["idempotent", "plain"])
def test_retries_of_a_paused_topic_leave_others_more_than_a_batch_at_a_time(lane: int) -> None:
    make = Core if lane == IDEMPOTENT_LANE else plain_core
    core = make(leaders=[1] * 9, descriptors=8)
    core.snapshot = snapshot_of({TOPIC: [1] * 9, "other": [1] * 9})
    everywhere(core, "a", 9)
    assert count(core.poll()) == 8
    core.sender.on_disconnect(1, core.now_ms)
    pause(core, TOPIC)
    for partition in range(9):
        core.append(f"x{partition}", partition=partition, topic="other")
    core.clock.advance(200)
    sent: list[list[object]] = []
    for requests in core.turns():
        for request in requests:
            sent.append(payloads_of(request.batches))
            core.acknowledge(request)
    told = payloads_of(core.decided)
    assert sorted(told) == sorted([*(f"a{each}" for each in range(8)), *(f"x{each}" for each in range(9))])
    assert max(len(each) for each in sent if str(each[0]).startswith("x")) > 1, sent


@pytest.mark.rule("A7")
def test_halves_go_out_by_their_own_descriptors_when_the_table_is_full() -> None:
    core = Core(leaders=[1], descriptors=1)
    core.append("a", "b")
    (request,) = core.poll()
    core.respond(request, answer(code=10))
    core.poll()
    (first,) = core.poll()
    assert payloads_of(first.batches) == ["a"]
    core.acknowledge(first)
    (second,) = core.poll()
    assert payloads_of(second.batches) == ["b"]


def split_before_retries(core: Core, partitions: int) -> None:
    """Halves at the head of each partition, and behind them a batch that keeps its descriptor for its next attempt."""
    for partition in range(partitions):
        core.append("a", "b", partition=partition)
    (first,) = core.poll()
    everywhere(core, "c", partitions)
    (second,) = core.poll()
    core.respond(first, *(answer(partition, 10) for partition in range(partitions)))
    core.respond(second, *(answer(partition, NOT_ENOUGH_REPLICAS) for partition in range(partitions)))


def acknowledge_all(core: Core, turns: int) -> list[object]:
    """Payloads sent meanwhile."""
    told: list[object] = []
    for _ in range(turns):
        for request in core.poll(200):
            told += payloads_of(request.batches)
            core.acknowledge(request)
    return told


@pytest.mark.rule("S1")
@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
def test_halves_that_stand_before_the_holders_of_all_descriptors_go(partitions: int) -> None:
    """Those count against their broker's share, and cannot go before the halves."""
    core = plain_core(leaders=[1] * partitions, descriptors=2 * partitions)
    split_before_retries(core, partitions)
    core.move_leaders([1] * partitions + [2])
    told = acknowledge_all(core, 3 * partitions + 3)
    assert sorted(map(str, told)) == sorted(
        ["a", "b"] * partitions + [f"c{each}" for each in range(partitions)]
    )
    assert core.descriptors.free_count == 2 * partitions + DESCRIPTORS_RESERVED


@pytest.mark.rule("S1")
def test_halves_go_by_the_last_descriptor_of_all() -> None:
    """Those that new batches leave free were taken, too: one batch at a time goes."""
    core = plain_core(leaders=[1], descriptors=2)
    split_before_retries(core, 1)
    core.poll()
    while core.descriptors.free_count > 1:
        core.descriptors.free_indexes.pop()
    assert acknowledge_all(core, 6) == ["a", "b", "c0"]


@pytest.mark.rule("S1")
def test_descriptors_of_partitions_that_have_moved_do_not_count_against_their_old_broker() -> None:
    """Their new leader cannot be reached, and the old one has other partitions."""
    core = Core(leaders=[1] * 5 + [2] * 5, descriptors=8)
    core.links.down.add(2)
    everywhere(core, "a", 4)
    (request,) = core.poll()
    assert len(request.batches) == 4
    core.respond(request, *(answer(partition, NOT_LEADER) for partition in range(4)))
    core.move_leaders([2] * 4 + [1] + [2] * 5)
    core.poll(200)
    core.append("here", partition=4)
    (request,) = core.poll()
    assert (request.node_id, payloads_of(request.batches)) == (1, ["here"])


@pytest.mark.rule("S1")
def test_a_broker_that_refuses_everything_takes_no_more_than_its_share() -> None:
    """Also while all that it has backs off and nothing is in flight."""
    core = Core(leaders=[1] * 30 + [2], descriptors=8)
    everywhere(core, "refused", 30)
    for _ in range(20):
        for requests in core.turns():
            for request in requests:
                core.respond(
                    request, *(answer(batch.partition, NOT_ENOUGH_REPLICAS) for batch in request.batches)
                )
        core.poll(50)
    assert core.descriptors.free_count == 4 + DESCRIPTORS_RESERVED


def test_descriptors_that_splits_take_are_not_promised_to_requests() -> None:
    """One that found none at its publication would be overtaken by the next one, which needs fewer."""
    core = Core(leaders=[1] * 120, descriptors=120)
    for partition in range(100):
        core.append("a", "b", partition=partition)
    (request,) = core.poll()
    for partition in range(100, 120):
        core.append("c", partition=partition)
    core.respond(request, *(answer(partition, 10) for partition in range(100)))
    told: list[object] = []
    while len(told) < 220:
        sent = core.poll()
        assert len(sent) == len(core.of(SendProduce)), "each that was made was published"
        for each in sent:
            told += payloads_of(each.batches)
            core.acknowledge(each)
