"""Transactions: the calls of a transactional producer, as a table of states, and what each asks of the io thread.

Kafka's TransactionManager (org.apache.kafka.clients.producer.internals) decides what a call may do; KIP-98 and KIP-890
say why. One call at a time: a second thread gets TransactionStateError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from client_stub.contract.wire import TxnPart
from client_stub.engine.transaction_states import TRANSITIONS, CallerEvent, CallerState
from client_stub.errors import (
    ProducerClosed,
    SidecarError,
    TransactionError,
    TransactionStateError,
    TransactionTimeout,
)
from client_stub.outbox.transaction import Transaction
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.outbox.txn_call import TxnCall
from client_stub.records.arguments import checked_timeout
from client_stub.records.offsets import GroupMetadata, Offsets, checked_group, checked_offsets, offset_frames

_Result = TypeVar("_Result")
_S, _E = CallerState, CallerEvent
TIMEOUT_MS: Final = 60_000.0
"""Kafka's transaction.timeout.ms."""
FORKED: Final = (
    "This is a forked child: the transaction is its parent's, and so is the transactional id. Create a producer with "
    "an id of its own here."
)
_WHAT_TO_DO: Final = {
    _S.UNINITIALIZED: "call init_transactions() first",
    _S.INITIALIZING: "init_transactions() has no answer yet: call it again",
    _S.READY: "no transaction is open: call begin_transaction() first",
    _S.IN_TRANSACTION: "a transaction is open: commit or abort it first",
    _S.COMMITTING: "commit_transaction() has no answer yet: call it again",
    _S.ABORTABLE: "the transaction can only be aborted: call abort_transaction()",
    _S.ABORTING: "abort_transaction() has no answer yet: call it again",
}


