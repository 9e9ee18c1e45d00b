"""The contract between stub and daemon: message kinds, field orders, outcome bytes.

Constants and pure functions: any thread of a stub, worker, controller or command.

The stub owns the contract: the daemon imports this module, never the reverse. Everything here is append-only: a kind
or a code never changes its meaning.

Every message is a ZeroMQ multipart. Frame 0 is one msgpack array whose first element is the kind; SUBMIT and OUTCOMES
carry a second frame with raw bytes. Strings are UTF-8, integers are msgpack integers.

A *stream* is (client, topic), numbered by the stub. A *submission* is one SUBMIT: records of one stream, with a
sequence number that counts from 1 without gaps. See docs/protocol.md.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

PROTOCOL_VERSION: Final = 1
RELATIVE_ENDPOINTS: Final = 1
"""A bit of HELLO's sixth field, which earlier stubs do not send: ASSIGNED may name a socket in the run directory."""
LONGEST_SOCKET: Final = "worker-63.4294967295.sock"

CLIENT_ID_BYTES: Final = 20
"""16 random bytes and a big-endian u32 fork generation: a forked child is another client."""
SECRET_BYTES: Final = 16
IPC_PATH_BYTES_MAX: Final = 107
SUBMISSION_BYTES_MAX: Final = 1 << 20
"""The limit of one SUBMIT's payload. A larger record is sent in a submission of its own."""
SUBMISSION_RECORDS_MAX: Final = 65_535
TOPIC_BYTES_MAX: Final = 249
CLIENT_NAME_BYTES_MAX: Final = 64
KEY_BYTES_MAX: Final = 512
"""The limit of a key in LAST_RECORD."""
TRANSACTIONAL_ID_BYTES_MAX: Final = 160
"""A lane record in the segment has room for this much of a transactional id."""
OFFSET_METADATA_BYTES_MAX: Final = 32_767
"""The longest text that Kafka's requests hold. Brokers allow offset.metadata.max.bytes of it, 4,096 by default."""
STAGE_BIT: Final = 1 << 63
"""In SUBMIT's transaction, and in a journal entry's: the rest is the number of a stage, not of a transaction."""
STAGE_OWNER_BYTES_MAX: Final = 64
STAGE_TOKEN_BYTES_MAX: Final = 64
GROUP_BYTES_MAX: Final = 768
"""The limit of a group's id, member and instance together, which are in the head of TXN_OFFSETS."""
TCP_PREFIX: Final = "tcp://"
"""Begins an address in the place of a run directory."""
SUBMIT_HEAD_BYTES_MAX: Final = 1 << 10
"""More than a SUBMIT needs in addition to its payload: frame 0 (a topic, ten integers) and the headers of both
frames.
"""


