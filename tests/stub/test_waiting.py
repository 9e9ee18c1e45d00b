"""A caller that waits for one record ends linger for it, in threads and on an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from client_stub import AsyncProducer, Producer
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon


def test_result_ends_linger_for_its_record(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = None
    delivery = producer.send("a", b"1")
    waiting = threading.Thread(target=delivery.result, args=(10,))
    waiting.start()
    assert eventually(lambda: daemon.flushes) == [(1, 1)]
    daemon.do(daemon.deliver_log)
    waiting.join(10)
    assert delivery.done()


def test_a_bulk_result_and_exception_end_linger_too(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = None
    bulk = producer.send_many("a", [(None, b"1"), (None, b"2")])
    with pytest.raises(TimeoutError):
        bulk.result(0.05)
    assert eventually(lambda: daemon.flushes) == [(1, 1)]
    later = producer.send("a", b"3")
    with pytest.raises(TimeoutError):
        later.exception(0.05)
    assert eventually(lambda: len(daemon.flushes) == 2 and daemon.flushes[-1]) == (1, 2)


def test_a_look_without_patience_ends_nothing(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = None
    delivery = producer.send("a", b"1")
    eventually(lambda: daemon.received)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            delivery.result(0)
    producer.flush(10, until="accepted")  # the one flush that the daemon hears
    assert len(daemon.flushes) <= 1


def test_futures_waited_for_one_after_the_other_flush_once(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = None
    deliveries = [producer.send("a", b"%d" % n) for n in range(100)]
    eventually(lambda: sum(submit.count for submit in daemon.received) > 0)
    for delivery in deliveries[:5]:
        with pytest.raises(TimeoutError):
            delivery.result(0.02)
    eventually(lambda: daemon.flushes and daemon.flushes[-1][1] == daemon.received[-1].seq)
    assert len(daemon.flushes) == len(set(daemon.flushes)), "the same records were flushed twice"
    daemon.do(daemon.deliver_log)
    producer.flush(10)
    assert all(delivery.done() for delivery in deliveries)


def test_an_awaited_future_ends_linger_and_a_callback_does_not(daemon: FakeDaemon) -> None:
    async def main() -> None:
        daemon.deliver = None
        async with AsyncProducer(daemon.run_dir) as producer:
            heard = asyncio.Event()
            listened = await producer.send("a", b"1")
            listened.add_done_callback(lambda _: heard.set())
            await asyncio.to_thread(eventually, lambda: daemon.received)
            assert daemon.flushes == []
            awaited = await producer.send("a", b"2")
            waiter = asyncio.ensure_future(_result(awaited))
            await asyncio.to_thread(eventually, lambda: daemon.flushes)
            daemon.do(daemon.deliver_log)
            assert (await waiter).offset == 1
            await heard.wait()
            daemon.deliver = daemon.deliver_all
            assert (await producer.send_and_wait("a", b"3")).offset == 2

    asyncio.run(main())


async def _result(future: asyncio.Future[object]) -> object:
    return await future
