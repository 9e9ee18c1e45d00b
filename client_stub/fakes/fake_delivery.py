"""FakeDelivery and FakeBulkDelivery: the futures of a FakeProducer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from client_stub.errors import SidecarError
from client_stub.native.hot import OnDelivery, refuses_await
from client_stub.outbox.delivery import bulk_text, joined
from client_stub.record_metadata import OffsetRange, RecordMetadata
from client_stub.records.arguments import check_callable, checked_wait
from client_stub.records.habits import no_pickle, with_hints
from client_stub.system.originals import monotonic

log = logging.getLogger("client_stub")


class FakeRecord(NamedTuple):
    """One record as it was sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    partition: int | None
    timestamp_ms: int | None


@refuses_await
@with_hints
class FakeDelivery:
    """A fake Delivery. Thread-safe."""

    def __init__(
        self,
        record: FakeRecord,
        on_delivery: OnDelivery | None,
        refuse_wait_in_callback: Callable[[str], None],
    ) -> None:
        self.record = record
        self._refuse_wait_in_callback = refuse_wait_in_callback
        self._on_delivery = on_delivery
        self._over = threading.Event()
        self._error: SidecarError | None = None
        self._metadata: RecordMetadata | None = None
        self._callbacks: list[Callable[[FakeDelivery], object]] = []
        self._lock = threading.Lock()

    @property
    def has_callback(self) -> bool:
        return self._on_delivery is not None

    def done(self) -> bool:
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The record's metadata. Raises the record's error, or TimeoutError while the producer holds its
        records back.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert self._metadata is not None
        return self._metadata

    def exception(self, timeout: float | None = None) -> SidecarError | None:
        timeout = checked_wait(timeout)
        if not self._over.is_set():
            self._refuse_wait_in_callback("result()")
        if not self._over.wait(timeout):
            raise TimeoutError(
                f"The record for topic {self.record.topic} has no outcome after {timeout} s yet."
            )
        return self._error

    def add_done_callback(self, callback: Callable[[FakeDelivery], object]) -> None:
        """Call ``callback(delivery)`` in the thread that sends or releases, or at once if the outcome is known. An
        exception of the callback is logged.
        """
        check_callable("callback", callback, "callback(delivery)")
        with self._lock:
            if not self._over.is_set():
                self._callbacks.append(callback)
                return
        _call_back(callback, self)

    def __reduce__(self) -> NoReturn:
        raise no_pickle("FakeDelivery")

    def complete(self, error: SidecarError | None, metadata: RecordMetadata | None) -> None:
        self._error, self._metadata = error, metadata
        with self._lock:
            self._over.set()
        if self._on_delivery is not None:
            try:
                self._on_delivery(error, metadata)
            except Exception:
                log.exception("An on_delivery callback failed; the others continue.")
        for callback in self._callbacks:
            _call_back(callback, self)


def _call_back(callback: Callable[[Any], object], delivery: FakeDelivery | FakeBulkDelivery) -> None:
    try:
        callback(delivery)
    except Exception:
        log.exception("A done callback failed; the others continue.")


@refuses_await
@with_hints
class FakeBulkDelivery:
    """A fake BulkDelivery."""

    def __init__(self, deliveries: Sequence[FakeDelivery]) -> None:
        self.deliveries = deliveries
        self.count = len(deliveries)
        self.is_watched = False
        """Whether the caller asks for its error; otherwise flush() raises it."""

    def done(self) -> bool:
        return all(each.done() for each in self.deliveries)

    def result(self, timeout: float | None = None) -> int:
        timeout = checked_wait(timeout)
        self.watch()
        ends = None if timeout is None else monotonic() + timeout
        for each in self.deliveries:
            each.result(None if ends is None else max(0.0, ends - monotonic()))
        return self.count

    def exception(self, timeout: float | None = None) -> SidecarError | None:
        try:
            self.result(timeout)
        except SidecarError as error:
            if error is self.first_error:
                return error
            raise
        return None

    def __reduce__(self) -> NoReturn:
        raise no_pickle("FakeBulkDelivery")

    def __repr__(self) -> str:
        return bulk_text(self.count, self.failed_count, is_done=self.done())

    def add_done_callback(self, callback: Callable[[FakeBulkDelivery], object]) -> None:
        """Call ``callback(delivery)`` once every record has its outcome, and otherwise as
        ``FakeDelivery.add_done_callback``.
        """
        check_callable("callback", callback, "callback(delivery)")
        self.watch()
        left = len(self.deliveries)

        def count(_: FakeDelivery) -> None:
            nonlocal left
            left -= 1
            if not left:
                _call_back(callback, self)

        for each in self.deliveries:
            each.add_done_callback(count)
        if not self.deliveries:
            _call_back(callback, self)

    def watch(self) -> None:
        """Mark this future as watched by the caller: flush() and close() then do not raise its error."""
        self.is_watched = True

    def offsets(self) -> tuple[OffsetRange, ...]:
        """The places of the delivered records, by partition and offset."""
        places = [each.result(0) for each in self.deliveries if each.done() and each.exception(0) is None]
        return joined((place.partition, place.offset, 1) for place in places)

    @property
    def first_error(self) -> SidecarError | None:
        errors = (each.exception(0) for each in self.deliveries if each.done())
        return next((error for error in errors if error is not None), None)

    @property
    def failed_count(self) -> int:
        return sum(each.done() and each.exception(0) is not None for each in self.deliveries)
