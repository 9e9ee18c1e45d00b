"""Turns Arrow tables into submissions: orders the columns' buffers as wire.Format.ARROW says, and touches no row in
Python.

TableCall calls it, in the caller's thread.

Apart from its checks (column_types.py, column_sizes.py) this is the only file of the stub that imports pyarrow.
For a worker that does not read columns (see ``limits`` in docs/protocol.md) the columns are converted to msgpack.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from client_stub.contract.wire import (
    COLUMN_HEADER_KEYS,
    COLUMN_HEADER_VALUES,
    COLUMN_HEADERS,
    COLUMN_KEY,
    COLUMN_PARTITION,
    COLUMN_TIMESTAMP,
    COLUMN_VALUE,
    COLUMNS_MAGIC,
    SUBMISSION_RECORDS_MAX,
)
from client_stub.records.column_sizes import rows_above
from client_stub.records.column_types import compute
from client_stub.records.packer import LARGE_BYTES
from client_stub.records.record_fields import full_record
from client_stub.zmtp.frames import Pieces

if TYPE_CHECKING:
    from client_stub.records.size_limits import SizeLimits

_BLOCK: Final = struct.Struct("<IIII")
_COLUMN: Final = struct.Struct("<BBHIIIIIII")
assert _COLUMN.size == 32
_FILL: Final = 0.9
"""The share of a submission to fill when rows are counted by their average size."""


def check_sizes(limits: SizeLimits, topic: str, batches: Iterable[Any]) -> None:
    """Raises RecordTooLarge, which names the record, for a row that send() would refuse, before any row is queued."""
    first = 0
    for batch in batches:
        # Wait for the daemon's size limit only when a row is large enough to need it.
        if rows_above(batch, limits.known or LARGE_BYTES):
            for row in rows_above(batch, limits.limit(topic)):
                record = full_record(*_fields(as_records(batch.slice(row, 1))[0]))[0]
                limits.check_numbered(topic, first + row, record)
        first += batch.num_rows


def _fields(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row, *[None] * (5 - len(row)))


def block_of(batch: Any, start: int, bytes_max: int) -> tuple[int, Pieces | bytes]:
    """(count, payload) of as many rows from ``start`` on as fit into one submission, at least one."""
    left = batch.num_rows - start
    row_bytes = max(1.0, batch.slice(start).nbytes / left)
    count = max(1, min(left, SUBMISSION_RECORDS_MAX, int(bytes_max * _FILL / row_bytes)))
    while True:
        payload = column_block(batch.slice(start, count))
        if len(payload) <= bytes_max or count == 1:
            break
        count = max(1, count // 2)
    return count, payload


def column_block(batch: Any) -> Pieces | bytes:
    """The Format.ARROW payload of a record batch that has passed ``checked_columns``.

    It refers to buffers that nobody can change, as those that Spark hands over, and has a copy of all others.
    """
    block = _Block()
    for name, kind in (("value", COLUMN_VALUE), ("key", COLUMN_KEY)):
        if name in batch.schema.names:
            block.add_bytes(kind, batch.column(name))
    if "partition" in batch.schema.names:
        block.add_fixed(COLUMN_PARTITION, 4, batch.column("partition"))
    if "timestamp" in batch.schema.names:
        block.add_fixed(COLUMN_TIMESTAMP, 8, batch.column("timestamp"))
    if "headers" in batch.schema.names:
        block.add_headers(batch.column("headers"))
    return block.payload(batch.num_rows)


def partition_max(batch: Any) -> int:
    """The highest partition that a row names; 0 if none does."""
    if "partition" not in batch.schema.names:
        return 0
    return compute().max(batch.column("partition")).as_py() or 0


class _Block:
    """Columns laid out one after another. Their positions are known only once the number of columns is."""

    def __init__(self) -> None:
        self._columns: list[tuple[int, int, int, Any, int, Any, Any]] = []

    def add_bytes(self, kind: int, column: Any) -> None:
        width = _width(column.type)
        validity, bit_offset = _validity(column)
        _, offsets, data = column.buffers()
        ends = _slice(offsets, column.offset * width, (column.offset + len(column) + 1) * width)
        first, last = _ends(ends, width)
        self._columns.append(
            (kind, width, len(column), validity, bit_offset, ends, _slice(data, first, last))
        )

    def add_fixed(self, kind: int, width: int, column: Any) -> None:
        validity, bit_offset = _validity(column)
        data = column.buffers()[1]
        start = column.offset * width
        self._columns.append(
            (
                kind,
                width,
                len(column),
                validity,
                bit_offset,
                b"",
                _slice(data, start, start + len(column) * width),
            )
        )

    def add_headers(self, column: Any) -> None:
        width = 8 if pa.types.is_large_list(column.type) else 4
        validity, bit_offset = _validity(column)
        offsets = column.buffers()[1]
        ends = _slice(offsets, column.offset * width, (column.offset + len(column) + 1) * width)
        first, last = _ends(ends, width)
        self._columns.append((COLUMN_HEADERS, width, len(column), validity, bit_offset, ends, b""))
        keys, values = column.values.slice(first, last - first).flatten()
        self.add_bytes(COLUMN_HEADER_KEYS, keys)
        self.add_bytes(COLUMN_HEADER_VALUES, values)

    def payload(self, rows: int) -> Pieces | bytes:
        head = bytearray(_BLOCK.pack(COLUMNS_MAGIC, rows, len(self._columns), 0))
        position = _BLOCK.size + len(self._columns) * _COLUMN.size
        parts: list[Any] = []

        def append(part: Any) -> int:
            nonlocal position
            if not len(part):
                return 0
            at = position
            padding = -len(part) % 8
            parts.append(part)
            if padding:
                parts.append(bytes(padding))
            position += len(part) + padding
            return at

        for kind, width, length, validity, bit_offset, ends, data in self._columns:
            head += _COLUMN.pack(
                kind,
                width,
                0,
                length,
                append(validity),
                bit_offset,
                append(ends),
                append(data),
                len(data),
                0,
            )
        return Pieces.of([bytes(head), *parts])


def _width(kind: Any) -> int:
    return 8 if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) else 4


def _validity(column: Any) -> tuple[Any, int]:
    """(bytes, bit): the relevant bytes of the validity bitmap and the bit at which they begin; empty when there is no
    null.
    """
    if not column.null_count:
        return b"", 0
    bitmap = column.buffers()[0]
    first = column.offset // 8
    return _slice(bitmap, first, (column.offset + len(column) + 7) // 8), column.offset % 8


def _slice(buffer: Any, start: int, stop: int) -> Any:
    """Bytes of an Arrow buffer. An empty column may have no offsets buffer; then zeros.

    A buffer that can be changed is copied: the caller may do so, for example in the numpy array below it, before the
    records are accepted.
    """
    if buffer is None or stop <= start:
        return bytes(max(0, stop - start))
    found = memoryview(buffer)[start:stop]
    return bytes(found) if buffer.is_mutable else found


def _ends(offsets: Any, width: int) -> tuple[int, int]:
    size = "<i" if width == 4 else "<q"
    return struct.unpack_from(size, offsets, 0)[0], struct.unpack_from(size, offsets, len(offsets) - width)[0]


def as_records(batch: Any) -> list[tuple[Any, ...]]:
    """Rows for send_many(), used for a worker that reads only msgpack and in tests without a worker."""
    names = batch.schema.names
    values = _byte_list(batch.column("value"))
    keys = _byte_list(batch.column("key")) if "key" in names else [None] * batch.num_rows
    if not {"headers", "partition", "timestamp"} & set(names):
        return list(zip(keys, values, strict=True))
    none = [None] * batch.num_rows
    headers: list[Any] = none
    if "headers" in names:
        headers = [
            None if row is None else [(_text(pair["key"]), pair["value"]) for pair in map(_pair, row)]
            for row in batch.column("headers").to_pylist()
        ]
    partitions = batch.column("partition").to_pylist() if "partition" in names else none
    timestamps = batch.column("timestamp").to_pylist() if "timestamp" in names else none
    return list(zip(keys, values, headers, partitions, timestamps, strict=True))


def _pair(item: dict[str, Any]) -> dict[str, Any]:
    key, value = item.values()
    return {"key": key, "value": value.encode() if isinstance(value, str) else value}


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode()


def _byte_list(column: Any) -> list[bytes | None]:
    width = _width(column.type)
    _, offsets, data = column.buffers()
    ends = array("i" if width == 4 else "q")
    ends.frombytes(_slice(offsets, column.offset * width, (column.offset + len(column) + 1) * width))
    whole = bytes(_slice(data, ends[0], ends[-1]))
    first = ends[0]
    cut: list[bytes | None] = [whole[a - first : b - first] for a, b in pairwise(ends)]
    if column.null_count:
        for index, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                cut[index] = None
    return cut
