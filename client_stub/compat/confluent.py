"""A twin of ``confluent_kafka.Producer`` (confluent-kafka-python, 2.x) over the daemon of this host.

::

    from client_stub.compat.confluent import KafkaError, KafkaException, Producer

What is the same: produce() does not wait for Kafka, callbacks run in poll() and flush() of the caller's thread, a full
buffer is a BufferError, len() counts what is under way. What is not: configuration, statistics and transactions, which
the daemon has or nobody; ``list_topics``; ``Message`` objects know their headers.
"""

from __future__ import annotations

import os
import queue
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from client_stub.compat.settings import producer_settings
from client_stub.errors import BufferExhausted, DaemonUnreachable, SidecarError
from client_stub.outbox import CONNECT_TIMEOUT_MS
from client_stub.producer import Producer as _Producer
from client_stub.record_metadata import RecordMetadata
from client_stub.wire import LocalCode

TIMESTAMP_NOT_AVAILABLE: Final = 0
TIMESTAMP_CREATE_TIME: Final = 1
LOOK_S: Final = 0.1
"""poll() looks this often whether anything is under way at all: it never waits for what will not come."""

OnDelivery: TypeAlias = "Callable[[KafkaError | None, Message], object]"


class KafkaError:
    """An error with librdkafka's code: Kafka's own from 0 on, negative for those of the client."""

    _ALL_BROKERS_DOWN: Final = -187
    _INVALID_ARG: Final = -186
    _MSG_TIMED_OUT: Final = -192
    _PURGE_QUEUE: Final = -152
    _STATE: Final = -172
    _UNKNOWN_PARTITION: Final = -190
    MSG_SIZE_TOO_LARGE: Final = 10
    TOPIC_AUTHORIZATION_FAILED: Final = 29
    UNKNOWN_TOPIC_OR_PART: Final = 3

    def __init__(self, code: int, name: str, text: str, *, retriable: bool = False) -> None:
        self._code = code
        self._name = name
        self._text = text
        self._retriable = retriable

    def code(self) -> int:
        return self._code

    def name(self) -> str:
        return self._name

    def str(self) -> str:
        return self._text

    def retriable(self) -> bool:
        return self._retriable

    def fatal(self) -> bool:
        return False

    def txn_requires_abort(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return self._code == (other.code() if isinstance(other, KafkaError) else other)

    def __hash__(self) -> int:
        return hash(self._code)

    def __str__(self) -> str:  # type: ignore[valid-type]  # the method str() hides the class
        return f"KafkaError{{code={self._name},val={self._code},str={self._text!r}}}"

    __repr__ = __str__


class KafkaException(Exception):
    """Raised with a KafkaError as its only argument."""


_LOCAL: Final[Mapping[int, tuple[int, str]]] = {
    LocalCode.EXPIRED: (KafkaError._MSG_TIMED_OUT, "_MSG_TIMED_OUT"),
    LocalCode.METADATA_TIMEOUT: (KafkaError._MSG_TIMED_OUT, "_MSG_TIMED_OUT"),
    LocalCode.DISCONNECTED: (KafkaError._MSG_TIMED_OUT, "_MSG_TIMED_OUT"),
    LocalCode.RECORD_TOO_LARGE: (KafkaError.MSG_SIZE_TOO_LARGE, "MSG_SIZE_TOO_LARGE"),
    LocalCode.INVALID_PARTITION: (KafkaError._UNKNOWN_PARTITION, "_UNKNOWN_PARTITION"),
    LocalCode.NO_PARTITIONS: (KafkaError.UNKNOWN_TOPIC_OR_PART, "UNKNOWN_TOPIC_OR_PART"),
    LocalCode.TOPIC_UNAUTHORIZED: (KafkaError.TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED"),
    LocalCode.CANCELLED: (KafkaError._PURGE_QUEUE, "_PURGE_QUEUE"),
    LocalCode.ABORTED: (KafkaError._PURGE_QUEUE, "_PURGE_QUEUE"),
}


def error_of(error: SidecarError) -> KafkaError:
    """The same error by librdkafka's code; one without a twin there is _STATE, with our name."""
    found = _LOCAL.get(error.code)
    if found is None:
        is_kafkas = 0 < error.code < min(_LOCAL)
        found = (error.code, error.name) if is_kafkas else (KafkaError._STATE, error.name)
    return KafkaError(*found, str(error), retriable=error.retriable)


class _Sent(NamedTuple):
    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, Any]] | None
    partition: int
    at_s: float


