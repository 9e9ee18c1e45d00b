"""RecordAccumulator: collects accepted records into batches (rules A1, A6–A9).

It is an index over the journal in the worker's own memory: it holds references to records, never their bytes.
PartitionSchedule (partition_schedule.py) decides which queue may send next, and when. BatchDrain (batch_drain.py) takes
the batches of a request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from sidecar.common.errors import Code
from sidecar.producer.batch_states import BatchState
from sidecar.producer.incomplete_batches import IncompleteBatches
from sidecar.producer.lane_queues import LaneQueues
from sidecar.producer.lanes import IDEMPOTENT_LANE, LANES
from sidecar.producer.partition_schedule import PartitionSchedule
from sidecar.producer.producer_batch import NOT_DRAINED, ProducerBatch
from sidecar.producer.topic_settings import TopicRules
from sidecar.producer.transactional_ids import TransactionalIds

if TYPE_CHECKING:
    from sidecar.kernel import BatchRecords, Chain, RecordBlock, StickyPartitioner
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.producer_id import ProducerIds
    from sidecar.producer.transaction_manager import TransactionManager
_OPEN: Final = BatchState.OPEN
"""Cached: reading an enum member through its class costs as much as a call, and this one is used for each batch."""


class RecordAccumulator:
    """Queues of ProducerBatch by (lane, topic, partition). Single-threaded: the worker's loop.

    ``rules`` gives the settings of each topic. ``records_factory`` makes the kernel's empty BatchRecords; tests may
    pass their own.
    """

    def __init__(
        self,
        config: ProducerConfig,
        ids: ProducerIds,
        *,
        rules: TopicRules | None = None,
        records_factory: Callable[[], BatchRecords] | None = None,
    ) -> None:
        if records_factory is None:
            from sidecar.kernel import BatchRecords

            records_factory = BatchRecords
        self._config = config
        self._ids = ids
        self._new_records = records_factory
        self._rules = rules or TopicRules(config)
        self._growth_bytes = min(config.batch_growth_bytes, config.max_request_size)
        self._growth_by_topic: dict[str, int] = {}
        """Topic → the size in bytes up to which its batches may grow, after its broker refused a grown batch as too
        large.
        """
        self.lanes = {lane: LaneQueues(lane, ids if lane == IDEMPOTENT_LANE else None) for lane in LANES}
        """By number: those of :data:`LANES`, and the transactional ones that are open."""
        self.schedule = PartitionSchedule(
            self.lanes, in_flight_max=config.max_in_flight_requests_per_connection
        )
        self.incomplete = IncompleteBatches()
        self.answered_forgotten: list[PartitionQueue] = []
        """Queues of forgotten topics that had an answer since the last poll, so they may be of no use any more."""
        self.unanswered_topics: defaultdict[int, set[str]] = defaultdict(set)
        """By link: topics of its requests with acks=0. A broker refuses such a request by closing the connection."""

    # --- in -------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        lane: int,
        block: RecordBlock,
        now_ms: float,
        groups: Sequence[tuple[int, int, int]] | None = None,
        *,
        expedited: bool = False,
        express: bool = False,
        since_ms: float | None = None,
        accepted_ms: Callable[[int], float] | None = None,
    ) -> None:
        """Append the partitioned records of one submission (kernel ``index`` made ``block``) to open batches.

        A batch of batch.size is full: it may be sent. Until it is drained it still takes records, up to
        batch_growth_bytes. An open batch costs no memory here, and under a backlog one large batch is faster than many
        that wait for their turn.

        - ``groups``: a part of the block's own groups
        - ``expedited``: the records are about to be flushed, so a batch that they open does not linger
        - ``express``: the records pass a backlog of batches; their batch does not linger either, as that backlog would
          wait for it
        - ``accepted_ms``: when a reference of the block was accepted, if not now; a batch is as old as its first
          record
        - ``since_ms``: the same time for histograms
        """
        since_ms = now_ms if since_ms is None else since_ms
        lane_queues = self.lanes[lane]
        queues = lane_queues.of(topic)
        growth_bytes = self._growth_by_topic.get(topic, self._growth_bytes)
        for partition, start, stop in block.groups if groups is None else groups:
            queue = queues.get(partition) or lane_queues.get(topic, partition, self._rules)
            limit_bytes = max(growth_bytes, queue.settings.batch_size)
            batches = queue.express if express else queue.batches
            batch = batches[-1] if batches else None
            position, changed = start, False
            while position < stop:
                if accepted_ms is not None:
                    since_ms = accepted_ms(position)
                if batch is None or batch.state is not _OPEN:
                    born_ms = now_ms if accepted_ms is None else since_ms
                    batch = self._open(lane_queues, queue, block.chain, born_ms, expedited, express)
                    batches.append(batch)
                    changed = True
                position += batch.records.try_append(block, position, stop, limit_bytes, since_ms)
                if queue.grown(batch, limit_bytes, position < stop):
                    changed = True
            if changed:
                self.schedule.touch(queue, now_ms)

    def _open(
        self,
        lane_queues: LaneQueues,
        queue: PartitionQueue,
        chain: Chain,
        born_ms: float,
        expedited: bool,
        express: bool,
    ) -> ProducerBatch:
        """Make the batch that takes the partition's next records."""
        queue.is_forgotten = False
        records, deadline_ms = self._new_records(), born_ms + queue.settings.delivery_timeout_ms
        # Positional arguments: keywords would cost a dictionary for each batch.
        batch = ProducerBatch(queue, records, chain, born_ms, deadline_ms, NOT_DRAINED, express)
        batch.expedited = expedited or express
        if not batch.expedited:
            lane_queues.opened.setdefault(queue.topic, {})[queue] = None
        self.incomplete.add(batch)
        return batch

    def adopt(self, batch: ProducerBatch, count: int) -> None:
        """Take over a batch that a dead worker sent and that got no answer; its order is its position in the queue.

        It keeps its identity and is sent again, oldest first, after :meth:`resume`. Its ``count`` records are still
        being added to it. Records of its chain without a number before it come from a refused batch. The broker lacks
        those, and has this batch only if it had forgotten the producer id.
        """
        queue = batch.queue
        follows_gap = queue.order_after_gap(batch)
        batch.retry_at_ms = inf
        queue.has_adopted = True
        queue.insert(batch)
        queue.next_order = max(queue.next_order, batch.order + count)
        self.incomplete.add(batch)
        if queue.sequences is not None:
            self._ids.adopt(queue.sequences, batch, count)
            if follows_gap and queue.transaction is None:
                self._ids.request_renumbering(batch)

    def withdraw(self, batch: ProducerBatch, now_ms: float) -> None:
        """Remove an adopted batch that is not complete, as if it had never been here. Records accepted for its
        partition are sent under a new identity, once the other adopted batches are settled.
        """
        self.incomplete.remove(batch)
        if batch.queue.sequences is not None:
            self._ids.failed(batch, Code.UNKNOWN_SERVER_ERROR)
            renumbered = self._ids.resolve(batch.queue)
            assert not renumbered, "a batch that a dead worker sent is in doubt, and keeps its identity"
        self.schedule.touch(batch.queue, now_ms)
        if batch.queue.follower is not None:
            self.let_follower_go(batch.queue, now_ms)

    def resume(self, batch: ProducerBatch, now_ms: float) -> None:
        """Allow a batch to be sent that waited for its broker's answer."""
        batch.retry_at_ms = 0.0
        self.schedule.touch(batch.queue, now_ms)

    def send_after(self, queue: PartitionQueue, first: PartitionQueue) -> None:
        """Send nothing of ``queue`` before everything in ``first`` has ended: the same partition in another lane."""
        queue.waits_for = first
        first.follower = queue

    def let_follower_go(self, first: PartitionQueue, now_ms: float) -> None:
        """Release the other lane's queue that waits for ``first``, if everything in that one has ended."""
        follower = first.follower
        if follower is not None and first.head is None and not first.wire_count:
            first.follower = follower.waits_for = None
            self.schedule.touch(follower, now_ms)

    def limit_growth(self, topic: str, size_bytes: int) -> None:
        """Limit the growth of the topic's later batches, as its broker refused one of this size."""
        known = self._growth_by_topic.get(topic, self._growth_bytes)
        self._growth_by_topic[topic] = min(known, size_bytes)

    def queue(self, topic: str, lane: int, partition: int) -> PartitionQueue:
        """The queue of a partition, created if needed."""
        return self.lanes[lane].get(topic, partition, self._rules)

    def use_rules(self, rules: TopicRules, now_ms: float) -> None:
        """Use these rules for all topics from now on, also for the present partitions and open batches.

        A batch keeps the deadline that it was made with. A pause holds only batches that were never in a request: a
        batch that waits to be sent again has a descriptor, which only its answer frees.
        """
        self._rules = rules
        for lane in self.lanes.values():
            for queue in lane:
                queue.settings = rules.of(queue.topic)
                self.schedule.touch(queue, now_ms)

    def follow_loads(self, topic: str, lane: int, partitioner: StickyPartitioner) -> None:
        """See :meth:`LaneQueues.follow_loads`."""
        self.lanes[lane].follow_loads(topic, partitioner)

    def forget_topic(self, topic: str, lane: int) -> None:
        """Forget a topic without records here, whose partitioner is gone."""
        self.schedule.full_ms.pop(topic, None)
        self._growth_by_topic.pop(topic, None)
        if self.lanes[lane].ids is None:
            for topics in self.unanswered_topics.values():
                topics.discard(topic)
        self.schedule.forget(self.lanes[lane].forget_topic(topic))

    def drop_forgotten(self) -> None:
        """Drop the queues of forgotten topics of which nothing is under way any more."""
        answered, self.answered_forgotten = self.answered_forgotten, []
        for queue in answered:
            if queue.lane in self.lanes:  # a transactional one may have been closed since
                self.schedule.forget(self.lanes[queue.lane].let_rest((queue,)))

    # --- transactional lanes --------------------------------------------------------------------------------

    def open_lane(self, manager: TransactionManager) -> None:
        """Make the lane of a transactional id, which is ``manager.lane``."""
        self.lanes[manager.lane] = LaneQueues(manager.lane, TransactionalIds(manager))

    def close_lane(self, number: int) -> None:
        """Forget a transactional lane without records."""
        assert self.is_quiet(number)
        del self.lanes[number]

    def is_quiet(self, number: int) -> bool:
        """Whether no batch of the lane is unsent or unanswered."""
        return not any(queue.batches or queue.wire_count for queue in self.lanes[number])

    def expedite_lane(self, number: int, now_ms: float) -> None:
        """End linger for all present records of a lane."""
        for topic in list(self.lanes[number].opened):
            self.expedite(topic, number, now_ms)

    def close_batches(
        self, topic: str, lane: int, groups: Iterable[tuple[int, int, int]], now_ms: float
    ) -> None:
        """Close the open batches of the partitions that ``groups`` begin with: what follows is of another chain."""
        queues = self.lanes[lane].of(topic)
        for partition, _, _ in groups:
            queue = queues.get(partition)
            if queue is not None and queue.batches and queue.batches[-1].state is _OPEN:
                queue.batches[-1].close()
                self.schedule.touch(queue, now_ms)

    # --- metadata -------------------------------------------------------------------------------------------

    def follow(self, snapshot: MetadataSnapshot, now_ms: float) -> None:
        """Move partitions to their new leaders."""
        before = self.schedule.snapshot
        if before is not None:
            for lane in self.lanes.values():
                lane.forget_recreated(before, snapshot)
        self.schedule.follow(snapshot, now_ms)

    # --- batches that come back -----------------------------------------------------------------------------

    def reenqueue(self, batch: ProducerBatch, *, retry_at_ms: float, now_ms: float) -> None:
        """Put a batch back where it was, to be sent again at ``retry_at_ms`` or later."""
        batch.retry_at_ms = retry_at_ms
        batch.queue.insert(batch)
        self.schedule.touch(batch.queue, now_ms)

    def replace(self, batch: ProducerBatch, pieces: Iterable[ProducerBatch], now_ms: float) -> None:
        """Put the pieces of a split batch where it was (Kafka: ``splitAndReenqueue``)."""
        self.incomplete.remove(batch)
        for piece in pieces:
            self.incomplete.add_piece(piece)
            batch.queue.insert(piece)
        self.schedule.touch(batch.queue, now_ms)

    # --- flush, exhaustion, close ---------------------------------------------------------------------------

    def expedite(self, topic: str, lane: int, now_ms: float) -> None:
        """End linger for the present records of one topic (a FLUSH of one stream). The cost grows with the partitions
        used since the last flush.
        """
        for queue in self.lanes[lane].opened.pop(topic, ()):
            if not queue.batches:
                continue
            batch = queue.batches[-1]
            if batch.state is _OPEN and not batch.expedited:
                batch.expedited = True
                self.schedule.touch(queue, now_ms)

    def touch_all(self, lane: int, now_ms: float) -> None:
        """Touch all partitions of a lane, as something they wait for has changed (a producer id has come)."""
        for queue in self.lanes.get(lane, ()):  # a transactional one may have been closed since
            if queue.batches or queue.express:
                self.schedule.touch(queue, now_ms)

    def batches_of(self, topic: str, partitions: Iterable[int] | None = None) -> list[ProducerBatch]:
        """Batches that wait in the queues of a topic, in all lanes, without those on the wire."""
        found: list[ProducerBatch] = []
        for lane in self.lanes.values():
            queues = lane.of(topic)
            for partition in queues.keys() if partitions is None else partitions:
                if partition in queues:
                    found.extend(queues[partition].batches)
                    found.extend(queues[partition].express)
        return found
