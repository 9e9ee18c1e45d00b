"""Lane: a transactional id at this worker, and the client that has it. Plain state; no sockets, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from client_stub.contract.wire import LocalCode
from sidecar.producer.transaction_states import TransactionState
from sidecar.worker.streams.refusal import Refusal

if TYPE_CHECKING:
    from sidecar.producer.transaction_manager import TransactionManager


class LaneClient(Protocol):
    """A ClientSession, as its lane sees it."""

    is_gone: bool


class Lane:
    """One transactional id. ``session`` is the client that initialized it last; None once that is gone for good."""

    __slots__ = ("manager", "session")

    def __init__(self, manager: TransactionManager, session: LaneClient | None) -> None:
        self.manager = manager
        self.session = session

    @property
    def number(self) -> int:
        return self.manager.lane

    def is_open(self, session: LaneClient, transaction: int) -> bool:
        """Whether this is the client's transaction, and has not ended."""
        manager = self.manager
        return session is self.session and transaction == manager.number and not manager.is_over

    def refusal_of(self, session: LaneClient, transaction: int) -> Refusal | None:
        """Why records of this transaction fail; None if they may be sent. The first ones begin it."""
        manager = self.manager
        if session is not self.session:
            text = f'Another producer with transactional id "{manager.transactional_id}" has fenced this one.'
        elif not manager.begin(transaction):
            text = f"Transaction {transaction} is not open: it has ended, or the one before has not."
        elif manager.state is TransactionState.ABORTABLE:
            text = f"Transaction {transaction} can only be aborted: {manager.cause[1]}"
        else:
            return None
        return Refusal(LocalCode.TXN_ABORTED, text)
