"""TransactionalOutbox: an outbox that takes records only inside of a transaction."""

from __future__ import annotations

from collections import deque
from typing import Any

from client_stub.errors import (
    BufferExhausted,
    DaemonUnreachable,
    DeliveryFailed,
    RecordTooLarge,
    SidecarError,
    TransactionStateError,
)
from client_stub.native.hot import OpenStream
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.transaction import Transaction
from client_stub.outbox.txn_call import TxnCall
from client_stub.records.size_limits import SizeLimits

NOT_INITIALIZED = (
    "No transaction is open: call init_transactions() once, then begin_transaction() before send()."
)
NOT_BEGUN = "No transaction is open: call begin_transaction() before send()."


class TransactionalOutbox(Outbox):
    """A submission belongs to the transaction in which it was opened. Only its first record asks for that: the end of a
    transaction closes all open submissions, in a step that no other thread sees half done.

    A record that is refused by the call itself, as too large, for want of room or for its topic, makes its transaction
    abortable, as in Kafka's producer.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.is_transactional = True
        self.size_limits = _SizeLimits(self)
        self.why_outside: SidecarError | None = TransactionStateError(NOT_INITIALIZED)
        """The error of a send outside of a transaction."""
        self.lost_id: SidecarError | None = None
        """Why nothing more is possible with the transactional id. The io thread sets it."""
        self._calls: deque[TxnCall] = deque()
        self._why_ended: SidecarError | None = None
        """Why the io thread takes no more calls."""

    def post(self, call: TxnCall) -> None:
        """Hand a call to the io thread, which ignores one that it has. Submissions of its transaction are closed."""
        self._calls.append(call)
        self.wake(always=True)
        if self._why_ended is not None:
            self.end_calls(self._why_ended)

    def take_calls(self) -> list[TxnCall]:
        """For the io thread: the calls that came since it last asked."""
        calls: list[TxnCall] = []
        while self._calls:
            calls.append(self._calls.popleft())
        return calls

    def calls_ended(self, lost_id: SidecarError | None) -> None:
        """For the io thread: wake the callers whose calls have ended. ``lost_id``: why the transactional id is lost."""
        self.lost_id = lost_id
        self.waiters.notify()

    def end_calls(self, error: SidecarError) -> None:
        """End the calls that the io thread has not taken, and all later ones."""
        self._why_ended = error  # first: a call that is posted after the loop is ended by its caller
        for call in self.take_calls():
            call.end(error)
        self.waiters.notify()

    def begin(self, transaction: Transaction) -> None:
        self.transaction = transaction

    def leave(self, why: SidecarError | None = None) -> None:
        """End the open transaction: later sends raise, and no record joins it any more.

        A send of another thread that is under way belongs to it or raises. In this order: a submission that was opened
        before the first step is closed by the second, and none is published after the first.
        """
        self.why_outside = why or TransactionStateError(NOT_BEGUN)
        self.transaction = None
        self.close_all_open()

    def refuse_sends(self, transaction: Transaction) -> None:
        """Let later sends raise, as ``transaction`` can only be aborted."""
        if self.transaction is transaction:
            self.close_all_open()

    def roll(self, stream: OpenStream, size: int, *, waits: bool = True) -> bool:
        self._check_transaction()
        try:
            return super().roll(stream, size, waits=waits)
        except (BufferExhausted, DaemonUnreachable, DeliveryFailed) as error:
            self.refused(error)
            raise

    def refused(self, error: SidecarError) -> None:
        if self.transaction is not None:
            self.transaction.fail(error)

    def may_take(self, topic: str) -> bool:
        return self.transaction is None or super().may_take(topic)

    def check_usable(self, stream: OpenStream) -> None:
        super().check_usable(stream)
        self._check_transaction()

    def _check_transaction(self) -> None:
        transaction = self.transaction
        if transaction is None:
            assert self.why_outside is not None
            raise self.why_outside.with_traceback(None)  # it is raised often, and would keep all those frames
        if transaction.cause is not None:
            raise transaction.error()

    def wait_for_capacity(self, stream: OpenStream) -> None:
        try:
            super().wait_for_capacity(stream)
        except (BufferExhausted, DaemonUnreachable, DeliveryFailed) as error:
            self.refused(error)
            raise


class _SizeLimits(SizeLimits):
    def __init__(self, outbox: TransactionalOutbox) -> None:
        super().__init__(lambda topic: outbox.wait_for_capacity(outbox.open_stream(topic)))
        self._outbox = outbox

    def check(self, topic: str, record: tuple[Any, ...]) -> None:
        try:
            super().check(topic, record)
        except RecordTooLarge as error:
            self._outbox.refused(error)
            raise
