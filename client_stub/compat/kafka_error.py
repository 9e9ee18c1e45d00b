"""KafkaError: an error with librdkafka's code, like ``confluent_kafka.KafkaError``.

The confluent twin makes them, in the caller's thread or, for outcomes, in the io thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from client_stub.compat.librdkafka_errors import NAMES
from client_stub.contract.wire import LocalCode, Persistence
from client_stub.errors import ProducerFenced, SidecarError, TransactionTimeout


class KafkaError:
    """An error with librdkafka's code: Kafka's own codes are 0 and above, the client's are negative.

    Every code is also a class attribute by its name, for example ``KafkaError._MSG_TIMED_OUT``.
    """

    if TYPE_CHECKING:
        # Declared for type checkers; all other codes are only set below.
        _ALL_BROKERS_DOWN: Final = -187
        _AUTHENTICATION: Final = -169
        _INVALID_ARG: Final = -186
        _MSG_TIMED_OUT: Final = -192
        _PURGE_INFLIGHT: Final = -151
        _PURGE_QUEUE: Final = -152
        _QUEUE_FULL: Final = -184
        _STATE: Final = -172
        _TIMED_OUT: Final = -185
        _FENCED: Final = -144
        _UNKNOWN_PARTITION: Final = -190
        _UNKNOWN_TOPIC: Final = -188
        MSG_SIZE_TOO_LARGE: Final = 10
        POLICY_VIOLATION: Final = 44
        TOPIC_AUTHORIZATION_FAILED: Final = 29
        TOPIC_EXCEPTION: Final = 17
        UNKNOWN: Final = -1
        UNKNOWN_TOPIC_OR_PART: Final = 3

    def __init__(
        self,
        error: int,
        reason: str | None = None,
        fatal: bool = False,
        retriable: bool = False,
        txn_requires_abort: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        self._code = error
        self._name = name or NAMES.get(error) or f"ERR_{error}?"
        self._text = self._name if reason is None else reason
        self._fatal = fatal
        self._retriable = retriable
        self._txn_requires_abort = txn_requires_abort

    def code(self) -> int:
        return self._code

    def name(self) -> str:
        return self._name

    def str(self) -> str:
        return self._text

    def retriable(self) -> bool:
        return self._retriable

    def fatal(self) -> bool:
        return self._fatal

    def txn_requires_abort(self) -> bool:
        return self._txn_requires_abort

    def __eq__(self, other: object) -> bool:
        return self._code == (other.code() if isinstance(other, KafkaError) else other)

    def __lt__(self, other: KafkaError | int) -> bool:
        return self._code < (other.code() if isinstance(other, KafkaError) else other)

    def __gt__(self, other: KafkaError | int) -> bool:
        return self._code > (other.code() if isinstance(other, KafkaError) else other)

    def __hash__(self) -> int:
        return hash(self._code)

    def __str__(self) -> str:  # type: ignore[valid-type]  # the method str() shadows the class
        fatal = "FATAL," if self._fatal else ""
        return f'KafkaError{{{fatal}code={self._name},val={self._code},str="{self._text}"}}'

    __repr__ = __str__


for _code, _name in NAMES.items():
    setattr(KafkaError, _name, _code)


class KafkaException(Exception):
    """Raised with a KafkaError as its only argument."""


_LOCAL: Final[Mapping[int, int]] = {
    LocalCode.EXPIRED: KafkaError._MSG_TIMED_OUT,
    LocalCode.METADATA_TIMEOUT: KafkaError._MSG_TIMED_OUT,
    LocalCode.DISCONNECTED: KafkaError._MSG_TIMED_OUT,
    LocalCode.RECORD_TOO_LARGE: KafkaError.MSG_SIZE_TOO_LARGE,
    LocalCode.INVALID_PARTITION: KafkaError._UNKNOWN_PARTITION,
    LocalCode.INVALID_TOPIC: KafkaError.TOPIC_EXCEPTION,
    LocalCode.NO_PARTITIONS: KafkaError.UNKNOWN_TOPIC_OR_PART,
    LocalCode.TOPIC_DELETED: KafkaError._UNKNOWN_TOPIC,
    LocalCode.TOPIC_UNAUTHORIZED: KafkaError.TOPIC_AUTHORIZATION_FAILED,
    LocalCode.CANCELLED: KafkaError._PURGE_QUEUE,
    LocalCode.ABORTED: KafkaError._PURGE_QUEUE,
    LocalCode.UNAUTHENTICATED: KafkaError._AUTHENTICATION,
    LocalCode.NOT_ADMITTED: KafkaError._AUTHENTICATION,
    LocalCode.TOPIC_REFUSED: KafkaError.POLICY_VIOLATION,
    LocalCode.TXN_ABORTED: KafkaError._PURGE_QUEUE,
}


def error_of(error: SidecarError) -> KafkaError:
    """The same error with librdkafka's code. An error without an equivalent there is _STATE, with our name."""
    if isinstance(error, TransactionTimeout):
        return _made(KafkaError._TIMED_OUT, error, None)
    if isinstance(error, ProducerFenced):
        return _made(KafkaError._FENCED, error, None)
    code = _LOCAL.get(error.code)
    if code == KafkaError._PURGE_QUEUE and error.persistence != Persistence.NOT_PERSISTED:
        code = KafkaError._PURGE_INFLIGHT  # the daemon may have it, and deliver it
    if code is None and (error.code == KafkaError.UNKNOWN or 0 < error.code < min(LocalCode)):
        code = error.code
    if code is None:
        return _made(KafkaError._STATE, error, error.name)
    # Use Kafka's name for a code that librdkafka does not know.
    return _made(code, error, NAMES.get(code, error.name))


def _made(code: int, error: SidecarError, name: str | None) -> KafkaError:
    return KafkaError(
        code,
        str(error),
        fatal=error.fatal,
        retriable=error.retriable,
        txn_requires_abort=error.abortable,
        name=name,
    )
