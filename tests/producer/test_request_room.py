"""What bounds a request besides its size: descriptors and request buffers, with tables small enough to be full."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from sidecar.producer.effects import CloseLink, LeaderHints, SendProduce
from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lanes import IDEMPOTENT_LANE, LANES, PLAIN_LANE
from sidecar.producer.request_room import DESCRIPTORS_RESERVED, NEW_BATCHES_MAX
from sidecar.producer.sender import STALLED_MS_MAX
from sidecar.producer.topic_settings import TopicRules
from sidecar.worker.fates.publication import publish_all

from .harness import TOPIC, Core, answer, descriptor_table, payloads_of, snapshot_of

NOT_LEADER = 6
NOT_ENOUGH_REPLICAS = 19
LARGEST = 100_000
TWO_BUFFERS = {"max_request_size": LARGEST, "request_buffers_bytes": 2 * LARGEST, "batch_size": LARGEST}


def everywhere(core: Core, payload: str, partitions: int) -> None:
    for partition in range(partitions):
        core.append(f"{payload}{partition}", partition=partition)


def count(requests: list[ProduceRequest]) -> int:
    return sum(len(request.batches) for request in requests)


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
    assert sorted(payloads_of(core.completed)) == sorted(f"a{partition}" for partition in range(40))
    assert core.descriptors.free_count == 8 + DESCRIPTORS_RESERVED


@pytest.mark.rule("S1")
def test_what_is_sent_again_needs_no_further_descriptor() -> None:
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
        core.descriptors.free(batch.descriptor)
        batch.descriptor = -1
    small = descriptor_table(3 - DESCRIPTORS_RESERVED)
    assert not publish_all(small, request.batches, 1)
    assert small.free_count == 3
    assert all(batch.descriptor == -1 for batch in request.batches)
    assert publish_all(small, request.batches[:3], 1)
    assert publish_all(small, request.batches[:3], 1), "they have theirs"
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
    assert sorted(payloads_of(core.completed)) == ["a", "b", "c", "d", "x"]
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
    told = payloads_of(core.completed)
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


def plain_core(**settings: Any) -> Core:
    """Acks 1: halves of a batch get descriptors when they are sent."""
    return Core(lane=PLAIN_LANE, acks=1, enable_idempotence=False, **settings)


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
    """What was sent meanwhile."""
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


@pytest.mark.rule("S5")
def test_nothing_new_is_drained_for_a_link_that_is_about_to_be_closed() -> None:
    """What it is drained for comes back with the rest, and would be in doubt without a byte sent."""
    core = Core(leaders=[1, 1], request_timeout_ms=3000)
    core.send("a")
    core.append("b", partition=1)
    assert core.poll(3000) == []
    assert [effect.node_id for effect in core.of(CloseLink)] == [1]
    assert not core.of(SendProduce), "not even to be taken back"
    (request,) = core.poll()
    (batch,) = request.batches
    assert payloads_of([batch]) == ["b"]
    assert (batch.attempts, batch.in_doubt) == (0, False)


def test_a_second_request_leaves_a_buffer_for_another_broker() -> None:
    core = Core(leaders=[1, 1, 2], **TWO_BUFFERS)
    core.links.stalled_since[1] = core.now_ms
    core.append("a", partition=0, record_bytes=90_000)
    assert count(core.poll()) == 1
    core.append("b", partition=1, record_bytes=90_000)
    assert core.poll() == [], "it would have been the last one"
    core.append("c", partition=2, record_bytes=90_000)
    (request,) = core.poll()
    assert request.node_id == 2


def test_a_second_request_takes_any_buffer_when_there_is_one_broker() -> None:
    core = Core(leaders=[1, 1], **TWO_BUFFERS)
    core.links.stalled_since[1] = core.now_ms
    core.append("a", partition=0, record_bytes=90_000)
    assert count(core.poll()) == 1
    core.append("b", partition=1, record_bytes=90_000)
    assert count(core.poll()) == 1


def test_the_connection_that_stalls_longest_is_closed_for_one_that_waits() -> None:
    core = Core(leaders=[1, 2, 3], **TWO_BUFFERS)
    for broker in (1, 2):
        core.links.stalled_since[broker] = core.now_ms
        core.append("stuck", partition=broker - 1, record_bytes=90_000)
        assert count(core.poll()) == 1
        core.clock.advance(100.0)
    core.append("waits", partition=2, record_bytes=90_000)
    assert core.poll() == []
    due_ms = core.links.stalled_since[1] + STALLED_MS_MAX
    assert core.sender.next_wakeup_ms == due_ms
    assert core.poll(due_ms - core.now_ms - 1) == []
    assert not core.of(CloseLink)
    core.poll(1)
    (close,) = core.of(CloseLink)
    assert close.node_id == 1
    assert "daemon.request_buffers_bytes" in close.reason
    requests = core.poll()
    assert payloads_of(batch for request in requests for batch in request.batches) == ["waits"]


def test_any_number_of_stopped_brokers_holds_up_a_healthy_one_no_longer_than_one_may_stall() -> None:
    """With Kafka's 1 MiB requests and 64 MiB of buffers it takes that many brokers to hold them all."""
    brokers = 80
    core = Core(leaders=[*range(1, brokers + 1)] * 2, max_request_size=1 << 20, batch_size=1 << 20)
    for broker in range(2, brokers + 1):
        core.links.stalled_since[broker] = core.now_ms
    for partition in range(2 * brokers):
        if partition % brokers:
            core.append("stuck", partition=partition, record_bytes=1_000_000)
    core.poll()
    assert core.buffers.room_bytes() == 0
    core.append("healthy", partition=0, record_bytes=1_000_000)
    begun_ms = core.now_ms
    sent: list[object] = []
    while "healthy" not in sent:
        core.clock.advance(max(0.0, core.sender.next_wakeup_ms - core.now_ms))
        sent += payloads_of(batch for request in core.poll() for batch in request.batches)
    assert core.now_ms - begun_ms <= STALLED_MS_MAX


