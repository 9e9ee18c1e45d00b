"""PartitionSchedule: decides when the next batch of each partition is due, and where its queue waits until then (rule
A4).

A queue is in one place at a time: a timer (it lingers or backs off), the line of its leader, the line of queues
without a leader, or none. In its leader's line it is due, or lingers until a request is sent there anyway. In no place
it has nothing to send. The cost of a call depends on the due queues, not on the number of partitions.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from sidecar.common.model import second_of
from sidecar.producer.batch_states import BatchState
from sidecar.producer.broker_lines import BrokerLines
from sidecar.producer.partition_queue import PartitionQueue
from sidecar.producer.partition_timers import PartitionTimers
from sidecar.producer.producer_batch import NO_DESCRIPTOR, NOT_DRAINED, ProducerBatch

if TYPE_CHECKING:
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.next_batch import NextBatch

FULL_MS: Final = 1_000.0
"""For this time after a topic's last full batch its small batches wait behind the backlog of others."""
_OPEN: Final = BatchState.OPEN
"""Cached: reading an enum member through its class costs as much as a call, and this one is used for each batch."""


class PartitionSchedule:
    """Sans-IO. Single-threaded: the worker's loop. Call :meth:`touch` after each change to a queue's next batch."""

    def __init__(self, next_batch: NextBatch) -> None:
        self.next_batch = next_batch
        self.timers = PartitionTimers()
        self.lines = BrokerLines()
        self.full_ms: dict[str, float] = {}
        """Topic → when it last had a full batch: its small batches soon after that are the rest of its own load."""
        self.is_exhausted = False
        """Whether a client waits for room in the buffer pool."""
        self._backing_off: set[PartitionQueue] = set()
        self._closing = False

    def touch(self, queue: PartitionQueue, now_ms: float) -> None:
        """Move the partition's queue to its present place. Call it after every change of the queue."""
        batch = self.next_batch.of(queue, now_ms) if queue.batches or queue.express else None
        if batch is None:
            queue.timer_serial = 0
            if queue.line is not None:
                queue.leave_line()
            return
        has_descriptor = batch.descriptor != NO_DESCRIPTOR
        if queue.has_descriptor is not has_descriptor:
            queue.has_descriptor = has_descriptor
            queue.leave_line()
        if batch.full:
            self.full_ms[queue.topic] = now_ms
        is_quick = batch.is_express or (
            not batch.full
            and batch.order == NOT_DRAINED
            and self.full_ms.get(queue.topic, -inf) + FULL_MS <= now_ms
        )
        if queue.is_quick is not is_quick:
            queue.is_quick = is_quick
            queue.leave_line()
        # A batch that a flush waits for needs no check: see due_ms.
        due_ms = batch.retry_at_ms if batch.expedited else self.due_ms(batch)
        if due_ms <= now_ms:
            queue.timer_serial = 0
            if queue.line is None or queue.lingers:
                self.lines.place(queue, lingers=False)
            return
        if batch.retry_at_ms > now_ms:
            if queue.line is not None:
                queue.leave_line()
            self._backing_off.add(queue)
        else:
            self.lines.place(queue, lingers=True)
        self.timers.set(queue, due_ms)

    def due_ms(self, batch: ProducerBatch) -> float:
        """The time in ms at which the batch may be sent: rule A4. Kafka: ``RecordAccumulator.batchReady``."""
        if batch.full or batch.expedited or batch.state is not _OPEN or self.is_exhausted or self._closing:
            return batch.retry_at_ms
        lingered_ms = batch.created_ms + batch.queue.settings.linger_ms
        return lingered_ms if lingered_ms > batch.retry_at_ms else batch.retry_at_ms

    def fire_timers(self, now_ms: float) -> None:
        """Place the queues whose linger or backoff is over."""
        for queue in self.timers.take_due(now_ms):
            self._backing_off.discard(queue)
            self.touch(queue, now_ms)

    def follow(self, snapshot: MetadataSnapshot, now_ms: float) -> None:
        """Move all queues to the lines of their leaders in ``snapshot``."""
        self.lines.follow(snapshot)
        self._retry_elsewhere(snapshot, now_ms)

    def _retry_elsewhere(self, snapshot: MetadataSnapshot, now_ms: float) -> None:
        """Send retries at once whose leader has changed (KIP-951)."""
        for queue in list(self._backing_off):
            leader = snapshot.leader(queue.topic, queue.partition)
            batch = self.next_batch.of(queue, now_ms) if queue.batches or queue.express else None
            if batch is None or queue.timer_serial == 0:
                self._backing_off.discard(queue)
            elif batch.retry_at_ms == inf:
                continue  # it waits for its broker's answer
            elif leader is not None and batch.failed_node is not None and leader.id != batch.failed_node:
                batch.retry_at_ms = 0.0
                self._backing_off.discard(queue)
                self.touch(queue, now_ms)

    def has_next_with_descriptor(self, broker: int) -> bool:
        """Whether the next batch of one of the broker's partitions has a descriptor; it is sent now or when its
        backoff ends.
        """
        lines = self.lines
        if any(lines.again.get(broker, ())) or any(lines.again.get(second_of(broker), ())):
            return True
        assert lines.snapshot is not None
        for queue in self._backing_off:
            if queue.has_descriptor and queue.timer_serial:
                leader = lines.snapshot.leader(queue.topic, queue.partition)
                if leader is not None and leader.id == broker:
                    return True
        return False

    def set_exhausted(self, exhausted: bool, now_ms: float) -> None:
        """Set whether a client waits for the buffer pool; while one does, nothing lingers (rule A4)."""
        if exhausted and not self.is_exhausted:
            self.is_exhausted = True
            self._touch_lingering(now_ms)
        self.is_exhausted = exhausted

    def begin_close(self, now_ms: float) -> None:
        """Stop lingering from now on; records appended later are sent as well (rule S2)."""
        self._closing = True
        self._touch_lingering(now_ms)

    def _touch_lingering(self, now_ms: float) -> None:
        for queue in self.timers.waiting():
            self.touch(queue, now_ms)
