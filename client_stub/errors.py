"""Every error that the stub raises or passes to a callback: subclasses of :class:`SidecarError`, with Kafka's names.

``error_for`` makes the error of an outcome's code. An error has these attributes:

- ``code``: Kafka's, or a ``wire.LocalCode``; 0 when the record never left this process
- ``name``: Kafka's
- ``retriable``: whether sending the record again, or the same call, may succeed later
- ``abortable``: whether the transaction must be aborted; the next one may then begin
- ``fatal``: whether nothing more can be done with this producer
- ``persistence``: whether the record may be in the log
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Protocol

from client_stub.contract.error_codes import ERROR_CODES, code_row
from client_stub.contract.wire import LocalCode, Persistence, TxnEffect
from client_stub.record_metadata import OffsetRange


class QueuedRecords(Protocol):
    """The BulkDelivery of the records that a call had queued when it failed."""

    count: int

    def done(self) -> bool: ...

    def result(self, timeout: float | None = None) -> int: ...

    def exception(self, timeout: float | None = None) -> SidecarError | None: ...

    def offsets(self) -> tuple[OffsetRange, ...]: ...


class SidecarError(Exception):
    """Base of all errors of this package."""

    default_name: ClassVar[str] = ""
    default_retriable: ClassVar[bool] = False

    def __init__(
        self,
        text: str,
        *,
        code: int = 0,
        persistence: Persistence = Persistence.NOT_PERSISTED,
        name: str | None = None,
        retriable: bool | None = None,
        abortable: bool = False,
        fatal: bool = False,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.persistence = persistence
        self.name = name or self.default_name or type(self).__name__
        self.retriable = self.default_retriable if retriable is None else retriable
        self.abortable = abortable
        self.fatal = fatal
        self.queued: QueuedRecords | None = None
        """After a send_many() or send_arrow() that failed in the middle: the future of its records that were queued."""

    def __reduce__(self) -> tuple[object, ...]:
        known = {
            "code": self.code,
            "persistence": self.persistence,
            "name": self.name,
            "retriable": self.retriable,
            "abortable": self.abortable,
            "fatal": self.fatal,
        }
        return _rebuild, (type(self), str(self), known)


def _rebuild(kind: type[SidecarError], text: str, known: dict[str, Any]) -> SidecarError:
    # Errors are passed between processes (Spark, multiprocessing), and Exception's own pickling drops keyword
    # arguments.
    return kind(text, **known)


# --- misuse and local state: raised by the call itself, nothing was queued ------------------------------


class ProducerClosed(SidecarError):
    """The producer was closed before or during the call."""

    default_name = "ILLEGAL_STATE"


class ForkedProducer(SidecarError):
    """The delivery belongs to the parent process; only the parent learns the outcome of the record."""

    default_name = "FORKED_PRODUCER"


FORKED_TEXT: Final = "This delivery belongs to the parent process; a forked child sends with its own client."


ENDED_TEXT: Final = "The interpreter is shutting down: nothing can be sent or waited for any more."


class SerializationFailed(SidecarError):
    """A key_serializer or value_serializer raised (``__cause__``), or returned anything but bytes or None."""

    default_name = "SERIALIZATION_FAILED"


class BufferExhausted(SidecarError):
    """There was no room within max.block.ms: the daemon gave no credit or no page. This call queued nothing."""

    default_name = "BUFFER_EXHAUSTED"
    default_retriable = True


class StartFailed(SidecarError):
    """This process gives the producer no thread or no descriptor, is about to end, or runs on another system than
    Linux.
    """

    default_name = "START_FAILED"
    default_retriable = True


class DaemonUnreachable(SidecarError):
    """No daemon answered at the run directory within connect_timeout_ms."""

    default_name = "DAEMON_UNREACHABLE"
    default_retriable = True


# --- transactions: raised by their calls, and by a send that no transaction takes -------------------------


class TransactionError(SidecarError):
    """A call of a transaction failed. ``abortable``, ``fatal`` and ``retriable`` say what is possible now; the first
    record that failed is its ``__cause__``.
    """


class TransactionStateError(TransactionError):
    """The state of the transaction does not allow this call, which has done nothing."""

    default_name = "ILLEGAL_STATE"


class TransactionTimeout(TransactionError, TimeoutError):
    """The call has no answer yet. The same call again waits for the same answer; no other one is possible before."""

    default_name = "TIMED_OUT"
    default_retriable = True


class ProducerFenced(TransactionError):
    """Another producer has this transactional id now. Nothing more can be done with this one."""

    default_name = "PRODUCER_FENCED"


# --- outcomes: what became of a record ------------------------------------------------------------------


class DeliveryFailed(SidecarError):
    """The outcome of a record when its code has no class of its own. ``name`` is Kafka's."""


class RecordTooLarge(DeliveryFailed):
    """Over max.request.size (from send() itself or the daemon) or over the topic's max.message.bytes."""

    default_name = "RECORD_TOO_LARGE"


class MalformedRecord(DeliveryFailed):
    default_name = "MALFORMED_RECORD"


class InvalidRecord(DeliveryFailed):
    """The broker refused this record, for example for a null key on a compacted topic."""


