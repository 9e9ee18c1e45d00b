"""Goal: AsyncProducer's calls of transactions wait on the loop; one that is cancelled runs to its end all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from client_stub import AsyncProducer
from client_stub.aio.loop_queue import SERVED_AT_ONCE
from client_stub.contract.wire import Kind
from client_stub.errors import (
    BufferExhausted,
    DaemonUnreachable,
    ProducerClosed,
    TransactionError,
    TransactionStateError,
    TransactionTimeout,
)
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


def test_send_that_finds_no_room_makes_the_transaction_abortable(daemon: FakeDaemon) -> None:
    async def run() -> None:
        async with AsyncProducer(daemon.run_dir, transactional_id="t", max_block_ms=50) as producer:
            await producer.init_transactions(WAIT_S)
            await producer.begin_transaction()
            producer._engine.outbox.buffer_bytes = 0
            with pytest.raises(BufferExhausted):
                await producer.send("orders", b"a")
            with pytest.raises(TransactionError, match="must be aborted") as caught:
                await producer.commit_transaction(WAIT_S)
            assert caught.value.abortable
            await producer.abort_transaction(WAIT_S)

    asyncio.run(run())
    assert ends(daemon) == [[1, False]]


def test_sends_that_wait_for_room_hold_up_a_commit_and_end_with_an_abort(daemon: FakeDaemon) -> None:
    async def run() -> None:
        async with AsyncProducer(daemon.run_dir, transactional_id="t") as producer:
            await producer.init_transactions(WAIT_S)
            await producer.begin_transaction()
            producer._engine.outbox.buffer_bytes = 0
            sends = [asyncio.create_task(producer.send("orders", b"a")) for _ in range(SERVED_AT_ONCE + 1)]
            await asyncio.sleep(0)
            with pytest.raises(TransactionTimeout, match="sends wait for room") as caught:
                await producer.commit_transaction(0.01)
            assert caught.value.retriable and "flush()" not in str(caught.value)
            await producer.abort_transaction(WAIT_S)
            assert all(isinstance(each.exception(), TransactionStateError) for each in sends)

    asyncio.run(run())
    assert ends(daemon) == [[1, False]] and not daemon.received


def test_no_daemon_is_named_after_connect_timeout_ms(run_dir: Path) -> None:
    async def run() -> None:
        async with AsyncProducer(run_dir, transactional_id="t", connect_timeout_ms=50) as producer:
            with pytest.raises(DaemonUnreachable):
                await producer.init_transactions(WAIT_S * 100)

    asyncio.run(run())


def test_close_ends_a_call_that_waits_in_another_task(daemon: FakeDaemon) -> None:
    async def run() -> None:
        kept: list[Any] = []
        producer = AsyncProducer(daemon.run_dir, transactional_id="t")
        await producer.init_transactions(WAIT_S)
        daemon.on_txn = lambda client, txn: kept.append(txn)
        await producer.begin_transaction()
        commit = asyncio.create_task(producer.commit_transaction(WAIT_S * 100))
        await asyncio.to_thread(eventually, lambda: kept)
        await producer.close(0.05)
        with pytest.raises(ProducerClosed):
            await commit

    asyncio.run(run())


def test_transaction_that_is_open_when_its_loop_has_ended_is_aborted_by_the_engine(
    daemon: FakeDaemon,
) -> None:
    producer = AsyncProducer(daemon.run_dir, transactional_id="t")

    async def run() -> None:
        await producer.init_transactions(WAIT_S)
        await producer.begin_transaction()
        await producer.send("orders", b"a")

    asyncio.run(run())
    producer._engine.close(WAIT_S)
    assert ends(daemon) == [[1, False]]
