"""ProducerIds: the idempotent lane's producer id, its epochs, and the order of numbering (rule S4).

Behaviour after Kafka's TransactionManager in its idempotent part, with one difference. Kafka gives batches new
sequences while they may still be on the wire; here a batch is renumbered only when nothing of its partition
is on the wire and the broker surely has none of it. Until then batches of unknown fate are sent again as they
are: the broker answers either with success (it has them) or with OUT_OF_ORDER_SEQUENCE_NUMBER (it has not).
That proof needs the batch to be among the last five that the broker may have appended, which is what it
remembers: nothing is sent further ahead of the oldest unsettled batch, even when those between were answered. And it
needs the broker to remember the id at all: see :class:`BrokerMemory`.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sidecar.common.errors import Code, classify
from sidecar.common.model import NO_PRODUCER_ID, ProducerIdAndEpoch
from sidecar.producer.broker_memory import IDLE_MS
from sidecar.producer.lanes import EPOCH_MAX, NO_SEQUENCE, SEQUENCE_MASK

if TYPE_CHECKING:
    from sidecar.common.backoff import ExponentialBackoff
    from sidecar.producer.broker_memory import BrokerMemory
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.partition_sequences import PartitionSequences
    from sidecar.producer.producer_batch import ProducerBatch

log = logging.getLogger(__name__)


class ProducerIds:
    """One producer identity for all partitions of the idempotent lane. Single-threaded."""

    __slots__ = (
        "_backoff",
        "_failure",
        "_failures",
        "epoch_bumps",
        "identity",
        "init_pending",
        "is_wanted",
        "memory",
        "retry_at_ms",
    )

    def __init__(self, *, backoff: ExponentialBackoff, memory: BrokerMemory) -> None:
        self.identity: ProducerIdAndEpoch = NO_PRODUCER_ID
        self.memory = memory
        self.init_pending = False
        """InitProducerId was asked for and has not been answered."""
        self.is_wanted = False
        """A batch waits for a producer id. Without idempotence it is of a dead worker, which had it."""
        self.retry_at_ms = 0.0
        self.epoch_bumps = 0
        self._backoff = backoff
        self._failures = 0
        self._failure = 0
        """Code of the last failure, 0 since the last success: the same one is a line of the log once."""

    # --- the producer id ------------------------------------------------------------------------------------

    def take_init_request(self, now_ms: float) -> bool:
        """True when InitProducerId must be sent now; counts it as sent."""
        if self.identity.is_valid or self.init_pending or now_ms < self.retry_at_ms:
            return False
        self.init_pending = True
        return True

    @property
    def next_init_ms(self) -> float:
        """When :meth:`take_init_request` is worth calling again."""
        return float("inf") if self.identity.is_valid or self.init_pending else self.retry_at_ms

    def initialized(self, producer_id: int, epoch: int) -> None:
        """A producer id arrived. Raises ValueError for the id -1 that a broker still loading answers with."""
        identity = ProducerIdAndEpoch(producer_id, epoch)
        if not identity.is_valid:
            raise ValueError(
                "InitProducerId answered producer id -1; without an id re-sends would double records"
            )
        self.init_pending = False
        self._failures = self._failure = 0
        self.identity = identity

    def init_failed(self, code: int, now_ms: float) -> bool:
        """InitProducerId failed; it is asked again after a backoff. True when waiting batches must fail
        meanwhile.
        """
        self.init_pending = False
        self._failures += 1
        self.retry_at_ms = now_ms + self._backoff.backoff_ms(self._failures - 1)
        row = classify(code)
        refused = not row.retriable and code not in (0, -1)
        self.is_wanted = self.is_wanted and not refused  # what waits for it fails
        is_new, self._failure = code != self._failure, code
        level = logging.DEBUG if not is_new else logging.WARNING if refused else logging.INFO
        log.log(level, "No producer id yet: %s (%s).", row.name, refusal_of_id(code))
        return refused

    def _bump(self) -> None:
        """A new epoch, made here without asking (KIP-360); a new id when epochs have run out."""
        self.epoch_bumps += 1
        producer_id, epoch = self.identity
        if epoch >= EPOCH_MAX:
            log.info("Producer id %d has used up its epochs; a new one is asked for.", producer_id)
            self.identity = NO_PRODUCER_ID
            self.retry_at_ms = 0.0
        else:
            self.identity = ProducerIdAndEpoch(producer_id, epoch + 1)

    # --- sending --------------------------------------------------------------------------------------------

    def identify(self, batches: Iterable[ProducerBatch]) -> None:
        """Number those that are drained for the first time; :class:`NextBatch` has just named them."""
        identity = self.identity
        producer_id, epoch = identity
        young_from_ms = self.memory.young_from_ms()
        for batch in batches:
            sequences = batch.queue.sequences
            assert sequences is not None
            batch.recreations = sequences.recreations
            if batch.base_sequence != NO_SEQUENCE:
                continue
            if sequences.identity != identity:
                sequences.restart(identity)
            batch.producer_id, batch.epoch = producer_id, epoch
            batch.base_sequence = sequence = sequences.next_sequence
            batch.goes_alone = (
                not sequences.is_stamped_by_broker and batch.records.max_timestamp_ms < young_from_ms
            )
            sequences.next_sequence = (sequence + batch.records.count) & SEQUENCE_MASK
            batch.serial = sequences.next_serial
            sequences.next_serial += 1
            sequences.in_flight.append(batch)

    @staticmethod
    def adopt(sequences: PartitionSequences, batch: ProducerBatch, count: int) -> None:
        """A batch that a dead worker numbered: what comes behind it gets numbers of ours once it is settled. Those of a
        partition may come in any order; theirs says how they were numbered."""
        in_flight = sequences.in_flight
        if not in_flight:
            sequences.restart(ProducerIdAndEpoch(batch.producer_id, batch.epoch))
        insort(in_flight, batch, key=lambda each: each.order)
        for serial, each in enumerate(in_flight):
            each.serial = serial
        sequences.next_serial = len(in_flight)
        sequences.acked_next = in_flight[0].base_sequence
        if in_flight[-1] is batch:
            sequences.next_sequence = (batch.base_sequence + count) & SEQUENCE_MASK

    # --- answers --------------------------------------------------------------------------------------------

    def is_first(self, batch: ProducerBatch) -> bool:
        """Nothing numbered before the batch is unsettled, so an OUT_OF_ORDER for it tells of a real gap."""
        sequences = batch.queue.sequences
        assert sequences is not None
        return bool(sequences.in_flight) and sequences.in_flight[0] is batch

    def acked(self, answers: Iterable[tuple[ProducerBatch, int, int]], now_ms: float) -> None:
        """The broker has these batches. Also right for one given up earlier: the late answer resolves its
        partition. Each with its base offset and the broker's timestamp of it, -1 when it sent none.
        """
        for batch, _, append_time_ms in answers:
            if batch.doubtful_parent is not None:
                self._disprove_wholes(batch)
            sequences = batch.queue.sequences
            assert sequences is not None
            in_flight = sequences.in_flight
            if in_flight and in_flight[0] is batch:
                del in_flight[0]
            elif batch in in_flight:
                in_flight.remove(batch)
            if sequences.identity != (batch.producer_id, batch.epoch) or batch.order <= sequences.acked_order:
                continue
            sequences.acked_order = batch.order
            sequences.acked_next = (batch.base_sequence + batch.records.count) & SEQUENCE_MASK
            sequences.refuses_next = False
            if batch.serial >= sequences.known_from_serial:
                if append_time_ms < 0 and not batch.goes_alone and not sequences.is_stamped_by_broker:
                    sequences.known_until_ms = now_ms + IDLE_MS  # its records were young when it was numbered
                else:
                    sequences.known_until_ms = self.memory.lasts_until_ms(batch, append_time_ms, now_ms)
                # An answer to a duplicate has the timestamp in the log, whether a client or the broker made it.
                sequences.is_stamped_by_broker = append_time_ms not in (-1, batch.records.max_timestamp_ms)

    def failed(self, batch: ProducerBatch) -> None:
        """A numbered batch is given up. What follows depends on whether the broker may have it."""
        sequences = batch.queue.sequences
        assert sequences is not None
        if batch in sequences.in_flight:
            sequences.in_flight.remove(batch)
        if sequences.identity != (batch.producer_id, batch.epoch):
            return
        if batch.in_doubt:
            sequences.unresolved = True
            sequences.lost_order = max(sequences.lost_order, batch.order)
        else:
            sequences.renumber = True

    def replace(self, parent: ProducerBatch, children: tuple[ProducerBatch, ...]) -> None:
        """Put the pieces of a split batch, which keep its sequences, in its place."""
        sequences = parent.queue.sequences
        assert sequences is not None
        index = sequences.in_flight.index(parent)
        sequences.in_flight[index : index + 1] = children
        for child in children:
            child.serial = parent.serial
        sequences.next_serial += len(children) - 1

    @staticmethod
    def _disprove_wholes(half: ProducerBatch) -> None:
        """The half is in the log by itself, so none of the wholes that it is of is: a broker that had one of them would
        have taken the half for out of order. The other halves are in no doubt for their sake.

        That the broker had forgotten the producer id between the two cannot be excluded: see ``was_in_doubt``."""
        sequences = half.queue.sequences
        assert sequences is not None
        wholes: list[ProducerBatch] = []
        whole = half.doubtful_parent
        while whole is not None:
            wholes.append(whole)
            whole = whole.doubtful_parent
        half.doubtful_parent = None
        for batch in sequences.in_flight:
            whole = batch.doubtful_parent
            # What stays is a whole that was under way by itself, as a half of these.
            while whole is not None and (whole in wholes or not (whole.in_doubt or whole.doubt_refuted)):
                whole = whole.doubtful_parent
                batch.was_in_doubt = True
            batch.doubtful_parent = whole

    @staticmethod
    def is_overtaken(batch: ProducerBatch) -> bool:
        """A later batch of the identity is in the log already."""
        sequences = batch.queue.sequences
        assert sequences is not None
        return sequences.is_overtaken(batch)

    def note_refused(self, batch: ProducerBatch) -> None:
        """The broker calls the batch out of order. That says more when nothing is missing before it. Before the first
        batch of a dead worker something may be: only an acknowledgement that came to this one is sure."""
        sequences = batch.queue.sequences
        assert sequences is not None
        if sequences.acked_order >= 0 and self.follows_the_acked(batch):
            sequences.refuses_next = True

    @staticmethod
    def may_be_overtaken(batch: ProducerBatch) -> bool:
        """A later batch of the identity was given up in doubt."""
        sequences = batch.queue.sequences
        assert sequences is not None
        return sequences.may_be_overtaken(batch)

    @staticmethod
    def follows_the_acked(batch: ProducerBatch) -> bool:
        """All that was numbered before the batch is acknowledged."""
        sequences = batch.queue.sequences
        assert sequences is not None
        return (
            sequences.identity == (batch.producer_id, batch.epoch)
            and sequences.acked_next == batch.base_sequence
        )

    def may_be_forgotten(self, batch: ProducerBatch) -> bool:
        """Its broker may have dropped the producer id at any check since the batch was appended."""
        sequences = batch.queue.sequences
        assert sequences is not None
        if sequences.is_stamped_by_broker:
            return False
        return batch.records.max_timestamp_ms < self.memory.young_from_ms()

    @staticmethod
    def not_judged(batch: ProducerBatch) -> None:
        """It did not reach the log, or was refused for another reason than a gap. A new topic may still take it."""
        sequences = batch.queue.sequences
        if sequences is not None and sequences.recreations:
            batch.recreations = -1

    def request_renumbering(self, batch: ProducerBatch) -> None:
        """The batch's own sequence is a gap at the broker."""
        sequences = batch.queue.sequences
        assert sequences is not None
        sequences.renumber = True

    def resolve(self, queue: PartitionQueue) -> list[ProducerBatch]:
        """Settle what answers have made certain; call after each answer of the partition.

        Returns the batches that lost their identity, oldest first: their descriptors must be freed, newest
        first, before they are drained again. Kafka: ``maybeResolveSequences``,
        ``bumpIdempotentEpochAndResetIdIfNeeded``.
        """
        sequences = queue.sequences
        assert sequences is not None
        if queue.wire_count or not (sequences.unresolved or sequences.renumber):
            return []
        in_flight = sequences.in_flight
        if sequences.unresolved and not sequences.renumber:
            if in_flight:
                return []
            if sequences.acked_next == sequences.next_sequence:
                sequences.unresolved = False
                return []
        elif any(batch.has_open_doubt for batch in in_flight):
            return []
        renumbered = list(in_flight)
        in_flight.clear()
        for batch in renumbered:
            batch.clear_identity()
        if sequences.identity == self.identity:
            # The first partition to get here takes the new epoch; the others of the same incident only follow
            # it.
            self._bump()
        sequences.restart(NO_PRODUCER_ID)
        return renumbered


def refusal_of_id(code: int) -> str:
    """The sentence why InitProducerId gave none."""
    if code == Code.CLUSTER_AUTHORIZATION_FAILED:
        return (
            "The broker refuses a producer id (InitProducerId): grant the daemon's user WRITE on a topic or "
            "IDEMPOTENT_WRITE on the cluster, or set enable.idempotence=false."
        )
    return classify(code).text
