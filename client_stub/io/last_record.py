"""LastRecordQuestion: asks the daemon which record of a key was committed last in a compacted topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from client_stub.contract.wire import KEY_BYTES_MAX, Kind
from client_stub.io.control_question import ControlQuestion
from client_stub.zmtp.keys import WatchedKeyFile


class CommittedRecord(NamedTuple):
    """A record that readers with read_committed see."""

    offset: int
    timestamp_ms: int
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]


class LastCommitted(NamedTuple):
    """``partition``: the key's, by the hash of Kafka's Java clients. ``record`` is None if the key has none."""

    partition: int
    record: CommittedRecord | None


def check_key(key: object) -> None:
    """Raises TypeError and ValueError for what is no key of such a topic."""
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, not {type(key).__name__}.")
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise ValueError(f"key must have 1 to {KEY_BYTES_MAX} bytes, not {len(key)}.")


class LastRecordQuestion(ControlQuestion[LastCommitted]):
    """One question. Raises DaemonUnreachable, DaemonRefused, TopicAuthorizationFailed and InvalidTopic."""

    def __init__(
        self,
        control_path: str,
        topic: str,
        key: bytes,
        timeout_ms: float,
        now_ms: float,
        curve_keys: WatchedKeyFile | None = None,
        *,
        name: str,
        token: str | None,
        creates: bool,
    ) -> None:
        super().__init__(control_path, timeout_ms, now_ms, curve_keys)
        self._fields = (topic, key, name, token)
        self._creates = creates

    def _question(self, asked_ms: float) -> list[Any]:
        return [Kind.LAST_RECORD, *self._fields, asked_ms, self._creates]

    def _answer(self, message: Sequence[Any]) -> LastCommitted | None:
        if message[0] != Kind.LAST_RECORD_REPLY:
            return None
        partition, record = message[1:3]
        if record is None:
            return LastCommitted(partition, None)
        offset, timestamp_ms, value, headers = record
        return LastCommitted(
            partition,
            CommittedRecord(offset, timestamp_ms, value, tuple((name, each) for name, each in headers)),
        )
