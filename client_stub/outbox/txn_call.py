"""TxnCall: a call of a transaction or a stage that waits for the daemon's answer; the caller and the io thread share
it.
"""

from __future__ import annotations

from typing import Any

from client_stub.contract.wire import StagePart, TxnPart
from client_stub.errors import SidecarError
from client_stub.outbox.transaction import Transaction


class TxnCall:
    """``is_over`` is set last, by the io thread: ``error`` and ``value`` are then final."""

    __slots__ = ("commits", "error", "fields", "is_over", "part", "payload", "transaction", "value")

    def __init__(
        self,
        part: TxnPart | StagePart,
        transaction: Transaction | None = None,
        *,
        commits: bool = False,
        fields: tuple[Any, ...] = (),
        payload: bytes = b"",
    ) -> None:
        self.part = part
        self.transaction = transaction
        self.commits = commits
        """Of an END: whether it commits."""
        self.fields = fields
        """Of OFFSETS, INCLUDE and DROPPED: fields of the first frame, the request's number first."""
        self.payload = payload
        self.value: Any = None
        """What the answer has besides its code: a token, a count, or the partitions of a commit."""
        self.error: SidecarError | None = None
        self.is_over = False

    @property
    def drops(self) -> bool:
        """Whether it ends its transaction or stage so that nothing of it is seen: an abort or a drop."""
        return self.part is StagePart.DROP or (self.part is TxnPart.END and not self.commits)

    @property
    def is_replaced_by_drop(self) -> bool:
        """Whether an abort or a drop takes its place."""
        return self.is_in_between or self.part is StagePart.SEAL

    @property
    def is_in_between(self) -> bool:
        """Whether it is a call of a transaction that neither begins nor ends it."""
        return self.part is TxnPart.OFFSETS or self.part is TxnPart.INCLUDE

    def end(self, error: SidecarError | None = None) -> None:
        self.error = error
        self.is_over = True
