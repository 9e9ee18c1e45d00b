"""ProducerIds: the idempotent lane's producer id, its epochs, and the rules of numbering batches (rule S4).

Behaviour follows the idempotent part of Kafka's TransactionManager, with one difference. Kafka may give batches new
sequences while they are still on the wire. Here a batch is renumbered only when nothing of its partition is on the
wire and the broker surely has none of it. Until then a batch of unknown outcome is sent again unchanged. The broker
answers with success if it has the batch, and with OUT_OF_ORDER_SEQUENCE_NUMBER if not.

That proof has two conditions. The batch must be among the last five that the broker may have appended, because the
broker remembers only these. So nothing is sent further ahead of the oldest unsettled batch, even if the batches
between were answered. And the broker must remember the producer id at all: see :class:`BrokerMemory`.

The two steps of every batch: :meth:`ProducerIds.number` numbers it, and :meth:`ProducerIds.acknowledged` notes its
acknowledgement.
"""

from __future__ import annotations

import logging
from bisect import insort
from math import inf
from typing import TYPE_CHECKING, Final

from sidecar.common.errors import ERROR_ROWS, Code, classify
from sidecar.common.model import NO_PRODUCER_ID, ProducerIdAndEpoch
from sidecar.producer.broker_memory import IDLE_MS
from sidecar.producer.lanes import EPOCH_MAX, NO_SEQUENCE, SEQUENCE_MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.common.backoff import ExponentialBackoff
    from sidecar.producer.broker_memory import BrokerMemory
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.partition_sequences import PartitionSequences
    from sidecar.producer.producer_batch import ProducerBatch

log = logging.getLogger(__name__)


