"""TransactionalId: the io thread's side of transactions. Sans-IO: calls and messages go in, frames come out.

::

    caller                       io thread                            worker
    init_transactions()   --->   TXN_INIT                      --->
                          <---                                 <---   TXN INIT
    send()                --->   SUBMIT ... (number)           --->
    commit_transaction()  --->   [every SUBMIT of it is sent]
                                 TXN_END, the last seq of each stream ->
                          <---                                 <---   TXN END

Each message is sent again after a reconnect until it is answered, and the worker takes repeats: a call has one answer,
whichever process is killed. After a reconnect TXN_INIT goes first, and no record goes before its answer: until then the
worker does not know to whom the records belong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgpack

from client_stub.contract.wire import Kind, LocalCode, TxnEffect, TxnPart
from client_stub.errors import SidecarError, TransactionError, error_for, transaction_error
from client_stub.outbox.transaction import Transaction
from client_stub.outbox.txn_call import TxnCall
from client_stub.session.streams import Streams

UNSUPPORTED: Final = "The daemon is older than transactions: upgrade it."
NEVER_SENT: Final = "The transaction was aborted before the record was sent."


class TransactionalId:
    """One transactional id of one session. Io thread only."""

    def __init__(self, transactional_id: str, timeout_ms: int, streams: Streams) -> None:
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._streams = streams
        self._calls: list[TxnCall] = []
        """Calls without an answer, oldest first: INIT, OFFSETS, and one END at most."""
        self._sent: list[TxnCall] = []
        """Those of them that were sent on this connection."""
        self._was_answered = False
        """Whether the daemon has answered an INIT: the next one continues with what it has."""
        self._awaits_init = False
        """An INIT of this connection has no answer yet: no record may be sent."""
        self._must_init = False
        self._can = False
        """Whether the attached worker takes transactions."""
        self.fatal: SidecarError | None = None
        self.transaction: Transaction | None = None
        """The last one of which a record or a call was seen."""
        self._changed = False

    @property
    def holds_records(self) -> bool:
        """Whether no SUBMIT may be sent now."""
        return self._awaits_init or self._must_init

    # --- calls ----------------------------------------------------------------------------------------

    def add(self, calls: Iterable[TxnCall], *, is_attached: bool) -> None:
        """Take over calls, in order. All submissions of their transaction were added before."""
        for call in calls:
            if call.is_over or call in self._calls:
                continue  # its caller was interrupted, and has made it again
            if call.transaction is not None:
                self.transaction = call.transaction
            if self.fatal is not None:
                self._end(call, self.fatal)
                continue
            self._calls.append(call)
            if call.part is TxnPart.END and not call.commits:
                self._drop_unsent(is_attached=is_attached)
                # An abort takes the place of the transaction's other calls.
                for other in [each for each in self._calls if each.part is TxnPart.OFFSETS]:
                    self._calls.remove(other)
                    self._end(other, TransactionError(NEVER_SENT, abortable=True))

    def _drop_unsent(self, *, is_attached: bool) -> None:
        """Fail the submissions that no worker has. What was sent on an earlier connection may have arrived, until the
        next WELCOME tells.
        """
        error = error_for(LocalCode.TXN_ABORTED, NEVER_SENT)
        for window in list(self._streams.windows.values()):
            while len(window.queue) > window.sent_count and (is_attached or not window.queue[-1].sent):
                submission = window.queue.pop()
                window.next_seq -= 1
                submission.fail(error)
                self._streams.finish(submission)
            window.flush_to_seq = min(window.flush_to_seq, window.next_seq - 1)

    # --- frames ---------------------------------------------------------------------------------------

    def attached(self, *, can: bool) -> None:
        """Begin on a new connection, whose streams have continued. ``can``: its worker takes transactions."""
        self._can = can
        if any(call.part is TxnPart.END and not call.commits for call in self._calls):
            self._drop_unsent(is_attached=True)
        self._sent = []
        self._awaits_init = False
        self._must_init = self._was_answered
        if not can and self._was_answered:
            self._lose(TransactionError(UNSUPPORTED, name="UNSUPPORTED_VERSION", fatal=True))

    def first_frames(self) -> list[Any] | None:
        """What goes before any record."""
        init = next((call for call in self._calls if call.part is TxnPart.INIT), None)
        if self._awaits_init or not (self._must_init or init is not None):
            return None
        if not self._can:
            if init is not None:
                self._lose(TransactionError(UNSUPPORTED, name="UNSUPPORTED_VERSION", fatal=True))
            return None
        self._must_init = False
        self._awaits_init = True
        head = [Kind.TXN_INIT, self.transactional_id, self._timeout_ms, self._was_answered]
        return [msgpack.packb(head)]

    def last_frames(self) -> list[Any] | None:
        """What goes once no record is left to be sent now."""
        if self.holds_records or not self._can:
            return None
        for call in self._calls:
            if call in self._sent or call.part is TxnPart.INIT:
                continue
            assert call.transaction is not None
            if call.part is TxnPart.OFFSETS:
                self._sent.append(call)
                head = [Kind.TXN_OFFSETS, call.transaction.number, *call.fields]
                return [msgpack.packb(head), call.payload]
            if any(window.sent_count < len(window.queue) for window in self._streams.in_use.values()):
                return None
            if call.commits and call.transaction.cause is not None:
                self._calls.remove(call)
                self._end(call, call.transaction.error())
                return self.last_frames()
            self._sent.append(call)
            ends = [
                [window.number, window.next_seq - 1]
                for window in self._streams.windows.values()
                if window.next_seq > 1
            ]
            head = [Kind.TXN_END, call.transaction.number, call.commits]
            return [msgpack.packb(head), msgpack.packb(ends)]
        return None

    def end(self, error: SidecarError) -> None:
        """End every call, as the session ends."""
        calls, self._calls = self._calls, []
        for call in calls:
            call.end(error)

    def take_changed(self) -> bool:
        """Whether a call has ended, or the state has changed, since the io thread last asked."""
        changed, self._changed = self._changed, False
        return changed

    # --- answers --------------------------------------------------------------------------------------

    def receive(self, message: list[Any]) -> None:
        """Handle TXN. Raises ValueError for one that our daemon does not send."""
        _, part, number, code, effect, text = message[:6]
        error = None if not code else transaction_error(code, effect, str(text))
        if error is not None and effect == TxnEffect.FATAL:
            self._lose(error)
            return
        match TxnPart(part):
            case TxnPart.INIT:
                self._awaits_init = False
                self._was_answered |= error is None
                self._answer(TxnPart.INIT, None, error)
            case TxnPart.END:
                self._answer(TxnPart.END, number, error)
            case TxnPart.OFFSETS:
                self._answer(TxnPart.OFFSETS, number, error)
            case TxnPart.STATE:
                transaction = self.transaction
                if error is not None and transaction is not None and transaction.number == number:
                    transaction.fail(error)
                    self._changed = True

    def _answer(self, part: TxnPart, number: int | None, error: TransactionError | None) -> None:
        """End the call that this is the answer to. A repeated answer finds none."""
        for call in self._calls:
            transaction = call.transaction
            if call.part is not part or (
                (part is TxnPart.END and (transaction is None or transaction.number != number))
                or (part is TxnPart.OFFSETS and call.fields[0] != number)
            ):
                continue
            if error is not None and error.abortable and transaction is not None:
                transaction.fail(error)
                error = transaction.error()
            self._calls.remove(call)
            if part is TxnPart.END and not call.commits and error is None:
                # What the worker held while the abort was under way was never accepted.
                self._drop_unsent(is_attached=True)
            self._end(call, error)
            return

    def _end(self, call: TxnCall, error: SidecarError | None) -> None:
        call.end(error)
        self._changed = True

    def _lose(self, error: TransactionError) -> None:
        """The transactional id is lost for good: every call ends with this error, and no record is sent any more."""
        self.fatal = error
        self._changed = True
        self._awaits_init = self._must_init = False
        if self.transaction is not None:
            self.transaction.fail(error)
        self.end(error)