class Kind(IntEnum):
    """Frame 0 is ``[kind, field, ...]``; the comment at each kind gives the order of its fields."""

    # Control endpoint ({run_dir}/control.sock).
    # stub: version, client_id, name, pid, token|nil[, flags[, {"bootstrap.servers": str, "acks": str}[, transactional
    # id]]]
    HELLO = 1
    ASSIGNED = 2  # daemon: worker_endpoint, worker_epoch, ticket
    # daemon: code (str), text, stream|nil[, why no broker answers]  (either endpoint; a stream: only that is refused)
    REFUSED = 3
    # stub: [topic, ...]|nil[, max_wait_ms[, as HELLO's last|nil[, bool]]]; with the time it waits for these topics; the
    # bool: whether it takes for what a topic's records wait
    TOPICS = 4
    # daemon: [[topic, error_code, [[partition, leader, [isr...][, [replicas...], [offline...]]], ...]], ...]
    TOPICS_REPLY = 5
    ORDER = 6  # command line: "pause"|"resume"|"drain", [topic, ...]
    # daemon: {"topics": {name: since_ms, ...}, "drained_since_ms": ms|nil}, [sentence of a worker that is late, ...]
    ORDER_REPLY = 7
    EXPLAIN = 8  # command line: a topic, a partition, a client, or "" for all that waits
    EXPLAIN_REPLY = 9  # daemon: {...}, for people: its keys may change

    # Worker endpoint ({run_dir}/worker-N.EPOCH.sock).
    ATTACH = 10  # stub: version, client_id, name, pid, worker_epoch, ticket, secret|nil
    # daemon: worker_epoch, secret, known, credit_bytes, limits{...}, [[stream, topic, position, held], ...]
    WELCOME = 11
    # stub: worker_epoch, stream, seq, topic, base_timestamp_ms, format, flags, count[, outcomes_up_to[, transaction]]
    # + payload
    SUBMIT = 12
    ACCEPTED = 13  # daemon: credit_bytes, [[stream, up_to_seq], ...]
    RESEND = 14  # daemon: stream, from_seq
    HELLO_AGAIN = 15  # daemon: worker_epoch
    HOLD = 16  # daemon: stream, from_seq, reason
    RESUME = 17  # daemon: stream, from_seq
    # daemon: first_number, last_number[, credit_bytes, [[stream, up_to_seq], ...]]  + outcome entries (see Outcome)
    OUTCOMES = 18
    ACK = 19  # stub: outcomes_up_to
    FLUSH = 20  # stub: stream, up_to_seq
    BYE = 21  # stub: cancel
    # 22 is reserved (CREDIT, never sent): credit comes with WELCOME, ACCEPTED and OUTCOMES.
    DRAINING = (
        23  # daemon: text[, [[stream, position], ...]]  (its last word: nothing after these was accepted)
    )
    PING = 24
    PONG = 25
    # stub: stream, last_seq  (all is acknowledged; only to a worker with "streams" in WELCOME's limits)
    END_STREAM = 26
    # stub: transactional_id, timeout_ms, resumes: whether the client has this id at the daemon already. These and TXN
    # only with a worker that has "transactions" in WELCOME's limits
    TXN_INIT = 27
    TXN_END = 28  # stub: transaction, commits, [[stream, last_seq], ...] of all its submissions
    # stub: transaction, request, group, generation, member, instance|nil  + msgpack: [[topic, partition, offset,
    # leader_epoch, metadata|nil], ...]
    TXN_OFFSETS = 29
    # daemon: what (see TxnPart), number, code, effect (see TxnEffect), text[, of INCLUDE [rows, bytes]; of the END of a
    # commit that has included stages [[topic, partition, first offset, last offset, rows], ...], or nil if not known]
    TXN = 30
    # stub: stage, number, owner, transactional_id (that of HELLO). The stage is the client's own number of it, from 1
    # up. These and STAGE only with a worker that has "stages" in WELCOME's limits
    STAGE_OPEN = 31
    STAGE_SEAL = 32  # stub: stage, records + msgpack: [[stream, last_seq], ...] of all its submissions
    STAGE_DROP = 33  # stub: stage, open or sealed, of this client
    STAGES_DROP = 34  # stub: request, transactional_id, up_to|nil + msgpack: [token, ...]
    TXN_INCLUDE = 35  # stub: transaction, request + msgpack: [token, ...]
    # daemon: what (see StagePart), number, code, effect (see TxnEffect), text[, of SEAL the token, of DROPPED how many]
    STAGE = 36
    # Control endpoint again. stub: topic, key, name and token as in HELLO, max_wait_ms, whether to make the topic
    LAST_RECORD = 37
    # daemon: the key's partition, [offset, timestamp_ms, value, [[name, value|nil], ...]]|nil
    LAST_RECORD_REPLY = 38


class TxnPart(IntEnum):
    """What a TXN is about. Its number is the transaction's; for INIT it is 0, for OFFSETS the request's."""

    INIT = 1
    """The answer to TXN_INIT: the transactional id is this client's."""
    END = 2
    """The answer to TXN_END. Code 0: committed or aborted, as asked."""
    OFFSETS = 3
    """The answer to TXN_OFFSETS."""
    STATE = 4
    """Unasked: the transaction must be aborted, or the transactional id is lost, and why."""
    INCLUDE = 5
    """The answer to TXN_INCLUDE."""


class StagePart(IntEnum):
    """What a STAGE is about. Its number is the client's own of the stage; for DROPPED it is the request's."""

    SEAL = 1
    """The answer to STAGE_SEAL."""
    DROP = 2
    """The answer to STAGE_DROP."""
    DROPPED = 3
    """The answer to STAGES_DROP."""
    STATE = 4
    """Unasked: the stage is lost, and why. STAGE_OPEN has no other answer."""


class TxnEffect(IntEnum):
    """What a TXN with a code leaves possible."""

    NONE = 0
    RETRIABLE = 1
    """The same call again may succeed."""
    ABORTABLE = 2
    """The transaction must be aborted; then the next one may begin."""
    FATAL = 3
    """Nothing more with this producer."""


