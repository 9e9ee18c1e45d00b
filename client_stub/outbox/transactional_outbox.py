"""TransactionalOutbox: an outbox that takes records only inside of a transaction."""

from __future__ import annotations

from collections import deque
from typing import Any

from client_stub.errors import BufferExhausted, RecordTooLarge, SidecarError, TransactionStateError
from client_stub.native.hot import OpenStream
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.transaction import Transaction
from client_stub.outbox.txn_call import TxnCall
from client_stub.records.size_limits import SizeLimits

NOT_BEGUN = "No transaction is open: call begin_transaction() before send()."


class TransactionalOutbox(Outbox):
    """A submission belongs to the transaction in which it was opened. Only its first record asks for that: the end of a
    transaction closes all open submissions, in a step that no other thread sees half done.

    A record that is refused by the call itself, as too large or for want of room, makes its transaction abortable, as
    in Kafka's producer.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.size_limits = _SizeLimits(self)
        self.why_outside: SidecarError | None = TransactionStateError(NOT_BEGUN)
        """The error of a send outside of a transaction."""
        self.lost_id: SidecarError | None = None
        """Why nothing more is possible with the transactional id. The io thread sets it."""
        self._calls: deque[TxnCall] = deque()

    def post(self, call: TxnCall) -> None:
        """Hand a call to the io thread. Submissions of its transaction must be closed."""
        self._calls.append(call)
        self.wake(always=True)

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
        return super().roll(stream, size, waits=waits)

    def check_usable(self, stream: OpenStream) -> None:
        super().check_usable(stream)
        self._check_transaction()

    def _check_transaction(self) -> None:
        transaction = self.transaction
        if transaction is None:
            assert self.why_outside is not None
            raise self.why_outside
        if transaction.cause is not None:
            raise transaction.error()

    def wait_for_capacity(self, stream: OpenStream) -> None:
        try:
            super().wait_for_capacity(stream)
        except BufferExhausted as error:
            if self.transaction is not None:
                self.transaction.fail(error)
            raise


class _SizeLimits(SizeLimits):
    def __init__(self, outbox: TransactionalOutbox) -> None:
        super().__init__(lambda topic: outbox.wait_for_capacity(outbox.open_stream(topic)))
        self._outbox = outbox

    def check(self, topic: str, record: tuple[Any, ...]) -> None:
        try:
            super().check(topic, record)
        except RecordTooLarge as error:
            if self._outbox.transaction is not None:
                self._outbox.transaction.fail(error)
            raise
