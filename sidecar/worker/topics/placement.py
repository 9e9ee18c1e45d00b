"""Placement: makes each topic's partitioner, and chooses the partitions for records without a key (rule M8).

First choice: partitions with a leader, in the client's rack (KIP-1123), at brokers that keep up (KIP-794). If there
are none: partitions with a leader. If there are none either: all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sidecar.kernel import StickyPartitioner

if TYPE_CHECKING:
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.worker.streams.topic_queue import TopicQueue

UNIFORM = "murmur2"
"""The partitioner that places keyless records by rack, lateness and load. The others use any partition with a
leader.
"""


class Placement:
    """Chooses partitions by snapshots and late brokers. Belongs to the worker's loop."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        *,
        seed: Callable[[], int] = lambda: random.getrandbits(63),
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._seed = seed
        self._late: frozenset[int] = frozenset()

    def set_late_brokers(self, late: frozenset[int]) -> bool:
        """Set the late brokers. True if they changed: then every topic must be followed again."""
        has_changed = late != self._late
        self._late = late
        return has_changed

    def follow(self, queue: TopicQueue, snapshot: MetadataSnapshot) -> bool:
        """Give the queue its partitions. False if the snapshot does not have its topic."""
        count = snapshot.partition_count(queue.topic)
        if not count:
            return False
        queue.topic_id = snapshot.topics[queue.topic].topic_id
        available = snapshot.available_partitions(queue.topic)
        preferred = self._preferred(queue, snapshot, available)
        queue.update_partitions(count, available, preferred, partial(self._make, queue, count))
        return True

    def _make(self, queue: TopicQueue, count: int, preferred: Sequence[int]) -> StickyPartitioner:
        settings = queue.settings
        assert settings is not None
        uniform = settings.partitioner == UNIFORM
        made = StickyPartitioner(
            count,
            preferred,
            settings.batch_size,
            self._seed(),
            kind=settings.partitioner,
            ignore_keys=uniform and self._config.partitioner_ignore_keys,
        )
        if uniform and self._config.partitioner_adaptive_partitioning_enable:
            self._accumulator.follow_loads(queue.topic, queue.lane, made)
        return made

    def _preferred(
        self, queue: TopicQueue, snapshot: MetadataSnapshot, available: Sequence[int]
    ) -> Sequence[int]:
        assert queue.settings is not None
        config = self._config
        chosen = available
        if queue.settings.partitioner != UNIFORM:
            return chosen
        if config.partitioner_rack_aware:
            near = {node.id for node in snapshot.nodes.values() if node.rack == config.client_rack}
            chosen = _led_by(queue.topic, snapshot, chosen, near) or chosen
        if self._late and config.partitioner_adaptive_partitioning_enable:
            prompt = snapshot.nodes.keys() - self._late
            # A slow rack is worse than a distant one: lateness is judged within the rack first, then over all.
            chosen = (
                _led_by(queue.topic, snapshot, chosen, prompt)
                or _led_by(queue.topic, snapshot, available, prompt)
                or chosen
            )
        return chosen


def _led_by(topic: str, snapshot: MetadataSnapshot, partitions: Sequence[int], nodes: set[int]) -> list[int]:
    leaders = ((partition, snapshot.leader(topic, partition)) for partition in partitions)
    return [partition for partition, leader in leaders if leader is not None and leader.id in nodes]
