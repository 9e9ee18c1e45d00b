"""Topics: every topic this worker's clients send to, and what waits for its metadata."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from client_stub.wire import LocalCode
from sidecar.kernel import fail_remaining, index
from sidecar.worker.topic_queue import TopicQueue

if TYPE_CHECKING:
    from sidecar.kernel import Chain, Entry
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.shm.chain_table import ChainTable

log = logging.getLogger(__name__)

# Metadata's topic errors that no waiting heals (Kafka's codes); all others may pass.
_FATAL_TOPIC_ERRORS = {29: LocalCode.TOPIC_UNAUTHORIZED, 17: LocalCode.INVALID_TOPIC}


class Topics:
    """Topic queues by name. ``on_failed(chain, entry, failures)`` is told of records that fail before sending."""

    def __init__(
        self,
        *,
        config: ProducerConfig,
        lane: int,
        chain_table: ChainTable,
        accumulator: RecordAccumulator,
        on_failed: Callable[[TopicQueue, Entry, list[tuple[int, int]]], None],
    ) -> None:
        self._config = config
        self._lane = lane
        self._chain_table = chain_table
        self._accumulator = accumulator
        self._on_failed = on_failed
        self._queues: dict[str, TopicQueue] = {}
        self._by_chain: dict[int, TopicQueue] = {}
        self._waiting_queues: dict[str, TopicQueue] = {}
        """The few queues with waiting entries (and some that had); the turn looks at these only."""
        self._snapshot: MetadataSnapshot | None = None
        """The last push: another worker's clients may have brought a topic in before ours first use it."""
        self._used: set[str] = set()
        self.missing: set[str] = set()
        """Topics that wait for metadata: asked for at the end of the turn, once however many ask."""

    def __iter__(self) -> Iterator[TopicQueue]:
        return iter(self._queues.values())

    def get(self, topic: str) -> TopicQueue | None:
        """The topic's queue, made on first use; None when the table of chains is full."""
        queue = self._queues.get(topic)
        if queue is None:
            chain = self._chain_table.open(self._lane, topic)
            if chain is None:
                return None
            queue = self._queues[topic] = TopicQueue(topic, self._lane, chain)
            self._by_chain[chain.chain_id] = queue
            if self._snapshot is None or not self._follow(queue, self._snapshot):
                self.missing.add(topic)
        return queue

    def queue_of(self, chain: Chain) -> TopicQueue:
        return self._by_chain[chain.chain_id]

    def on_entry(self, queue: TopicQueue, entry: Entry, now_ms: float) -> None:
        """An entry was accepted: partition it now, or queue it behind those that wait (strictly in order)."""
        self._used.add(queue.topic)
        if queue.partitioner is None or queue.waiting:
            queue.waiting.append(entry)
            self._waiting_queues[queue.topic] = queue
            self.missing.add(queue.topic)
        else:
            self._partition(queue, entry, now_ms)

    def on_snapshot(self, snapshot: MetadataSnapshot, now_ms: float) -> None:
        """Follow a metadata push: partition what waited."""
        self._snapshot = snapshot
        for queue in self._queues.values():
            if not self._follow(queue, snapshot):
                continue
            self.missing.discard(queue.topic)
            while queue.waiting:
                self._partition(queue, queue.waiting.popleft(), now_ms)
            self._waiting_queues.pop(queue.topic, None)

    def on_topic_errors(self, codes: Mapping[str, int]) -> None:
        """Metadata refused these topics: fail at once what no waiting heals; the others wait on (M9)."""
        for topic, code in codes.items():
            queue = self._queues.get(topic)
            if queue is not None and code in _FATAL_TOPIC_ERRORS:
                self._fail_waiting(queue, _FATAL_TOPIC_ERRORS[code])

    def expire(self, now_ms: float) -> None:
        """Fail entries that waited for metadata longer than max.block.ms (M10)."""
        if now_ms < self.next_expiry_ms:
            return
        for queue in list(self._waiting_queues.values()):
            while queue.waiting and queue.waiting[0].accepted_ms + self._config.max_block_ms <= now_ms:
                self._fail(queue, queue.waiting.popleft(), LocalCode.METADATA_TIMEOUT)

    @property
    def next_expiry_ms(self) -> float:
        """When the entry that waits longest gives up; infinity when none waits."""
        return min(
            (
                queue.waiting[0].accepted_ms + self._config.max_block_ms
                for queue in self._waiting_queues.values()
                if queue.waiting
            ),
            default=float("inf"),
        )

    def fail_all_waiting(self, code: LocalCode) -> None:
        """Forced close: nothing waits for metadata any more."""
        for queue in self._queues.values():
            self._fail_waiting(queue, code)

    @property
    def waiting_entries(self) -> int:
        return sum(len(queue.waiting) for queue in self._waiting_queues.values())

    @property
    def waiting_topics(self) -> int:
        return sum(1 for queue in self._waiting_queues.values() if queue.waiting)

    def take_used(self) -> list[str]:
        """Topics used since the last call: their expiry is renewed at the controller (M1)."""
        used, self._used = list(self._used), set()
        return used

    def _follow(self, queue: TopicQueue, snapshot: MetadataSnapshot) -> bool:
        """Give the queue its partitions; False when the snapshot does not know its topic."""
        count = snapshot.partition_count(queue.topic)
        if not count:
            return False
        queue.update_partitions(
            count,
            snapshot.available_partitions(queue.topic),
            batch_bytes=self._config.batch_size,
            seed=random.getrandbits(63),
        )
        return True

    def _partition(self, queue: TopicQueue, entry: Entry, now_ms: float) -> None:
        assert queue.partitioner is not None
        block = index(queue.chain, entry, queue.partitioner, self._config.max_request_size)
        if block.failures:
            self._on_failed(queue, entry, block.failures)
        if block.groups:
            self._accumulator.append(queue.topic, queue.lane, block, now_ms)

    def _fail_waiting(self, queue: TopicQueue, code: LocalCode) -> None:
        while queue.waiting:
            self._fail(queue, queue.waiting.popleft(), code)
        self._waiting_queues.pop(queue.topic, None)
        self.missing.discard(queue.topic)

    def _fail(self, queue: TopicQueue, entry: Entry, code: LocalCode) -> None:
        self._on_failed(queue, entry, [(i, int(code)) for i in fail_remaining(queue.chain, entry, code)])
