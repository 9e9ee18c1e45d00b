"""Types of the compiled part; ``_native.pyx`` says how it works."""

import queue
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from client_stub.contract.wire import Outcome
from client_stub.errors import DeliveryFailed, SidecarError
from client_stub.native.hot import OnDelivery
from client_stub.outbox.capacity_wait import Full
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import Submission
from client_stub.outbox.transaction import Transaction
from client_stub.record_metadata import RecordMetadata
from client_stub.records.packer import Headers
from client_stub.zmtp.frames import Buffer

_Kind = TypeVar("_Kind", bound=type)

class RecordPacker:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def pack(self, record: tuple[Any, ...]) -> None: ...
    def view(self) -> memoryview: ...
    def reset(self) -> None: ...

class RecordsOutcome:
    """Immutable; any thread may use it. Offsets count along the bits of ``mask``; -1 when the broker gave none.
    ``timestamps`` has the records' own timestamps in ms, and ``timestamp_ms`` is that of all others.
    """

    mask: int
    topic: str
    partition: int
    base_offset: int
    timestamp_ms: int
    timestamps: dict[int, int] | None
    error: DeliveryFailed | None
    def __init__(
        self,
        mask: int,
        topic: str,
        partition: int,
        base_offset: int,
        timestamp_ms: int,
        timestamps: dict[int, int] | None,
        error: DeliveryFailed | None,
    ) -> None: ...
    def rank(self, index: int) -> int: ...
    def metadata(self, index: int, rank: int) -> RecordMetadata: ...

class PartCore:
    submission: Submission
    """Set when the records are appended; no other thread sees the part before."""
    first: int
    count: int

class SubmissionCore:
    outbox: OutboxCore
    is_closed: bool
    """Whether it takes no more records."""
    payload_bytes: int
    """Known once it is closed."""
    parts: list[Any]
    """Parts of send_many() and send_arrow() calls. flush() reports their errors if the caller does not ask."""
    packer: RecordPacker | None
    free_bytes: int
    """Payload bytes left, counted with an upper bound per record. It also keeps the record count below its limit."""
    count: int
    callback: OnDelivery | None
    """The callback of every record while all have the same one or none."""
    callbacks: list[OnDelivery | None] | None
    """One callback per record, once they differ."""
    timestamps: dict[int, int] | None
    """Index → the record's own timestamp in ms, if given. Metadata repeats it under CreateTime."""
    partition_max: int
    """The highest partition that a record names, to explain why it waits."""
    outcomes: list[RecordsOutcome]
    transaction: Transaction | None
    """The one that its records belong to."""
    def find(self, index: int) -> tuple[DeliveryFailed | None, RecordMetadata | None] | None: ...
    def append(
        self, record: tuple[Any, ...], size: int, on_delivery: OnDelivery | None, timestamp_ms: int | None
    ) -> int: ...
    def append_rows(
        self, rows: list[Any], start: int, on_delivery: OnDelivery | None, part: PartCore | None = None
    ) -> int: ...
    def append_plain(
        self, rows: list[Any], on_delivery: OnDelivery | None, part: PartCore | None = None
    ) -> int: ...

class OutboxCore:
    streams: dict[str, OpenStream]
    opened: list[Submission]
    """Submissions opened since the io thread last checked, oldest first."""
    pending: dict[Submission, None]
    """Submissions with undecided records, or with errors that are not noted yet, oldest first."""
    fatal: SidecarError | None
    transaction: Transaction | None
    """The open one. A submission of another one is not published."""
    is_transactional: bool
    """Whether nothing may be published outside of a transaction."""
    closed: bool
    forked: bool
    """Whether this is a forked child's copy, which has no io thread."""
    flush_requested: bool
    """Whether open submissions are to be sent, and the daemon is not to linger. The io thread resets it."""
    closed_bytes: int
    """Payload bytes of all closed submissions, in total."""
    @property
    def is_asleep(self) -> bool: ...
    def set_wake_fd(self, fd: int) -> None: ...
    def wake(self, *, always: bool = False) -> None: ...
    def expedite(self) -> None: ...
    def fall_asleep(self) -> None: ...
    def awake(self) -> None: ...
    def publish(self, stream: OpenStream, expected: Submission | None, made: Submission) -> bool: ...
    def close_open(self, stream: OpenStream, submission: Submission) -> None: ...
    def close_all_open(self) -> None: ...
    def forget_idle(self) -> None: ...

class OpenStream:
    topic: str
    outbox: Outbox
    """The outbox of this stream. A call that a fork interrupts still uses its parent's outbox, and gets an error."""
    open: Submission | None
    refusal: SidecarError | None
    """The error with which the daemon refused this topic for this client. Every further send raises it."""
    def __init__(self, topic: str, outbox: Outbox) -> None: ...

