"""Metadata answers as a cluster gives them."""

from __future__ import annotations

from uuid import UUID

from sidecar.common.model import Node
from sidecar.metadata.answer import MetadataAnswer, PartitionAnswer, TopicAnswer

NODES = (Node(1, "a", 9092), Node(2, "b", 9092), Node(3, "c", 9092))


def topic_id(number: int) -> UUID:
    return UUID(int=number)


def partition(index: int, leader: int = 1, epoch: int = 0, error: int = 0) -> PartitionAnswer:
    return PartitionAnswer(index, error, leader, epoch, (1, 2), (1, 2, 3), ())


def topic(name: str, *partitions: PartitionAnswer, error: int = 0, id: UUID | None = None) -> TopicAnswer:
    return TopicAnswer(name, id, error, False, partitions)


def answer(*topics: TopicAnswer, nodes: tuple[Node, ...] = NODES) -> MetadataAnswer:
    return MetadataAnswer(nodes, "cluster-1", topics, 0, 0)


def good(name: str, count: int = 2, id: UUID | None = None) -> TopicAnswer:
    return topic(name, *(partition(index) for index in range(count)), id=id)