class Message:
    """One record and where it stands; ``offset()`` and ``partition()`` are None and -1 for a failed one."""

    def __init__(
        self, sent: _Sent, error: KafkaError | None, metadata: RecordMetadata | None, latency_s: float
    ) -> None:
        self._sent, self._error, self._metadata, self._latency_s = sent, error, metadata, latency_s

    def topic(self) -> str:
        return self._sent.topic

    def partition(self) -> int:
        return self._sent.partition if self._metadata is None else self._metadata.partition

    def offset(self) -> int | None:
        return None if self._metadata is None else self._metadata.offset

    def key(self) -> bytes | None:
        return self._sent.key

    def value(self) -> bytes | None:
        return self._sent.value

    def headers(self) -> list[tuple[str, Any]] | None:
        return self._sent.headers

    def error(self) -> KafkaError | None:
        return self._error

    def timestamp(self) -> tuple[int, int]:
        """(type, ms since 1970)."""
        if self._metadata is None:
            return TIMESTAMP_NOT_AVAILABLE, 0
        return TIMESTAMP_CREATE_TIME, self._metadata.timestamp_ms

    def latency(self) -> float:
        """Seconds from produce() to the outcome."""
        return self._latency_s

    def __len__(self) -> int:
        return len(self._sent.value or b"")


class Producer:
    """See the module. ``sidecar.run_dir`` and ``sidecar.token`` name the daemon, ``client.id`` the client, and
    ``on_delivery`` a callback for records without one. Thread-safe and fork-safe.

    Raises ValueError for ``transactional.id``.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, *, logger: object = None, **more: Any
    ) -> None:
        settings = {**(config or {}), **more}
        self._on_delivery: OnDelivery | None = settings.pop("on_delivery", None)
        for callback in ("error_cb", "stats_cb", "throttle_cb"):
            settings.pop(callback, None)  # the daemon's log and metrics have what they would say
        self._producer = _Producer(max_block_ms=CONNECT_TIMEOUT_MS, **producer_settings(settings))
        self._forget_events()
        _producers.add(self)

    def _forget_events(self) -> None:
        self._events: queue.SimpleQueue[tuple[OnDelivery, KafkaError | None, Message]] = queue.SimpleQueue()

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
    ) -> None:
        """Queue one record. Raises BufferError when no more fit now, KafkaException for one that is refused, and
        TypeError for what is neither text nor bytes. The first call waits up to 5 s for the daemon."""
        pairs = None if headers is None else [(name, _bytes(each)) for name, each in _pairs(headers)]
        value, key = _bytes(value), _bytes(key)
        report = on_delivery or callback or self._on_delivery
        decided = None
        if report is not None:
            decided = partial(
                self._decided, _Sent(topic, value, key, pairs, partition, time.monotonic()), report
            )
        outbox = self._producer._outbox
        try:
            self._producer.send(
                topic, value, key, pairs, None if partition < 0 else partition, timestamp or None, decided
            )
        except BufferExhausted as error:
            raise BufferError(f"Local: Queue full: {error}") from error
        except DaemonUnreachable as error:
            if outbox.attached_once:
                raise BufferError(f"Local: Queue full: {error}") from error
            down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "_ALL_BROKERS_DOWN", str(error), retriable=True)
            raise KafkaException(down) from error
        except SidecarError as error:
            raise KafkaException(error_of(error)) from error
        outbox.max_block_ms = 0.0  # from now on a call without room says so at once

    def poll(self, timeout: float | None = -1) -> int:
        """Run callbacks of decided records; how many. Waits at most ``timeout`` seconds for the first one (None or
        negative: as long as a record is under way). What a callback raises comes out here."""
        served = self._serve()
        ends = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        while not served:
            left = LOOK_S if ends is None else min(LOOK_S, ends - time.monotonic())
            if left <= 0 or (ends is None and not len(self)):
                return 0
            try:
                report, error, message = self._events.get(timeout=left)
            except queue.Empty:
                continue
            report(error, message)
            served = 1 + self._serve()
        return served

    def flush(self, timeout: float | None = -1) -> int:
        """Wait at most ``timeout`` seconds (None or negative: for ever) until nothing is under way, and run the
        callbacks; how many records are left."""
        ends = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        while True:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            try:
                self._producer.flush(left)
            except TimeoutError:
                self._serve()
                return len(self)
            self._serve()
            if not len(self):
                return 0

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Not there: raises NotImplementedError. close() of ``client_stub.Producer`` fails what is not delivered."""
        raise NotImplementedError(
            "purge() is not there: the daemon has the records. Use client_stub.Producer.close(0)."
        )

    def __len__(self) -> int:
        return self._producer.stats().waiting + self._events.qsize()

    def __bool__(self) -> bool:
        return True

    def _serve(self) -> int:
        served = 0
        while True:
            try:
                report, error, message = self._events.get_nowait()
            except queue.Empty:
                return served
            served += 1
            report(error, message)

    def _decided(
        self, sent: _Sent, report: OnDelivery, error: SidecarError | None, metadata: RecordMetadata | None
    ) -> None:
        said = None if error is None else error_of(error)
        self._events.put((report, said, Message(sent, said, metadata, time.monotonic() - sent.at_s)))


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Forget the events of the parent's records: they are the parent's to hear."""
    for producer in list(_producers):
        producer._forget_events()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _bytes(given: Any) -> bytes | None:
    return given.encode() if isinstance(given, str) else given  # send() checks what is neither


def _pairs(headers: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    return headers.items() if isinstance(headers, Mapping) else headers
