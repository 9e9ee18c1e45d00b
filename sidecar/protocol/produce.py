"""Produce: frames requests around record buffers without copying these, and reads the answers.

Sans-IO: a worker's Sender, ProducePort and links call it, on the worker's loop.

The framing of v3 to v13 is packed by hand, because kio takes records as ``bytes`` and copies them into the message;
its bytes are tested to equal kio's.

    length i32 | api key i16 | version i16 | correlation id i32 | client id string16 [| tags]
    transactional id | acks i16 | timeout i32 | topics: name (v13: id) | partitions: i32, records [, tags]

From v9 on ("flexible") lengths are unsigned varints of n + 1, and every structure ends with its tag count, 0.

Answers are read by hand as well: the result of each partition, whatever its error code. kio knows only the error codes
of its release. It refuses a whole answer with any other, although the other batches did not fail, and makes five
objects where one is enough. Tests compare this reader with kio wherever kio can read. Most answers are short and have
no error: these are read without a cursor.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from sidecar.common.model import Node
from sidecar.protocol.connection import make_tuple
from sidecar.protocol.messages import ApiKey, Buffer, ProtocolError

PRODUCE_VERSION_MIN: Final = 3
"""The first version that carries v2 record batches."""
PRODUCE_VERSION_MAX: Final = 13
PRODUCE_FLEXIBLE_VERSION: Final = 9
PRODUCE_TOPIC_ID_VERSION: Final = 13
"""From this version on, topics are named by id."""

_PRODUCE: Final = int(ApiKey.PRODUCE)
_HEADER: Final = struct.Struct(">ihhih")
_LENGTH_AND_ID: Final = struct.Struct(">ihhi")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_PARTITION_LEGACY: Final = struct.Struct(">ii")
_NO_TAGS: Final = b"\0"
_GOOD: Final = struct.Struct(">ihqqq3s")
"""Index, code, base offset, append time, log start; no record errors, no message, no tags."""
_GOOD_BYTES: Final = _GOOD.size
_NOTHING_ELSE: Final = b"\x01\0\0"
_ONE_BYTE_MAX: Final = 0x7F
"""The largest varint of one byte."""
NAMES_KEPT: Final = 4096
"""Number of topic names and ids kept in encoded form."""


class ProduceTopic(NamedTuple):
    """One topic's part of a request. ``topic_id`` is needed from v13 on."""

    name: str
    topic_id: UUID | None
    partitions: list[tuple[int, memoryview | bytes]]
    """(partition, one whole v2 record batch) pairs."""


def _uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = tuple(_uvarint(value) for value in range(0x80))
"""Encoded small numbers: most requests have few topics and partitions, and so need no call."""


def _string16(text: str | None) -> bytes:
    if text is None:
        return _I16.pack(-1)
    data = text.encode()
    return _I16.pack(len(data)) + data


@lru_cache(maxsize=NAMES_KEPT)
def _compact_string(text: str | None) -> bytes:
    if text is None:
        return _NO_TAGS
    data = text.encode()
    return _uvarint(len(data) + 1) + data


@lru_cache(maxsize=64)
def _head(
    version: int, client_id: str | None, acks: int, timeout_ms: int, transactional_id: str | None
) -> bytes:
    """Encoded bytes before the topics, equal in most requests. Length and correlation id are 0."""
    flexible = version >= PRODUCE_FLEXIBLE_VERSION
    client = b"" if client_id is None else client_id.encode()
    head = _HEADER.pack(0, ApiKey.PRODUCE, version, 0, -1 if client_id is None else len(client))
    head += client
    if flexible:
        head += _NO_TAGS
    head += _compact_string(transactional_id) if flexible else _string16(transactional_id)
    return head + _ACKS_TIMEOUT.pack(acks, timeout_ms)


def encode_produce(
    version: int,
    correlation_id: int,
    client_id: str | None,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
    topics: Collection[ProduceTopic],
) -> list[Buffer]:
    """The whole request as buffers for ``sendmsg``, its 4-byte length first. Records are the given objects.

    Raises ValueError for a version outside of 3..13, and from v13 on for a topic without an id.
    """
    if not PRODUCE_VERSION_MIN <= version <= PRODUCE_VERSION_MAX:
        raise ValueError(f"Produce v{version} is not one of v{PRODUCE_VERSION_MIN} to v{PRODUCE_VERSION_MAX}")
    flexible = version >= PRODUCE_FLEXIBLE_VERSION
    first = small = bytearray(_head(version, client_id, acks, timeout_ms, transactional_id))
    count = len(topics)
    if flexible:
        small += _SMALL[count + 1] if count < 0x7F else _uvarint(count + 1)
    else:
        small += _I32.pack(count)
    buffers: list[Buffer] = []
    total = 0
    for name, topic_id, partitions in topics:
        if version >= PRODUCE_TOPIC_ID_VERSION:
            if topic_id is None:
                raise ValueError(f"Produce v{version} needs the id of topic {name!r}, and it is not known")
            small += topic_id.bytes
        else:
            small += _compact_string(name) if flexible else _string16(name)
        count = len(partitions)
        if flexible:
            small += _SMALL[count + 1] if count < 0x7F else _uvarint(count + 1)
        else:
            small += _I32.pack(count)
        for partition, records in partitions:
            size = len(records)
            if flexible:
                small += _I32.pack(partition)
                more = size + 1
                # The same as _uvarint without a call per batch.
                if more < 0x80:
                    small += _SMALL[more]
                elif more < 0x4000:
                    small += bytes((more & 0x7F | 0x80, more >> 7))
                elif more < 0x200000:
                    small += bytes((more & 0x7F | 0x80, more >> 7 & 0x7F | 0x80, more >> 14))
                else:
                    small += _uvarint(more)
            else:
                small += _PARTITION_LEGACY.pack(partition, size)
            buffers += (small, records)
            total += len(small) + size
            small = bytearray(_NO_TAGS) if flexible else bytearray()
        if flexible:
            small += _NO_TAGS
    if flexible:
        small += _NO_TAGS
    if small:
        buffers.append(small)
        total += len(small)
    _LENGTH_AND_ID.pack_into(first, 0, total - 4, _PRODUCE, version, correlation_id)
    return buffers