_REFUSED_FOR_CONTENT: Final = frozenset(
    {
        Code.MESSAGE_TOO_LARGE,
        Code.RECORD_LIST_TOO_LARGE,
        Code.INVALID_RECORD,
        Code.INVALID_TIMESTAMP,
        Code.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""Codes of a batch that the broker refused before it looked at its sequence, and so still expects that one."""


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
        "why_none",
    )

    def __init__(self, *, backoff: ExponentialBackoff, memory: BrokerMemory) -> None:
        self.identity: ProducerIdAndEpoch = NO_PRODUCER_ID
        self.memory = memory
        self.init_pending = False
        """InitProducerId was sent and has not been answered."""
        self.is_wanted = False
        """A batch waits for a producer id. With enable.idempotence=false, such a batch comes from a dead worker that
        had one.
        """
        self.retry_at_ms = 0.0
        self.epoch_bumps = 0
        self._backoff = backoff
        self._failures = 0
        self._failure = 0
        """Code of the last failure; 0 since the last success. Repeats of one code are logged at DEBUG only."""
        self.why_none = ""
        """Sentence of the last failure; "" since the last success."""

    # --- the producer id ------------------------------------------------------------------------------------

    def take_init_request(self, now_ms: float) -> bool:
        """True when InitProducerId must be sent now; counts it as sent."""
        if self.identity.is_valid or self.init_pending or now_ms < self.retry_at_ms:
            return False
        self.init_pending = True
        return True

    @property
    def next_init_ms(self) -> float:
        """When to call :meth:`take_init_request` again, monotonic ms; infinity if no request is needed or one is
        pending.
        """
        return float("inf") if self.identity.is_valid or self.init_pending else self.retry_at_ms

    def initialized(self, producer_id: int, epoch: int) -> None:
        """Use the producer id that arrived. Raises ValueError for id -1, which a broker sends while it is still
        loading.
        """
        identity = ProducerIdAndEpoch(producer_id, epoch)
        if not identity.is_valid:
            raise ValueError(
                "InitProducerId answered producer id -1; without an id re-sends would double records"
            )
        self.init_pending = False
        self._failures = self._failure = 0
        self.why_none = ""
        self.identity = identity

    def init_failed(self, code: int, now_ms: float, text: str = "") -> bool:
        """Schedule InitProducerId again after a backoff. True if waiting batches must fail, because the refusal is
        final.
        """
        self.init_pending = False
        self._failures += 1
        self.retry_at_ms = now_ms + self._backoff.backoff_ms(self._failures - 1)
        row = classify(code)
        # A code that is newer than the table counts as UNKNOWN_SERVER_ERROR, as in Kafka's clients.
        refused = not row.retriable and code in ERROR_ROWS and code not in (0, -1)
        self.is_wanted = self.is_wanted and not refused  # batches that wait for the id fail
        is_new, self._failure = code != self._failure, code
        self.why_none = text or refusal_of_id(code)
        level = logging.DEBUG if not is_new else logging.WARNING if refused else logging.INFO
        log.log(level, "No producer id yet: %s (%s).", row.name, self.why_none)
        return refused

    def begin_epoch(self) -> None:
        """Start a new epoch without asking a broker (KIP-360), or request a new id when the epochs are used up.

        Each partition begins at 0 under it, as soon as nothing of it is unsettled under the old one. A late copy of an
        old batch is then refused by its broker, because its epoch is lower.
        """
        producer_id, epoch = self.identity
        if epoch >= EPOCH_MAX:
            log.info("Producer id %d has used up its epochs; a new one is asked for.", producer_id)
            self.identity = NO_PRODUCER_ID
            self.retry_at_ms = 0.0
        else:
            self.identity = ProducerIdAndEpoch(producer_id, epoch + 1)

    # --- sending --------------------------------------------------------------------------------------------

    def number(self, batches: Sequence[ProducerBatch]) -> None:
        """Give sequences to the drained batches that go for the first time. The schedule has just chosen them by the
        rules above.
        """
        number_batches(batches, self.identity, self.memory.young_from_ms())

    @staticmethod
    def adopt(sequences: PartitionSequences, batch: ProducerBatch, count: int) -> None:
        """Adopt a batch that a dead worker numbered. Later batches are numbered here once it is settled.

        The batches of a partition may come in any order: their ``order`` says how they were numbered.
        """
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

    def acknowledged(self, batch: ProducerBatch, append_time_ms: int, now_ms: float) -> None:
        """Note that the broker has the batch, even if it was given up earlier: the late answer settles its sequences.

        ``append_time_ms``: the broker's timestamp, -1 if unknown.
        """
        sequences = batch.queue.sequences
        assert sequences is not None
        if batch.doubtful_parent is not None:
            self.disprove_wholes(batch)
        in_flight = sequences.in_flight
        if in_flight and in_flight[0] is batch:
            del in_flight[0]
        elif batch in in_flight:
            in_flight.remove(batch)
        identity = batch.producer_id, batch.epoch
        if batch.order <= sequences.acked_order or sequences.identity != identity:
            return
        sequences.acked_order = batch.order
        sequences.acked_next = (batch.base_sequence + batch.records.count) & SEQUENCE_MASK
        sequences.refuses_next = False
        if batch.serial < sequences.known_from_serial:
            return
        if append_time_ms < 0 and not batch.goes_alone and not sequences.is_stamped_by_broker:
            until_ms = now_ms + IDLE_MS  # its records were young when it was numbered
        elif batch.queue.transaction is not None:
            until_ms = inf  # a broker does not forget the producer of an open transaction
        else:
            until_ms = self.memory.lasts_until_ms(batch, append_time_ms, now_ms)
        sequences.known_until_ms = until_ms
        # For a duplicate the answer has the log's timestamp, set by the client or by the broker.
        newest_ms = batch.records.max_timestamp_ms
        sequences.is_stamped_by_broker = append_time_ms not in (-1, newest_ms)

    def is_first(self, batch: ProducerBatch) -> bool:
        """True if no earlier numbered batch is unsettled, so an OUT_OF_ORDER answer shows a real gap before this
        batch.
        """
        sequences = batch.queue.sequences
        assert sequences is not None
        return bool(sequences.in_flight) and sequences.in_flight[0] is batch

    def follows_gap(self, batch: ProducerBatch) -> bool:
        """True if a batch before it was refused for what it holds: that, and nothing else, is missing."""
        sequences = batch.queue.sequences
        assert sequences is not None
        return sequences.gap_order < batch.order

    def failed(self, batch: ProducerBatch, code: int) -> None:
        """Give up a numbered batch. The next step depends on whether the broker may have it."""
        sequences = batch.queue.sequences
        assert sequences is not None
        sequences.give_up(batch)
        if sequences.identity != (batch.producer_id, batch.epoch):
            return
        if batch.in_doubt:
            sequences.unresolved = True
            sequences.lost_order = max(sequences.lost_order, batch.order)
        else:
            sequences.renumber = True
            if code in _REFUSED_FOR_CONTENT and batch.was_never_in_doubt:
                sequences.gap_order = min(sequences.gap_order, batch.order)
            else:
                sequences.takes_epoch = True

    def replace(self, parent: ProducerBatch, children: tuple[ProducerBatch, ...]) -> None:
        """Replace a split batch by its pieces, which keep its sequences."""
        sequences = parent.queue.sequences
        assert sequences is not None
        sequences.takes_epoch |= parent.was_absent or not parent.was_never_in_doubt
        index = sequences.in_flight.index(parent)
        sequences.in_flight[index : index + 1] = children
        for child in children:
            child.serial = parent.serial
        sequences.next_serial += len(children) - 1

    @staticmethod
    def disprove_wholes(half: ProducerBatch) -> None:
        """Clear the doubt about the wholes that ``half`` belongs to, since it was appended on its own.

        A broker that had one of the wholes would have refused the half as out of order. So their other halves are no
        longer in doubt because of these wholes. The broker may have forgotten the producer id between the two, which
        ``was_in_doubt`` keeps in mind.
        """
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
            # Keep the doubt about a whole that was itself on the wire as a half of these.
            while whole is not None and (whole in wholes or not (whole.in_doubt or whole.doubt_refuted)):
                whole = whole.doubtful_parent
                batch.was_in_doubt = True
            batch.doubtful_parent = whole

    @staticmethod
    def is_overtaken(batch: ProducerBatch) -> bool:
        """True if a later batch of the same identity is in the log already."""
        sequences = batch.queue.sequences
        assert sequences is not None
        return sequences.is_overtaken(batch)

    def note_refused(self, batch: ProducerBatch) -> None:
        """Note an OUT_OF_ORDER answer for a batch that has nothing missing before it.

        The first batch of a dead worker may have something missing before it. So this counts only after an
        acknowledgement that this worker received.
        """
        sequences = batch.queue.sequences
        assert sequences is not None
        if sequences.acked_order >= 0 and self.follows_the_acked(batch):
            sequences.refuses_next = True

    @staticmethod
    def may_be_overtaken(batch: ProducerBatch) -> bool:
        """True if a later batch of the same identity was given up in doubt."""
        sequences = batch.queue.sequences
        assert sequences is not None
        return sequences.may_be_overtaken(batch)

    @staticmethod
    def follows_the_acked(batch: ProducerBatch) -> bool:
        """True if every batch numbered before this one is acknowledged."""
        sequences = batch.queue.sequences
        assert sequences is not None
        return (
            sequences.identity == (batch.producer_id, batch.epoch)
            and sequences.acked_next == batch.base_sequence
        )

    def may_be_forgotten(self, batch: ProducerBatch) -> bool:
        """True if the broker may have dropped the producer id at a check since the batch was appended."""
        sequences = batch.queue.sequences
        assert sequences is not None
        if sequences.is_stamped_by_broker:
            return False
        return batch.records.max_timestamp_ms < self.memory.young_from_ms()

    @staticmethod
    def not_judged(batch: ProducerBatch) -> None:
        """Note that the log did not judge the batch's sequence: it was not reached, or refused for another reason. A
        recreated topic may still accept the batch.
        """
        sequences = batch.queue.sequences
        if sequences is not None and sequences.recreations:
            batch.recreations = -1

    def request_renumbering(self, batch: ProducerBatch) -> None:
        """Note that the sequence of the batch itself is a gap at the broker."""
        sequences = batch.queue.sequences
        assert sequences is not None
        sequences.renumber = sequences.takes_epoch = True

    def resolve(self, queue: PartitionQueue) -> list[ProducerBatch]:
        """Apply what answers have shown; call after each answer of the partition."""
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
        is_clean = sequences.identity == self.identity and sequences.has_clean_gap()
        renumbered = list(in_flight)
        in_flight.clear()
        for batch in renumbered:
            batch.clear_identity()
        if is_clean:
            sequences.next_sequence = sequences.acked_next
            sequences.close_gap()
            return renumbered
        if sequences.identity == self.identity:
            # The first partition of an incident takes a new epoch; the others then use that epoch.
            self.epoch_bumps += 1
            self.begin_epoch()
        sequences.restart(NO_PRODUCER_ID)
        return renumbered


def number_batches(
    batches: Sequence[ProducerBatch], identity: ProducerIdAndEpoch, young_from_ms: float
) -> None:
    """Give sequences under this identity to the batches that have none. Those with records from before
    ``young_from_ms`` go alone.
    """
    producer_id, epoch = identity
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


def refusal_of_id(code: int) -> str:
    """Sentence that says why the broker gave no producer id."""
    if code == Code.CLUSTER_AUTHORIZATION_FAILED:
        return (
            "The broker refuses a producer id (InitProducerId): grant the daemon's user WRITE on a topic or "
            "IDEMPOTENT_WRITE on the cluster, or set enable.idempotence=false."
        )
    return classify(code).text
