"""Which rows of an Arrow table are too large: measured by column, so that send_arrow() refuses as send() does."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
"""Its stubs do not know that numbers are taken for scalars."""

OVERHEAD_BYTES: Final = 128
"""More than a record has beside key, value and headers in Kafka's own estimate of its size."""
HEADER_OVERHEAD_BYTES: Final = 10
"""Two lengths, as zig-zag varints at their longest."""


def rows_above(batch: Any, size_bytes: int) -> list[int]:
    """Rows of a checked record batch that may have more than ``size_bytes`` when serialized; others have not.

    Nothing is measured where the batch as a whole is smaller.
    """
    if batch.nbytes + batch.num_rows * OVERHEAD_BYTES <= size_bytes:
        return []
    sizes = _lengths(batch.column("value"))
    if "key" in batch.schema.names:
        sizes = pc.add(sizes, _lengths(batch.column("key")))
    if "headers" in batch.schema.names:
        sizes = pc.add(sizes, _header_lengths(batch.column("headers")))
    found: list[int] = pc.indices_nonzero(pc.greater(sizes, size_bytes - OVERHEAD_BYTES)).to_pylist()
    return found


def _lengths(column: Any) -> Any:
    return pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())


def _header_lengths(column: Any) -> Any:
    """Bytes of each row's headers; what lies under a null row counts too, which is only looked at once more."""
    offsets = pc.cast(column.offsets, pa.int64())
    first, last = offsets[0].as_py(), offsets[len(column)].as_py()
    keys, values = column.values.slice(first, last - first).flatten()
    each = pc.add(pc.add(_lengths(keys), _lengths(values)), HEADER_OVERHEAD_BYTES)
    sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(each)])
    ends = pc.take(sums, pc.subtract(offsets, first))
    return pc.subtract(ends.slice(1, len(column)), ends.slice(0, len(column)))
