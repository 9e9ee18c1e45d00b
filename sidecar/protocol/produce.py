"""Produce: frames requests around record buffers without copying these (produce_answer.py reads the responses).

The framing of v3 to v13 is packed by hand, because kio takes records as ``bytes`` and copies them into the message;
its bytes are tested to equal kio's.

    length i32 | api key i16 | version i16 | correlation id i32 | client id string16 [| tags]
    transactional id | acks i16 | timeout i32 | topics: name (v13: id) | partitions: i32, records [, tags]

From v9 on ("flexible") lengths are unsigned varints of n + 1, and every structure ends with its tag count, 0.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from sidecar.protocol.messages import ApiKey, Buffer
from sidecar.protocol.produce_answer import PRODUCE_FLEXIBLE_VERSION, PRODUCE_TOPIC_ID_VERSION

PRODUCE_VERSION_MIN: Final = 3
"""The first version that carries v2 record batches."""
PRODUCE_VERSION_MAX: Final = 13

_PRODUCE: Final = int(ApiKey.PRODUCE)
_HEADER: Final = struct.Struct(">ihhih")
_LENGTH_AND_ID: Final = struct.Struct(">ihhi")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_PARTITION_LEGACY: Final = struct.Struct(">ii")
_NO_TAGS: Final = b"\0"
NAMES_KEPT: Final = 4096
"""Number of topic names and ids kept in encoded form."""


class ProduceTopic(NamedTuple):
    """One topic's part of a request. ``topic_id`` is needed from v13 on."""

    name: str
    topic_id: UUID | None
    partitions: Sequence[tuple[int, memoryview | bytes]]
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
    topics: Sequence[ProduceTopic],
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
                # The same as _uvarint without a call per batch; a batch has at least 61 bytes.
                if 0x7F < more < 0x4000:
                    small += bytes((more & 0x7F | 0x80, more >> 7))
                elif 0x4000 <= more < 0x200000:
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