class InvalidPartition(DeliveryFailed):
    default_name = "INVALID_PARTITION"


class InvalidTimestamp(DeliveryFailed):
    default_name = "INVALID_TIMESTAMP"


class InvalidTopic(DeliveryFailed):
    default_name = "INVALID_TOPIC_EXCEPTION"


class TopicAuthorizationFailed(DeliveryFailed):
    default_name = "TOPIC_AUTHORIZATION_FAILED"


class AuthenticationFailed(DeliveryFailed):
    """The brokers refuse the daemon's login. The text has the mechanism, the user and the brokers' message."""

    default_name = "SASL_AUTHENTICATION_FAILED"


class ClusterAuthorizationFailed(DeliveryFailed):
    pass


class UnknownTopicOrPartition(DeliveryFailed):
    pass


class TopicDeleted(UnknownTopicOrPartition):
    pass


class DeliveryTimeout(DeliveryFailed, TimeoutError):
    """delivery.timeout.ms passed (Kafka's TimeoutException)."""


class MetadataTimeout(DeliveryTimeout):
    """The topic was still unknown after max.block.ms."""


class RequestTimedOut(DeliveryTimeout):
    pass


class NotEnoughReplicas(DeliveryFailed):
    pass


class NotEnoughReplicasAfterAppend(DeliveryFailed):
    pass


class OutOfOrderSequence(DeliveryFailed):
    pass


class DeliveryAborted(DeliveryFailed):
    """The daemon was closed by force before the record was delivered."""


class DeliveryCancelled(DeliveryFailed):
    """This producer was closed before the record's outcome was known: by close() with a timeout that ended, or 0."""


class TransactionAborted(DeliveryFailed):
    """The record's transaction was aborted before the record was sent."""


class DaemonRefused(DeliveryFailed):
    """The daemon refused this client, at a call or while the record waited. ``name`` is the code of its refusal."""

    default_name = "NOT_ADMITTED"


class TopicLimit(DaemonRefused):
    """The daemon refused this topic: it had no place for it. ``name`` is the code of its refusal."""

    default_name = "TOPIC_REFUSED"


class DaemonLost(DeliveryFailed):
    """The daemon, or its record of this client, is gone. ``persistence`` says whether the record may be in the log."""


_CLASSES: Final[dict[int, type[DeliveryFailed]]] = {
    3: UnknownTopicOrPartition,
    7: RequestTimedOut,
    10: RecordTooLarge,
    17: InvalidTopic,
    18: RecordTooLarge,
    19: NotEnoughReplicas,
    20: NotEnoughReplicasAfterAppend,
    29: TopicAuthorizationFailed,
    31: ClusterAuthorizationFailed,
    32: InvalidTimestamp,
    45: OutOfOrderSequence,
    58: AuthenticationFailed,
    87: InvalidRecord,
    LocalCode.MALFORMED_RECORD: MalformedRecord,
    LocalCode.RECORD_TOO_LARGE: RecordTooLarge,
    LocalCode.INVALID_PARTITION: InvalidPartition,
    LocalCode.INVALID_TIMESTAMP: InvalidTimestamp,
    LocalCode.EXPIRED: DeliveryTimeout,
    LocalCode.METADATA_TIMEOUT: MetadataTimeout,
    LocalCode.ABORTED: DeliveryAborted,
    LocalCode.CANCELLED: DeliveryCancelled,
    LocalCode.TOPIC_DELETED: TopicDeleted,
    LocalCode.NO_PARTITIONS: UnknownTopicOrPartition,
    LocalCode.DISCONNECTED: DaemonLost,
    LocalCode.TOPIC_UNAUTHORIZED: TopicAuthorizationFailed,
    LocalCode.INVALID_TOPIC: InvalidTopic,
    LocalCode.UNAUTHENTICATED: AuthenticationFailed,
    LocalCode.NOT_ADMITTED: DaemonRefused,
    LocalCode.TOPIC_REFUSED: TopicLimit,
    LocalCode.TXN_ABORTED: TransactionAborted,
}
assert _CLASSES.keys() <= ERROR_CODES.keys()


def error_for(
    code: int, text: str = "", persistence: Persistence | int = Persistence.NOT_PERSISTED
) -> DeliveryFailed:
    """The error of an outcome's ``code``. A text from the daemon or broker takes precedence over the table's."""
    row = code_row(code)
    return _CLASSES.get(code, DeliveryFailed)(
        text or row.text,
        code=code,
        persistence=Persistence(persistence),
        name=row.name,
        retriable=row.retriable,
    )


_FENCED: Final = frozenset({47, 90})
"""INVALID_PRODUCER_EPOCH and PRODUCER_FENCED."""


def transaction_error(code: int, effect: TxnEffect | int, text: str) -> TransactionError:
    """The error of a TXN message with a code."""
    row = code_row(code)
    kind = (
        ProducerFenced
        if code in _FENCED
        else TransactionStateError
        if code == LocalCode.TXN_WRONG_STATE
        else TransactionError
    )
    return kind(
        text or row.text,
        code=code,
        name=row.name,
        retriable=effect == TxnEffect.RETRIABLE,
        abortable=effect == TxnEffect.ABORTABLE,
        fatal=effect == TxnEffect.FATAL,
    )
