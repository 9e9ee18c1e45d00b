"""The columns of an Arrow table that become records: finds them by name, checks them, and casts each to a type that a
block can carry.

TableCall calls it, in the caller's thread.

Whole columns are checked before any row is queued, so a table is refused as a whole. The error names the record.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from client_stub.records.record_fields import checked_partition, checked_timestamp

NAMES: Final = ("value", "key", "headers", "partition", "timestamp")
_MS_PER_UNIT: Final = {"s": 1_000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
_TABLES_OF: Final = {
    "pandas": "; pyarrow.Table.from_pandas(frame, preserve_index=False) makes one",
    "polars": "; frame.to_arrow() makes one",
}
"""A package of other tables → how one becomes Arrow's."""
_MS_PER_DAY: Final = 86_400_000.0
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_HEADERS_WANTED: Final = "headers must be a(n) array<struct<key:string,value:binary>>"


def compute() -> Any:
    """pyarrow.compute, loaded only when needed: loading it costs 50 ms of CPU, as much as sending a million rows."""
    import pyarrow.compute

    return pyarrow.compute


def checked_columns(table: Any) -> pa.Table:
    """The columns that become records. Raises TypeError for a wrong type and ValueError for a wrong value, naming the
    record.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        how = _TABLES_OF.get(type(table).__module__.partition(".")[0], "")
        raise TypeError(
            f"send_arrow() takes a pyarrow Table or RecordBatch, not {type(table).__name__}{how}."
        )
    names = table.column_names
    if "value" not in names:
        raise ValueError("The Arrow table has no column 'value'; it must have one of binary or string type.")
    for name in NAMES:
        if names.count(name) > 1:
            raise ValueError(f"The Arrow table has {names.count(name)} columns '{name}'; it must have one.")
    return pa.table({name: _normal(name, table.column(name)) for name in NAMES if name in names})


def _normal(name: str, column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if pa.types.is_null(kind):
        plain = {"partition": pa.int32(), "timestamp": pa.int64(), "headers": _HEADERS}
        return column.cast(plain.get(name, pa.binary()))
    match name:
        case "value" | "key":
            if not _is_text_or_bytes(kind):
                raise TypeError(
                    f"{name} attribute unsupported type {kind}. {name} must be a(n) string or binary"
                )
            plain = _plain_type(kind)
            return column if plain == kind else column.cast(plain)  # a cast loads pyarrow.compute
        case "partition":
            if not pa.types.is_integer(kind):
                raise TypeError(f"partition attribute unsupported type {kind}. partition must be a(n) int")
            _check_numbers(column, checked_partition, (1 << 31) - 1)
            return column.cast(pa.int32())
        case "timestamp":
            return _milliseconds(column, kind)
    return _headers(column, kind)


def is_plain(kind: Any) -> bool:
    """True for a type that is stored as offsets and bytes, as a block is."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
    )


