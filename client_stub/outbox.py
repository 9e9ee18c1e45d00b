"""Outbox: where callers put records and the io thread takes submissions. The one lock of a producer.

A caller holds the lock for one pack and one append; the io thread takes everything that gathered while it was
busy, so batching follows from load and an idle producer adds no delay. What callers may pile up is bounded:
beyond ``buffer_bytes`` not yet accepted by the daemon, ``send()`` waits up to max.block.ms.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from client_stub.errors import BufferExhausted, DaemonUnreachable, ProducerClosed, SidecarError
from client_stub.hot import OnDelivery, OpenStream, RecordPacker, ring
from client_stub.packer import packed_bound
from client_stub.submission import BulkPart, Submission
from client_stub.wire import SUBMISSION_BYTES_MAX, SUBMIT_HEAD_BYTES_MAX, TOPIC_BYTES_MAX, SubmitFlag
from client_stub.zmtp import MESSAGE_BYTES_MAX

log = logging.getLogger("client_stub")

BUFFER_BYTES: Final = 8 << 20
PACKERS_KEPT_MAX: Final = 12
COPIED_BYTES_MAX: Final = 4096
"""A payload up to this is copied out of its packer, so that many small submissions do not hold many buffers."""
PACKER_KEPT_BYTES_MAX: Final = 2 * SUBMISSION_BYTES_MAX
STAY_OPEN_MS_MAX: Final = 1_000.0
CONNECT_TIMEOUT_MS: Final = 5_000.0
"""How long the first send of a process waits for a daemon: long enough for one that is just starting."""


class Outbox:
    """State shared by callers and the io thread; every public method is thread-safe unless it says otherwise."""

    def __init__(self, *, max_block_ms: float, connect_timeout_ms: float, path: str) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        """Room, attachment, outcomes: notified only while ``waiters`` says that somebody waits."""
        self.waiters = 0
        self.accept_waiters = 0
        """Those of them that wait for ACCEPTED, not for room or outcomes."""
        self.listeners: dict[Callable[[], bool], None] = {}
        """What waits on an event loop and not in a thread: called after each change, from the io thread or from
        close(), without the lock. Must not wait nor raise; False: nobody is there any more. Single operations are
        atomic under the GIL."""
        self.max_block_ms = max_block_ms
        self.connect_timeout_ms = connect_timeout_ms
        self.path = path
        self.streams: dict[str, OpenStream] = {}
        self.pending: dict[Submission, None] = {}
        """Submissions with undecided records, or whose errors are still to be noted, oldest first. Single operations
        are atomic under the GIL."""
        self.buffered_bytes = 0
        """Sealed and not yet accepted by the daemon."""
        self.buffer_bytes = BUFFER_BYTES
        self.max_request_bytes: int | None = None
        """max.request.size of the daemon, known after the first WELCOME."""
        self.payload_bytes_max = MESSAGE_BYTES_MAX - SUBMIT_HEAD_BYTES_MAX
        """Largest payload of one submission that the daemon reads, as its last WELCOME has it."""
        self.columns_readable = False
        self.attached_once = False
        self.last_word = ""
        """What the io thread last heard or saw while not attached; becomes part of error texts."""
        self.fatal: SidecarError | None = None
        self.closed = False
        self.forked = False
        self.io_thread_id = 0
        self.idle = True
        """The io thread sleeps and must be woken; cleared by whoever wakes it."""
        self.flush_requested = False
        self.unwatched_error: SidecarError | None = None
        """First error of records that nobody watches; told by the next flush()."""
        self.unwatched_failures = 0
        self._sealed: deque[Submission] = deque()
        self._dirty: list[OpenStream] = []
        self._packers: list[RecordPacker] = []
        self._wake_fd = -1

    # --- callers, lock held -------------------------------------------------------------------------

    def roll(self, stream: OpenStream, size: int, block_ms: float | None = None) -> Submission:
        """Open a submission with room for ``size`` bytes (the lock is held; it may be let go to wait).

        Raises BufferExhausted, DaemonUnreachable, ProducerClosed, or what the daemon refused the topic with.
        """
        self.wait_for_room(stream, block_ms)
        submission = stream.open
        if submission is not None:
            if submission.room >= size:
                return submission  # another caller opened it while we waited
            self._seal(stream, submission)
        # A single larger record travels in a submission of its own.
        submission = Submission(
            self,
            stream.topic,
            self._take_packer(),
            max(SUBMISSION_BYTES_MAX, size),
            time.time_ns() // 1_000_000,
        )
        submission.flags = SubmitFlag.WANT_INDEXES
        stream.open = submission
        self.pending[submission] = None
        self._dirty.append(stream)
        return submission

    def wait_for_room(self, stream: OpenStream, block_ms: float | None = None) -> None:
        self._check_usable(stream)
        if self.buffered_bytes < self.buffer_bytes and self.attached_once:
            return
        limit_ms = self.max_block_ms if block_ms is None else block_ms
        if threading.get_ident() == self.io_thread_id:
            limit_ms = 0  # a callback that waits for room would wait for itself
        if not self.attached_once:
            first_ms = min(limit_ms, self.connect_timeout_ms)
            if not self._wait(lambda: self.attached_once, first_ms, stream):
                raise self.no_room(stream.topic, first_ms)
        if not self._wait(lambda: self.buffered_bytes < self.buffer_bytes, limit_ms, stream):
            raise self.no_room(stream.topic, limit_ms)

    def no_room(self, topic: str, waited_ms: float) -> SidecarError:
        """The error of a caller who waited so long in vain: DaemonUnreachable or BufferExhausted."""
        if not self.attached_once:
            from client_stub.run_dir import unreachable_text

            return DaemonUnreachable(unreachable_text(self.path, waited_ms, self.last_word))
        if self.last_word:
            return DaemonUnreachable(
                f"The daemon at {self.path} is away ({self.last_word}) and {self.buffered_bytes} bytes already "
                f"wait for it; waited {waited_ms:.0f} ms (max.block.ms). Nothing of this call was queued."
            )
        return BufferExhausted(
            f"Failed to allocate room for a record of topic {topic} within the configured max blocking "
            f"time {waited_ms:.0f} ms: {self.buffered_bytes} bytes wait for the daemon to accept them. "
            "Send slower, raise buffer.memory of the daemon, or raise max_block_ms."
        )

    def may_take(self, topic: str) -> bool:
        """False: a record of ``topic`` would have to wait now. True: trying is worth it, if only for its error."""
        stream = self.streams.get(topic)
        if stream is None or self.closed or self.fatal is not None or stream.refusal is not None:
            return True
        return self.attached_once and (self.has_room or stream.open is not None)

    def add_plain(
        self, stream: OpenStream, rows: list[Any], on_delivery: OnDelivery | None
    ) -> BulkPart | None:
        """Put all of a call's records beside what gathers already, unchecked as yet; None: nothing was done."""
        with self.lock:
            submission = stream.open
            if submission is None:
                return None
            added = submission.append_plain(rows, on_delivery)
            return self._part(submission, added, on_delivery) if added > 0 else None

    def add_rows(
        self, stream: OpenStream, rows: list[Any], start: int, on_delivery: OnDelivery | None
    ) -> BulkPart:
        """Put checked records from ``rows[start]`` on into one submission, as many as it has room for (lock held).

        The submission may hold others' records already: what many small calls bring travels together. Raises as
        ``roll``; then nothing of this call was queued.
        """
        while True:
            submission = stream.open
            added = submission.append_rows(rows, start, on_delivery) if submission is not None else 0
            if submission is not None and added > 0:
                break
            if submission is not None and added < 0:
                self._seal(stream, submission)  # other callbacks wait there
            self.roll(stream, packed_bound(rows[start]))
        return self._part(submission, added, on_delivery)

    @staticmethod
    def _part(submission: Submission, added: int, on_delivery: OnDelivery | None) -> BulkPart:
        part = BulkPart(submission, submission.count - added, added)
        if on_delivery is None:
            submission.parts.append(part)
        return part

    def add_block(self, stream: OpenStream, payload: bytes, count: int, format_: int) -> BulkPart:
        """One submission whose payload stands already (lock held, room was waited for)."""
        if stream.open is not None and stream.open.count:
            self._seal(stream, stream.open)
        submission = Submission(self, stream.topic, None, 0, time.time_ns() // 1_000_000)
        submission.count = count
        submission.format = format_
        self.pending[submission] = None
        submission.seal(payload)
        self._append_sealed(submission)
        part = BulkPart(submission, 0, count)
        submission.parts.append(part)
        return part

    def _check_usable(self, stream: OpenStream) -> None:
        if self.closed:
            raise ProducerClosed("Cannot perform operation after producer has been closed.")
        if self.fatal is not None:
            raise self.fatal
        if stream.refusal is not None:
            raise stream.refusal

    def _wait(self, ready: Callable[[], bool], limit_ms: float, stream: OpenStream) -> bool:
        deadline = time.monotonic() + limit_ms / 1e3
        self.waiters += 1
        try:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._wake_locked()
                self.changed.wait(left)
                self._check_usable(stream)
        finally:
            self.waiters -= 1
        return True

    def _seal(self, stream: OpenStream, submission: Submission) -> None:
        stream.open = None
        submission.seal()
        self._append_sealed(submission)

    def _append_sealed(self, submission: Submission) -> None:
        if submission.payload_bytes <= COPIED_BYTES_MAX:
            packer = submission.detach_payload()
            if packer is not None:
                self._keep_packer(packer)
        self.buffered_bytes += submission.payload_bytes
        self._sealed.append(submission)

    def _take_packer(self) -> RecordPacker:
        return self._packers.pop() if self._packers else RecordPacker()

    def _keep_packer(self, packer: RecordPacker) -> None:
        if len(self._packers) >= PACKERS_KEPT_MAX or len(packer) > PACKER_KEPT_BYTES_MAX:
            return
        try:
            packer.reset()
        except BufferError:
            return  # somebody still looks at its bytes: leave it to the garbage collector
        self._packers.append(packer)

    # --- callers, lock not held ---------------------------------------------------------------------

    def open_stream(self, topic: object) -> OpenStream:
        """The stream of ``topic``; raises TypeError or ValueError for what is no topic name."""
        if not isinstance(topic, str):
            raise TypeError(f"topic must be str, not {type(topic).__name__}.")
        if not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX:
            raise ValueError(
                f"Topic name {topic!r:.60} is not valid: it must have 1 to {TOPIC_BYTES_MAX} bytes."
            )
        with self.lock:
            return self.streams.setdefault(topic, OpenStream(topic))

    @property
    def has_room(self) -> bool:
        return self.buffered_bytes < self.buffer_bytes

    def wake(self, *, always: bool = False) -> None:
        """Wake the io thread if it sleeps (``always``: or is about to)."""
        with self.lock:
            self.idle |= always
            self._wake_locked()

    def _wake_locked(self) -> None:
        if self.idle and self._wake_fd >= 0:
            self.idle = False
            ring(self._wake_fd)

    def wait_until(
        self, ready: Callable[[], bool], timeout: float | None, *, for_acceptance: bool = False
    ) -> bool:
        """Wait for something the io thread brings; False when ``timeout`` seconds passed first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            self.waiters += 1
            self.accept_waiters += for_acceptance
            try:
                while not ready():
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self.changed.wait(left)
            finally:
                self.waiters -= 1
                self.accept_waiters -= for_acceptance
        return True

    def request_flush(self) -> list[Submission]:
        """Seal what is open, ask for it to be sent without linger; returns all undecided submissions."""
        with self.lock:
            self._seal_dirty()
            self.flush_requested = True
            self._wake_locked()
            return list(self.pending)

    def close(self) -> bool:
        """No record is taken from now on; False when that was so before."""
        with self.lock:
            if self.closed:
                return False
            self.closed = True
            self._seal_dirty()  # else a later send() would find room in what is open
            self.changed.notify_all()
        self.tell_listeners()
        return True

    def refuse_wait_in_callback(self, what: str) -> None:
        """Raises SidecarError in the io thread: it would wait for itself."""
        if threading.get_ident() == self.io_thread_id:
            raise SidecarError(f"{what} was called from an on_delivery callback and would wait for ever.")

    def take_unwatched_error(self) -> tuple[SidecarError, int] | None:
        with self.lock:
            error, failures = self.unwatched_error, self.unwatched_failures
            self.unwatched_error, self.unwatched_failures = None, 0
            return (error, failures) if error is not None else None

    # --- io thread ----------------------------------------------------------------------------------

    def set_wake_fd(self, wake_fd: int) -> None:
        self._wake_fd = wake_fd

    def forget_wake_fd(self) -> None:
        """The io thread is about to close it: nobody writes to it any more."""
        with self.lock:
            self._wake_fd = -1

    @property
    def has_gathered(self) -> bool:
        """Something may be there to travel. Without the lock: what is missed now is seen by ``sleep_ms``."""
        return bool(self._dirty or self._sealed or self.flush_requested)

    def gather(self, wants: Callable[[str], bool]) -> tuple[deque[Submission], bool]:
        """What is ready to travel, and whether a flush was asked for since the last call.

        An open submission whose topic cannot be sent now (``wants(topic)`` is false) stays open and fills up,
        but not for long: its records share one base timestamp.
        """
        with self.lock:
            if self._dirty:
                now_ms = time.time_ns() // 1_000_000
                # Either way: a clock that was set back must not leave an hour's records with a time to come.
                self._seal_dirty(
                    lambda stream, opened: (
                        wants(stream.topic) or abs(now_ms - opened.base_timestamp_ms) > STAY_OPEN_MS_MAX
                    )
                )
            sealed, self._sealed = self._sealed, deque()
            flush, self.flush_requested = self.flush_requested, False
            return sealed, flush

    def sleep_ms(self, wants: Callable[[str], bool], most_ms: float | None) -> float | None:
        """How long the io thread may sleep (None: no limit); callers wake it from now on.

        0 when something has gathered that can be sent now.
        """
        with self.lock:
            if self._sealed or self.flush_requested:
                return 0.0
            for stream in self._dirty:
                if stream.open is not None and stream.open.count:
                    if wants(stream.topic):
                        return 0.0
                    most_ms = STAY_OPEN_MS_MAX if most_ms is None else min(most_ms, STAY_OPEN_MS_MAX)
            self.idle = True
            return most_ms

    def accepted(self, submissions: Iterable[Submission]) -> None:
        """The daemon has these records, or they have failed: their bytes go back."""
        with self.lock:
            for submission in submissions:
                self.buffered_bytes -= submission.held_bytes
                packer = submission.release()
                if packer is not None:
                    self._keep_packer(packer)
            # Half, not the first free byte: a caller that wakes for one record would sleep again at once.
            if self.accept_waiters or (self.waiters and self.buffered_bytes <= self.buffer_bytes // 2):
                self.changed.notify_all()
        self.tell_listeners()

    def completed(self, submissions: Iterable[Submission]) -> None:
        """Every record of these has its fate."""
        for submission in submissions:
            if submission not in self.pending:
                continue
            if submission.first_error is not None:
                self._note_unwatched(submission)
            del self.pending[submission]  # behind it: flush() goes by this, and tells what was noted

    def _note_unwatched(self, submission: Submission) -> None:
        with self.lock:
            for part in submission.parts:
                error, failures = part.failures()
                if error is not None and not part.watched:
                    self.unwatched_failures += failures
                    self.unwatched_error = self.unwatched_error or error

    def notify(self) -> None:
        """Something changed that callers may wait for."""
        if self.waiters:
            with self.lock:
                self.changed.notify_all()
        self.tell_listeners()

    def tell_listeners(self) -> None:
        if self.listeners:
            for listener in tuple(self.listeners):
                if not listener():
                    self.listeners.pop(listener, None)

    def _seal_dirty(self, which: Callable[[OpenStream, Submission], bool] | None = None) -> None:
        for stream in self._dirty:
            opened = stream.open
            if opened is not None and opened.count and (which is None or which(stream, opened)):
                self._seal(stream, opened)
        self._dirty = list({id(s): s for s in self._dirty if s.open is not None}.values())
