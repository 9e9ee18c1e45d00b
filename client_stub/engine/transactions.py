"""Transactions: the calls of a transactional producer, as a table of states, and what each asks of the io thread.

Kafka's TransactionManager (org.apache.kafka.clients.producer.internals) decides what a call may do; KIP-98 and KIP-890
say why. One call at a time: a second thread gets TransactionStateError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from client_stub.contract.wire import StagePart, TxnPart
from client_stub.engine.daemon_calls import DaemonCalls
from client_stub.engine.transaction_states import TRANSITIONS, CallerEvent, CallerState
from client_stub.errors import (
    ProducerClosed,
    SidecarError,
    TransactionError,
    TransactionStateError,
)
from client_stub.outbox.inclusion import Inclusion, packed_tokens
from client_stub.outbox.transaction import Transaction
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.outbox.txn_call import TxnCall
from client_stub.records.offsets import GroupMetadata, Offsets, checked_group, checked_offsets, offset_frames
from client_stub.system.originals import caller_ident

_Result = TypeVar("_Result")
_S, _E = CallerState, CallerEvent
TIMEOUT_MS: Final = 60_000.0
"""Kafka's transaction.timeout.ms."""
TIMEOUT_MS_MAX: Final = (1 << 31) - 1
"""The largest that Kafka's request holds."""
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
    _S.ABORTING: "abort_transaction() has no answer yet: call it again",
}
CLOSED: Final = "Cannot perform operation after producer has been closed."
SECOND_INCLUDE: Final = (
    "A transaction has one include(), with all its tokens, and this one has had it: commit or abort it, then include "
    "the others in the next one."
)
INCLUDE_UNANSWERED: Final = (
    "commit_transaction() is not possible now: include() has no answer yet. Call include() again with the same tokens, "
    "or abort the transaction."
)
_INIT_AGAIN: Final = "it was done before the first transaction, and is done once"


