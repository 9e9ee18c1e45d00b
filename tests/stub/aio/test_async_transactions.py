"""Goal: AsyncProducer's calls of transactions wait on the loop; one that is cancelled runs to its end all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client_stub import AsyncProducer
from client_stub.contract.wire import Kind
from client_stub.errors import TransactionStateError
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

WAIT_S = 30.0


def ends(daemon: FakeDaemon) -> list[Any]:
    return [each[1:3] for each in daemon.txn_frames if each[0] == Kind.TXN_END]


def test_with_block_commits_or_aborts(daemon: FakeDaemon) -> None:
    async def run() -> None:
        async with AsyncProducer(daemon.run_dir, transactional_id="t") as producer:
            async with producer.transaction():
                future = await producer.send("orders", b"a")
            assert future.done()
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send("orders", b"b")
                    raise ZeroDivisionError
            with pytest.raises(TransactionStateError):
                await producer.send("orders", b"c")

    asyncio.run(run())
    assert ends(daemon) == [[1, True], [2, False]]


def test_cancelled_commit_has_its_answer_when_it_is_called_again(daemon: FakeDaemon) -> None:
    async def run() -> None:
        kept: list[Any] = []
        async with AsyncProducer(daemon.run_dir, transactional_id="t") as producer:
            await producer.init_transactions(WAIT_S)
            await producer.begin_transaction()
            await producer.send("orders", b"a")
            daemon.on_txn = lambda client, txn: kept.append(txn)
            commit = asyncio.create_task(producer.commit_transaction(WAIT_S))
            await asyncio.to_thread(eventually, lambda: kept)
            with pytest.raises(TransactionStateError, match="runs in another"):
                await producer.abort_transaction()
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
            with pytest.raises(TransactionStateError, match="has no answer yet"):
                await producer.abort_transaction()
            daemon.on_txn = daemon.answer_txn
            daemon.do(lambda: daemon.answer_txn(daemon.only_client, kept[0]))
            await producer.commit_transaction(WAIT_S)

    asyncio.run(run())
    assert ends(daemon) == [[1, True]], "asked once"


def test_close_aborts_an_open_transaction(daemon: FakeDaemon) -> None:
    async def run() -> None:
        async with AsyncProducer(daemon.run_dir, transactional_id="t") as producer:
            await producer.init_transactions(WAIT_S)
            await producer.begin_transaction()
            await producer.send("orders", b"a")

    asyncio.run(run())
    assert ends(daemon) == [[1, False]]
