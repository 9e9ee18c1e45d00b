"""LaneQueues: the partition queues of one lane, by topic and partition.

A queue is made when its topic is used, and goes when the topic is forgotten. Of its sequences one number is kept,
because a broker takes a repeated number for a record that it has. When RESTING_MAX partitions rest so, the lane begins
a new epoch of its producer id. Under that each partition begins at 0, so their numbers are forgotten. Partitions with
batches under way change to it one by one, when these have ended, as after any new epoch (producer_id.py). A
transactional lane gets its new epoch at the end of a transaction (transaction_manager.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.common.model import NO_PRODUCER_ID, ProducerIdAndEpoch
from sidecar.producer.partition_queue import PartitionQueue
from sidecar.producer.partition_sequences import UNCERTAIN, PartitionSequences
from sidecar.producer.producer_id import ProducerIds
from sidecar.producer.transactional_ids import TransactionalIds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sidecar.kernel import StickyPartitioner
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.topic_settings import TopicRules


RESTING_MAX: Final = 4_096
"""Number of partitions of forgotten topics whose next sequence number is kept; some 200 bytes each."""


class LaneQueues:
    """Makes the queues of a lane, and finds them. Single-threaded: the worker's loop.

    ``ids``: gives the lane's batches their producer id and sequences; None for a lane without these. ``transaction``:
    the same for a transactional lane, else None.
    """

    __slots__ = (
        "_ask",
        "_by_topic",
        "_continued",
        "_forgotten",
        "_partitioners",
        "_resting",
        "_resting_identity",
        "ids",
        "number",
        "opened",
        "resting_max",
        "transaction",
    )

    def __init__(self, number: int, ids: ProducerIds | TransactionalIds | None) -> None:
        self.number = number
        self.ids = ids
        self.transaction = ids.manager if isinstance(ids, TransactionalIds) else None
        self._by_topic: dict[str, dict[int, PartitionQueue]] = {}
        self._partitioners: dict[str, StickyPartitioner] = {}
        self.resting_max = RESTING_MAX
        self._resting: dict[tuple[str, int], int] = {}
        """(topic, partition) → the sequences of a partition without a queue, as a number (PartitionSequences)."""
        self._resting_identity: ProducerIdAndEpoch = NO_PRODUCER_ID
        """The identity of the resting sequences."""
        self._forgotten: dict[PartitionQueue, None] = {}
        """Queues of forgotten topics that cannot rest yet: something is under way, or in doubt."""
        self._continued: ProducerIdAndEpoch = NO_PRODUCER_ID
        """The identity under which a dead worker may have sent batches that have left no trace here."""
        self._ask: Callable[[PartitionQueue], None] = lambda queue: None
        self.opened: dict[str, dict[PartitionQueue, None]] = {}
        """By topic, the partitions in which a lingering batch was opened since the topic's last flush."""

    def __iter__(self) -> Iterator[PartitionQueue]:
        for queues in self._by_topic.values():
            yield from queues.values()

    def of(self, topic: str) -> Mapping[int, PartitionQueue]:
        """The topic's queues that were made, by partition."""
        return self._by_topic.get(topic) or {}

    def get(self, topic: str, partition: int, rules: TopicRules) -> PartitionQueue:
        """The queue of a partition, made if needed."""
        queues = self._by_topic.setdefault(topic, {})
        queue = queues.get(partition)
        if queue is None:
            sequences = None if self.ids is None else self._sequences(topic, partition)
            queue = PartitionQueue(
                topic, partition, self.number, rules.of(topic), sequences, self.transaction
            )
            queue.partitioner = self._partitioners.get(topic)
            queues[partition] = queue
            if sequences is not None and sequences.awaits_number:
                self._ask(queue)
        return queue

    def continue_transaction(self, ask: Callable[[PartitionQueue], None]) -> None:
        """Continue under the identity of a dead worker, whose sequences are not known here. ``ask`` is called for each
        partition that is used: its broker must say which sequence is next.
        """
        assert self.ids is not None
        self._continued, self._ask = self.ids.identity, ask

    def follow_loads(self, topic: str, partitioner: StickyPartitioner) -> None:
        """Report each change of a partition's load to the topic's partitioner from now on.

        (KIP-794. Kafka counts all queues in each ``ready()``: ``updatePartitionLoadInfo``.)
        """
        self._partitioners[topic] = partitioner
        for queue in self.of(topic).values():
            queue.partitioner = partitioner
            partitioner.set_queue_length(queue.partition, queue.load)

    def forget_topic(self, topic: str) -> list[PartitionQueue]:
        """Forget a topic without records here, whose partitioner is gone. The sequence numbers of its partitions are
        kept longer. Returns the queues that are gone.
        """
        self.opened.pop(topic, None)
        self._partitioners.pop(topic, None)
        queues = list(self.of(topic).values())
        for queue in queues:
            queue.partitioner = None
            queue.is_forgotten = True
        return self.let_rest(queues)

    def let_rest(self, queues: Iterable[PartitionQueue]) -> list[PartitionQueue]:
        """Drop queues of forgotten topics, and keep their next sequence numbers. Those stay that have something under
        way, or whose broker is in doubt. Returns the queues that are gone.
        """
        gone = [queue for queue in queues if self._drop(queue)]
        if len(self._resting) <= self.resting_max:
            return gone
        if self.transaction is not None:
            self.transaction.want_epoch()
        elif isinstance(self.ids, ProducerIds):
            self.ids.begin_epoch()
            self._resting.clear()
            gone += [queue for queue in list(self._forgotten) if self._drop(queue)]
        return gone

    def _drop(self, queue: PartitionQueue) -> bool:
        if not queue.is_forgotten:  # its topic is used again
            self._forgotten.pop(queue, None)
            return False
        if not (queue.is_unused and self._rest(queue)):
            self._forgotten[queue] = None
            return False
        self._forgotten.pop(queue, None)
        queue.is_forgotten = False
        queues = self._by_topic[queue.topic]
        del queues[queue.partition]
        if not queues:
            del self._by_topic[queue.topic]
        return True

    def _rest(self, queue: PartitionQueue) -> bool:
        """Keep what is needed of the queue's sequences. False if that is more than a number."""
        sequences = queue.sequences
        if sequences is None or self.ids is None:
            return True
        if sequences.identity != self.ids.identity:
            # It begins at 0 under the present identity.
            return not (sequences.in_flight or sequences.parked)
        if not sequences.is_settled:
            return False
        if sequences.next_sequence or sequences.recreations:
            if self._resting_identity != sequences.identity:
                self._resting.clear()
                self._resting_identity = sequences.identity
            self._resting[queue.topic, queue.partition] = sequences.to_number()
        return True

    def _sequences(self, topic: str, partition: int) -> PartitionSequences:
        """The sequences of a partition that gets a queue."""
        number = self._resting.pop((topic, partition), None)
        if number is None or self.ids is None or self._resting_identity != self.ids.identity:
            sequences = PartitionSequences()
            if self.ids is not None and self._continued == self.ids.identity != NO_PRODUCER_ID:
                sequences.identity, sequences.awaits_number = self._continued, True
            return sequences
        return PartitionSequences.from_number(self._resting_identity, number)

    def forget_recreated(self, before: MetadataSnapshot, after: MetadataSnapshot) -> None:
        """Forget the sequences of topics that have a new id or are gone: no broker knows a producer of these logs."""
        if self.ids is None:
            return

        def is_another(name: str) -> bool:
            old, new = before.topics.get(name), after.topics.get(name)
            return old is not new and (old is None or new is None or old.topic_id != new.topic_id)

        if isinstance(self.ids, TransactionalIds):
            for name in list(self.ids.topics):
                # A topic whose queues are gone may be missing because nothing asks for it any more.
                is_asked_for = name in self._by_topic or (name in before.topics and name in after.topics)
                if is_asked_for and is_another(name):
                    self.ids.recreated(name)
        for name, queues in self._by_topic.items():
            if is_another(name):
                for queue in queues.values():
                    if queue.sequences is not None:
                        queue.sequences.forget()
        for key, number in self._resting.items():
            if is_another(key[0]):
                self._resting[key] = number | UNCERTAIN
