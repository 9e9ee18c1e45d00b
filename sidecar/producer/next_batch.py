"""NextBatch: chooses the one batch of a partition that may be sent next (rule S4)."""

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
"""Cached: reading an enum member through its class costs as much as a call, and this is compared for each batch."""


class NextBatch:
    """Chooses the next batch of a partition. Its only side effect is to note that a producer id is wanted.
    ``in_flight_max``: limit of unanswered requests on one connection.
    """

    __slots__ = ("_ids", "_in_flight_max")

    def __init__(self, ids: ProducerIds, *, in_flight_max: int) -> None:
        self._ids = ids
        self._in_flight_max = in_flight_max

    def of(self, queue: PartitionQueue, now_ms: float) -> ProducerBatch | None:
        """The next batch of a partition that has some, or None while the partition must wait.

        With sequences, retries go one at a time, oldest first, and no new batch passes them: a failed first batch
        holds those behind it. The caller checks whether the batch is due (linger, backoff).
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
                return self._doubtful(sequences) if sequences.renumber else first
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

    @staticmethod
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
