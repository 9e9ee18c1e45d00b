"""Goal: AsyncProducer's stages wait on the loop, and lose nothing when a call of theirs is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client_stub import AsyncProducer
from client_stub.contract.wire import Kind
from client_stub.errors import TransactionStateError
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon, Submit

WAIT_S = 30.0


@pytest.fixture
def daemon(daemon: FakeDaemon) -> FakeDaemon:
    daemon.deliver = None  # staged records have no outcome
    return daemon


def kinds(daemon: FakeDaemon) -> list[Kind]:
    return [Kind(each[0]) for each in daemon.stage_frames]


def values(submits: list[Submit]) -> list[Any]:
    return [value for each in submits for _, value in each.records]


def test_stage_seals_and_a_transaction_includes_it(daemon: FakeDaemon) -> None:
    async def run() -> None:
        stager = AsyncProducer(daemon.run_dir, value_serializer=str.encode)
        async with stager, stager.stage("t", 3, "run-a") as stage:
            await stage.send("orders", "a")
            assert await stage.send_many("orders", [(None, "b"), (None, "c")]) == 2
            token = await stage.seal(WAIT_S)
            with pytest.raises(TransactionStateError, match="it is sealed"):
                await stage.send("orders", "d")
        async with AsyncProducer(daemon.run_dir, transactional_id="t") as producer:
            async with producer.transaction():
                assert (await producer.include([token], WAIT_S)).rows == 10
            assert await producer.drop_stages([token], timeout=WAIT_S) == 1

    asyncio.run(run())
    assert daemon.stage_frames[0] == [Kind.STAGE_OPEN, 1, 3, "run-a", "t"]
    assert daemon.stage_frames[1][:3] == [Kind.STAGE_SEAL, 1, 3]
    assert values(daemon.received) == [b"a", b"b", b"c"]


def test_stages_of_many_tasks(daemon: FakeDaemon) -> None:
    async def run() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:

            async def work(number: int) -> bytes:
                async with producer.stage("t", number) as stage:
                    await stage.send("orders", b"%d" % number)
                    return await stage.seal(WAIT_S)

            assert len(set(await asyncio.gather(*map(work, range(8))))) == 8

    asyncio.run(run())
    assert sorted(values(daemon.received)) == [b"%d" % number for number in range(8)]


def test_seal_follows_sends_that_wait_for_room(daemon: FakeDaemon) -> None:
    daemon.accept = lambda client, submit: False

    async def run() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            stage = producer.stage("t", 3)
            sends = [
                asyncio.create_task(stage.send_many("orders", [(None, bytes(200_000))] * 5))
                for _ in range(12)
            ]
            await asyncio.to_thread(
                eventually,
                lambda: stage._engine.outbox.buffered_bytes >= stage._engine.outbox.buffer_bytes,
            )
            seal = asyncio.create_task(stage.seal(WAIT_S))
            daemon.accept = lambda client, submit: True
            daemon.kill_worker()
            await seal
            assert sum([await send for send in sends]) == 60

    asyncio.run(run())
    assert daemon.stage_frames[-1][:3] == [Kind.STAGE_SEAL, 1, 60]


def test_cancelled_seal_has_its_token_when_it_is_called_again(daemon: FakeDaemon) -> None:
    kept: list[Any] = []
    daemon.on_stage = lambda client, stage: kept.append(stage)

    async def run() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            stage = producer.stage("t", 3)
            await stage.send("orders", b"a")
            seal = asyncio.create_task(stage.seal(WAIT_S))
            await asyncio.to_thread(eventually, lambda: len(kept) == 2)
            seal.cancel()
            with pytest.raises(asyncio.CancelledError):
                await seal
            daemon.do(lambda: daemon.answer_stage(daemon.only_client, kept[1]))
            assert await stage.seal(WAIT_S) == b"token-1"

    asyncio.run(run())
    assert kinds(daemon).count(Kind.STAGE_SEAL) == 1


def test_cancelled_block_drops_the_stage(daemon: FakeDaemon) -> None:
    async def run() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            is_inside = asyncio.Event()

            async def work() -> None:
                async with producer.stage("t", 3) as stage:
                    await stage.send("orders", b"a")
                    is_inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await is_inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert kinds(daemon)[-1] == Kind.STAGE_DROP


def test_close_drops_an_open_stage(daemon: FakeDaemon) -> None:
    async def run() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            stage = producer.stage("t", 3)
            await stage.send("orders", b"a")
            await asyncio.to_thread(eventually, lambda: daemon.received)

    asyncio.run(run())
    eventually(lambda: daemon.byes == [True])
    assert Kind.STAGE_SEAL not in kinds(daemon)
