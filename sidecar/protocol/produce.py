"""Produce: request framing around record buffers that are not copied, and the response per partition.

The framing of v3 to v13 is packed by hand, because kio takes records as ``bytes`` and copies them into the
message; its bytes are tested to equal kio's.

    length i32 | api key i16 | version i16 | correlation id i32 | client id string16 [| tags]
    transactional id | acks i16 | timeout i32 | topics: name (v13: id) | partitions: i32, records [, tags]

From v9 on ("flexible") lengths are unsigned varints of n + 1, and every structure ends with its tag count, 0.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from sidecar.common.model import Node
from sidecar.protocol.messages import (
    MILLISECOND,
    ApiKey,
    UnknownErrorCode,
    decode_response,
    milliseconds,
)
from sidecar.protocol.produce_lenient import read_lenient

PRODUCE_VERSION_MIN: Final = 3
"""The first version that carries v2 record batches."""
PRODUCE_VERSION_MAX: Final = 13
PRODUCE_FLEXIBLE_VERSION: Final = 9
PRODUCE_TOPIC_ID_VERSION: Final = 13
"""From here topics are named by id, not by name."""

_HEADER: Final = struct.Struct(">hhih")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_PARTITION_LEGACY: Final = struct.Struct(">ii")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TAGS: Final = b"\0"


class ProduceTopic(NamedTuple):
    """What one request carries of one topic. ``topic_id`` is needed from v13 on."""

    name: str
    topic_id: UUID | None
    partitions: Sequence[tuple[int, memoryview | bytes]]
    """(partition, one whole v2 record batch) pairs."""


class PartitionResult(NamedTuple):
    """What the broker says about one partition of a Produce request.

    ``topic`` is None from v13 on, ``topic_id`` before. Offsets are -1 when not told; ``append_time_ms`` is -1
    for CreateTime topics. ``record_errors`` are (record index in the batch, text) pairs. The current
    leader's id and epoch (-1 = not told) come with NOT_LEADER_OR_FOLLOWER from v10 on (KIP-951).
    """

    topic: str | None
    topic_id: UUID | None
    partition: int
    error_code: int
    base_offset: int
    append_time_ms: int
    log_start_offset: int
    record_errors: tuple[tuple[int, str | None], ...]
    error_message: str | None
    current_leader_id: int
    current_leader_epoch: int


class ProduceResponse(NamedTuple):
    results: list[PartitionResult]
    throttle_ms: int
    node_endpoints: tuple[Node, ...]
    """Addresses of the leaders that results name (v10 on), empty otherwise."""


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _string16(text: str | None) -> bytes:
    if text is None:
        return _I16.pack(-1)
    data = text.encode()
    return _I16.pack(len(data)) + data


def _compact_string(text: str | None) -> bytes:
    if text is None:
        return _NO_TAGS
    data = text.encode()
    return _uvarint(len(data) + 1) + data


def encode_produce(
    version: int,
    correlation_id: int,
    client_id: str | None,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
    topics: Sequence[ProduceTopic],
) -> list[bytes | memoryview]:
    """The whole request as buffers for ``sendmsg``, its 4-byte length first; records are the objects given.

    Raises ValueError for a version outside 3..13 and, from v13 on, for a topic without an id.
    """
    if not PRODUCE_VERSION_MIN <= version <= PRODUCE_VERSION_MAX:
        raise ValueError(f"Produce v{version} is not one of v{PRODUCE_VERSION_MIN} to v{PRODUCE_VERSION_MAX}")
    flexible = version >= PRODUCE_FLEXIBLE_VERSION
    client = b"" if client_id is None else client_id.encode()
    small = bytearray(4)
    small += _HEADER.pack(ApiKey.PRODUCE, version, correlation_id, -1 if client_id is None else len(client))
    small += client
    if flexible:
        small += _NO_TAGS
    small += _compact_string(transactional_id) if flexible else _string16(transactional_id)
    small += _ACKS_TIMEOUT.pack(acks, timeout_ms)
    small += _uvarint(len(topics) + 1) if flexible else _I32.pack(len(topics))
    buffers: list[bytes | memoryview] = []
    total = 0
    for topic in topics:
        if version >= PRODUCE_TOPIC_ID_VERSION:
            if topic.topic_id is None:
                raise ValueError(
                    f"Produce v{version} needs the id of topic {topic.name!r}, and it is not known"
                )
            small += topic.topic_id.bytes
        else:
            small += _compact_string(topic.name) if flexible else _string16(topic.name)
        count = len(topic.partitions)
        small += _uvarint(count + 1) if flexible else _I32.pack(count)
        for partition, records in topic.partitions:
            size = len(records)
            if flexible:
                small += _I32.pack(partition)
                small += _uvarint(size + 1)
            else:
                small += _PARTITION_LEGACY.pack(partition, size)
            buffers.append(bytes(small))
            buffers.append(records)
            total += len(small) + size
            small = bytearray(_NO_TAGS) if flexible else bytearray()
        if flexible:
            small += _NO_TAGS
    if flexible:
        small += _NO_TAGS
    if small:
        buffers.append(bytes(small))
        total += len(small)
    first = bytearray(buffers[0])
    _I32.pack_into(first, 0, total - 4)
    buffers[0] = bytes(first)
    return buffers


def decode_produce_response(version: int, body: bytes) -> ProduceResponse:
    """Read a response body (without header) of that version; any error code passes, also one not known yet.

    Raises ProtocolError when it cannot be read.
    """
    try:
        entity = decode_response(ApiKey.PRODUCE, version, body)
    except UnknownErrorCode:
        partitions, throttle_ms, nodes = read_lenient(version, body)
        return ProduceResponse(
            [PartitionResult(*each) for each in partitions], throttle_ms, tuple(Node(*node) for node in nodes)
        )
    results = [
        _partition_result(version, topic, partition)
        for topic in entity.responses
        for partition in topic.partition_responses
    ]
    endpoints = getattr(entity, "node_endpoints", ())
    return ProduceResponse(
        results,
        milliseconds(entity.throttle_time),
        tuple(Node(int(node.node_id), node.host, int(node.port), node.rack) for node in endpoints),
    )


def _partition_result(version: int, topic: Any, partition: Any) -> PartitionResult:
    append_time = partition.log_append_time
    leader = partition.current_leader if version >= 10 else None
    has_name = version < PRODUCE_TOPIC_ID_VERSION
    return PartitionResult(
        topic=topic.name if has_name else None,
        topic_id=None if has_name else topic.topic_id,
        partition=partition.index,
        error_code=int(partition.error_code),
        base_offset=partition.base_offset,
        append_time_ms=-1 if append_time is None else (append_time - _EPOCH) // MILLISECOND,
        log_start_offset=partition.log_start_offset if version >= 5 else -1,
        record_errors=tuple(
            (int(each.batch_index), each.batch_index_error_message) for each in partition.record_errors
        )
        if version >= 8
        else (),
        error_message=partition.error_message if version >= 8 else None,
        current_leader_id=-1 if leader is None else int(leader.leader_id),
        current_leader_epoch=-1 if leader is None else int(leader.leader_epoch),
    )
