"""PartitionQueue: the batches that wait for one partition in one lane, and the state by which they are sent."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from sidecar.producer.batch_states import AFTER_CLOSE, AFTER_DRAIN, AFTER_QUEUE, BatchEvent
from sidecar.producer.lanes import ACKS_ALL, NO_SEQUENCE, SEQUENCE_MASK, TRANSACTIONAL
from sidecar.producer.partition_sequences import PartitionSequences
from sidecar.producer.producer_batch import IN_DEQUE, NOT_DRAINED

if TYPE_CHECKING:
    from sidecar.kernel import StickyPartitioner
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.topic_settings import TopicSettings
    from sidecar.producer.transaction_manager import TransactionManager

_HALF: Final = 1 << 30
ADOPTED_ORDERS: Final = 1 << 32
"""Distance between the orders of two batches of a dead worker: more than the records between them."""
PASSES_MAX: Final = 4
"""Number of express batches that may pass one batch of the backlog. Without this limit, many quiet clients could keep
it waiting until it expires.
"""
WaitList = OrderedDict["PartitionQueue", None]
"""Partitions with a batch that may be sent now, longest waiting first. Removal from the middle is O(1)."""


class PartitionQueue:
    """The waiting batches of one (lane, topic, partition). Single-threaded: the worker's loop.

    ``batches`` holds batches that were drained before, in their order, and after them those that never were, in the
    order in which their records were accepted. ``express`` holds batches that were never drained and that pass the
    others: their clients have nothing in ``batches``. Sequences are given at the first drain, so this leaves no gap.

    ``wire_count`` counts batches that are prepared or sent and whose request has not ended. Batches that expired on
    the wire are included: completing a batch does not recall bytes from a socket.

    ``load`` is the amount waiting, in units of batch.size. ``partitioner`` is informed of each change if the choice of
    partitions depends on it. ``wait_list`` is the list in which the partition waits (of a broker, or of partitions
    without a leader). ``again`` is the broker's index of partitions in ``wait_list`` whose next batch has a descriptor.
    """

    __slots__ = (
        "again",
        "batches",
        "express",
        "follower",
        "has_adopted",
        "has_descriptor",
        "is_forgotten",
        "is_quick",
        "lane",
        "last_to_pass",
        "leader_id",
        "leader_serial",
        "lingers",
        "link_id",
        "load",
        "next_order",
        "partition",
        "partitioner",
        "passes",
        "sequences",
        "settings",
        "timer_due_ms",
        "timer_serial",
        "topic",
        "transaction",
        "turn",
        "wait_list",
        "waits_for",
        "wire_count",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        lane: int,
        settings: TopicSettings,
        sequences: PartitionSequences | None = None,
        transaction: TransactionManager | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.lane = lane
        self.turn = min(lane, TRANSACTIONAL)
        """Index of its wait lists at a broker."""
        self.settings = settings
        self.partitioner: StickyPartitioner | None = None
        self.load = 0
        self.batches: deque[ProducerBatch] = deque()
        self.express: deque[ProducerBatch] = deque()
        self.sequences = sequences
        """None in a lane without a producer id."""
        self.transaction = transaction
        """None outside of transactional lanes."""
        self.waits_for: PartitionQueue | None = None
        """The partition's queue in another lane, whose batches go first: acks was changed while there was a backlog."""
        self.follower: PartitionQueue | None = None
        """The queue of the partition that waits for this one."""
        self.next_order = 1
        """Order of the next batch that is drained for the first time."""
        self.passes = 0
        """Number of express batches that have passed the first batch of the backlog."""
        self.last_to_pass: ProducerBatch | None = None
        """The last express batch that waited when ``passes`` reached its limit. Its records may be older than those of
        the backlog's first batch, which is closed from then on.
        """
        self.has_adopted = False
        """A dead worker sent some of these batches, and none was renumbered since."""
        self.wire_count = 0
        self.leader_id = -1
        """Its leader in the snapshot with this serial; -1 for none. See PartitionSchedule."""
        self.leader_serial = 0
        self.wait_list: WaitList | None = None
        self.again: WaitList | None = None
        self.has_descriptor = False
        """Its next batch was sent before, so it needs no new descriptor."""
        self.is_quick = False
        """Its next batch is small and new, or express: it need not wait until a backlog is sent."""
        self.lingers = False
        """It belongs into the list of lingering partitions, as soon as it has a leader."""
        self.link_id = 0
        """The connection that its last batch used: a broker's id, or that of the second connection to it."""
        self.is_forgotten = False
        """Its topic was forgotten and has had no records since. It is dropped when nothing of it is under way."""
        self.timer_due_ms = 0.0
        self.timer_serial = 0
        """Serial of the one valid entry in the timer heap; 0 if there is none. Stale entries are skipped when they
        come up.
        """

    # --- batches in and out ---------------------------------------------------------------------------------

    def grown(self, batch: ProducerBatch, limit_bytes: int, has_more: bool) -> bool:
        """Note that the open batch took records. True if it may be sent since then, as it is full.

        It is full from batch.size on, and takes more records up to ``limit_bytes``. ``has_more``: it did not take all,
        so it is closed.
        """
        size_bytes, full_bytes = batch.records.size_bytes, self.settings.batch_size
        load = -(-size_bytes // full_bytes)
        if load != batch.load:
            self.load += load - batch.load
            batch.load = load
            if self.partitioner is not None:
                self.partitioner.set_queue_length(self.partition, self.load)
        if has_more or size_bytes >= limit_bytes:
            batch.close()
        if batch.full or (size_bytes < full_bytes and not has_more):
            return False
        batch.full = True
        return True

    def pop(self, batch: ProducerBatch) -> None:
        """Take a batch out of its deque for a request, and the partition out of its wait list and its timer.

        A batch that goes for the first time gets its order.
        """
        batch.state = AFTER_DRAIN.get(batch.state) or batch.refuse(BatchEvent.DRAIN)
        is_first_time = batch.order == NOT_DRAINED
        waiting = self.express if is_first_time and batch.is_express else self.batches
        if waiting[0] is batch:
            waiting.popleft()
        else:
            waiting.remove(batch)
        if is_first_time:
            batch.order = self.next_order
            self.next_order += batch.records.count
            if batch.is_express or self.passes:
                self.note_pass(batch)
        # As _add_load and leave_wait_list, whose calls would cost each batch.
        self.load -= batch.load
        if self.partitioner is not None:
            self.partitioner.set_queue_length(self.partition, self.load)
        self.wire_count += 1
        self.timer_serial = 0
        if self.wait_list is not None:
            del self.wait_list[self]
            self.wait_list = None
            if self.again is not None:
                del self.again[self]
                self.again = None

    def insert(self, batch: ProducerBatch) -> None:
        """Put a batch back in order (Kafka's ``insertInSequenceOrder``)."""
        batch.state = AFTER_QUEUE.get(batch.state) or batch.refuse(BatchEvent.QUEUE)
        self._add_load(batch.load)
        self._put_in_order(batch)

    def _add_load(self, load: int) -> None:
        self.load += load
        if self.partitioner is not None:
            self.partitioner.set_queue_length(self.partition, self.load)

    def _put_in_order(self, batch: ProducerBatch) -> None:
        batches = self.batches
        if not batches or batch.order < batches[0].order:
            batches.appendleft(batch)
            return
        for index, other in enumerate(batches):
            if batch.order < other.order:
                batches.insert(index, batch)
                return
        batches.append(batch)

    def remove(self, batch: ProducerBatch) -> None:
        """Take a batch out of its deque whose outcome is decided while it waits."""
        self._add_load(-batch.load)
        if batch.order != NOT_DRAINED:
            self.batches.remove(batch)
        elif batch.is_express:
            self.express.remove(batch)
        else:
            self.passes, self.last_to_pass = 0, None
            self.batches.remove(batch)

    def note_pass(self, batch: ProducerBatch) -> None:
        """Count an express batch that was drained and passed the backlog's first batch, or begin again after a batch of
        the backlog.
        """
        if not batch.is_express:
            self.passes, self.last_to_pass = 0, None
            return
        if not self.batches:
            return
        first = self.batches[0]
        self.passes += 1
        if self.passes == PASSES_MAX:
            if first.state in AFTER_CLOSE:
                first.close()
            self.last_to_pass = self.express[-1] if self.express else None

    @property
    def is_passed_enough(self) -> bool:
        """The backlog's first batch goes next: all express batches that came before its last record have gone."""
        last = self.last_to_pass
        return self.passes >= PASSES_MAX and (
            last is None or last.order != NOT_DRAINED or last.state not in IN_DEQUE
        )

    @property
    def head(self) -> ProducerBatch | None:
        """The batch to send next: drained ones first, then express, then the others. A batch of the backlog that was
        passed often enough goes before express ones.
        """
        batches = self.batches
        if self.express and (not batches or (batches[0].order == NOT_DRAINED and not self.is_passed_enough)):
            return self.express[0]
        return batches[0] if batches else None

    @property
    def acks(self) -> int:
        """acks of its requests. A lane with sequences always uses acks=all, because only answers settle sequences; the
        topic's own acks may have changed since.
        """
        return self.settings.acks if self.sequences is None else ACKS_ALL

    @property
    def rests(self) -> bool:
        """No batch here was ever in a request. Only such batches are held when the topic is paused."""
        return not self.batches or self.batches[0].order == NOT_DRAINED

    def order_after_gap(self, batch: ProducerBatch) -> bool:
        """Give orders to the batches that a dead worker drained before ``batch``. True if there are any.

        These are batches that precede it in the journal of the same chain and have no number: they were drained before
        it and refused. Call before ``batch`` is inserted.
        """
        waiting = self.express if batch.is_express else self.batches
        left = [each for each in waiting if each.order == NOT_DRAINED]
        order = batch.order - sum(each.records.count for each in left)
        for each in left:
            if each.state in AFTER_CLOSE:
                each.close()
            if each.is_express:
                self.express.popleft()
            each.order = order
            order += each.records.count
            if each.is_express:
                self._put_in_order(each)
        return bool(left)

    def begin_again(self) -> None:
        """Reset the order after all sequences were withdrawn, so no broker has any of the waiting batches.

        Bulk batches of a dead worker go after express ones, as if never sent: an express batch may hold earlier,
        refused records of the same client.
        """
        if self.has_adopted:
            self.has_adopted = False
            for each in self.batches:
                if not each.is_express:
                    each.order = NOT_DRAINED
            self.batches = deque(sorted(self.batches, key=lambda each: each.order))

    def leave_wait_list(self) -> None:
        if self.wait_list is not None:
            del self.wait_list[self]
            self.wait_list = None
            if self.again is not None:
                del self.again[self]
                self.again = None

    @property
    def is_unused(self) -> bool:
        """Whether it has no batch, in its deques or on the wire, and nothing else refers to it."""
        return not (
            self.batches
            or self.express
            or self.wire_count
            or self.timer_serial
            or self.wait_list is not None
            or self.waits_for is not None
            or self.follower is not None
        )

    def waiting_for(self) -> str:
        """Why a batch that was never sent is still here, as part of an error text."""
        if self.settings.is_paused:
            return "not sent, as an operator has paused the topic (`kafka-sidecar resume` lets it continue)"
        sequences = self.sequences
        if sequences is not None and (sequences.unresolved or sequences.renumber):
            return "not sent, as the outcome of an earlier batch of the partition is not known yet"
        if self.wire_count:
            return "not sent, as earlier batches of the partition go first"
        return "not sent, waiting for the partition's leader to take it"

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}-{self.partition} lane={self.lane} batches={len(self.batches)}>"


def give_orders(batches: list[ProducerBatch]) -> None:
    """Set the order of batches that a dead worker sent for one partition, by the sequences that it gave them.

    Among batches without a sequence, express ones go first: a client with records in both chains sent those earlier.
    """
    first = batches[0].base_sequence

    def rank(each: ProducerBatch) -> int:
        if each.base_sequence == NO_SEQUENCE:
            return not each.is_express
        return (each.base_sequence - first + _HALF) & SEQUENCE_MASK

    ranked = sorted(batches, key=rank)
    for position, batch in enumerate(ranked, 1):
        batch.order = position * ADOPTED_ORDERS
