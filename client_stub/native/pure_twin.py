"""MessageCore and TwinCore in pure Python: the way of a record of confluent's twin, from produce() to its callback.

In ``_native`` TwinCore puts plain records into an open submission itself.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Callable
from typing import Any

from client_stub.system.originals import monotonic


class MessageCore:
    """A record as produce() took it, and then its outcome. As the record's callback it waits for the next poll()."""

    __slots__ = (
        "_at_s",
        "_error",
        "_headers",
        "_key",
        "_latency_s",
        "_metadata",
        "_partition",
        "_report",
        "_topic",
        "_twin",
        "_value",
    )

    def __init__(
        self, twin: TwinCore, report: Any, topic: str, value: Any, key: Any, headers: Any, partition: int
    ) -> None:
        self._twin, self._report = twin, report
        self._topic = topic
        self._value: bytes | None = value
        self._key: bytes | None = key
        self._headers: list[tuple[str, Any]] | None = headers
        self._partition = partition
        self._error: Any = None
        self._metadata: Any = None
        self._latency_s = 0.0
        self._at_s = monotonic()

    def __call__(self, error: Exception | None, metadata: Any) -> None:
        """The outcome is there. Io thread."""
        twin = self._twin
        if error is not None:
            self._error = twin._error_of(error)
        elif twin._only_errors:
            return
        self._metadata = metadata
        self._latency_s = monotonic() - self._at_s
        twin._event_count += 1
        is_first = not twin._arrived
        twin._arrived.append(self)
        if is_first:
            twin._news.put(None)

    def serve(self) -> None:
        """Call the program's callback, once."""
        report, self._report = self._report, None
        report(self._error, self)


class TwinCore:
    """The base of confluent's Producer without the compiled module."""

    _streams: dict[str, Any]
    _message_kind: type[Any]
    _arrived: deque[MessageCore]
    """Messages whose callback is to be called by poll() or flush()."""
    _news: queue.SimpleQueue[None]
    """Has an item when messages have arrived: for a poll() that waits."""
    _event_count: int
    _on_delivery: Callable[..., object] | None
    _only_errors: bool
    _is_closed: bool

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: Callable[..., object] | None = None,
        on_delivery: Callable[..., object] | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Queue one record. Raises BufferError when there is no room, KafkaException for a record that is refused, and
        TypeError for a key or value that is neither text nor bytes. The first call waits up to 5 s for the daemon.
        """
        self._produce(topic, value, key, partition, callback, on_delivery, timestamp, headers)

    def poll(self, timeout: float | None = -1) -> int:
        """Run the callbacks of decided records. Returns how many, or how many records without a callback were decided.

        Waits at most ``timeout`` seconds for the first outcome (None or negative: until there is one, also of a record
        that another thread has yet to produce). Exceptions of callbacks are raised here.
        """
        return self._poll(timeout)

    def _forget_arrived(self) -> None:
        self._arrived = deque()

    def _arrived_count(self) -> int:
        return len(self._arrived)

    def _serve(self, raised: list[Exception] | None = None) -> int:
        """Run the callbacks of all messages that wait. Returns how many. An exception ends this, or is appended to
        ``raised`` if it is the first.
        """
        with contextlib.suppress(queue.Empty):
            while not self._news.empty():
                self._news.get_nowait()
        served = 0
        while True:
            try:
                message = self._arrived.popleft()
            except IndexError:
                return served
            served += 1
            try:
                message.serve()
            except Exception as failure:
                if raised is None:
                    raise
                if not raised:
                    raised.append(failure)

    def _produce(self, *record: Any) -> None:
        raise NotImplementedError

    def _poll(self, timeout: float | None) -> int:
        raise NotImplementedError

    def _error_of(self, error: Any) -> object:
        raise NotImplementedError
