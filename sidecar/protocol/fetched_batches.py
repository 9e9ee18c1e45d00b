"""Record batches of format v2 as a broker hands them over. Sans-IO.

Unlike those of a producer they may lack records, which compaction has removed, and the last one may be cut. The
records of a batch are read only where they are asked for::

    | header, 61 bytes; its CRC-32C covers all bytes from `attributes` to the end | records, of varints |
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sidecar.kernel import crc32c
from sidecar.protocol.messages import ProtocolError

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_HEADER_BYTES: Final = 61
_CRC_FROM: Final = 21
_LENGTH_AFTER: Final = 12
"""A batch's length counts the bytes after these."""
_MAGIC: Final = 2
_CODEC_BITS: Final = 7
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_MARKER_KEY: Final = struct.Struct(">hh")
_COMMIT: Final = 1
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16

Headers = tuple[tuple[str, bytes | None], ...]


class FetchedRecord(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class FetchedBatch(NamedTuple):
    base_offset: int
    last_offset: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    epoch: int
    record_count: int
    body: bytes
    """Its records, as they are compressed."""

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_marker(self) -> bool:
        """Whether its one record is no data, but the end of a transaction of its producer id."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_commit(self) -> bool:
        """Of a marker."""
        key = next((each.key for each in self.records()), None)
        if key is None or len(key) < _MARKER_KEY.size:
            raise ProtocolError(f"The marker at offset {self.base_offset} does not say what it is.")
        return int(_MARKER_KEY.unpack_from(key)[1]) == _COMMIT

    def records(self) -> Iterator[FetchedRecord]:
        """Raises ProtocolError for data that cannot be read."""
        body = _unpacked(self.attributes & _CODEC_BITS, self.body)
        position = 0
        has_append_time = bool(self.attributes & _LOG_APPEND_TIME)
        try:
            for _ in range(self.record_count):
                size, position = _varint(body, position)
                end = position + size
                position += 1  # attributes: none are defined
                timestamp, position = _varint(body, position)
                offset, position = _varint(body, position)
                key, position = _bytes(body, position)
                value, position = _bytes(body, position)
                headers, position = _headers(body, position)
                if position != end:
                    raise ProtocolError(
                        f"A record of the batch at offset {self.base_offset} has another length."
                    )
                yield FetchedRecord(
                    self.base_offset + offset,
                    self.max_timestamp_ms if has_append_time else self.base_timestamp_ms + timestamp,
                    key,
                    value,
                    headers,
                )
        except (IndexError, UnicodeDecodeError):
            raise ProtocolError(f"The batch at offset {self.base_offset} cannot be read.") from None


def fetched_batches(data: bytes) -> Iterator[FetchedBatch]:
    """The whole batches of ``data``. Raises ProtocolError for another format, and for a wrong checksum."""
    position = 0
    while len(data) - position >= _HEADER_BYTES:
        base, length, _, magic, crc, attributes, last_delta, base_ms, max_ms, producer_id, epoch, _, count = (
            _HEADER.unpack_from(data, position)
        )
        end = position + _LENGTH_AFTER + length
        if magic != _MAGIC or length < _HEADER_BYTES - _LENGTH_AFTER:
            raise ProtocolError(
                f"The batch at offset {base} has format {magic}, and only {_MAGIC} can be read."
            )
        if end > len(data):
            return
        if crc32c(memoryview(data)[position + _CRC_FROM : end]) != crc:
            raise ProtocolError(f"The batch at offset {base} has a wrong checksum.")
        body = data[position + _HEADER_BYTES : end]
        yield FetchedBatch(
            base, base + last_delta, attributes, base_ms, max_ms, producer_id, epoch, count, body
        )
        position = end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Raises IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _varint(data, position)
    if size < 0:
        return None, position
    if position + size > len(data):
        raise IndexError
    return data[position : position + size], position + size


def _headers(data: bytes, position: int) -> tuple[Headers, int]:
    count, position = _varint(data, position)
    found = []
    for _ in range(count):
        name, position = _bytes(data, position)
        value, position = _bytes(data, position)
        found.append(((name or b"").decode(), value))
    return tuple(found), position


def _unpacked(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    if codec >= len(_CODECS):
        raise ProtocolError(f"A batch is packed with codec {codec}, which is not defined.")
    try:
        if codec == 1:
            return zlib.decompress(data, wbits=31)
        # Imported here: only those who set compression.type have it.
        import cramjam

        decoders: Any = cramjam
        if codec == 2:
            return _snappy(decoders.snappy, data)
        return bytes((decoders.lz4 if codec == 3 else decoders.zstd).decompress(data))
    except Exception as error:  # cramjam raises its own, and what the memory does
        raise ProtocolError(
            f"A batch that is packed with {_CODECS[codec]} cannot be unpacked: {error}"
        ) from None


def _snappy(snappy: Any, data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        return bytes(snappy.decompress_raw(data))
    position, parts = _XERIAL_HEADER_BYTES, []
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        parts.append(bytes(snappy.decompress_raw(data[position + 4 : position + 4 + size])))
        position += 4 + size
    return b"".join(parts)
