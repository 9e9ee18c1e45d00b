"""DescribeProducers: asks a partition's leader for the last sequence of each producer id. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sidecar.protocol.messages import ApiKey, RequestMessage, request_module


class ProducerState(NamedTuple):
    """A broker's state of one producer id on one partition. ``last_sequence`` -1: nothing was appended."""

    epoch: int
    last_sequence: int


class PartitionProducers(NamedTuple):
    """One partition of the answer. ``producers`` by id are valid only if ``error_code`` is 0."""

    topic: str
    partition: int
    error_code: int
    producers: Mapping[int, ProducerState]


def describe_producers_request(version: int, partitions: Mapping[str, Iterable[int]]) -> RequestMessage:
    """Ask the leader of these partitions."""
    module = request_module(ApiKey.DESCRIBE_PRODUCERS, version)
    message: RequestMessage = module.DescribeProducersRequest(
        topics=tuple(
            module.TopicRequest(name=topic, partition_indexes=tuple(indexes))
            for topic, indexes in partitions.items()
        )
    )
    return message


def parse_describe_producers(entity: Any) -> list[PartitionProducers]:
    """Read the response entity."""
    return [
        PartitionProducers(
            str(topic.name),
            int(partition.partition_index),
            int(partition.error_code),
            {
                int(each.producer_id): ProducerState(int(each.producer_epoch), int(each.last_sequence))
                for each in partition.active_producers
            },
        )
        for topic in entity.topics
        for partition in topic.partitions
    ]
