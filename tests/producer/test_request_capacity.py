"""Request buffers bound the requests: with few enough to be all in use. Descriptors: test_descriptor_capacity.py."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sidecar.producer.effects import CloseLink, LeaderHints, SendProduce
from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lanes import IDEMPOTENT_LANE, LANES, PLAIN_LANE
from sidecar.producer.sender import STALLED_MS_MAX

from .harness import (
    Core,
    answer,
    count,
    everywhere,
    payloads_of,
)

LARGEST = 100_000
TWO_BUFFERS = {"max_request_size": LARGEST, "request_buffers_bytes": 2 * LARGEST, "batch_size": LARGEST}


@pytest.mark.rule("S5")
def test_nothing_new_is_drained_for_a_link_that_is_about_to_be_closed() -> None:
    """A batch drained for it comes back with the rest, and would be in doubt without a byte sent."""
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
    assert core.buffers.free_bytes_max() == 0
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
    assert len(payloads_of(core.decided)) == 50


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
    """A large batch for broker 1, while broker 2 or 3 always has a request that its socket has not taken;
    the sent payloads."""
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
    assert sent.count("small") > 10, "the others continue when it has had its turn"


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


@pytest.mark.slow
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
    """Each effect makes a snapshot of the whole cluster. With one for each of some thousand partitions that move, the
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
