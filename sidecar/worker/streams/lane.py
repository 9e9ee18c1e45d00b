"""Lane: a transactional id at this worker, its client and its stages. Plain state; no sockets, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from client_stub.contract.wire import LocalCode
from sidecar.producer.transaction_states import TransactionState
from sidecar.worker.streams.refusal import Refusal

if TYPE_CHECKING:
    from sidecar.producer.transaction_manager import TransactionManager
    from sidecar.worker.streams.stage import LaneStage


class LaneClient(Protocol):
    """A ClientSession, as its lane sees it."""

    is_gone: bool


class IncludedRecords:
    """What a transaction has included."""

    __slots__ = ("delivered", "partitions", "records", "request", "size_bytes", "transaction")

    def __init__(self, transaction: int, request: int, records: int, size_bytes: int) -> None:
        self.transaction = transaction
        self.request = request
        """The client's number of the call; -1 after a worker's death."""
        self.records = records
        self.size_bytes = size_bytes
        self.delivered = 0
        """Records of it that were delivered by this worker."""
        self.partitions: dict[tuple[str, int], tuple[int, int, int]] = {}
        """By topic and partition: the first and last offset, and the number of these records."""

    def note(self, topic: str, partition: int, base_offset: int, records: int) -> None:
        """Note a batch that was delivered."""
        self.delivered += records
        last = base_offset + records - 1
        first, before_last, before = self.partitions.get((topic, partition), (base_offset, last, 0))
        self.partitions[topic, partition] = min(first, base_offset), max(before_last, last), before + records

    @property
    def rows(self) -> list[tuple[str, int, int, int, int]] | None:
        """(topic, partition, first, last, records) of each partition; None if a worker that has died knew it."""
        if self.delivered != self.records:
            return None
        return [(*where, *found) for where, found in sorted(self.partitions.items())]


class Lane:
    """One transactional id. ``session`` is the client that initialized it last; None once that is gone for good."""

    __slots__ = ("has_stagers", "inclusion", "manager", "session", "stages")

    def __init__(self, manager: TransactionManager, session: LaneClient | None) -> None:
        self.manager = manager
        self.session = session
        self.stages: dict[int, LaneStage] = {}
        """By number in the slot: all of which records may be left."""
        self.has_stagers = False
        """A client has staged for it that may do so again."""
        self.inclusion: IncludedRecords | None = None
        """What the open or last transaction has included."""

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
