"""OpenStage: one stage while its process fills it; the caller and the io thread share it."""

from __future__ import annotations

from collections.abc import Callable

from client_stub.contract.wire import STAGE_BIT
from client_stub.errors import TransactionError
from client_stub.outbox.transaction import Transaction


class OpenStage(Transaction):
    """To the outbox it is the open transaction. ``number`` is the client's own of it with STAGE_BIT, as SUBMIT has it;
    ``given_number`` and ``owner`` are the caller's.
    """

    __slots__ = ("given_number", "owner", "records", "transactional_id")

    def __init__(
        self,
        own_number: int,
        refuse_sends: Callable[[Transaction], None],
        transactional_id: str,
        given_number: int,
        owner: str,
    ) -> None:
        super().__init__(STAGE_BIT | own_number, refuse_sends)
        self.transactional_id = transactional_id
        self.given_number = given_number
        self.owner = owner
        self.records = 0
        """How many were queued to be sent; the io thread counts them. The daemon seals no stage that lacks one."""

    @property
    def own_number(self) -> int:
        return self.number ^ STAGE_BIT

    def error(self) -> TransactionError:
        """The error of a call that this stage does not take any more."""
        assert self.cause is not None
        why = str(self.cause).rstrip(".")
        if not why.startswith("Stage "):  # as the daemon's sentences do
            why = f"Stage {self.given_number} of {self.transactional_id} is lost: {why}"
        error = TransactionError(
            f"{why}. Call drop(), then stage its records again.",
            code=self.cause.code,
            name=self.cause.name,
            abortable=True,
        )
        error.__cause__ = self.cause
        return error
