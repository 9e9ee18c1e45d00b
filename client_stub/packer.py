"""Checks and measures records before they are packed.

A record is ``[key, value]``, or ``[key, value, headers, partition, timestamp_ms]`` when one of the last three is
given. Types are checked before anything is packed, as a failed pack could leave half a record in the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from client_stub.arguments import as_utf8

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
INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1


def checked_bytes(value: object, what: str) -> bytes | None:
    """``value`` as bytes. Raises TypeError, which says what to do instead."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    hint = ""
    if isinstance(value, str):
        hint = "; encode it first, for example with .encode()"
    elif what in {"key", "value"}:
        hint = f"; encode it first, for example with json.dumps({what}).encode()"
    raise TypeError(f"{what} must be bytes or None, not {type(value).__name__}{hint}.")


def checked_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(f"headers must be (name, value) pairs or a mapping, not {type(headers).__name__}.")
    checked: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"headers must be (name, value) pairs, not {pair!r:.80}.")
        name, value = pair
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}.")
        as_utf8(name, f"The name of header {name!a:.60}")  # otherwise packing would fail half-way
        checked.append((name, checked_bytes(value, f"the value of header {name!r}")))
    return checked


def checked_partition(partition: object) -> int:
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise TypeError(f"partition must be int or None, not {type(partition).__name__}.")
    if not 0 <= partition <= INT_MAX:
        raise ValueError(
            f"Invalid partition: {partition}. Partition number should always be non-negative or None"
            f"{f', and at most {INT_MAX}' if partition > 0 else ''}."
        )
    return partition


def checked_timestamp(timestamp_ms: object) -> int:
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"timestamp_ms must be int or None, not {type(timestamp_ms).__name__}.")
    if not 0 <= timestamp_ms <= LONG_MAX:
        raise ValueError(
            f"Invalid timestamp: {timestamp_ms}. Timestamp should always be non-negative or None"
            f"{f', and at most {LONG_MAX}' if timestamp_ms > 0 else ''}."
        )
    return timestamp_ms


def full_record(
    key: object, value: object, headers: Headers | None, partition: object, timestamp_ms: object
) -> tuple[tuple[Any, ...], int]:
    """A checked record of five fields and the upper bound of its packed size. Raises TypeError or ValueError."""
    # The checks are called for what they do not pass at once.
    if key is not None and not isinstance(key, bytes):
        key = checked_bytes(key, "key")
    if value is not None and not isinstance(value, bytes):
        value = checked_bytes(value, "value")
    size = FULL_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    checked = None
    if headers is not None:
        checked = checked_headers(headers)
        for name, content in checked:
            size += HEADER_OVERHEAD_BYTES + 3 * len(name) + len(content or b"")
    if partition is not None and not (type(partition) is int and 0 <= partition <= INT_MAX):
        partition = checked_partition(partition)
    if timestamp_ms is not None:
        timestamp_ms = checked_timestamp(timestamp_ms)
    if checked is None and partition is None and timestamp_ms is None:
        return (key, value), size
    return (key, value, checked, partition, timestamp_ms), size


def packed_bound(record: tuple[Any, ...]) -> int:
    """An upper bound of the bytes that a checked record takes in a submission."""
    size = ROW_CHARGE_BYTES + FULL_OVERHEAD_BYTES + len(record[0] or b"") + len(record[1] or b"")
    if len(record) > 2:
        for name, content in record[2] or ():
            size += HEADER_OVERHEAD_BYTES + 3 * len(name) + len(content or b"")
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


def _field_bytes(content: bytes | None) -> int:
    return 1 if content is None else _length_bytes(len(content)) + len(content)


def _length_bytes(length: int) -> int:
    """The bytes of a length as a zig-zag varint, which spends one bit on a sign."""
    return max(1, -(-(length.bit_length() + 1) // 7))
