"""Message: a record and its position in the log, like ``confluent_kafka.Message``.

The confluent twin makes one for each record with a callback; the program reads it in poll().
"""

from __future__ import annotations

from typing import Any, Final

from client_stub.compat.kafka_error import KafkaError
from client_stub.native.hot import MessageCore

TIMESTAMP_NOT_AVAILABLE: Final = 0
TIMESTAMP_CREATE_TIME: Final = 1


class Message(MessageCore):
    """One record and its position in the log. For a failed record ``offset()`` is None and ``partition()`` the one
    asked for, or -1.
    """

    __slots__ = ()

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition if self._metadata is None else self._metadata.partition

    def offset(self) -> int | None:
        return None if self._metadata is None else self._metadata.offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, Any]] | None:
        return self._headers

    def error(self) -> KafkaError | None:
        error: KafkaError | None = self._error
        return error

    def leader_epoch(self) -> int | None:
        """Always None, as for every message of a producer."""
        return None

    def set_topic(self, value: Any) -> None:
        self._topic = value

    def set_key(self, value: Any) -> None:
        self._key = value

    def set_value(self, value: Any) -> None:
        """Set the value to any object, as a deserializer would."""
        self._value = value

    def set_headers(self, value: Any) -> None:
        self._headers = value

    def set_error(self, value: Any) -> None:
        self._error = value

    def timestamp(self) -> tuple[int, int]:
        """(type, ms since 1970)."""
        if self._metadata is None:
            return TIMESTAMP_NOT_AVAILABLE, 0
        return TIMESTAMP_CREATE_TIME, self._metadata.timestamp_ms

    def latency(self) -> float:
        """Seconds from produce() to the outcome."""
        return self._latency_s

    def __len__(self) -> int:
        return 0 if self._value is None else len(self._value)
