"""CheckedSend: the part of send() that is not compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_stub.native.hot import ProducerCore
from client_stub.records.arguments import check_on_delivery
from client_stub.records.packer import LARGE_BYTES, PLAIN_OVERHEAD_BYTES, Headers
from client_stub.records.record_fields import full_record

if TYPE_CHECKING:
    from client_stub.native.hot import Delivery, OnDelivery, OpenStream
    from client_stub.outbox.outbox import Outbox
    from client_stub.records.serializers import Serializers


class CheckedSend(ProducerCore):
    """The base of Producer: the compiled send() takes plain records into an open submission and leaves the others to
    ``_send_slow``.
    """

    _outbox: Outbox
    _serializers: Serializers | None

    def _send_slow(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Delivery:
        if self._serializers is not None:
            key, value = self._serializers.record(topic, key, value)
        if on_delivery is not None and not callable(on_delivery):
            check_on_delivery(on_delivery)
        stream = self._outbox.streams.get(topic) if isinstance(topic, str) else None
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
            stream.outbox.size_limits.check(topic, record)
        return stream.outbox.add(stream, record, size, on_delivery, timestamp_ms)

    def _open_stream(self, topic: str) -> OpenStream:
        raise NotImplementedError