def test_nobody_is_closed_while_nobody_waits() -> None:
    core = Core(leaders=[1, 2], **TWO_BUFFERS)
    core.links.stalled_since[1] = core.now_ms
    core.append("a", partition=0, record_bytes=90_000)
    core.poll()
    core.append("b", partition=0, record_bytes=90_000)
    assert core.poll(10 * STALLED_MS_MAX) == []
    assert not core.of(CloseLink), "its own next request is not somebody else"


def test_a_batch_fits_into_a_request_however_large_batch_size_is() -> None:
    """Kafka: max.request.size caps batches, too. A larger one would never find a buffer."""
    core = Core(max_request_size=LARGEST, request_buffers_bytes=2 * LARGEST, batch_size=10 * LARGEST)
    for number in range(50):
        core.append(number, record_bytes=10_000)
    sizes = []
    for requests in core.turns():
        for request in requests:
            sizes += [batch.size_bytes for batch in request.batches]
            core.acknowledge(request)
    assert max(sizes) <= LARGEST
    assert len(payloads_of(core.completed)) == 50


@pytest.mark.parametrize("record_bytes", [150_000, 300_000])
def test_a_batch_larger_than_all_request_buffers_goes_alone(record_bytes: int) -> None:
    """Accepted under an earlier max.request.size, and adopted by a worker whose limits are lower."""
    core = Core(leaders=[1, 1, 1], **TWO_BUFFERS)
    everywhere(core, "small", 1)
    core.append("large", partition=1, record_bytes=record_bytes)
    everywhere(core, "small", 3)
    sent = [payloads_of(request.batches) for requests in core.turns() for request in requests]
    assert ["large"] in sent
    assert core.buffers.taken_bytes == 0
    assert core.buffers.free_bytes <= core.buffers.limit_bytes


def busy_brokers(core: Core, record_bytes: int, *, own_lane: bool) -> list[object]:
    """A large batch for broker 1, while broker 2 or 3 always has a request that its socket has not taken; what was
    sent."""
    sent: list[object] = []
    unanswered: list[ProduceRequest] = []

    def poll() -> None:
        for request in core.poll():
            sent.extend(payloads_of(request.batches))
            unanswered.append(request)

    for broker in (2, 3):
        core.links.stalled_since[broker] = core.now_ms
        core.append("small", partition=broker - 1)
    poll()
    core.append("large", record_bytes=record_bytes)
    poll()
    for _ in range(20):
        for broker in (2, 3):
            if own_lane:
                core.lane = PLAIN_LANE
                core.append("own", partition=0)
                core.lane = IDEMPOTENT_LANE
            core.append("small", partition=broker - 1)
            core.take_bytes(broker)
            for request in [each for each in unanswered if each.sent]:
                unanswered.remove(request)
                core.acknowledge(request)
            poll()
    return sent


