"""Turns rows of Spark into records, for the ways on which Spark hands over rows and not Arrow batches.

The writer of a task uses it, in an executor's Python worker.

They follow the rules of columns (columns.py) value by value, as rows may come without a schema.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql.types import Row, TimestampType

from client_stub.spark.columns import Columns, find_fields, value_fault
from client_stub.spark.parts import Chunk, Part, null_topic, task

CHUNK_ROWS_MAX: Final = 10_000
CHUNK_BYTES_MAX: Final = 4 << 20
_TIME: Final = TimestampType()


def chunks_of_rows(rows: Iterable[Row], topic: str | None) -> Iterator[Chunk]:
    """Chunks of at most CHUNK_ROWS_MAX rows, which end at the row that fills CHUNK_BYTES_MAX. Raises ValueError or
    TypeError, which name the row.
    """
    fields: list[str] = []
    number = -1
    parts: dict[str, tuple[list[Any], list[int]]] = {}
    size = first = 0
    for number, row in enumerate(rows):
        named = getattr(row, "__fields__", None)
        if named != fields:
            if named is None:
                raise TypeError(
                    f"row {number} of task {task()} is of type {type(row).__name__} and names no fields; rows are "
                    "those of a DataFrame, or Row(value=...)."
                )
            fields, columns = named, find_fields(named, topic)
        name = topic if columns.topic is None else row[columns.topic]
        if name is None:
            raise null_topic(number)
        try:
            record = _record(row, columns)
        except (TypeError, ValueError) as error:
            raise ValueError(f"row {number} of task {task()}, for topic {name}: {error}") from None
        records, numbers = parts.setdefault(name, ([], []))
        records.append(record)
        numbers.append(number)
        size += len(record[0] or b"") + len(record[1] or b"")
        if number + 1 - first == CHUNK_ROWS_MAX or size >= CHUNK_BYTES_MAX:
            yield _chunk(parts, number + 1 - first, size)
            parts, size, first = {}, 0, number + 1
    if parts:
        yield _chunk(parts, number + 1 - first, size)


def _chunk(parts: dict[str, tuple[list[Any], list[int]]], rows: int, size: int) -> Chunk:
    return Chunk(
        rows, size, iter([Part(name, records, of.__getitem__) for name, (records, of) in parts.items()])
    )


def _record(row: Row, columns: Columns) -> tuple[Any, ...]:
    """As send_many() takes it, which checks the rest."""
    value = _bytes("value", row[columns.value])
    key = None if columns.key is None else _bytes("key", row[columns.key])
    if columns.headers is columns.partition is columns.timestamp is None:
        return key, value
    headers = None if columns.headers is None else _headers(row[columns.headers])
    partition = None if columns.partition is None else row[columns.partition]
    timestamp = None if columns.timestamp is None else _milliseconds(row[columns.timestamp])
    return key, value, headers, partition, timestamp


def _bytes(name: str, value: Any) -> bytes | None:
    kind = value.__class__
    if value is None or kind is bytes:
        return value  # type: ignore[no-any-return]
    if kind is str:
        return value.encode()  # type: ignore[no-any-return]
    if kind is bytearray:
        return bytes(value)
    raise TypeError(value_fault(name, value))


def _headers(value: Any) -> list[tuple[Any, bytes | None]] | None:
    if value is None:
        return None
    if isinstance(value, dict):
        pairs: Iterable[Any] = value.items()
    elif isinstance(value, list) and all(_is_pair(each) for each in value):
        pairs = value
    else:
        raise TypeError(value_fault("headers", value))
    return [(key, _bytes("headers", content)) for key, content in pairs]


def _is_pair(item: Any) -> bool:
    """A struct<key, value> as Spark hands it over, or a plain pair."""
    return isinstance(item, tuple) and len(item) == 2 and getattr(item, "__fields__", _PAIR) == _PAIR


_PAIR: Final = ["key", "value"]


def _milliseconds(value: Any) -> Any:
    """A time without a zone is of the session's, which is the worker's own, as Spark hands over a timestamp."""
    if isinstance(value, datetime.datetime):
        return _TIME.toInternal(value) // 1_000
    if isinstance(value, datetime.date | str | float):
        raise TypeError(value_fault("timestamp", value))
    return value
