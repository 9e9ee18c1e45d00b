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
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Never, NoReturn, Self

from client_stub.aio.async_delivery import AsyncBulkDelivery, DeliveryFuture
from client_stub.aio.loop_line import UNFINISHED, LoopLine
from client_stub.engine.flush_wait import FlushWait
from client_stub.errors import BufferExhausted, DaemonUnreachable, SidecarError
from client_stub.io import process_end
from client_stub.io.topic_lookup import PartitionInfo, TopicLookup
from client_stub.io.topic_question import TopicQuestion
from client_stub.outbox.failures import OnError
from client_stub.outbox.outbox import CONNECT_TIMEOUT_MS
from client_stub.outbox.stats import ProducerStats
from client_stub.producer import DELIVERY_TIMEOUT_MS, ERROR_CLOSE_S, JOIN_S, MAX_BLOCK_MS, Producer
from client_stub.record_metadata import RecordMetadata
from client_stub.records.arguments import (
    SEND_FIELDS,
    check_topic,
    check_until,
    checked_timeout,
    checked_wait,
    milliseconds,
)
from client_stub.records.habits import no_pickle, unknown_argument, unknown_field, with_hints
from client_stub.records.packer import Headers
from client_stub.records.record_fields import checked_headers, full_record
from client_stub.records.serializers import Serializer, serializers_of
from client_stub.system.originals import monotonic

if TYPE_CHECKING:
    import pyarrow

    from client_stub.outbox.bulk_call import BulkCall

log = logging.getLogger("client_stub")

FIELDS: Final = SEND_FIELDS[:-1]
"""Arguments of send(), whose future takes the place of ``on_delivery``."""


