"""The pure-Python half of Producer: send(). The compiled half calls it for all that is not plain and quick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_stub.hot import Delivery, OnDelivery, OpenStream
from client_stub.packer import LARGE_BYTES, PLAIN_OVERHEAD_BYTES, Headers, full_record

if TYPE_CHECKING:
    from client_stub.outbox import Outbox


class ProducerCore:
    """The base of Producer where the compiled one is missing."""

    _outbox: Outbox
    _streams: dict[str, OpenStream]

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
        """Queue one record; returns its future. ``on_delivery(error, metadata)`` runs in the io thread.

        Raises TypeError or ValueError for a wrong argument, RecordTooLarge, ProducerClosed, and after waiting
        for room BufferExhausted or DaemonUnreachable; then nothing was queued.
        """
        stream = self._streams.get(topic)
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
