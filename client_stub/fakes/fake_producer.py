"""FakeProducer: a Producer for an application's tests; ``client_stub.testing`` shows how to use it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Never, NoReturn, Self
from zlib import crc32

from client_stub.engine.flush_wait import no_outcome_text
from client_stub.errors import DeliveryCancelled, ProducerClosed, SidecarError
from client_stub.fakes.fake_delivery import FakeBulkDelivery, FakeDelivery, FakeRecord
from client_stub.io.topic_lookup import PartitionInfo
from client_stub.native.hot import OnDelivery
from client_stub.outbox.failures import OnError
from client_stub.outbox.outbox import BUFFER_BYTES
from client_stub.outbox.stats import ProducerStats
from client_stub.producer import Producer
from client_stub.record_metadata import RecordMetadata
from client_stub.records.arguments import (
    SEND_FIELDS,
    check_callable,
    check_count,
    check_on_delivery,
    check_topic,
    check_until,
    checked_timeout,
    checked_wait,
    list_of_rows,
)
from client_stub.records.habits import no_pickle, unknown_field, with_hints
from client_stub.records.packer import LARGE_BYTES, Headers
from client_stub.records.record_fields import full_record
from client_stub.records.serializers import Serializer, serializers_of
from client_stub.records.size_limits import SizeLimits

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("client_stub")

REQUEST_BYTES_MAX: Final = 1_048_576
"""The default of the daemon's max.request.size."""
BROKER: Final = 0
"""The id of the broker that leads all partitions."""

FailWith = Callable[["FakeRecord"], SidecarError | None]


