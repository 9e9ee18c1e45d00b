"""A caller that waits for one record ends linger for it, in threads and on an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from client_stub import AsyncProducer, Producer, errors
from client_stub import async_producer as async_module
from client_stub import producer as producer_module
from client_stub.contract.wire import Kind
from client_stub.io import process_end
from client_stub.outbox import capacity_wait
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


def test_a_block_that_an_exception_leaves_waits_only_so_long(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producer_module, "ERROR_CLOSE_S", 0.05)
    monkeypatch.setattr(async_module, "ERROR_CLOSE_S", 0.05)
    daemon.deliver = None  # no outcome ever comes
    told: list[object] = []

    async def on_a_loop() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            future = await producer.send("a", b"1")
            future.add_done_callback(lambda future: told.append(future.exception()))
            await producer.flush(until="accepted")
            raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="own"), Producer(daemon.run_dir) as producer:
        producer.send("a", b"1")
        producer.flush(until="accepted")
        raise KeyError("the caller's own")
    assert [record.getMessage() for record in caplog.records] == [
        "1 record for topic a had no outcome when the producer was closed after KeyError: the daemon has accepted it "
        "and delivers it."
    ]
    with pytest.raises(KeyError, match="own"):
        asyncio.run(on_a_loop())
    assert len(caplog.records) == 2 and "closed after KeyError" in caplog.records[1].getMessage()
    assert len(told) == 1


def test_records_left_by_a_close_after_ctrl_c_are_logged_once_with_those_that_have_callbacks(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producer_module, "ERROR_CLOSE_S", 0.05)
    daemon.deliver = None
    with pytest.raises(KeyboardInterrupt), Producer(daemon.run_dir) as producer:
        kept = producer.send("a", b"1", on_delivery=lambda *_: None)
        producer.send("a", b"2")
        producer.flush(until="accepted")
        daemon.accept = lambda client, submit: False
        producer.send("b", b"3").add_done_callback(lambda _: None)
        raise KeyboardInterrupt
    assert isinstance(kept.exception(0), errors.DeliveryCancelled)
    producer = Producer(daemon.run_dir)
    producer.send("b", b"4", on_delivery=lambda *_: None)
    producer._engine.was_interrupted = True
    process_end.at_exit()
    assert [record.getMessage() for record in caplog.records] == [
        "3 records for topic a and 1 other had no outcome when the producer was closed after KeyboardInterrupt: "
        "the others may be lost; the daemon has accepted 2 and delivers those.",
        "1 record for topic b had no outcome when the producer was closed at the end of the process: the daemon "
        "has not accepted it, and it may be lost.",
    ]


def test_a_close_that_ctrl_c_breaks_off_is_not_waited_for_again(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.deliver = None
    producer = Producer(daemon.run_dir)
    producer.send("a", b"1")
    eventually(lambda: daemon.received)
    timeouts: list[float | None] = []

    def interrupt(ready: object, timeout: float | None, **_: object) -> bool:
        timeouts.append(timeout)
        raise KeyboardInterrupt

    monkeypatch.setattr(producer._engine.outbox.waiters, "wait_until", interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    process_end.at_exit()
    assert timeouts == [None], "the process ends at once"
    assert producer._engine.io is None


def test_the_error_of_a_short_timeout_names_what_the_record_waits_for(
    producer: Producer, daemon: FakeDaemon
) -> None:
    daemon.deliver = None
    delivery = producer.send("a", b"1")
    producer.flush(10, until="accepted")
    accepted = (
        "the daemon has accepted it, and Kafka has not acknowledged it .`kafka-sidecar explain a` says what"
    )
    with pytest.raises(TimeoutError, match=accepted):
        delivery.result(0)
    daemon.do(lambda: daemon.tell(daemon.only_client, [Kind.HOLD, 1, 2, "the buffer pool is full"]))
    eventually(lambda: producer._engine.outbox.waiters.reasons.hold_reasons)
    held = producer.send("a", b"2")
    with pytest.raises(TimeoutError, match=r"the daemon holds topic a \(the buffer pool is full\)"):
        held.result(0.05)
    daemon.accept = lambda client, submit: False
    with pytest.raises(TimeoutError, match=r"yet: the daemon has not accepted it\."):
        producer.send("another topic, which nobody holds", b"3").result(0.05)
    daemon.do(lambda: daemon.tell(daemon.only_client, [Kind.RESUME, 1, 2]))
    eventually(lambda: not producer._engine.outbox.waiters.reasons.hold_reasons)


def test_sends_that_wait_for_room_say_once_why(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(capacity_wait, "WAIT_WARNING_S", 0.0)
    producer.send("a", b"1").result(10)
    daemon.accept = lambda client, submit: False
    daemon.do(lambda: daemon.tell(daemon.only_client, [Kind.HOLD, 1, 2, "topic a is over its share"]))
    eventually(lambda: producer._engine.outbox.waiters.reasons.hold_reasons)
    producer._engine.outbox.buffer_bytes = 1_000
    producer._engine.outbox.max_block_ms = 400
    with pytest.raises(
        errors.BufferExhausted, match=r"bytes wait: the daemon holds topic a \(topic a is over its"
    ):
        for _ in range(100):
            producer.send("a", bytes(600_000))
    with pytest.raises(errors.BufferExhausted):
        producer.send("a", bytes(600_000))
    lines = [line for line in caplog.messages if "for room" in line]
    assert len(lines) == 1 and "the daemon holds topic a (topic a is over its share)" in lines[0]
    monkeypatch.setattr(producer._engine.outbox.capacity_wait._limit, "next_ms", 0.0)
    with pytest.raises(errors.BufferExhausted):
        producer.send("a", bytes(600_000))
    assert len([line for line in caplog.messages if "for room" in line]) == 2, "again after its time"
