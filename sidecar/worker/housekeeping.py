"""Housekeeping: the periodic work of a worker, twice a second while there is some."""

from __future__ import annotations

import asyncio
import ctypes
from typing import TYPE_CHECKING, Final

from sidecar.common.control import NeedTopics
from sidecar.worker.gauges import Gauges

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.producer.core import Core
    from sidecar.producer.request_capacity import RequestBufferPool
    from sidecar.worker.drain import WorkerDrain
    from sidecar.worker.host import Host
    from sidecar.worker.outcomes.dead_letters import DeadLetters
    from sidecar.worker.outcomes.releases import Releases
    from sidecar.worker.outcomes.settlement import Settlement
    from sidecar.worker.page_returns import PageReturns
    from sidecar.worker.reporter import Reporter
    from sidecar.worker.sides import Brokers, Stubs
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.topics.topics import Topics
    from sidecar.worker.turns import Turns

TRIM_MS: Final = 10_000.0
"""Interval between trims in ms. A trim costs 0.02 ms if there is nothing to return, and 0.1 ms per MB."""

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's malloc_trim, or None: other C libraries return free pages without a call."""


class Housekeeping:
    """One round after the other, for the worker's life. Belongs to the worker's loop."""

    def __init__(
        self,
        *,
        host: Host,
        clock: MonotonicClock,
        turns: Turns,
        memory: SlotMemory,
        core: Core,
        topics: Topics,
        stubs: Stubs,
        brokers: Brokers,
        settlement: Settlement,
        releases: Releases,
        dead_letters: DeadLetters,
        reporter: Reporter,
        pages: PageReturns,
        drain: WorkerDrain,
    ) -> None:
        self._host = host
        self._clock = clock
        self._turns = turns
        self._memory = memory
        self._pool = memory.pool
        self._sender = core.sender
        self._incomplete = core.accumulator.incomplete
        self._topics = topics
        self._sessions = stubs.sessions
        self._clients = stubs.clients
        self._holds = stubs.holds
        self._commit = stubs.commit
        self._transactions = brokers.transactions
        self._settlement = settlement
        self._releases = releases
        self._dead_letters = dead_letters
        self._reporter = reporter
        self._pages = pages
        self._drain = drain
        self._gauges = Gauges(memory, core, topics, brokers, stubs.shares)
        self._trim = MemoryTrim(core.buffers)
        self._last_turns = 0

    async def run(self) -> None:
        """Do rounds until it is cancelled. The heartbeat comes from this loop, not from another thread, so it shows
        that the loop works.
        """
        while True:
            self.round()
            if self._is_at_rest():
                await self._turns.rest()
            else:
                await asyncio.sleep(self._turns.housekeeping_s)

    def round(self) -> None:
        self._memory.beat()
        now_ms = self._clock.now_ms()
        if self._sessions.by_row:
            self._check_clients(now_ms)
        self._transactions.check_clients()
        self._dead_letters.step(now_ms)
        self._pages.release_idle(now_ms)
        self._topics.forget_idle(now_ms)
        self._trim.step(now_ms)
        self._pages.count_shares(now_ms)
        self._holds.shares_freed(now_ms)
        if self._releases.released_chains:
            self._turns.wake()  # the records of a client that is gone ended here; a turn gives their pages back
        if self._pool.waiters:
            self._turns.wake()  # the worker that was to be served before this one may have died
        if self._commit is not None:
            self._commit.note_endings()
        self._report(now_ms)
        if self._sender.capacity.lacks_descriptors and self._sender.check_descriptors():
            self._turns.wake()  # a client that was given up held some

    def _check_clients(self, now_ms: float) -> None:
        self._clients.check(now_ms, descriptors_are_scarce=self._releases.descriptors_are_scarce)
        for session in self._sessions:
            self._holds.reclaim_reservations(list(session.streams.values()), now_ms)

    def _report(self, now_ms: float) -> None:
        """Publish the worker's numbers, and tell the controller what has changed."""
        used = self._topics.take_used()
        if used:
            self._host.send_control(NeedTopics(used=tuple(used)))
        failed = self._settlement.failures.take()
        if failed is not None:
            self._host.send_control(failed)
        self._gauges.publish(self._turns.count, now_ms)
        self._reporter.step(now_ms)

    def _is_at_rest(self) -> bool:
        """True if nothing happened since the last round, and no timed work is near."""
        before, self._last_turns = self._last_turns, self._turns.count
        return not (
            before != self._turns.count
            or self._incomplete
            or self._pool.taken_count
            or self._pool.waiters
            or self._topics.waiting.queues
            or self._holds.held
            or self._drain.has_begun
            or self._clients.has_unacked
        )


class MemoryTrim:
    """Returns private memory of a past backlog to the system, even while records flow.

    Otherwise a worker that is never idle would keep the most that it ever needed: request buffers, and free parts of
    malloc's heap below a part still in use.
    """

    def __init__(self, buffers: RequestBufferPool) -> None:
        self._buffers = buffers
        self._due_ms = 0.0

    def step(self, now_ms: float) -> None:
        """Trim when it is due."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + TRIM_MS
        self._buffers.trim_unused()
        if _malloc_trim is not None:
            _malloc_trim(0)
