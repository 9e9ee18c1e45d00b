"""Reads files of records for ``produce``: lines, jsonl, csv and parquet as a stream of (key, value) pairs.

Nothing is changed or left out: a value that JSON cannot express is refused, and the error names its place.
"""

from __future__ import annotations

import csv
import io
import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import IO, Any, AnyStr, Final

from client_stub.frames import MESSAGE_BYTES_MAX

Pair = tuple[bytes | None, bytes]
FORMATS = ("lines", "jsonl", "csv", "parquet", "whole")
BINARY_FORMS = ("text", "base64")
PARQUET_ROWS = 8_192
CHUNK_BYTES: Final = 1 << 16
LINE_BYTES_MAX: Final = MESSAGE_BYTES_MAX
"""No record can be larger, whatever the daemon's max.request.size is."""


class BadInput(ValueError):
    """A record of the file cannot be used. The text names the file, the place and the fault."""


def read_records(
    stream: IO[bytes],
    name: str,
    form: str,
    key: str | None,
    binary: str = "text",
    delimiter: bytes | None = None,
) -> Iterator[Pair]:
    """Yield the records of ``stream`` (called ``name`` in errors). Raises BadInput at the first bad one.

    - ``lines``: the value is the line without its end; ``delimiter`` replaces the line's end
    - ``jsonl``: the value is the line unchanged
    - ``csv``, ``parquet``: the value is a JSON object by column
    - ``whole``: the whole file is one record

    ``key`` names the field whose text becomes the key (null: no key; bytes are used unchanged). ``binary`` is the form
    of Parquet bytes in JSON: text, which must be UTF-8, or base64.
    """
    readers: dict[str, Callable[[], Iterator[Pair]]] = {
        "lines": lambda: (
            ((None, _without_end(line)) for _, line in _bounded(stream, name))
            if delimiter is None
            else ((None, value) for value in _delimited(stream, name, delimiter))
        ),
        "whole": lambda: _whole(stream, name),
        "jsonl": lambda: _jsonl(stream, name, key),
        "csv": lambda: _csv(stream, name, key),
        "parquet": lambda: _parquet(stream, name, key, binary),
    }
    return readers[form]()


def split_keys(pairs: Iterator[Pair], name: str, separator: str) -> Iterator[Pair]:
    """Keys and values of lines ``key SEPARATOR value``. Raises BadInput for a line without the separator."""
    mark = separator.encode()
    for number, (_, line) in enumerate(pairs, 1):
        key, found, value = line.partition(mark)
        if not found:
            raise BadInput(f"{name}, line {number}: has no {separator!r} between a key and a value.")
        yield key, value


def format_of(path: Path) -> str:
    """The format that the suffix of the file's name suggests."""
    suffix = path.suffix.lower().lstrip(".")
    return {"jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "parquet": "parquet"}.get(suffix, "lines")


def _bounded(stream: IO[AnyStr], name: str) -> Iterator[tuple[int, AnyStr]]:
    """(number, line) of each line. Lines are limited, as a file without line ends would be read into memory as a
    whole.
    """
    number = 0
    while line := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise BadInput(
                f"{name}, line {number}: longer than {LINE_BYTES_MAX} bytes, which no record can be."
            )
        yield number, line


def _delimited(stream: IO[bytes], name: str, delimiter: bytes) -> Iterator[bytes]:
    """The values between delimiters; the rest after the last one only if it is not empty. Values of an interactive
    input are yielded at once.
    """
    read = getattr(stream, "read1", stream.read)
    rest, number = b"", 0
    while chunk := read(CHUNK_BYTES):
        *values, rest = (rest + chunk).split(delimiter)
        number += len(values)
        yield from values
        if len(rest) > LINE_BYTES_MAX:
            raise BadInput(
                f"{name}, record {number + 1}: longer than {LINE_BYTES_MAX} bytes, which no record can be."
            )
    if rest:
        yield rest


def _whole(stream: IO[bytes], name: str) -> Iterator[Pair]:
    content = stream.read(LINE_BYTES_MAX + 1)
    if len(content) > LINE_BYTES_MAX:
        raise BadInput(f"{name}: longer than {LINE_BYTES_MAX} bytes, which no record can be.")
    yield None, content


def _without_end(line: bytes) -> bytes:
    if not line.endswith(b"\n"):
        return line
    return line[:-2] if line.endswith(b"\r\n") else line[:-1]


# --- JSON lines -------------------------------------------------------------------------------------------


class _Number(str):
    """A number as written in the line: the key is this text and not Python's repr."""

    __slots__ = ()


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


_decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)


def _jsonl(stream: IO[bytes], name: str, key: str | None) -> Iterator[Pair]:
    for number, line in _bounded(stream, name):
        value = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
        if not value:
            continue
        place = f"{name}, line {number}"
        try:
            found = _decoder.decode(value.decode())
        except ValueError as error:
            raise BadInput(f"{place}: not JSON ({error}).") from None
        except RecursionError:
            raise BadInput(f"{place}: nested too deep to be looked at.") from None
        if key is None:
            yield None, value
            continue
        if not isinstance(found, dict):
            raise BadInput(f'{place}: no JSON object, so it has no field "{key}" for the key.')
        field = found.get(key)
        if isinstance(field, dict | list):
            found = json.loads(value)  # with real numbers inside
        yield _key_of(found, key, place), value


