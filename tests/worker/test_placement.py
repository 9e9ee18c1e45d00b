"""Which partitions keyless records may go to: leader, rack, and brokers that keep up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.model import Node
from sidecar.metadata.snapshot import MetadataSnapshot, PartitionState, TopicState
from sidecar.producer.broker_memory import BrokerMemory
from sidecar.producer.producer_id import ProducerIds
from sidecar.producer.record_accumulator import RecordAccumulator
from sidecar.producer.topic_settings import TopicRules
from sidecar.worker.streams.topic_queue import TopicQueue
from sidecar.worker.topics.placement import Placement
from tests.configs import producer_config
from tests.worker.harness import Harness

RACKS = {1: "a", 2: "b", 3: "b", 4: None}


def snapshot(*leaders: int) -> MetadataSnapshot:
    nodes = {node: Node(node, "h", 9092, rack) for node, rack in RACKS.items()}
    state = TopicState("t", None, 0, tuple(PartitionState(leader) for leader in leaders))
    return MetadataSnapshot.build(1, "c", nodes, {"t": state})


class Placed:
    def __init__(self, harness: Harness, **settings: Any) -> None:
        config = producer_config(batch_size=1, **settings)
        ids = ProducerIds(
            backoff=ExponentialBackoff(100, 1000, lambda: 0.5),
            memory=BrokerMemory(lambda: 0),
        )
        self.placement = Placement(config, RecordAccumulator(config, ids), seed=lambda: 5)
        self.queue = TopicQueue("t", 0, harness.chain, TopicRules(config).of("t"))

    def follow(self, *leaders: int) -> None:
        assert self.placement.follow(self.queue, snapshot(*leaders))

    def chosen(self, draws: int = 400, key: bytes | None = None) -> Counter[int]:
        assert self.queue.partitioner is not None
        return Counter(self.queue.partitioner.next_partition(10, key) for _ in range(draws))


@pytest.mark.rule("M8")
def test_a_partition_without_a_leader_is_never_chosen_and_always_when_none_has_one(harness: Harness) -> None:
    placed = Placed(harness)
    placed.follow(1, -1, 3)
    assert set(placed.chosen()) == {0, 2}
    placed.follow(-1, -1, -1)
    assert set(placed.chosen()) == {0, 1, 2}
    assert not placed.queue.has_leader


def test_round_robin_over_those_with_a_leader(harness: Harness) -> None:
    placed = Placed(harness, partitioner="round_robin")
    placed.follow(1, -1, 3)
    assert placed.chosen(100) == {0: 50, 2: 50}
    placed.follow(1, 2, 3)
    assert placed.chosen(30, b"key") == {0: 10, 1: 10, 2: 10}


def test_the_own_rack_is_preferred_while_it_leads_anything(harness: Harness) -> None:
    placed = Placed(harness, partitioner_rack_aware=True, client_rack="b")
    placed.follow(1, 2, 3, 4)
    assert set(placed.chosen()) == {1, 2}
    placed.follow(1, 2, 1, 4)
    assert set(placed.chosen()) == {1}
    placed.follow(1, -1, 1, 4)
    assert set(placed.chosen()) == {0, 2, 3}
    assert placed.chosen(3, b"23456") == {(_murmur2(b"23456") & 0x7FFFFFFF) % 4: 3}


def _murmur2(key: bytes) -> int:
    from tests.kernel.oracle.reference import murmur2

    return murmur2(key)


def test_a_rack_says_nothing_unless_asked_or_for_other_partitioners(harness: Harness) -> None:
    placed = Placed(harness, client_rack="b")
    placed.follow(1, 2, 3, 4)
    assert set(placed.chosen()) == {0, 1, 2, 3}
    placed = Placed(harness, client_rack="b", partitioner_rack_aware=True, partitioner="random")
    placed.follow(1, 2, 3, 4)
    assert set(placed.chosen()) == {0, 1, 2, 3}


def test_late_brokers_are_avoided_while_there_are_others(harness: Harness) -> None:
    placed = Placed(harness)
    placed.follow(1, 2, 3)
    assert placed.placement.set_late_brokers(frozenset({2}))
    assert not placed.placement.set_late_brokers(frozenset({2})), "no news"
    placed.follow(1, 2, 3)
    assert set(placed.chosen()) == {0, 2}
    placed.placement.set_late_brokers(frozenset({1, 2, 3}))
    placed.follow(1, 2, 3)
    assert set(placed.chosen()) == {0, 1, 2}
    placed.placement.set_late_brokers(frozenset())
    placed.follow(1, 2, 3)
    assert set(placed.chosen()) == {0, 1, 2}


def test_a_late_rack_gives_way_to_another(harness: Harness) -> None:
    placed = Placed(harness, partitioner_rack_aware=True, client_rack="b")
    placed.placement.set_late_brokers(frozenset({2}))
    placed.follow(1, 2, 3, 4)
    assert set(placed.chosen()) == {2}
    placed.placement.set_late_brokers(frozenset({2, 3}))
    placed.follow(1, 2, 3, 4)
    assert set(placed.chosen()) == {0, 3}


def test_without_adaptive_partitioning_neither_load_nor_lateness_counts(harness: Harness) -> None:
    placed = Placed(harness, partitioner_adaptive_partitioning_enable=False)
    placed.placement.set_late_brokers(frozenset({2}))
    placed.follow(1, 2, 3)
    assert set(placed.chosen()) == {0, 1, 2}


@pytest.mark.rule("M8")
def test_new_partitions_get_records(harness: Harness) -> None:
    placed = Placed(harness)
    placed.follow(1, 2)
    assert set(placed.chosen()) == {0, 1}
    placed.follow(1, 2, 3, 3)
    assert set(placed.chosen()) == {0, 1, 2, 3}
