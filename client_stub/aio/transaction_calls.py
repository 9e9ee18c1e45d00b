"""AsyncTransactionCalls: the calls of transactions of an AsyncProducer. They block no thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from client_stub.aio.answers import answered
from client_stub.aio.loop_queue import LoopQueue
from client_stub.engine.engine import Engine
from client_stub.engine.transactions import Transactions
from client_stub.errors import SidecarError
from client_stub.outbox.inclusion import Inclusion
from client_stub.records.arguments import check_up_to
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

    async def include(self, tokens: Iterable[bytes], timeout: float | None = None) -> Inclusion:  # noqa: ASYNC109
        """As Producer.include()."""
        inclusion = await self._run(lambda transactions: transactions.include(tokens), timeout)
        return Inclusion(0, 0) if inclusion is None else inclusion

    async def drop_stages(
        self,
        tokens: Iterable[bytes] = (),
        *,
        up_to: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> int:
        """As Producer.drop_stages()."""
        check_up_to(up_to)
        transactional_id = self._engine.transactional_id
        return int(
            await self._run(
                lambda transactions: transactions.drop_stages(transactional_id, tokens, up_to), timeout
            )
        )

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
    ) -> Any:
        transactions = self._transactions()
        queue = self._queue_of(asyncio.get_running_loop())
        # An abort does not wait for the sends that wait for room: without a transaction they fail.
        follows_sends = begin is not Transactions.abort
        return await answered(
            transactions, queue, lambda: begin(transactions), timeout, follows_sends=follows_sends
        )


def _caller() -> object:
    """The task that runs; the thread where there is none, as at the end of the process."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return caller_ident()
