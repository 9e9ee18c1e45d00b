"""A replacement of ``confluent_kafka.Producer`` (confluent-kafka-python, 2.x) that uses the daemon of this host.

::

    from client_stub.compat.confluent import KafkaError, KafkaException, Producer

The same as there: produce() does not wait for Kafka, and callbacks run in poll() and flush() in the caller's thread. A
full buffer raises BufferError, len() counts the records under way, and a ``with`` block ends with close().

Different: configuration and statistics are the daemon's, and there are no transactions and no ``list_topics``.
``Message`` objects have headers, and messages of produce_batch() may have headers and timestamps.
"""

from __future__ import annotations

import os
import queue
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeAlias

from client_stub.arguments import check_callable, checked_wait
from client_stub.compat.kafka_error import KafkaError, KafkaException, error_of
from client_stub.compat.settings import producer_settings
from client_stub.errors import BufferExhausted, DaemonUnreachable, SidecarError
from client_stub.outbox import CONNECT_TIMEOUT_MS
from client_stub.producer import ERROR_CLOSE_S
from client_stub.producer import Producer as _Producer
from client_stub.producer_core import checked_headers
from client_stub.record_metadata import RecordMetadata

__all__ = [
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "error_of",
]

TIMESTAMP_NOT_AVAILABLE: Final = 0
TIMESTAMP_CREATE_TIME: Final = 1
LOOK_S: Final = 0.1
"""How often poll() checks whether any record is still under way, so that it does not wait for an event that cannot
come.
"""

OnDelivery: TypeAlias = "Callable[[KafkaError | None, Message], object]"


class _Sent(NamedTuple):
    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, Any]] | None
    partition: int
    at_s: float


class Message:
    """One record and its place in the log. For a failed record ``offset()`` is None and ``partition()`` the one asked
    for, or -1.
    """

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

    def leader_epoch(self) -> int | None:
        """Always None, as for every message of a producer."""
        return None

    def set_topic(self, value: Any) -> None:
        self._sent = self._sent._replace(topic=value)

    def set_key(self, value: Any) -> None:
        self._sent = self._sent._replace(key=value)

    def set_value(self, value: Any) -> None:
        """Set the value to any object, as a deserializer would."""
        self._sent = self._sent._replace(value=value)

    def set_headers(self, value: Any) -> None:
        self._sent = self._sent._replace(headers=value)

    def set_error(self, value: Any) -> None:
        self._error = value

    def timestamp(self) -> tuple[int, int]:
        """(type, ms since 1970)."""
        if self._metadata is None:
            return TIMESTAMP_NOT_AVAILABLE, 0
        return TIMESTAMP_CREATE_TIME, self._metadata.timestamp_ms

    def latency(self) -> float:
        """Seconds from produce() to the outcome."""
        return self._latency_s

    def __len__(self) -> int:
        return 0 if self._sent.value is None else len(self._sent.value)


