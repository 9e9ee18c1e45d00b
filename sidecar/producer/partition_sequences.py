"""PartitionSequences: the idempotent producer's sequence numbers of one partition (rule S4).

Sans-IO: ProducerIds asks it for each batch, on the worker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.common.model import NO_PRODUCER_ID, ProducerIdAndEpoch

if TYPE_CHECKING:
    from sidecar.producer.producer_batch import ProducerBatch


UNCERTAIN: Final = 1
"""Bit of :meth:`PartitionSequences.to_number`: the topic may have been recreated, or the numbers be in doubt."""
_ACKED: Final = 2
NO_GAP: Final = 1 << 62
"""Higher than any order of a batch."""


class PartitionSequences:
    """Sequence state of one partition: Kafka's ``TxnPartitionEntry``, plus two reasons to hold new batches back.

    ``in_flight`` holds every batch that has a sequence and no outcome, in sequence order: on the wire, or in the deque
    for a retry. ``next_sequence`` is for the next new batch. ``acked_next`` is the sequence after the last
    acknowledged record. If the two are equal and nothing is in flight, the broker has all numbered batches.
    """

    __slots__ = (
        "acked_next",
        "acked_order",
        "awaits_number",
        "gap_order",
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
        "takes_epoch",
        "unresolved",
    )

    def __init__(self) -> None:
        self.identity: ProducerIdAndEpoch = NO_PRODUCER_ID
        self.next_sequence = 0
        self.next_serial = 0
        """Number of batches numbered so far. It shows how far ahead of the oldest unsettled batch the next one would
        be.
        """
        self.acked_next = 0
        self.acked_order = -1
        self.awaits_number = False
        """A dead worker may have sent batches in the open transaction. New ones wait until the broker has said which
        sequence is next.
        """
        self.lost_order = -1
        """Order of the latest numbered batch that was given up in doubt: it may be in the log."""
        self.refuses_next = False
        """The broker answered OUT_OF_ORDER for the batch right after the last acknowledged record. So it lacks
        acknowledged records, or it has a later batch.
        """
        self.known_until_ms = 0.0
        """Monotonic ms until which the broker surely remembers the identity here. After that it may accept any first
        sequence, so the batch that introduces the identity (again) must be alone on the wire.
        """
        self.known_from_serial = 0
        """Answers to batches with a lower serial do not count: the topic was recreated and has a new log."""
        self.recreations = 0
        """How often the topic appeared under another id, or was gone: an upper bound of the number of its logs."""
        self.is_stamped_by_broker = False
        """The broker sets the topic's timestamps (LogAppendTime), so they are never old, whatever the records say."""
        self.in_flight: list[ProducerBatch] = []
        self.parked: list[ProducerBatch] = []
        """Batches with an outcome, after an earlier batch that has none. They complete after it, because callbacks of
        a partition run in order (``KafkaProducer.send``). Bounded by the batches that may be under way after an
        unsettled one.
        """
        self.unresolved = False
        """A numbered batch was given up, and the broker may or may not have it. New batches wait until that is known.
        """
        self.renumber = False
        """The broker surely lacks a numbered batch, so all later ones must get other numbers."""
        self.takes_epoch = False
        """They start over under a new epoch: somebody may be in doubt about their present numbers. Otherwise they take
        those of the batches that the broker has refused for what they hold.
        """
        self.gap_order = NO_GAP
        """Order of the earliest batch that the broker has refused so."""

    @property
    def latest_order(self) -> int:
        """Order of the latest batch that counts as in the log.

        Acknowledged batches count. So does one that was given up in doubt, if the broker called an earlier batch out
        of order although nothing is missing before that.
        """
        return max(self.acked_order, self.lost_order) if self.refuses_next else self.acked_order

    def continue_at(self, sequence: int) -> None:
        """Give new batches the numbers from here on: the broker has all before it, or none."""
        self.next_sequence = self.acked_next = sequence
        self.awaits_number = False

    def give_up(self, batch: ProducerBatch) -> None:
        """Await nothing more of a batch."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    def is_overtaking(self, batch: ProducerBatch) -> bool:
        """True if an earlier numbered batch has no outcome yet, for instance because its answer was lost."""
        return any(each.order < batch.order for each in self.in_flight)

    def take_parked(self) -> list[ProducerBatch]:
        """Remove and return the parked batches that may complete now, in order."""
        free = sorted(
            (each for each in self.parked if not self.is_overtaking(each)), key=lambda each: each.order
        )
        self.parked = [each for each in self.parked if each not in free]
        return free

    def is_overtaken(self, batch: ProducerBatch) -> bool:
        """True if a later batch of the same identity is in the log. Then the broker has this one too, or it had
        forgotten the identity when it took the later one. No answer can tell which.
        """
        if self.identity != (batch.producer_id, batch.epoch):
            return False
        return self.latest_order > batch.order or any(
            each.appended and each.order > batch.order for each in self.in_flight
        )

    def may_be_overtaken(self, batch: ProducerBatch) -> bool:
        """True if a later batch of the same identity was given up in doubt. If this batch is missing from the log, the
        later one is there only if the broker had forgotten the identity.
        """
        return self.lost_order > batch.order and self.identity == (batch.producer_id, batch.epoch)

    def forget(self) -> None:
        """Note that the topic was recreated: its broker knows nothing of earlier acknowledgements."""
        self.recreations += 1
        self.takes_epoch = True
        self.known_until_ms = 0.0
        self.known_from_serial = self.next_serial
        self.is_stamped_by_broker = False

    def restart(self, identity: ProducerIdAndEpoch) -> None:
        """Begin at sequence 0 under ``identity``. Only when no batch of the old identity is unsettled."""
        assert not self.in_flight, "a partition keeps its identity while something of it is unsettled"
        self.identity = identity
        self.next_sequence = 0
        self.acked_next = 0
        self.acked_order = -1
        self.awaits_number = False
        self.lost_order = -1
        self.refuses_next = False
        self.known_until_ms = 0.0
        self.unresolved = False
        self.close_gap()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is known, awaited or doubted under the identity but how many records its broker has."""
        return not (
            self.in_flight
            or self.parked
            or self.unresolved
            or self.renumber
            or self.refuses_next
            or self.acked_next != self.next_sequence
        )

    def to_number(self) -> int:
        """The state of settled sequences as one number, for :meth:`from_number`."""
        number = self.next_sequence << 2
        if self.acked_order >= 0:
            number |= _ACKED
        if self.takes_epoch or self.recreations or self.lost_order >= 0:
            number |= UNCERTAIN
        return number

    @classmethod
    def from_number(cls, identity: ProducerIdAndEpoch, number: int) -> PartitionSequences:
        """Settled sequences as they were. What is only an advantage is not kept: for how long the broker surely knows
        the identity, and whether it sets the timestamps. Orders begin again at 1.
        """
        sequences = cls()
        sequences.identity = identity
        sequences.next_sequence = sequences.acked_next = number >> 2
        sequences.acked_order = 0 if number & _ACKED else -1
        if number & UNCERTAIN:
            sequences.forget()
        return sequences

    def close_gap(self) -> None:
        """Note that nothing is to be renumbered any more."""
        self.renumber = self.takes_epoch = False
        self.gap_order = NO_GAP

    def has_clean_gap(self) -> bool:
        """Whether the numbers after the last acknowledged record are free: the broker has refused their batches with
        definite words, no copy of them is under way, and nothing later is in the log.
        """
        return (
            not (self.takes_epoch or self.unresolved or self.refuses_next)
            and self.lost_order < 0
            and self.acked_order < self.gap_order
            and all(batch.was_never_in_doubt for batch in self.in_flight)
        )
