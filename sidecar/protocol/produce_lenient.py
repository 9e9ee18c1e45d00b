"""Reading a Produce response that names an error code from the future.

kio knows the error codes of its release and refuses any other. The batch such a code is about failed, but the
others in the same answer did not, so the answer must still be read: this reader takes any code. It is used only
when kio has refused, and is tested to agree with kio wherever kio reads.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from uuid import UUID

from sidecar.protocol.messages import ProtocolError

_FLEXIBLE: Final = 9
_TOPIC_IDS: Final = 13


class LenientPartition(NamedTuple):
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


class LenientNode(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None


class _Reader:
    """A cursor over one body; lengths are varints of n + 1 when ``flexible``."""

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


def read_lenient(version: int, body: bytes) -> tuple[list[LenientPartition], int, list[LenientNode]]:
    """(partitions, throttle_ms, node endpoints) of a body of that version, whatever its error codes.

    Raises ProtocolError when the bytes are no such response.
    """
    try:
        reader = _Reader(body, version >= _FLEXIBLE)
        partitions: list[LenientPartition] = []
        for _ in range(reader.count()):
            topic = topic_id = None
            if version >= _TOPIC_IDS:
                topic_id = UUID(bytes=reader.take(16))
            else:
                topic = reader.string()
            partitions += [_partition(reader, version, topic, topic_id) for _ in range(reader.count())]
            reader.tags()
        throttle_ms = reader.number("i")
        endpoints = reader.tags().get(0)
        return partitions, throttle_ms, [] if endpoints is None else _nodes(endpoints)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"The broker's answer to PRODUCE v{version} cannot be read: {error}") from error


def _partition(reader: _Reader, version: int, topic: str | None, topic_id: UUID | None) -> LenientPartition:
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
    return LenientPartition(
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


def _nodes(data: bytes) -> list[LenientNode]:
    reader = _Reader(data, True)
    nodes: list[LenientNode] = []
    for _ in range(reader.count()):
        nodes.append(
            LenientNode(reader.number("i"), reader.string() or "", reader.number("i"), reader.string())
        )
        reader.tags()
    return nodes
