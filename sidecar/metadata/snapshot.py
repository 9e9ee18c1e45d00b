"""MetadataSnapshot: the known state of the cluster at one moment. It never changes, and is replaced as a whole.

A reader reads ``cache.current`` once at the start of an operation and uses only that. So it never sees half an update
and needs no lock. (Kafka: MetadataCache.MetadataSnapshot, ZkMetadataCache.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from sidecar.common.model import Node

NO_LEADER: Final = -1
LEADER_DURING_DELETE: Final = -2
"""Leader of a partition whose topic is being deleted (Kafka: LeaderAndIsr.LeaderDuringDelete)."""
LEADER_EXPIRED: Final = -3
"""With WHOLE_TOPIC: the controller follows the topic no longer, because no client uses it. That is no deletion."""
WHOLE_TOPIC: Final = -1
"""Stands for all partitions of a deleted topic, if the controller does not know which of them a worker knows."""
NO_LEADER_EPOCH: Final = -1
ERROR_NONE: Final = 0


class PartitionState(NamedTuple):
    """One partition. ``leader`` is a node id, NO_LEADER or LEADER_DURING_DELETE; the tuples hold node ids."""

    leader: int
    leader_epoch: int = NO_LEADER_EPOCH
    isr: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


class LeaderHint(NamedTuple):
    """A newer leader named in a Produce response (KIP-951)."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic. ``partitions[i]`` is None if the cluster's answer left partition i out (no leader known).

    ``error_code`` is Kafka's, 0 for none.
    """

    name: str
    topic_id: UUID | None = None
    error_code: int = ERROR_NONE
    partitions: tuple[PartitionState | None, ...] = ()


def _available(topic: TopicState, nodes: Mapping[int, Node]) -> tuple[int, ...]:
    return tuple(
        index for index, state in enumerate(topic.partitions) if state is not None and state.leader in nodes
    )


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """Brokers and topics at one version. Immutable; any thread may read it."""

    version: int = 0
    cluster_id: str | None = None
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    _available_by_topic: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def build(
        cls,
        version: int,
        cluster_id: str | None,
        nodes: Mapping[int, Node],
        topics: Mapping[str, TopicState],
        *,
        previous: MetadataSnapshot | None = None,
    ) -> MetadataSnapshot:
        """Build a snapshot, with frequently used values computed in advance.

        ``previous`` only saves work: values of topics that are the same object, under the same nodes, are copied.
        """
        nodes = dict(nodes)
        topics = dict(topics)
        reusable = previous if previous is not None and previous.nodes == nodes else None
        available: dict[str, tuple[int, ...]] = {}
        for name, topic in topics.items():
            if reusable is not None and reusable.topics.get(name) is topic:
                available[name] = reusable._available_by_topic[name]
            else:
                available[name] = _available(topic, nodes)
        return cls(version, cluster_id, MappingProxyType(nodes), MappingProxyType(topics), available)

    def leader(self, topic: str, partition: int) -> Node | None:
        """The live broker that leads the partition; None if it is unknown, without a leader, or its leader is not
        alive.
        """
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        state = found.partitions[partition]
        return None if state is None else self.nodes.get(state.leader)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        """The partition's state, or None when it is not known."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def partition_count(self, topic: str) -> int | None:
        """Number of the topic's partitions; None if the topic is unknown (or known only by an error)."""
        found = self.topics.get(topic)
        return len(found.partitions) or None if found is not None else None

    def available_partitions(self, topic: str) -> tuple[int, ...]:
        """Partitions that have a live leader, ascending; empty if the topic is unknown."""
        return self._available_by_topic.get(topic, ())

    def topic_id(self, topic: str) -> UUID | None:
        found = self.topics.get(topic)
        return None if found is None else found.topic_id

    def with_leaders(self, hints: Iterable[LeaderHint], endpoints: Iterable[Node] = ()) -> MetadataSnapshot:
        """A snapshot with newer leaders from Produce responses (KIP-951), under the same version.

        A hint counts only if its epoch is higher than the known one, the topic is known, and the leader's address is
        known or among ``endpoints``. Returns self if no hint counts. (Kafka: Metadata.updatePartitionLeadership.)
        """
        hints = list(hints)
        nodes = {node.id: node for node in endpoints} | dict(self.nodes)
        changed: dict[str, list[PartitionState | None]] = {}
        for hint in hints:
            known = self.partition(hint.topic, hint.partition)
            if known is None or hint.leader_epoch <= known.leader_epoch or hint.leader < 0:
                continue
            if hint.leader not in nodes:
                continue
            partitions = changed.setdefault(hint.topic, list(self.topics[hint.topic].partitions))
            partitions[hint.partition] = known._replace(leader=hint.leader, leader_epoch=hint.leader_epoch)
        if not changed:
            return self
        topics = dict(self.topics)
        for name, partitions in changed.items():
            old = topics[name]
            topics[name] = TopicState(name, old.topic_id, old.error_code, tuple(partitions))
        leaders = {hint.leader for hint in hints}
        nodes = {
            node_id: node for node_id, node in nodes.items() if node_id in self.nodes or node_id in leaders
        }
        return MetadataSnapshot.build(self.version, self.cluster_id, nodes, topics, previous=self)


EMPTY_SNAPSHOT: Final = MetadataSnapshot()
