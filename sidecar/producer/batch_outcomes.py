"""BatchOutcomes: turns a broker's answer into the next step of its batch: success, retry, split, renumbering, failure.

The rules follow Kafka's ``Sender.completeBatch`` and ``TransactionManager.canRetry`` (rules A6, A7, S3, S4).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.common.condition import WaitCause
from sidecar.common.errors import Code, classify
from sidecar.common.sparse_log import SparseLog
from sidecar.metadata.snapshot import LeaderHint
from sidecar.producer.batch_states import BatchState
from sidecar.producer.effects import AskBroker, Effect, Renumbered, Split
from sidecar.producer.lanes import NO_SEQUENCE

if TYPE_CHECKING:
    from sidecar.common.backoff import ExponentialBackoff
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.producer_id import ProducerIds
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.request_capacity import RequestCapacity
    from sidecar.producer.transaction_manager import TransactionManager
    from sidecar.protocol.produce import PartitionResult

log = logging.getLogger(__name__)

_DECIDED: Final = BatchState.DECIDED
_GIVEN_UP: Final = BatchState.GIVEN_UP
_PERSISTED: Final = Persistence.PERSISTED
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each batch."""
_WAITING: Final = (BatchState.OPEN, BatchState.QUEUED)
_FORGOTTEN_TEXT: Final = "The broker forgot the producer id while batches of the partition were under way."


class SenderCounts:
    """Totals since start, which the driver publishes. Plain integers with a single writer."""

    __slots__ = (
        "batch_errors",
        "batches_expired",
        "batches_retried",
        "batches_sent",
        "batches_split",
        "late_answers",
        "record_errors",
        "request_errors",
        "requests",
        "throttle_ms",
    )

    def __init__(self) -> None:
        self.batch_errors = 0
        self.batches_expired = 0
        self.batches_retried = 0
        self.batches_sent = 0
        self.batches_split = 0
        self.late_answers = 0
        self.record_errors = 0
        self.request_errors = 0
        self.requests = 0
        self.throttle_ms = 0


