"""The coordinator of transactions and groups of the fake broker, with the rules of Kafka 4.1 as they were measured.

One transactional id has one producer id, whose epoch grows. ``transaction_version`` 2 ends with a new epoch and adds
partitions by itself; with 0 and 1 they are added before. An EndTxn v5 at a lower version wedges the transaction, as it
does on a real broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

SELF_ADDING_VERSION: Final = 2
END_WITH_EPOCH: Final = 5
"""First version of EndTxn whose answer has the next epoch."""
PRODUCE_THAT_ADDS: Final = 12
EPOCH_MAX: Final = 32_766
UNSUPPORTED_VERSION: Final = 35
ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
CONCURRENT_TRANSACTIONS: Final = 51
FENCED_INSTANCE_ID: Final = 82
PRODUCER_FENCED: Final = 90
TRANSACTION_ABORTABLE: Final = 120

Partition = tuple[str, int]
WriteMarker = Callable[[Partition, int, int, bool], None]
"""(partition, producer id, epoch, whether it commits)."""


class Phase(Enum):
    EMPTY = auto()
    ONGOING = auto()
    COMMITTED = auto()
    ABORTED = auto()
    WEDGED = auto()


class Ended(NamedTuple):
    """``epoch`` of the next transaction, from EndTxn v5 on."""

    code: int
    producer_id: int = -1
    epoch: int = -1


class Offset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str | None


class Member(NamedTuple):
    generation: int
    member_id: str
    group_instance_id: str | None = None


@dataclass
class Transaction:
    """What the transaction log has of one id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    phase: Phase = Phase.EMPTY
    last_epoch: int = -1
    """The epoch before the last one, by which a repeated request is recognised; -1: it is not."""
    partitions: set[Partition] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], Offset] = field(default_factory=dict)
    deadline_s: float = 0.0
    markers_until_s: float = 0.0
    """Its markers are being written until then, and every request is refused with CONCURRENT_TRANSACTIONS."""