def _is_text_or_bytes(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text_or_bytes(kind.value_type)
    return (
        is_plain(kind) or pa.types.is_fixed_size_binary(kind) or str(kind) in ("binary_view", "string_view")
    )


def _plain_type(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if is_plain(kind):
        return kind
    return pa.large_string() if str(kind) == "string_view" else pa.large_binary()


# --- numbers ----------------------------------------------------------------------------------------------


def _milliseconds(column: Any, kind: Any) -> Any:
    """A timestamp or a date is UTC where it names no zone; a date is its midnight."""
    scale = 1.0
    if pa.types.is_timestamp(kind):
        scale = _MS_PER_UNIT[kind.unit]
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        scale = _MS_PER_DAY
        column = column.cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_date64(kind):
        column = column.cast(pa.int64())
    elif not pa.types.is_integer(kind):
        raise TypeError(
            f"timestamp attribute unsupported type {kind}. timestamp must be a(n) bigint, timestamp or date"
        )
    most = (1 << 63) - 1
    if scale <= 1:
        _check_numbers(column, checked_timestamp, most)
        return column.cast(pa.int64()) if scale == 1 else compute().divide(column, round(1 / scale))
    times = int(scale)
    _check_numbers(column, lambda units: checked_timestamp(units * times), most // times)
    return compute().multiply(column, times)


def _check_numbers(column: Any, check: Callable[[Any], object], most: int) -> None:
    """Raises ValueError for a number that is negative or above ``most``; ``check`` raises its text."""
    found = compute().min_max(column).as_py()
    if found["min"] is None or (found["min"] >= 0 and found["max"] <= most):
        return
    is_negative = found["min"] < 0
    bound = pa.scalar(0 if is_negative else most, column.type)
    wrong = compute().less(column, bound) if is_negative else compute().greater(column, bound)
    number = compute().index(wrong, True).as_py()
    try:
        check(column[number].as_py())
    except ValueError as error:
        raise ValueError(f"record {number}: {error}") from None


# --- headers ----------------------------------------------------------------------------------------------


def _headers(column: Any, kind: Any) -> Any:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)
    item = kind.value_type if is_list and not pa.types.is_map(kind) else None
    fields = (kind.key_type, kind.item_type) if is_list and item is None else ()
    if item is not None and pa.types.is_struct(item) and item.num_fields == 2:
        fields = (item.field(0).type, item.field(1).type)
    if len(fields) != 2 or not all(_is_text_or_bytes(each) for each in fields):
        raise TypeError(f"headers attribute unsupported type {kind}. {_HEADERS_WANTED}")
    if item is None or not all(is_plain(each) for each in fields):
        pair = pa.struct([("key", _plain_type(fields[0])), ("value", _plain_type(fields[1]))])
        column = column.cast(pa.large_list(pair) if pa.types.is_large_list(kind) else pa.list_(pair))
    chunks, first = [], 0
    for chunk in column.chunks:
        chunks.append(_live_headers(chunk, first))
        first += len(chunk)
    return pa.chunked_array(chunks, column.type)


def _live_headers(column: Any, first_record: int) -> Any:
    """Check the headers of the rows that are not null; whatever is stored under a null is left out."""
    if not len(column):
        return column
    offsets = column.offsets
    begin, end = offsets[0].as_py(), offsets[len(column)].as_py()
    lengths = compute().list_value_length(column)
    if column.null_count and (compute().sum(lengths).as_py() or 0) != end - begin:
        zero = pa.array([0], offsets.type)
        sums = compute().cumulative_sum(compute().fill_null(lengths, 0)).cast(offsets.type)
        column = type(column).from_arrays(
            pa.concat_arrays([zero, sums]), column.flatten(), column.type, mask=column.is_null()
        )
        return _live_headers(column, first_record)
    keys = column.values.slice(begin, end - begin).flatten()[0]
    wrong, why = -1, ""
    if keys.null_count:
        wrong, why = compute().index(keys.is_null(), True).as_py(), "a header or its key is null"
    elif not _is_utf8(keys):
        wrong = next(index for index in range(len(keys)) if not _is_utf8(keys.slice(index, 1)))
        why = f"the key of a header is not UTF-8: {keys[wrong].as_buffer().to_pybytes()!r:.80}"
    if wrong < 0:
        return column
    record = first_record + bisect_right(offsets.to_pylist(), begin + wrong) - 1
    raise ValueError(f"record {record}: headers attribute: {why}.")


def _is_utf8(texts: Any) -> bool:
    """Whether each text is UTF-8, also in a string column, whose buffers may never have been checked. None of them is
    null.
    """
    large = pa.types.is_large_binary(texts.type) or pa.types.is_large_string(texts.type)
    contents = texts.view(pa.large_binary() if large else pa.binary())
    if _is_ascii(contents):
        return True
    try:
        contents.cast(pa.large_string() if large else pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_ascii(contents: Any) -> bool:
    """Checks all bytes at once. Header keys are mostly ASCII, and this is four times as fast."""
    _, offsets, data = contents.buffers()
    if data is None or not len(contents):
        return True
    size, code = (8, "<q") if pa.types.is_large_binary(contents.type) else (4, "<i")
    begin, end = (
        struct.unpack_from(code, offsets, (contents.offset + index) * size)[0] for index in (0, len(contents))
    )
    return bool(data[begin:end].to_pybytes().isascii())
