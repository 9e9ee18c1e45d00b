"""PartitionQueue: all that waits for one partition in one lane, and what the sender must know to send it."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from sidecar.producer.batch_states import CLOSED, DRAINED, QUEUED, BatchEvent
from sidecar.producer.lanes import ACKS_ALL, IDEMPOTENT_LANE, NO_SEQUENCE, SEQUENCE_MASK
from sidecar.producer.partition_sequences import PartitionSequences
from sidecar.producer.producer_batch import IN_DEQUE, NOT_DRAINED

if TYPE_CHECKING:
    from sidecar.kernel import StickyPartitioner
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.topic_settings import TopicSettings

_HALF: Final = 1 << 30
ADOPTED_ORDERS: Final = 1 << 32
"""Between the orders of two batches of a dead worker: more than there are records between them."""
PASSES_MAX: Final = 4
"""Express batches that pass one batch of the backlog. Then it goes: many quiet clients would else keep it here until it
runs out of time."""
Line = OrderedDict["PartitionQueue", None]
"""Partitions with a batch that may be sent now, longest waiting first; removal from the middle is O(1)."""


class PartitionQueue:
    """All that waits of one (lane, topic, partition).

    ``batches`` has those that were drained before, in their order, and behind them those that never were, in the order
    the records were accepted. ``express`` has batches that were never drained either, and that pass these: their
    clients have nothing in ``batches``. A sequence is given at the first drain, so nobody sees who passed whom.

    ``wire_count`` counts batches that are prepared or sent and whose request has not ended, among them
    batches that have expired meanwhile: completing a batch does not call bytes back from a socket.
    ``load`` counts what waits in batches of batch.size: the sum of the loads of the deque's. ``partitioner`` hears of
    each change when the choice of partitions follows it. ``line`` is the line the partition stands in (a broker's, or
    that of partitions without a leader); ``again`` is the broker's index of those in it whose next batch has its
    descriptor already.
    """

    __slots__ = (
        "again",
        "batches",
        "behind",
        "express",
        "follower",
        "has_adopted",
        "has_descriptor",
        "is_quick",
        "lane",
        "last_to_pass",
        "line",
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
        "wire_count",
    )

    def __init__(self, topic: str, partition: int, lane: int, settings: TopicSettings) -> None:
        self.topic = topic
        self.partition = partition
        self.lane = lane
        self.settings = settings
        self.partitioner: StickyPartitioner | None = None
        self.load = 0
        self.batches: deque[ProducerBatch] = deque()
        self.express: deque[ProducerBatch] = deque()
        self.sequences = PartitionSequences() if lane == IDEMPOTENT_LANE else None
        self.behind: PartitionQueue | None = None
        """The partition's queue in another lane, whose batches go first: acks was changed with a backlog."""
        self.follower: PartitionQueue | None = None
        """The one that is behind this one."""
        self.next_order = 0
        """For the next batch that is drained for the first time."""
        self.passes = 0
        """Express batches that have passed the first one of the backlog."""
        self.last_to_pass: ProducerBatch | None = None
        """The last express batch that was here when there were enough of these: records in it may be from before those
        of the backlog's first batch, which takes no more since then."""
        self.has_adopted = False
        """Some of this was sent by a worker that is dead, and nothing was renumbered since."""
        self.wire_count = 0
        self.line: Line | None = None
        self.again: Line | None = None
        self.has_descriptor = False
        """Its next batch was sent before: it needs no descriptor to be sent again."""
        self.is_quick = False
        """Its next batch is small and new, or express: it need not stand behind those of a backlog."""
        self.lingers = False
        """Its place is, or will be once it has a leader, among what only goes along."""
        self.link_id = 0
        """Where its last batch went: a broker's id, or that of the second connection to it."""
        self.timer_due_ms = 0.0
        self.timer_serial = 0
        """The one valid entry of the timer heap; 0 = none. Stale entries are skipped when they come up."""

    def insert(self, batch: ProducerBatch) -> None:
        """Put a batch back where its records belong (Kafka's ``insertInSequenceOrder``)."""
        batch.state = QUEUED.get(batch.state) or batch.refuse(BatchEvent.QUEUE)
        self.load += batch.load
        if self.partitioner is not None:
            self.partitioner.set_queue_length(self.partition, self.load)
        self._put_in_order(batch)

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

    def drain(self, batch: ProducerBatch) -> None:
        """The batch goes into a request: out of the deque, and the partition out of its line."""
        batch.state = DRAINED.get(batch.state) or batch.refuse(BatchEvent.DRAIN)
        self.remove(batch)
        if batch.order == NOT_DRAINED:
            batch.order = self.next_order
            self.next_order += batch.records.count
            if batch.is_express and self.batches:
                self._passed(self.batches[0])
        self.wire_count += 1
        self.timer_serial = 0
        if self.again is not None:
            self.leave_line()
        elif self.line is not None:
            del self.line[self]
            self.line = None

    def remove(self, batch: ProducerBatch) -> None:
        """Out of the deque: the batch is drained, or its fate decided."""
        self.load -= batch.load
        if self.partitioner is not None:
            self.partitioner.set_queue_length(self.partition, self.load)
        batches = self.batches
        if batch.order == NOT_DRAINED:
            if batch.is_express:
                batches = self.express
            else:
                self.passes, self.last_to_pass = 0, None
        if batches[0] is batch:
            batches.popleft()
        else:
            batches.remove(batch)

    def _passed(self, first: ProducerBatch) -> None:
        """An express batch went before the backlog's ``first`` one."""
        self.passes += 1
        if self.passes == PASSES_MAX:
            if first.state in CLOSED:
                first.close()
            self.last_to_pass = self.express[-1] if self.express else None

    @property
    def is_passed_enough(self) -> bool:
        """It is the turn of the backlog's first batch: all that came to express before its last record has gone."""
        last = self.last_to_pass
        return self.passes >= PASSES_MAX and (
            last is None or last.order != NOT_DRAINED or last.state not in IN_DEQUE
        )

    @property
    def head(self) -> ProducerBatch | None:
        """The next one: drained before, then express, then the others; or one of these that was passed enough."""
        batches = self.batches
        if self.express and (not batches or (batches[0].order == NOT_DRAINED and not self.is_passed_enough)):
            return self.express[0]
        return batches[0] if batches else None

    @property
    def acks(self) -> int:
        """As its requests have it. Numbers are settled by answers, also where the topic's acks is another by now."""
        return ACKS_ALL if self.lane == IDEMPOTENT_LANE else self.settings.acks

    @property
    def rests(self) -> bool:
        """Nothing here was in a request: that is what a pause of the topic holds."""
        return not self.batches or self.batches[0].order == NOT_DRAINED

    def place_behind_a_gap(self, batch: ProducerBatch) -> bool:
        """Before a dead worker's ``batch`` is placed: what its journal has of the same chain before it, without a
        number, was drained before it, and refused. It gets its order. True if there is any."""
        waiting = self.express if batch.is_express else self.batches
        left = [each for each in waiting if each.order == NOT_DRAINED]
        order = batch.order - sum(each.records.count for each in left)
        for each in left:
            if each.state in CLOSED:
                each.close()
            if each.is_express:
                self.express.popleft()
            each.order = order
            order += each.records.count
            if each.is_express:
                self._put_in_order(each)
        return bool(left)

    def begin_again(self) -> None:
        """All numbers were taken back, so no broker has anything of what waits. What a dead worker sent in bulk goes
        behind express records, as if never sent: some of these may be from before it, of its client, and refused."""
        if self.has_adopted:
            self.has_adopted = False
            for each in self.batches:
                if not each.is_express:
                    each.order = NOT_DRAINED
            self.batches = deque(sorted(self.batches, key=lambda each: each.order))

    def leave_line(self) -> None:
        if self.line is not None:
            del self.line[self]
            self.line = None
            if self.again is not None:
                del self.again[self]
                self.again = None

    def waiting_for(self) -> str:
        """For error texts: why a batch that was never sent is still here."""
        sequences = self.sequences
        if sequences is not None and (sequences.unresolved or sequences.renumber):
            return "not sent, behind an earlier batch of the partition whose fate is not known yet"
        if self.wire_count:
            return "not sent, behind earlier batches of the partition"
        return "not sent, waiting for the partition's leader to take it"

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}-{self.partition} lane={self.lane} batches={len(self.batches)}>"


def give_orders(batches: list[ProducerBatch]) -> None:
    """To those that a dead worker sent for one partition: as it numbered them. Where it did not, express ones go first:
    a client that has records in both chains sent those earlier."""
    first = batches[0].base_sequence

    def place(each: ProducerBatch) -> int:
        if each.base_sequence == NO_SEQUENCE:
            return not each.is_express
        return (each.base_sequence - first + _HALF) & SEQUENCE_MASK

    ranked = sorted(batches, key=place)
    for rank, batch in enumerate(ranked, 1):
        batch.order = rank * ADOPTED_ORDERS
