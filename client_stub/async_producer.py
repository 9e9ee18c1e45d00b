"""AsyncProducer: the asyncio twin of Producer. It adds no thread to the producer's own, and never uses the loop's
executor.

::

    async with AsyncProducer() as producer:
        future = await producer.send("orders", value=b"...")   # waits for room only
        metadata = await future                                 # waits for the outcome
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Never, NoReturn, Self

from client_stub.aio.async_delivery import AsyncBulkDelivery, DeliveryFuture
from client_stub.aio.async_stage import AsyncStage
from client_stub.aio.loop_queue import LoopQueue
from client_stub.aio.loop_waits import close, flush, looked_up
from client_stub.aio.transaction_calls import AsyncTransactionCalls
from client_stub.engine.arrow_call import table_call
from client_stub.engine.engine import DELIVERY_TIMEOUT_MS, ERROR_CLOSE_S, MAX_BLOCK_MS, Engine
from client_stub.engine.rows_call import async_rows_call
from client_stub.engine.transactions import TIMEOUT_MS
from client_stub.errors import SidecarError
from client_stub.io.last_record import LastCommitted
from client_stub.io.topic_lookup import PartitionInfo
from client_stub.outbox.capacity_wait import FULL
from client_stub.outbox.failures import OnError
from client_stub.outbox.outbox import CONNECT_TIMEOUT_MS
from client_stub.outbox.stats import ProducerStats
from client_stub.producer import repr_of
from client_stub.record_metadata import RecordMetadata
from client_stub.records.arguments import SEND_FIELDS, check_topic
from client_stub.records.habits import no_pickle, unknown_field
from client_stub.records.packer import Headers
from client_stub.records.record_fields import checked_headers, full_record
from client_stub.records.serializers import Serializer, serializers_of
from client_stub.session.tracing import Trace

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("client_stub")

FIELDS: Final = SEND_FIELDS[:-1]
"""Arguments of send(), whose future takes the place of ``on_delivery``."""


class AsyncProducer(AsyncTransactionCalls):
    """A producer for asyncio, with Producer's arguments. One may be used on several event loops, one after the other
    or in different threads.

    **Order**: records of one loop and topic are queued in the order of the calls of send(), send_many() and
    send_arrow(), even if some of them wait for room. The order of calls is that in which their coroutines first ran.
    **Waiting**: no call blocks the loop or uses its executor. max_block_ms counts from the call; in send_many() and
    send_arrow(), from the last time that records were queued. **Cancelling** a send that still waits takes its record
    back. A queued record is sent: cancelling its future changes nothing, and a send that is cancelled in the very step
    that queues its record is sent, too. **Closing a loop** drops its waiting sends; queued records are delivered, but
    their futures never complete.
    """

    _engine_kind: type[Engine] = Engine
    _queue_kind: type[LoopQueue] = LoopQueue

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        client_name: str | None = None,
        *,
        token: str | None = None,
        max_block_ms: float = MAX_BLOCK_MS,
        connect_timeout_ms: float = CONNECT_TIMEOUT_MS,
        delivery_timeout_ms: float = DELIVERY_TIMEOUT_MS,
        on_error: OnError | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        curve_key_file: str | os.PathLike[str] | None = None,
        trace: Trace | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: float = TIMEOUT_MS,
        **others: Never,
    ) -> None:
        # Kept here, as in Producer: a send that waits is tried again, and must be serialized only once.
        self._serializers = serializers_of(key_serializer, value_serializer)
        self._engine = self._engine_kind(
            run_dir,
            client_name,
            token=token,
            max_block_ms=max_block_ms,
            connect_timeout_ms=connect_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            on_error=on_error,
            curve_key_file=curve_key_file,
            trace=trace,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            front="AsyncProducer",
            **others,
        )
        self._last: LoopQueue | None = None
        """The queue of the loop that sent last, as most producers have only one loop."""
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueue] = (
            weakref.WeakKeyDictionary()
        )

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
        """Queue one record, waiting for room without blocking the loop. Returns a future of its outcome.

        Awaiting that future ends linger for everything queued. Raises as Producer.send().
        """
        if others:
            raise TypeError(unknown_field("send()", next(iter(others)), FIELDS))
        loop = asyncio.get_running_loop()
        queue = self._last
        if queue is None or queue.loop_of() is not loop:
            queue = self._queue_of(loop)
        if self._serializers is not None:
            key, value = self._serializers.record(topic, key, value)
        if isinstance(headers, Iterator):
            headers = checked_headers(headers)  # read once, as a send that waits is tried again
        engine = self._engine
        future = DeliveryFuture(loop, engine.outbox)
        decided = partial(queue.decided, future)
        if queue.topics:
            check_topic(topic)
        if not (queue.topics and queue.must_wait(topic)):
            sent = engine.try_send(topic, value, key, headers, partition, timestamp_ms, decided)
            if sent is not FULL:
                future.delivery = sent
                return future
        # Checked and copied now, as the caller may change its objects before there is room.
        record, _ = full_record(key, value, headers, partition, timestamp_ms)
        key, value, headers = (*record, None)[:3]
        future.delivery = await queue.wait(
            topic, partial(engine.try_send, topic, value, key, headers, partition, timestamp_ms, decided)
        )
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
        """Send one record and wait for its outcome. Raises the record's error."""
        return await (await self.send(topic, value, key, headers, partition, timestamp_ms, **others))

    async def send_many(
        self, topic: str, records: Iterable[Sequence[Any]], **others: Never
    ) -> AsyncBulkDelivery:
        """As Producer.send_many(). Awaiting the delivery waits for all outcomes.

        Records with headers, partitions or timestamps are checked on the loop, 1,000 at a time (2 ms). When the call
        is cancelled, the records that it has queued are still sent.
        """
        if others:
            raise TypeError(unknown_field("send_many()", next(iter(others)), ("topic", "records")))
        if self._serializers is not None:
            records = self._serializers.rows(topic, records)
        call = async_rows_call(self._engine, topic, records)
        return await self._queue_of(asyncio.get_running_loop()).run(topic, call)

    async def send_arrow(self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch) -> AsyncBulkDelivery:
        """As Producer.send_arrow(), and otherwise as send_many()."""
        call = table_call(self._engine, topic, table)
        return await self._queue_of(asyncio.get_running_loop()).run(topic, call)

    def stage(self, transactional_id: str, number: int, owner: str = "") -> AsyncStage:
        """As Producer.stage(), for this event loop."""
        loop = asyncio.get_running_loop()
        clients, engine, life = self._engine.open_stage(transactional_id, number, owner)
        return AsyncStage(clients, engine, life, self._serializers, self._queue_kind(loop, engine))

    async def partitions_for(
        self,
        topic: str,
        timeout: float | None = None,  # noqa: ASYNC109 (Producer's argument)
    ) -> tuple[PartitionInfo, ...]:
        """As Producer.partitions_for(), but waits on the loop and blocks no thread."""
        return await looked_up(self._engine.lookup(topic, timeout))

    async def last_committed(
        self,
        topic: str,
        key: bytes,
        timeout: float | None = None,  # noqa: ASYNC109 (Producer's argument)
        *,
        creates: bool = False,
    ) -> LastCommitted:
        """As Producer.last_committed(), but waits on the loop and blocks no thread."""
        return await looked_up(self._engine.last_record(topic, key, timeout, creates=creates))

    def stats(self) -> ProducerStats:
        """As Producer.stats(). Sends that wait for room are not counted."""
        return self._engine.stats()

    async def flush(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 (Producer's argument)
        *,
        until: Literal["delivered", "accepted"] = "delivered",
    ) -> int:
        """As Producer.flush(), and also waits for sends that were called earlier on this loop and still wait for room.

        Cancelling it does not cancel the records.
        """
        return await flush(self._engine, self._queue_of(asyncio.get_running_loop()), timeout, until)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """As Producer.close(). Sends that wait for room raise ProducerClosed.

        When cancelled, it leaves the rest to the producer's own thread, which delivers the queued records and then
        ends.
        """
        await close(self._engine, self._queue_of(asyncio.get_running_loop()), timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            queue = self._queue_of(asyncio.get_running_loop())
            await close(
                self._engine, queue, ERROR_CLOSE_S, f"after {kind.__name__ if kind else 'an exception'}"
            )
        except SidecarError:
            log.exception("Records failed while closing the producer after another error.")

    def __reduce__(self) -> NoReturn:
        raise no_pickle(type(self).__name__)

    def __repr__(self) -> str:
        return repr_of("AsyncProducer", self._engine)

    # --- inside -------------------------------------------------------------------------------------

    def _queue_of(self, loop: asyncio.AbstractEventLoop) -> LoopQueue:
        queue = self._queues.get(loop)
        if queue is None:
            # keyrefs() is one atomic copy: another loop's thread may add its queue meanwhile.
            for ref in self._queues.keyrefs():
                other = ref()
                if other is not None and other.is_closed() and (left := self._queues.pop(other, None)):
                    left.drop()
            queue = self._queues[loop] = self._queue_kind(loop, self._engine)
        self._last = queue
        return queue
