"""FakeAsyncProducer: an AsyncProducer for an application's tests, with the controls of FakeProducer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, Self

from client_stub.aio.async_delivery import awaited, refuse_on_a_loop
from client_stub.async_producer import FIELDS, AsyncProducer
from client_stub.errors import SidecarError
from client_stub.fakes.fake_delivery import FakeBulkDelivery, FakeRecord
from client_stub.fakes.fake_producer import FailWith, FakeProducer
from client_stub.io.topic_lookup import PartitionInfo
from client_stub.outbox.failures import OnError
from client_stub.outbox.stats import ProducerStats
from client_stub.record_metadata import RecordMetadata
from client_stub.records.habits import no_pickle, unknown_field, with_hints
from client_stub.records.packer import Headers
from client_stub.records.serializers import Serializer

if TYPE_CHECKING:
    import pyarrow


class FakeAsyncBulkDelivery(FakeBulkDelivery):
    """A fake AsyncBulkDelivery."""

    def __init__(self, sent: FakeBulkDelivery) -> None:
        super().__init__(sent.deliveries)
        self._sent = sent

    def __await__(self) -> Generator[Any, None, int]:
        return awaited(self)

    def result(self, timeout: float | None = None) -> int:
        refuse_on_a_loop(self, timeout)
        return super().result(timeout)

    def watch(self) -> None:
        self._sent.watch()


@with_hints
class FakeAsyncProducer:
    """A fake with the arguments of AsyncProducer, which it checks in the same way. It delivers at once.

    ``records``, ``fail_with``, ``hold()`` and ``release()`` are those of FakeProducer. Any thread may call them.
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
        AsyncProducer("/nobody" if run_dir is None else run_dir, client_name, on_error=on_error, **settings)
        self._producer = FakeProducer(
            partitions=partitions,
            fail_with=fail_with,
            on_error=on_error,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )

    @property
    def records(self) -> list[FakeRecord]:
        """All records that were sent, in order."""
        return self._producer.records

    @property
    def fail_with(self) -> FailWith | None:
        return self._producer.fail_with

    @fail_with.setter
    def fail_with(self, function: FailWith | None) -> None:
        self._producer.fail_with = function

    @property
    def closed(self) -> bool:
        return self._producer.closed

    def hold(self) -> None:
        """Hold back the outcomes of records sent from now on, like a broker that does not answer."""
        self._producer.hold()

    def release(self) -> None:
        """Give all held records their outcomes, in order, and stop holding."""
        self._producer.release()

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        **others: Never,
    ) -> asyncio.Future[RecordMetadata]:
        """Send one record. Raises TypeError or ValueError as AsyncProducer.send(), SerializationFailed and
        ProducerClosed.
        """
        if others:
            raise TypeError(unknown_field("send()", next(iter(others)), FIELDS))
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        future: asyncio.Future[RecordMetadata] = loop.create_future()

        def decide(error: SidecarError | None, metadata: RecordMetadata | None) -> None:
            if future.done():
                return  # cancelled by its awaiter
            if error is not None:
                future.set_exception(error)
            else:
                assert metadata is not None
                future.set_result(metadata)

        def decided(error: SidecarError | None, metadata: RecordMetadata | None) -> None:
            if threading.get_ident() == thread:
                decide(error, metadata)
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(decide, error, metadata)

        self._producer.send(topic, value, key, headers, partition, timestamp_ms, decided)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        **others: Never,
    ) -> RecordMetadata:
        """Send one record and wait for its outcome; while outcomes are held, wait for ``release()``."""
        return await (await self.send(topic, value, key, headers, partition, timestamp_ms, **others))

    async def send_many(
        self, topic: str, records: Iterable[Sequence[Any]], **others: Never
    ) -> FakeAsyncBulkDelivery:
        """Send many records; each is (key, value[, headers[, partition[, timestamp_ms]]])."""
        if others:
            raise TypeError(unknown_field("send_many()", next(iter(others)), ("topic", "records")))
        return FakeAsyncBulkDelivery(self._producer.send_many(topic, records))

    async def send_arrow(
        self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch
    ) -> FakeAsyncBulkDelivery:
        """Send each row as a record, with the columns value, key, headers, partition and timestamp. Needs pyarrow."""
        return FakeAsyncBulkDelivery(self._producer.send_arrow(topic, table))

    async def partitions_for(
        self,
        topic: str,
        timeout: float | None = None,  # noqa: ASYNC109 (AsyncProducer's argument)
    ) -> tuple[PartitionInfo, ...]:
        """The partitions of any topic; their number is ``partitions``."""
        return self._producer.partitions_for(topic, timeout)

    def stats(self) -> ProducerStats:
        """As AsyncProducer.stats(), as if the daemon were always connected."""
        return self._producer.stats()

    async def flush(
        self,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        until: Literal["delivered", "accepted"] = "delivered",
    ) -> int:
        """As FakeProducer.flush(). Raises TimeoutError at once while outcomes are held."""
        newly = self._producer.flush(timeout, until=until)
        await asyncio.sleep(0)  # lets futures complete that another thread has decided
        return newly

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """As FakeProducer.close()."""
        self._producer.close(timeout)
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise no_pickle(type(self).__name__)