class Format(IntEnum):
    MSGPACK = 1
    """Payload = ``count`` msgpack arrays ``[key, value, headers?, partition?, timestamp_ms?]``, end to end.

    key and value: bin or nil; headers: nil or array of [str, bin|nil]; partition: nil or int; timestamp: nil
    or int >= 0 (nil = the submission's base timestamp).
    """
    ARROW = 2
    """Payload = Arrow column buffers end to end, little-endian, joined without touching a row:

      0  u32 magic 0x3153434B ("KCS1")   4 u32 rows (= SUBMIT's count)   8 u32 columns (1..7)   12 u32 zero
     16  per column 32 bytes:
           0 u8 kind (COLUMN_*)   1 u8 width   2 u16 zero   4 u32 length (elements)
           8 u32 validity position (0 = no nulls)   12 u32 validity bit offset of the first element
          16 u32 offsets position   20 u32 data position   24 u32 data bytes   28 u32 zero
     then the buffers; positions count from the payload's start, 8-aligned.

    Kinds:

    - 1 value, 2 key: binary; a missing column is all null
    - 3 partition: width 4, i32; null means none
    - 4 timestamp: width 8, i64 milliseconds; null means none
    - 5 headers: a list of offsets into the elements of 6 and 7; null means no headers
    - 6 header keys: utf8, never null
    - 7 header values: binary

    ``width`` is the offsets' width for 1, 2, 5, 6, 7: 4 (binary, utf8, list) or 8 (large_*); there are length + 1
    offsets. Offsets are Arrow's own and need not start at 0: the data (for 5: the elements of 6 and 7) begins where
    the first offset points.

    Sent only to a worker that says it reads it: bit ``1 << Format.ARROW`` of ``limits["formats"]`` in WELCOME.
    """


COLUMNS_MAGIC: Final = 0x3153434B
COLUMN_VALUE: Final = 1
COLUMN_KEY: Final = 2
COLUMN_PARTITION: Final = 3
COLUMN_TIMESTAMP: Final = 4
COLUMN_HEADERS: Final = 5
COLUMN_HEADER_KEYS: Final = 6
COLUMN_HEADER_VALUES: Final = 7


class SubmitFlag(IntEnum):
    WANT_INDEXES = 1
    """Outcomes must give the record indexes that they cover, as futures or callbacks wait for each record."""
    FLUSH = 2
    """Has the effect of a FLUSH of this stream up to this seq, sent after it."""
    # Bits 2 to 4: the number of one of PARTITIONERS, shifted by PARTITIONER_SHIFT.
    FIXED_PARTITIONS = 0x20
    """A record for a partition that the topic lacks fails as soon as the topic is known. Otherwise it waits up to
    max.block.ms for the partition.
    """


PARTITIONERS: Final = (
    "random",
    "consistent",
    "consistent_random",
    "murmur2",
    "murmur2_random",
    "fnv1a",
    "fnv1a_random",
)
"""Partitioners that a client may name for its records, numbered from 1; 0 is the daemon's own. They are librdkafka's.

A record without a partition goes by the hash of its key, modulo the topic's partitions; ``consistent`` is CRC-32. A
null key counts as the empty one, or with "random" in the name it goes by chance, a batch to a partition; by
``consistent_random`` an empty key does so too. ``murmur2_random`` is also that of Java's producer and of kafka-python.

Sent only to a worker that says it reads it: bit ``1 << number`` of ``limits["partitioners"]`` in WELCOME.
"""
PARTITIONER_SHIFT: Final = 2
PARTITIONER_MASK: Final = 7
PARTITIONERS_SINCE: Final = "0.1.0"
"""The first version whose daemon knows them."""


class OutcomeKind(IntEnum):
    DELIVERED = 1
    FAILED = 2


class Shape(IntEnum):
    """How an outcome names the records of the submission that it covers."""

    RANGE = 0  # first_index .. first_index + count - 1
    BITMAP = 1  # bit i of the bytes that follow = record first_index + i
    LIST = 2  # count little-endian u16 record indexes
    COUNT = 3  # only the number; first_index still identifies repeats


class Persistence(IntEnum):
    """Whether the records are in the log, as in librdkafka's message status."""

    NOT_PERSISTED = 0
    POSSIBLY_PERSISTED = 1
    PERSISTED = 2

    @property
    def words(self) -> str:
        """The name as words: "possibly persisted"."""
        return self.name.lower().replace("_", " ")