class Transactions(DaemonCalls):
    """The transactions of one engine. A call begins with ``init``, ``commit``, ``abort``, ``offsets``, ``include`` or
    ``drop_stages``, which claim the producer.
    """

    forked_text = FORKED

    def __init__(self, outbox: TransactionalOutbox, start: Callable[[], None], max_block_ms: float) -> None:
        """``start`` starts the io thread unless it runs."""
        super().__init__(outbox, max_block_ms)
        self._start = start
        self.state = _S.UNINITIALIZED
        self._number = 0
        self._requests = 0
        self._transaction: Transaction | None = None
        self._call: TxnCall | None = None
        """The call whose answer nobody has had."""
        self._include: TxnCall | None = None
        """The include() of the transaction, and whether its caller has had the result."""
        self._include_has_result = False
        self._claims: dict[str, tuple[str, object]] = {}
        """The call that runs now, and whose it is. In a dict, because its setdefault() is atomic."""
        self._caller: Callable[[], object] = caller_ident
        """Who calls: a thread, or for AsyncProducer a task. A claim of one's own is of a call that an exception has
        ended in its last step, or that a signal handler interrupts; it holds up nobody.
        """
        self._fatal: SidecarError | None = None

    def use_caller(self, caller: Callable[[], object]) -> None:
        """Say who calls, where it is not the thread."""
        self._caller = caller

    # --- calls: each claims the producer ------------------------------------------------------------------

    def init(self) -> TxnCall:
        """As init_transactions(), which then waits."""
        return self._claimed("init_transactions()", self._init)

    def begin(self) -> None:
        """As begin_transaction()."""

        def run() -> None:
            following = self._following(_E.BEGIN)
            self._number += 1
            self._include, self._include_has_result = None, False
            self._transaction = transaction = Transaction(self._number, self._outbox.refuse_sends)
            self.state = following
            self._outbox.begin(transaction)

        self._claimed("begin_transaction()", run)
        self.release()

    def offsets(self, offsets: Offsets, group: GroupMetadata | str) -> TxnCall | None:
        """As send_offsets_to_transaction(), which then waits; None if there are none."""
        entries = checked_offsets(offsets)
        group_fields, payload = offset_frames(entries, checked_group(group))

        def run() -> TxnCall:
            self._check_cause()
            self._move(_E.OFFSETS)
            self._requests += 1
            call = TxnCall(
                TxnPart.OFFSETS, self._transaction, fields=(self._requests, *group_fields), payload=payload
            )
            self._outbox.post(call)
            return call

        if not entries:
            self._claimed("send_offsets_to_transaction()", lambda: self._move(_E.OFFSETS))
            self.release()
            return None
        return self._claimed("send_offsets_to_transaction()", run)

    def include(self, tokens: object) -> TxnCall | None:
        """As include(), which then waits; None if there are none."""
        count, payload = packed_tokens(tokens)

        def run() -> TxnCall | None:
            self._check_cause()
            self._move(_E.INCLUDE)
            call = self._include
            if (
                call is not None
                and call.error is None
                and (self._include_has_result or call.payload != payload)
            ):
                raise TransactionStateError(SECOND_INCLUDE)
            if not count:
                return None
            if call is None or call.error is not None:
                self._requests += 1
                call = TxnCall(TxnPart.INCLUDE, self._transaction, fields=(self._requests,), payload=payload)
                self._include = call
            self._outbox.post(call)
            return call

        return self._claimed("include()", run)

    def drop_stages(self, transactional_id: str, tokens: object, up_to: int | None) -> TxnCall:
        """As drop_stages(), which then waits. In any state: what the open transaction includes is not dropped."""
        _, payload = packed_tokens(tokens)

        def run() -> TxnCall:
            self._requests += 1
            call = TxnCall(
                StagePart.DROPPED, fields=(self._requests, transactional_id, up_to), payload=payload
            )
            self._start()
            self._outbox.post(call)
            return call

        return self._claimed("drop_stages()", run)

    def commit(self) -> TxnCall:
        """As commit_transaction(), which then waits."""
        return self._claimed("commit_transaction()", lambda: self._end(_E.COMMIT))

    def abort(self) -> TxnCall:
        """As abort_transaction(), which then waits."""
        return self._claimed("abort_transaction()", lambda: self._end(_E.ABORT))

    @property
    def is_uninitialized(self) -> bool:
        """Whether init_transactions() has not succeeded yet."""
        return self.state in (_S.UNINITIALIZED, _S.INITIALIZING)

    @property
    def is_open(self) -> bool:
        """Whether a transaction of this process is open that nobody has asked to end."""
        return self.state in (_S.IN_TRANSACTION, _S.ABORTABLE) and not self._outbox.forked

    @property
    def is_lost(self) -> bool:
        """Whether nothing more is possible with the id, and what it had open is ended by others."""
        return self.state is _S.LOST and not self._outbox.forked

    @property
    def unanswered_end(self) -> TxnCall | None:
        """The commit or abort whose answer nobody has had."""
        is_asked = self.state in (_S.COMMITTING, _S.ABORTING) and not self._outbox.forked
        return self._call if is_asked else None

    def release(self) -> None:
        """Let other calls begin. After each call, however its wait ended."""
        runs = self._claims.get("call")
        if runs is not None and runs[1] == self._caller():
            self._claims.clear()

    def conclude(self, call: TxnCall, timeout_s: float) -> Any:
        """The result of a call: returns its value when it was done, else raises its error."""
        self._require_answer(call, timeout_s)
        error = call.error
        if self._call is call or call.is_in_between:  # otherwise its result was given before
            self._follow(call, error)
        if error is not None:
            raise error
        if call.part is TxnPart.INCLUDE:
            self._include_has_result = True
            assert call.transaction is not None
            call.transaction.inclusion = Inclusion(*call.value)
            return call.transaction.inclusion
        return call.value

    def _follow(self, call: TxnCall, error: SidecarError | None) -> None:
        """Change the state by the answer of ``call``."""
        if error is None:
            if not call.is_in_between:
                if call.commits and call.transaction is not None and call.transaction.inclusion is not None:
                    call.transaction.inclusion.committed(call.value)
                self._move(_E.DONE)
                self._outbox.leave()
        elif error.fatal:
            self._lose(error)
        elif call.part is TxnPart.INIT:
            self._move(_E.REFUSED)
        elif call.is_in_between:
            if error.abortable and self.state is _S.IN_TRANSACTION and call.transaction is self._transaction:
                self._move(_E.FAILED)
                self._outbox.leave(error)
        elif call.commits and not error.retriable:
            assert call.transaction is not None
            call.transaction.fail(error)
            self._move(_E.FAILED)
            self._outbox.leave(error)
        elif not (error.retriable or error.abortable):
            self._move(_E.DONE)  # refused, as the transaction has ended: the error says how
            self._outbox.leave()
        if not call.is_in_between:
            self._call = None

    # --- inside -----------------------------------------------------------------------------------------

    def _claimed(self, name: str, run: Callable[[], _Result]) -> _Result:
        """Run the first part of a call, alone. It is released after an error; otherwise the caller does that."""
        if self._outbox.forked:
            raise TransactionStateError(FORKED, fatal=True)
        caller = self._caller()
        try:
            runs = self._claims.setdefault("call", (name, caller))
            if runs[1] != caller:
                raise TransactionStateError(
                    f"{name} while {runs[0]} runs in another thread: it has done nothing."
                )
            self._check_producer(name)
            return run()
        except BaseException:
            self.release()
            raise

    def _check_producer(self, name: str) -> None:
        outbox = self._outbox
        outbox.waiters.refuse_in_callback(name)
        if outbox.closed:
            raise ProducerClosed(CLOSED)
        fatal = self._fatal or outbox.lost_id
        if fatal is not None:
            self._lose(fatal)
            raise fatal

    def _init(self) -> TxnCall:
        following = self._following(_E.INIT)
        call = self._call
        if call is None:
            self._start()
            call = self._call = TxnCall(TxnPart.INIT)
        self.state = following
        self._outbox.post(call)
        return call

    def _end(self, event: CallerEvent) -> TxnCall:
        """Ask for the end of the transaction, or continue to wait for it."""
        if event is _E.COMMIT:
            self._check_cause()
            if self._include is not None and not self._include.is_over:
                raise TransactionStateError(INCLUDE_UNANSWERED)
        following = self._following(event)
        call = self._call
        if call is None or self.state not in (_S.COMMITTING, _S.ABORTING):
            self._outbox.leave(
                TransactionStateError(f"{event} has no answer yet: call it again before send().")
            )
            call = self._call = TxnCall(TxnPart.END, self._transaction, commits=event is _E.COMMIT)
        # In this order, and posted again by the same call: an exception may end a call between any two steps.
        self.state = following
        self._outbox.post(call)
        return call

    def _check_cause(self) -> None:
        """Raises the error of a transaction that can only be aborted."""
        transaction = self._transaction
        if transaction is None or transaction.cause is None:
            return
        if self.state is _S.IN_TRANSACTION:
            self._move(_E.FAILED)
            self._outbox.leave(transaction.error())
        if self.state is _S.ABORTABLE:
            raise transaction.error()

    def _move(self, event: CallerEvent) -> None:
        self.state = self._following(event)

    def _following(self, event: CallerEvent) -> CallerState:
        """The state after ``event``. Raises the error of a call that is not possible now."""
        following = TRANSITIONS[self.state].get(event)
        if following is not None:
            return following
        if event is _E.INIT:
            raise TransactionStateError(f"{event} is not possible now: {_INIT_AGAIN}.")
        self._check_cause()
        raise TransactionStateError(f"{event} is not possible now: {_WHAT_TO_DO[self.state]}.")

    def _lose(self, error: SidecarError) -> None:
        self._fatal = error
        if self.state is not _S.LOST:
            self.state = TRANSITIONS[self.state][_E.LOST]
        self._outbox.leave(error)


def without_id(front: str) -> TransactionError:
    """The error of a transaction's call of a producer without a transactional id."""
    return TransactionStateError(
        f"This {front} has no transactional id: create it with transactional_id=..., then call init_transactions()."
    )
