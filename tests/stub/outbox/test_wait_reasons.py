"""A caller whose patience has ended hears what its records wait for: from each call that waits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from client_stub import AsyncProducer, Producer
from client_stub.contract.wire import Kind
from client_stub.outbox import wait_reasons
from tests.stub.aio.async_harness import settle
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

ACCEPTED = re.escape(
    "the daemon has accepted it, and Kafka has not acknowledged it (`kafka-sidecar explain a` says what it waits for)."
)
MISSING = r"topic a is not in Kafka's metadata yet\."
REFUSAL = ("METADATA_TIMEOUT", "Topic a not present in metadata.")


def test_flush_and_a_bulk_result_name_the_cause(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.deliver = None
    bulk = producer.send_many("a", [(None, b"1"), (None, b"2")])
    producer.flush(10, until="accepted")
    with pytest.raises(
        TimeoutError, match=f"2 records have no outcome yet, the oldest for topic a: {ACCEPTED}"
    ):
        producer.flush(0.01)
    with pytest.raises(
        TimeoutError,
        match=r"Not all of 2 records for topic a have an outcome after 0\.01 s yet: the daemon has accepted them, and "
        "Kafka has not acknowledged them .* says what they wait for",
    ):
        bulk.result(0.01)
    with pytest.raises(TimeoutError, match=r"The record for topic a has no outcome .* accepted it"):
        producer.send_many("a", [(None, b"3")]).exception(0.01)
    daemon.topic_refusals["a"] = REFUSAL
    monkeypatch.setattr(wait_reasons, "ASKS_FROM_S", 0.05)
    for call in (lambda: producer.flush(0.05), lambda: bulk.result(0.05)):
        with pytest.raises(TimeoutError, match=MISSING):
            call()


def test_an_error_for_a_record_that_is_not_accepted_names_the_cause(
    producer: Producer, daemon: FakeDaemon
) -> None:
    producer.send("a", b"0").result(10)
    daemon.accept = lambda client, submit: False
    bulk = producer.send_many("a", [(None, b"1"), (None, b"2")])
    with pytest.raises(
        TimeoutError,
        match="2 records are not accepted yet, the oldest for topic a: the daemon has not accepted it",
    ):
        producer.flush(0.05, until="accepted")
    daemon.do(lambda: daemon.tell(daemon.only_client, [Kind.HOLD, 1, 2, "the buffer pool is full"]))
    eventually(lambda: producer._engine.outbox.waiters.reasons.hold_reasons)
    for call in (
        lambda: producer.flush(0.01, until="accepted"),
        lambda: producer.flush(0.01),
        lambda: bulk.result(0.01),
    ):
        with pytest.raises(TimeoutError, match=r"the daemon holds topic a \(the buffer pool is full\)"):
            call()


def test_records_of_a_daemon_that_is_away_name_it(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_reasons, "ASKS_FROM_S", 0.05)
    daemon.deliver = None
    sent = producer.send("a", b"1")
    producer.flush(10, until="accepted")
    daemon.stop()
    eventually(lambda: producer._engine.outbox.waiters.reasons.last_word)
    for call in (lambda: producer.flush(0.01), lambda: sent.result(0.05)):
        with pytest.raises(TimeoutError, match="the daemon has accepted it, and is away "):
            call()


def on_a_loop(
    daemon: FakeDaemon, main: Callable[[AsyncProducer], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    async def run() -> None:
        producer = AsyncProducer(daemon.run_dir, **settings)
        try:
            await main(producer)
        finally:
            await producer.close(0)

    asyncio.run(run())


def test_a_flush_on_a_loop_names_the_cause(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_reasons, "ASKS_FROM_S", 0.05)
    daemon.deliver = None
    daemon.topic_refusals["a"] = REFUSAL

    async def main(producer: AsyncProducer) -> None:
        await producer.send("a", b"1")
        await producer.flush(10, until="accepted")
        with pytest.raises(TimeoutError, match=f"1 record has no outcome yet, for topic a: {ACCEPTED}"):
            await producer.flush(0.01)
        with pytest.raises(TimeoutError, match=f"1 record has no outcome yet, for topic a: {MISSING}"):
            await producer.flush(0.05)

    on_a_loop(daemon, main)


@pytest.mark.parametrize("form", ["wait_for", "timeout"])
def test_a_future_whose_await_is_cancelled_names_the_cause(daemon: FakeDaemon, form: str) -> None:
    """asyncio makes the TimeoutError itself; the cause that it shows is that of the cancelled future."""
    daemon.deliver = None

    async def main(producer: AsyncProducer) -> None:
        future = await producer.send("a", b"1")
        await producer.flush(10, until="accepted")
        with pytest.raises(TimeoutError) as raised:
            if form == "wait_for":
                await asyncio.wait_for(future, 0.01)
            else:
                async with asyncio.timeout(0.01):
                    await future
        # Before Python 3.11.3 asyncio.timeout() leaves it as the context, which a traceback shows as well.
        cause = raised.value.__cause__ or raised.value.__context__
        assert isinstance(cause, asyncio.CancelledError)
        assert re.match(f"The record for topic a has no outcome yet: {ACCEPTED}", str(cause))
        other = await producer.send("a", b"2")
        other.cancel("a word of the caller's own")
        with pytest.raises(asyncio.CancelledError, match=r"^a word of the caller's own$"):
            await other

    on_a_loop(daemon, main)


def test_a_flush_after_sends_without_room_names_the_cause(daemon: FakeDaemon) -> None:
    async def main(producer: AsyncProducer) -> None:
        await producer.send_and_wait("a", b"0")
        daemon.accept = lambda client, submit: False
        await asyncio.to_thread(
            daemon.do, lambda: daemon.tell(daemon.only_client, [Kind.HOLD, 1, 2, "topic a is over its share"])
        )
        producer._engine.outbox.buffer_bytes = 1
        await asyncio.to_thread(eventually, lambda: producer._engine.outbox.waiters.reasons.hold_reasons)
        waiting = [asyncio.ensure_future(producer.send("a", bytes(600_000))) for _ in range(4)]
        await settle()
        with pytest.raises(
            TimeoutError,
            match=r"send.* wait.* for room: the daemon holds topic a \(topic a is over its share\)",
        ):
            await producer.flush(0.1)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    on_a_loop(daemon, main)
