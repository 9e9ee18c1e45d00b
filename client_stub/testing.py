"""FakeProducer: a Producer for the tests of an application. No daemon and no Kafka; records stay in a list.

::

    from client_stub.testing import FakeProducer

    def test_an_order_is_announced():
        producer = FakeProducer()
        place_order(producer)
        assert [record.value for record in producer.records] == [b"order 1"]

The fixture ``fake_producer`` comes with ``pytest_plugins = ["client_stub.testing"]``. It needs no pytest otherwise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple
from zlib import crc32

from client_stub.delivery import joined
from client_stub.errors import DeliveryCancelled, ProducerClosed, SidecarError
from client_stub.hot import OnDelivery
from client_stub.outbox import BUFFER_BYTES
from client_stub.packer import Headers, full_record
from client_stub.record_metadata import OffsetRange, RecordMetadata
from client_stub.serializers import Serializer, serializers_of
from client_stub.stats import ProducerStats

FailWith = Callable[["FakeRecord"], SidecarError | None]


class FakeRecord(NamedTuple):
    """One record as it was sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    partition: int | None
    timestamp_ms: int | None


class FakeDelivery:
    """As Delivery. Thread-safe."""

    def __init__(self, record: FakeRecord, on_delivery: OnDelivery | None) -> None:
        self.record = record
        self._on_delivery = on_delivery
        self._over = threading.Event()
        self._error: SidecarError | None = None
        self._metadata: RecordMetadata | None = None
        self._callbacks: list[Callable[[FakeDelivery], object]] = []
        self._lock = threading.Lock()

    def done(self) -> bool:
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The record's place, or its error; TimeoutError while the producer holds its records back."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert self._metadata is not None
        return self._metadata

    def exception(self, timeout: float | None = None) -> SidecarError | None:
        if not self._over.wait(timeout):
            raise TimeoutError(
                f"The record for topic {self.record.topic} has no outcome after {timeout} s yet."
            )
        return self._error

    def add_done_callback(self, callback: Callable[[FakeDelivery], object]) -> None:
        """Called in the thread that sends or releases; now, when the outcome is there."""
        with self._lock:
            if not self._over.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def complete(self, error: SidecarError | None, metadata: RecordMetadata | None) -> None:
        self._error, self._metadata = error, metadata
        with self._lock:
            self._over.set()
        if self._on_delivery is not None:
            self._on_delivery(error, metadata)
        for callback in self._callbacks:
            callback(self)


class FakeBulkDelivery:
    """As BulkDelivery."""

    def __init__(self, deliveries: Sequence[FakeDelivery]) -> None:
        self._deliveries = deliveries
        self.count = len(deliveries)

    def done(self) -> bool:
        return all(each.done() for each in self._deliveries)

    def result(self, timeout: float | None = None) -> int:
        ends = None if timeout is None else time.monotonic() + timeout
        for each in self._deliveries:
            each.result(None if ends is None else max(0.0, ends - time.monotonic()))
        return self.count

    def add_done_callback(self, callback: Callable[[FakeBulkDelivery], object]) -> None:
        """Called once, when every record has its outcome."""
        left = len(self._deliveries)

        def count(_: FakeDelivery) -> None:
            nonlocal left
            left -= 1
            if not left:
                callback(self)

        for each in self._deliveries:
            each.add_done_callback(count)
        if not self._deliveries:
            callback(self)

    def offsets(self) -> tuple[OffsetRange, ...]:
        """Where the delivered records stand, by partition and offset."""
        places = [each.result(0) for each in self._deliveries if each.done() and each.exception(0) is None]
        return joined((place.partition, place.offset, 1) for place in places)

    @property
    def first_error(self) -> SidecarError | None:
        errors = (each.exception(0) for each in self._deliveries if each.done())
        return next((error for error in errors if error is not None), None)

    @property
    def failed_count(self) -> int:
        return sum(each.done() and each.exception(0) is not None for each in self._deliveries)


