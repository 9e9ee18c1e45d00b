"""AsyncProducer: the loop is never blocked, futures resolve on it, errors are the record's own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import sys
import threading
import weakref
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from client_stub import AsyncProducer, errors
from client_stub.contract.wire import OutcomeKind
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import Client, FakeDaemon, Submit


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


# --- order, loops and executors ---------------------------------------------------------------------------


class NoExecutor(concurrent.futures.ThreadPoolExecutor):
    """The application's own: nobody else has work for it."""

    def submit(self, *args: Any, **named: Any) -> Any:
        raise AssertionError("the application's executor was used")


def make_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind == "uvloop":
        made: asyncio.AbstractEventLoop = pytest.importorskip("uvloop").new_event_loop()
        return made
    return asyncio.new_event_loop()


def run_on(kind: str, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=lambda: make_loop(kind)) as runner:
        runner.get_loop().set_default_executor(NoExecutor(1))
        runner.run(main)


async def until_full(producer: AsyncProducer) -> None:
    outbox = producer._engine.outbox
    async with asyncio.timeout(20):
        while outbox.has_capacity or not outbox.attached_once:  # noqa: ASYNC110 (nobody tells of a seal)
            await asyncio.sleep(0.001)


def values_of(daemon: FakeDaemon, topic: str = "t") -> list[bytes]:
    return [record[1] for submit in daemon.received if submit.topic == topic for record in submit.records]


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_the_first_sends_of_a_producer_keep_their_order_and_use_no_executor(
    daemon: FakeDaemon, kind: str
) -> None:
    """All of them wait for the daemon's WELCOME; the application's executor is its own."""

    async def main() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            tasks = [asyncio.create_task(producer.send("t", b"%d" % n)) for n in range(200)]
            tasks.append(
                asyncio.create_task(producer.send_many("t", [(None, b"%d" % n) for n in range(200, 300)]))
            )
            tasks += [asyncio.create_task(producer.send("t", b"%d" % n)) for n in range(300, 400)]
            await asyncio.gather(*tasks)
            await producer.flush(10, until="accepted")
            await producer.flush(10)

    run_on(kind, main())
    assert [int(value) for value in values_of(daemon)] == list(range(400))


def test_sends_keep_their_order_while_a_full_buffer_empties(daemon: FakeDaemon) -> None:
    daemon.accept = lambda client, submit: False
    taken: list[bytes] = []

    def take(client: Client, submit: Submit) -> bool:
        taken.extend(record[1] for record in submit.records)
        return True

    async def main() -> None:
        async with AsyncProducer(daemon.run_dir, max_block_ms=20_000) as producer:
            tasks = [
                asyncio.create_task(producer.send("t", b"%d " % n + bytes(37_007 * n % 60_000)))
                for n in range(400)
            ]
            await until_full(producer)
            assert not all(task.done() for task in tasks)
            daemon.accept = take
            daemon.kill_worker()
            await asyncio.gather(*tasks)
            await producer.flush(20)

    run_on("asyncio", main())
    assert [int(value.split(b" ")[0]) for value in taken] == list(range(400))


