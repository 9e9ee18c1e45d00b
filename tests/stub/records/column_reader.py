"""Reads a Format.ARROW payload as ``wire.Format`` describes it, slowly and with every check: the tests' oracle."""

from __future__ import annotations

import struct
from typing import Any


def read_columns(payload: bytes) -> list[list[Any]]:
    """[key, value, headers, partition, timestamp_ms] of each record. Raises AssertionError or struct.error."""
    magic, rows, columns, zero = struct.unpack_from("<IIII", payload)
    assert magic == 0x3153434B and payload[:4] == b"KCS1" and 1 <= columns <= 7 and zero == 0
    found: dict[int, list[Any]] = {}
    for number in range(columns):
        kind, width, z1, length, validity, bit, offsets, data, data_bytes, z2 = struct.unpack_from(
            "<BBHIIIIIII", payload, 16 + 32 * number
        )
        assert z1 == z2 == 0 and kind not in found
        assert not (validity % 8 or offsets % 8 or data % 8)
        assert data + data_bytes <= len(payload)

        def valid(i: int, validity: int = validity, bit: int = bit) -> bool:
            return not validity or bool(payload[validity + (bit + i) // 8] >> (bit + i) % 8 & 1)

        if kind in (3, 4):
            assert width == (4 if kind == 3 else 8) and data_bytes == width * length
            code = f"<{length}{'i' if kind == 3 else 'q'}"
            values = struct.unpack_from(code, payload, data) if length else ()
            found[kind] = [value if valid(i) else None for i, value in enumerate(values)]
            continue
        ends = struct.unpack_from(f"<{length + 1}{'i' if width == 4 else 'q'}", payload, offsets)
        assert list(ends) == sorted(ends)
        first = ends[0]
        pairs = [(a - first, b - first) if valid(i) else None for i, (a, b) in enumerate(zip(ends, ends[1:]))]  # noqa: B905, RUF007
        if kind == 5:
            found[kind] = pairs
        else:
            assert ends[-1] - first == data_bytes
            block = payload[data : data + data_bytes]
            found[kind] = [block[pair[0] : pair[1]] if pair is not None else None for pair in pairs]
    none: list[Any] = [None] * rows
    headers = none
    if 5 in found:
        names, contents = found[6], found[7]
        headers = [
            None if pair is None else [[names[i].decode(), contents[i]] for i in range(*pair)]
            for pair in found[5]
        ]
    records = [found.get(2, none), found[1], headers, found.get(3, none), found.get(4, none)]
    assert all(len(column) == rows for column in records)
    return [list(record) for record in zip(*records, strict=True)]
