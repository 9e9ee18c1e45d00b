"""AsyncProducer: the asyncio twin of Producer. One loop, no thread of its own beside the producer's.

::

    async with AsyncProducer() as producer:
        future = await producer.send("orders", value=b"...")   # waits for room only
        metadata = await future                                 # waits for the outcome
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from client_stub.errors import SidecarError
from client_stub.packer import Headers
from client_stub.producer import Producer
from client_stub.record_metadata import RecordMetadata

if TYPE_CHECKING:
    import pyarrow

    from client_stub.delivery import BulkDelivery

T = TypeVar("T")


class AsyncProducer:
    """Used on one event loop (the one of its first send); not thread-safe. Arguments as Producer's."""

    def __init__(
        self, run_dir: str | os.PathLike[str] | None = None, client_name: str | None = None, **settings: Any
    ) -> None:
        self._producer = Producer(run_dir, client_name, **settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._decided: deque[
            tuple[asyncio.Future[RecordMetadata], SidecarError | None, RecordMetadata | None]
        ] = deque()

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue one record, waiting for room without blocking the loop; the returned future has its outcome.

        Raises as Producer.send().
        """
        loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[RecordMetadata] = loop.create_future()

        def told(error: SidecarError | None, metadata: RecordMetadata | None) -> None:
            # One wake-up of the loop for all that is decided together, not one per record.
            self._decided.append((future, error, metadata))
            if len(self._decided) == 1:
                loop.call_soon_threadsafe(self._resolve)

        arguments = (topic, value, key, headers, partition, timestamp_ms, told)
        if self._producer.may_block(topic):
            await loop.run_in_executor(None, lambda: self._producer.send(*arguments))
        else:
            self._producer.send(*arguments)
        return future

    async def send_and_wait(self, topic: str, value: bytes | None = None, **fields: Any) -> RecordMetadata:
        """Send one record and wait for its outcome; raises the record's own error."""
        return await (await self.send(topic, value, **fields))

    async def send_many(self, topic: str, records: Iterable[Sequence[Any]]) -> BulkDelivery:
        """As Producer.send_many(); ask the result in a thread or through flush()."""
        return await self._in_thread(lambda: self._producer.send_many(topic, records))

    async def send_arrow(self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch) -> BulkDelivery:
        return await self._in_thread(lambda: self._producer.send_arrow(topic, table))

    async def flush(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 (Producer's argument)
        *,
        until: Literal["delivered", "accepted"] = "delivered",
    ) -> None:
        """As Producer.flush(). Cancelling it does not cancel the records."""
        await self._in_thread(lambda: self._producer.flush(timeout, until=until))

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """As Producer.close()."""
        await self._in_thread(lambda: self._producer.close(timeout))

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._in_thread(lambda: self._producer.__exit__(kind, error, trace))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, call)

    def _resolve(self) -> None:
        decided = self._decided
        for _ in range(len(decided)):
            future, error, metadata = decided.popleft()
            if future.done():
                continue  # cancelled by its awaiter; the record goes on
            if error is not None:
                future.set_exception(error)
            else:
                assert metadata is not None
                future.set_result(metadata)
        if decided and self._loop is not None:
            self._loop.call_soon(self._resolve)