class FakeCoordinator:
    """Not thread-safe: the broker's lock guards it. ``markers_ms``: how long the markers of an end take. ``now_s`` is
    its clock.
    """

    def __init__(
        self,
        transaction_version: int,
        write_marker: WriteMarker,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transaction_version = transaction_version
        self.timeout_ms_max = 900_000
        self.markers_ms = 0.0
        self.members: dict[str, Member] = {}
        """By group: the one member whose offsets are taken. A group that is not here takes any."""
        self.committed: dict[tuple[str, str, int], Offset] = {}
        """By group, topic and partition."""
        self.transactions: dict[str, Transaction] = {}
        self._write_marker = write_marker
        self._now_s = now_s
        self._next_producer_id = 4000

    def init(self, name: str, timeout_ms: int, producer_id: int, epoch: int) -> Ended:
        if timeout_ms > self.timeout_ms_max:
            return Ended(INVALID_TRANSACTION_TIMEOUT)
        self.expire()
        known = self.transactions.get(name)
        if known is None:
            known = self.transactions[name] = Transaction(self._new_id(), 0, timeout_ms)
            return Ended(0, known.producer_id, known.epoch)
        if self._is_busy(known):
            return Ended(CONCURRENT_TRANSACTIONS)
        is_named = producer_id >= 0
        if is_named and (producer_id != known.producer_id or epoch not in (known.epoch, known.last_epoch)):
            return Ended(PRODUCER_FENCED)
        if known.phase is Phase.ONGOING:
            fenced = known.epoch
            self._end(known, False, known.epoch + 1)
            known.last_epoch = fenced if self.transaction_version >= SELF_ADDING_VERSION else -1
            return Ended(CONCURRENT_TRANSACTIONS)
        known.timeout_ms = timeout_ms
        if not is_named or epoch == known.epoch:
            self._bump(known, epoch if is_named else -1)
        known.phase = Phase.EMPTY
        return Ended(0, known.producer_id, known.epoch)

    def add_partitions(self, name: str, producer_id: int, epoch: int, partitions: Iterable[Partition]) -> int:
        transaction, code = self._open(name, producer_id, epoch)
        if transaction is not None:
            transaction.partitions.update(partitions)
        return code

    def add_offsets(self, name: str, producer_id: int, epoch: int) -> int:
        return self._open(name, producer_id, epoch)[1]

    def commit_offsets(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        group: str,
        member: Member,
        offsets: dict[Partition, Offset],
    ) -> int:
        expected = self.members.get(group)
        if expected is not None and expected != member:
            if member.group_instance_id != expected.group_instance_id:
                return FENCED_INSTANCE_ID
            return UNKNOWN_MEMBER_ID if member.member_id != expected.member_id else ILLEGAL_GENERATION
        known = self.transactions.get(name)
        is_open = known is not None and known.phase is Phase.ONGOING
        if self.transaction_version < SELF_ADDING_VERSION and not is_open:
            return INVALID_TXN_STATE
        transaction, code = self._open(name, producer_id, epoch)
        if transaction is not None:
            for (topic, partition), offset in offsets.items():
                transaction.offsets[group, topic, partition] = offset
        return code

    def may_append(
        self, name: str | None, producer_id: int, epoch: int, partition: Partition, version: int
    ) -> int:
        """The code for a transactional batch of Produce ``version``, and what it adds."""
        self.expire()
        known = self.transactions.get(name or "")
        if known is None or known.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if epoch != known.epoch:
            return INVALID_PRODUCER_EPOCH
        if version < PRODUCE_THAT_ADDS:
            is_added = known.phase is Phase.ONGOING and partition in known.partitions
            return 0 if is_added else TRANSACTION_ABORTABLE
        if self.transaction_version < SELF_ADDING_VERSION:
            return UNSUPPORTED_VERSION
        return self.add_partitions(name or "", producer_id, epoch, [partition])

    def end(self, name: str, producer_id: int, epoch: int, is_commit: bool, version: int) -> Ended:
        self.expire()
        known = self.transactions.get(name)
        if known is None or known.producer_id != producer_id:
            return Ended(INVALID_PRODUCER_ID_MAPPING)
        if self._is_busy(known):
            return Ended(CONCURRENT_TRANSACTIONS)
        has_epoch = version >= END_WITH_EPOCH
        if has_epoch and self.transaction_version < SELF_ADDING_VERSION:
            known.phase = Phase.WEDGED
            return Ended(UNSUPPORTED_VERSION)
        done = Phase.COMMITTED if is_commit else Phase.ABORTED
        if has_epoch and epoch == known.last_epoch and known.phase in (Phase.COMMITTED, Phase.ABORTED):
            if known.phase is done:
                return Ended(0, known.producer_id, known.epoch)
            return Ended(INVALID_TXN_STATE)
        if epoch != known.epoch:
            return Ended(PRODUCER_FENCED)
        if known.phase is Phase.ONGOING:
            self._end(known, is_commit, known.epoch + 1 if has_epoch else known.epoch)
        elif has_epoch and not is_commit:
            self._bump(known, known.epoch)
            known.phase = Phase.ABORTED
        elif known.phase is not done:
            return Ended(INVALID_TXN_STATE)
        return Ended(0, known.producer_id, known.epoch) if has_epoch else Ended(0)

    def expire(self) -> None:
        """Abort the transactions whose timeout is over."""
        now_s = self._now_s()
        for known in self.transactions.values():
            if known.phase is Phase.ONGOING and known.deadline_s <= now_s:
                self._end(known, False, known.epoch + 1)

    def forget(self, name: str) -> None:
        """Forget an id, as after ``transactional.id.expiration.ms``."""
        del self.transactions[name]

    def _open(self, name: str, producer_id: int, epoch: int) -> tuple[Transaction | None, int]:
        """The transaction, begun if it was not open; or None and why not."""
        self.expire()
        known = self.transactions.get(name)
        if known is None or known.producer_id != producer_id:
            return None, INVALID_PRODUCER_ID_MAPPING
        if self._is_busy(known):
            return None, CONCURRENT_TRANSACTIONS
        if epoch != known.epoch:
            return None, PRODUCER_FENCED
        if known.phase is not Phase.ONGOING:
            known.phase = Phase.ONGOING
            known.deadline_s = self._now_s() + known.timeout_ms / 1000
        return known, 0

    def _is_busy(self, known: Transaction) -> bool:
        return known.phase is Phase.WEDGED or self._now_s() < known.markers_until_s

    def _end(self, known: Transaction, is_commit: bool, epoch: int) -> None:
        for partition in known.partitions:
            self._write_marker(partition, known.producer_id, epoch, is_commit)
        if is_commit:
            self.committed.update(known.offsets)
        known.partitions, known.offsets = set(), {}
        known.phase = Phase.COMMITTED if is_commit else Phase.ABORTED
        known.markers_until_s = self._now_s() + self.markers_ms / 1000
        if epoch != known.epoch:
            self._bump(known, known.epoch)

    def _bump(self, known: Transaction, last_epoch: int) -> None:
        known.last_epoch = last_epoch
        known.epoch += 1
        if known.epoch >= EPOCH_MAX:
            known.producer_id, known.epoch, known.last_epoch = self._new_id(), 0, -1

    def _new_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id
