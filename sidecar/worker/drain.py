"""WorkerDrain: the end of a worker that is asked to stop (rule S2). It accepts nothing new and delivers the rest."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING

from client_stub.contract.wire import LocalCode
from sidecar.common.control import Drained

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.producer.sender import Sender
    from sidecar.worker.host import Host
    from sidecar.worker.outcomes.dead_letters import DeadLetters
    from sidecar.worker.outcomes.settlement import Settlement
    from sidecar.worker.stubs.client_watch import ClientWatch
    from sidecar.worker.stubs.stub_port import StubPort
    from sidecar.worker.topics.topics import Topics
    from sidecar.worker.transactions.transaction_port import TransactionPort
    from sidecar.worker.turns import Turns

log = logging.getLogger(__name__)

ACKS_WAIT_MS_MAX = 1_000.0
"""Time in ms that a drained worker waits for its stubs to acknowledge their last outcomes."""
ABORTS_WAIT_MS_MAX = 2_000.0
"""Time in ms that it waits for coordinators to abort the transactions that were left. Else the next daemon does it."""
STOPS_TEXT = "The daemon stops, and its shutdown timeout is over."


class WorkerDrain:
    """Runs once, step by step at the end of each turn. Belongs to the worker's loop."""

    def __init__(
        self,
        *,
        host: Host,
        clock: MonotonicClock,
        turns: Turns,
        topics: Topics,
        sender: Sender,
        stub_port: StubPort,
        clients: ClientWatch,
        settlement: Settlement,
        dead_letters: DeadLetters,
        transactions: TransactionPort,
    ) -> None:
        self._host = host
        self._clock = clock
        self._turns = turns
        self._topics = topics
        self._sender = sender
        self._stub_port = stub_port
        self._clients = clients
        self._settlement = settlement
        self._dead_letters = dead_letters
        self._transactions = transactions
        self._deadline_ms = inf
        self._acks_deadline_ms: float | None = None
        """Until then it waits for acks; None before all records have an outcome."""
        self._is_forced = False
        """The records that were left at the deadline have failed, and open transactions are being aborted."""
        self._aborts_deadline_ms = inf
        self._has_ended = False
        self.has_begun = False

    def begin(self, timeout_ms: float) -> None:
        """Accept nothing new and deliver the rest. Records left after ``timeout_ms`` fail. A further call sets another
        deadline.
        """
        now_ms = self._clock.now_ms()
        if not self.has_begun:
            self.has_begun = True
            self._stub_port.start_draining()
            self._sender.begin_close(now_ms)
        self._deadline_ms = now_ms + timeout_ms
        self._turns.wake()

    @property
    def next_due_ms(self) -> float:
        """When the next step is due without an event, monotonic ms."""
        if self._has_ended:
            return inf
        if self._is_forced and self._transactions.are_open:
            return self._aborts_deadline_ms
        return self._deadline_ms if self._acks_deadline_ms is None else self._acks_deadline_ms

    def step(self, now_ms: float) -> None:
        """Do what can be done now: fail what is late, wait for acks and dead letters, report the end."""
        if self._has_ended:
            return
        waiting = self._topics.waiting
        self._stub_port.continue_draining()
        is_busy = waiting.entry_count or not self._sender.is_idle or self._transactions.are_open
        if not self._is_forced and is_busy:
            if now_ms >= self._deadline_ms:
                log.warning(
                    "Drain timed out (daemon.shutdown_timeout_s): undelivered records fail, or become dead letters; "
                    "open transactions are aborted."
                )
                self._transactions.stop_all(STOPS_TEXT)
                self._aborts_deadline_ms = now_ms + ABORTS_WAIT_MS_MAX
                waiting.fail_all(LocalCode.ABORTED, now_ms)
                self._sender.force_close(now_ms)
                # From here on no answer is awaited: requests to a silent broker would outlive the daemon.
                self._is_forced = True
                self._deadline_ms = inf
                self._turns.wake()
            return
        if self._transactions.are_open and now_ms < self._aborts_deadline_ms:
            return
        if self._acks_deadline_ms is None:
            self._acks_deadline_ms = now_ms + ACKS_WAIT_MS_MAX
        # Wait shortly for ACKs: a stub need not ask the next daemon for outcomes that it has.
        if self._clients.has_unacked and now_ms < self._acks_deadline_ms:
            return
        # Outcomes without an ACK by now can no longer be written.
        self._clients.give_up_all()
        if self._dead_letters.is_writing:
            return
        self._has_ended = True
        self._stub_port.end_draining()
        failed = self._settlement.failures.take()
        if failed is not None:
            self._host.send_control(failed)
        # Stages wait for the next daemon.
        left = sum(queue.chain.live_records for queue in self._topics if not queue.is_staged)
        self._host.send_control(Drained(left))
