"""Ranges: the batches named by a dead owner's descriptors, with the records that the journal still has of each.

Adoption calls it, before the worker's first turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sidecar.common.condition import WaitCause
from sidecar.kernel import BatchRecords
from sidecar.producer.batch_states import BatchState
from sidecar.producer.partition_queue import give_orders
from sidecar.producer.producer_batch import NO_DESCRIPTOR, ProducerBatch
from sidecar.shm.descriptor_states import DescriptorEvent, DescriptorState
from sidecar.shm.descriptors import WAS_IN_DOUBT, WHOLE_IN_DOUBT

if TYPE_CHECKING:
    from sidecar.kernel import Chain, RecordBlock
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.shm.chain_table import ChainName
    from sidecar.shm.descriptors import Descriptor
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.streams.topic_queue import TopicQueue
    from sidecar.worker.topics.topics import Topics

log = logging.getLogger(__name__)

_UNBOUNDED: Final = 0x7FFFFFFF


class Range:
    """The records of one descriptor, collected entry by entry."""

    __slots__ = ("batch", "descriptor")

    def __init__(self, descriptor: Descriptor, batch: ProducerBatch) -> None:
        self.descriptor = descriptor
        self.batch = batch

    @property
    def is_sent(self) -> bool:
        return self.descriptor.state == DescriptorState.SENT_UNDER


class Ranges:
    """All ranges of one adoption, by chain and partition."""

    def __init__(self, memory: SlotMemory, accumulator: RecordAccumulator, topics: Topics) -> None:
        self._slot = memory.index
        self._descriptors = memory.descriptors
        self._chain_table = memory.chain_table
        self._accumulator = accumulator
        self._topics = topics
        self._by_chain: dict[int, dict[int, list[Range]]] = {}
        self._bulk_lanes: dict[tuple[str, int], int] = {}
        """By topic and partition: the lane of the bulk batches that were sent."""

    def __iter__(self) -> Iterator[Range]:
        for of_chain in self._by_chain.values():
            for ranges in of_chain.values():
                yield from ranges

    def of_chain(self, chain: Chain) -> dict[int, list[Range]]:
        """The chain's ranges by partition, in journal order."""
        return self._by_chain.get(chain.chain_id, {})

    def rebuild(self, names: dict[int, ChainName], now_ms: float) -> None:
        """Make a batch for each descriptor, without its records."""
        self._descriptors.finish_splits()
        for descriptor in self._descriptors:
            name = names.get(descriptor.chain_id)
            if name is None:
                log.error("ALARM: descriptor %r names no chain of slot %d.", descriptor, self._slot)
                self._descriptors.step(DescriptorEvent.FREE, descriptor.index)
                continue
            queue = self._accumulator.queue(name.topic, descriptor.lane, descriptor.partition)
            batch = ProducerBatch(
                queue=queue,
                records=BatchRecords(),
                chain=self._chain_table.open(name.lane, name.topic),
                is_express=name.is_express,
                created_ms=now_ms,
                deadline_ms=now_ms + queue.settings.delivery_timeout_ms,
                state=BatchState.BETWEEN,
            )
            batch.descriptor = descriptor.index
            if queue.sequences is not None and descriptor.base_sequence >= 0:
                batch.identify(descriptor.producer_id, descriptor.epoch, descriptor.base_sequence)
            of_chain = self._by_chain.setdefault(descriptor.chain_id, {})
            of_chain.setdefault(descriptor.partition, []).append(Range(descriptor, batch))
        for of_chain in self._by_chain.values():
            for ranges in of_chain.values():
                ranges.sort(key=lambda each: each.descriptor.first_cursor)
        sent: dict[PartitionQueue, list[ProducerBatch]] = {}
        for each in self:
            if each.is_sent:
                sent.setdefault(each.batch.queue, []).append(each.batch)
                if not each.batch.is_express and each.batch.queue.transaction is None:
                    self._bulk_lanes[each.batch.topic, each.batch.partition] = each.batch.lane
        for batches in sent.values():
            give_orders(batches)

    def mark_withdrawn(self, names: dict[int, ChainName]) -> None:
        """Mark indexed batches without a descriptor that hold records of a withdrawn one. Their doubt was refuted
        before their worker died, so they never fail as surely not persisted.
        """
        for each in self._descriptors.withdrawn():
            name = names.get(each.chain_id)
            for batch in () if name is None else self._accumulator.batches_of(name.topic, (each.partition,)):
                if (
                    batch.descriptor == NO_DESCRIPTOR
                    and batch.chain is not None
                    and batch.chain.chain_id == each.chain_id
                    and batch.records.first_cursor <= each.last_cursor
                    and each.first_cursor <= batch.records.last_cursor
                ):
                    batch.was_in_doubt = True

    def lane_of_unsent(self, queue: TopicQueue, partition: int) -> int:
        """The lane of records that have no descriptor and follow all that have one in their chain.

        An express chain may hold records that were refused and are older than the bulk records that were sent.
        """
        if queue.is_express:
            return self._bulk_lanes.get((queue.topic, partition), queue.lane)
        return queue.lane

    def assign(
        self,
        block: RecordBlock,
        group: tuple[int, int, int],
        ranges: list[Range],
        append: Callable[[list[tuple[int, int, int]], int], None],
        accepted_ms: Callable[[int], float],
        lane: int,
    ) -> None:
        """Divide the records of one partition among the descriptors' ranges.

        ``append`` takes the records between ranges, and their lane: the lane of the next batch that was sent, or
        ``lane`` if there is none.
        """
        partition, at, stop = group
        lanes = [lane]
        for each in reversed(ranges):
            lanes.append(each.batch.lane if each.is_sent else lanes[-1])
        for each in ranges:
            lane = lanes.pop()
            if at == stop:
                return
            (first, first_record), (last, last_record) = (
                each.descriptor.first_cursor,
                each.descriptor.last_cursor,
            )
            begin = block.find(at, stop, first, first_record)
            end = block.find(begin, stop, last, last_record + 1)
            if begin > at:
                append([(partition, at, begin)], lane)
            if end > begin:
                self._grow(each, block, begin, end, accepted_ms)
            at = end
        if at < stop:
            append([(partition, at, stop)], lanes[0])

    def goes_first(self, queue: PartitionQueue, lane: int) -> None:
        """If acks was changed since, let ``queue`` go before the partition's queue in its present ``lane``."""
        if queue.lane != lane:
            now = self._accumulator.queue(queue.topic, lane, queue.partition)
            self._accumulator.send_after(now, queue)

    def _grow(
        self, each: Range, block: RecordBlock, start: int, stop: int, accepted_ms: Callable[[int], float]
    ) -> None:
        batch = each.batch
        queue = batch.queue
        if not batch.records.count:
            batch.created_ms = accepted_ms(start)
            batch.deadline_ms = batch.created_ms + queue.settings.delivery_timeout_ms
        if each.is_sent and not batch.records.count:
            batch.attempts = 1
            batch.in_doubt = True
            batch.retry_cause = WaitCause.ADOPTED
            batch.last_error = "the death of the worker that had sent it"
            batch.was_in_doubt = bool(each.descriptor.persistence & WAS_IN_DOUBT)
            if each.descriptor.persistence & WHOLE_IN_DOUBT:
                batch.doubt_whole()
            self._accumulator.adopt(batch, each.descriptor.count)
            if queue.transaction is None:
                topic_queue = self._topics.get(queue.topic)
                assert topic_queue is not None
                self.goes_first(queue, topic_queue.lane)
        batch.records.try_append(block, start, stop, _UNBOUNDED, accepted_ms(start))
