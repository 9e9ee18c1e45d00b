"""Reads Produce responses by hand: the result of each partition, whatever its error code.

kio knows only the error codes of its release. It refuses a whole answer with any other, although the other batches did
not fail, and makes five objects where one is enough. Tests compare this reader with kio wherever kio can read. Most
answers are short and have no error: these are read without a cursor.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from sidecar.common.model import Node
from sidecar.protocol.connection import make_tuple
from sidecar.protocol.messages import ProtocolError

PRODUCE_FLEXIBLE_VERSION: Final = 9
PRODUCE_TOPIC_ID_VERSION: Final = 13
"""From this version on, topics are named by id."""

_GOOD: Final = struct.Struct(">ihqqq3s")
"""Index, code, base offset, append time, log start; no record errors, no message, no tags."""
_GOOD_BYTES: Final = _GOOD.size
_NOTHING_ELSE: Final = b"\x01\0\0"
_ONE_BYTE_MAX: Final = 0x7F
"""The largest varint of one byte."""


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
        if version >= PRODUCE_FLEXIBLE_VERSION:
            response = _read_good(version, body)
            if response is not None:
                return response
        return _read(version, body)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"The broker's answer to PRODUCE v{version} cannot be read: {error}") from error


@lru_cache(maxsize=4096)
def _topic_id(data: bytes) -> UUID:
    return UUID(bytes=data)


def _read_good(version: int, body: bytes) -> ProduceResponse | None:
    """Read an answer without errors or long lists; None for any other."""
    results: list[PartitionResult] = []
    unpack = _GOOD.unpack_from
    topics, position = body[0], 1
    if topics > _ONE_BYTE_MAX:
        return None
    for _ in range(topics - 1):
        topic = topic_id = None
        if version >= PRODUCE_TOPIC_ID_VERSION:
            topic_id = _topic_id(body[position : position + 16])
            position += 16
        else:
            size = body[position]
            if not 0 < size <= _ONE_BYTE_MAX:
                return None
            topic = body[position + 1 : position + size].decode()
            position += size
        partitions = body[position]
        position += 1
        if partitions > _ONE_BYTE_MAX:
            return None
        for _ in range(partitions - 1):
            index, code, base_offset, append_time_ms, log_start_offset, rest = unpack(body, position)
            if code or rest != _NOTHING_ELSE:
                return None
            position += _GOOD_BYTES
            fields = (
                topic,
                topic_id,
                index,
                0,
                base_offset,
                append_time_ms,
                log_start_offset,
                (),
                None,
                -1,
                -1,
            )
            results.append(make_tuple(PartitionResult, fields))
        if body[position]:
            return None
        position += 1
    if body[position + 4 :] != b"\0":
        return None
    throttle_ms = int.from_bytes(body[position : position + 4], "big", signed=True)
    return make_tuple(ProduceResponse, (results, throttle_ms, ()))


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
