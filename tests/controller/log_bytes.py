"""Bytes of a partition's log: record batches and markers, also such as no producer sends."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sidecar.kernel import crc32c
from sidecar.worker.brokers.compression import CODEC_ATTRIBUTES, compress

ABORT, COMMIT = 0, 1
Record = tuple[bytes | None, bytes | None]


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _record(delta: int, record: Record, headers: Sequence[Record]) -> bytes:
    body = b"\0" + _varint(0) + _varint(delta) + _bytes(record[0]) + _bytes(record[1]) + _varint(len(headers))
    body += b"".join(_bytes(name) + _bytes(value) for name, value in headers)
    return _varint(len(body)) + body


def batch(
    offset: int,
    records: Sequence[Record],
    *,
    producer_id: int = -1,
    attributes: int | None = None,
    codec: str = "none",
    offset_deltas: Sequence[int] | None = None,
    last_delta: int | None = None,
    headers: Sequence[Record] = (),
    magic: int = 2,
    count: int | None = None,
) -> bytes:
    """One batch; with a producer id it is of a transaction."""
    deltas = range(len(records)) if offset_deltas is None else offset_deltas
    body = b"".join(_record(delta, each, headers) for delta, each in zip(deltas, records, strict=True))
    if codec != "none":
        packed = compress(codec, body)
        assert packed is not None
        body = packed
    if attributes is None:
        attributes = (0x10 if producer_id >= 0 else 0) | CODEC_ATTRIBUTES[codec]
    last_delta = len(records) - 1 if last_delta is None else last_delta
    count = len(records) if count is None else count
    checked = struct.pack(">hiqqqhii", attributes, last_delta, 1_000, 1_000, producer_id, 0, 0, count) + body
    after = struct.pack(">ibI", 0, magic, crc32c(checked)) + checked
    return struct.pack(">qi", offset, len(after)) + after


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    return batch(offset, [(struct.pack(">hh", 0, kind), b"\0" * 6)], producer_id=producer_id, attributes=0x30)