@with_hints
class FakeProducer:
    """A fake with the arguments of Producer, which it checks in the same way. It delivers at once. Thread-safe.

    It can replace the class Producer, as it accepts all its arguments. ``on_error`` is called for failed records
    without a callback; the other arguments have no effect.

    - ``records``: all records that were sent, in order
    - ``fail_with(record)``: returns the error of a record that should fail, or None; it can be set at any time
    - ``hold()`` keeps outcomes back, and ``release()`` lets them go
    - ``partitions``: the number per topic; records with a key go by its hash, others in turns

    Callbacks run in the thread that sends or releases.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        client_name: str | None = None,
        *,
        partitions: int = 1,
        fail_with: FailWith | None = None,
        on_error: OnError | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        **settings: Any,
    ) -> None:
        # A real producer, only to check the arguments; it starts nothing.
        Producer("/nobody" if run_dir is None else run_dir, client_name, on_error=on_error, **settings)
        check_count("partitions", partitions)
        if fail_with is not None:
            check_callable("fail_with", fail_with, "fail_with(record)")
        self.records: list[FakeRecord] = []
        self._on_error = on_error
        self.fail_with = fail_with
        self.closed = False
        self._serializers = serializers_of(key_serializer, value_serializer)
        self._limits = SizeLimits(lambda topic: None)
        self._limits.request_bytes_max = REQUEST_BYTES_MAX
        self._partitions = partitions
        self._offsets: dict[tuple[str, int], int] = {}
        self._turn = 0
        """The next partition of a record without a key."""
        self._line: deque[FakeDelivery] = deque()
        """Records without an outcome, in the order of sending."""
        self._is_held = False
        self._decider: int | None = None
        """The thread that gives one of them its outcome now, and runs its callbacks."""
        self._unwatched: list[FakeBulkDelivery] = []
        self._failed_ever = 0
        self._reported = 0
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
        **others: Never,
    ) -> FakeDelivery:
        """Send one record. Raises TypeError or ValueError as Producer.send(), SerializationFailed and
        ProducerClosed.
        """
        if others:
            raise TypeError(unknown_field("send()", next(iter(others)), SEND_FIELDS))
        if self._serializers is not None:
            key, value = self._serializers.record(topic, key, value)
        check_on_delivery(on_delivery)
        check_topic(topic)
        record, size = full_record(key, value, headers, partition, timestamp_ms)
        if size > LARGE_BYTES:
            self._limits.check(topic, record)
        return self._queue([_fake_record(topic, record)], on_delivery)[0]

    def _queue(self, records: Sequence[FakeRecord], on_delivery: OnDelivery | None) -> list[FakeDelivery]:
        """Queue the records of one call, which nothing comes between. Raises ProducerClosed."""
        deliveries = [FakeDelivery(each, on_delivery, self._refuse_wait_in_callback) for each in records]
        with self._lock:
            self._refuse_when_closed()
            self.records += records
            self._line += deliveries
        self._go_on()
        return deliveries

    def send_many(
        self,
        topic: str,
        records: Iterable[Sequence[Any]],
        on_delivery: OnDelivery | None = None,
        **others: Never,
    ) -> FakeBulkDelivery:
        """Send many records; each is (key, value[, headers[, partition[, timestamp_ms]]])."""
        if others:
            raise TypeError(
                unknown_field("send_many()", next(iter(others)), ("topic", "records", "on_delivery"))
            )
        check_on_delivery(on_delivery)
        check_topic(topic)
        if self._serializers is not None:
            records = self._serializers.rows(topic, records)
        rows = list_of_rows(records)
        checked = [self._limits.checked_row(topic, number, row) for number, row in enumerate(rows)]
        return self._take_records(topic, checked, on_delivery)

    def send_arrow(self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch) -> FakeBulkDelivery:
        """Send each row as a record, with the columns value, key, headers, partition and timestamp. No serializer is
        called.

        Raises TypeError and ValueError for columns as Producer.send_arrow(). Needs pyarrow.
        """
        from client_stub.records.column_types import checked_columns
        from client_stub.records.columns import as_records, check_sizes

        check_topic(topic)
        batches = checked_columns(table).to_batches()
        check_sizes(self._limits, topic, batches)
        return self._take_records(topic, [row for batch in batches for row in as_records(batch)], None)

    def _take_records(
        self, topic: str, checked: list[tuple[Any, ...]], on_delivery: OnDelivery | None
    ) -> FakeBulkDelivery:
        records = [_fake_record(topic, record) for record in checked]
        sent = FakeBulkDelivery(self._queue(records, on_delivery) if records else [])
        if on_delivery is None:
            with self._lock:
                self._unwatched.append(sent)
        return sent

    def size_limit(self, topic: str) -> int:
        """The default of max.request.size."""
        check_topic(topic)
        return self._limits.limit(topic)

    @property
    def known_size_limit(self) -> int | None:
        return self._limits.known

    def check_size(self, topic: str, record: tuple[Any, ...]) -> None:
        """Raises RecordTooLarge as Producer.check_size() does for a daemon with default settings."""
        check_topic(topic)
        self._limits.check(topic, record)

    def partitions_for(self, topic: str, timeout: float | None = None) -> tuple[PartitionInfo, ...]:
        """The partitions of any topic; their number is ``partitions``. Raises ProducerClosed, TypeError and
        ValueError.
        """
        check_topic(topic)
        checked_timeout(timeout)
        self._refuse_wait_in_callback("partitions_for()")
        self._refuse_when_closed()
        return tuple(
            PartitionInfo(topic, partition, BROKER, (BROKER,), (BROKER,), ())
            for partition in range(self._partitions)
        )

    @property
    def takes_records(self) -> bool:
        """False once it is closed."""
        return not self.closed

    def _refuse_when_closed(self) -> None:
        if self.closed:
            raise ProducerClosed("Cannot perform operation after producer has been closed.")

    def stats(self) -> ProducerStats:
        """As Producer.stats(), as if the daemon were always connected."""
        with self._lock:
            waiting, sent = len(self._line), len(self.records)
            return ProducerStats(
                sent=sent,
                accepted=sent,
                delivered=sent - waiting - self._failed_ever,
                failed=self._failed_ever,
                waiting=waiting,
                waiting_bytes=0,
                buffer_bytes=BUFFER_BYTES,
                connections=1,
                is_connected=not self.closed,
                why_away="",
            )

    def hold(self) -> None:
        """Hold back the outcomes of records sent from now on, like a broker that does not answer."""
        self._is_held = True

    def release(self) -> None:
        """Give all held records their outcomes, in order, and stop holding."""
        self._is_held = False
        self._go_on()

    def _go_on(self) -> None:
        """Give the records in the line their outcomes. Only one thread does so at a time; a callback or another thread
        leaves its records to that thread.
        """
        while True:
            with self._lock:
                if self._is_held or self._decider is not None or not self._line:
                    return
                self._decider = threading.get_ident()
                delivery = self._line.popleft()
            try:
                self._decide(delivery)
            finally:
                with self._lock:
                    self._decider = None
                    self._moved.notify_all()

    def _refuse_wait_in_callback(self, what: str) -> None:
        if self._decider == threading.get_ident():
            raise SidecarError(f"{what} was called from an on_delivery callback and would wait for ever.")

    def flush(
        self, timeout: float | None = None, *, until: Literal["delivered", "accepted"] = "delivered"
    ) -> int:
        """Wait for all outcomes. Returns how many records failed since the last flush.

        Raises TimeoutError while outcomes are held, ValueError for a wrong ``until``, and the first error of a
        send_many() or send_arrow() whose future was not asked.
        """
        timeout = checked_wait(timeout)
        check_until(until)
        self._refuse_wait_in_callback("flush()")
        with self._lock:
            self._moved.wait_for(lambda: self._is_held or not (self._line or self._decider), timeout)
            if self._line and until == "delivered":
                raise TimeoutError(
                    f"flush() timed out after {timeout} s: {no_outcome_text(len(self._line))}: hold() keeps outcomes."
                )
        self._raise_unwatched()
        with self._lock:
            newly, self._reported = self._failed_ever - self._reported, self._failed_ever
        return newly

    def _raise_unwatched(self) -> None:
        with self._lock:
            over = [each for each in self._unwatched if each.done()]
            self._unwatched = [each for each in self._unwatched if not each.done()]
        for each in over:
            error = each.first_error
            if error is not None and not each.is_watched:
                raise error

    def close(self, timeout: float | None = None) -> None:
        """Close; held records are delivered, or with ``close(0)`` fail with DeliveryCancelled. Raises errors as
        flush().
        """
        timeout = checked_timeout(timeout)
        with self._lock:
            self.closed = True
            cancelled = list(self._line) if timeout == 0 else []
            for _ in cancelled:
                self._line.popleft()
            self._failed_ever += len(cancelled)
        for delivery in cancelled:
            delivery.complete(
                DeliveryCancelled("The producer was closed before the record was delivered."), None
            )
        self.release()
        if timeout != 0:
            self._raise_unwatched()

    def _tell_error(self, error: SidecarError, topic: str) -> None:
        assert self._on_error is not None
        try:
            self._on_error(error, topic, 1)
        except Exception:
            log.exception("An on_error callback failed; the producer continues.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise no_pickle(type(self).__name__)

    def _decide(self, delivery: FakeDelivery) -> None:
        record = delivery.record
        try:
            error = self.fail_with(record) if self.fail_with is not None else None
        except Exception as raised:  # otherwise the record would never have an outcome
            error = (
                raised if isinstance(raised, SidecarError) else SidecarError(f"fail_with failed: {raised!r}.")
            )
        if error is not None:
            with self._lock:
                self._failed_ever += 1
            delivery.complete(error, None)
            if self._on_error is not None and not delivery.has_callback:
                self._tell_error(error, record.topic)
            return
        with self._lock:
            partition = record.partition
            if partition is None:
                turn = crc32(record.key) if record.key is not None else self._turn
                self._turn += record.key is None
                partition = turn % self._partitions
            offset = self._offsets.get((record.topic, partition), 0)
            self._offsets[record.topic, partition] = offset + 1
        timestamp_ms = record.timestamp_ms if record.timestamp_ms is not None else time.time_ns() // 1_000_000
        delivery.complete(None, RecordMetadata(record.topic, partition, offset, timestamp_ms))


def _fake_record(topic: str, record: tuple[Any, ...]) -> FakeRecord:
    return FakeRecord(topic, *(*record, None, None, None)[:5])
