"""PartitionSequences: the idempotent producer's book-keeping for one partition (rule S4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.common.model import NO_PRODUCER_ID, ProducerIdAndEpoch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.producer_batch import ProducerBatch


class PartitionSequences:
    """Kafka's ``TxnPartitionEntry``, plus the two reasons to hold new batches back.

    ``in_flight`` holds every batch that has a sequence and no fate, in sequence order: on the wire, or in the
    deque to be sent again. ``next_sequence`` is for the next new batch, ``acked_next`` follows the last
    acknowledged record: where both meet and nothing is in flight, the broker has all that was numbered.
    """

    __slots__ = (
        "acked_next",
        "acked_order",
        "identity",
        "in_flight",
        "is_stamped_by_broker",
        "known_from_serial",
        "known_until_ms",
        "lost_order",
        "next_sequence",
        "next_serial",
        "parked",
        "recreations",
        "refuses_next",
        "renumber",
        "unresolved",
    )

    def __init__(self) -> None:
        self.identity: ProducerIdAndEpoch = NO_PRODUCER_ID
        self.next_sequence = 0
        self.next_serial = 0
        """Batches numbered so far: how far ahead of the oldest unsettled one the next would be."""
        self.acked_next = 0
        self.acked_order = -1
        self.lost_order = -1
        """The latest numbered batch that was given up in doubt: it may be in the log."""
        self.refuses_next = False
        """The broker called the batch that follows the last acknowledged record out of order: it lacks acknowledged
        records, or has a later batch."""
        self.known_until_ms = 0.0
        """Until when (monotonic) the broker surely remembers the identity here. Without that it takes any first
        sequence, so nothing may be under way beside the batch that introduces it (again)."""
        self.known_from_serial = 0
        """Answers for earlier batches do not count: the topic was recreated, with a new log."""
        self.recreations = 0
        """How often the topic was heard of under another id, or was gone: so many logs there were at most."""
        self.is_stamped_by_broker = False
        """The topic's timestamps are the broker's (LogAppendTime): never old, whatever the records say."""
        self.in_flight: list[ProducerBatch] = []
        self.parked: list[ProducerBatch] = []
        """Decided before an earlier one of the partition: they complete behind it, since callbacks of a partition run
        in order (``KafkaProducer.send``). At most as many as may be under way behind an unsettled one."""
        self.unresolved = False
        """A numbered batch was given up without knowing whether the broker has it: new ones must wait and
        see.
        """
        self.renumber = False
        """The broker surely lacks a numbered batch: what follows it must start over under a new epoch."""

    @property
    def latest_order(self) -> int:
        """Of the latest batch that counts as in the log: acknowledged, or given up in doubt and later than one that the
        broker calls out of order though nothing is missing before it."""
        return max(self.acked_order, self.lost_order) if self.refuses_next else self.acked_order

    def is_overtaking(self, batch: ProducerBatch) -> bool:
        """An earlier numbered batch has no fate yet, for instance because its answer was lost."""
        return any(each.order < batch.order for each in self.in_flight)

    def take_parked(self) -> list[ProducerBatch]:
        """Parked batches that may complete now, in their order."""
        free = sorted(
            (each for each in self.parked if not self.is_overtaking(each)), key=lambda each: each.order
        )
        self.parked = [each for each in self.parked if each not in free]
        return free

    def is_overtaken(self, batch: ProducerBatch) -> bool:
        """A later batch of the same identity is in the log: the broker has this one too, or it took the later one
        because it had forgotten the identity, and nobody knows which."""
        if self.identity != (batch.producer_id, batch.epoch):
            return False
        return self.latest_order > batch.order or any(
            each.appended and each.order > batch.order for each in self.in_flight
        )

    def may_be_overtaken(self, batch: ProducerBatch) -> bool:
        """A later batch of the same identity was given up in doubt: it is not in the log if this one is missing there,
        or it is because the broker had forgotten the identity."""
        return self.lost_order > batch.order and self.identity == (batch.producer_id, batch.epoch)

    def forget(self) -> None:
        """The topic was recreated: its broker knows nothing of earlier acknowledgements."""
        self.recreations += 1
        self.known_until_ms = 0.0
        self.known_from_serial = self.next_serial
        self.is_stamped_by_broker = False

    def restart(self, identity: ProducerIdAndEpoch) -> None:
        """Begin at sequence 0 under ``identity``; only when nothing of the old one is unsettled."""
        assert not self.in_flight, "a partition keeps its identity while something of it is unsettled"
        self.identity = identity
        self.next_sequence = 0
        self.acked_next = 0
        self.acked_order = -1
        self.lost_order = -1
        self.refuses_next = False
        self.known_until_ms = 0.0
        self.unresolved = False
        self.renumber = False


def forget_recreated(
    topics: Mapping[str, Mapping[int, PartitionQueue]], before: MetadataSnapshot, after: MetadataSnapshot
) -> None:
    """Of a topic under another id, and of one that is gone, no broker knows any producer."""
    for name, queues in topics.items():
        old, new = before.topics.get(name), after.topics.get(name)
        if old is not new and (old is None or new is None or old.topic_id != new.topic_id):
            for queue in queues.values():
                if queue.sequences is not None:
                    queue.sequences.forget()