class BatchOutcomes:
    """Decides the outcome of batches. Decisions collect in ``effects`` and ``decided`` until the sender's next poll
    takes them. Single-threaded: the worker's loop.

    The caller first ends the request, then passes each batch to :meth:`delivered`, :meth:`refused` or :meth:`error`,
    and finally all of them to :meth:`collect`.
    """

    __slots__ = (
        "_accumulator",
        "_backoff",
        "_capacity",
        "_config",
        "_ids",
        "_split_ms",
        "_splits_log",
        "counts",
        "decided",
        "effects",
        "hints",
        "splits",
        "stale_topics",
    )

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        ids: ProducerIds,
        backoff: ExponentialBackoff,
        capacity: RequestCapacity,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._ids = ids
        self._capacity = capacity
        self._backoff = backoff
        self._split_ms = 0.0
        self._splits_log = SparseLog(log, lambda: self._split_ms)
        self.counts = SenderCounts()
        self.effects: list[Effect] = []
        self.hints: list[LeaderHint] = []
        """New leaders named in answers. They become one effect, because each overlay builds a snapshot of the whole
        cluster.
        """
        self.decided: list[ProducerBatch] = []
        self.splits = 0
        """Number of Split effects in ``effects`` whose halves need descriptors."""
        self.stale_topics: set[str] = set()

    def delivered(self, answers: Sequence[tuple[ProducerBatch, int, int]], now_ms: float) -> None:
        """The broker has acknowledged these batches of one request. ``answers`` holds (batch, base offset, the
        broker's timestamp in ms); -1 means an unknown offset or timestamp.
        """
        for batch, base_offset, append_time_ms in answers:
            if batch.queue.sequences is not None:
                self._ids.acknowledged(batch, append_time_ms, now_ms)
            if batch.state is _DECIDED:  # it has an outcome
                self.counts.late_answers += 1
                continue
            batch.decide(base_offset=base_offset, append_time_ms=append_time_ms)

    def refused(self, batch: ProducerBatch, result: PartitionResult, now_ms: float) -> None:
        """The broker answered one batch with an error: decide between success, split, retry and failure."""
        code = result.error_code
        if (code == Code.DUPLICATE_SEQUENCE_NUMBER and batch.queue.sequences is not None) or (
            code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.appended
        ):
            # The batch is in the log. Either the broker no longer knows its offset (DUPLICATE_SEQUENCE_NUMBER), or it
            # reported the batch when it was asked after a worker's death (``appended``).
            self.delivered(((batch, -1, -1),), now_ms)
        elif batch.is_decided:
            self.counts.late_answers += 1
            self._hint(batch, result)
        elif code in (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE) and batch.count > 1:
            is_in_doubt = batch.has_sequence and batch.may_be_in_log
            if batch.last_chance is not None:
                self.fail(batch, *batch.last_chance, now_ms)
            elif is_in_doubt and not self._capacity.has_capacity_for_halves(self.splits):
                # The halves would have no descriptor before they are sent. A successor of this worker would then take
                # their records for unsent ones. A retry of the whole batch needs no new descriptor.
                self._try_again(batch, now_ms)
            else:
                self._split(batch, now_ms)
        elif (
            result.record_errors
            and batch.count > 1
            and code in (Code.INVALID_RECORD, Code.INVALID_TIMESTAMP)
            and not batch.may_be_in_log
            and batch.queue.transaction is None
        ):
            self._fail_records(batch, result, now_ms)
        else:
            self._hint(batch, result)
            self.counts.record_errors += len(result.record_errors)
            text = (
                (result.record_errors[0][1] if result.record_errors else None) or result.error_message or ""
            )
            self.error(batch, code, text, now_ms, log_start_offset=result.log_start_offset)

    def _hint(self, batch: ProducerBatch, result: PartitionResult) -> None:
        leader, epoch = result.current_leader_id, result.current_leader_epoch
        if leader >= 0:
            self.hints.append(LeaderHint(batch.topic, batch.partition, leader, epoch))

    def error(
        self, batch: ProducerBatch, code: int, text: str, now_ms: float, *, log_start_offset: int = -1
    ) -> None:
        """Retry or fail a whole batch after an error code, or after no answer at all (NETWORK_EXCEPTION).

        ``log_start_offset`` matters only for UNKNOWN_PRODUCER_ID; -1 means unknown.
        """
        row = classify(code)
        if row.stale_metadata:
            self.stale_topics.add(batch.topic)
        if batch.is_decided:
            return
        self.counts.batch_errors += 1
        if code == Code.NETWORK_EXCEPTION:  # no broker says that
            batch.retry_cause, batch.last_error = WaitCause.LOST, text.rstrip(".") or row.name
        else:
            batch.retry_cause, batch.last_error = WaitCause.REFUSED, row.name
        idempotent = batch.queue.sequences is not None
        if row.persistence != Persistence.NOT_PERSISTED:
            batch.in_doubt = True
            batch.was_absent = False
        if idempotent and code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            retry = self._out_of_order(batch)
            if not retry and batch.doubtful_parent is None:
                text = _FORGOTTEN_TEXT
        elif idempotent and code == Code.UNKNOWN_PRODUCER_ID:
            retry = self._unknown_producer_id(batch, log_start_offset)
        else:
            retry = row.retriable
            if idempotent:
                self._ids.not_judged(batch)
        # The retry limit does not apply to a batch that may be in the log: only its deadline ends it.
        tries_left = batch.attempts < self._config.retries or (idempotent and batch.in_doubt)
        if retry and batch.last_chance is not None:
            self.fail(batch, *batch.last_chance, now_ms)
        elif retry and tries_left:
            self._try_again(batch, now_ms)
        else:
            self.fail(batch, code, text or _own_text(batch, code), now_ms)

    def _try_again(self, batch: ProducerBatch, now_ms: float) -> None:
        """Queue the batch again, unchanged, after its backoff. If it may be in the log and is so old that the broker
        may have forgotten the producer id, ask the broker about it before resending.
        """
        batch.attempts += 1
        self.counts.batches_retried += 1
        retry_at_ms = now_ms + self._backoff.backoff_ms(batch.attempts - 1)
        queue = batch.queue
        if (
            queue.sequences is not None
            and queue.transaction is None
            and batch.may_be_in_log
            and self._ids.may_be_forgotten(batch)
        ):
            self.effects.append(AskBroker(batch, retry_at_ms))
            retry_at_ms = inf
        self._accumulator.reenqueue(batch, retry_at_ms=retry_at_ms, now_ms=now_ms)

    def _out_of_order(self, batch: ProducerBatch) -> bool:
        """Handle OUT_OF_ORDER_SEQUENCE_NUMBER: the broker lacks the batch and something before it. True: retry the
        batch.

        Usually an earlier unsettled batch is missing and goes first. If there is none, the batch's own sequence is the
        gap, and the batch needs a new one (Kafka: ``canRetry``).

        If a later batch is in the log, the code proves nothing: the broker had forgotten the producer id when it
        appended the later one. A later batch that was given up in doubt counts as in the log if nothing is missing
        before this batch. Otherwise it may be in the log, and the code does not end the doubt about this batch.

        Nor does the code end the doubt if the records are old and nothing is missing before them: the broker has
        forgotten records that it acknowledged. Under another number the batch could land after later ones, or twice.
        So it fails, as possibly persisted if an earlier attempt may have been appended. With young records the log
        itself has lost acknowledged records (truncated by an unclean election), so it lacks this batch too.
        """
        ids = self._ids
        if batch.queue.transaction is not None:
            return not ids.is_first(batch)  # an earlier batch is missing, and goes again before this one
        ids.note_refused(batch)
        if ids.is_overtaken(batch) or (batch.may_be_in_log and ids.may_be_overtaken(batch)):
            return False
        if batch.in_doubt and ids.follows_the_acked(batch) and ids.may_be_forgotten(batch):
            return False
        if batch.doubtful_parent is not None:
            # The broker refuses this half with the same code if it has the whole batch, so the code proves nothing. A
            # retry proves nothing either. Batches that were unsettled before this half when it was sent are not in the
            # log, and they get new numbers once no doubt is left. So the gap before the half is never filled.
            batch.in_doubt = True
            return False
        batch.doubt_refuted = batch.doubt_refuted or batch.in_doubt
        batch.in_doubt = False
        if self._ids.is_first(batch) and not self._ids.follows_gap(batch):
            self._ids.request_renumbering(batch)
        return True

    def _unknown_producer_id(self, batch: ProducerBatch, log_start_offset: int) -> bool:
        """Handle UNKNOWN_PRODUCER_ID: the broker forgot the producer id. True: retry the batch.

        If the start of the log is unknown, retry the batch unchanged. Otherwise renumber it under a new epoch, unless
        an earlier attempt may be in the log: the broker could not recognise the second copy.
        """
        if batch.queue.transaction is not None:
            return False
        if log_start_offset == -1:
            return True
        if batch.may_be_in_log:
            batch.in_doubt = True
            return False
        self._ids.request_renumbering(batch)
        return True

    def _split(self, batch: ProducerBatch, now_ms: float) -> None:
        pieces = batch.split()
        self._split_ms = now_ms
        text = "%r is larger than the topic's max.message.bytes: it is split."
        self._splits_log.info(batch.topic, text, batch)
        self.counts.batches_split += 1
        self._accumulator.limit_growth(batch.topic, batch.size_bytes // 2)
        self._accumulator.incomplete.remove(batch)
        if batch.has_sequence:
            self._ids.replace(batch, pieces)
            self.splits += 1
        self.effects.append(Split(batch, pieces))
        self._accumulator.replace(batch, pieces, now_ms)

    def _fail_records(self, batch: ProducerBatch, result: PartitionResult, now_ms: float) -> None:
        """Fail only the records that the answer names (INVALID_RECORD or INVALID_TIMESTAMP), and send the others again
        as a new batch (rule A6).

        Allowed only if no earlier attempt may be in the log, because a broker validates records before it looks for
        duplicates. (Kafka's own producer fails the other records too, with a general text: KIP-467.)
        """
        text = result.error_message or _own_text(batch, result.error_code)
        texts = {index: each or text for index, each in result.record_errors if 0 <= index < batch.count}
        if not texts:  # no index is inside the batch: fail it as a whole
            self.error(batch, result.error_code, text, now_ms)
            return
        bad, good = batch.isolate(texts)
        if batch.has_sequence:
            self._ids.failed(batch, result.error_code)
        self._accumulator.incomplete.remove(batch)
        self.effects.append(Split(batch, batch.children))
        self.counts.record_errors += len(texts)
        for piece, piece_text in bad:
            piece.decide(
                code=result.error_code, persistence=self._persistence(piece, doubtful=False), text=piece_text
            )
            self.decided.append(piece)
        if good is not None:
            good.attempts += 1
            good.retry_cause, good.last_error = WaitCause.REFUSED, classify(result.error_code).name
            self._accumulator.replace(batch, (good,), now_ms)
            if batch.last_chance is not None:
                self.fail(good, *batch.last_chance, now_ms)

    def fail(self, batch: ProducerBatch, code: int, text: str, now_ms: float, cause: str = "") -> None:
        """Give the batch up. Its persistence says whether it may be in the log. ``cause``: see ProducerBatch.decide."""
        if batch.is_decided:
            return
        # A batch on the wire counts as in doubt: the driver may still send a request that it has been given.
        batch.in_doubt = batch.may_be_in_log or batch.state is BatchState.ON_WIRE
        doubtful = batch.in_doubt
        transaction = batch.queue.transaction
        if transaction is not None:
            _fail_transaction(batch, transaction, code, text)
        elif batch.queue.sequences is not None and batch.has_sequence:
            self._ids.failed(batch, code)
        batch.decide(
            code=code, persistence=self._persistence(batch, doubtful=doubtful), text=text, cause=cause
        )
        self.collect((batch,), now_ms)

    @staticmethod
    def _persistence(batch: ProducerBatch, *, doubtful: bool) -> Persistence:
        if doubtful or batch.was_in_doubt:
            return Persistence.POSSIBLY_PERSISTED
        return Persistence.NOT_PERSISTED

    def collect(self, batches: Iterable[ProducerBatch], now_ms: float) -> None:
        """Complete those of these batches that have an outcome now, and bring their partitions up to date."""
        accumulator = self._accumulator
        for batch in batches:
            queue = batch.queue
            sequences = queue.sequences
            # Complete it, once. It is parked while an earlier batch of its partition has no outcome, because callbacks
            # of a partition run in order.
            if (batch.state is _DECIDED or batch.state is _GIVEN_UP) and accumulator.incomplete.remove(batch):
                if (
                    sequences is not None
                    and sequences.in_flight
                    and batch.base_sequence != NO_SEQUENCE
                    and sequences.is_overtaking(batch)
                ):
                    sequences.parked.append(batch)
                else:
                    self.decided.append(batch)
            # Resolve sequences, and complete parked batches.
            if sequences is not None:
                if sequences.renumber and not queue.wire_count:
                    self._fail_overtaken(queue, now_ms)
                if sequences.unresolved or sequences.renumber:
                    self._resolve(queue)
                if sequences.parked:
                    self.decided += sequences.take_parked()
            # Move the partition to where it waits now.
            if queue.batches or queue.express or queue.wait_list is not None or queue.timer_serial:
                accumulator.schedule.touch(queue, now_ms)
            if queue.follower is not None:
                accumulator.let_follower_go(queue, now_ms)
            if queue.is_forgotten:
                accumulator.answered_forgotten.append(queue)

    def _resolve(self, queue: PartitionQueue) -> None:
        renumbered = self._ids.resolve(queue)
        for batch in renumbered:
            self._accumulator.incomplete.back_to_start(batch)
        if renumbered:
            self.effects.append(Renumbered(tuple(reversed(renumbered))))
        sequences = queue.sequences
        assert sequences is not None
        if not (sequences.unresolved or sequences.renumber):
            queue.begin_again()

    def _fail_overtaken(self, queue: PartitionQueue, now_ms: float) -> None:
        """Fail batches that the broker reported missing although it has a later batch: see :meth:`_out_of_order`.

        The same holds for records that a refused batch left behind to be sent again (:meth:`_fail_records`). If the
        later batch was given up in doubt, no answer can show whether it is in the log. So batches that were in doubt
        before it are not renumbered.
        """
        sequences = queue.sequences
        assert sequences is not None
        earlier = takewhile(lambda batch: batch.order < sequences.latest_order, queue.batches)
        left_behind = [batch for batch in earlier if not batch.has_sequence]
        refuted = [
            batch
            for batch in sequences.in_flight
            if sequences.is_overtaken(batch) or (batch.doubt_refuted and sequences.may_be_overtaken(batch))
        ]
        for batch in left_behind + refuted:
            if batch.state in _WAITING and not batch.has_open_doubt:
                self.fail(batch, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, _FORGOTTEN_TEXT, now_ms)


def _own_text(batch: ProducerBatch, code: int) -> str:
    """The text of a broker's error that came without one. Kafka's general texts name neither topic nor size."""
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return f"Not authorized to write to topic {batch.topic}."
    if code == Code.MESSAGE_TOO_LARGE:
        return (
            f"The record for topic {batch.topic} ({batch.size_bytes:,} bytes with its batch, before compression) is "
            "larger than the topic's max.message.bytes."
        )
    where = f"{batch.topic}-{batch.partition}"
    if code == Code.RECORD_LIST_TOO_LARGE:
        return (
            f"The batch for {where} ({batch.size_bytes:,} bytes before compression) is larger than the topic's "
            "segment.bytes."
        )
    return f"{where}: {classify(code).text}"


def _fail_transaction(batch: ProducerBatch, transaction: TransactionManager, code: int, text: str) -> None:
    """Note that a batch of a transaction has failed for good, or ends because the transaction is aborted."""
    assert batch.queue.sequences is not None
    batch.queue.sequences.give_up(batch)
    if code != LocalCode.TXN_ABORTED:
        transaction.batch_failed(batch.topic, batch.partition, code, text)
    elif batch.has_sequence:
        transaction.want_epoch()  # a late copy of it may still arrive
