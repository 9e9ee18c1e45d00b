"""The meaning of each broker error for a producer: one row per code, looked up by :func:`classify`.

Names, texts and the retriable flag come from the stub's table, because the stub reports them to callers. This table
adds the daemon's fields. Sources: Kafka's ``Errors`` and ``Sender.completeBatch``, and for persistence librdkafka's
``rd_kafka_handle_Produce_error``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from client_stub.contract.error_codes import ERROR_CODES
from client_stub.contract.wire import Persistence


class Refused(Exception):
    """A message is answered with REFUSED: ``code`` for programs, the text for users. ``cluster_error``: why no broker
    answers, if that is the cause.
    """

    def __init__(self, code: str, text: str, cluster_error: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.cluster_error = cluster_error


class Code(IntEnum):
    """Codes that the daemon treats specially, or that tests let brokers answer. Each other is handled by its row
    alone.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    REBOOTSTRAP_REQUIRED = 129


class ErrorRow(NamedTuple):
    """One error. ``persistence``: whether a batch answered with this code may be in the log *by this attempt alone*."""

    code: int
    name: str
    retriable: bool
    stale_metadata: bool
    persistence: Persistence
    text: str


_STALE_METADATA: Final = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    }
)
"""Kafka's InvalidMetadataException and its subclasses."""

_MAYBE_APPENDED: Final = frozenset(
    {
        Code.UNKNOWN_SERVER_ERROR,
        Code.REQUEST_TIMED_OUT,
        Code.NETWORK_EXCEPTION,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.KAFKA_STORAGE_ERROR,
        # A leader that steps down while a write waits for its followers answers with one of these two
        # (DelayedProduce). The record is then in its log, and perhaps in the next leader's.
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


def _row(code: int, name: str, retriable: bool, text: str) -> ErrorRow:
    if code in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER):
        persistence = Persistence.PERSISTED
    elif code in _MAYBE_APPENDED:
        persistence = Persistence.POSSIBLY_PERSISTED
    else:
        persistence = Persistence.NOT_PERSISTED
    return ErrorRow(code, name, retriable, code in _STALE_METADATA, persistence, text)


ERROR_ROWS: Final[dict[int, ErrorRow]] = {
    code: _row(code, row[0], row[1], row[2]) for code, row in ERROR_CODES.items()
}


def classify(code: int) -> ErrorRow:
    """The row of ``code``. An unknown code is not retriable, and its records count as possibly persisted."""
    row = ERROR_ROWS.get(code)
    if row is None:
        text = f"The broker answered with error code {code}, which this version does not know."
        row = ErrorRow(code, f"UNKNOWN_ERROR_{code}", False, False, Persistence.POSSIBLY_PERSISTED, text)
    return row