class PartitionResult(NamedTuple):
    """The broker's answer for one partition of a Produce request.

    ``topic`` is None from v13 on, ``topic_id`` before. Offsets are -1 when absent; ``append_time_ms`` is -1
    for CreateTime topics. ``record_errors`` are (record index in the batch, text) pairs. The current
    leader's id and epoch (-1 = absent) come with NOT_LEADER_OR_FOLLOWER from v10 on (KIP-951).
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
    """Addresses of leaders named in results (from v10 on), else empty."""


def decode_produce_response(version: int, body: bytes) -> ProduceResponse:
    """Read a response body (without header) of that version. Any error code is accepted, even an unknown one.

    Raises ProtocolError if it cannot be read.
    """
    try:
        if version < PRODUCE_FLEXIBLE_VERSION or body[0] > _ONE_BYTE_MAX:
            return _read(version, body)
        # The usual answer has no error and no long list. Any other is read from the start, by a cursor.
        results: list[PartitionResult] = []
        unpack = _GOOD.unpack_from
        position = 1
        for _ in range(body[0] - 1):
            topic = topic_id = None
            if version >= PRODUCE_TOPIC_ID_VERSION:
                topic_id = _topic_id(body[position : position + 16])
                position += 16
            else:
                size = body[position]
                if not 0 < size <= _ONE_BYTE_MAX:
                    return _read(version, body)
                topic = body[position + 1 : position + size].decode()
                position += size
            partitions = body[position]
            position += 1
            if partitions > _ONE_BYTE_MAX:
                return _read(version, body)
            for _ in range(partitions - 1):
                index, code, base_offset, append_ms, log_start, rest = unpack(body, position)
                if code or rest != _NOTHING_ELSE:
                    return _read(version, body)
                position += _GOOD_BYTES
                fields = (topic, topic_id, index, 0, base_offset, append_ms, log_start, (), None, -1, -1)
                results.append(make_tuple(PartitionResult, fields))
            if body[position]:
                return _read(version, body)
            position += 1
        if body[position + 4 :] != b"\0":
            return _read(version, body)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"The broker's answer to PRODUCE v{version} cannot be read: {error}") from error
    throttle_ms = int.from_bytes(body[position : position + 4], "big", signed=True)
    return make_tuple(ProduceResponse, (results, throttle_ms, ()))


@lru_cache(maxsize=NAMES_KEPT)
def _topic_id(data: bytes) -> UUID:
    return UUID(bytes=data)


def _read(version: int, body: bytes) -> ProduceResponse:
    reader = _Reader(body, version >= PRODUCE_FLEXIBLE_VERSION)
    results: list[PartitionResult] = []
    for _ in range(reader.count()):
        topic = topic_id = None
        if version >= PRODUCE_TOPIC_ID_VERSION:
            topic_id = _topic_id(reader.take(16))
        else:
            topic = reader.string()
        results += [_partition(reader, version, topic, topic_id) for _ in range(reader.count())]
        reader.tags()
    throttle_ms = reader.number("i")
    endpoints = reader.tags().get(0)
    return ProduceResponse(results, throttle_ms, () if endpoints is None else _nodes(endpoints))


def _partition(reader: _Reader, version: int, topic: str | None, topic_id: UUID | None) -> PartitionResult:
    index, code, base_offset, append_time_ms = (
        reader.number("i"),
        reader.number("h"),
        reader.number("q"),
        reader.number("q"),
    )
    log_start_offset = reader.number("q") if version >= 5 else -1
    record_errors: list[tuple[int, str | None]] = []
    message = None
    if version >= 8:
        for _ in range(reader.count()):
            record_errors.append((reader.number("i"), reader.string()))
            reader.tags()
        message = reader.string()
    leader = reader.tags().get(0)
    leader_id, leader_epoch = (-1, -1) if leader is None else struct.unpack_from(">ii", leader)
    return PartitionResult(
        topic,
        topic_id,
        index,
        code,
        base_offset,
        append_time_ms,
        log_start_offset,
        tuple(record_errors),
        message,
        leader_id,
        leader_epoch,
    )


def _nodes(data: bytes) -> tuple[Node, ...]:
    reader = _Reader(data, True)
    nodes: list[Node] = []
    for _ in range(reader.count()):
        nodes.append(Node(reader.number("i"), reader.string() or "", reader.number("i"), reader.string()))
        reader.tags()
    return tuple(nodes)


class _Reader:
    """A cursor over one body. If ``flexible``, lengths are varints of n + 1."""

    def __init__(self, body: bytes, flexible: bool) -> None:
        self._body = body
        self._position = 0
        self._flexible = flexible

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f">{kind}", self._body, self._position)
        self._position += struct.calcsize(f">{kind}")
        return int(value)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def take(self, count: int) -> bytes:
        taken = self._body[self._position : self._position + count]
        if len(taken) != count:
            raise struct.error("cut short")
        self._position += count
        return taken

    def count(self) -> int:
        return self.varint() - 1 if self._flexible else self.number("i")

    def string(self) -> str | None:
        length = self.varint() - 1 if self._flexible else self.number("h")
        return None if length < 0 else self.take(length).decode()

    def tags(self) -> dict[int, bytes]:
        if not self._flexible:
            return {}
        return {self.varint(): self.take(self.varint()) for _ in range(self.varint())}
