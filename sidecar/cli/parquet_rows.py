"""The rows of a Parquet file as what JSON has, and bytes.

Columns are converted by their Arrow types and not by ``to_pylist()``: that gives another value, or none, where pandas,
pytz or the host's time zones are missing.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice, repeat
from typing import IO, Any, Final
from uuid import UUID

import pyarrow as pa
from pyarrow import compute, parquet, types

from sidecar.cli.bad_input import BadInput, Refused, check_key, check_names

ROWS_AT_ONCE: Final = 8_192
_EPOCH: Final = datetime(1970, 1, 1)
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_S: Final = 86_400


def parquet_rows(
    stream: IO[bytes], name: str, key: str | None, on_count: Callable[[int], object]
) -> Iterator[tuple[dict[str, Any], str]]:
    """(row, its position for errors) of each row; ``on_count`` gets the number of rows first. Raises BadInput, which
    names ``name``, for a file that cannot be read or has two columns of one name.
    """
    number = 0
    try:
        file = parquet.ParquetFile(stream if stream.seekable() else io.BytesIO(stream.read()))
        schema = file.schema_arrow
        check_names(schema.names, name)
        for column in schema:
            _check_nested(column.type, column.name, name)
        check_key(schema.names, key, name)
        on_count(file.metadata.num_rows)
        for group in range(file.num_row_groups):  # one by one, so that a damaged one spoils no other
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, row_groups=[group]):
                for row in _records(schema.names, batch.columns, batch.num_rows):
                    number += 1
                    yield row, f"{name}, row {number}"
    except BadInput:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        after = f" after row {number}" if number else ""
        why = " ".join(str(error).split()).rstrip(".")
        raise BadInput(f"{name}: not a readable Parquet file{after} ({why}).") from None


def _check_nested(kind: Any, column: str, name: str) -> None:
    if types.is_struct(kind):
        check_names([kind.field(index).name for index in range(kind.num_fields)], name, column)
    for index in range(kind.num_fields):
        _check_nested(kind.field(index).type, column, name)


def _records(names: list[str], columns: list[Any], count: int) -> Iterator[dict[str, Any]]:
    rows: Iterable[tuple[Any, ...]] = (
        zip(*map(values_of, columns), strict=True) if columns else repeat((), count)
    )
    return (dict(zip(names, row, strict=True)) for row in rows)


def values_of(array: Any) -> list[Any]:
    """The values of an Arrow array as what JSON has, bytes, or ``Refused``.

    Times are ISO 8601 (those with a zone in UTC), durations too, decimals text, maps lists of pairs.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        stored = values_of(array.storage)
        if kind.extension_name == "arrow.uuid":
            return _each(lambda content: str(UUID(bytes=content)), stored)
        return stored
    if types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        rows = _records(names, array.flatten(), len(array))
        return [row if there else None for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if types.is_nested(kind) or types.is_fixed_size_list(kind):
        return _lists(array)
    for is_kind, change in _KINDS:
        if is_kind(kind):
            found: list[Any] = change(array)
            return found
    return [None if value is None else Refused(f"is of type {kind}, which cannot be sent") for value in array]


def _lists(array: Any) -> list[Any]:
    if types.is_map(array.type):
        array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
        items: list[Any] = [list(entry.values()) for entry in values_of(array.flatten())]
    else:
        items = values_of(array.flatten())
    rest = iter(items)
    return [
        None if length is None else list(islice(rest, length))
        for length in compute.list_value_length(array).to_pylist()
    ]


def _each(change: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    return [None if value is None else change(value) for value in values]


def _plain(array: Any) -> list[Any]:
    found: list[Any] = array.to_pylist()
    return found


def _half_floats(array: Any) -> list[Any]:
    """Older versions of Arrow cast them to nothing, and make numbers of numpy of them."""
    bits = array.view(pa.uint16()).to_pylist()
    return _each(lambda number: struct.unpack("<e", number.to_bytes(2, "little"))[0], bits)


def _texts(array: Any) -> list[Any]:
    """A file's text may be none: Parquet does not check it."""
    try:
        return _plain(array)
    except UnicodeDecodeError:
        return [_text(value) for value in array]


def _text(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return Refused("has text that is not UTF-8")


def _timestamps(array: Any) -> list[Any]:
    per_second, zone = _PER_SECOND[array.type.unit], "+00:00" if array.type.tz else ""
    return _each(lambda count: _instant(count, per_second, zone), array.view(pa.int64()).to_pylist())


def _instant(count: int, per_second: int, zone: str) -> str | Refused:
    seconds, part = divmod(count, per_second)
    try:
        at = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return Refused("is a time outside of the years 1 to 9999")
    return f"{at.isoformat()}{_fraction(part, per_second)}{zone}"


def _fraction(part: int, per_second: int) -> str:
    """Six digits, nine if they are needed, and none of a whole second."""
    nanoseconds = part * (1_000_000_000 // per_second)
    if nanoseconds % 1_000:
        return f".{nanoseconds:09}"
    return f".{nanoseconds // 1_000:06}" if nanoseconds else ""


def _dates(array: Any) -> list[Any]:
    days = array.view(pa.int32()).to_pylist() if types.is_date32(array.type) else _days(array)
    return _each(_date, days)


def _days(array: Any) -> list[Any]:
    return _each(lambda milliseconds: milliseconds // (_DAY_S * 1_000), array.view(pa.int64()).to_pylist())


def _date(days: int) -> str | Refused:
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return Refused("is a date outside of the years 1 to 9999")


def _times(array: Any) -> list[Any]:
    per_second = _PER_SECOND[array.type.unit]
    counts = array.view(pa.int32() if types.is_time32(array.type) else pa.int64()).to_pylist()
    return _each(lambda count: _time(count, per_second), counts)


def _time(count: int, per_second: int) -> str | Refused:
    seconds, part = divmod(count, per_second)
    if not 0 <= seconds < _DAY_S:
        return Refused("is a time of day outside of 0 to 24 hours")
    return f"{(_EPOCH + timedelta(seconds=seconds)).time().isoformat()}{_fraction(part, per_second)}"


def _durations(array: Any) -> list[Any]:
    per_second = _PER_SECOND[array.type.unit]

    def duration(count: int) -> str:
        seconds, part = divmod(abs(count), per_second)
        return f"{'-' if count < 0 else ''}PT{seconds}{_fraction(part, per_second)}S"

    return _each(duration, array.view(pa.int64()).to_pylist())


_KINDS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], list[Any]]], ...]] = (
    (types.is_integer, _plain),
    (types.is_float16, _half_floats),
    (types.is_floating, _plain),
    (types.is_boolean, _plain),
    (types.is_null, _plain),
    (types.is_string, _texts),
    (types.is_large_string, _texts),
    (types.is_binary, _plain),
    (types.is_large_binary, _plain),
    (types.is_fixed_size_binary, _plain),
    # str() would write 0E-10 for a zero of ten digits.
    (types.is_decimal, lambda array: _each("{:f}".format, _plain(array))),
    (types.is_timestamp, _timestamps),
    (types.is_date, _dates),
    (types.is_time, _times),
    (types.is_duration, _durations),
    (lambda kind: str(kind) == "string_view", _texts),
    (lambda kind: str(kind) == "binary_view", _plain),
)
