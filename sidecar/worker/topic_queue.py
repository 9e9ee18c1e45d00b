"""TopicQueue: one topic in one lane of this worker, from the accepted entry to its partitions.

An entry is accepted before the topic need be known. It then waits here, strictly in order, until the metadata
snapshot tells the partitions (rule M10: the record waits, the stub does not), or until max.block.ms has passed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.kernel import Chain, Entry, StickyPartitioner
    from sidecar.producer.topic_settings import TopicSettings
    from sidecar.worker.rate_limit import RateLimit


class TopicQueue:
    """Chain, partitioner and waiting line of one (lane, topic). Owned by the worker's loop."""

    __slots__ = (
        "chain",
        "has_leader",
        "held_bytes",
        "is_deleted",
        "lane",
        "last_settled_ms",
        "last_used_ms",
        "out_of_range",
        "partition_count",
        "partitioner",
        "rate",
        "settings",
        "stalled_bytes",
        "topic",
        "waiting",
    )

    def __init__(
        self,
        topic: str,
        lane: int,
        chain: Chain,
        settings: TopicSettings | None = None,
        rate: RateLimit | None = None,
    ) -> None:
        self.topic = topic
        self.lane = lane
        self.settings = settings
        """What holds for this topic alone; None only in tests that do not partition."""
        self.rate = rate
        self.chain = chain
        self.partitioner: StickyPartitioner | None = None
        self.partition_count = 0
        self.has_leader = False
        """Some partition has a live leader."""
        self.is_deleted = False
        """The last push took the topic away: what comes now waits for it to come again, with other partitions."""
        self.last_settled_ms = 0.0
        """When something of the topic was last told and done."""
        self.waiting: deque[Entry] = deque()
        """Accepted entries whose records have no partition yet, oldest first."""
        self.out_of_range: deque[Entry] = deque()
        """Entries with records for a partition that the topic does not have yet, oldest first."""
        self.last_used_ms = 0.0
        self.held_bytes = 0
        """What the topic holds of the pool, as the other workers were told (shares)."""
        self.stalled_bytes = 0
        """The same while it does not move, else 0."""

    @property
    def is_empty(self) -> bool:
        """Nothing of the topic is here, not even an unused page."""
        return not (self.chain.live_entries or self.chain.page_count or self.waiting or self.out_of_range)

    def update_partitions(
        self,
        partition_count: int,
        available: Sequence[int],
        preferred: Sequence[int],
        make: Callable[[Sequence[int]], StickyPartitioner],
    ) -> None:
        """Follow the snapshot. The sticky choice survives an update that leaves its partition available (M8).

        ``available`` have a live leader; of them records without a place of their own go to ``preferred``.
        ``make`` is called once, for the first partitioner.
        """
        if self.partitioner is None:
            self.partitioner = make(preferred)
        else:
            self.partitioner.update(partition_count, preferred)
        self.partition_count = partition_count
        self.has_leader = bool(available)
        self.is_deleted = False

    def delete(self) -> None:
        """The topic is gone. The partitioner stays for what already waits for a partition out of range."""
        self.is_deleted = self.partitioner is not None
        self.has_leader = False
