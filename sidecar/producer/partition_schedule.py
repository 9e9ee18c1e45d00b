"""PartitionSchedule: decides which batch of each partition is next (rule S4), when it is due (rule A4), and where its
queue waits until then.

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
from sidecar.producer.lanes import NO_SEQUENCE
from sidecar.producer.partition_queue import PartitionQueue
from sidecar.producer.partition_timers import PartitionTimers
from sidecar.producer.producer_batch import NO_DESCRIPTOR, NOT_DRAINED, ProducerBatch

if TYPE_CHECKING:
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.partition_sequences import PartitionSequences
    from sidecar.producer.producer_id import ProducerIds

FULL_MS: Final = 1_000.0
"""For this time after a topic's last full batch its small batches wait behind the backlog of others."""
BATCHES_REMEMBERED: Final = 5
"""How many batches per producer id and partition a broker can recognise
(ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
"""
_OPEN: Final = BatchState.OPEN
_QUEUED: Final = BatchState.QUEUED
"""Cached: reading an enum member through its class costs as much as a call, and these are compared for each batch."""


class PartitionSchedule:
    """Sans-IO. Single-threaded: the worker's loop. Call :meth:`touch` after each change to a queue's next batch."""

    def __init__(self, ids: ProducerIds, *, in_flight_max: int) -> None:
        """``in_flight_max``: limit of unanswered requests on one connection."""
        self._ids = ids
        self._in_flight_max = in_flight_max
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
        batch = self.next_batch(queue, now_ms) if queue.batches or queue.express else None
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

    def next_batch(self, queue: PartitionQueue, now_ms: float) -> ProducerBatch | None:
        """The next batch of a partition that has some, or None while the partition must wait.

        With sequences, retries go one at a time, oldest first, and no new batch passes them: a failed first batch
        holds those behind it. The caller checks whether the batch is due (linger, backoff). The only side effect is to
        note that a producer id is wanted.
        """
        if queue.behind is not None or (queue.settings.is_paused and queue.rests):
            return None
        sequences = queue.sequences
        if sequences is None:
            # As Kafka's muted partitions: with one request in flight, order is kept without sequences. The same holds
            # for a queue with a follower: when its records were accepted, max.in.flight may have been 1.
            is_held = queue.wire_count and (self._in_flight_max == 1 or queue.follower is not None)
            return None if is_held else queue.head
        ids, in_flight = self._ids, sequences.in_flight
        if in_flight:
            first = in_flight[0]
            if first.state is _QUEUED:
                return _doubtful(sequences) if sequences.renumber else first
            if first.attempts:
                return None
        # The same as queue.head, inlined: it runs for each batch.
        head, batches = None, queue.batches
        if queue.express and (
            not batches or (batches[0].order == NOT_DRAINED and not queue.is_passed_enough)
        ):
            head = queue.express[0]
        elif batches:
            head = batches[0]
        if sequences.renumber or sequences.unresolved or head is None:
            return None
        if ids.identity.producer_id < 0:
            ids.is_wanted = True
            return None
        if head.base_sequence != NO_SEQUENCE:
            return None
        if in_flight and (
            len(in_flight) >= self._in_flight_max
            or sequences.next_serial - in_flight[0].serial >= BATCHES_REMEMBERED
            # A broker accepts an id that is new on the partition at any sequence. If it refused the first batch (for
            # instance with NOT_ENOUGH_REPLICAS), it would append the second before it. So the first batch goes alone,
            # the next one after a time without answers goes alone, and so does each batch of old records.
            or now_ms >= sequences.known_until_ms
            or in_flight[-1].goes_alone
            # If the answer of the batch before it were lost, this batch would make the broker forget that one too.
            or ids.may_be_forgotten(head)
        ):
            return None
        if sequences.identity != ids.identity and (in_flight or queue.wire_count):
            return None
        return head

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
            batch = self.next_batch(queue, now_ms) if queue.batches or queue.express else None
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


def _doubtful(sequences: PartitionSequences) -> ProducerBatch | None:
    """The first batch in doubt, to be sent again before a renumbering to learn its fate.

    A recreated topic accepts any first sequence. So refused batches before the one in doubt go there first,
    unchanged and once each; otherwise they would be out of order for good. The old log refuses them again.
    """
    refused: ProducerBatch | None = None
    for batch in sequences.in_flight:
        if batch.state is not _QUEUED:
            return None
        if batch.has_open_doubt:
            return refused or batch
        if refused is None and batch.recreations != sequences.recreations:
            refused = batch
    return None
