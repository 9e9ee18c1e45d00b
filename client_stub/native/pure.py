"""The hot path in pure Python. It writes the same bytes and behaves as ``_native``, which is used if it was built.

A step of the compiled one is atomic under the GIL; here it is not. So callers do not append to submissions but queue
their records (``QueuedOutbox``). Only the io thread runs the code here, unless a docstring says otherwise.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgpack

from client_stub.contract.wire import unpack_outcomes
from client_stub.native.pure_fate import Fate, OnDelivery, mask_of_indexes, run_callbacks
from client_stub.native.pure_twin import MessageCore, TwinCore
from client_stub.outbox.wait_reasons import why_not_taken
from client_stub.records.arguments import check_callable, checked_wait
from client_stub.records.habits import no_pickle, with_hints
from client_stub.records.packer import LARGE_BYTES, PACKER_START_BYTES, PLAIN_OVERHEAD_BYTES, packed_bound
from client_stub.zmtp.frames import encode, whole_message

if TYPE_CHECKING:
    from client_stub.errors import DeliveryFailed, SidecarError
    from client_stub.outbox.outbox import Outbox
    from client_stub.outbox.submission import Submission
    from client_stub.outbox.waker import Waker
    from client_stub.records.record_metadata import RecordMetadata

__all__ = [
    "Delivery",
    "Fate",
    "MessageCore",
    "OpenStream",
    "OutboxCore",
    "PartCore",
    "RecordPacker",
    "SubmissionCore",
    "TwinCore",
    "clear_wakes",
    "encode",
    "mask_of_indexes",
    "plain_pairs",
    "receive",
    "run_callbacks",
    "unpack_outcomes",
    "whole_message",
    "write_wake",
]
"""The names that ``hot.py`` takes from here or from ``_native``."""

PLAIN_TYPES: Final = frozenset({bytes, type(None)})


class RecordPacker:
    """A reusable buffer of msgpack, sent as it is. ``pack(record)`` appends one record."""

    __slots__ = ("_packer", "pack")

    def __init__(self) -> None:
        # msgpack-types describes only the fallback, which has no buf_size
        self._packer = msgpack.Packer(autoreset=False, buf_size=PACKER_START_BYTES)  # type: ignore[call-arg]
        self.pack: Callable[[Any], object] = self._packer.pack

    def __len__(self) -> int:
        return len(self.view())

    def view(self) -> memoryview:
        return memoryview(self._packer.getbuffer())

    def reset(self) -> None:
        """Drop the records. Raises BufferError while a view of their bytes exists."""
        self._packer.reset()


class PartCore:
    """The records of one send_many() or send_arrow() call in one submission; ``BulkPart`` is built on it."""

    __slots__ = ("count", "first", "submission")

    def __init__(self) -> None:
        self.submission: Submission | None = None
        """None: the io thread has not taken it in yet."""
        self.first = 0
        self.count = 0


class SubmissionCore:
    """The part of a submission that send() uses; ``Submission`` is built on it."""

    __slots__ = (
        "callback",
        "callbacks",
        "count",
        "fates",
        "is_closed",
        "outbox",
        "packer",
        "partition_max",
        "parts",
        "payload_bytes",
        "room",
        "timestamps",
    )

    def __init__(self) -> None:
        self.outbox: Any = None
        self.is_closed = False
        """Whether it takes no more records."""
        self.payload_bytes = 0
        """Known once it is closed."""
        self.parts: list[Any] = []
        """Parts of send_many() and send_arrow() calls. flush() reports their errors if the caller does not ask."""
        self.packer: RecordPacker | None = None
        self.room = 0
        """Payload bytes left, counted with an upper bound per record. It also keeps the record count below its
        limit.
        """
        self.count = 0
        self.callback: OnDelivery | None = None
        """The callback of every record while all have the same one or none."""
        self.callbacks: list[OnDelivery | None] | None = None
        """One callback per record, once they differ."""
        self.timestamps: dict[int, int] | None = None
        """Index → the record's own timestamp in ms, if given. Metadata repeats it under CreateTime."""
        self.partition_max = 0
        """The highest partition that a record names, to explain why it waits."""
        self.fates: list[Fate] = []

    def find(self, index: int) -> tuple[DeliveryFailed | None, RecordMetadata | None] | None:
        """The record's (error, metadata); None while it is undecided. Any thread."""
        for fate in self.fates:
            rank = fate.rank(index)
            if rank >= 0:
                return (None, fate.metadata(index, rank)) if fate.error is None else (fate.error, None)
        return None

    def append(
        self, record: tuple[Any, ...], size: int, on_delivery: OnDelivery | None, timestamp_ms: int | None
    ) -> int:
        """Append a checked record of at most ``size`` bytes. Returns its index, or -1 when another thread has taken
        the room.
        """
        if self.room < size:
            return -1
        assert self.packer is not None
        self.packer.pack(record)
        self._note_partition(record)
        self.room -= size
        index = self.count
        self.count = index + 1
        if on_delivery is not self.callback or self.callbacks is not None:
            if self.callbacks is not None:
                self.callbacks.append(on_delivery)
            elif index:
                self.callbacks = [self.callback] * index
                self.callbacks.append(on_delivery)
            else:
                self.callback = on_delivery
        if timestamp_ms is not None:
            if self.timestamps is None:
                self.timestamps = {}
            self.timestamps[index] = timestamp_ms
        return index

    def _note_partition(self, record: tuple[Any, ...]) -> None:
        if len(record) == 5 and record[3] is not None and record[3] > self.partition_max:
            self.partition_max = record[3]

    def append_plain(
        self, rows: list[Any], on_delivery: OnDelivery | None, part: PartCore | None = None
    ) -> int:
        """The fast path of the compiled module. Here it does nothing and returns -1, as msgpack's packer cannot undo a
        pack.
        """
        return -1

    def append_rows(
        self, rows: list[Any], start: int, on_delivery: OnDelivery | None, part: PartCore | None = None
    ) -> int:
        """Append checked records from ``rows[start]`` on. Returns how many found room; ``part`` is set to them.

        Returns -1 when the submission has records with other callbacks.
        """
        if self.callbacks is not None or (self.count and on_delivery is not self.callback):
            return -1
        assert self.packer is not None
        pack, room, added = self.packer.pack, self.room, 0
        for row in islice(rows, start, None):
            charge = packed_bound(row)
            if charge > room:
                break
            pack(row)
            self._note_partition(row)
            room -= charge
            if len(row) == 5 and row[4] is not None:
                if self.timestamps is None:
                    self.timestamps = {}
                self.timestamps[self.count + added] = row[4]
            added += 1
        if added:
            if not self.count:
                self.callback = on_delivery
            if part is not None:
                if on_delivery is None:
                    self.parts.append(part)
                part.first, part.count = self.count, added
                part.submission = self  # type: ignore[assignment]  # a Submission; set last, for concurrent readers
            self.room = room
            self.count += added
        return added


