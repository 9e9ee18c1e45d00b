"""MetadataAnswer: the content of one Metadata response, independent of its protocol version.

Sans-IO: MetadataFetcher makes it, on the controller's loop.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sidecar.common.model import Node

# Partition indexes are 0..N-1. An answer with a larger index than this is broken.
PARTITIONS_MAX = 1_000_000


class PartitionAnswer(NamedTuple):
    """One partition of an answer. ``leader`` is -1 if there is none. The tuples hold node ids."""

    partition: int
    error_code: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    offline: tuple[int, ...]


class TopicAnswer(NamedTuple):
    """One topic of an answer. ``topic_id`` is None from a broker below Metadata v10."""

    name: str
    topic_id: UUID | None
    error_code: int
    is_internal: bool
    partitions: tuple[PartitionAnswer, ...]


class MetadataAnswer(NamedTuple):
    brokers: tuple[Node, ...]
    cluster_id: str | None
    topics: tuple[TopicAnswer, ...]
    throttle_ms: int
    error_code: int
    """Top-level error (from v13 on); 129 is REBOOTSTRAP_REQUIRED."""


def parse_metadata(entity: Any) -> MetadataAnswer:
    """Convert a response entity (of kio) of any version. Only its attributes are used, never its type."""
    brokers = tuple(
        Node(int(broker.node_id), broker.host, int(broker.port), broker.rack) for broker in entity.brokers
    )
    topics = tuple(_topic(topic) for topic in entity.topics if topic.name is not None)
    return MetadataAnswer(
        brokers,
        entity.cluster_id,
        topics,
        entity.throttle_time // timedelta(milliseconds=1),
        int(getattr(entity, "error_code", 0)),
    )


def _topic(topic: Any) -> TopicAnswer:
    partitions = tuple(
        PartitionAnswer(
            int(each.partition_index),
            int(each.error_code),
            int(each.leader_id),
            int(getattr(each, "leader_epoch", -1)),
            tuple(int(node) for node in each.isr_nodes),
            tuple(int(node) for node in each.replica_nodes),
            tuple(int(node) for node in getattr(each, "offline_replicas", ())),
        )
        for each in topic.partitions
        if 0 <= each.partition_index < PARTITIONS_MAX
    )
    return TopicAnswer(
        str(topic.name),
        getattr(topic, "topic_id", None),
        int(topic.error_code),
        topic.is_internal,
        partitions,
    )
