"""AsyncStage: the asyncio twin of Stage; ``AsyncProducer.stage()`` opens one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from client_stub.aio.answers import answered
from client_stub.aio.loop_queue import LoopQueue
from client_stub.engine.arrow_call import table_call
from client_stub.engine.rows_call import async_rows_call
from client_stub.engine.stage_core import EXIT_DROP_S, StageCore
from client_stub.errors import SidecarError
from client_stub.outbox.capacity_wait import FULL
from client_stub.records.packer import Headers
from client_stub.records.record_fields import checked_headers, full_record
from client_stub.records.serializers import Serializers
from client_stub.system.log import log

if TYPE_CHECKING:
    import pyarrow

    from client_stub.engine.engine import Engine
    from client_stub.engine.stage_life import StageLife
    from client_stub.engine.staging_clients import StagingClients


class AsyncStage(StageCore):
    """As Stage, for the event loop on which it was opened. It blocks no thread."""

    def __init__(
        self,
        clients: StagingClients[Engine],
        engine: Engine,
        life: StageLife,
        serializers: Serializers | None,
        queue: LoopQueue,
    ) -> None:
        super().__init__(clients, engine, life, serializers)
        self._queue = queue

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """As Stage.send(); waits for room without blocking the loop."""
        self._enter()
        try:
            if self._serializers is not None:
                key, value = self._serializers.record(topic, key, value)
            if isinstance(headers, Iterator):
                headers = checked_headers(headers)  # read once, as a send that waits is tried again
            engine, queue = self._engine, self._queue
            if not (queue.topics and queue.must_wait(topic)) and (
                engine.try_send(topic, value, key, headers, partition, timestamp_ms, None) is not FULL
            ):
                return
            record, _ = full_record(key, value, headers, partition, timestamp_ms)
            key, value, headers = (*record, None)[:3]
            await queue.wait(
                topic, partial(engine.try_send, topic, value, key, headers, partition, timestamp_ms, None)
            )
        finally:
            self._inside.pop()

    async def send_many(self, topic: str, records: Iterable[Sequence[Any]]) -> int:
        """As Stage.send_many()."""
        self._enter()
        try:
            if self._serializers is not None:
                records = self._serializers.rows(topic, records)
            return (await self._queue.run(topic, async_rows_call(self._engine, topic, records))).count
        finally:
            self._inside.pop()

    async def send_arrow(self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch) -> int:
        """As Stage.send_arrow()."""
        self._enter()
        try:
            return (await self._queue.run(topic, table_call(self._engine, topic, table))).count
        finally:
            self._inside.pop()

    async def seal(self, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """As Stage.seal(). A call that is cancelled runs to its end all the same; made again, it returns the token."""
        life = self._life
        token: bytes = await answered(life, self._queue, life.seal, timeout, follows_sends=True)
        self._give_back()
        return token

    async def drop(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """As Stage.drop()."""
        life = self._life
        await answered(life, self._queue, life.drop, timeout, follows_sends=False)
        self._give_back()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drops_at_exit(error):
            try:
                await self.drop(EXIT_DROP_S)
            except SidecarError as failed:
                log.warning("%r was not dropped at the end of its block: %s", self, failed)
