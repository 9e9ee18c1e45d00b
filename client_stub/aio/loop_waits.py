"""The waits of AsyncProducer: for the outcomes, the end, and answers of the daemon. They block no thread."""

from __future__ import annotations

import asyncio
import math
from typing import Any, TypeVar

from client_stub.aio.loop_queue import LoopQueue
from client_stub.engine.engine import JOIN_S, Engine
from client_stub.engine.flush_wait import FlushWait
from client_stub.io import process_end
from client_stub.io.control_question import ControlQuestion
from client_stub.io.topic_question import TopicQuestion
from client_stub.records.arguments import check_until, checked_timeout, checked_wait
from client_stub.system.originals import monotonic

_Answer = TypeVar("_Answer")


async def flush(engine: Engine, queue: LoopQueue, timeout: float | None, until: str) -> int:  # noqa: ASYNC109
    """As Engine.flush(), also for calls that wait in ``queue``."""
    timeout = checked_wait(timeout)
    check_until(until)
    loop = asyncio.get_running_loop()
    ends = None if timeout is None else loop.time() + timeout
    last = queue.last_number
    if not await queue.until(lambda: queue.is_past(last), timeout):
        raise queue.timeout_error(timeout)
    wait = engine.flush_wait(until)
    left = None if ends is None else max(0.0, ends - loop.time())
    if wait is not None and not await queue.until(wait.is_over, left):
        oldest = wait.oldest()
        said = ""
        if oldest is not None and oldest.may_ask(timeout):
            said = await _asked(engine.question(oldest.topic, oldest.partition_max))
        raise wait.timeout_error(timeout, said)
    return engine.flushed()


async def close(engine: Engine, queue: LoopQueue, timeout: float | None, occasion: str = "") -> None:  # noqa: ASYNC109
    """As Engine.close(). When cancelled, it leaves the rest to the io thread."""
    timeout = checked_timeout(timeout)
    await _abort_open(engine, queue, timeout)
    io = engine.begin_close()
    if io is None:
        return
    cancel = True
    try:
        done = timeout != 0 and await queue.until(FlushWait(engine.outbox).is_over, timeout)
        cancel = not done
        if cancel and occasion:
            io.log_left(occasion)
    except asyncio.CancelledError:
        cancel = False
        process_end.leave_alone(io)  # so that the end of the process waits for it
        raise
    finally:
        io.request_close(cancel=cancel)
        engine.end_close()
    if await queue.until(lambda: io.has_ended, JOIN_S):
        io.join(JOIN_S)
    if done:
        engine.outbox.failures.raise_unobserved()


async def _abort_open(engine: Engine, queue: LoopQueue, timeout: float | None) -> None:  # noqa: ASYNC109
    """Abort the transaction that is open at a close(), as Engine.close() does."""
    abort = engine.abort_at_close(timeout)
    if abort is not None:
        transactions, call, timeout_s = abort
        try:
            await queue.until(lambda: transactions.is_over(call), timeout_s)
        finally:
            transactions.release()
        engine.aborted_at_close(call, timeout_s)


async def looked_up(lookup: ControlQuestion[_Answer]) -> _Answer:
    """The answer to ``lookup``. Raises as its step()."""
    try:
        while (found := lookup.step(monotonic() * 1e3)) is None:
            await _readable(lookup)
        return found
    finally:
        lookup.close()


async def _asked(question: TopicQuestion) -> str:
    """The answer of ``question``."""
    try:
        while (said := question.step(monotonic() * 1e3)) is None:
            await _readable(question.lookup, question.ends_ms)
        return said or question.lookup.waits_for
    finally:
        question.lookup.close()


async def _readable(lookup: ControlQuestion[Any], ends_ms: float = math.inf) -> None:
    """Wait until the lookup's next step has something to do: bytes arrived, or a pause or the caller's timeout
    ended.
    """
    loop = asyncio.get_running_loop()
    now_ms = monotonic() * 1e3
    fd = lookup.fileno()
    if fd is None:
        await asyncio.sleep(lookup.pause_ms(now_ms) / 1e3)
        return
    arrived: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if arrived.done() else arrived.set_result(None))
    try:
        await asyncio.wait([arrived], timeout=max(0.0, min(lookup.answer_ms(now_ms), ends_ms - now_ms)) / 1e3)
    finally:
        loop.remove_reader(fd)