@pytest.mark.parametrize("record_bytes", [150_000, 300_000])
@pytest.mark.parametrize("own_lane", [False, True])
def test_a_batch_larger_than_all_request_buffers_waits_for_no_more_than_its_turn(
    own_lane: bool, record_bytes: int
) -> None:
    """No other connection's request is prepared meanwhile, nor one of another lane."""
    core = Core(leaders=[1, 2, 3], **TWO_BUFFERS)
    sent = busy_brokers(core, record_bytes, own_lane=own_lane)
    assert "large" in sent
    assert sent.count("small") > 10, "the others go on when it has had its turn"


def test_a_stalled_connection_is_closed_for_a_batch_larger_than_all_request_buffers() -> None:
    core = Core(leaders=[1, 2], **TWO_BUFFERS)
    core.links.stalled_since[2] = core.now_ms
    core.append("stuck", partition=1)
    core.poll()
    core.append("large", partition=0, record_bytes=300_000)
    assert core.poll() == []
    assert core.sender.next_wakeup_ms == core.now_ms + STALLED_MS_MAX
    core.poll(STALLED_MS_MAX)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["large"]


def test_batches_of_any_size_from_any_broker_have_their_turn() -> None:
    """Sockets take bytes when they please; brokers answer when they please. Nothing waits for its deadline."""
    for seed in range(60):
        rng = random.Random(seed)
        brokers = (1, 2, 3)
        core = Core(
            leaders=[*brokers] * 2, max_in_flight_requests_per_connection=rng.choice((1, 5)), **TWO_BUFFERS
        )
        unanswered: list[ProduceRequest] = []
        appended = sent = 0
        for broker in brokers:
            core.links.stalled_since[broker] = core.now_ms
        for step in range(150):
            if step < 100:
                for lane in LANES:
                    core.lane = lane
                    size = rng.choice((100, 100, 1_000, 30_000, 90_000, 150_000, 250_000))
                    core.append(appended, partition=rng.randrange(6), record_bytes=size)
                    appended += 1
            for request in core.poll():
                sent += sum(batch.count for batch in request.batches)
                unanswered.append(request)
            if rng.random() < 0.7:
                core.take_bytes(rng.choice(brokers))
            while unanswered and rng.random() < 0.7:
                core.acknowledge(unanswered.pop(0))
        for _ in range(4 * appended):
            for broker in brokers:
                core.take_bytes(broker)
            for request in [*unanswered, *core.poll()]:
                sent += 0 if request in unanswered else sum(batch.count for batch in request.batches)
                core.acknowledge(request)
            unanswered.clear()
        assert sent == appended, f"seed {seed}"


def test_at_most_two_requests_are_prepared_ahead_of_the_socket() -> None:
    core = Core(leaders=[1] * 3)
    core.links.stalled_since[1] = core.now_ms
    sent = []
    for partition in range(3):
        core.append("a", partition=partition)
        sent.append(count(core.poll()))
    assert sent == [1, 1, 0]


def test_the_new_leaders_that_an_answer_names_are_one_effect() -> None:
    """Each effect makes a snapshot of the whole cluster: with one for each of some thousand partitions that move, the
    worker would be silent for seconds, and be taken for dead."""
    core = Core(leaders=[1] * 500)
    everywhere(core, "a", 500)
    (request,) = core.poll()
    core.respond(
        request,
        *(answer(partition, 6, current_leader_id=2, current_leader_epoch=9) for partition in range(500)),
    )
    core.poll()
    (effect,) = core.of(LeaderHints)
    assert [hint.partition for hint in effect.hints] == list(range(500))


def test_lanes_take_turns_at_each_broker_where_one_request_has_room() -> None:
    """Also when all brokers answer in step."""
    core = Core(leaders=[1, 2], max_in_flight_requests_per_connection=1, batch_size=0)
    for lane in LANES:
        core.lane = lane
        for number in range(4):
            everywhere(core, f"{lane}-{number}-", 2)
    sent = Counter[tuple[int, int]]()
    for _ in range(4):
        for request in core.poll():
            sent[request.node_id, request.lane] += 1
            core.acknowledge(request)
    assert sent == {(node_id, lane): 2 for node_id in (1, 2) for lane in LANES}
