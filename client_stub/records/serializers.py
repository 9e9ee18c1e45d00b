"""Serializers: the application's functions that turn its keys and values into bytes.

send() of a producer with serializers calls it, in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from client_stub.errors import SerializationFailed
from client_stub.records.arguments import list_of_rows

Serializer: TypeAlias = Callable[[Any], bytes | None]
"""None is not serialized: it stays Kafka's null."""


class Serializers:
    """The two functions of one producer. One may be None; keys or values are then expected as bytes. As thread-safe as
    the functions.
    """

    def __init__(self, key: Serializer | None, value: Serializer | None) -> None:
        self._key = key
        self._value = value

    def record(self, topic: str, key: Any, value: Any, where: str = "a record") -> tuple[Any, Any]:
        """(key, value) as bytes. Raises SerializationFailed, which names the function, ``where`` and the cause."""
        if self._key is not None and key is not None:
            key = _called(self._key, key, "key_serializer", f"{where} of topic {topic}")
        if self._value is not None and value is not None:
            value = _called(self._value, value, "value_serializer", f"{where} of topic {topic}")
        return key, value

    def rows(self, topic: str, rows: Iterable[Sequence[Any]]) -> list[Any]:
        """Rows of send_many() with keys and values as bytes. Anything that is not a row is left to the later check."""
        return [
            (*self.record(topic, row[0], row[1], f"record {number}"), *row[2:])
            if isinstance(row, tuple | list) and len(row) >= 2
            else row
            for number, row in enumerate(list_of_rows(rows))
        ]


def serializers_of(key: Serializer | None, value: Serializer | None) -> Serializers | None:
    """The Serializers, or None without any function. Raises TypeError for one that is not callable."""
    for name, given in (("key_serializer", key), ("value_serializer", value)):
        if given is not None and not callable(given):
            raise TypeError(f"{name} must be a function from an object to bytes, not {type(given).__name__}.")
    return None if key is None and value is None else Serializers(key, value)


def _called(function: Serializer, given: Any, name: str, what: str) -> bytes | None:
    try:
        made = function(given)
    except Exception as error:
        raise SerializationFailed(
            f"{name} failed for {what}: {type(error).__name__}: {error}. No record of this call was queued."
        ) from error
    if made is not None and not isinstance(made, bytes | bytearray | memoryview):
        raise SerializationFailed(
            f"{name} returned {type(made).__name__} for {what}: it must return bytes or None. No record of this call "
            "was queued."
        )
    return made
