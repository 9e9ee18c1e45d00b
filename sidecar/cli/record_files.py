"""Reads files of records for ``produce``: lines, jsonl, csv and parquet as a stream of (key, value) pairs.

Nothing is changed or left out: a value that JSON cannot express is refused, and the error names its row.
"""

from __future__ import annotations

import csv
import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from client_stub.zmtp.frames import MESSAGE_BYTES_MAX
from sidecar.cli.bad_input import BadInput, Refused, check_key, check_names
from sidecar.cli.plain_input import CHUNK_BYTES, opened, text_of

Pair = tuple[bytes | None, bytes]
FORMATS = ("lines", "jsonl", "csv", "parquet", "whole")
COMPRESSED = (".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4")
"""Releases after that of the format. Only gzip is opened, and the first bytes decide, but the others are refused as
what they are.
"""
BINARY_FORMS = ("text", "base64")
LINE_BYTES_MAX: Final = MESSAGE_BYTES_MAX
"""No record can be larger, whatever the daemon's max.request.size is."""


def read_records(
    stream: IO[bytes],
    name: str,
    form: str,
    key: str | None,
    binary: str = "text",
    delimiter: bytes | None = None,
    on_count: Callable[[int], object] = lambda count: None,
) -> Iterator[Pair]:
    """Yield the records of ``stream`` (called ``name`` in errors). Raises BadInput at the first bad one.

    - ``lines``: the value is the line without its end; ``delimiter`` replaces the line's end
    - ``jsonl``: the value is the line unchanged
    - ``csv``, ``parquet``: the value is a JSON object by column
    - ``whole``: the whole file is one record, unchanged

    All but ``whole`` are read from gzip, too, and those of text without a byte order mark.

    ``key`` names the field whose text becomes the key (null: no key; bytes are used unchanged). ``binary`` is the form
    of Parquet bytes in JSON: text, which must be UTF-8, or base64. ``on_count`` gets the number of records of a format
    that knows it, before the first one.
    """
    if form == "whole":
        yield from _whole(stream, name)
    elif form == "parquet":
        from sidecar.cli.parquet_rows import parquet_rows

        for row, where in parquet_rows(opened(stream, name), name, key, on_count):
            yield (None if key is None else _key_of(row, key, where, binary)), _to_json(row, where, binary)
    else:
        text = text_of(stream, name)
        if form == "jsonl":
            yield from _jsonl(text, name, key)
        elif form == "csv":
            yield from _csv(text, name, key)
        elif delimiter is not None:
            yield from ((None, value) for value in _delimited(text, name, delimiter))
        else:
            yield from ((None, _without_end(line)) for _, line in _bounded(text, name))


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
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    suffix = name.suffix.lower().lstrip(".")
    return {"jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "parquet": "parquet"}.get(suffix, "lines")


def _bounded(stream: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
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
    raise ValueError(f"{text} is not JSON")


_decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)


def _jsonl(stream: IO[bytes], name: str, key: str | None) -> Iterator[Pair]:
    quoted = json.dumps(key, ensure_ascii=False).encode()
    for number, line in _bounded(stream, name):
        value = line.strip()
        if not value:
            continue
        where = f"{name}, line {number}"
        try:
            found = _decoder.decode(value.decode())
        except ValueError as error:
            raise BadInput(f"{where}: not JSON ({error}).") from None
        except RecursionError:
            raise BadInput(f"{where}: nested too deeply to be read.") from None
        if key is None:
            yield None, value
            continue
        if not isinstance(found, dict):
            raise BadInput(f'{where}: not a JSON object, so it has no field "{key}" for the key.')
        if (value.count(quoted) > 1 or b"\\" in value) and _stands_twice(key, value):
            raise BadInput(f'{where}: has the field "{key}" twice, so its key is not clear.')
        field = found.get(key)
        if isinstance(field, dict | list):
            found = _with_real_numbers(value, key, where)
        yield _key_of(found, key, where), value


def _stands_twice(key: str, value: bytes) -> bool:
    """Whether the object ``value`` has two fields ``key``: one parser would take the first, another the last."""
    decoder = json.JSONDecoder(parse_int=_Number, object_pairs_hook=list)
    pairs: list[tuple[str, Any]] = decoder.decode(value.decode())
    return [name for name, _ in pairs].count(key) > 1


def _with_real_numbers(value: bytes, key: str, where: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:  # of more digits than Python reads
        raise BadInput(f'{where}: field "{key}": {error}.') from None


# --- CSV --------------------------------------------------------------------------------------------------


def _csv(stream: IO[bytes], name: str, key: str | None) -> Iterator[Pair]:
    # The limit is global, and importlib.metadata uses csv, too. _bounded() limits the line.
    csv.field_size_limit(max(LINE_BYTES_MAX, csv.field_size_limit()))
    reader = csv.DictReader(_text_lines(stream, name), strict=True)
    try:
        columns = reader.fieldnames
        if not columns:
            raise BadInput(f"{name}: empty; the first line must name the columns.")
        check_names(columns, name)
        check_key(columns, key, name)
        for row in reader:
            where = f"{name}, line {reader.line_num}"
            if None in row or None in row.values():
                raise BadInput(f"{where}: not {len(columns)} fields as the first line names.")
            yield (None if key is None else _key_of(row, key, where)), _to_json(row, where)
    except csv.Error as error:
        raise BadInput(f"{name}, near line {reader.line_num + 1}: not CSV in UTF-8 ({error}).") from None


def _text_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """The lines for the csv module. Decoded one by one: those before a bad one are read, and it is named."""
    for number, line in _bounded(stream, name):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise BadInput(f"{name}, line {number}: not CSV in UTF-8 ({error}).") from None
        if "\r" in text[:-2]:  # a file of an old Mac is one line to readline()
            yield from re.split(r"(?<=\r)(?!\n)", text)
        else:
            yield text


# --- JSON out ---------------------------------------------------------------------------------------------


def _key_of(row: dict[str, Any], key: str, where: str, binary: str = "text") -> bytes | None:
    if key not in row:
        raise BadInput(f'{where}: has no field "{key}" for the key.')
    value = row[key]
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        return _to_json(value, where, binary, key)
    try:
        return value.encode()  # without JSON's quotes
    except UnicodeEncodeError:
        raise BadInput(
            f'{where}: field "{key}" has half a character (a lone surrogate), which no key can have.'
        ) from None


def _to_json(value: Any, where: str, binary: str = "text", key: str | None = None) -> bytes:
    """``value`` as JSON: a row, or the field ``key`` of one. Raises BadInput, which names the column."""
    plain = _plain if binary == "text" else _plain_base64
    try:
        return json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), default=plain, allow_nan=False
        ).encode()
    except (ValueError, RecursionError) as error:
        for column, content in value.items() if key is None else ((key, value),):
            why = _why_not(content, plain)
            if why is not None:
                what = "column" if key is None else "the key"
                raise BadInput(f'{where}: {what} "{column}" {why}.') from None
        raise BadInput(f"{where}: {error}.") from None


def _why_not(content: Any, plain: Callable[[bytes | Refused], str]) -> str | None:
    try:
        json.dumps(content, ensure_ascii=False, default=plain, allow_nan=False).encode()
    except BadInput as refused:
        return str(refused)
    except UnicodeDecodeError:
        return "has bytes that are not UTF-8 text; take --binary base64"
    except UnicodeEncodeError:
        return "has half a character (a lone surrogate), which UTF-8 cannot express"
    except RecursionError:
        return "is nested too deeply"
    except ValueError:
        shown = (
            f"is {content}"
            if isinstance(content, float) and not math.isfinite(content)
            else "holds NaN or Infinity"
        )
        return f"{shown}, which JSON does not have; make it null, or text"
    return None


def _plain(value: bytes | Refused) -> str:
    if isinstance(value, Refused):
        raise BadInput(value.why)
    return value.decode()


def _plain_base64(value: bytes | Refused) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else _plain(value)
