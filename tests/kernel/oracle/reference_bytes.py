"""The twin's bytes: varints, murmur2, CRC-32C and the batch header."""

from __future__ import annotations

import struct
from typing import Any, Final

BATCH_HEADER_BYTES: Final = 61
_U64: Final = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """Zig-zag varint of a signed 64-bit number (ByteUtils.writeVarlong)."""
    number = ((value << 1) ^ (value >> 63)) & _U64
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def write_batch_header(
    out: Any,
    records_bytes: int,
    *,
    producer_id: int,
    epoch: int,
    base_sequence: int,
    attributes: int,
    count: int,
    first_timestamp_ms: int,
    max_timestamp_ms: int,
) -> int:
    view = memoryview(out).cast("B")
    total = records_bytes + BATCH_HEADER_BYTES
    if records_bytes < 0 or len(view) < total:
        raise ValueError(f"a batch of {total} bytes does not fit into {len(view)}")
    struct.pack_into(">qiibI", view, 0, 0, total - 12, -1, 2, 0)
    stamps = (first_timestamp_ms, max_timestamp_ms)
    struct.pack_into(
        ">hiqqqhii", view, 21, attributes, count - 1, *stamps, producer_id, epoch, base_sequence, count
    )
    struct.pack_into(">I", view, 17, crc32c(view[21:total]))
    return total


def murmur2(data: Any) -> int:
    key = bytes(data)
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        k = k * m & mask  # noqa: PLW2901 - Kafka's own names
        k ^= k >> 24  # noqa: PLW2901
        h = (h * m ^ (k * m & mask)) & mask
    tail = key[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h ^= h >> 13
    h = h * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    return table


_CRC_TABLE: Final = _crc_table()


def crc32c(data: Any, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
