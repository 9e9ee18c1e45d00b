"""Message: a record and its place in the log, like ``confluent_kafka.Message``."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from client_stub.compat.kafka_error import KafkaError
from client_stub.record_metadata import RecordMetadata

TIMESTAMP_NOT_AVAILABLE: Final = 0
TIMESTAMP_CREATE_TIME: Final = 1


class Sent(NamedTuple):
    """A record as produce() took it."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, Any]] | None
    partition: int
    at_s: float


class Message:
    """One record and its place in the log. For a failed record ``offset()`` is None and ``partition()`` the one asked
    for, or -1.
    """

    def __init__(
        self, sent: Sent, error: KafkaError | None, metadata: RecordMetadata | None, latency_s: float
    ) -> None:
        self._sent, self._error, self._metadata, self._latency_s = sent, error, metadata, latency_s

    def topic(self) -> str:
        return self._sent.topic

    def partition(self) -> int:
        return self._sent.partition if self._metadata is None else self._metadata.partition

    def offset(self) -> int | None:
        return None if self._metadata is None else self._metadata.offset

    def key(self) -> bytes | None:
        return self._sent.key

    def value(self) -> bytes | None:
        return self._sent.value

    def headers(self) -> list[tuple[str, Any]] | None:
        return self._sent.headers

    def error(self) -> KafkaError | None:
        return self._error

    def leader_epoch(self) -> int | None:
        """Always None, as for every message of a producer."""
        return None

    def set_topic(self, value: Any) -> None:
        self._sent = self._sent._replace(topic=value)

    def set_key(self, value: Any) -> None:
        self._sent = self._sent._replace(key=value)

    def set_value(self, value: Any) -> None:
        """Set the value to any object, as a deserializer would."""
        self._sent = self._sent._replace(value=value)

    def set_headers(self, value: Any) -> None:
        self._sent = self._sent._replace(headers=value)

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
        return 0 if self._sent.value is None else len(self._sent.value)
