"""Keyless records follow the load that waits for each partition (KIP-794), and avoid brokers that do not keep up."""

from __future__ import annotations

from collections import Counter

import pytest

from sidecar.common.errors import Code
from sidecar.kernel import StickyPartitioner
from sidecar.producer.broker_latency import BrokerLatency
from sidecar.producer.lanes import IDEMPOTENT_LANE, PLAIN_LANE

from .harness import TOPIC, Core, answer, ready_nodes

BATCH_BYTES = 161
"""One record of 100 bytes fills a batch of the fake kernel."""


def watched(leaders: tuple[int, ...], **settings: object) -> tuple[Core, StickyPartitioner]:
    core = Core(
        leaders=leaders, lane=PLAIN_LANE, enable_idempotence=False, batch_size=BATCH_BYTES, **settings
    )
    partitioner = StickyPartitioner(len(leaders), range(len(leaders)), 1, 4)
    core.accumulator.follow_loads(TOPIC, PLAIN_LANE, partitioner)
    return core, partitioner


def weights(partitioner: StickyPartitioner, partitions: int, draws: int = 21_000) -> list[float]:
    """Share of each partition among the draws, in units of the smallest weight."""
    found = Counter(partitioner.next_partition(1_000) for _ in range(draws))
    return [found[partition] / draws for partition in range(partitions)]


def fill(core: Core, lengths: list[int]) -> None:
    for partition, length in enumerate(lengths):
        for number in range(length):
            core.append(f"{partition}-{number}", partition=partition)


@pytest.mark.parametrize("growth", [0, 1 << 20])
def test_short_queues_get_more_also_when_batches_grow(growth: int) -> None:
    """RecordAccumulatorTest.testAdaptiveBuiltInPartitioner; a grown batch counts as what it would have been."""
    core, partitioner = watched((1,) * 5, batch_growth_bytes=growth, linger_ms=1_000.0)
    core.links.down.add(1)
    fill(core, [5, 0, 3, 0, 1])
    loads = [core.accumulator.queue(TOPIC, PLAIN_LANE, partition).load for partition in range(5)]
    expected = [max(loads) + 1 - load for load in loads]
    if not growth:
        assert expected == [1, 6, 3, 6, 5]
    for share, weight in zip(weights(partitioner, 5), expected, strict=True):
        assert share == pytest.approx(weight / sum(expected), abs=0.015)


def test_drained_batches_leave_the_load_and_returned_ones_join_it() -> None:
    core, partitioner = watched((1, 2))
    core.links.down.add(2)
    fill(core, [3, 3])
    queues = [core.accumulator.queue(TOPIC, PLAIN_LANE, partition) for partition in range(2)]
    core.poll()
    assert [queue.load for queue in queues] < [3, 3]
    before = queues[0].load
    core.sender.on_disconnect(1, core.now_ms)
    assert queues[0].load > before
    core.links.down.clear()
    for _ in range(12):
        for sent in core.poll(1_000.0):
            core.acknowledge(sent)
    assert [queue.load for queue in queues] == [0, 0]
    for share in weights(partitioner, 2):
        assert share == pytest.approx(0.5, abs=0.015)


def test_split_and_expired_batches_leave_no_load_behind() -> None:
    core = Core(leaders=(1,), batch_size=300, linger_ms=0.0)
    partitioner = StickyPartitioner(1, [0], 1, 4)
    core.accumulator.follow_loads(TOPIC, IDEMPOTENT_LANE, partitioner)
    request = core.send("a", "b")
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    queue = core.accumulator.queue(TOPIC, IDEMPOTENT_LANE, 0)
    assert queue.load == 2
    core.links.down.add(1)
    core.poll(200_000.0)
    assert queue.load == 0


def test_a_broker_is_late_once_something_was_ready_for_the_timeout() -> None:
    core, _ = watched((1, 2), partitioner_availability_timeout_ms=100.0)
    core.links.down.add(1)
    core.poll(10_000.0)
    assert core.sender.late_brokers(core.now_ms) == frozenset(), "nothing was ready for it"
    fill(core, [1, 1])
    core.poll()
    assert core.sender.next_lateness_ms(core.now_ms) == core.now_ms + 100
    core.poll(99.0)
    assert core.sender.late_brokers(core.now_ms) == frozenset()
    core.poll(1.0)
    assert core.sender.late_brokers(core.now_ms) == {1}
    assert core.sender.next_lateness_ms(core.now_ms) == float("inf")
    core.links.down.clear()
    assert core.poll()
    assert core.sender.late_brokers(core.now_ms) == frozenset()


def test_a_broker_that_answers_nothing_is_late_as_well() -> None:
    core, _ = watched((1,), partitioner_availability_timeout_ms=100.0)
    fill(core, [20])
    for _ in range(20):
        core.poll()
    core.poll(100.0)
    assert core.sender.in_flight_count == 5
    assert core.sender.late_brokers(core.now_ms) == {1}


def test_a_broker_with_all_of_a_partition_in_flight_is_late_though_nothing_is_ready_for_it() -> None:
    """The idempotent lane: five batches of the one partition unanswered, and more behind them."""
    core = Core(leaders=(1,), batch_size=BATCH_BYTES, partitioner_availability_timeout_ms=100.0)
    requests = []
    for _ in range(10):
        core.append("x")
        requests += core.poll()
    assert (core.sender.in_flight_count, ready_nodes(core.accumulator.schedule)) == (5, [])
    core.poll(100.0)
    assert core.sender.late_brokers(core.now_ms) == {1}
    core.acknowledge(requests[0])
    core.poll()
    assert core.sender.late_brokers(core.now_ms) == frozenset()


def test_throttling_counts_as_not_taking() -> None:
    core, _ = watched((1,), partitioner_availability_timeout_ms=100.0)
    fill(core, [1])
    (request,) = core.poll()
    core.respond(request, answer(0), throttle_ms=5_000)
    fill(core, [1])
    core.poll()
    core.poll(100.0)
    assert core.sender.late_brokers(core.now_ms) == {1}


def test_zero_switches_it_off() -> None:
    latency = BrokerLatency(0.0)
    latency.blocked(1, 0.0)
    assert latency.late(1e9) == frozenset()
    assert latency.next_change_ms(0.0) == float("inf")


def test_a_broker_without_anything_ready_is_forgotten() -> None:
    latency = BrokerLatency(100.0)
    latency.blocked(1, 0.0)
    latency.blocked(2, 0.0)
    latency.keep({2})
    latency.blocked(1, 90.0)
    assert latency.late(100.0) == {2}
    assert latency.next_change_ms(100.0) == 190.0
