"""TopicQueue: one topic in one lane of this worker, from the accepted entry to its partitions.

An entry may be accepted before its topic is known. It then waits here, strictly in order, until a metadata snapshot
has the partitions (rule M10: the record waits, the stub does not), or until max.block.ms has passed.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING

from sidecar.shm.in_work import entry_word

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from sidecar.kernel import Chain, StickyPartitioner
    from sidecar.producer.topic_settings import TopicSettings
    from sidecar.producer.transaction_manager import TransactionManager
    from sidecar.worker.streams.rate_limit import RateLimit


class EntryLine:
    """Waiting entries, oldest first: ordinal and acceptance time, 16 bytes each."""

    __slots__ = ("_head", "_ordinals", "_since_ms")

    def __init__(self) -> None:
        self._ordinals = array("Q")
        self._since_ms = array("d")
        self._head = 0

    def __len__(self) -> int:
        return len(self._ordinals) - self._head

    def append(self, ordinal: int, accepted_ms: float) -> None:
        self._ordinals.append(ordinal)
        self._since_ms.append(accepted_ms)

    def extend(self, ordinals: Sequence[int], accepted_ms: float) -> None:
        self._ordinals.extend(ordinals)
        self._since_ms.extend(repeat(accepted_ms, len(ordinals)))

    @property
    def first_ms(self) -> float:
        """When the oldest entry was accepted, monotonic ms. Raises IndexError if nothing waits."""
        return self._since_ms[self._head]

    def since_ms(self, older: int) -> float:
        """When the entry after ``older`` others was accepted, monotonic ms."""
        return self._since_ms[self._head + older]

    def first(self, most: int) -> bytes:
        """Ordinals of the oldest ``most`` entries as bytes, for the kernel's ``index_run``."""
        return self._ordinals[self._head : self._head + most].tobytes()

    def popleft(self) -> tuple[int, float]:
        """Remove the oldest entry and return (ordinal, accepted ms)."""
        first = self._ordinals[self._head], self._since_ms[self._head]
        self.drop(1)
        return first

    def drop(self, count: int) -> None:
        """Remove the oldest ``count`` entries."""
        self._head += count
        if self._head >= len(self._ordinals) // 2:
            del self._ordinals[: self._head], self._since_ms[: self._head]
            self._head = 0


class TopicQueue:
    """Chain, partitioner and waiting entries of one (lane, topic). Belongs to the worker's loop."""

    __slots__ = (
        "brought_by",
        "chain",
        "counted_pages",
        "express",
        "has_leader",
        "held_bytes",
        "is_deleted",
        "is_express",
        "is_staged",
        "is_wanted",
        "lane",
        "last_settled_ms",
        "last_used_ms",
        "out_of_range",
        "partition_count",
        "partitioner",
        "rate",
        "settings",
        "share_waiters",
        "stalled_bytes",
        "topic",
        "topic_id",
        "transaction",
        "waiting",
        "work_word",
    )

    def __init__(
        self,
        topic: str,
        lane: int,
        chain: Chain,
        settings: TopicSettings | None = None,
        rate: RateLimit | None = None,
        *,
        is_express: bool = False,
        is_staged: bool = False,
        transaction: TransactionManager | None = None,
    ) -> None:
        self.topic = topic
        self.lane = lane
        self.transaction = transaction
        """The manager of a transactional lane; None outside of transactions."""
        self.settings = settings
        """The topic's settings. None only in tests that do not partition."""
        self.rate = rate
        self.chain = chain
        self.work_word = entry_word(chain.chain_id, 0)
        """The word that marks an entry of this chain as in work, without the ordinal."""
        self.is_express = is_express
        """Its records pass those of the topic's bulk chain. In everything else it follows the bulk queue."""
        self.is_staged = is_staged
        """Its records are in stages: nothing is sent of those that no transaction has included."""
        self.express: TopicQueue | None = None
        """Queue of the records that pass those here, once there was a backlog."""
        self.partitioner: StickyPartitioner | None = None
        self.partition_count = 0
        self.topic_id: UUID | None = None
        """Of the topic as the last metadata had it; None if it never was there, or the brokers have no ids."""
        self.has_leader = False
        """At least one partition has a live leader."""
        self.is_deleted = False
        """The last metadata update deleted the topic. New records wait until it exists again, with other partitions."""
        self.is_wanted = True
        """False while only clients that may not send to it have named it. Then Kafka is not asked for it and does not
        create it.
        """
        self.last_settled_ms = 0.0
        """When a record of the topic was last released, monotonic ms."""
        self.waiting = EntryLine()
        """Accepted entries without partitions, oldest first."""
        self.out_of_range = EntryLine()
        """Entries with records for a partition that does not exist yet, oldest first."""
        self.brought_by = 0
        """pid of the process whose client first named the topic here; 0 if not known."""
        self.last_used_ms = 0.0
        self.counted_pages = 0
        """For an express queue: its pages as counted in the sum over all express chains (shares)."""
        self.held_bytes = 0
        """The topic's bytes in the pool, as published to the other workers (shares)."""
        self.share_waiters = 0
        """Number of streams that wait for this topic's share of the pool."""
        self.stalled_bytes = 0
        """Equal to ``held_bytes`` while the topic makes no progress, else 0."""

    @property
    def is_empty(self) -> bool:
        """True if nothing of the topic is here, not even an unused page."""
        here = self.chain.live_entries or self.chain.page_count or self.waiting or self.out_of_range
        return not here and (self.express is None or self.express.is_empty)

    def follow(self, bulk: TopicQueue) -> None:
        """Copy settings, partitions and partitioner from the topic's bulk queue to an express queue."""
        self.settings, self.rate = bulk.settings, bulk.rate
        self.partitioner, self.partition_count = bulk.partitioner, bulk.partition_count
        self.has_leader, self.is_deleted, self.is_wanted = bulk.has_leader, bulk.is_deleted, bulk.is_wanted

    def update_partitions(
        self,
        partition_count: int,
        available: Sequence[int],
        preferred: Sequence[int],
        make: Callable[[Sequence[int]], StickyPartitioner],
    ) -> None:
        """Follow the snapshot. The sticky choice survives an update in which its partition stays available (M8).

        ``available`` partitions have a live leader. Records without a key or partition go to ``preferred`` ones among
        them. ``make`` is called once, for the first partitioner.
        """
        if self.partitioner is None:
            self.partitioner = make(preferred)
        else:
            self.partitioner.update(partition_count, preferred)
        self.partition_count = partition_count
        self.has_leader = bool(available)
        self.is_deleted = False

    def delete(self) -> None:
        """Mark the topic as deleted. The partitioner stays for entries that wait for a partition out of range."""
        self.is_deleted = self.partitioner is not None
        self.has_leader = False
