"""BatchDrain: takes the batches of one request from the queues of a broker's partitions (rule A5)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from sidecar.common.model import broker_of
from sidecar.producer.partition_schedule import QUICK
from sidecar.producer.producer_batch import NO_DESCRIPTOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sidecar.producer.incomplete_batches import IncompleteBatches
    from sidecar.producer.lane_queues import LaneQueues
    from sidecar.producer.partition_queue import PartitionQueue, WaitList
    from sidecar.producer.partition_schedule import PartitionSchedule
    from sidecar.producer.producer_batch import ProducerBatch


class Budget:
    """What one request may take, and what it has taken so far.

    - ``max_bytes``: of all its batches
    - ``single_bytes``: the first batch may exceed ``max_bytes`` up to this; a larger one is held back
    - ``new_batches``: how many of them may have no descriptor yet; batches with a descriptor are sent even at 0, as
      only their answers free one
    """

    __slots__ = ("held_back_bytes", "max_bytes", "new_batches", "single_bytes", "size_bytes")

    def __init__(self, max_bytes: float, single_bytes: float = inf, new_batches: float = inf) -> None:
        self.max_bytes = max_bytes
        self.single_bytes = single_bytes
        self.new_batches = new_batches
        """How many are left."""
        self.size_bytes = 0
        """The bytes of all batches so far."""
        self.held_back_bytes = 0
        """The size in bytes of the first batch, if it was too large; 0 if it was not."""

    def spend(self, batch: ProducerBatch) -> bool:
        """Count the batch in. False, with nothing spent, if the request may not take it."""
        batch_bytes = batch.records.size_bytes
        is_new = batch.descriptor == NO_DESCRIPTOR
        if is_new and self.new_batches <= 0:
            return False
        is_first = not self.size_bytes
        size_bytes = self.size_bytes + batch_bytes
        if size_bytes > self.max_bytes and not (is_first and batch_bytes <= self.single_bytes):
            if is_first:
                self.held_back_bytes = batch_bytes
            return False
        self.new_batches -= is_new
        self.size_bytes = size_bytes
        return True


class BatchDrain:
    """Single-threaded: the worker's loop. BrokerDrain asks it once for each request."""

    __slots__ = ("_incomplete", "_lanes", "_schedule", "_small_first")

    def __init__(
        self, lanes: Mapping[int, LaneQueues], schedule: PartitionSchedule, incomplete: IncompleteBatches
    ) -> None:
        self._lanes = lanes
        self._schedule = schedule
        self._incomplete = incomplete
        self._small_first: dict[int, bool] = {}
        """By connection: whether its last request of both kinds began with small batches."""

    def take(
        self, node_id: int, turn: int, budget: Budget, now_ms: float, quick: bool | None = None
    ) -> list[ProducerBatch]:
        """Drain at most one batch per partition within the budget, beginning where the last drain stopped (rule A5).
        All are of one lane and of topics with the same acks, as a request has only one transactional id and acks. The
        batches count as on the wire from here on.

        ``quick``: True for only quick partitions, False for only the others.
        """
        batches: list[ProducerBatch] = []
        ready = self._schedule.ready.get(node_id)
        if ready is None:
            return batches
        for wait_list in self._due_lists(node_id, ready[turn], ready[QUICK + turn], quick):
            if wait_list and not budget.held_back_bytes:
                self._move(wait_list, batches, budget, now_ms)
        if budget.new_batches <= 0:
            again = self._schedule.again.get(node_id)
            if again is not None and again[turn]:
                self._move(again[turn], batches, budget, now_ms)
        if batches:
            lingering = self._schedule.lingering.get(node_id)
            if lingering is not None and lingering[turn]:
                self._fill_up(lingering[turn], batches, budget, now_ms)
            self._count_as_sent(node_id, batches, now_ms)
        return batches

    def _due_lists(
        self, node_id: int, bulk: WaitList, quick: WaitList, wanted: bool | None
    ) -> tuple[WaitList, ...]:
        """The lists to take from, in order. Both kinds take turns to be first: topics with other acks wait for the next
        request.
        """
        if wanted is not None:
            return (quick if wanted else bulk,)
        if bulk and quick:
            is_small_first = self._small_first[node_id] = not self._small_first.get(node_id, True)
            if is_small_first:
                return quick, bulk
        return bulk, quick

    def _move(
        self,
        wait_list: WaitList,
        batches: list[ProducerBatch],
        budget: Budget,
        now_ms: float,
        linger_ms_max: float | None = None,
    ) -> None:
        """Move batches that may be sent from the head of ``wait_list`` to ``batches``.

        ``linger_ms_max``: also those that only linger, but of no topic that lingers longer; None: only those that are
        due.
        """
        schedule = self._schedule
        lane = batches[0].queue.lane if batches else None
        others: Iterator[PartitionQueue] | None = None
        for _ in range(len(wait_list)):
            queue = next(iter(wait_list))
            if queue.lane != lane and lane is not None:
                # Of hundreds of transactional lanes that may wait here, only this one's partitions come along.
                if others is None:
                    others = iter([each for each in self._lanes[lane] if each in wait_list])
                following = next(others, None)
                if following is None:
                    return
                queue = following
            settings = queue.settings
            batch = schedule.next_batch(queue, now_ms) if queue.batches or queue.express else None
            if batch is None or now_ms < (
                schedule.due_ms(batch) if linger_ms_max is None else batch.retry_at_ms
            ):
                schedule.touch(queue, now_ms)
            elif (batches and settings.acks != batches[0].queue.settings.acks) or (
                linger_ms_max is not None and settings.linger_ms > linger_ms_max
            ):
                wait_list.move_to_end(queue)
            elif budget.spend(batch):
                queue.pop(batch)
                batches.append(batch)
                lane = queue.lane
            else:
                break

    def _fill_up(
        self, lingering: WaitList, batches: list[ProducerBatch], budget: Budget, now_ms: float
    ) -> None:
        """Take batches along that only linger, as Kafka's ``drainBatchesForOneNode`` does. Otherwise each partition
        would send its own request when its linger ends.

        None is taken when a batch is sent because it is full: under such load the others soon fill up, and are sent as
        large ones. Topics that linger longer than any due one stay.
        """
        if any(batch.full for batch in batches):
            return
        linger_ms_max = max(batch.queue.settings.linger_ms for batch in batches)
        self._move(lingering, batches, budget, now_ms, linger_ms_max)

    def _count_as_sent(self, node_id: int, batches: list[ProducerBatch], now_ms: float) -> None:
        """Number the batches, and let the rest of their partitions go to the end of their wait lists."""
        ids = self._lanes[batches[0].lane].ids
        if ids is not None:
            ids.number(batches)
        broker, under_way = broker_of(node_id), self._incomplete.under_way
        for batch in batches:
            if batch.drained_to is None:
                under_way[broker] += 1
                batch.drained_to = broker
            elif batch.drained_to != broker:
                self._incomplete.sent_to(batch, broker)
            queue = batch.queue
            queue.link_id = node_id
            if queue.batches or queue.express:
                self._schedule.touch(queue, now_ms)
