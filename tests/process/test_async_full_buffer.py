"""Goal: an event loop's sends through a daemon that stops and goes on, with a full buffer, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from client_stub import AsyncProducer
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.ledger import RecordId

pytestmark = pytest.mark.process

SENDS = 600


def test_sends_keep_their_order_while_the_worker_stops_and_the_buffer_is_full(
    start_daemon: StartDaemon,
) -> None:
    """Three times over: a stopped worker, a full buffer, some sends taken back, the worker goes on.

    The log has the calls in their order, without those that were taken back while they waited.
    """
    rng = random.Random(7)
    with FakeBroker({"t": 1}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})

        async def main() -> list[int]:
            expected: list[int] = []
            async with AsyncProducer(daemon.run_dir) as producer:
                await producer.send_and_wait("t", b"first")
                for round_ in range(3):
                    (worker,) = daemon.worker_pids()
                    os.kill(worker, signal.SIGSTOP)
                    try:
                        numbers = range(round_ * SENDS, (round_ + 1) * SENDS)
                        tasks = {
                            n: asyncio.create_task(
                                producer.send("t", RecordId("a", n).encode() + bytes(rng.randrange(60_000)))
                            )
                            for n in numbers
                        }
                        outbox = producer._engine.outbox
                        while outbox.has_capacity:  # noqa: ASYNC110 (nobody tells of a seal)
                            await asyncio.sleep(0.001)
                        waiting = [n for n, task in tasks.items() if not task.done()]
                        assert waiting
                        taken_back = set(rng.sample(waiting, len(waiting) // 10))
                        for n in taken_back:
                            tasks[n].cancel()
                    finally:
                        os.kill(worker, signal.SIGCONT)
                    futures = await asyncio.gather(*(tasks[n] for n in numbers if n not in taken_back))
                    offsets = [metadata.offset for metadata in await asyncio.gather(*futures)]
                    assert offsets == sorted(offsets)
                    expected += [n for n in numbers if n not in taken_back]
            return expected

        expected = asyncio.run(main())
        found = [record.value for record in kafka.records("t")][1:]
        assert [RecordId.decode(value).number for value in found] == expected