def test_a_send_cancelled_before_there_was_a_daemon_is_not_sent(run_dir: Path) -> None:
    """A caller that tries again has its record once."""
    daemon: FakeDaemon | None = None

    async def main() -> None:
        nonlocal daemon
        producer = AsyncProducer(run_dir, connect_timeout_ms=20_000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.send("t", b"cancelled")
        daemon = FakeDaemon(run_dir)
        await producer.send_and_wait("t", b"again")
        await producer.close()

    try:
        run_on("asyncio", main())
        assert daemon is not None
        assert values_of(daemon) == [b"again"]
    finally:
        if daemon is not None:
            daemon.stop()


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_one_producer_on_one_loop_after_the_other(
    daemon: FakeDaemon, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each loop closes with a record of its own undecided, which no later loop's outcome waits for."""
    producer = AsyncProducer(daemon.run_dir)
    deliver, daemon.deliver = daemon.deliver, None
    gone: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def leave_one(number: int) -> None:
        await producer.send("t", b"left %d" % number)
        gone.append(weakref.ref(asyncio.get_running_loop()))

    async def wait_for_one(number: int) -> None:
        await producer.send_and_wait("t", b"%d" % number)

    for number in range(5):
        run_on(kind, leave_one(number))
        run_on(kind, leave_one(number))
        daemon.deliver = deliver
        run_on(kind, wait_for_one(number))
        daemon.do(daemon.deliver_log)
        daemon.deliver = None
    daemon.deliver = deliver
    run_on(kind, producer.close())
    gc.collect()
    assert [ref() for ref in gone] == [None] * 10
    assert len(values_of(daemon)) == 15
    assert caplog.text == ""


def test_two_loops_in_two_threads_share_a_producer(daemon: FakeDaemon) -> None:
    producer = AsyncProducer(daemon.run_dir)

    async def main(name: bytes) -> None:
        futures = [await producer.send("t", b"%s %d" % (name, n)) for n in range(500)]
        await asyncio.gather(*futures)
        await producer.flush(10)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(run_on, "asyncio", main(name)) for name in (b"a", b"b")]:
            each.result(20)
    run_on("asyncio", producer.close())
    for name in (b"a", b"b"):
        own = [int(value.split()[1]) for value in values_of(daemon) if value.startswith(name)]
        assert own == list(range(500))


def test_many_loops_may_send_first_at_once(run_dir: Path) -> None:
    """Each looks for closed loops among those that are known, while others come and go."""
    producer = AsyncProducer(run_dir)

    class Loop:
        """Has no descriptors, so that there can be many."""

        def is_closed(self) -> bool:
            return False

    def come(count: int) -> list[Loop]:
        loops = [Loop() for _ in range(count)]
        for each in loops:
            producer._queue_of(each)  # type: ignore[arg-type]
        return loops

    kept = come(200)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for each in [pool.submit(come, 100) for _ in range(4)]:
                each.result(20)
    finally:
        sys.setswitchinterval(interval_s)
    assert {ref() for ref in producer._queues.keyrefs()} >= set(kept)
    run_on("asyncio", producer.close())


def test_a_forked_child_uses_the_inherited_producer_on_a_loop_of_its_own(daemon: FakeDaemon) -> None:
    producer = AsyncProducer(daemon.run_dir)

    async def main(value: bytes) -> None:
        await producer.send_and_wait("t", value)

    run_on("asyncio", main(b"parent"))
    pid = os.fork()
    if not pid:
        status = 1
        with contextlib.suppress(BaseException):
            run_on("asyncio", main(b"child"))
            status = 0
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    run_on("asyncio", main(b"parent again"))
    run_on("asyncio", producer.close())
    assert values_of(daemon) == [b"parent", b"child", b"parent again"]


def test_close_ends_the_thread_and_fails_the_sends_that_wait(daemon: FakeDaemon) -> None:
    daemon.accept = lambda client, submit: False
    before = set(threading.enumerate())

    async def main() -> None:
        producer = AsyncProducer(daemon.run_dir)
        tasks = [asyncio.create_task(producer.send("t", bytes(1_000_000))) for _ in range(20)]
        await until_full(producer)
        await producer.close(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        queued = [result for result in results if isinstance(result, asyncio.Future)]
        waited = [result for result in results if not isinstance(result, asyncio.Future)]
        assert waited and {type(result) for result in waited} == {errors.ProducerClosed}
        for outcome in queued:
            with pytest.raises(errors.DeliveryCancelled):
                await outcome
        with pytest.raises(errors.ProducerClosed):
            await producer.send("t", b"v")
        await producer.close()

    run_on("asyncio", main())
    assert set(threading.enumerate()) <= before


def test_a_close_that_is_cancelled_delivers_what_is_queued_all_the_same(daemon: FakeDaemon) -> None:
    deliver, daemon.deliver = daemon.deliver, None
    before = set(threading.enumerate())

    async def main() -> None:
        producer = AsyncProducer(daemon.run_dir)
        future = await producer.send("t", b"v")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.close()
        daemon.deliver = deliver
        daemon.do(daemon.deliver_log)
        assert (await future).offset == 0

    run_on("asyncio", main())
    eventually(lambda: set(threading.enumerate()) <= before)


def test_a_closed_loop_leaves_no_descriptor_and_no_thread(daemon: FakeDaemon) -> None:
    producer = AsyncProducer(daemon.run_dir)

    async def main() -> None:
        tasks = [asyncio.create_task(producer.send("t", b"v")) for _ in range(10)]
        await asyncio.gather(*tasks)
        await producer.flush(10)

    run_on("asyncio", main())
    gc.collect()
    held = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    for _ in range(10):
        run_on("asyncio", main())
    gc.collect()
    assert (len(list(Path("/proc/self/fd").iterdir())), threading.active_count()) == held
    assert producer._engine.outbox.waiters.listeners == {}
    run_on("asyncio", producer.close())
