"""AsyncTransactionCalls: the calls of transactions of an AsyncProducer. They block no thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from client_stub.aio.loop_queue import LoopQueue
from client_stub.engine.engine import Engine
from client_stub.engine.transactions import Transactions
from client_stub.errors import SidecarError, TransactionTimeout
from client_stub.records.offsets import GroupMetadata, Offsets
from client_stub.system.originals import caller_ident

if TYPE_CHECKING:
    from client_stub.outbox.txn_call import TxnCall


class AsyncTransactionCalls:
    """As TransactionCalls. A call that is cancelled runs to its end all the same; made again, it waits for the same
    answer.
    """

    _engine: Engine

    def _queue_of(self, loop: asyncio.AbstractEventLoop) -> LoopQueue:
        raise NotImplementedError

    async def init_transactions(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """As Producer.init_transactions()."""
        await self._run(Transactions.init, timeout)

    async def begin_transaction(self) -> None:
        """As Producer.begin_transaction()."""
        self._transactions().begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Offsets,
        group: GroupMetadata | str,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> None:
        """As Producer.send_offsets_to_transaction()."""
        await self._run(lambda transactions: transactions.offsets(offsets, group), timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """As Producer.commit_transaction(); sends of this loop that still wait for room belong to the transaction."""
        await self._run(Transactions.commit, timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """As Producer.abort_transaction()."""
        await self._run(Transactions.abort, timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """As Producer.transaction(), for ``async with``."""
        transactions = self._engine.transactions
        if transactions.is_uninitialized:
            await self.init_transactions()
        await self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException as error:
            if transactions.is_open:
                try:
                    await self.abort_transaction()
                except SidecarError as failed:
                    error.add_note(f"The transaction could not be aborted: {failed}")
            raise

    def _transactions(self) -> Transactions:
        transactions = self._engine.transactions
        transactions.use_caller(_caller)
        return transactions

    async def _run(
        self,
        begin: Callable[[Transactions], TxnCall | None],
        timeout: float | None,  # noqa: ASYNC109
    ) -> None:
        transactions = self._transactions()
        timeout_s = transactions.timeout_s(timeout)
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        queue = self._queue_of(loop)
        last = queue.last_number
        # An abort does not wait for them to be sent: without a transaction they fail.
        if begin is not Transactions.abort and not await queue.until(lambda: queue.is_past(last), timeout_s):
            raise TransactionTimeout(queue.wait_text("The call", timeout_s))
        call = begin(transactions)
        if call is None:
            return
        try:
            if await queue.until(partial(transactions.is_reached, call), transactions.reach_s(timeout_s)):
                await queue.until(
                    lambda: queue.is_past(last) and transactions.is_over(call), max(0.0, ends - loop.time())
                )
        finally:
            transactions.release()
        transactions.conclude(call, timeout_s)


def _caller() -> object:
    """The task that runs; the thread where there is none, as at the end of the process."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return caller_ident()