# --- CSV --------------------------------------------------------------------------------------------------


def _csv(stream: IO[bytes], name: str, key: str | None) -> Iterator[Pair]:
    # The limit is global, and importlib.metadata uses csv, too. _bounded() limits the line.
    csv.field_size_limit(max(LINE_BYTES_MAX, csv.field_size_limit()))
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    reader = csv.DictReader((line for _, line in _bounded(text, name)), strict=True)
    try:
        columns = reader.fieldnames
        if not columns:
            raise BadInput(f"{name}: empty; the first line must name the columns.")
        _check_names(columns, name)
        _check_key(columns, key, name)
        for row in reader:
            place = f"{name}, line {reader.line_num}"
            if None in row or None in row.values():
                raise BadInput(f"{place}: not {len(columns)} fields as the first line names.")
            yield (None if key is None else _key_of(row, key, place)), _to_json(row, place)
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{name}, near line {reader.line_num + 1}: not CSV in UTF-8 ({error}).") from None


def _check_names(columns: Any, name: str, inside: str = "") -> None:
    for column in columns:
        if list(columns).count(column) > 1:
            where = (
                f'two columns are called "{column}"'
                if not inside
                else f'column "{inside}" has two "{column}"'
            )
            raise BadInput(f"{name}: {where}, and a JSON object would keep only one of them; rename one.")


def _check_key(columns: Any, key: str | None, name: str) -> None:
    if key is not None and key not in columns:
        raise BadInput(f'{name}: has no column "{key}" for the key; columns are {", ".join(columns)}.')


# --- Parquet ----------------------------------------------------------------------------------------------


def _parquet(stream: IO[bytes], name: str, key: str | None, binary: str) -> Iterator[Pair]:
    import pyarrow
    from pyarrow import parquet

    source = stream if stream.seekable() else io.BytesIO(stream.read())
    number = 0
    try:
        file = parquet.ParquetFile(source)
        schema = file.schema_arrow
        _check_names(schema.names, name)
        for column in schema:
            _check_nested(column.type, column.name, name)
        _check_key(schema.names, key, name)
        for batch in file.iter_batches(batch_size=PARQUET_ROWS):
            for row in _rows(batch, f"{name}, row {number + 1} or one of the {batch.num_rows - 1} behind it"):
                number += 1
                place = f"{name}, row {number}"
                yield (
                    (None if key is None else _key_of(row, key, place, binary)),
                    _to_json(row, place, binary),
                )
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{name}: not a readable Parquet file ({error}).") from None


def _check_nested(kind: Any, column: str, name: str) -> None:
    from pyarrow import types

    if types.is_dictionary(kind):
        return
    if types.is_struct(kind):
        _check_names([kind.field(index).name for index in range(kind.num_fields)], name, column)
    for index in range(kind.num_fields):
        _check_nested(kind.field(index).type, column, name)


def _rows(batch: Any, place: str) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except (ValueError, OverflowError) as error:  # text that is not UTF-8, or a time out of Python's range
        raise BadInput(f"{place}: {error}.") from None
    return rows


# --- JSON out ---------------------------------------------------------------------------------------------


def _key_of(row: dict[str, Any], key: str, place: str, binary: str = "text") -> bytes | None:
    if key not in row:
        raise BadInput(f'{place}: has no field "{key}" for the key.')
    value = row[key]
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool | int | float | dict | list):
        return _to_json(value, place, binary)
    try:
        return str(_plain(value)).encode()  # a decimal or a date becomes text without JSON's quotes
    except UnicodeEncodeError:
        raise BadInput(
            f'{place}: field "{key}" has half a character (a lone surrogate), which no key can have.'
        ) from None


def _to_json(value: Any, place: str, binary: str = "text") -> bytes:
    plain = _plain if binary == "text" else _plain_base64
    try:
        return json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), default=plain, allow_nan=False
        ).encode()
    except (ValueError, RecursionError) as error:
        fields = value.items() if isinstance(value, dict) else (("", value),)
        for column, content in fields:
            why = _why_not(content, plain)
            if why is not None:
                of = f'column "{column}"' if column else "the key"
                raise BadInput(f"{place}: {of} {why}.") from None
        raise BadInput(f"{place}: {error}.") from None


def _why_not(content: Any, plain: Callable[[object], object]) -> str | None:
    try:
        json.dumps(content, default=plain, allow_nan=False)
    except UnicodeDecodeError:
        return "has bytes that are no UTF-8 text; take --binary base64"
    except RecursionError:
        return "is nested too deep"
    except ValueError:
        shown = (
            f"is {content}"
            if isinstance(content, float) and not math.isfinite(content)
            else "holds NaN or Infinity"
        )
        return f"{shown}, which JSON does not have; make it null, or text"
    return None


def _plain(value: object) -> object:
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    return value.decode() if isinstance(value, bytes) else str(value)


def _plain_base64(value: object) -> object:
    return b64encode(value).decode() if isinstance(value, bytes) else _plain(value)
