"""AsyncProducer: the loop is never blocked, futures resolve on it, errors are the record's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client_stub import AsyncProducer, errors
from client_stub.wire import OutcomeKind
from tests.stub.fake_daemon import FakeDaemon


def test_records_resolve_on_the_loop(daemon: FakeDaemon) -> None:
    async def main() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            futures = [await producer.send("t", b"%d" % n) for n in range(500)]
            offsets = [(await future).offset for future in futures]
            assert offsets == list(range(500))
            assert (await producer.send_and_wait("t", b"x", key=b"k")).offset == 500
            assert (await producer.send_many("t", [(None, b"v")] * 10)).count == 10
            await producer.flush(10)

    asyncio.run(main())


def test_a_failure_and_a_cancelled_waiter(daemon: FakeDaemon) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(client, submit, kind=OutcomeKind.FAILED, code=29)

    async def main() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            cancelled = await producer.send("t", b"1")
            cancelled.cancel()
            with pytest.raises(errors.TopicAuthorizationFailed):
                await producer.send_and_wait("t", b"2")

    asyncio.run(main())


def test_waiting_for_a_daemon_does_not_block_the_loop(run_dir: Path) -> None:
    async def main() -> None:
        producer = AsyncProducer(run_dir, connect_timeout_ms=200)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        with pytest.raises(errors.DaemonUnreachable):
            await producer.send("t", b"v")
        ticking.cancel()
        await producer.close()
        assert ticks > 2

    asyncio.run(main())
