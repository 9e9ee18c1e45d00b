"""Outbox: callers put records into it, and the io thread takes submissions out.

It has no lock. Callers change shared state in atomic steps (see ``_native.pyx``). So no other thread, signal handler or
exception finds a step half done, and an interrupted caller blocks no other: a signal handler may send, flush and fork.

The io thread takes everything that was queued while it was busy. Batches therefore grow with the load, and an idle
producer adds no delay. The buffer is bounded: when ``buffer_bytes`` are not yet accepted by the daemon, ``send()``
waits up to max.block.ms.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sized
from typing import Any, Final

from client_stub.contract.wire import SUBMISSION_BYTES_MAX
from client_stub.errors import (
    FORKED_TEXT,
    ForkedProducer,
    ProducerClosed,
    SidecarError,
)
from client_stub.native.hot import Delivery, OnDelivery, OpenStream, OutboxCore
from client_stub.outbox.capacity_wait import FULL, CapacityWait, Full
from client_stub.outbox.failures import Failures, OnError
from client_stub.outbox.packers import Packers
from client_stub.outbox.submission import WANT_INDEXES, BulkPart, Submission
from client_stub.outbox.waiters import Waiters
from client_stub.outbox.waker import Waker
from client_stub.records.packer import packed_bound, packed_size
from client_stub.records.size_limits import SizeLimits
from client_stub.system.originals import monotonic

BUFFER_BYTES: Final = 8 << 20
STAY_OPEN_MS_MAX: Final = 1_000.0
CONNECT_TIMEOUT_MS: Final = 5_000.0
"""How long the first send of a process waits for a daemon: long enough for one that is just starting."""
COPIED_BYTES_MAX: Final = 4096
"""A payload up to this size is copied out of its packer, so that many small submissions do not hold many large
buffers.
"""
STREAMS_KEPT_MAX: Final = 512
"""Beyond this, topics without a record under way are forgotten: a producer may meet any number in its life."""


class Outbox(OutboxCore):
    """State shared by callers and the io thread. Every public method is thread-safe unless its docstring says
    otherwise.
    """

    _streams_max = STREAMS_KEPT_MAX
    """At how many streams it looks for idle ones again."""

    partitioning = 0
    """Bits of SUBMIT's flags that say how the daemon partitions these records, for a twin of another client."""

    _left_open_ms = 0.0
    """Since when the io thread has left submissions open (monotonic clock)."""

    def __init__(
        self, *, max_block_ms: float, connect_timeout_ms: float, path: str, on_error: OnError | None = None
    ) -> None:
        super().__init__()
        self.max_block_ms = max_block_ms
        self.connect_timeout_ms = connect_timeout_ms
        self.path = path
        self.buffer_bytes = BUFFER_BYTES
        self.size_limits = SizeLimits(lambda topic: self.wait_for_capacity(self.open_stream(topic)))
        self.submission_bytes = SUBMISSION_BYTES_MAX
        """The bytes at which a new submission is begun, from the daemon's last WELCOME. None is opened before the
        first.
        """
        self.columns_readable = False
        self.attached_once = False
        self.waker: Waker | None = None
        self.io: dict[str, Any] = {}
        """The only io thread, once it exists. In a dict, because its setdefault() is atomic."""
        self.waiters = Waiters(self)
        self.capacity_wait = CapacityWait(self.waiters, path, lambda: self.buffered_bytes)
        self.failures = Failures(on_error)
        self.accepted_count = 0
        """Records that the daemon has accepted."""
        self.completed_count = 0
        """Records of submissions whose outcomes are complete."""
        self.connection_count = 0
        """How many times a worker has accepted this producer."""
        self._released_bytes = 0
        self._gathering: list[Submission] = []
        """Submissions that the io thread knows and has left open, oldest first."""
        self._packers = Packers()

    # --- callers: records -----------------------------------------------------------------------------

    def add(
        self,
        stream: OpenStream,
        record: tuple[Any, ...],
        size: int,
        on_delivery: OnDelivery | None,
        timestamp_ms: int | None,
        waits: bool = True,
    ) -> Delivery | Full:
        """Put a checked record of at most ``size`` bytes into the stream's open submission.

        Without room it waits or, unless ``waits``, returns FULL. Raises BufferExhausted and DaemonUnreachable after
        that wait, ProducerClosed, or the error with which the daemon refused the topic.
        """
        if size > self.size_limits.payload_bytes_max:
            size = packed_size(record)
        while True:
            submission = stream.open
            if submission is None or submission.free_bytes < size:
                if not self.roll(stream, size, waits=waits):
                    return FULL
                continue
            index = submission.append(record, size, on_delivery, timestamp_ms)
            if index >= 0:
                return Delivery(submission, index)

    def add_plain(
        self, stream: OpenStream, rows: list[Any], on_delivery: OnDelivery | None
    ) -> BulkPart | None:
        """Append all records of a call unchecked to the open submission. None if that is not possible; nothing is done
        then.
        """
        submission = stream.open
        if submission is None:
            return None
        part = BulkPart()
        return part if submission.append_plain(rows, on_delivery, part) > 0 else None

    def add_rows(
        self,
        stream: OpenStream,
        rows: list[Any],
        start: int,
        on_delivery: OnDelivery | None,
        *,
        waits: bool = True,
    ) -> BulkPart | Full:
        """Append checked records from ``rows[start]`` on to one submission, as many as it has room for.

        The submission may already hold records of other calls, so many small calls share a submission. Waits and
        raises as ``add``; after an error or FULL nothing of this call was queued.
        """
        part = BulkPart()
        while True:
            submission = stream.open
            added = submission.append_rows(rows, start, on_delivery, part) if submission is not None else 0
            if submission is not None and added > 0:
                return part
            if submission is not None and added < 0:
                self.close_open(stream, submission)  # it has records with other callbacks
            size = packed_bound(rows[start])
            # Never more room than one message has: other records would fill it.
            fits = size <= self.size_limits.payload_bytes_max
            if not self.roll(stream, size if fits else packed_size(rows[start]), waits=waits):
                return FULL

    def add_block(self, stream: OpenStream, payload: Sized, count: int, format_: int) -> BulkPart:
        """Queue a submission with a finished payload, after the caller has waited for room. Raises ProducerClosed."""
        submission = Submission(self.waiters, stream.topic, None, 0, time.time_ns() // 1_000_000)
        submission.count = count
        submission.format = format_
        submission.seal(payload)
        part = BulkPart()
        part.count = count
        part.submission = submission
        submission.parts.append(part)
        while not self.publish(stream, stream.open, submission):
            self.check_usable(stream)
            submission.transaction = self.transaction  # another thread may have begun the next one meanwhile
        return part

    def roll(self, stream: OpenStream, size: int, *, waits: bool = True) -> bool:
        """Open a submission with room for ``size`` bytes, unless another caller does so first. It first waits for room
        in the buffer, and raises as ``wait_for_capacity``; unless ``waits``, it returns False instead of waiting.
        """
        if not (
            self.attached_once
            and not (self.closed or self.forked)
            and self.fatal is None
            and stream.refusal is None
            and self.closed_bytes - self._released_bytes < self.buffer_bytes
        ):
            if waits:
                self.wait_for_capacity(stream)
            elif not self.takes_now(stream):
                return False
        opened = stream.open
        if opened is not None and opened.free_bytes >= size:
            return True
        packer = self._packers.take()
        # A larger record is sent in a submission of its own.
        made = Submission(
            self.waiters, stream.topic, packer, max(self.submission_bytes, size), time.time_ns() // 1_000_000
        )
        made.flags = WANT_INDEXES | self.partitioning
        if not self.publish(stream, opened, made):
            self._packers.put_back(packer)
        return True

    # --- callers: waiting -----------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Bytes of closed submissions that the daemon has not accepted yet."""
        return self.closed_bytes - self._released_bytes

    @property
    def has_capacity(self) -> bool:
        return self.closed_bytes - self._released_bytes < self.buffer_bytes

    def wait_for_capacity(self, stream: OpenStream) -> None:
        """Wait for room. Raises BufferExhausted, DaemonUnreachable, ProducerClosed, or the error that refused the
        topic.
        """

        def is_attached() -> bool:
            self.check_usable(stream)
            return self.attached_once

        def is_free() -> bool:
            self.check_usable(stream)
            return self.has_capacity

        if not (is_attached() and is_free()):
            self.capacity_wait.run(
                stream.topic,
                is_attached,
                is_free,
                max_block_ms=self.max_block_ms,
                connect_timeout_ms=self.connect_timeout_ms,
            )

    def block_at_most(self, max_block_ms: float) -> None:
        """Let a send without room wait so long from now on. A forked child begins with the producer's own setting."""
        self.max_block_ms = max_block_ms

    def takes_now(self, stream: OpenStream) -> bool:
        """Whether a new submission finds room without a wait. Raises the error of a call that would never find it."""
        self.check_usable(stream)
        return self.attached_once and self.has_capacity

    def knows_limits(self, stream: OpenStream) -> bool:
        """Whether a check of a size would not wait for the daemon's first WELCOME. Raises as ``takes_now``."""
        return self.size_limits.request_bytes_max is not None or self.takes_now(stream)

    def may_take(self, topic: str) -> bool:
        """False: a record of ``topic`` would have to wait now. True: a send finds room or raises its error."""
        stream = self.streams.get(topic)
        if stream is None or self.closed or self.fatal is not None or stream.refusal is not None:
            return True
        return self.attached_once and (self.has_capacity or stream.open is not None)

    def check_usable(self, stream: OpenStream) -> None:
        """Raises the error of a call that can never add a record to ``stream``."""
        if self.forked:
            raise ForkedProducer(FORKED_TEXT)
        if self.closed:
            raise ProducerClosed("Cannot perform operation after producer has been closed.")
        if self.fatal is not None:
            raise self.fatal
        if stream.refusal is not None:
            raise stream.refusal

    # --- callers: the rest ----------------------------------------------------------------------------

    def refused(self, error: SidecarError) -> None:
        """Note that a call has ended with ``error``, and not queued its record."""

    def open_stream(self, topic: str) -> OpenStream:
        # Made first: a fork by a signal handler between the look-up of ``streams`` and its change would leave a stream
        # of the parent in the child.
        made = OpenStream(topic, self)
        return self.streams.setdefault(topic, made)

    def request_flush(self) -> list[Submission]:
        """As ``expedite``. Returns all submissions that are undecided now, oldest first."""
        self.expedite()
        return list(self.pending)

    def close(self) -> bool:
        """Stop taking records. Returns False if the outbox was closed already."""
        was_closed, self.closed = self.closed, True
        self.close_all_open()  # otherwise a later send() would find room in an open submission
        self.waiters.notify()
        return not was_closed

    # --- io thread ------------------------------------------------------------------------------------

    def set_waker(self, waker: Waker | None) -> None:
        """Set the waker of the io thread; None when the thread ends and need not be woken any more."""
        self.set_wake_fd(-1 if waker is None else waker.fd)
        self.waker = waker

    def end(self) -> None:
        """Close all submissions: the io thread gathers once more and then ends, and nothing may be added after that."""
        self.close_all_open()

    @property
    def has_unsent(self) -> bool:
        """Whether something may be ready to be sent. ``sleep_ms`` finds anything that this misses."""
        return bool(self.opened or self._gathering or self.flush_requested)

    def gather(self, wants: Callable[[str], bool]) -> tuple[deque[Submission], bool]:
        """(submissions, flush): the submissions that are ready to be sent, and whether a flush was requested since the
        last call.

        An open submission whose topic cannot be sent now (``wants(topic)`` is false) stays open and fills up, but not
        for long: its records share one base timestamp.
        """
        flush = self.flush_requested
        if flush:
            self.flush_requested = (
                False  # before it goes through open submissions: a later request counts as new
            )
        if len(self.streams) > self._streams_max:
            self.forget_idle()
            self._streams_max = max(STREAMS_KEPT_MAX, 2 * len(self.streams))
        fresh, self.opened = self.opened, []
        sealed: deque[Submission] = deque()
        left: list[Submission] = []
        now_ms = time.time_ns() // 1_000_000
        # The application may stop or set the clock of timestamps, which delays no record.
        is_late = bool(self._gathering) and monotonic() * 1e3 - self._left_open_ms > STAY_OPEN_MS_MAX
        for submission in [*self._gathering, *fresh]:
            if not submission.is_closed:
                # In both directions: after the clock was set back, records must not get timestamps in the future for
                # an hour.
                if not submission.count or not (
                    flush
                    or is_late
                    or wants(submission.topic)
                    or abs(now_ms - submission.base_timestamp_ms) > STAY_OPEN_MS_MAX
                ):
                    left.append(submission)
                    continue
                self.close_open(self.streams[submission.topic], submission)
            if submission.count:
                packer = submission.packer
                if packer is not None and not submission.sealed:
                    if len(packer) > COPIED_BYTES_MAX:
                        submission.seal(packer.view())
                    else:
                        submission.seal(bytes(packer))
                        submission.packer = None
                        self._packers.put_back(packer)
                sealed.append(submission)
            else:
                self.pending.pop(submission, None)  # opened for a large record, but nothing was added
        if left and (is_late or not self._gathering):
            self._left_open_ms = monotonic() * 1e3
        self._gathering = left
        return sealed, flush

    def sleep_ms(self, wants: Callable[[str], bool], most_ms: float | None) -> float | None:
        """The time in ms that the io thread may sleep (None: no limit); callers wake it from now on.

        0 when a submission is ready that can be sent now.
        """
        if self.failures.has_lines:
            next_ms = self.failures.tick(monotonic() * 1e3)
            if next_ms is not None:
                most_ms = next_ms if most_ms is None else min(most_ms, next_ms)
        self.fall_asleep()  # before the check, so that anything later wakes the thread
        if self.flush_requested:
            return 0.0
        for submission in [*self._gathering, *self.opened]:
            if submission.is_closed:
                return 0.0
            if submission.count:
                if wants(submission.topic):
                    return 0.0
                most_ms = STAY_OPEN_MS_MAX if most_ms is None else min(most_ms, STAY_OPEN_MS_MAX)
        return most_ms

    def settle(
        self, accepted: Iterable[Submission], completed: Iterable[Submission], *, is_news: bool
    ) -> None:
        """Release the bytes of submissions that the daemon has accepted or that have failed, and note those of which
        every record has its outcome. ``is_news``: callers may wait for this, or for other changes.
        """
        for submission in accepted:
            if submission.was_accepted:
                self.accepted_count += submission.count
            if submission.payload is not None:
                self._released_bytes += submission.payload_bytes
                submission.payload = None
            packer = submission.packer
            if packer is not None:
                submission.packer = None
                self._packers.put_back(packer)
        for submission in completed:
            if submission not in self.pending:
                continue
            if submission.first_error is not None:
                self.failures.add(submission, monotonic() * 1e3)
            if submission.listeners:
                submission.call_listeners(None)
            self.completed_count += submission.count
            del self.pending[submission]  # last: flush() waits for this, and then reports the noted failures
        if is_news:
            self.waiters.notify()
        else:
            self.waiters.accepted(self.closed_bytes - self._released_bytes <= self.buffer_bytes // 2)
