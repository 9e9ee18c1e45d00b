"""BulkCall: one call that queues many records, a step at a time.

send_many() and send_arrow() make one; it runs in their caller's thread or on its event loop.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from client_stub.errors import SidecarError, TransactionStateError
from client_stub.outbox.delivery import BulkDelivery

if TYPE_CHECKING:
    from client_stub.outbox.capacity_wait import Full
    from client_stub.outbox.submission import BulkPart
    from client_stub.outbox.transaction import Transaction

ENDED_DURING_CALL = (
    "Another thread has ended the transaction during this call: the other records are of no transaction."
)


class Step(Enum):
    """What a step of a call has done: queued the last of its records, or only some."""

    DONE = "done"
    MORE = "more"


class BulkCall:
    """Checks all records before it queues any, then queues one submission in each step. Not thread-safe."""

    parts: list[BulkPart]
    """The records queued so far. Each subclass sets it: a constructor here would cost each call one call more."""

    def step(self, *, waits: bool) -> Step | Full:
        """Queue some more records. Without room it waits or, unless ``waits``, returns FULL and may be called again."""
        raise NotImplementedError

    def check_transaction(self, transaction: Transaction | None) -> None:
        """Raises TransactionStateError if the next records would be of another transaction than the first ones: another
        thread has ended that one during the call.
        """
        parts = self._queued_parts()
        if parts and parts[0].submission.transaction is not transaction:
            raise TransactionStateError(ENDED_DURING_CALL)

    def add_part(self, part: BulkPart) -> None:
        """Note records that are queued. Should they have come into the next transaction, that one must be aborted."""
        parts, transaction = self._queued_parts(), part.submission.transaction
        self.parts.append(part)
        if transaction is not None and parts[0].submission.transaction is not transaction:
            error = TransactionStateError(ENDED_DURING_CALL)
            transaction.fail(error)
            raise error

    def run(self) -> BulkDelivery:
        """Run all steps, each of which waits for room as Producer.send() does. Raises the errors of send_many(), with
        the queued part.
        """
        try:
            while self.step(waits=True) is not Step.DONE:
                pass
        except SidecarError as error:
            raise self.explain(error) from error.__cause__
        return self.delivery

    @property
    def delivery(self) -> BulkDelivery:
        return BulkDelivery(self.parts)

    def explain(self, error: SidecarError) -> SidecarError:
        """``error`` with the number of records that this call has queued in its text, and their future in
        ``queued``.
        """
        return with_queued(error, self._queued_parts())

    def _queued_parts(self) -> Sequence[BulkPart]:
        return self.parts


def with_queued(error: SidecarError, parts: Sequence[BulkPart]) -> SidecarError:
    """``error`` with the number of the records of ``parts``, which the call has queued, in its text, and their future
    in ``queued``.
    """
    if not parts:
        return error
    queued = BulkDelivery(parts)
    # A copy, as one fatal error of the producer or topic is raised by many calls, each with its own number.
    raised = copy.copy(error)
    raised.args = (f"{error} (The first {queued.count} records of this call are queued.)",)
    raised.queued = queued
    return raised