class LocalCode(IntEnum):
    """Our own outcome codes, besides Kafka's (below 1000). The journal stores them as failure words, too."""

    MALFORMED_RECORD = 0xFF00
    RECORD_TOO_LARGE = 0xFF01
    INVALID_PARTITION = 0xFF02
    INVALID_TIMESTAMP = 0xFF03
    EXPIRED = 0xFF04  # delivery.timeout.ms
    METADATA_TIMEOUT = 0xFF05  # max.block.ms passed and the topic is still unknown
    ABORTED = 0xFF06  # forced close of the daemon
    CANCELLED = 0xFF07  # the caller closed with cancel
    TOPIC_DELETED = 0xFF08
    NO_PARTITIONS = 0xFF09
    POISON_SUBMISSION = 0xFF0A
    DISCONNECTED = 0xFF0B
    TOPIC_UNAUTHORIZED = 0xFF0C
    INVALID_TOPIC = 0xFF0D
    ENCODE_MISMATCH = 0xFF0E
    QUOTA_EXCEEDED = 0xFF0F  # over the rate of [clients.NAME], with over.limit = discard
    UNAUTHENTICATED = 0xFF10  # it expired while the brokers refused the daemon's login
    NOT_ADMITTED = 0xFF11  # the daemon refused this client (the stub's own, never sent)
    TOPIC_REFUSED = 0xFF12  # the daemon gave this client no place for the topic (the stub's own, never sent)
    TXN_ABORTED = 0xFF13  # its transaction was aborted before the record was sent
    TXN_WRONG_STATE = 0xFF14  # a call that the state of the transaction does not allow
    TXN_TOO_MANY = 0xFF15  # the worker has as many transactional ids as it may have
    STAGE_UNKNOWN = 0xFF16  # a token is unknown, used, dropped or expired: the text says which
    STAGE_FULL = 0xFF17  # staged records have their share of the pool
    STAGE_TOO_MANY = 0xFF18  # the worker has as many stages as it may have


WORD_UNPARTITIONED: Final = 0xFFFF
WORD_DONE: Final = 0xFFFE
WORD_FAILED_MIN: Final = 0xFF00
"""A journal word from here to 0xFFFD is the LocalCode of a failure; a lower one is a partition."""

# One outcome, little-endian, a multiple of 8 bytes; the same bytes are in the client's outcome ring in the segment:
#
#   0  u32 length          4 u8 kind  5 u8 persistence  6 u8 shape  7 u8 zero
#   8  u64 number         16 u32 stream                20 i32 code (0, Kafka's, or a LocalCode)
#  24  u64 seq            32 u32 partition (0xFFFFFFFF none)  36 u32 first_index
#  40  u32 count          44 u16 index_bytes           46 u16 text_bytes
#  48  i64 base_offset (-1 unknown)                    56 i64 append_time_ms (-1: the record's own)
#  64  index bytes (bitmap or u16 list), then text (UTF-8), then zeros up to length
OUTCOME: Final = struct.Struct("<IBBBBQIiQIIIHHqq")
OUTCOME_HEADER_BYTES: Final = OUTCOME.size
NO_PARTITION: Final = 0xFFFFFFFF
assert OUTCOME_HEADER_BYTES == 64


class Outcome(NamedTuple):
    kind: int
    persistence: int
    shape: int
    number: int
    stream: int
    code: int
    seq: int
    partition: int
    first_index: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which has no use here
    base_offset: int
    append_time_ms: int
    indexes: bytes
    text: str


def pack_outcome(outcome: Outcome) -> bytes:
    """Pack one outcome. The compiled ``unpack_outcomes`` of ``client_stub.native.hot`` is its inverse."""
    text = outcome.text.encode()
    length = -(-(OUTCOME_HEADER_BYTES + len(outcome.indexes) + len(text)) // 8) * 8
    header = OUTCOME.pack(
        length,
        outcome.kind,
        outcome.persistence,
        outcome.shape,
        0,
        outcome.number,
        outcome.stream,
        outcome.code,
        outcome.seq,
        outcome.partition,
        outcome.first_index,
        outcome.count,
        len(outcome.indexes),
        len(text),
        outcome.base_offset,
        outcome.append_time_ms,
    )
    return (header + outcome.indexes + text).ljust(length, b"\0")
