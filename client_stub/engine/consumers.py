"""Consumers of confluent-kafka and kafka-python, as a transaction uses them: where they are, and back to where they
were committed. A program's thread calls it.

Neither library is imported here: a consumer is told by its class's module, and used by its own methods.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final, Protocol

from client_stub.records.offsets import GroupMetadata, OffsetToCommit

COMMITTED_TIMEOUT_S: Final = 30.0
OFFSET_BEGINNING: Final = -2
"""confluent-kafka's."""


class Consumer(Protocol):
    def positions(self) -> list[OffsetToCommit]:
        """The next offset to read of each assigned partition of which something was read."""

    def group(self) -> GroupMetadata: ...

    def seek_back(self) -> None:
        """Go back to the committed offsets, or to the beginning of a partition without one (as in Kafka's
        documentation of its producer: resetToLastCommittedPositions).
        """


def consumer_of(given: object) -> Consumer:
    """``given`` as what a transaction uses. Raises TypeError for a consumer of another kind, and ValueError for one
    that commits by itself.
    """
    for kind in type(given).__mro__ if hasattr(given, "assignment") else ():
        library = kind.__module__.partition(".")[0]
        if library in ("confluent_kafka", "cimpl"):
            return _ConfluentConsumer(given)
        if library == "kafka":
            return _KafkaPythonConsumer(given)
    raise TypeError(
        f"transaction(consumer) takes a Consumer of confluent-kafka or a KafkaConsumer of kafka-python, not "
        f"{type(given).__name__}. For another one call send_offsets_to_transaction()."
    )


class _ConfluentConsumer:
    """Its settings cannot be read: that enable.auto.commit is false is up to the program."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def positions(self) -> list[OffsetToCommit]:
        return offsets_of(self._consumer.position(self._consumer.assignment()))

    def group(self) -> GroupMetadata:
        return parsed_group(self._consumer.consumer_group_metadata())

    def seek_back(self) -> None:
        for each in self._consumer.committed(self._consumer.assignment(), timeout=COMMITTED_TIMEOUT_S):
            if each.offset < 0:
                each.offset = OFFSET_BEGINNING
            self._consumer.seek(each)


def offsets_of(positions: Iterable[Any]) -> list[OffsetToCommit]:
    """confluent-kafka's ``consumer.position(...)``, without the partitions of which nothing was read."""
    return [
        OffsetToCommit(each.topic, each.partition, each.offset, leader_epoch_of(each))
        for each in positions
        if each.offset >= 0
    ]


def leader_epoch_of(position: Any) -> int:
    """The leader epoch of either library's offset; -1 where it has none, as in earlier versions of both."""
    epoch = getattr(position, "leader_epoch", None)
    return -1 if epoch is None else int(epoch)


def parsed_group(packed: bytes) -> GroupMetadata:
    """The group metadata of confluent-kafka, which are librdkafka's bytes
    (``rd_kafka_consumer_group_metadata_write``)::

        "CGMDv2:" | i32 generation | group \\0 | member \\0 | u8 0: with an instance, 1: without | instance \\0
    """
    magic = b"CGMDv2:"
    start = len(magic)
    parts = (
        packed[start + 4 :].split(b"\0", 2) if isinstance(packed, bytes) and packed.startswith(magic) else []
    )
    if len(parts) != 3:
        raise TypeError(
            "group_metadata is what consumer_group_metadata() of a Consumer of confluent-kafka 1.4 or later returns."
        )
    generation = int.from_bytes(packed[start : start + 4], sys.byteorder, signed=True)
    group, member, rest = parts
    instance = None if rest[:1] == b"\1" else rest[1:].split(b"\0", 1)[0].decode()
    return GroupMetadata(group.decode(), generation, member.decode(), instance)


def group_of(metadata: Any) -> GroupMetadata:
    """The group metadata of kafka-python."""
    return GroupMetadata(
        metadata.group_id, metadata.generation_id, metadata.member_id or "", metadata.group_instance_id
    )


class _KafkaPythonConsumer:
    def __init__(self, consumer: Any) -> None:
        if consumer.config.get("enable_auto_commit"):
            raise ValueError(
                "The consumer commits by itself, outside of the transaction: create it with enable_auto_commit=False."
            )
        if consumer.config.get("group_id") is None:
            raise ValueError(
                "The consumer has no group to commit its offsets for: create it with group_id=..."
            )
        if not hasattr(consumer, "group_metadata"):
            raise TypeError(
                "This kafka-python is older than KafkaConsumer.group_metadata(), which a transaction needs: upgrade it."
            )
        self._consumer = consumer

    def positions(self) -> list[OffsetToCommit]:
        found = [(each, self._consumer.position(each)) for each in self._consumer.assignment()]
        return [
            OffsetToCommit(each.topic, each.partition, offset) for each, offset in found if offset is not None
        ]

    def group(self) -> GroupMetadata:
        return group_of(self._consumer.group_metadata())

    def seek_back(self) -> None:
        for each in self._consumer.assignment():
            committed = self._consumer.committed(each)
            if committed is None:
                self._consumer.seek_to_beginning(each)
            else:
                self._consumer.seek(each, committed)