class Delivery:
    """The future of one record. Thread-safe."""

    @property
    def _submission(self) -> Submission: ...
    @property
    def _index(self) -> int: ...
    def __init__(self, submission: Submission, index: int) -> None: ...
    def done(self) -> bool:
        """True once the record was delivered or has failed."""
    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait at most ``timeout`` seconds for the record's position in the log.

        Raises the record's error (a SidecarError), TimeoutError after ``timeout`` (the record is still under way), and
        ForkedProducer in a forked child.
        """
    def exception(self, timeout: float | None = None) -> SidecarError | None:
        """Wait as ``result`` does. Returns the record's error, or None when it was delivered."""
    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call ``callback(delivery)`` once the record has its outcome, as concurrent.futures does.

        The callback runs in the producer's io thread and must not block; if the outcome is known already, it runs at
        once in this thread. Exceptions that it raises are logged. Adding a callback does not end linger. Raises
        ForkedProducer in a forked child.
        """
    def __reduce__(self) -> NoReturn: ...

class EngineCore:
    streams: dict[str, OpenStream]
    """The streams of this process by topic. One dict for the life of the engine, as its fronts keep it."""
    def stream_of(self, topic: str) -> OpenStream:
        """The stream of ``topic``, which has an io thread that sends its records. Raises as ``open_stream``."""
    def try_send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Delivery | Full:
        """Queue one record and return its Delivery, or FULL where that would have to wait. Raises as send()."""

class ProducerCore:
    _streams: dict[str, OpenStream] | None
    """The streams that send() looks up; None when serializers rule out its fast path."""
    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Queue one record and return its future. Waits only for room, when 8 MiB already wait for the daemon.

        - topic: str of 1 to 249 bytes
        - value, key: bytes, bytearray, memoryview or None (Kafka's null), or what the serializers take
        - headers: pairs of (str, bytes or None), or a mapping
        - partition: int; None: the daemon's partitioner decides
        - timestamp_ms: int; None: now
        - on_delivery(error, metadata): called in the io thread; error is None on success

        Raises TypeError or ValueError for a wrong argument, RecordTooLarge, SerializationFailed, ProducerClosed,
        DaemonRefused, TopicLimit, and after waiting for room BufferExhausted or DaemonUnreachable. A call that raises
        has queued nothing. Thread-safe.
        """

class MessageCore:
    _topic: str
    _value: bytes | None
    _key: bytes | None
    _headers: list[tuple[str, Any]] | None
    _partition: int
    _error: Any
    _latency_s: float
    def __init__(
        self, twin: TwinCore, report: Any, topic: str, value: Any, key: Any, headers: Any, partition: int
    ) -> None: ...
    @property
    def _metadata(self) -> Any:
        """The position in the log; None: it was not delivered, or not yet."""
    def __call__(self, error: Exception | None, metadata: RecordMetadata | None) -> None: ...

class TwinCore:
    _streams: dict[str, OpenStream]
    _message_kind: type[Any]
    _news: queue.SimpleQueue[None]
    """Has an item when messages have arrived: for a poll() that waits."""
    _event_count: int
    _on_delivery: Callable[..., object] | None
    _only_errors: bool
    _is_closed: bool
    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: Callable[..., object] | None = None,
        on_delivery: Callable[..., object] | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Queue one record. Raises BufferError when there is no room, KafkaException for a record that is refused, and
        TypeError for a key or value that is neither text nor bytes. The first call waits up to 5 s for the daemon.
        """
    def poll(self, timeout: float | None = -1) -> int:
        """Run the callbacks of decided records. Returns how many, or how many records without a callback were decided.

        Waits at most ``timeout`` seconds for the first outcome (None or negative: until there is one, also of a record
        that another thread has yet to produce). Exceptions of callbacks are raised here.
        """
    def _forget_arrived(self) -> None: ...
    def _arrived_count(self) -> int: ...
    def _serve(self, raised: list[Exception] | None = None) -> int: ...

def plain_pairs(records: list[Any]) -> list[int] | None: ...
def run_callbacks(
    submission: SubmissionCore, outcome: RecordsOutcome, news: int, failed: Callable[[], object]
) -> None: ...
def mask_of_indexes(indexes: bytes) -> int: ...
def write_wake(fd: int) -> None: ...
def clear_wakes(fd: int) -> None: ...
def receive(fd: int, buffer: memoryview | bytearray) -> int: ...
def whole_message(
    view: memoryview, start: int, end: int, bytes_max: int
) -> tuple[list[memoryview], int] | None: ...
def encode(frames: Sequence[Buffer]) -> list[Buffer]: ...
def unpack_outcomes(buffer: Buffer) -> list[Outcome]: ...
def refuses_await(kind: _Kind) -> _Kind: ...
