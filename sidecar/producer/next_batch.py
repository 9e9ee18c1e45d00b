"""NextBatch: which one batch of a partition may be sent next (rule S4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.producer.batch_states import BatchState
from sidecar.producer.lanes import NO_SEQUENCE
from sidecar.producer.producer_batch import NOT_DRAINED

if TYPE_CHECKING:
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.partition_sequences import PartitionSequences
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.producer_id import ProducerIds

BATCHES_REMEMBERED: Final = 5
"""How many batches per producer id and partition a broker can recognise
(ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
"""
_QUEUED: Final = BatchState.QUEUED
"""An attribute of an enum's class costs as much as a call: these are asked for each batch."""


class NextBatch:
    """Changes nothing, and notes that a producer id is wanted. ``in_flight_max``: requests that may be unanswered on
    one connection."""

    __slots__ = ("_ids", "_in_flight_max")

    def __init__(self, ids: ProducerIds, *, in_flight_max: int) -> None:
        self._ids = ids
        self._in_flight_max = in_flight_max

    def of(self, queue: PartitionQueue, now_ms: float) -> ProducerBatch | None:
        """The batch of a partition with some, or None while something must be waited for.

        With sequences retries go one at a time, oldest first, and no new batch passes them: a failed first batch holds
        those behind it. Whether the batch is due (linger, backoff) is not asked here.
        """
        if queue.behind is not None or (queue.settings.is_paused and queue.rests):
            return None
        sequences = queue.sequences
        if sequences is None:
            # Kafka's muted partition: with one request in flight order is kept without sequences. So it is for records
            # of another acks: at their time the setting may have been 1.
            is_held = queue.wire_count and (self._in_flight_max == 1 or queue.follower is not None)
            return None if is_held else queue.head
        ids, in_flight = self._ids, sequences.in_flight
        if in_flight:
            first = in_flight[0]
            if first.state is _QUEUED:
                return self._doubtful(sequences) if sequences.renumber else first
            if first.attempts:
                return None
        # As queue.head; a call for each batch is too many.
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
            # A broker takes an id it does not know on the partition at any sequence: were the first batch refused
            # (say NOT_ENOUGH_REPLICAS), the second would be appended before it. So the first goes alone, after a
            # time without answers the next one, and of old records each.
            or now_ms >= sequences.known_until_ms
            or in_flight[-1].goes_alone
            # Appended behind one whose answer is then lost, it would make the broker forget that one, too.
            or ids.may_be_forgotten(head)
        ):
            return None
        if sequences.identity != ids.identity and (in_flight or queue.wire_count):
            return None
        return head

    @staticmethod
    def _doubtful(sequences: PartitionSequences) -> ProducerBatch | None:
        """Before a renumbering: the first batch whose fate must still be found out by sending it again.

        A recreated topic takes any first sequence. So refused batches before the one in doubt go there first, as they
        are, each once: they would else be late for good. In the old log they are refused again.
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