class Producer:
    """The producer; see the module. ``sidecar.run_dir`` and ``sidecar.token`` name the daemon, ``client.id`` names the
    client, and ``on_delivery`` is the callback of records without their own. Thread-safe and fork-safe.

    Raises ValueError for ``transactional.id``.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, *, logger: object = None, **more: Any
    ) -> None:
        if config is not None and not isinstance(config, Mapping):
            raise TypeError(f"config must be a mapping of settings, not {type(config).__name__}.")
        settings = {**(config or {}), **more}
        self._on_delivery: OnDelivery | None = settings.pop("on_delivery", None)
        if self._on_delivery is not None and not callable(self._on_delivery):
            raise KafkaException(
                KafkaError(KafkaError._INVALID_ARG, "on_delivery requires a callable object")
            )
        self._is_closed = False
        for callback in ("error_cb", "stats_cb", "throttle_cb"):
            settings.pop(callback, None)  # the daemon's log and metrics report the same
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
        """Queue one record. Raises BufferError when there is no room, KafkaException for a record that is refused, and
        TypeError for a key or value that is neither text nor bytes. The first call waits up to 5 s for the daemon.
        """
        self._refuse_when_closed()
        _check_callbacks(callback=callback, on_delivery=on_delivery)
        pairs = None if headers is None else checked_headers(_encoded(headers))
        value, key = _bytes(value), _bytes(key)
        number = None if isinstance(partition, int) and partition < 0 else partition
        report = on_delivery or callback or self._on_delivery
        decided = None
        if report is not None:
            decided = partial(
                self._decided, _Sent(topic, value, key, pairs, partition, time.monotonic()), report
            )
        outbox = self._producer._outbox
        try:
            self._producer.send(topic, value, key, pairs, number, timestamp or None, decided)
        except BufferExhausted as error:
            raise BufferError(f"Local: Queue full: {error}") from error
        except DaemonUnreachable as error:
            if outbox.attached_once:
                raise BufferError(f"Local: Queue full: {error}") from error
            down = KafkaError(KafkaError._ALL_BROKERS_DOWN, str(error), retriable=True)
            raise KafkaException(down) from error
        except SidecarError as error:
            raise KafkaException(error_of(error)) from error
        outbox.max_block_ms = 0.0  # from now on a call without room fails at once

    def produce_batch(
        self,
        topic: str,
        messages: list[MutableMapping[str, Any]],
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
    ) -> int:
        """Queue a list of messages with ``value``, ``key``, ``partition`` and ``callback``. Returns how many were
        queued.

        A message that is refused gets its KafkaError as ``_error``, and the others are still queued. Unlike
        confluent_kafka, this sends the headers and timestamps of messages, too. Raises TypeError for an item that is
        not a message, before any is queued.
        """
        self._refuse_when_closed()
        if not isinstance(messages, list):
            raise TypeError("messages must be a list")
        for index, message in enumerate(messages):
            if not isinstance(message, MutableMapping):
                raise TypeError(f"Message at index {index} must be a dict")
            for field in ("value", "key"):
                if not isinstance(message.get(field), str | bytes | None):
                    raise TypeError(f"Message {field} at index {index} must be bytes or str")
            _check_callbacks(callback=message.get("callback"), on_delivery=on_delivery)
        queued = 0
        for message in messages:
            try:
                self.produce(
                    topic,
                    message.get("value"),
                    message.get("key"),
                    message.get("partition", partition),
                    message.get("callback", on_delivery),
                    timestamp=message.get("timestamp", 0),
                    headers=message.get("headers"),
                )
                queued += 1
            except BufferError as error:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL, str(error), retriable=True)
            except KafkaException as error:
                message["_error"] = error.args[0]
        return queued

    def poll(self, timeout: float | None = -1) -> int:
        """Run the callbacks of decided records. Returns how many.

        Waits at most ``timeout`` seconds for the first one (None or negative: as long as any record is under way).
        Exceptions of callbacks are raised here.
        """
        self._refuse_when_closed()
        timeout = checked_wait(timeout)
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
        """Wait at most ``timeout`` seconds (None or negative: without limit) until no record is under way, and run the
        callbacks. Returns how many records are left.
        """
        self._refuse_when_closed()
        return self._flush(timeout)

    def _flush(self, timeout: float | None) -> int:
        timeout = checked_wait(timeout)
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

    def close(self) -> bool:
        """Wait until no record is under way, run the callbacks, and close. A second call does nothing."""
        self._close(None)
        return True

    def _close(self, timeout: float | None) -> None:
        if self._is_closed:
            return
        try:
            self._flush(timeout)
        finally:
            self._is_closed = True
            self._producer.close(0)
            self._serve()  # callbacks of the records that failed for lack of time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close. After an exception it waits at most 5 s, as client_stub.Producer does."""
        self._close(None if kind is None else ERROR_CLOSE_S)

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("Producer has been closed")

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Not supported: raises NotImplementedError. close() of ``client_stub.Producer`` fails
        undelivered records.
        """
        raise NotImplementedError(
            "purge() is not there: the daemon has the records. Use client_stub.Producer.close(0)."
        )

    def __len__(self) -> int:
        return 0 if self._is_closed else self._producer.stats().waiting + self._events.qsize()

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
    """Forget the events of the parent's records: only the parent reports them."""
    for producer in list(_producers):
        producer._forget_events()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _bytes(given: Any) -> bytes | None:
    return given.encode() if isinstance(given, str) else given  # send() refuses other types


def _encoded(headers: Any) -> Any:
    """Headers whose values are bytes where they were text; ``checked_headers`` refuses all that is no header."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        return headers
    return [
        (pair[0], _bytes(pair[1])) if isinstance(pair, tuple | list) and len(pair) == 2 else pair
        for pair in pairs
    ]


def _check_callbacks(**callbacks: object) -> None:
    """Raises TypeError for one that cannot be called: poll() would do so later, for another record."""
    for name, given in callbacks.items():
        if given is not None:
            check_callable(name, given, f"{name}(error, message)")
