"""BatchDrain: takes the batches of one request from the queues of a broker's partitions (rule A5)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from sidecar.common.model import broker_of
from sidecar.producer.partition_schedule import QUICK
from sidecar.producer.producer_batch import NO_DESCRIPTOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.producer.incomplete_batches import IncompleteBatches
    from sidecar.producer.lane_queues import LaneQueues
    from sidecar.producer.partition_queue import Line
    from sidecar.producer.partition_schedule import PartitionSchedule
    from sidecar.producer.producer_batch import ProducerBatch


class BatchDrain:
    """Single-threaded: the worker's loop. BrokerDrain asks it once for each request."""

    __slots__ = ("_incomplete", "_lanes", "_schedule", "_small_first", "held_back_bytes")

    def __init__(
        self, lanes: Sequence[LaneQueues], schedule: PartitionSchedule, incomplete: IncompleteBatches
    ) -> None:
        self._lanes = lanes
        self._schedule = schedule
        self._incomplete = incomplete
        self.held_back_bytes = 0
        """The size in bytes of the first batch, if it was too large for the last request; 0 if it was not."""
        self._small_first: dict[int, bool] = {}
        """By connection: whether its last request of both kinds began with small batches."""

    def take(
        self,
        node_id: int,
        lane: int,
        max_bytes: float,
        now_ms: float,
        *,
        single_bytes: float = inf,
        new_batches: float = inf,
        quick: bool | None = None,
    ) -> list[ProducerBatch]:
        """Drain at most one batch per partition and ``max_bytes`` in all, beginning where the last drain stopped (rule
        A5). All are of topics with the same acks, as a request has only one. The batches count as on the wire from
        here on.

        A request also takes batches for the same broker that only linger, as Kafka's ``drainBatchesForOneNode`` does.
        Otherwise each partition would send its own request when its linger ends. It does not take them when a batch is
        sent because it is full: under such load the others soon fill up, and are sent as large ones. Topics that
        linger longer than any due one stay.

        - ``single_bytes``: a single batch may exceed ``max_bytes`` up to this; a larger one is held back, and
          :attr:`held_back_bytes` is its size
        - ``new_batches``: how many of them may have no descriptor yet; batches with a descriptor are sent even at 0,
          as only their answers free one
        - ``quick``: True for only quick partitions, False for only the others
        """
        self.held_back_bytes = 0
        batches: list[ProducerBatch] = []
        limits = (max_bytes, single_bytes)
        size = 0
        schedule = self._schedule
        ready = schedule.ready.get(node_id)
        if ready is None:
            return batches
        kinds: tuple[Line, ...] = (ready[lane], ready[QUICK + lane])
        if quick is not None:
            kinds = (kinds[quick],)
        elif all(kinds):
            # They take turns to be first: topics with other acks wait for the next request.
            is_small_first = self._small_first[node_id] = not self._small_first.get(node_id, True)
            kinds = kinds[::-1] if is_small_first else kinds
        for line in kinds:
            if line and not self.held_back_bytes:
                size, new_batches = self._take(line, batches, size, limits, new_batches, now_ms)
        if new_batches <= 0:
            again = schedule.again.get(node_id)
            if again is not None and again[lane]:
                size, new_batches = self._take(again[lane], batches, size, limits, new_batches, now_ms)
        if not batches:
            return batches
        along = schedule.lingering.get(node_id)
        if (
            along is not None
            and along[lane]
            and size < max_bytes
            and not any(batch.full for batch in batches)
        ):
            longest_ms = max(batch.queue.settings.linger_ms for batch in batches)
            self._take(along[lane], batches, size, limits, new_batches, now_ms, longest_ms)
        ids = self._lanes[lane].ids
        if ids is not None:
            ids.number(batches)
        broker = broker_of(node_id)
        for batch in batches:
            self._incomplete.sent_to(batch, broker)
            queue = batch.queue
            queue.link_id = node_id
            if queue.batches or queue.express:
                schedule.touch(queue, now_ms)  # the rest of the partition goes to the end of its ready queue
        return batches

    def _take(
        self,
        line: Line,
        batches: list[ProducerBatch],
        size: int,
        limits: tuple[float, float],
        new_batches: float,
        now_ms: float,
        longest_linger_ms: float | None = None,
    ) -> tuple[int, float]:
        """Move batches that may be sent from the head of ``line`` to ``batches``. Returns (the bytes of all of these,
        how many ``new_batches`` are left). ``limits``: bytes of all, and of a single batch.

        ``longest_linger_ms``: the partitions linger, and those whose topics linger longer stay; None: the partitions
        are due.
        """
        schedule = self._schedule
        max_bytes, single_bytes = limits
        for _ in range(len(line)):
            queue = next(iter(line))
            batch = schedule.next_batch(queue, now_ms) if queue.batches or queue.express else None
            goes_at_ms = inf
            if batch is not None:
                if batch.expedited or longest_linger_ms is not None:
                    goes_at_ms = batch.retry_at_ms
                else:
                    goes_at_ms = schedule.due_ms(batch)
            if batch is None or goes_at_ms > now_ms:
                schedule.touch(queue, now_ms)
                continue
            if (batches and queue.settings.acks != batches[0].queue.settings.acks) or (
                longest_linger_ms is not None and queue.settings.linger_ms > longest_linger_ms
            ):
                line.move_to_end(queue)
                continue
            batch_bytes = batch.records.size_bytes
            is_new = batch.descriptor == NO_DESCRIPTOR
            if is_new and new_batches <= 0:
                break
            if size + batch_bytes > max_bytes and (batches or batch_bytes > single_bytes):
                if not batches:
                    self.held_back_bytes = batch_bytes
                break
            queue.pop(batch)
            new_batches -= is_new
            size += batch_bytes
            batches.append(batch)
        return size, new_batches
