"""QueuedOutbox: the outbox without the compiled steps. Callers queue records, and the io thread puts them into
submissions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from client_stub.errors import FORKED_TEXT, ForkedProducer, ProducerClosed
from client_stub.native.hot import Delivery, OnDelivery, OpenStream
from client_stub.outbox.failures import OnError
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import BulkPart, Snapshot, Submission
from client_stub.records.packer import packed_bound


class QueuedOutbox(Outbox):
    """Callers change shared state only by an append to ``_inbox``, which is atomic even without a GIL."""

    def __init__(
        self, *, max_block_ms: float, connect_timeout_ms: float, path: str, on_error: OnError | None = None
    ) -> None:
        super().__init__(
            max_block_ms=max_block_ms, connect_timeout_ms=connect_timeout_ms, path=path, on_error=on_error
        )
        self._inbox: deque[tuple[Any, ...]] = deque()
        """Entries in the order of the calls: the six fields of a record, or (function for the io thread, its
        arguments).
        """
        self._inbox_bytes = 0
        """Roughly their size in bytes. Two threads may overwrite each other's count, so it restarts at 0 when the
        inbox is empty.
        """
        self._has_ended = False

    # --- callers --------------------------------------------------------------------------------------

    def add(
        self,
        stream: OpenStream,
        record: tuple[Any, ...],
        size: int,
        on_delivery: OnDelivery | None,
        timestamp_ms: int | None,
    ) -> Delivery:
        if (
            self.closed
            or self.forked
            or not self.attached_once
            or self.fatal is not None
            or stream.refusal is not None
            or self.closed_bytes - self._released_bytes + self._inbox_bytes >= self.buffer_bytes
        ):
            self._wait_until_it_fits(stream, size)
        delivery = Delivery(self)
        # Inlined ``_queue``, which saves a call.
        entry = (stream, record, size, on_delivery, timestamp_ms, delivery)
        self._inbox_bytes += size
        self._inbox.append(entry)
        if self._has_ended:
            self._come_too_late(entry)
        if self._asleep and stream.open is None:
            self.wake()
        return delivery

    def add_plain(
        self, stream: OpenStream, rows: list[Any], on_delivery: OnDelivery | None
    ) -> BulkPart | None:
        return None

    def add_rows(
        self, stream: OpenStream, rows: list[Any], start: int, on_delivery: OnDelivery | None
    ) -> BulkPart:
        self._wait_until_it_fits(stream, packed_bound(rows[start]))
        size, count = 0, 0
        for row in islice(rows, start, None):
            charge = packed_bound(row)
            if count and size + charge > self.submission_bytes:
                break
            size += charge
            count += 1
        part = BulkPart(self)
        part.count = count
        # A copy: the caller may change its list once send_many() has returned.
        some = rows[start : start + count]
        self._queue(stream, size, (self._take_rows, (stream, some, size, on_delivery, part)))
        return part

    def add_block(self, stream: OpenStream, payload: bytes, count: int, format_: int) -> BulkPart:
        self.check_usable(stream)
        submission, part = self._block(stream, payload, count, format_)
        self._queue(stream, len(payload), (self._take_block, (stream, submission)))
        return part

    def _wait_until_it_fits(self, stream: OpenStream, size: int) -> None:
        """Wait for room, in the buffer or in the stream's open submission."""
        self.check_usable(stream)
        opened = stream.open
        if opened is None or opened.room < size + self._inbox_bytes:
            self.wait_for_room(stream)

    def _queue(self, stream: OpenStream, size: int, entry: tuple[Any, ...]) -> None:
        self._inbox_bytes += size
        self._inbox.append(entry)
        if self._has_ended:
            self._come_too_late(entry)
        # A submission that is open while the io thread sleeps cannot be sent now, so the thread need not be woken for
        # it.
        if self._asleep and stream.open is None:
            self.wake()

    def _come_too_late(self, entry: tuple[Any, ...]) -> None:
        try:
            self._inbox.remove(entry)
        except ValueError:
            return  # the io thread has taken it in
        raise ProducerClosed("Cannot perform operation after producer has been closed.")

    def request_flush(self) -> Snapshot:
        snapshot = Snapshot()
        self._inbox.append((self._take_snapshot, (snapshot,)))
        self.flush_requested = True
        if self._has_ended:
            snapshot.submissions = list(self.pending)
        self.wake()
        return snapshot

    def when_taken_in(self, call: Callable[[], object]) -> None:
        """Run ``call`` in the io thread once it has taken in the records queued before. Raises ForkedProducer in a
        forked child, which has no io thread.
        """
        if self.forked:
            raise ForkedProducer(FORKED_TEXT)
        entry = (call, ())
        self._inbox.append(entry)
        if self._has_ended:
            try:
                self._inbox.remove(entry)
            except ValueError:
                return  # the io thread has taken it in
            call()  # the records before it are taken in, too
            return
        self.wake()

    @property
    def queued_count(self) -> int:
        count = 0
        for entry in list(self._inbox):
            if len(entry) != 2:
                count += 1
            elif entry[1] and isinstance(entry[1][-1], BulkPart | Submission):
                count += entry[1][-1].count
        return count

    def queued_topic(self, delivery: Delivery) -> str:
        found = (each[0].topic for each in list(self._inbox) if each[-1] is delivery)
        return next(found, "")

    @property
    def has_room(self) -> bool:
        return self.buffered_bytes + self._inbox_bytes < self.buffer_bytes

    # --- io thread ------------------------------------------------------------------------------------

    @property
    def has_gathered(self) -> bool:
        return bool(self._inbox or self._inbox_bytes) or super().has_gathered

    def gather(self, wants: Callable[[str], bool]) -> tuple[deque[Submission], bool]:
        self.take_in()
        return super().gather(wants)

    def sleep_ms(self, wants: Any, most_ms: float | None) -> float | None:
        most_ms = super().sleep_ms(wants, most_ms)
        return 0.0 if self._inbox or self._inbox_bytes else most_ms

    def take_in(self) -> None:
        inbox = self._inbox
        take = inbox.popleft
        for _ in range(len(inbox)):
            entry = take()
            if len(entry) == 2:
                entry[0](*entry[1])
                continue
            stream, record, size, on_delivery, timestamp_ms, delivery = entry
            submission = stream.open
            if submission is None or submission.room < size:
                submission = self._open_with_room(stream, size)
            delivery._index = submission.append(record, size, on_delivery, timestamp_ms)
            delivery._submission = submission  # set last: from now on other threads read it
        if self._inbox_bytes and not inbox:
            was_full = self._inbox_bytes >= self.buffer_bytes // 2
            self._inbox_bytes = 0
            if was_full:
                self.notify()

    def close_all_open(self) -> None:
        """Does nothing here: queued records still go into submissions, and callers queue no more."""

    def end(self) -> None:
        self._has_ended = True
        super().end()

    def _take_rows(
        self,
        stream: OpenStream,
        rows: list[Any],
        size: int,
        on_delivery: OnDelivery | None,
        part: BulkPart,
    ) -> None:
        stream = self._present(stream)
        submission = self._open_with_room(stream, size)
        if submission.append_rows(rows, 0, on_delivery, part) < 0:
            self.close_open(stream, submission)  # it has records with other callbacks
            self._open_with_room(stream, size).append_rows(rows, 0, on_delivery, part)

    def _take_block(self, stream: OpenStream, submission: Submission) -> None:
        stream = self._present(stream)
        self.publish(stream, stream.open, submission)

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        snapshot.submissions = list(self.pending)
        self.notify()

    def _present(self, stream: OpenStream) -> OpenStream:
        """The topic's stream: another one if ``stream`` was forgotten after its record was queued."""
        return self.streams.setdefault(stream.topic, stream)

    def _open_with_room(self, stream: OpenStream, size: int) -> Submission:
        stream = self._present(stream)
        self.roll(stream, size, waits=False)  # the caller has waited
        submission = stream.open
        assert submission is not None
        return submission
