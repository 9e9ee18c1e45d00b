"""PartitionSequences: the idempotent producer's book-keeping for one partition (rule S4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.common.model import NO_PRODUCER_ID, ProducerIdAndEpoch

if TYPE_CHECKING:
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
        "next_sequence",
        "next_serial",
        "parked",
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
        self.in_flight: list[ProducerBatch] = []
        self.parked: list[ProducerBatch] = []
        """Decided before one that stands before them in the partition: told behind it, since callbacks of a partition
        run in order (``KafkaProducer.send``). At most as many as may be under way behind an unsettled one."""
        self.unresolved = False
        """A numbered batch was given up without knowing whether the broker has it: new ones must wait and
        see.
        """
        self.renumber = False
        """The broker surely lacks a numbered batch: what follows it must start over under a new epoch."""

    def is_overtaking(self, batch: ProducerBatch) -> bool:
        """An earlier numbered batch has no fate yet, for instance because its answer was lost."""
        return any(each.order < batch.order for each in self.in_flight)

    def take_parked(self) -> list[ProducerBatch]:
        """Parked batches that may be told now, in their order."""
        free = sorted(
            (each for each in self.parked if not self.is_overtaking(each)), key=lambda each: each.order
        )
        self.parked = [each for each in self.parked if each not in free]
        return free

    @property
    def is_known(self) -> bool:
        """The broker has acknowledged something under this identity."""
        return self.acked_order >= 0

    def restart(self, identity: ProducerIdAndEpoch) -> None:
        """Begin at sequence 0 under ``identity``; only when nothing of the old one is unsettled."""
        assert not self.in_flight, "a partition keeps its identity while something of it is unsettled"
        self.identity = identity
        self.next_sequence = 0
        self.acked_next = 0
        self.acked_order = -1
        self.unresolved = False
        self.renumber = False
