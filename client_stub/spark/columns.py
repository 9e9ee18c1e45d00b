"""Maps the columns of a DataFrame to the parts of a record. Checked on the driver, before any task.

The error texts are those of Spark's own Kafka sink (KafkaWriter.validateQuery), which people search for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)


class Columns(NamedTuple):
    """Column positions in the DataFrame; None for a column that it does not have."""

    value: int
    key: int | None
    topic: int | None
    partition: int | None
    headers: int | None


def _is_text_or_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        len(fields) == 2
        and [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


_RULES: Final[dict[str, tuple[Callable[[DataType], bool], str]]] = {
    "topic": (lambda kind: isinstance(kind, StringType), "string"),
    "key": (_is_text_or_bytes, "string or binary"),
    "value": (_is_text_or_bytes, "string or binary"),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>"),
    "partition": (lambda kind: isinstance(kind, IntegerType), "int"),
}


def find_columns(schema: StructType, topic_option: str | None) -> Columns:
    """Find the columns by name (exactly, else ignoring case); other columns are ignored.

    Raises ValueError with Spark's text for a column that is missing or of a wrong type. The option takes precedence
    over a topic column, as in Spark; the column's type is checked even then.
    """
    found: dict[str, int | None] = {}
    for name, (fits, wanted) in _RULES.items():
        position = found[name] = _position(schema, name)
        if position is None:
            continue
        kind = schema.fields[position].dataType
        if not fits(kind):
            raise ValueError(
                f"kafka_sidecar: {name} attribute unsupported type {kind.simpleString()}. {name} must be a(n) {wanted}"
            )
    if found["topic"] is None and topic_option is None:
        raise ValueError(
            "kafka_sidecar: topic option required when no 'topic' attribute is present. "
            "Use the topic option for setting a topic."
        )
    value = found["value"]
    if value is None:
        raise ValueError("kafka_sidecar: Required attribute 'value' not found")
    topic = None if topic_option is not None else found["topic"]
    return Columns(value, found["key"], topic, found["partition"], found["headers"])


def _position(schema: StructType, name: str) -> int | None:
    names = schema.fieldNames()
    if name in names:
        return names.index(name)
    alike = [position for position, other in enumerate(names) if other.lower() == name]
    if len(alike) > 1:
        could_be = ", ".join(names[i] for i in alike)
        raise ValueError(f"kafka_sidecar: Reference '{name}' is ambiguous, could be: {could_be}.")
    return alike[0] if alike else None
