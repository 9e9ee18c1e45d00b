"""The twin's columns: a columnar payload (wire.Format.ARROW) as msgpack records, row by row."""

from __future__ import annotations

import itertools
import struct
from typing import Any, Final, NamedTuple

import msgpack

from tests.kernel.oracle.reference_chain import RECORDS_PER_ENTRY_MAX

MAGIC: Final = 0x3153434B
VALUE, KEY, PARTITION, TIMESTAMP, HEADERS, HEADER_KEYS, HEADER_VALUES = range(1, 8)
_HEAD: Final = struct.Struct("<BBHIIIIIII")
_UNREADABLE: Final = b"\xc1"
_NUMBER_WIDTHS: Final = {PARTITION: 4, TIMESTAMP: 8}


class _Bad(Exception):
    """The columns are incomplete."""


class _Column(NamedTuple):
    payload: bytes
    length: int
    width: int
    validity: int
    validity_bit: int
    offsets: int
    data: int
    data_bytes: int

    def _stretch(self, start: int, size: int) -> bytes:
        if start + size > len(self.payload):
            raise _Bad
        return self.payload[start : start + size]

    def nulls(self) -> list[bool]:
        if not self.validity:
            return [False] * self.length
        bits = self._stretch(self.validity, (self.validity_bit + self.length + 7) // 8)
        return [
            not bits[i >> 3] >> (i & 7) & 1 for i in range(self.validity_bit, self.validity_bit + self.length)
        ]

    def numbers(self) -> list[int | None]:
        form = "i" if self.width == 4 else "q"
        cells = struct.unpack(f"<{self.length}{form}", self._stretch(self.data, self.length * self.width))
        return [None if null else cell for cell, null in zip(cells, self.nulls(), strict=True)]

    def bounds(self) -> list[int]:
        form = "i" if self.width == 4 else "q"
        size = (self.length + 1) * self.width
        offsets = struct.unpack(f"<{self.length + 1}{form}", self._stretch(self.offsets, size))
        if offsets[0] < 0 or any(b < a for a, b in itertools.pairwise(offsets)):
            raise _Bad
        return [offset - offsets[0] for offset in offsets]

    def cells(self) -> list[bytes | None]:
        data = self._stretch(self.data, self.data_bytes)
        cells: list[bytes | None] = []
        bounds = self.bounds()
        for i, null in enumerate(self.nulls()):
            if not null and bounds[i + 1] > len(data):
                raise _Bad
            cells.append(None if null else data[bounds[i] : bounds[i + 1]])
        return cells


def records_from_columns(columns: Any, count: int) -> bytes:
    """As the extension's, except that damage in one row makes all rows unreadable, not only those from it on."""
    if not 0 < count <= RECORDS_PER_ENTRY_MAX:
        raise ValueError(f"record count {count!r} is not between 1 and {RECORDS_PER_ENTRY_MAX}")
    try:
        return _rows(_read(bytes(columns), count), count)
    except (_Bad, struct.error):
        return _UNREADABLE * count


def _read(payload: bytes, count: int) -> dict[int, _Column]:
    magic, rows, kinds, _ = struct.unpack_from("<IIII", payload)
    if magic != MAGIC or rows != count or not 0 < kinds < 8:
        raise _Bad
    found: dict[int, _Column] = {}
    for i in range(kinds):
        kind, width, _, length, validity, bit, offsets, data, data_bytes, _ = _HEAD.unpack_from(
            payload, 16 + 32 * i
        )
        if not VALUE <= kind <= HEADER_VALUES or kind in found:
            raise _Bad
        widths = (_NUMBER_WIDTHS[kind],) if kind in _NUMBER_WIDTHS else (4, 8)
        if width not in widths or (kind <= HEADERS and length != rows):
            raise _Bad
        found[kind] = _Column(payload, length, width, validity, bit, offsets, data, data_bytes)
    if HEADERS in found:
        if HEADER_KEYS not in found or HEADER_VALUES not in found:
            raise _Bad
        if found[HEADER_KEYS].length != found[HEADER_VALUES].length:
            raise _Bad
    return found


def _rows(columns: dict[int, _Column], count: int) -> bytes:
    nothing: list[Any] = [None] * count
    keys = columns[KEY].cells() if KEY in columns else nothing
    values = columns[VALUE].cells() if VALUE in columns else nothing
    headers = _headers(columns) if HEADERS in columns else nothing
    partitions = columns[PARTITION].numbers() if PARTITION in columns else nothing
    timestamps = columns[TIMESTAMP].numbers() if TIMESTAMP in columns else nothing
    return b"".join(
        msgpack.packb(list(row)) for row in zip(keys, values, headers, partitions, timestamps, strict=True)
    )


def _headers(columns: dict[int, _Column]) -> list[list[list[Any]] | None]:
    names, values = columns[HEADER_KEYS].cells(), columns[HEADER_VALUES].cells()
    bounds = columns[HEADERS].bounds()
    rows: list[list[list[Any]] | None] = []
    for i, null in enumerate(columns[HEADERS].nulls()):
        if null:
            rows.append(None)
            continue
        pairs: list[list[Any]] = []
        for j in range(bounds[i], bounds[i + 1]):
            if j >= len(names) or (name := names[j]) is None:
                raise _Bad
            pairs.append([name.decode("utf-8", "surrogateescape"), values[j]])
        rows.append(pairs)
    return rows
