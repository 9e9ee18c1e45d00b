"""FakeAsyncProducer holds, fails and counts on demand, and has each call of the real one."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

from client_stub import AsyncProducer, errors
from client_stub.testing import (  # noqa: F401 (a fixture)
    FakeAsyncProducer,
    FakeRecord,
    fake_async_producer,
)


def test_it_has_each_call_of_the_real_one_with_the_same_arguments() -> None:
    def calls(of: type) -> dict[str, list[str]]:
        found = inspect.getmembers(of, lambda member: callable(member) or isinstance(member, property))
        return {
            name: list(inspect.signature(member).parameters) if callable(member) else []
            for name, member in found
            if not name.startswith("_")
        }

    assert calls(AsyncProducer).items() <= calls(FakeAsyncProducer).items()


def test_records_and_failures_on_demand(fake_async_producer: FakeAsyncProducer) -> None:  # noqa: F811
    producer = fake_async_producer
    producer.fail_with = lambda record: errors.error_for(29) if record.topic == "forbidden" else None

    async def main() -> None:
        await producer.send("a", b"v", b"k", [("h", None)], 3, 9)
        for wait in (
            producer.send_and_wait("forbidden", b"x"),
            _await(await producer.send("forbidden", b"y")),
        ):
            with pytest.raises(errors.TopicAuthorizationFailed):
                await wait
        bulk = await producer.send_many("forbidden", [(None, b"z")])
        with pytest.raises(errors.TopicAuthorizationFailed):
            await bulk
        assert await producer.flush() == 3, "the failure was asked about"
        await producer.send_many("forbidden", [(None, b"z")])
        with pytest.raises(errors.TopicAuthorizationFailed):
            await producer.flush()

    asyncio.run(main())
    assert producer.records[0] == FakeRecord("a", b"k", b"v", [("h", None)], 3, 9)
    assert len(producer.records) == 5 and not producer.closed


def test_outcomes_that_are_held() -> None:
    async def main() -> None:
        async with FakeAsyncProducer(partitions=4) as producer:
            producer.hold()
            future, bulk = await producer.send("a", b"x"), await producer.send_many("a", [(None, b"y")])
            with pytest.raises(
                TimeoutError,
                match=r"after 0 s: 2 records have no outcome yet, the oldest for topic a: hold\(\) keeps",
            ):
                await producer.flush(0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(bulk, 0.01)
            with pytest.raises(errors.SidecarError, match="await the delivery itself"):
                bulk.result()
            cancelled = await producer.send("a", b"z")
            cancelled.cancel()
            waiting = asyncio.gather(future, bulk)
            thread = threading.Thread(target=producer.release)  # from wherever
            thread.start()
            metadata, count = await waiting
            await asyncio.to_thread(thread.join, 10)
            assert (metadata.topic, count) == ("a", 1) and await producer.flush() == 0
            producer.hold()
            cut = await producer.send("a", b"cut")
            await producer.close(0)
            assert isinstance(cut.exception(), errors.DeliveryCancelled) and producer.closed

    asyncio.run(main())


def test_it_can_stand_in_the_place_of_the_class() -> None:
    """Its arguments are checked as there; a future that nobody awaits is no failure for on_error, as there."""
    told: list[tuple[str, str, int]] = []
    producer = FakeAsyncProducer(
        None,
        "billing",
        token="t",
        max_block_ms=5,
        value_serializer=str.encode,
        on_error=lambda error, topic, count: told.append((error.name, topic, count)),
        fail_with=lambda record: errors.error_for(29),
    )

    async def main() -> None:
        assert isinstance((await producer.send("orders", "x")).exception(), errors.TopicAuthorizationFailed)  # type: ignore[arg-type]
        (await producer.send_many("orders", [(None, "y")])).watch()

    asyncio.run(main())
    assert told == [("TOPIC_AUTHORIZATION_FAILED", "orders", 1)]
    wrong: dict[str, Any]
    for wrong in ({"client_name": 5}, {"bootstrap_servers": "a:1"}, {"run_dir": "a:1"}):
        with pytest.raises((TypeError, ValueError)):
            FakeAsyncProducer(**wrong)


async def _await(future: Any) -> Any:
    return await future
