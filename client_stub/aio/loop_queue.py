"""LoopQueue: the calls of one event loop that wait for room, and the results of its futures. It has no thread.

Calls of one topic enter the outbox in the order in which they were made; a call that waits keeps its position. The
producer's io thread wakes the loop, once for all changes since the loop last checked. Everything else here runs on the
loop.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any, Final

from client_stub.aio.async_delivery import AsyncBulkDelivery
from client_stub.errors import SidecarError
from client_stub.outbox.bulk_call import BulkCall, Step
from client_stub.outbox.capacity_wait import FULL, Full

if TYPE_CHECKING:
    from client_stub.engine.engine import Engine
    from client_stub.outbox.outbox import Outbox
    from client_stub.record_metadata import RecordMetadata

SERVED_AT_ONCE: Final = 256
"""How many calls are taken from the queue before the loop runs anything else."""


class _Waiter:
    """One call in the queue. ``attempt()`` queues its records, or returns FULL; Step.MORE after a part of them."""

    __slots__ = ("attempt", "explain", "future", "number", "since", "topic")

    def __init__(
        self,
        number: int,
        topic: str,
        attempt: Callable[[], Any],
        explain: Callable[[SidecarError], SidecarError] | None,
        future: asyncio.Future[Any],
        since: float,
    ) -> None:
        self.number = number
        self.topic = topic
        self.attempt = attempt
        self.explain = explain
        self.future = future
        self.since = since
        """The loop time when the call was made, or last queued something."""


class LoopQueue:
    """The queue of one loop. ``decided`` and ``wake`` may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        self.loop_of = weakref.ref(loop)
        """Weak, so that a closed loop is freed once nothing of it is left here."""
        self._engine = engine
        self.topics: dict[str, OrderedDict[_Waiter, None]] = {}
        """The waiting calls by topic, in order. A topic without calls has no entry."""
        self._by_age: OrderedDict[_Waiter, None] = OrderedDict()
        """The same calls, the longest wait first."""
        self._timer: asyncio.TimerHandle | None = None
        """Expires when the call that was the oldest when the timer was set has waited long enough."""
        self.last_number = 0
        self._conditions: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        self._decided: deque[
            tuple[asyncio.Future[RecordMetadata], SidecarError | None, RecordMetadata | None]
        ] = deque()
        self._is_woken = False

    # --- any thread ---------------------------------------------------------------------------------

    def decided(
        self,
        future: asyncio.Future[RecordMetadata],
        error: SidecarError | None,
        metadata: RecordMetadata | None,
    ) -> None:
        """Note the outcome of the record of ``future``."""
        self._decided.append((future, error, metadata))
        if not self._is_woken:
            self.wake()

    def wake(self) -> bool:
        """Make the loop check for changes. Returns False when the loop is closed; everything that belonged to it is
        then dropped.
        """
        loop = self.loop_of()
        if loop is not None and not loop.is_closed():
            if self._is_woken:
                return True
            self._is_woken = True
            try:
                loop.call_soon_threadsafe(self._check)
                return True
            except RuntimeError:
                pass  # the loop was closed just now
        self.drop()
        return False

    def drop(self) -> None:
        """Drop everything: the loop is closed, so none of its calls can complete, and nothing that waits here may be
        sent.
        """
        self._is_woken = False
        self._decided.clear()
        self.topics.clear()
        self._by_age.clear()
        self._conditions.clear()

    # --- on the loop: calls that enter in turn -------------------------------------------------------

    def must_wait(self, topic: str) -> bool:
        """True when a new call must wait for others: those of its topic, or those that are just being given room."""
        outbox = self._outbox
        if self.topics and outbox.has_capacity and outbox.attached_once:
            # There is room again: serve the queue now, so that a burst of calls does not join it after the first.
            self._serve()
        if not self.topics:
            return False
        return topic in self.topics or outbox.has_capacity or not outbox.attached_once

    async def run(self, topic: str, call: BulkCall) -> AsyncBulkDelivery:
        """Do all steps of ``call``, each when it finds room, and not before earlier calls of its topic.

        Raises the errors of ``call``, and after max_block_ms without room that of a send without it. After
        cancellation ``call`` does no more steps.
        """

        def attempt() -> AsyncBulkDelivery | Step | Full:
            done = call.step(waits=False)
            return AsyncBulkDelivery(call.parts) if done is Step.DONE else done

        if not self.must_wait(topic):
            result = attempt()
            if isinstance(result, AsyncBulkDelivery):
                return result
        delivery: AsyncBulkDelivery = await self.wait(topic, attempt, call.explain)
        return delivery

    async def wait(
        self,
        topic: str,
        attempt: Callable[[], Any],
        explain: Callable[[SidecarError], SidecarError] | None = None,
    ) -> Any:
        """Call ``attempt`` in its turn until its result is neither FULL nor Step.MORE, and return that. Errors that end
        the wait are passed through ``explain``.
        """
        loop = asyncio.get_running_loop()
        self.last_number += 1
        waiter = _Waiter(self.last_number, topic, attempt, explain, loop.create_future(), loop.time())
        self.topics.setdefault(topic, OrderedDict())[waiter] = None
        self._by_age[waiter] = None
        if self._timer is None:
            self._timer = loop.call_later(self._limit_s(), self._expire)
        self._listen()
        try:
            return await waiter.future
        finally:
            self._remove(waiter)
            if waiter.future.done() and not waiter.future.cancelled():
                waiter.future.exception()  # cancelled after its error was set: mark that as seen

    def is_past(self, number: int) -> bool:
        """Whether no call with this number or a lower one waits any more."""
        return all(next(iter(waiters)).number > number for waiters in self.topics.values() if waiters)

    def timeout_error(self, timeout: float | None) -> TimeoutError:
        """The error of a flush() that timed out before all calls found room."""
        return TimeoutError(self.wait_text("flush()", timeout))

    def wait_text(self, what: str, timeout: float | None) -> str:
        """That ``what`` timed out before all calls found room."""
        count = len(self._by_age)
        topic = next(iter(self._by_age)).topic if self._by_age else ""
        why = self._outbox.waiters.reasons.why_not_taken(topic, for_capacity=True)
        which = "1 send waits" if count == 1 else f"{count} sends wait"
        return f"{what} timed out after {timeout} s: {which} for room{why}."

    async def until(self, ready: Callable[[], bool], timeout: float | None) -> bool:  # noqa: ASYNC109
        """Wait until ``ready()``, which the io thread or this queue makes true. Returns False after ``timeout``
        seconds.

        Futures that were decided before ``ready()`` became true are done when this returns True.
        """
        if ready():
            self._resolve()
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, _give_up, future)
        self._conditions[future] = ready
        self._listen()
        try:
            return await future
        finally:
            self._conditions.pop(future, None)
            if timer is not None:
                timer.cancel()
            self._unlisten()

    # --- on the loop: inside ------------------------------------------------------------------------

    @property
    def _outbox(self) -> Outbox:
        return self._engine.outbox

    def _listen(self) -> None:
        outbox = self._outbox
        if self.wake not in outbox.waiters.listeners:
            outbox.waiters.listeners[self.wake] = None
            outbox.wake()
            self._check_soon()  # for changes before the listener was added

    def _unlisten(self) -> None:
        if not self.topics and not self._conditions:
            self._outbox.waiters.listeners.pop(self.wake, None)

    def _check_soon(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._is_woken = False
        if self._decided:
            self._resolve()
        if self.topics:
            self._serve()
        for future, ready in tuple(self._conditions.items()):
            if not future.done() and ready():
                future.set_result(True)

    def _resolve(self) -> None:
        decided = self._decided
        for _ in range(len(decided)):
            resolve(*decided.popleft())
        if decided:
            self._check_soon()

    def _serve(self) -> None:
        """Let calls in while they find room, the oldest first. A topic without room does not hold up other topics."""
        topics, may_take = self.topics, self._outbox.may_take
        heads = [(next(iter(waiters)).number, topic) for topic, waiters in topics.items() if may_take(topic)]
        heapify(heads)
        served = 0
        while heads:
            if served == SERVED_AT_ONCE:
                self._check_soon()
                return
            topic = heads[0][1]
            waiter = next(iter(topics.get(topic, ())), None)
            is_in = waiter is not None and self._let_in(waiter)
            following = next(iter(topics.get(topic, ())), None) if is_in else None
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following.number, topic))
            served += is_in

    def _let_in(self, waiter: _Waiter) -> bool:
        """Try a waiting call. Returns True when it has left the queue."""
        future = waiter.future
        if not future.done():
            try:
                result = waiter.attempt()
            except Exception as error:
                future.set_exception(_explained(waiter, error))
            else:
                if result is FULL:
                    return False
                if result is Step.MORE:
                    waiter.since = asyncio.get_running_loop().time()
                    self._by_age.move_to_end(waiter)
                    self._check_soon()
                    return False
                future.set_result(result)
        self._remove(waiter)
        return True

    def _remove(self, waiter: _Waiter) -> None:
        waiters = self.topics.get(waiter.topic)
        if waiters is None or waiter not in waiters:
            return
        del waiters[waiter], self._by_age[waiter]
        if not waiters:
            del self.topics[waiter.topic]
            self._unlisten()
        if self._timer is not None and not self._by_age:
            self._timer.cancel()
            self._timer = None
        if self._conditions:
            self._check_soon()

    def _limit_s(self) -> float:
        outbox, limit_ms = self._outbox, self._engine.max_block_ms
        return (limit_ms if outbox.attached_once else min(limit_ms, outbox.connect_timeout_ms)) / 1e3

    def _expire(self) -> None:
        """Fail the calls that have waited long enough. Once the producer is attached, the limit is longer than when
        the timer was set.
        """
        limit_s, now = self._limit_s(), asyncio.get_running_loop().time()
        while self._by_age:
            waiter = next(iter(self._by_age))
            if waiter.since + limit_s > now:
                self._timer = asyncio.get_running_loop().call_at(waiter.since + limit_s, self._expire)
                return
            if not waiter.future.done():
                outbox = self._outbox
                error = outbox.capacity_wait.error(
                    waiter.topic, limit_s * 1e3, was_attached=outbox.attached_once
                )
                outbox.refused(error)
                waiter.future.set_exception(_explained(waiter, error))
            self._remove(waiter)
        self._timer = None


def resolve(
    future: asyncio.Future[RecordMetadata], error: SidecarError | None, metadata: RecordMetadata | None
) -> None:
    """Give the future of a record its outcome. On the loop."""
    if future.done():
        return  # cancelled by the awaiting task; the record is still sent
    if error is not None:
        future.set_exception(error)
    else:
        assert metadata is not None
        future.set_result(metadata)


def _explained(waiter: _Waiter, error: Exception) -> Exception:
    if waiter.explain is not None and isinstance(error, SidecarError):
        return waiter.explain(error)
    return error


def _give_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
