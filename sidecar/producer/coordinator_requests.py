"""Requests of a TransactionManager to coordinators, and the answer that it takes. Their bytes are made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from sidecar.common.model import NO_PRODUCER_ID, Node, ProducerIdAndEpoch, TopicPartition
from sidecar.protocol.coordinators import CommittedOffset, GroupMember

NO_CODES: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class FindCoordinator(NamedTuple):
    """To any broker. Asking for a transactional id also makes Kafka create its transaction log."""

    key: str
    is_group: bool


class InitTransactionalId(NamedTuple):
    """A producer id for a transactional id: aborts its open transaction and fences every other producer with it.
    ``current``: the next epoch of that identity, which fails if another producer came since.
    """

    coordinator: Node
    transactional_id: str
    timeout_ms: int
    current: ProducerIdAndEpoch


class AddPartitions(NamedTuple):
    """Before the first record of each partition, with transaction.version 0 and 1."""

    coordinator: Node
    transactional_id: str
    identity: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]


class AddOffsets(NamedTuple):
    """Before the first offsets of a group, with transaction.version 0 and 1."""

    coordinator: Node
    transactional_id: str
    identity: ProducerIdAndEpoch
    group_id: str


class CommitOffsets(NamedTuple):
    """To the group's coordinator."""

    coordinator: Node
    transactional_id: str
    identity: ProducerIdAndEpoch
    member: GroupMember
    offsets: tuple[CommittedOffset, ...]
    version_max: int


class EndTransaction(NamedTuple):
    """``version_max`` 5 only with transaction.version 2: the answer then has the next epoch. A broker with a lower one
    offers version 5 as well, and never ends the transaction of a client that uses it.
    """

    coordinator: Node
    transactional_id: str
    identity: ProducerIdAndEpoch
    is_commit: bool
    version_max: int


CoordinatorRequest: TypeAlias = (
    FindCoordinator | InitTransactionalId | AddPartitions | AddOffsets | CommitOffsets | EndTransaction
)


class CoordinatorAnswer(NamedTuple):
    """``code`` 0: it did what was asked. A lost connection is NETWORK_EXCEPTION: nobody knows whether it did.
    ``partition_codes`` of AddPartitions and CommitOffsets.
    """

    code: int
    text: str = ""
    identity: ProducerIdAndEpoch = NO_PRODUCER_ID
    coordinator: Node | None = None
    partition_codes: Mapping[TopicPartition, int] = NO_CODES
