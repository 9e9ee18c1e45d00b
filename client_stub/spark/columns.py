"""Maps the columns of a DataFrame to the parts of a record. Checked on the driver, before any task.

The error texts begin as those of Spark's own Kafka sink (KafkaWriter.validateQuery), which people search for; where a
function of Spark makes the right type, they name it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

log = logging.getLogger("client_stub")


class Columns(NamedTuple):
    """Column positions in the DataFrame; None for a column that it does not have."""

    value: int
    key: int | None = None
    topic: int | None = None
    partition: int | None = None
    headers: int | None = None
    timestamp: int | None = None


class _Rule(NamedTuple):
    fits: Callable[[DataType], bool]
    wanted: str


def _is_text_or_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_headers(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and _is_text_or_bytes(kind.valueType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        len(fields) == 2
        and [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


_TEXT: Final = _Rule(_is_text_or_bytes, "string or binary")
RULES: Final[dict[str, _Rule]] = {
    "topic": _Rule(lambda kind: isinstance(kind, StringType), "string"),
    "key": _TEXT,
    "value": _TEXT,
    "headers": _Rule(
        _is_headers, "array<struct<key:string,value:binary>>, map<string,binary> or map<string,string>"
    ),
    "partition": _Rule(
        lambda kind: isinstance(kind, IntegerType | LongType | ShortType | ByteType),
        "int, bigint or smallint",
    ),
    "timestamp": _Rule(lambda kind: isinstance(kind, TimestampType | LongType), "timestamp or bigint"),
}
"""Column → its types, as Spark names them."""
IGNORED: Final = (
    "offset",
    "timestampType",
    "timestamp_ms",
    "timestamp_type",
    "event_time",
    "header",
    "partition_id",
)
"""Names that Spark's Kafka source gives, or that a user could take for one of the above."""
_named: set[str] = set()
"""Ignored columns that this process has named."""


def find_columns(schema: StructType, topic_option: str | None) -> Columns:
    """Find the columns by name (exactly, else ignoring case); other columns are ignored.

    Raises ValueError with Spark's text for a column that is missing or of a wrong type. The option takes precedence
    over a topic column, as in Spark; the column's type is checked even then.
    """
    found = _positions(schema.fieldNames())
    for name, position in found.items():
        if position is not None:
            fault = type_fault(name, schema.fields[position].dataType)
            if fault is not None:
                raise ValueError(f"kafka_sidecar: {name} attribute {fault}")
    return _complete(found, schema.fieldNames(), topic_option)


def find_fields(names: list[str], topic_option: str | None) -> Columns:
    """As ``find_columns`` for rows without a schema: their values are checked one by one."""
    return _complete(_positions(names), names, topic_option)


def _complete(found: dict[str, int | None], names: list[str], topic_option: str | None) -> Columns:
    if found["topic"] is None and topic_option is None:
        raise ValueError(
            "kafka_sidecar: topic option required when no 'topic' attribute is present. "
            "Use the topic option for setting a topic; in SQL INSERT INTO name WITH ('topic' = '...'), as Spark does "
            "not hand on the OPTIONS of a table."
        )
    value = found["value"]
    if value is None:
        raise ValueError("kafka_sidecar: Required attribute 'value' not found")
    _name_ignored(names, {position for position in found.values() if position is not None})
    topic = None if topic_option is not None else found["topic"]
    return Columns(value, found["key"], topic, found["partition"], found["headers"], found["timestamp"])


def type_fault(name: str, kind: DataType) -> str | None:
    """What is wrong with the type of column ``name``, and the function that makes a right one; None if it fits."""
    rule = RULES[name]
    if rule.fits(kind):
        return None
    return f"unsupported type {kind.simpleString()}. {name} must be a(n) {rule.wanted}{_hint(name, kind)}"


def value_fault(name: str, value: object) -> str:
    """As ``type_fault`` for a value of Python that does not fit."""
    return (
        f"{name} attribute unsupported type {type(value).__name__}. {name} must be a(n) {RULES[name].wanted}"
    )


def _hint(name: str, kind: DataType) -> str:
    if name in ("key", "value"):
        is_nested = isinstance(kind, StructType | ArrayType | MapType)
        return f"; {'to_json' if is_nested else 'string'}({name}) makes one"
    if name == "timestamp" and isinstance(kind, DateType | TimestampNTZType | StringType):
        return "; cast(timestamp as timestamp) makes one"
    return ""


def _name_ignored(names: list[str], used: set[int]) -> None:
    others = {name.lower() for name in IGNORED}
    for position, name in enumerate(names):
        if position not in used and name.lower() in others and name not in _named:
            _named.add(name)
            log.warning(
                "kafka_sidecar: column %s is ignored: records are made of the columns %s.",
                name,
                ", ".join(RULES),
            )


def _positions(names: list[str]) -> dict[str, int | None]:
    return {name: _position(names, name) for name in RULES}


def _position(names: list[str], name: str) -> int | None:
    if name in names:
        return names.index(name)
    alike = [position for position, other in enumerate(names) if other.lower() == name]
    if len(alike) > 1:
        could_be = ", ".join(names[i] for i in alike)
        raise ValueError(f"kafka_sidecar: Reference '{name}' is ambiguous, could be: {could_be}.")
    return alike[0] if alike else None
