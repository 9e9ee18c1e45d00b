"""Codecs of a record batch: Kafka's names and attribute bits, compressed by cramjam, which releases the GIL.

Two formats need care. With lz4 the blocks must be independent, because Kafka's Java reader refuses linked ones. The
one-shot ``lz4.compress`` of cramjam links them, so the streaming compressor is used. With snappy it is Java's framed
format ("xerial"), which every client reads::

    | magic 8 | version 4 | compatible 4 | length 4 | raw block | length 4 | raw block | ...
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import cramjam

CODEC_ATTRIBUTES: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""compression.type → the codec bits of a batch's attributes."""

LEVEL_DEFAULTS: Final = {"gzip": 6, "lz4": 9, "zstd": 3}
_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024


def _gzip(data: bytes, level: int) -> bytes:
    return bytes(cramjam.gzip.compress(data, level=level))


def _snappy(data: bytes, level: int) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _lz4(data: bytes, level: int) -> bytes:
    compressor: Any = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def _zstd(data: bytes, level: int) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=level))


_COMPRESSORS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": _zstd,
}


def compress(codec: str, data: bytes, level: int | None = None) -> bytes | None:
    """Compress the records section of one batch. None if that would not make it smaller: send it uncompressed."""
    out = _COMPRESSORS[codec](data, LEVEL_DEFAULTS.get(codec, 0) if level is None else level)
    return out if len(out) < len(data) else None
