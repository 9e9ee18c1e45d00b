"""Transaction: one transaction, from begin_transaction() to its end; the caller and the io thread share it."""

from __future__ import annotations

from collections.abc import Callable

from client_stub.errors import SidecarError, TransactionError
from client_stub.outbox.inclusion import Inclusion


class Transaction:
    """``number`` counts from 1 in the life of a client, which sends one transaction after the other.

    ``refuse_sends(transaction)`` is called once it can only be aborted.
    """

    __slots__ = ("_refuse_sends", "cause", "inclusion", "number")

    def __init__(self, number: int, refuse_sends: Callable[[Transaction], None]) -> None:
        self.number = number
        self._refuse_sends = refuse_sends
        self.inclusion: Inclusion | None = None
        """The stages that it includes."""
        self.cause: SidecarError | None = None
        """Why it must be aborted: the first record that failed, or what the daemon has said of it."""

    def fail(self, cause: SidecarError) -> None:
        """Let it end only by an abort. Any thread; the first cause is kept."""
        if self.cause is None:
            self.cause = cause
            self._refuse_sends(self)

    def error(self) -> TransactionError:
        """The error of a call that this transaction does not take any more."""
        assert self.cause is not None
        error = TransactionError(
            f"The transaction must be aborted: {str(self.cause).rstrip('.')}. Call abort_transaction(), then begin the "
            "next one.",
            code=self.cause.code,
            name=self.cause.name,
            abortable=True,
        )
        error.__cause__ = self.cause
        return error
