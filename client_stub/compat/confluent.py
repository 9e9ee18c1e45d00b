"""A replacement of ``confluent_kafka.Producer`` (confluent-kafka-python, 2.x) that uses the daemon of this host.

::

    from client_stub.compat.confluent import KafkaError, KafkaException, Producer

The same as there: produce() does not wait for Kafka, and callbacks run in poll() and flush() in the caller's thread. A
full buffer raises BufferError, len() counts the records under way, and a ``with`` block ends with close().

Different: configuration and statistics are the daemon's, and there is no ``list_topics``.
``Message`` objects have headers, and messages of produce_batch() may have headers and timestamps.
"""

from __future__ import annotations

import operator
import os
import queue
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, Self, TypeAlias

from client_stub.compat.kafka_error import KafkaError, KafkaException, error_of
from client_stub.compat.message import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from client_stub.compat.settings import asked_cluster, producer_settings
from client_stub.compat.transactions import ConfluentTransactions
from client_stub.contract.wire import PARTITIONERS
from client_stub.engine.engine import ERROR_CLOSE_S, Engine
from client_stub.errors import BufferExhausted, DaemonUnreachable, SidecarError
from client_stub.native.hot import TwinCore
from client_stub.outbox.outbox import CONNECT_TIMEOUT_MS
from client_stub.records.arguments import check_callable, checked_wait
from client_stub.records.record_fields import checked_headers, header_pairs
from client_stub.system.originals import SimpleQueue, monotonic

__all__ = [
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "error_of",
]

CHECK_S: Final = 0.1
FIRST_CHECK_S: Final = 0.001
"""How often poll() looks for outcomes of records without a callback, which put no event into its queue. The pause
doubles from the first to the longest.
"""

_TAKEN: Final = ("partitioner",)
_TRUE: Final = frozenset({"true", "t", "1"})
"""How librdkafka takes a setting for true."""

OnDelivery: TypeAlias = "Callable[[KafkaError | None, Message], object]"


