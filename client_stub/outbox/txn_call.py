"""TxnCall: a call of a transaction that waits for the daemon's answer; the caller and the io thread share it."""

from __future__ import annotations

from typing import Any

from client_stub.contract.wire import TxnPart
from client_stub.errors import SidecarError
from client_stub.outbox.transaction import Transaction


class TxnCall:
    """``is_over`` is set last, by the io thread: ``error`` is then final."""

    __slots__ = ("commits", "error", "fields", "is_over", "part", "payload", "transaction")

    def __init__(
        self,
        part: TxnPart,
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
        """Of OFFSETS: what follows the transaction's number in the first frame, the request's number first."""
        self.payload = payload
        self.error: SidecarError | None = None
        self.is_over = False

    def end(self, error: SidecarError | None = None) -> None:
        self.error = error
        self.is_over = True
