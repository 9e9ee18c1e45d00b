"""Finds the rows of an Arrow table that are too large, by column, so that send_arrow() refuses as send() does.

TableCall calls it, in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

OVERHEAD_BYTES: Final = 128
"""An upper bound of Kafka's estimate of a record's size, without key, value and headers."""
HEADER_OVERHEAD_BYTES: Final = 10
"""Two lengths, each as a zig-zag varint of the greatest length."""


def rows_above(batch: Any, size_bytes: int) -> list[int]:
    """Rows of a checked record batch that may exceed ``size_bytes`` when serialized; all other rows do not.

    Found by bisection: a range whose total is smaller contains no such row. Bytes under a null count, too; they only
    cost a second look at the row.
    """
    bytes_between = _measure(batch)
    most = size_bytes - OVERHEAD_BYTES
    found: list[int] = []
    parts = [(0, batch.num_rows)]
    while parts:
        start, end = parts.pop()
        if bytes_between(start, end) <= most:
            continue
        if end - start == 1:
            found.append(start)
        else:
            half = (start + end) // 2
            parts += [(half, end), (start, half)]
    return found


def _measure(batch: Any) -> Callable[[int, int], int]:
    """``f(start, end)``: the total bytes of value, key and headers of these rows."""
    plain = [_ends(batch.column(name)) for name in ("value", "key") if name in batch.schema.names]
    if "headers" not in batch.schema.names:
        return lambda start, end: sum(ends[end] - ends[start] for ends in plain)
    column = batch.column("headers")
    headers = _ends(column)
    pairs = [_ends(child) for child in column.values.flatten()]

    def bytes_between(start: int, end: int) -> int:
        first, last = headers[start], headers[end]
        size: int = (last - first) * HEADER_OVERHEAD_BYTES + sum(ends[last] - ends[first] for ends in pairs)
        size += sum(ends[end] - ends[start] for ends in plain)
        return size

    return bytes_between


def _ends(column: Any) -> Any:
    """The end offset of each row of a column of texts, bytes or lists, after the start of the first. No copy."""
    offsets = column.buffers()[1]
    if offsets is None or not offsets.size:
        return [0] * (len(column) + 1)
    kind = column.type
    is_large = (
        pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_list(kind)
    )
    width = 8 if is_large else 4
    rows = memoryview(offsets)[column.offset * width : (column.offset + len(column) + 1) * width]
    return rows.cast("q") if is_large else rows.cast("i")
