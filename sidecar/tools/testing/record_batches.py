"""Record batches of format v2, decoded by code that shares nothing with the producer's encoder.

It follows Kafka's ``DefaultRecordBatch`` and ``DefaultRecord``. A batch is::

    | header, 61 bytes; its CRC-32C covers all bytes from `attributes` to the end | records, of varints |

Errors of the encoder must show here, so lengths, counts, CRC, deltas and the end of the data are all checked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
CRC_FROM: Final = 21
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_XERIAL: Final = b"\x82SNAPPY\x00"
_TABLE_BYTES_MAX: Final = 1 << 15


class BadBatch(ValueError):
    """The bytes are no record batch; the message names the first error."""


class BatchHeader(NamedTuple):
    """Header of a batch. ``position`` and ``size_bytes`` locate the batch in the bytes it was found in."""

    position: int
    size_bytes: int
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> str:
        return CODECS[self.attributes & 7]

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, -1 without a producer id; it wraps after 2,147,483,647."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.record_count - 1) & 0x7FFF_FFFF


class BatchRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def batch_headers(data: bytes) -> Iterator[BatchHeader]:
    """Yield the headers of the adjacent batches in ``data``. Raises BadBatch."""
    position = 0
    while position < len(data):
        if len(data) - position < HEADER_BYTES:
            raise BadBatch(f"{len(data) - position} bytes are too few for a batch header")
        base_offset, length, leader_epoch, magic, crc, attributes, *rest = HEADER.unpack_from(data, position)
        size = length + 12
        if magic != 2:
            raise BadBatch(f"magic {magic} instead of 2")
        if size < HEADER_BYTES or position + size > len(data):
            raise BadBatch(f"length {length} does not fit into {len(data) - position} bytes")
        yield BatchHeader(position, size, base_offset, leader_epoch, magic, crc, attributes, *rest)
        position += size


def read_batch(data: bytes) -> tuple[BatchHeader, list[BatchRecord]]:
    """Check one whole batch and return its header and records. Raises BadBatch, also for a wrong CRC."""
    headers = list(batch_headers(data))
    if len(headers) != 1:
        raise BadBatch(f"{len(headers)} batches instead of one")
    header = headers[0]
    if crc32c(data[CRC_FROM:]) != header.crc:
        raise BadBatch(f"the CRC is {header.crc:#010x}, the bytes give {crc32c(data[CRC_FROM:]):#010x}")
    body = _decompress(header.attributes & 7, data[HEADER_BYTES:])
    records, position = [], 0
    for index in range(header.record_count):
        record, position = _record(body, position, index, header)
        records.append(record)
    if position != len(body):
        raise BadBatch(f"{len(body) - position} bytes behind the last of {header.record_count} records")
    if header.last_offset_delta != header.record_count - 1:
        raise BadBatch(f"last offset delta {header.last_offset_delta} with {header.record_count} records")
    if records and max(record.timestamp_ms for record in records) != header.max_timestamp_ms:
        raise BadBatch("the largest timestamp is not that of a record")
    return header, records


def _record(body: bytes, position: int, index: int, header: BatchHeader) -> tuple[BatchRecord, int]:
    try:
        length, position = varint(body, position)
        end = position + length
        if length < 0 or end > len(body):
            raise BadBatch(f"record {index} has {length} bytes, {len(body) - position} are left")
        position += 1  # attributes: none are defined
        timestamp_delta, position = varint(body, position, bytes_max=10)
        offset_delta, position = varint(body, position)
        if offset_delta != index:
            raise BadBatch(f"record {index} has offset delta {offset_delta}")
        key, position = _bytes(body, position)
        value, position = _bytes(body, position)
        count, position = varint(body, position)
        headers = []
        for _ in range(count):
            name, position = _bytes(body, position)
            content, position = _bytes(body, position)
            if name is None:
                raise BadBatch(f"record {index} has a header without a name")
            headers.append((name.decode(), content))
    except (IndexError, UnicodeDecodeError) as error:
        raise BadBatch(f"record {index} ends in the middle: {error}") from error
    if position != end:
        raise BadBatch(f"record {index} ends at {position}, its length says {end}")
    return BatchRecord(key, value, tuple(headers), header.base_timestamp_ms + timestamp_delta), position


def _bytes(body: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = varint(body, position)
    if length < 0:
        if length != -1:
            raise BadBatch(f"a field of {length} bytes")
        return None, position
    if position + length > len(body):
        raise BadBatch(f"a field of {length} bytes, {len(body) - position} are left")
    return body[position : position + length], position + length


def varint(data: bytes, position: int, *, bytes_max: int = 5) -> tuple[int, int]:
    """Return a zig-zag varint and the position after it. Raises BadBatch when it has more than ``bytes_max`` bytes."""
    value = 0
    for taken in range(bytes_max):
        byte = data[position + taken]
        value |= (byte & 0x7F) << (7 * taken)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + taken + 1
    raise BadBatch(f"a varint of more than {bytes_max} bytes")


def _decompress(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    try:
        if codec == 1:
            return zlib.decompress(data, wbits=31)
        # Imported here, so that without compression only the standard library is needed.
        import cramjam

        decoders: Any = cramjam
        if codec == 2:
            return _snappy(decoders.snappy, data)
        if codec in (3, 4):
            return bytes((decoders.lz4 if codec == 3 else decoders.zstd).decompress(data))
    except (ValueError, zlib.error, RuntimeError, struct.error) as error:
        raise BadBatch(f"{CODECS[codec]} data cannot be unpacked: {error}") from error
    raise BadBatch(f"codec {codec} is not defined")


def _snappy(snappy: Any, data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        return bytes(snappy.decompress_raw(data))
    position, parts = 16, []
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        parts.append(bytes(snappy.decompress_raw(data[position + 4 : position + 4 + size])))
        position += 4 + size
    return b"".join(parts)


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE: Final = _make_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli): from a table up to 32 KiB, by the crc32c package beyond, which is faster."""
    if len(data) > _TABLE_BYTES_MAX:
        import crc32c as package

        return int(package.crc32c(data))
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
