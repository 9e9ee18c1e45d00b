"""Which rows of an Arrow table are too large: measured by column, so that send_arrow() refuses as send() does."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

OVERHEAD_BYTES: Final = 128
"""More than a record has beside key, value and headers in Kafka's own estimate of its size."""
MEASURED_ROWS: Final = 64
"""Parts of so many rows are measured row by row."""
HEADER_OVERHEAD_BYTES: Final = 10
"""Two lengths, as zig-zag varints at their longest."""


def rows_above(batch: Any, size_bytes: int) -> list[int]:
    """Rows of a checked record batch that may have more than ``size_bytes`` when serialized; others have not.

    Found by halves: nothing is measured where a part as a whole is smaller.
    """
    found: list[int] = []
    parts = [(0, batch)]
    while parts:
        start, part = parts.pop()
        if part.nbytes + part.num_rows * OVERHEAD_BYTES <= size_bytes:
            continue
        if part.num_rows <= MEASURED_ROWS:
            found.extend(start + row for row in _measured(part, size_bytes))
        else:
            half = part.num_rows // 2
            parts += [(start + half, part.slice(half)), (start, part.slice(0, half))]
    return found


def _measured(batch: Any, size_bytes: int) -> list[int]:
    sizes = _lengths(batch.column("value"))
    if "key" in batch.schema.names:
        sizes = compute().add(sizes, _lengths(batch.column("key")))
    if "headers" in batch.schema.names:
        sizes = compute().add(sizes, _header_lengths(batch.column("headers")))
    found: list[int] = (
        compute().indices_nonzero(compute().greater(sizes, size_bytes - OVERHEAD_BYTES)).to_pylist()
    )
    return found


def compute() -> Any:
    """pyarrow.compute, loaded when something must be computed: it costs 50 ms of CPU, as much as a million rows."""
    import pyarrow.compute

    return pyarrow.compute


def _lengths(column: Any) -> Any:
    return compute().cast(compute().fill_null(compute().binary_length(column), 0), pa.int64())


def _header_lengths(column: Any) -> Any:
    """Bytes of each row's headers; what lies under a null row counts too, which is only looked at once more."""
    offsets = compute().cast(column.offsets, pa.int64())
    first, last = offsets[0].as_py(), offsets[len(column)].as_py()
    keys, values = column.values.slice(first, last - first).flatten()
    each = compute().add(compute().add(_lengths(keys), _lengths(values)), HEADER_OVERHEAD_BYTES)
    sums = pa.concat_arrays([pa.array([0], pa.int64()), compute().cumulative_sum(each)])
    ends = compute().take(sums, compute().subtract(offsets, first))
    return compute().subtract(ends.slice(1, len(column)), ends.slice(0, len(column)))
