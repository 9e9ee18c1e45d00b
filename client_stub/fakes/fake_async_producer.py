"""FakeAsyncProducer: an AsyncProducer for an application's tests, with the controls of FakeProducer.

A test calls it, on its event loop.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

from client_stub.aio.loop_queue import LoopQueue, resolve
from client_stub.async_producer import AsyncProducer
from client_stub.errors import SidecarError
from client_stub.fakes.fake_controls import FakeControls
from client_stub.fakes.fake_engine import FakeEngine
from client_stub.fakes.memory_daemon import FailWith
from client_stub.record_metadata import RecordMetadata


class FakeLoopQueue(LoopQueue):
    """A LoopQueue whose loop need not run first: what is decided on it is done at once."""

    def decided(
        self,
        future: asyncio.Future[RecordMetadata],
        error: SidecarError | None,
        metadata: RecordMetadata | None,
    ) -> None:
        try:
            is_here = asyncio.get_running_loop() is self.loop_of()
        except RuntimeError:
            is_here = False
        if is_here:
            resolve(future, error, metadata)
        else:
            super().decided(future, error, metadata)


class FakeAsyncProducer(FakeControls, AsyncProducer):
    """The real AsyncProducer over a daemon in memory that delivers at once.

    ``records``, ``fail_with``, ``hold()`` and ``release()`` are those of FakeProducer. Any thread may call them.
    """

    _engine: FakeEngine
    _engine_kind = FakeEngine
    _queue_kind = FakeLoopQueue

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        client_name: str | None = None,
        *,
        partitions: int = 1,
        fail_with: FailWith | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(run_dir, client_name, **settings)
        self._set_up(partitions, fail_with)

    async def flush(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 (AsyncProducer's argument)
        *,
        until: Literal["delivered", "accepted"] = "delivered",
    ) -> int:
        """As AsyncProducer.flush(). Raises TimeoutError at once while outcomes are held."""
        return await super().flush(self._engine.patience(timeout), until=until)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """As AsyncProducer.close(); held records are delivered, or with ``close(0)`` fail with DeliveryCancelled."""
        self._engine.daemon.cancels = timeout == 0
        await super().close(timeout)
