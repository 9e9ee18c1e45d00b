"""DaemonCalls: the wait of a caller for the daemon's answer to a call of its transaction or stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from client_stub.errors import TransactionStateError, TransactionTimeout
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.outbox.txn_call import TxnCall
from client_stub.records.arguments import checked_timeout


class DaemonCalls:
    """A base of ``Transactions`` and ``StageLife``. A caller begins a call, waits until ``is_over``, then ``conclude``
    gives its result. Event loops wait themselves. Any thread.
    """

    forked_text: str
    """Why nothing is done in a forked child."""
    slow_text = "the brokers have not answered the daemon"
    """Why an attached daemon does not answer."""

    def __init__(self, outbox: TransactionalOutbox, max_block_ms: float) -> None:
        self._outbox = outbox
        self._max_block_ms = max_block_ms

    def timeout_s(self, timeout: float | None) -> float:
        """The seconds that a call may wait; None: max_block_ms, as in Kafka."""
        timeout = checked_timeout(timeout)
        return self._max_block_ms / 1e3 if timeout is None else timeout

    def reach_s(self, timeout_s: float) -> float:
        """The part of ``timeout_s`` in which ``is_reached`` must be true."""
        return min(timeout_s, self._outbox.connect_timeout_ms / 1e3)

    def is_reached(self, call: TxnCall) -> bool:
        """Whether a daemon has taken this producer, or ``is_over``."""
        return self._outbox.attached_once or self.is_over(call)

    def is_over(self, call: TxnCall) -> bool:
        """Whether ``conclude`` has a result."""
        outbox = self._outbox
        return call.is_over or outbox.fatal is not None or outbox.forked

    def release(self) -> None:
        """Let other calls begin. After each call, however its wait ended."""

    def conclude(self, call: TxnCall, timeout_s: float) -> Any:
        """The result of a call: returns its value when it was done, else raises its error."""
        raise NotImplementedError

    def run(self, begin: Callable[[], TxnCall | None], timeout: float | None) -> Any:
        """Begin a call, wait for its answer and return its value; None where ``begin`` has done all there is."""
        timeout_s = self.timeout_s(timeout)
        call = begin()
        if call is None:
            return None
        wait = self._outbox.waiters.wait_until
        try:
            if wait(partial(self.is_reached, call), self.reach_s(timeout_s)):
                wait(partial(self.is_over, call), timeout_s)
        finally:
            self.release()
        return self.conclude(call, timeout_s)

    def _require_answer(self, call: TxnCall, timeout_s: float) -> None:
        """Raises the error of a call that has no answer."""
        outbox = self._outbox
        if call.is_over:
            return
        if outbox.forked:
            raise TransactionStateError(self.forked_text, fatal=True)
        if outbox.fatal is not None:
            raise outbox.fatal
        if not outbox.attached_once:
            raise outbox.capacity_wait.error("", self.reach_s(timeout_s) * 1e3, was_attached=False)
        why = outbox.waiters.reasons.last_word.rstrip(".") or self.slow_text
        raise TransactionTimeout(
            f"No answer after {timeout_s:g} s: {why}. Make the same call again to wait for the same answer."
        )
