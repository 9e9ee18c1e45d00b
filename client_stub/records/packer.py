"""Measures checked records before they are packed.

All ways to send call it, in the caller's thread.

A record is ``[key, value]``, or ``[key, value, headers, partition, timestamp_ms]`` when one of the last three is
given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

Headers: TypeAlias = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]

PLAIN_OVERHEAD_BYTES: Final = 17
"""The framing of ``[key, value]`` takes at most 11 bytes; 17 keeps a submission of 1 MiB below 65,535 records."""
FULL_OVERHEAD_BYTES: Final = 40
HEADER_OVERHEAD_BYTES: Final = 12
KAFKA_RECORD_OVERHEAD_BYTES: Final = 61 + 21
"""The batch header and the record's own fields at their largest (AbstractRecords.estimateSizeInBytesUpperBound)."""
ROW_CHARGE_BYTES: Final = 16
"""Bytes that a record of send_many() counts in addition to its packed size: these, too, keep a submission below 65,535
records.
"""
PACKER_START_BYTES: Final = 128 << 10
ARRAY_BYTES_MAX: Final = 5
"""The greatest number of bytes that msgpack writes before the elements of an array."""
LARGE_BYTES: Final = 1 << 16
"""Records above this size are compared with max.request.size; smaller ones cannot exceed any sensible limit."""


def packed_bound(record: tuple[Any, ...]) -> int:
    """An upper bound of the bytes that a checked record takes in a submission."""
    size = ROW_CHARGE_BYTES + FULL_OVERHEAD_BYTES + len(record[0] or b"") + len(record[1] or b"")
    if len(record) > 2:
        for name, content in record[2] or ():
            size += HEADER_OVERHEAD_BYTES + 3 * len(name) + len(content or b"")
    return size


def packed_size(record: tuple[Any, ...]) -> int:
    """As ``packed_bound``, closer where a record has very many headers or long names: it encodes the names."""
    size = ROW_CHARGE_BYTES + FULL_OVERHEAD_BYTES + len(record[0] or b"") + len(record[1] or b"")
    for name, content in (record[2] if len(record) > 2 else None) or ():
        size += 1 + _str_bytes(len(name.encode())) + (1 if content is None else 5 + len(content))
    return size


def kafka_size_bound(record: tuple[Any, ...]) -> int:
    """The size that Kafka's producer compares with max.request.size
    (``AbstractRecords.estimateSizeInBytesUpperBound``) for a checked record, whatever its partition, timestamp or
    codec.
    """
    headers = record[2] if len(record) > 2 else None
    size = KAFKA_RECORD_OVERHEAD_BYTES + _field_bytes(record[0]) + _field_bytes(record[1])
    size += _length_bytes(len(headers or ()))
    for name, content in headers or ():
        size += _field_bytes(name.encode()) + _field_bytes(content)
    return size


def over_request_size(topic: str, size: int, limit: int) -> str:
    """The error text for a record that is larger than max.request.size."""
    return (
        f"The message for topic {topic} is {size} bytes when serialized which is larger than {limit}, which is the "
        "value of the max.request.size configuration."
    )


def _str_bytes(length: int) -> int:
    """The bytes of a text of ``length`` bytes in msgpack."""
    return length + (1 if length < 32 else 2 if length < 256 else 5)


def _field_bytes(content: bytes | None) -> int:
    return 1 if content is None else _length_bytes(len(content)) + len(content)


def _length_bytes(length: int) -> int:
    """The bytes of a length as a zig-zag varint, which spends one bit on a sign."""
    return max(1, -(-(length.bit_length() + 1) // 7))
