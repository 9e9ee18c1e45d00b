"""The pure-Python half of Producer: send(). The compiled half calls it for all but plain records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_stub.arguments import check_on_delivery
from client_stub.hot import Delivery, OnDelivery, OpenStream
from client_stub.packer import LARGE_BYTES, PLAIN_OVERHEAD_BYTES, Headers, full_record

if TYPE_CHECKING:
    from client_stub.outbox import Outbox
    from client_stub.serializers import Serializers


class ProducerCore:
    """The base of Producer without the compiled module."""

    _outbox: Outbox
    _streams: dict[str, OpenStream] | None
    """The streams that the compiled send() looks up; None when serializers rule out its fast path."""
    _serializers: Serializers | None

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Queue one record and return its future. Waits only for room, when 8 MiB already wait for the daemon.

        - topic: str of 1 to 249 bytes
        - value, key: bytes, bytearray, memoryview or None (Kafka's null), or what the serializers take
        - headers: pairs of (str, bytes or None), or a mapping
        - partition: int; None: the daemon's partitioner decides
        - timestamp_ms: int; None: now
        - on_delivery(error, metadata): called in the io thread; error is None on success

        Raises TypeError or ValueError for a wrong argument, RecordTooLarge, SerializationFailed, ProducerClosed,
        DaemonRefused, TopicLimit, and after waiting for room BufferExhausted or DaemonUnreachable. A call that raises
        has queued nothing. Thread-safe.
        """
        if self._serializers is not None:
            key, value = self._serializers.record(topic, key, value)
        if on_delivery is not None and not callable(on_delivery):
            check_on_delivery(on_delivery)
        try:
            stream = self._outbox.streams.get(topic)
        except TypeError:  # a list, which has no hash: the check below gives the right error
            stream = None
        if stream is None:
            stream = self._open_stream(topic)
        if (
            headers is None
            and partition is None
            and timestamp_ms is None
            and (value.__class__ is bytes or value is None)
            and (key.__class__ is bytes or key is None)
        ):
            record: tuple[Any, ...] = (key, value)
            size = PLAIN_OVERHEAD_BYTES
            if value is not None:
                size += len(value)
            if key is not None:
                size += len(key)
        else:
            record, size = full_record(key, value, headers, partition, timestamp_ms)
        if size > LARGE_BYTES:
            self.check_size(topic, record)
        delivery: Delivery = stream.outbox.add(stream, record, size, on_delivery, timestamp_ms)
        return delivery

    def _open_stream(self, topic: str) -> OpenStream:
        raise NotImplementedError

    def check_size(self, topic: str, record: tuple[Any, ...]) -> None:
        raise NotImplementedError