@with_hints
class AsyncProducer:
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
        **others: Never,
    ) -> None:
        if others:
            raise TypeError(unknown_argument("AsyncProducer", next(iter(others))))
        self._max_block_ms = milliseconds("max_block_ms", max_block_ms)
        # Kept here and not in the producer: a send that waits in the line is tried again, and must be serialized only
        # once.
        self._serializers = serializers_of(key_serializer, value_serializer)
        # A send without room fails at once in the producer, and then waits in the line of its loop.
        self._producer = Producer(
            run_dir,
            client_name,
            token=token,
            max_block_ms=0,
            connect_timeout_ms=connect_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            on_error=on_error,
            curve_key_file=curve_key_file,
        )
        self._last: LoopLine | None = None
        """The line of the loop that sent last, as most producers have only one loop."""
        self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLine] = (
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
        line = self._last
        if line is None or line.loop_of() is not loop:
            line = self._line_of(loop)
        if self._serializers is not None:
            key, value = self._serializers.record(topic, key, value)
        if isinstance(headers, Iterator):
            headers = checked_headers(headers)  # read once, as a send that waits is tried again
        producer = self._producer
        future = DeliveryFuture(loop, producer._outbox)
        decided = partial(line.decided, future)
        if line.topics:
            check_topic(topic)
        if not (line.topics and line.must_wait(topic)):
            try:
                future.delivery = producer.send(topic, value, key, headers, partition, timestamp_ms, decided)
                return future
            except (BufferExhausted, DaemonUnreachable):
                pass
        # Checked and copied now, as the caller may change its objects before there is room.
        record, _ = full_record(key, value, headers, partition, timestamp_ms)
        key, value, headers = (*record, None)[:3]
        future.delivery = await line.wait_and_enter(
            topic, partial(producer.send, topic, value, key, headers, partition, timestamp_ms, decided)
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
        return await self._enter(topic, self._producer._rows_call(topic, records))

    async def send_arrow(self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch) -> AsyncBulkDelivery:
        """As Producer.send_arrow(), and otherwise as send_many()."""
        return await self._enter(topic, self._producer._table_call(topic, table))

    async def partitions_for(
        self,
        topic: str,
        timeout: float | None = None,  # noqa: ASYNC109 (Producer's argument)
    ) -> tuple[PartitionInfo, ...]:
        """As Producer.partitions_for(), but waits on the loop and blocks no thread."""
        loop = asyncio.get_running_loop()
        lookup = self._producer._lookup(topic, self._max_block_ms / 1e3 if timeout is None else timeout)
        try:
            while (found := lookup.step(monotonic() * 1e3)) is None:
                await _readable(loop, lookup)
            return found
        finally:
            lookup.close()

    def stats(self) -> ProducerStats:
        """As Producer.stats(). Sends that wait for room are not counted."""
        return self._producer.stats()

    async def flush(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 (Producer's argument)
        *,
        until: Literal["delivered", "accepted"] = "delivered",
    ) -> int:
        """As Producer.flush(), and also waits for sends that were called earlier on this loop and still wait for room.

        Cancelling it does not cancel the records.
        """
        timeout = checked_wait(timeout)
        check_until(until)
        loop = asyncio.get_running_loop()
        line = self._line_of(loop)
        ends = None if timeout is None else loop.time() + timeout
        last = line.last_number
        if not await line.until(lambda: line.is_past(last), timeout):
            raise line.timeout_error(timeout)
        producer = self._producer
        wait = FlushWait(producer._outbox, until)
        is_alive = producer._io is not None and not producer._outbox.closed
        left = None if ends is None else max(0.0, ends - loop.time())
        if is_alive and not await line.until(wait.is_over, left):
            oldest = wait.oldest()
            said = ""
            if oldest is not None and oldest.may_ask(timeout):
                said = await _asked(
                    loop, producer._question(oldest.topic, oldest.partition_max, monotonic() * 1e3)
                )
            raise wait.timeout_error(timeout, said)
        producer._outbox.failures.raise_unobserved()
        return producer._outbox.failures.newly_failed()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """As Producer.close(). Sends that wait for room raise ProducerClosed.

        When cancelled, it leaves the rest to the producer's own thread, which delivers the queued records and then
        ends.
        """
        await self._close(timeout)

    async def _close(self, timeout: float | None, behind: str = "") -> None:  # noqa: ASYNC109
        """As Producer._close()."""
        timeout = checked_timeout(timeout)
        producer = self._producer
        io = producer._begin_close()
        if io is None:
            return
        line = self._line_of(asyncio.get_running_loop())
        cancel = True
        try:
            done = timeout != 0 and await line.until(FlushWait(producer._outbox).is_over, timeout)
            cancel = not done
            if cancel and behind:
                io.log_left(behind)
        except asyncio.CancelledError:
            cancel = False
            process_end.leave_alone(io)  # so that the end of the process waits for it
            raise
        finally:
            io.request_close(cancel=cancel)
            producer._end_close()
        if await line.until(lambda: io.has_ended, JOIN_S):
            io.join(JOIN_S)
        if done:
            producer._outbox.failures.raise_unobserved()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self._close(ERROR_CLOSE_S, f"behind {kind.__name__ if kind else 'an exception'}")
        except SidecarError:
            log.exception("Records failed while the producer was closed behind another error.")

    def __reduce__(self) -> NoReturn:
        raise no_pickle(type(self).__name__)

    def __repr__(self) -> str:
        return f"Async{self._producer!r}"

    # --- inside -------------------------------------------------------------------------------------

    async def _enter(self, topic: str, call: BulkCall) -> AsyncBulkDelivery:
        def enter() -> AsyncBulkDelivery | object:
            return AsyncBulkDelivery(call.parts) if call.step() else UNFINISHED

        line = self._line_of(asyncio.get_running_loop())
        delivery: AsyncBulkDelivery = await line.enter(topic, enter, call.explain)
        return delivery

    def _line_of(self, loop: asyncio.AbstractEventLoop) -> LoopLine:
        line = self._lines.get(loop)
        if line is None:
            for (
                ref
            ) in self._lines.keyrefs():  # one atomic copy: another loop's thread may add its line meanwhile
                other = ref()
                if other is not None and other.is_closed() and (left := self._lines.pop(other, None)):
                    left.drop()
            line = self._lines[loop] = LoopLine(loop, self._producer, self._max_block_ms)
        self._last = line
        return line


async def _asked(loop: asyncio.AbstractEventLoop, question: TopicQuestion) -> str:
    """The answer of ``question``; awaited without blocking a thread."""
    try:
        while (said := question.step(monotonic() * 1e3)) is None:
            await _readable(loop, question.lookup, question.ends_ms)
        return said or question.lookup.waits_for
    finally:
        question.lookup.close()


async def _readable(loop: asyncio.AbstractEventLoop, lookup: TopicLookup, ends_ms: float = math.inf) -> None:
    """Wait until the lookup's next step has something to do: bytes arrived, or a pause or the caller's timeout
    ended.
    """
    now_ms = monotonic() * 1e3
    fd = lookup.fileno()
    if fd is None:
        await asyncio.sleep(lookup.pause_ms(now_ms) / 1e3)
        return
    arrived: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if arrived.done() else arrived.set_result(None))
    try:
        await asyncio.wait([arrived], timeout=max(0.0, min(lookup.answer_ms(now_ms), ends_ms - now_ms)) / 1e3)
    finally:
        loop.remove_reader(fd)
