"""TransactionalId: the io thread's side of transactions. Sans-IO: calls and messages go in, frames come out.

::

    caller                       io thread                            worker
    init_transactions()   --->   TXN_INIT                      --->
                          <---                                 <---   TXN INIT
    send()                --->   SUBMIT ... (number)           --->
    commit_transaction()  --->   [every SUBMIT of it is sent]
                                 TXN_END, the last seq of each stream ->
                          <---                                 <---   TXN END

After a reconnect TXN_INIT goes first, and no record goes before its answer: until then the worker does not know to whom
the records belong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from client_stub.contract.wire import Kind, StagePart, TxnEffect, TxnPart
from client_stub.errors import TransactionError, transaction_error
from client_stub.outbox.txn_call import TxnCall
from client_stub.session.streams import Streams
from client_stub.session.txn_calls import STAGES_UNSUPPORTED, TxnCalls

UNSUPPORTED: Final = "The daemon is older than transactions: upgrade it."


class TransactionalId(TxnCalls):
    """One transactional id of one session. Of its calls without an answer, one END at most. Io thread only."""

    never_sent = "The transaction was aborted before the record was sent."

    def __init__(self, transactional_id: str, timeout_ms: int, streams: Streams) -> None:
        super().__init__(streams)
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._was_answered = False
        """Whether the daemon has answered an INIT: the next one continues with what it has."""
        self._awaits_init = False
        """An INIT of this connection has no answer yet: no record may be sent."""
        self._must_init = False
        self._can = self._can_stage = False
        """Whether the attached worker takes transactions, and stages."""

    @property
    def holds_records(self) -> bool:
        return self._awaits_init or self._must_init

    # --- frames ---------------------------------------------------------------------------------------

    def attached(self, limits: Mapping[str, Any]) -> None:
        super().attached(limits)
        self._can, self._can_stage = bool(limits.get("transactions")), bool(limits.get("stages"))
        self._awaits_init = False
        self._must_init = self._was_answered
        if not self._can and self._was_answered:
            self._lose(TransactionError(UNSUPPORTED, name="UNSUPPORTED_VERSION", fatal=True))

    def first_frames(self) -> list[Any] | None:
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
        if self.holds_records or not self._can:
            return None
        for call in self._calls:
            if call in self._sent or call.part is TxnPart.INIT:
                continue
            if call.part is TxnPart.END and self._has_unsent():
                return None
            refusal = self._refusal_of(call)
            if refusal is not None:
                self._calls.remove(call)
                self._end(call, refusal)
                return self.last_frames()
            if call.part is StagePart.DROPPED:
                return self._send_drop(call)
            self._sent.append(call)
            return self._frames_of(call)
        return None

    def _refusal_of(self, call: TxnCall) -> TransactionError | None:
        """The error of a call that is not sent."""
        needs_stages = call.part is StagePart.DROPPED or call.part is TxnPart.INCLUDE
        if needs_stages and not self._can_stage:
            return TransactionError(STAGES_UNSUPPORTED, name="UNSUPPORTED_VERSION", abortable=True)
        if call.commits and call.transaction is not None and call.transaction.cause is not None:
            return call.transaction.error()
        return None

    def _frames_of(self, call: TxnCall) -> list[Any]:
        assert call.transaction is not None
        number = call.transaction.number
        if call.part is TxnPart.INCLUDE:
            return [msgpack.packb([Kind.TXN_INCLUDE, number, *call.fields]), call.payload]
        if call.part is TxnPart.OFFSETS:
            return [msgpack.packb([Kind.TXN_OFFSETS, number, *call.fields]), call.payload]
        return [msgpack.packb([Kind.TXN_END, number, call.commits]), msgpack.packb(self._ends())]

    # --- answers --------------------------------------------------------------------------------------

    def receive(self, message: list[Any]) -> None:
        kind, what, number, code, effect, text = message[:6]
        value = message[6] if len(message) > 6 else None
        if what == TxnPart.INCLUDE and kind == Kind.TXN and effect == TxnEffect.NONE:
            # Or a program that handles the error would commit without its stages.
            effect = TxnEffect.ABORTABLE
        error = None if not code else transaction_error(code, effect, str(text))
        if error is not None and effect == TxnEffect.FATAL:
            self._lose(error)
            return
        if kind == Kind.STAGE:
            self._answer_drop(number, error, value)
            return
        part = TxnPart(what)
        if part is TxnPart.STATE:
            transaction = self.transaction
            if error is not None and transaction is not None and transaction.number == number:
                transaction.fail(error)
                self._changed = True
            return
        if part is TxnPart.INIT:
            self._awaits_init = False
            self._was_answered |= error is None
        self._answer(lambda call: call.part is part and _number_of(call) == number, error, value)

    def _lose(self, error: TransactionError) -> None:
        self._awaits_init = self._must_init = False
        super()._lose(error)


def _number_of(call: TxnCall) -> int:
    """The number in the answer to ``call``."""
    if call.is_in_between:
        return int(call.fields[0])
    return 0 if call.transaction is None else call.transaction.number
