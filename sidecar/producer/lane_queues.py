"""LaneQueues: the partition queues of one lane, by topic and partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.producer.partition_queue import PartitionQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sidecar.kernel import StickyPartitioner
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.producer_id import ProducerIds
    from sidecar.producer.topic_settings import TopicRules


class LaneQueues:
    """Makes the queues of a lane, and finds them. Single-threaded: the worker's loop.

    ``ids``: gives the lane's batches their producer id and sequences; None for a lane without these.
    """

    __slots__ = ("_by_topic", "_partitioners", "ids", "number", "opened")

    def __init__(self, number: int, ids: ProducerIds | None) -> None:
        self.number = number
        self.ids = ids
        self._by_topic: dict[str, dict[int, PartitionQueue]] = {}
        self._partitioners: dict[str, StickyPartitioner] = {}
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
            queue = PartitionQueue(
                topic, partition, self.number, rules.of(topic), has_sequences=self.ids is not None
            )
            queue.partitioner = self._partitioners.get(topic)
            queues[partition] = queue
        return queue

    def follow_loads(self, topic: str, partitioner: StickyPartitioner) -> None:
        """Report each change of a partition's load to the topic's partitioner from now on.

        (KIP-794. Kafka counts all queues in each ``ready()``: ``updatePartitionLoadInfo``.)
        """
        self._partitioners[topic] = partitioner
        for queue in self.of(topic).values():
            queue.partitioner = partitioner
            partitioner.set_queue_length(queue.partition, queue.load)

    def forget_topic(self, topic: str) -> None:
        """Forget a topic without records here, whose partitioner is gone. The sequence numbers of its partitions are
        kept longer.
        """
        self.opened.pop(topic, None)
        if self._partitioners.pop(topic, None) is not None:
            for queue in self.of(topic).values():
                queue.partitioner = None

    def forget_recreated(self, before: MetadataSnapshot, after: MetadataSnapshot) -> None:
        """Forget the sequences of topics that have a new id or are gone: no broker knows a producer of these logs."""
        if self.ids is None:
            return
        for name, queues in self._by_topic.items():
            old, new = before.topics.get(name), after.topics.get(name)
            if old is not new and (old is None or new is None or old.topic_id != new.topic_id):
                for queue in queues.values():
                    if queue.sequences is not None:
                        queue.sequences.forget()