class OutboxCore:
    """The part of ``Outbox`` that threads share. Callers call only ``wake``."""

    def __init__(self) -> None:
        self.streams: dict[str, OpenStream] = {}
        self.opened: list[Submission] = []
        """Submissions opened since the io thread last looked, oldest first."""
        self.pending: dict[Submission, None] = {}
        """Submissions with undecided records, or with errors that are not noted yet, oldest first. Single operations
        are atomic under the GIL.
        """
        self.fatal: SidecarError | None = None
        self.closed = False
        self.forked = False
        """Whether this is a forked child's copy, which has no io thread."""
        self._asleep: list[int] = []
        """Has the waker's descriptor while the io thread sleeps; the thread that wakes it removes the descriptor."""
        self.closed_bytes = 0
        """Payload bytes of all closed submissions, in total."""
        self.waker: Waker | None = None

    def set_wake_fd(self, fd: int) -> None:
        """Only for the compiled module: sets the eventfd of ``waker``."""

    def wake(self, *, always: bool = False) -> None:
        """Wake the io thread if it sleeps; with ``always``, also if it is about to sleep. Any thread."""
        waker = self.waker
        if waker is None:
            return
        if always:
            self._asleep.append(waker.fd)
        if self._asleep:
            # One call in C: the thread that removes the descriptor also writes to it, and no exception can come
            # between.
            with contextlib.suppress(IndexError):
                deque(map(os.eventfd_write, iter(self._asleep.pop, None), repeat(1)), maxlen=0)

    @property
    def is_asleep(self) -> bool:
        return bool(self._asleep)

    def fall_asleep(self) -> None:
        """For the io thread: callers wake it from now on. It has to look for work once more after this call."""
        if self.waker is not None:
            self._asleep.append(self.waker.fd)

    def awake(self) -> None:
        """For the io thread: callers need not wake it."""
        self._asleep.clear()

    def publish(self, stream: OpenStream, expected: Submission | None, made: Submission) -> bool:
        """Replace ``expected``, which takes no more records, by ``made``. Returns False and does nothing when another
        thread did so first, or when the outbox takes no more records at all.
        """
        if stream.open is not expected:
            return False
        if expected is not None:
            self.close_open(stream, expected)
        self.opened.append(made)
        self.pending[made] = None
        if made.is_closed:
            self.closed_bytes += made.payload_bytes
        else:
            stream.open = made
        return True

    def close_open(self, stream: OpenStream, submission: Submission) -> None:
        """Stop appending to ``submission`` if it is the open one of ``stream``."""
        if stream.open is submission:
            assert submission.packer is not None
            stream.open = None
            submission.is_closed = True
            submission.room = -1
            submission.payload_bytes = len(submission.packer)
            self.closed_bytes += submission.payload_bytes

    def forget_idle(self) -> None:
        """Forget the streams without an open submission and without a refusal. Queued records may name them: the io
        thread puts those into the topic's stream of then.
        """
        for topic, stream in list(self.streams.items()):
            if stream.open is None and stream.refusal is None:
                del self.streams[topic]

    def close_all_open(self) -> None:
        for stream in list(self.streams.values()):
            if stream.open is not None:
                self.close_open(stream, stream.open)