class FakeProducer:
    """Takes what Producer takes, with the same checks of arguments, and delivers at once. Thread-safe.

    ``records``: all that was sent, in order. ``fail_with(record)``: the error of a record that is to fail, None for the
    others; set it at any time. ``hold()`` keeps outcomes back, and ``release()`` lets them go. ``partitions``: of each
    topic; records with a key go by its hash, others in turns. Callbacks run in the thread that sends or releases.
    """

    def __init__(
        self,
        *,
        partitions: int = 1,
        fail_with: FailWith | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> None:
        self.records: list[FakeRecord] = []
        self.fail_with = fail_with
        self.closed = False
        self._serializers = serializers_of(key_serializer, value_serializer)
        self._partitions = partitions
        self._offsets: dict[tuple[str, int], int] = {}
        self._held: list[FakeDelivery] | None = None
        self._failed_ever = 0
        self._reported = 0
        self._lock = threading.RLock()

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> FakeDelivery:
        """Raises TypeError or ValueError as Producer.send(), SerializationFailed and ProducerClosed."""
        if self._serializers is not None:
            key, value = self._serializers.record(topic, key, value)
        return self._take(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def _take(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> FakeDelivery:
        if self.closed:
            raise ProducerClosed("Cannot perform operation after producer has been closed.")
        packed, _ = full_record(key, value, headers, partition, timestamp_ms)
        fields = (*packed, None, None, None)[:5]
        record = FakeRecord(topic, fields[0], fields[1], fields[2], partition, timestamp_ms)
        delivery = FakeDelivery(record, on_delivery)
        with self._lock:
            self.records.append(record)
            if self._held is not None:
                self._held.append(delivery)
                return delivery
        self._decide(delivery)
        return delivery

    def send_many(
        self, topic: str, records: Iterable[Sequence[Any]], on_delivery: OnDelivery | None = None
    ) -> FakeBulkDelivery:
        """Each record is (key, value[, headers[, partition[, timestamp_ms]]])."""
        if self._serializers is not None:
            records = self._serializers.rows(topic, records)
        rows = [(*row, None, None, None)[:5] for row in records]
        sent = [
            self._take(topic, value, key, headers, partition, timestamp_ms, on_delivery)
            for key, value, headers, partition, timestamp_ms in rows
        ]
        return FakeBulkDelivery(sent)

    def stats(self) -> ProducerStats:
        """As Producer.stats(), of a daemon that is always there."""
        with self._lock:
            waiting, sent = len(self._held or ()), len(self.records)
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
        """Keep the outcomes of what is sent from now on, as a broker that does not answer."""
        with self._lock:
            if self._held is None:
                self._held = []

    def release(self) -> None:
        """Decide all that is held, in order, and hold no more."""
        with self._lock:
            held, self._held = self._held or [], None
        for delivery in held:
            self._decide(delivery)

    def flush(
        self, timeout: float | None = None, *, until: Literal["delivered", "accepted"] = "delivered"
    ) -> int:
        """How many records failed since the last flush. Raises TimeoutError while outcomes are held."""
        if self._held and until == "delivered":
            raise TimeoutError(
                f"flush() timed out after {timeout} s: {len(self._held)} records have no outcome yet."
            )
        with self._lock:
            newly, self._reported = self._failed_ever - self._reported, self._failed_ever
        return newly

    def close(self, timeout: float | None = None) -> None:
        """Held records are delivered; with ``close(0)`` they fail with DeliveryCancelled."""
        if timeout == 0:
            with self._lock:
                held, self._held = self._held or [], None
                self._failed_ever += len(held)
            for delivery in held:
                delivery.complete(
                    DeliveryCancelled("The producer was closed before the record was delivered."), None
                )
        self.release()
        self.closed = True

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decide(self, delivery: FakeDelivery) -> None:
        record = delivery.record
        error = self.fail_with(record) if self.fail_with is not None else None
        if error is not None:
            with self._lock:
                self._failed_ever += 1
            delivery.complete(error, None)
            return
        with self._lock:
            partition = record.partition
            if partition is None:
                turn = crc32(record.key) if record.key is not None else len(self.records)
                partition = turn % self._partitions
            offset = self._offsets.get((record.topic, partition), 0)
            self._offsets[record.topic, partition] = offset + 1
        timestamp_ms = record.timestamp_ms if record.timestamp_ms is not None else time.time_ns() // 1_000_000
        delivery.complete(None, RecordMetadata(record.topic, partition, offset, timestamp_ms))


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture
    def fake_producer() -> Iterator[FakeProducer]:
        """A FakeProducer that is closed when the test ends."""
        with FakeProducer() as producer:
            yield producer
