"""The queue for free memory on an event loop: histories of sends, cancellations and room that comes and goes.

No daemon and no time: what is late or early here is so by order alone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_stub import errors
from client_stub.aio.loop_queue import SERVED_AT_ONCE
from client_stub.engine.rows_call import ROWS_CHECKED_AT_ONCE
from tests.stub.aio.async_harness import BUFFER_BYTES, Harness, JumpingLoop, run, settle

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

MakeHarness = Callable[..., Harness]
MAX_BLOCK_MS = 60_000


@pytest.fixture
def make_harness(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> MakeHarness:
    return lambda **settings: Harness(monkeypatch, run_dir, **settings)


async def fill(harness: Harness, topic: str = "full") -> None:
    """Send until a record of any topic without an open submission would have to wait."""
    while harness.outbox.has_capacity:
        await harness.producer.send(topic, bytes(500))
    harness.gathered.extend(harness.outbox.gather(lambda each: each == topic)[0])


operations = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("abc"), st.integers(0, 700)),
        st.tuples(
            st.just("many"), st.sampled_from("abc"), st.lists(st.integers(0, 300), min_size=1, max_size=9)
        ),
        st.tuples(st.just("cancel"), st.integers(0, 1_000), st.none()),
        st.tuples(st.just("accept"), st.integers(1, 3), st.none()),
        st.tuples(st.just("settle"), st.none(), st.none()),
    ),
    max_size=60,
)


@hypothesis.given(operations)
@hypothesis.settings(max_examples=200, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
def test_every_history_keeps_the_order_and_sends_what_was_not_taken_back(
    make_harness: MakeHarness, history: list[tuple[str, Any, Any]]
) -> None:
    """Sends and bulk calls of three topics, cancelled at random while room comes and goes.

    Each topic's log is what was called for it, in the order of the calls, without what was cancelled while it waited;
    of a bulk call that was cancelled a beginning may be there.
    """
    harness = make_harness()
    numbers = itertools.count()

    async def main() -> None:
        called: dict[str, list[tuple[asyncio.Task[Any], list[bytes]]]] = {"a": [], "b": [], "c": []}
        cancelled: set[asyncio.Task[Any]] = set()
        loop = asyncio.get_running_loop()
        for action, what, more in history:
            if action in ("send", "many"):
                sizes = [more] if action == "send" else more
                values = [b"%08d" % next(numbers) + bytes(size) for size in sizes]
                coroutine: Any
                if action == "send":
                    coroutine = harness.producer.send(what, values[0])
                else:
                    coroutine = harness.producer.send_many(what, [(b"k", value) for value in values])
                called[what].append((loop.create_task(coroutine), values))
            elif action == "cancel":
                tasks = [task for each in called.values() for task, _ in each]
                await settle()
                if tasks and tasks[what % len(tasks)].cancel():
                    cancelled.add(tasks[what % len(tasks)])
            elif action == "accept":
                harness.accept(what)
            else:
                await settle()
        await harness.accept_all()
        for topic, calls in called.items():
            rest = list(harness.log.get(topic, []))
            for task, values in calls:
                assert task.done(), "room came for all"
                if task not in cancelled:
                    assert rest[: len(values)] == values
                    del rest[: len(values)]
                elif len(values) == 1:
                    assert values[0] not in rest, "a send that waited was cancelled"
                else:
                    while values and rest[:1] == values[:1]:
                        del rest[0], values[0]
            assert rest == []
        assert harness.outbox.waiters.listeners == {}, "nobody waits any more"

    run(main())


def test_a_later_record_that_would_fit_does_not_overtake_one_that_waits(make_harness: MakeHarness) -> None:
    harness = make_harness()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await harness.producer.send("t", b"0")
        await fill(harness)
        large = loop.create_task(harness.producer.send("t", b"1" * 590))
        small = loop.create_task(harness.producer.send("t", b"2"))
        await settle()
        assert not large.done() and not small.done()
        await harness.accept_all()
        assert [value[:1] for value in harness.log["t"]] == [b"0", b"1", b"2"]

    run(main())


def test_a_topic_without_room_does_not_hold_up_one_that_has_some(make_harness: MakeHarness) -> None:
    harness = make_harness()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await harness.producer.send("open", b"0")
        for number in itertools.count():
            if not harness.outbox.has_capacity:
                break
            await harness.producer.send("full", b"%500d" % number)
        waits = loop.create_task(harness.producer.send("full", bytes(500)))
        await settle()
        await harness.producer.send("open", b"1")
        assert not waits.done()
        await harness.accept_all()
        assert waits.done()
        assert harness.log["open"] == [b"0", b"1"]

    run(main())


def test_capacity_is_given_in_the_order_of_calls_whatever_the_topic(make_harness: MakeHarness) -> None:
    """Also where a newcomer asks in the moment between room and those who wait for it."""
    harness = make_harness()

    async def main() -> None:
        await fill(harness)
        topics = [f"topic-{number}" for number in range(11)]
        tasks = [asyncio.create_task(harness.producer.send(topic, bytes(500))) for topic in topics[:10]]
        await settle()
        tasks.append(asyncio.create_task(harness.producer.send(topics[10], bytes(500))))
        harness.accept()  # the newcomer's first step comes before the queue is served
        await asyncio.gather(*tasks)
        assert [each.topic for each in harness.outbox.pending if each.topic != "full"] == topics

    run(main())


def test_many_topics_without_room_leave_the_loop_idle_and_hold_up_nobody(make_harness: MakeHarness) -> None:
    """More topics than one look lets in: the loop sleeps while none finds room, and one that has some is found."""
    harness = make_harness(max_block_ms=MAX_BLOCK_MS)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await fill(harness)
        topics = [f"topic-{number}" for number in range(2 * SERVED_AT_ONCE)]
        tasks = [asyncio.create_task(harness.producer.send(topic, bytes(500))) for topic in topics]
        began = loop.time()
        await asyncio.sleep(1)  # the clock jumps only while the loop has nothing to do
        assert loop.time() - began >= 1
        harness.outbox.streams[topics[-1]].refusal = errors.TopicLimit("too many topics")
        harness.outbox.waiters.notify()
        with pytest.raises(errors.TopicLimit):
            await tasks.pop()
        assert not any(task.done() for task in tasks)
        await harness.accept_all()
        assert all(task.done() for task in tasks)

    run(main())


def test_max_block_ms_counts_from_the_call(make_harness: MakeHarness) -> None:
    """However many wait: each hears it after its own time, in order, and the sentence says how long."""
    harness = make_harness(max_block_ms=MAX_BLOCK_MS)
    told: list[tuple[float, float, str]] = []

    async def send() -> None:
        loop = asyncio.get_running_loop()
        called = loop.time()
        with pytest.raises(errors.BufferExhausted) as caught:
            await harness.producer.send("t", bytes(500))
        told.append((called, loop.time(), str(caught.value)))

    async def main() -> None:
        await fill(harness)
        tasks = []
        for _ in range(40):
            tasks.append(asyncio.create_task(send()))
            await asyncio.sleep(1)
        await asyncio.gather(*tasks)
        assert [late - called for called, late, _ in told] == pytest.approx([MAX_BLOCK_MS / 1e3] * 40)
        assert [called for called, _, _ in told] == sorted(called for called, _, _ in told)
        assert "within the configured max blocking time 60000 ms" in told[0][2]
        harness.accept()
        await harness.producer.send("t", b"there is room again")

    run(main())


def test_the_first_send_waits_for_a_daemon_no_longer_than_connect_timeout(make_harness: MakeHarness) -> None:
    harness = make_harness(max_block_ms=MAX_BLOCK_MS, connect_timeout_ms=5_000)
    harness.outbox.attached_once = False

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(errors.DaemonUnreachable, match="waited 5 s"):
            await harness.producer.send("t", b"v")
        assert loop.time() - began == pytest.approx(5)
        # Attached in time, it has what is left of max_block_ms for room.
        harness.outbox.buffer_bytes = 0
        waits = asyncio.create_task(harness.producer.send("t", b"v"))
        began = loop.time()
        await asyncio.sleep(1)
        harness.outbox.attached_once = True
        with pytest.raises(errors.BufferExhausted):
            await waits
        assert loop.time() - began == pytest.approx(MAX_BLOCK_MS / 1e3)

    run(main())


def test_a_bulk_call_that_gets_on_is_given_more_time_and_says_what_is_queued(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(max_block_ms=MAX_BLOCK_MS)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        rows = [(None, b"%500d" % number) for number in range(20)]
        call = asyncio.create_task(harness.producer.send_many("t", rows))
        await asyncio.sleep(MAX_BLOCK_MS / 2e3)
        before = len(harness.gathered) + harness.accept()
        with pytest.raises(errors.BufferExhausted) as caught:
            await call
        assert loop.time() - began == pytest.approx(MAX_BLOCK_MS * 1.5 / 1e3)
        queued = caught.value.queued
        assert queued is not None
        assert before < queued.count < 20
        assert f"(The first {queued.count} records of this call are queued.)" in str(caught.value)
        await harness.accept_all()
        assert harness.log["t"] == [value for _, value in rows[: queued.count]]

    run(main())


def test_a_long_bulk_call_does_not_block_the_loop(make_harness: MakeHarness) -> None:
    """Rows with headers are checked in Python: a bad last one is found before any is queued."""
    harness = make_harness()
    harness.outbox.buffer_bytes = 1 << 20

    async def main() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        running = asyncio.create_task(others())
        rows: list[Any] = [(None, b"v", [("h", b"x")])] * 10 * ROWS_CHECKED_AT_ONCE
        with pytest.raises(TypeError, match="record 10000"):
            await harness.producer.send_many("t", [*rows, (None, "text", None)])
        assert turns >= 10
        assert not harness.outbox.pending
        delivery = await harness.producer.send_many("t", rows[: ROWS_CHECKED_AT_ONCE + 1])
        assert delivery.count == ROWS_CHECKED_AT_ONCE + 1
        running.cancel()
        await harness.accept_all()
        assert len(harness.log["t"]) == ROWS_CHECKED_AT_ONCE + 1

    run(main())


def test_a_refused_topic_fails_those_who_wait_for_it_and_no_others(make_harness: MakeHarness) -> None:
    harness = make_harness()

    async def main() -> None:
        await fill(harness)
        harness.outbox.open_stream("bad")
        bad, good = (
            asyncio.create_task(harness.producer.send(topic, bytes(500))) for topic in ("bad", "good")
        )
        await settle()
        harness.outbox.streams["bad"].refusal = errors.TopicLimit("too many topics")
        harness.outbox.waiters.notify()
        with pytest.raises(errors.TopicLimit):
            await bad
        assert not good.done()
        await harness.accept_all()
        await good

    run(main())


def test_every_waiting_call_gets_the_error_that_ends_the_producer(make_harness: MakeHarness) -> None:
    harness = make_harness()

    async def main() -> None:
        await fill(harness)
        tasks = [asyncio.create_task(harness.producer.send("t", bytes(500))) for _ in range(600)]
        await settle()
        harness.outbox.fatal = errors.DaemonRefused("The daemon refused this client.", name="NOT_ADMITTED")
        harness.outbox.waiters.notify()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {errors.DaemonRefused}

    run(main())


def test_flush_waits_for_the_sends_before_it_and_not_for_those_after_it(make_harness: MakeHarness) -> None:
    harness = make_harness()

    async def main() -> None:
        await fill(harness)
        before = asyncio.create_task(harness.producer.send("t", b"1" * 500))
        await settle()
        with pytest.raises(TimeoutError, match="1 send waits for room"):
            await harness.producer.flush(1)
        flush = asyncio.create_task(harness.producer.flush(10, until="accepted"))
        await settle()
        behind = [asyncio.create_task(harness.producer.send("t", b"2" * 590)) for _ in range(20)]
        await settle()
        while not before.done():
            assert not flush.done()
            harness.accept(1)
            await settle()
        while not flush.done():
            assert harness.accept(1)
            await settle()
        assert harness.log["t"][0] == b"1" * 500
        assert not behind[-1].done()
        await flush
        await harness.accept_all()

    run(main())


def test_a_cancelled_send_leaves_nothing_behind(make_harness: MakeHarness) -> None:
    """A caller with a short patience under a long full buffer: nothing piles up."""
    harness = make_harness(max_block_ms=MAX_BLOCK_MS)

    async def main() -> None:
        await fill(harness)
        queue = harness.producer._queue_of(asyncio.get_running_loop())
        for _ in range(500):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await harness.producer.send("t", bytes(400))
        assert not queue._by_age
        assert harness.outbox.waiters.listeners == {}
        await harness.accept_all()
        assert "t" not in harness.log

    run(main())


def test_a_send_cancelled_just_before_the_queue_is_served_is_not_sent(make_harness: MakeHarness) -> None:
    harness = make_harness()

    async def main() -> None:
        await fill(harness)
        waits = asyncio.create_task(harness.producer.send("t", b"v"))
        await settle()
        harness.accept()
        waits.cancel()  # there is room, and neither the queue nor the task has run since
        with pytest.raises(asyncio.CancelledError):
            await waits
        await harness.accept_all()
        assert "t" not in harness.log

    run(main())


def test_a_send_cancelled_in_the_step_that_queues_it_is_sent(make_harness: MakeHarness) -> None:
    harness = make_harness()

    async def main() -> None:
        await fill(harness)
        waits = asyncio.create_task(harness.producer.send("t", b"v"))
        await settle()
        harness.accept()
        await asyncio.sleep(0)  # the queue is served, the task has not run
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await harness.accept_all()
        assert harness.log["t"] == [b"v"]

    run(main())


def test_a_loop_that_closes_takes_its_waiters_along_and_disturbs_no_other(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    import gc
    import weakref

    harness = make_harness()

    async def leave() -> None:
        await fill(harness)
        for number in range(3):
            left.append(asyncio.create_task(harness.producer.send("left", b"%d" % number)))
        left.append(asyncio.create_task(harness.producer.flush()))
        await settle()

    async def come() -> None:
        waits = asyncio.create_task(harness.producer.send("t", b"2"))
        await settle()
        await harness.accept_all()
        outcome = await waits
        assert harness.log["t"] == [b"2"]
        assert "left" not in harness.log
        harness.decide()
        with pytest.raises(errors.DeliveryFailed):
            await outcome

    left: list[asyncio.Task[Any]] = []
    first: Any = JumpingLoop()
    first.run_until_complete(leave())
    first.close()  # without cancelling anything
    gone = weakref.ref(first)
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    run(come())
    assert harness.outbox.waiters.listeners == {}
    del first, task
    left.clear()
    gc.collect()
    assert gone() is None, "nothing holds the closed loop"
    assert caplog.text == ""


def test_buffer_bytes_bound_what_waits_with_the_daemon_away(make_harness: MakeHarness) -> None:
    """The queue holds calls, not bytes: what is queued stays within the buffer and one open submission a topic."""
    harness = make_harness()

    async def main() -> None:
        tasks = [asyncio.create_task(harness.producer.send("t", bytes(500))) for _ in range(1_000)]
        await settle()
        queued = sum(task.done() for task in tasks)
        assert queued <= BUFFER_BYTES // 500 + 2
        await harness.accept_all()
        assert len(harness.log["t"]) == 1_000

    run(main())


@pytest.mark.parametrize("is_met_at_once", [True, False])
def test_futures_decided_before_a_wait_ends_are_done_after_it(
    make_harness: MakeHarness, is_met_at_once: bool
) -> None:
    """The io thread decides the last record and lets flush() go between two lines of the loop's thread."""
    harness = make_harness()

    async def main() -> None:
        queue = harness.producer._queue_of(asyncio.get_running_loop())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        error = errors.RecordTooLarge("too large")
        looks = itertools.count()

        def io_thread_lets_go() -> bool:
            if next(looks) == 0 and not is_met_at_once:
                return False
            if not future.done():
                queue.decided(future, error, None)
            return True

        assert await queue.until(io_thread_lets_go, 10)
        assert future.done()
        assert future.exception() is error

    run(main())
