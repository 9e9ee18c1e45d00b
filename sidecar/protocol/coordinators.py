"""Requests to coordinators of transactions and of groups, and their answers as plain values. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from sidecar.common.model import NO_PRODUCER_ID, Node, ProducerIdAndEpoch, TopicPartition
from sidecar.protocol.messages import ApiKey, ProtocolError, RequestMessage, request_module

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
MEMBER_VERSION: Final = 3
"""From this version on, TxnOffsetCommit names the member of the group."""
EPOCH_VERSION: Final = 5
"""From this version on, EndTxn's answer has the epoch of the next transaction."""


class Coordinator(NamedTuple):
    """``node`` is None exactly when ``error_code`` is not 0."""

    error_code: int
    error_message: str
    node: Node | None


class EndTxnResult(NamedTuple):
    """``identity``: of the next transaction, from v5 on; else NO_PRODUCER_ID."""

    error_code: int
    identity: ProducerIdAndEpoch


def find_coordinator_request(version: int, key: str, *, is_group: bool) -> RequestMessage:
    """``version`` at most 3, in which a request has one key."""
    message: RequestMessage = request_module(ApiKey.FIND_COORDINATOR, version).FindCoordinatorRequest(
        key=key, key_type=GROUP_KEY if is_group else TRANSACTION_KEY
    )
    return message


def parse_find_coordinator(entity: Any) -> Coordinator:
    code = int(entity.error_code)
    node = None if code else Node(int(entity.node_id), entity.host, int(entity.port))
    return Coordinator(code, entity.error_message or "", node)


def add_partitions_request(
    version: int, transactional_id: str, identity: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
) -> RequestMessage:
    """``version`` at most 3: later ones are for brokers only."""
    module = request_module(ApiKey.ADD_PARTITIONS_TO_TXN, version)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    message: RequestMessage = module.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=tuple(
            module.AddPartitionsToTxnTopic(name=topic, partitions=tuple(numbers))
            for topic, numbers in by_topic.items()
        ),
    )
    return message


def parse_add_partitions(entity: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, int(each.partition_index)): int(each.partition_error_code)
        for topic in entity.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }


def add_offsets_request(
    version: int, transactional_id: str, identity: ProducerIdAndEpoch, group_id: str
) -> RequestMessage:
    message: RequestMessage = request_module(ApiKey.ADD_OFFSETS_TO_TXN, version).AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group_id,
    )
    return message


class GroupMember(NamedTuple):
    """A consumer as its group knows it. A stale one is refused by the group's coordinator."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None


class CommittedOffset(NamedTuple):
    """The next offset that a group reads of a partition, once the transaction is committed."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


def commit_offsets_request(
    version: int,
    transactional_id: str,
    identity: ProducerIdAndEpoch,
    member: GroupMember,
    offsets: Iterable[CommittedOffset],
) -> RequestMessage:
    """Raises ProtocolError below v3, which cannot name the member: a stale one would not be refused."""
    if version < MEMBER_VERSION:
        raise ProtocolError(f"TxnOffsetCommit v{version} cannot name the consumer; use a newer broker.")
    module = request_module(ApiKey.TXN_OFFSET_COMMIT, version)
    by_topic: dict[str, list[Any]] = {}
    for each in offsets:
        by_topic.setdefault(each.topic, []).append(
            module.TxnOffsetCommitRequestPartition(
                partition_index=each.partition,
                committed_offset=each.offset,
                committed_leader_epoch=each.leader_epoch,
                committed_metadata=each.metadata,
            )
        )
    message: RequestMessage = module.TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=member.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=tuple(
            module.TxnOffsetCommitRequestTopic(name=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
    )
    return message


def parse_commit_offsets(entity: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, int(each.partition_index)): int(each.error_code)
        for topic in entity.topics
        for each in topic.partitions
    }


def end_txn_request(
    version: int, transactional_id: str, identity: ProducerIdAndEpoch, *, is_commit: bool
) -> RequestMessage:
    message: RequestMessage = request_module(ApiKey.END_TXN, version).EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=is_commit,
    )
    return message


def parse_end_txn(version: int, entity: Any) -> EndTxnResult:
    if version < EPOCH_VERSION or entity.error_code:
        return EndTxnResult(int(entity.error_code), NO_PRODUCER_ID)
    return EndTxnResult(0, ProducerIdAndEpoch(int(entity.producer_id), int(entity.producer_epoch)))