class Transactions:
    """The transactions of one engine. A call begins with ``init``, ``commit``, ``abort`` or ``offsets``, which claim
    the producer; its caller waits until ``is_over``, then ``conclude`` gives its result. Event loops wait themselves.
    """

    def __init__(self, outbox: TransactionalOutbox, start: Callable[[], None], max_block_ms: float) -> None:
        """``start`` starts the io thread unless it runs."""
        self._outbox = outbox
        self._start = start
        self._max_block_ms = max_block_ms
        self.state = _S.UNINITIALIZED
        self._number = 0
        self._requests = 0
        self._transaction: Transaction | None = None
        self._call: TxnCall | None = None
        """The call whose answer nobody has had."""
        self._claims: dict[str, tuple[str, object]] = {}
        """The name of the call that runs now. In a dict, because its setdefault() is atomic."""

    # --- calls: each claims the producer ------------------------------------------------------------------

    def init(self) -> TxnCall:
        """As init_transactions(), which then waits."""
        return self._claimed("init_transactions()", self._init)

    def begin(self) -> None:
        """As begin_transaction()."""

        def run() -> None:
            self._move(_E.BEGIN)
            self._number += 1
            self._transaction = Transaction(self._number, self._outbox.refuse_sends)
            self._outbox.begin(self._transaction)

        self._claimed("begin_transaction()", run)
        self._claims.clear()

    def offsets(self, offsets: Offsets, group: GroupMetadata | str) -> TxnCall | None:
        """As send_offsets_to_transaction(), which then waits; None if there are none."""
        entries = checked_offsets(offsets)
        group_fields, payload = offset_frames(entries, checked_group(group))

        def run() -> TxnCall:
            self._move(_E.OFFSETS)
            self._requests += 1
            call = TxnCall(
                TxnPart.OFFSETS, self._transaction, fields=(self._requests, *group_fields), payload=payload
            )
            self._outbox.post(call)
            return call

        if not entries:
            self._claimed("send_offsets_to_transaction()", lambda: self._move(_E.OFFSETS))
            self._claims.clear()
            return None
        return self._claimed("send_offsets_to_transaction()", run)

    def commit(self) -> TxnCall:
        """As commit_transaction(), which then waits."""
        return self._claimed("commit_transaction()", lambda: self._end(_E.COMMIT))

    def abort(self) -> TxnCall:
        """As abort_transaction(), which then waits."""
        return self._claimed("abort_transaction()", lambda: self._end(_E.ABORT))

    @property
    def is_uninitialized(self) -> bool:
        """Whether nobody has called init_transactions() yet."""
        return self.state is _S.UNINITIALIZED

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open that nobody has asked to end."""
        return self.state in (_S.IN_TRANSACTION, _S.ABORTABLE)

    def timeout_s(self, timeout: float | None) -> float:
        """The seconds that a call may wait; None: max_block_ms, as in Kafka."""
        timeout = checked_timeout(timeout)
        return self._max_block_ms / 1e3 if timeout is None else timeout

    # --- waiting ----------------------------------------------------------------------------------------

    def is_over(self, call: TxnCall) -> bool:
        """Whether ``conclude`` has a result."""
        outbox = self._outbox
        return call.is_over or outbox.fatal is not None or outbox.forked

    def release(self) -> None:
        """Let other calls begin. After each call, however its wait ended."""
        self._claims.clear()

    def conclude(self, call: TxnCall, timeout_s: float) -> None:
        """The result of a call: returns when it was done, else raises its error."""
        outbox = self._outbox
        if not call.is_over:
            if outbox.forked:
                raise TransactionStateError(FORKED, fatal=True)
            if outbox.fatal is not None:
                raise outbox.fatal
            if outbox.closed:
                raise ProducerClosed("Cannot perform operation after producer has been closed.")
            why = outbox.waiters.reasons.last_word.rstrip(".") or "the brokers have not answered the daemon"
            raise TransactionTimeout(
                f"No answer after {timeout_s:g} s: {why}. Make the same call again to wait for the same answer."
            )
        if self._call is call:
            self._call = None
        error = call.error
        if error is None:
            if call.part is not TxnPart.OFFSETS:
                self._move(_E.DONE)
            return
        if error.fatal:
            self._lose(error)
        elif call.part is TxnPart.INIT:
            self._move(_E.REFUSED)
        elif error.abortable and self.state in (_S.IN_TRANSACTION, _S.COMMITTING):
            self._move(_E.FAILED)
            outbox.leave(error)
        raise error

    # --- inside -----------------------------------------------------------------------------------------

    def _claimed(self, name: str, run: Callable[[], _Result]) -> _Result:
        """Run the first part of a call, alone. It is released after an error; otherwise the caller does that."""
        mine = (name, object())
        runs = self._claims.setdefault("call", mine)
        if runs is not mine:
            raise TransactionStateError(
                f"{name} while {runs[0]} runs in another thread: it has done nothing."
            )
        try:
            self._check_producer(name)
            return run()
        except BaseException:
            self._claims.clear()
            raise

    def _check_producer(self, name: str) -> None:
        outbox = self._outbox
        outbox.waiters.refuse_in_callback(name)
        if outbox.forked:
            raise TransactionStateError(FORKED, fatal=True)
        if outbox.closed:
            raise ProducerClosed("Cannot perform operation after producer has been closed.")
        if outbox.lost_id is not None:
            self._lose(outbox.lost_id)
            raise outbox.lost_id

    def _init(self) -> TxnCall:
        self._move(_E.INIT)
        if self._call is None:
            self._start()
            self._call = TxnCall(TxnPart.INIT)
            self._outbox.post(self._call)
        return self._call

    def _end(self, event: CallerEvent) -> TxnCall:
        """Ask for the end of the transaction, or continue to wait for it."""
        transaction = self._transaction
        if self.state is _S.IN_TRANSACTION and transaction is not None and transaction.cause is not None:
            self._move(_E.FAILED)
            self._outbox.leave(transaction.error())
        if self.state is _S.ABORTABLE and event is _E.COMMIT and transaction is not None:
            raise transaction.error()
        is_repeated = self.state in (_S.COMMITTING, _S.ABORTING)
        self._move(event)
        if is_repeated and self._call is not None:
            return self._call
        self._outbox.leave()
        self._call = TxnCall(TxnPart.END, transaction, commits=event is _E.COMMIT)
        self._outbox.post(self._call)
        return self._call

    def _move(self, event: CallerEvent) -> None:
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise TransactionStateError(f"{event} is not possible now: {_WHAT_TO_DO[self.state]}.")
        self.state = following

    def _lose(self, error: SidecarError) -> None:
        if self.state is not _S.LOST:
            self.state = TRANSITIONS[self.state][_E.LOST]
        self._outbox.leave(error)


def without_id(front: str) -> TransactionError:
    """The error of a transaction's call of a producer without a transactional id."""
    return TransactionStateError(
        f"This {front} has no transactional id: create it with transactional_id=..., then call init_transactions()."
    )
