"""TxnCalls: the calls of a session that wait for the worker's answer. Sans-IO, io thread only.

A call is sent again after a reconnect until it is answered, and the worker takes repeats: it has one answer, whichever
process is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgpack

from client_stub.contract.wire import Kind, LocalCode, StagePart
from client_stub.errors import SidecarError, TransactionError, error_for
from client_stub.outbox.submission import Submission
from client_stub.outbox.transaction import Transaction
from client_stub.outbox.txn_call import TxnCall
from client_stub.session.streams import Streams

STAGES_UNSUPPORTED: Final = "The daemon is older than stages: upgrade it."


class TxnCalls:
    """A base of ``TransactionalId`` and ``Staging``, which know the frames."""

    never_sent: str
    """Why records fail that were not sent before an abort or a drop."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._calls: list[TxnCall] = []
        """Calls without an answer, oldest first."""
        self._sent: list[TxnCall] = []
        """Those of them that were sent on this connection."""
        self.fatal: SidecarError | None = None
        self.transaction: Transaction | None = None
        """The last one of which a record or a call was seen."""
        self._changed = False

    # --- calls ----------------------------------------------------------------------------------------

    def queued(self, submission: Submission) -> bool:
        """Note a submission that goes before the calls that come after it. False if nothing is sent any more: it has
        failed.
        """
        self.transaction = submission.transaction
        if self.fatal is None:
            return True
        submission.fail(error_for(LocalCode.TXN_ABORTED, self.never_sent))
        self._streams.finish(submission)
        return False

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
            if call.drops:
                self._drop_unsent(is_attached=is_attached)
                for other in [each for each in self._calls if each.is_replaced_by_drop]:
                    self._calls.remove(other)
                    self._end(other, TransactionError(self.never_sent, abortable=True))

    def _drop_unsent(self, *, is_attached: bool) -> None:
        """Fail the submissions that no worker has. What was sent on an earlier connection may have arrived, until the
        next WELCOME tells.
        """
        error = error_for(LocalCode.TXN_ABORTED, self.never_sent)
        for window in list(self._streams.windows.values()):
            while len(window.queue) > window.sent_count and (is_attached or not window.queue[-1].sent):
                submission = window.queue.pop()
                window.next_seq -= 1
                submission.fail(error)
                self._streams.finish(submission)
            window.flush_to_seq = min(window.flush_to_seq, window.next_seq - 1)

    # --- frames ---------------------------------------------------------------------------------------

    @property
    def holds_records(self) -> bool:
        """Whether no SUBMIT may be sent now."""
        return False

    def attached(self, limits: Mapping[str, Any]) -> None:
        """Begin on a new connection, whose streams have continued. ``limits``: those of its WELCOME."""
        if any(call.drops for call in self._calls):
            self._drop_unsent(is_attached=True)
        self._sent = []

    def first_frames(self) -> list[Any] | None:
        """What goes before any record."""
        raise NotImplementedError

    def last_frames(self) -> list[Any] | None:
        """What goes once no record is left to be sent now."""
        raise NotImplementedError

    def _send_drop(self, call: TxnCall) -> list[Any]:
        """The frames of a DROPPED."""
        self._sent.append(call)
        return [msgpack.packb([Kind.STAGES_DROP, *call.fields]), call.payload]

    def _has_unsent(self) -> bool:
        return any(window.sent_count < len(window.queue) for window in self._streams.in_use.values())

    def _ends(self) -> list[list[int]]:
        """[stream, last seq] of each stream of which anything was queued."""
        return [
            [window.number, window.next_seq - 1]
            for window in self._streams.windows.values()
            if window.next_seq > 1
        ]

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
        """Handle TXN or STAGE. Raises ValueError for one that our daemon does not send."""
        raise NotImplementedError

    def _answer(
        self, is_its_call: Callable[[TxnCall], bool], error: TransactionError | None, value: Any
    ) -> None:
        """End the call that this is the answer to. A repeated answer finds none."""
        for call in self._calls:
            if not is_its_call(call):
                continue
            transaction = call.transaction
            if error is not None and error.abortable and transaction is not None:
                transaction.fail(error)
                error = transaction.error()
            self._calls.remove(call)
            if call.drops and error is None:
                # What the worker held while the abort was under way was never accepted.
                self._drop_unsent(is_attached=True)
            call.value = value
            self._end(call, error)
            return

    def _answer_drop(self, request: int, error: TransactionError | None, count: Any) -> None:
        """End the DROPPED with this number."""
        self._answer(lambda call: call.part is StagePart.DROPPED and call.fields[0] == request, error, count)

    def _end(self, call: TxnCall, error: SidecarError | None) -> None:
        call.end(error)
        self._changed = True

    def _lose(self, error: TransactionError) -> None:
        """Nothing more is possible: every call ends with this error, and no record is sent any more."""
        self.fatal = error
        self._changed = True
        if self.transaction is not None:
            self.transaction.fail(error)
        self._drop_unsent(is_attached=True)
        self.end(error)