class OpenStream:
    """The caller's side of one topic: the submission that takes its records now."""

    __slots__ = ("open", "outbox", "refusal", "topic")

    def __init__(self, topic: str, outbox: Any) -> None:
        self.topic = topic
        self.outbox = outbox
        """The outbox of this stream. A call that a fork interrupts still uses its parent's outbox, and gets an
        error.
        """
        self.open: Submission | None = None
        self.refusal: SidecarError | None = None
        """The error with which the daemon refused this topic for this client. Every further send raises it."""


@with_hints
class Delivery:
    """The future of one record. Thread-safe."""

    __slots__ = ("_index", "_outbox", "_submission")

    def __init__(self, outbox: Outbox, submission: Submission | None = None, index: int = 0) -> None:
        self._outbox = outbox
        self._submission = submission
        """None: the io thread has not taken it in yet."""
        self._index = index

    def done(self) -> bool:
        """True once the record was delivered or has failed."""
        submission = self._submission
        return submission is not None and submission.find(self._index) is not None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait at most ``timeout`` seconds for the record's place in the log.

        Raises the record's error (a SidecarError), TimeoutError after ``timeout`` (the record is still under way), and
        ForkedProducer in a forked child.
        """
        error, metadata = self._wait(timeout)
        if error is not None:
            raise error
        assert metadata is not None
        return metadata

    def _wait(self, timeout: float | None) -> tuple[SidecarError | None, RecordMetadata | None]:
        timeout = checked_wait(timeout)
        if self._submission is None:
            outbox = self._outbox
            topic = outbox.queued_topic(self)
            is_done = outbox.wait_until(self.done, timeout, for_outcome=True)
            submission = self._submission
            if not is_done or submission is None:
                if submission is not None:
                    raise submission.no_outcome(timeout)
                why = why_not_taken(outbox, topic) or ": the daemon has not accepted it"
                raise TimeoutError(f"The record for topic {topic} has no outcome after {timeout} s yet{why}.")
        return self._submission.wait_for(self._index, timeout)

    def exception(self, timeout: float | None = None) -> SidecarError | None:
        """Wait as ``result`` does. Returns the record's error, or None when it was delivered."""
        return self._wait(timeout)[0]

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call ``callback(delivery)`` once the record has its outcome, as concurrent.futures does.

        The callback runs in the producer's io thread and must not block; if the outcome is known already, it runs at
        once in this thread. Exceptions that it raises are logged. Adding a callback does not end linger. Raises
        ForkedProducer in a forked child.
        """
        check_callable("callback", callback, "callback(delivery)")
        if self._submission is None:
            self._outbox.when_taken_in(lambda: self.add_done_callback(callback))
        else:
            self._submission.when_decided(self._index, partial(callback, self))

    def __reduce__(self) -> NoReturn:
        raise no_pickle("Delivery")

    def __repr__(self) -> str:
        submission = self._submission
        return "<Delivery: no outcome yet>" if submission is None else submission.describe(self._index)


def plain_pairs(records: list[Any]) -> list[int] | None:
    """None unless every record is a (key, value) tuple of bytes or None, which one C call can pack.

    Otherwise a list of the indexes of records above LARGE_BYTES, whose size is still to be checked.
    """
    if not (
        set(map(type, records)) == {tuple}
        and set(map(len, records)) == {2}
        and PLAIN_TYPES.issuperset(map(type, chain.from_iterable(records)))
    ):
        return None
    if sum(map(len, filter(None, chain.from_iterable(records)))) <= LARGE_BYTES:
        return []
    return [
        place
        for place, (key, value) in enumerate(records)
        if len(key or b"") + len(value or b"") + PLAIN_OVERHEAD_BYTES > LARGE_BYTES
    ]


def write_wake(fd: int) -> None:
    """Add one to the eventfd ``fd``."""
    os.eventfd_write(fd, 1)


def clear_wakes(fd: int) -> None:
    """Reset the non-blocking eventfd ``fd`` to 0, which it may be already. Raises OSError."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)


def receive(fd: int, buffer: memoryview) -> int:
    """Read from the non-blocking ``fd`` into ``buffer``. Returns the number of bytes read, 0 at the end of the stream.

    Raises OSError (BlockingIOError when there is nothing to read).
    """
    return os.readv(fd, (buffer,))
