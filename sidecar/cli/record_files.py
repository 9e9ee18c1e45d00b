"""Files of records for ``produce``: lines, jsonl, csv, parquet as (key, value) pairs, read as a stream."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import IO, Any

Pair = tuple[bytes | None, bytes]
FORMATS = ("lines", "jsonl", "csv", "parquet")
PARQUET_ROWS = 8_192


class BadInput(ValueError):
    """A record of the file cannot be used; the text names the file, the place and the fault."""


def read_records(stream: IO[bytes], name: str, form: str, key: str | None) -> Iterator[Pair]:
    """Yield the records of ``stream`` (called ``name`` in errors); raises BadInput at the first bad one.

    ``lines``: value = the line without its end. ``jsonl``: value = the line as it stands. ``csv``, ``parquet``:
    value = a JSON object by column. ``key`` names the field whose text becomes the key (null or absent: no key).
    """
    readers: dict[str, Callable[[IO[bytes], str, str | None], Iterator[Pair]]] = {
        "lines": _lines,
        "jsonl": _jsonl,
        "csv": _csv,
        "parquet": _parquet,
    }
    return readers[form](stream, name, key)


def format_of(path: Path) -> str:
    """The format that the file's name suggests."""
    suffix = path.suffix.lower().lstrip(".")
    return {"jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "parquet": "parquet"}.get(suffix, "lines")


def _lines(stream: IO[bytes], name: str, key: str | None) -> Iterator[Pair]:
    for line in stream:
        yield None, line.rstrip(b"\r\n")


def _jsonl(stream: IO[bytes], name: str, key: str | None) -> Iterator[Pair]:
    for number, line in enumerate(stream, 1):
        value = line.strip()
        if not value:
            continue
        try:
            found = json.loads(value)
        except ValueError as error:
            raise BadInput(f"{name}, line {number}: not JSON ({error}).") from None
        if key is not None and not isinstance(found, dict):
            raise BadInput(f'{name}, line {number}: no JSON object, so it has no field "{key}" for the key.')
        yield (None if key is None else _key_of(found, key, f"{name}, line {number}")), value


def _csv(stream: IO[bytes], name: str, key: str | None) -> Iterator[Pair]:
    reader = csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""))
    try:
        columns = reader.fieldnames
        if not columns:
            raise BadInput(f"{name}: empty; the first line must name the columns.")
        _check_key(columns, key, name)
        for row in reader:
            place = f"{name}, line {reader.line_num}"
            if None in row or None in row.values():
                raise BadInput(f"{place}: not {len(columns)} fields as the first line names.")
            yield (None if key is None else _key_of(row, key, place)), _to_json(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{name}, near line {reader.line_num + 1}: not CSV in UTF-8 ({error}).") from None


def _parquet(stream: IO[bytes], name: str, key: str | None) -> Iterator[Pair]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadInput("--format parquet needs pyarrow: pip install 'kafka-sidecar[arrow]'.") from None
    source = stream if stream.seekable() else io.BytesIO(stream.read())
    try:
        file = parquet.ParquetFile(source)
        _check_key(file.schema_arrow.names, key, name)
        number = 0
        for batch in file.iter_batches(batch_size=PARQUET_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield (None if key is None else _key_of(row, key, f"{name}, row {number}")), _to_json(row)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{name}: not a readable Parquet file ({error}).") from None


def _check_key(columns: Any, key: str | None, name: str) -> None:
    if key is not None and key not in columns:
        raise BadInput(f'{name}: has no column "{key}" for the key; columns are {", ".join(columns)}.')


def _key_of(row: dict[str, Any], key: str, place: str) -> bytes | None:
    if key not in row:
        raise BadInput(f'{place}: has no field "{key}" for the key.')
    value = row[key]
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else _to_json(value)


def _to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()


def _plain(value: object) -> object:
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
