"""A delivery of AsyncProducer.send_many() is awaited while the loop runs on; its result() refuses to hold it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

from client_stub import AsyncProducer, errors
from client_stub.contract.wire import OutcomeKind, Persistence
from client_stub.testing import FakeAsyncProducer
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

ROWS = [(None, b"1"), (None, b"2"), (None, b"3")]


def on_a_loop(daemon: FakeDaemon, main: Callable[[AsyncProducer], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            await main(producer)

    asyncio.run(run())


@pytest.mark.parametrize("call", ["send_many", "send_arrow"])
def test_the_loop_runs_on_while_a_bulk_delivery_is_awaited(daemon: FakeDaemon, call: str) -> None:
    daemon.deliver = None
    rows = ROWS if call == "send_many" else pa.table({"value": [b"1", b"2", b"3"]})

    async def main(producer: AsyncProducer) -> None:
        delivery = await getattr(producer, call)("a", rows)
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while not waiting.done():
                turns += 1
                if turns == 3:
                    await asyncio.to_thread(eventually, lambda: daemon.flushes)  # it ended linger
                    daemon.do(daemon.deliver_log)
                await asyncio.sleep(0)

        waiting = asyncio.ensure_future(_await(delivery))
        await count_turns()
        assert turns >= 3 and await waiting == 3 and await delivery == 3
        assert await asyncio.gather(delivery, delivery) == [3, 3]

    on_a_loop(daemon, main)


def test_its_failure_comes_out_of_the_await_and_not_of_flush(daemon: FakeDaemon) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(
        client,
        submit,
        kind=OutcomeKind.FAILED,
        code=29,
        persistence=Persistence.NOT_PERSISTED,
        text="no right",
    )

    async def main(producer: AsyncProducer) -> None:
        delivery = await producer.send_many("a", ROWS)
        with pytest.raises(errors.TopicAuthorizationFailed):
            await delivery
        assert await producer.flush() == 3

    on_a_loop(daemon, main)


def test_a_wait_that_would_hold_up_the_loop_is_refused(daemon: FakeDaemon) -> None:
    daemon.deliver = None

    async def main(producer: AsyncProducer) -> None:
        delivery = await producer.send_many("a", ROWS)
        for wait in (delivery.result, lambda: delivery.result(10), delivery.exception):
            with pytest.raises(errors.SidecarError, match="await the delivery itself"):
                wait()
        with pytest.raises(TimeoutError):
            delivery.result(0)  # a look
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(delivery, 0.01)
        in_a_thread = asyncio.ensure_future(asyncio.to_thread(delivery.result, 10))
        await producer.flush(until="accepted")
        daemon.do(daemon.deliver_log)
        assert await in_a_thread == await delivery == delivery.result() == 3
        assert await (await producer.send_many("a", [])) == 0

    on_a_loop(daemon, main)


async def _await(delivery: Any) -> Any:
    return await delivery


@pytest.fixture(params=["fake", "real"])
def make(request: pytest.FixtureRequest, daemon: FakeDaemon) -> Callable[[], Any]:
    return FakeAsyncProducer if request.param == "fake" else lambda: AsyncProducer(daemon.run_dir)


def test_the_fake_behaves_as_the_real_one(make: Callable[[], Any]) -> None:
    async def main() -> None:
        async with make() as producer:
            future = await producer.send("orders", b"1", key=b"k")
            assert (await future).offset == 0 and (await producer.send_and_wait("orders", b"2")).offset == 1
            bulk = await producer.send_many("orders", [(b"k", b"3"), (None, b"4", None, 0)])
            assert await bulk == bulk.count == 2 and bulk.offsets() == ((0, 2, 2),)
            rows = await producer.send_arrow("orders", pa.table({"value": [b"5"]}))
            assert await rows == 1 and not await producer.flush(10)
            stats = producer.stats()
            assert (stats.sent, stats.delivered, stats.failed, stats.waiting) == (5, 5, 0, 0)
            assert [each.topic for each in await producer.partitions_for("orders")] == ["orders"]
            for wrong in (
                {"value": "text"},
                {"value": b"x", "partition": -1},
                {"value": b"x", "timestamp_ms": -1},
            ):
                with pytest.raises((TypeError, ValueError)):
                    await producer.send("orders", **wrong)
        with pytest.raises(errors.ProducerClosed):
            await producer.send("orders", b"late")

    asyncio.run(main())
