"""MemoryDaemon: a daemon and its brokers in the memory of a fake, in the place of the io thread and its sockets."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from zlib import crc32

import msgpack

from client_stub.contract.wire import LocalCode, Outcome, OutcomeKind, Persistence, Shape
from client_stub.errors import DeliveryFailed, SidecarError, error_for
from client_stub.io.last_record import CommittedRecord, LastCommitted
from client_stub.system.originals import get_ident, monotonic

if TYPE_CHECKING:
    from client_stub.outbox.outbox import Outbox
    from client_stub.outbox.submission import Submission

HELD: Final = "hold() keeps outcomes"


class FakeRecord(NamedTuple):
    """One record as it was sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    partition: int | None
    timestamp_ms: int | None


FailWith = Callable[[FakeRecord], SidecarError | None]


class MemoryDaemon:
    """Works in the threads of the callers: each call that queues records takes them, decides them and runs their
    callbacks. Only one thread decides at a time; a callback or another thread leaves its records to that thread.

    For the engine it is its IoThread, which never sleeps.
    """

    has_begun = True
    is_refused = False

    def __init__(self, outbox: Outbox) -> None:
        self.records: list[FakeRecord] = []
        """All records that were sent, in order."""
        self.committed: list[FakeRecord] = []
        """Those that a reader with read_committed sees, in the order in which it sees them."""
        self.committed_offsets: dict[str, dict[tuple[str, int], int]] = {}
        """Group → partition → the offset that a transaction has committed."""
        self.fail_with: FailWith | None = None
        self.partitions = 1
        self.is_held = False
        self.cancels = False
        """Whether a close() does not wait: held records fail."""
        self.has_ended = False
        self._outbox = outbox
        self._waiting: deque[tuple[Submission, list[FakeRecord]]] = deque()
        """Submissions without an outcome, in the order of sending."""
        self.staged_tokens: list[bytes] = []
        """The tokens of the stages that this producer has sealed."""
        self.followers: list[MemoryDaemon] = []
        """Those of its staging clients, which have the same controls."""
        self._offsets: dict[tuple[str, int], int] = {}
        self._next_partition = 0
        """Of a record without a key."""
        self._lock = threading.RLock()

    # --- the controls of a fake ---------------------------------------------------------------------------

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        self.work()
        for follower in self.followers:
            follower.work()

    def last_committed(self, topic: str, key: bytes) -> LastCommitted:
        """As a compacted topic would have it. Its offsets count the topic's records."""
        of_topic = [each for each in self.committed if each.topic == topic]
        found = [(offset, each) for offset, each in enumerate(of_topic) if each.key == key]
        partition = crc32(key) % self.partitions
        offset, record = found[-1] if found else (-1, None)
        if record is None or record.value is None:
            return LastCommitted(partition, None)
        headers = tuple(record.headers or ())
        return LastCommitted(
            partition, CommittedRecord(offset, record.timestamp_ms or 0, record.value, headers)
        )

    # --- the work of an io thread ---------------------------------------------------------------------------

    def work(self) -> None:
        """Take what callers have queued, and decide it unless outcomes are held."""
        self._take()
        while (taken := self._begin_to_decide()) is not None:
            try:
                self._decide(*taken)
            finally:
                self._outbox.waiters.io_thread_id = 0

    def _take(self) -> None:
        outbox = self._outbox
        with self._lock:
            sealed, _ = outbox.gather(lambda _: True)
            for submission in sealed:
                records = list(_records(submission))
                self.records += records
                self._waiting.append((submission, records))
                submission.was_accepted = True
                if self.is_held:
                    submission.why_slow = HELD
            outbox.settle(sealed, (), is_news=False)

    def _begin_to_decide(self) -> tuple[Submission, list[FakeRecord]] | None:
        waiters = self._outbox.waiters
        with self._lock:
            if self.is_held or waiters.io_thread_id or not self._waiting:
                return None
            waiters.io_thread_id = get_ident()  # its callbacks may not wait
            return self._waiting.popleft()

    def _decide(self, submission: Submission, records: list[FakeRecord]) -> None:
        for index, record in enumerate(records):
            error = self._error_of(record)
            if error is None:
                self._written(submission, record)
            # ``apply`` takes any error: only its type says that it is one of the daemon's.
            submission.apply(self._outcome(index, record, error), cast("DeliveryFailed | None", error))
        self._finish([submission])

    def _written(self, submission: Submission, record: FakeRecord) -> None:
        self.committed.append(record)

    def _outcome(self, index: int, record: FakeRecord, error: SidecarError | None) -> Outcome:
        partition, offset = (-1, -1) if error is not None else self._position_of(record)
        return Outcome(
            kind=OutcomeKind.DELIVERED if error is None else OutcomeKind.FAILED,
            persistence=0,
            shape=Shape.RANGE,
            number=0,
            stream=0,
            code=0,
            seq=0,
            partition=partition,
            first_index=index,
            count=1,
            base_offset=offset,
            append_time_ms=-1,
            indexes=b"",
            text="",
        )

    def _position_of(self, record: FakeRecord) -> tuple[int, int]:
        """The partition and offset at which a record is written."""
        partition = self._partition_of(record)
        offset = self._offsets.get((record.topic, partition), 0)
        self._offsets[record.topic, partition] = offset + 1
        return partition, offset

    def _partition_of(self, record: FakeRecord) -> int:
        if record.partition is not None:
            return record.partition
        if record.key is not None:
            return crc32(record.key) % self.partitions
        partition = self._next_partition % self.partitions
        self._next_partition += 1
        return partition

    def _error_of(self, record: FakeRecord) -> SidecarError | None:
        try:
            return None if self.fail_with is None else self.fail_with(record)
        except SidecarError as error:
            return error
        except Exception as error:  # otherwise the record would never have an outcome
            return SidecarError(f"fail_with failed: {error!r}.")

    def _finish(self, submissions: list[Submission]) -> None:
        self._outbox.settle((), submissions, is_news=True)
        if self._outbox.failures.has_lines:
            self._outbox.failures.tick(monotonic() * 1e3)

    # --- what else the engine asks of its IoThread ------------------------------------------------------------

    def request_close(self, *, cancel: bool) -> None:
        """End; with ``cancel``, fail the records that have no outcome."""
        if cancel:
            self._take()
            cancelled = [submission for submission, _ in self._waiting]
            self._waiting.clear()
            for submission in cancelled:
                text = "The producer was closed before the record was delivered."
                submission.fail(error_for(LocalCode.CANCELLED, text, Persistence.NOT_PERSISTED))
            self._finish(cancelled)
        self._outbox.failures.close()
        self.has_ended = True

    def join(self, timeout: float | None) -> None:
        """It has no thread."""

    def abandon(self) -> None:
        self.has_ended = True

    def log_left(self, occasion: str) -> None:
        """Only records that are held can be left, and that is what the test wants."""


def _records(submission: Submission) -> Iterator[FakeRecord]:
    """The records of a sealed submission, as their senders gave them."""
    unpacker: Any = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(submission.payload)
    for key, value, *others in unpacker:
        headers, partition, timestamp_ms = others or (None, None, None)
        pairs = None if headers is None else [(name, content) for name, content in headers]
        yield FakeRecord(submission.topic, key, value, pairs, partition, timestamp_ms)
