"""Which rows of an Arrow table are too large: measured by column, so that send_arrow() refuses as send() does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

OVERHEAD_BYTES: Final = 128
"""More than a record has beside key, value and headers in Kafka's own estimate of its size."""
HEADER_OVERHEAD_BYTES: Final = 10
"""Two lengths, as zig-zag varints at their longest."""


def rows_above(batch: Any, size_bytes: int) -> list[int]:
    """Rows of a checked record batch that may have more than ``size_bytes`` when serialized; others have not.

    Found by halves: a part that as a whole is smaller has no such row. What lies under a null counts too, which is only
    looked at once more.
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
    """``f(start, end)``: bytes of value, key and headers of these rows together."""
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
    """Where each row of a column of texts, bytes or lists ends, behind where the first begins; without a copy."""
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