class Producer(ConfluentTransactions, TwinCore):
    """The producer; see the module. ``sidecar.run_dir`` and ``sidecar.token`` name the daemon, ``client.id`` names the
    client, and ``on_delivery`` is the callback of records without their own. With ``delivery.report.only.error``
    callbacks hear of failures only. ``transactional.id`` and ``transaction.timeout.ms`` are this producer's.
    Thread-safe and fork-safe.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, *, logger: object = None, **more: Any
    ) -> None:
        if config is not None and not isinstance(config, Mapping):
            raise TypeError(f"config must be a mapping of settings, not {type(config).__name__}.")
        settings = {**(config or {}), **more}
        self._message_kind = Message
        self._on_delivery: OnDelivery | None = settings.pop("on_delivery", None)
        if self._on_delivery is not None and not callable(self._on_delivery):
            raise KafkaException(
                KafkaError(KafkaError._INVALID_ARG, "on_delivery requires a callable object")
            )
        self._only_errors = str(settings.pop("delivery.report.only.error", False)).lower() in _TRUE
        self._is_closed = False
        partitioner = _partitioner_of(settings)
        self._engine = Engine(max_block_ms=CONNECT_TIMEOUT_MS, **producer_settings(settings, _TAKEN))
        self._engine.partition_by(partitioner)
        self._engine.ask_for(asked_cluster(settings))
        self._streams = self._engine.streams
        self._forget_events()
        _producers.add(self)

    def _forget_events(self) -> None:
        self._news: queue.SimpleQueue[None] = SimpleQueue()
        self._forget_arrived()
        self._event_count = 0
        self._silent_count = 0
        """Outcomes without an event that poll() and flush() have noticed."""

    def _produce(
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        callback: OnDelivery | None,
        on_delivery: OnDelivery | None,
        timestamp: int,
        headers: Mapping[str, Any] | Iterable[tuple[str, Any]] | None,
    ) -> None:
        """As ``produce``, of any record."""
        self._refuse_when_closed()
        _check_callbacks(callback=callback, on_delivery=on_delivery)
        pairs = None if headers is None else checked_headers(_encoded(headers))
        value, key = _bytes(value), _bytes(key)
        number = _partition(partition)
        # A callable object may be false, such as a list with __call__().
        report = callback if callback is not None else on_delivery
        if report is None:
            report = self._on_delivery
        decided = None
        if report is not None:
            decided = Message(self, report, topic, value, key, pairs, -1 if number is None else number)
        outbox = self._engine.outbox
        try:
            self._engine.send(topic, value, key, pairs, number, _timestamp(timestamp), decided)
        except BufferExhausted as error:
            raise BufferError(f"Local: Queue full: {error}") from error
        except DaemonUnreachable as error:
            if outbox.attached_once:
                raise BufferError(f"Local: Queue full: {error}") from error
            down = KafkaError(KafkaError._ALL_BROKERS_DOWN, str(error), retriable=True)
            raise KafkaException(down) from error
        except SidecarError as error:
            raise KafkaException(error_of(error)) from error
        outbox.block_at_most(0.0)  # from now on a call without room fails at once

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
                    message.get("callback"),
                    on_delivery,
                    timestamp=message.get("timestamp", 0),
                    headers=message.get("headers"),
                )
                queued += 1
            except BufferError as error:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL, str(error), retriable=True)
            except KafkaException as error:
                message["_error"] = error.args[0]
        return queued

    def _poll(self, timeout: float | None) -> int:
        """As ``poll``, of any timeout."""
        timeout = _seconds(timeout)
        self._refuse_when_closed()
        served = self._serve()
        if timeout == 0:
            return served  # programs call poll(0) for each record
        ends = None if timeout is None or timeout < 0 else monotonic() + timeout
        pause_s = FIRST_CHECK_S
        while not served:
            if silent := self._newly_silent():
                return silent
            left = pause_s if ends is None else min(pause_s, ends - monotonic())
            if left <= 0 or self._is_closed:
                return 0
            # Not by a wait of the queue, which would hold up the other green threads.
            if not self._engine.outbox.waiters.wait_until(self._news.qsize, left):
                pause_s = min(2 * pause_s, CHECK_S)
            served = self._serve()
        return served

    def flush(self, timeout: float | None = -1) -> int:
        """Wait at most ``timeout`` seconds (None or negative: without limit) until no record is under way, and run the
        callbacks. Returns how many records are left.

        A callback that raises holds up neither the wait nor the other callbacks. The first exception is raised at the
        end.
        """
        timeout = _seconds(timeout)
        self._refuse_when_closed()
        raised: list[Exception] = []
        left = self._flush(timeout, raised)
        if raised:
            raise raised[0]
        return left

    def _flush(self, timeout: float | None, raised: list[Exception]) -> int:
        ends = None if timeout is None or timeout < 0 else monotonic() + timeout
        while True:
            left = None if ends is None else max(0.0, ends - monotonic())
            try:
                self._engine.flush(left)
            except TimeoutError:
                self._serve(raised)
                return len(self)
            self._serve(raised)
            if not len(self):
                self._newly_silent()  # the next poll() waits for other records
                return 0

    def close(self) -> bool:
        """Wait until no record is under way, run the callbacks, and close. A second call does nothing.

        A callback that raises holds up neither the records nor the other callbacks. Its exception is raised at the end.
        """
        self._close(None)
        return True

    def _close(self, timeout: float | None) -> None:
        if self._is_closed:
            return
        raised: list[Exception] = []
        try:
            self._flush(timeout, raised)
        finally:
            self._is_closed = True
            self._engine.close(0)
            self._serve(raised)  # callbacks of the records that failed for lack of time
        if raised:
            raise raised[0]

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
        return 0 if self._is_closed else self._engine.stats().waiting + self._arrived_count()

    def __bool__(self) -> bool:
        return True

    def _newly_silent(self) -> int:
        """How many records without an event were decided since the last call."""
        stats = self._engine.stats()
        # An event is counted before its outcome is, so the difference is never too large.
        silent = stats.delivered + stats.failed - self._event_count
        newly, self._silent_count = silent - self._silent_count, max(silent, self._silent_count)
        return max(0, newly)

    _error_of = staticmethod(error_of)


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Forget the events of the parent's records: only the parent reports them."""
    for producer in list(_producers):
        producer._forget_events()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _partitioner_of(settings: dict[str, Any]) -> str:
    """Take ``partitioner`` out of the settings, also out of the old ones of topics. librdkafka's default partitions
    keys by CRC-32.
    """
    of_topics = settings.get("default.topic.config")
    if isinstance(of_topics, dict) and "partitioner" in of_topics:
        settings.setdefault("partitioner", of_topics["partitioner"])
        left = {name: value for name, value in of_topics.items() if name != "partitioner"}
        settings["default.topic.config"] = left or None
    named = settings.pop("partitioner", None)
    if named is None:
        return "consistent_random"
    if named not in PARTITIONERS:
        text = f'Invalid value for configuration property "partitioner": {named}. Take {", ".join(PARTITIONERS)}.'
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text))
    return str(named)


def _bytes(given: Any) -> bytes | None:
    if isinstance(given, bytearray | memoryview):
        return bytes(given)  # the program may change it before the callback sees the message
    return given.encode() if isinstance(given, str) else given  # send() refuses other types


def _partition(given: Any) -> Any:
    """Any integer, such as one of numpy, as confluent's C code takes it; None for -1. send() refuses other types."""
    try:
        number = operator.index(given)
    except TypeError:
        return given
    if number < -1:
        raise KafkaException(
            KafkaError(KafkaError._UNKNOWN_PARTITION, "Unable to produce message: Local: Unknown partition")
        )
    return None if number == -1 else number


def _timestamp(given: Any) -> Any:
    """Any integer; None, which is now, for 0 and for less: -1 is Kafka's word for no timestamp. send() refuses other
    types.
    """
    try:
        number = operator.index(given)
    except TypeError:
        return given
    return number if number > 0 else None


def _seconds(timeout: Any) -> float | None:
    """``checked_wait``, which also takes True and False, as confluent's C code does."""
    return checked_wait(float(timeout) if isinstance(timeout, bool) else timeout)


def _encoded(headers: Any) -> Any:
    """Headers whose values are bytes where they were text; ``checked_headers`` refuses all that is no header."""
    pairs = header_pairs(headers)
    if pairs is None:
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
