"""BatchFates: what each answer means for its batch: done, again, in pieces, under a new number, or given up.

The ladder is that of Kafka's ``Sender.completeBatch`` and ``TransactionManager.canRetry`` (rules A6, A7, S3,
S4).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Final

from client_stub.wire import Persistence
from sidecar.common.errors import Code, classify
from sidecar.metadata.snapshot import LeaderHint
from sidecar.producer.batch_states import BatchState
from sidecar.producer.effects import AskBroker, Effect, Renumbered, Split
from sidecar.producer.lanes import IDEMPOTENT_LANE, NO_SEQUENCE

if TYPE_CHECKING:
    from sidecar.common.backoff import ExponentialBackoff
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.producer_id import ProducerIds
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.request_room import RequestRoom
    from sidecar.protocol.produce_answer import PartitionResult

log = logging.getLogger(__name__)

_DONE: Final = BatchState.DONE
"""An attribute of an enum's class costs as much as a call: these are asked for each batch."""
_WAITING: Final = (BatchState.OPEN, BatchState.QUEUED)
_FORGOTTEN_TEXT: Final = "The broker forgot the producer id while batches of the partition were under way."


class SenderCounts:
    """Totals since start, for the driver to publish. Plain integers, single writer."""

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


class BatchFates:
    """Decides; what it decides is gathered in ``effects`` and ``completed`` until the sender's next poll
    takes it.

    A batch is given to :meth:`delivered`, :meth:`refused` or :meth:`error` after it was released from its request, and
    :meth:`settled` is called for its partition after that.
    """

    __slots__ = (
        "_accumulator",
        "_backoff",
        "_config",
        "_ids",
        "_room",
        "completed",
        "counts",
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
        room: RequestRoom,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._ids = ids
        self._room = room
        self._backoff = backoff
        self.counts = SenderCounts()
        self.effects: list[Effect] = []
        self.hints: list[LeaderHint] = []
        """New leaders from answers: one effect for all, as each makes a snapshot of the whole cluster."""
        self.completed: list[ProducerBatch] = []
        self.splits = 0
        """Of these effects, splits whose halves get descriptors."""
        self.stale_topics: set[str] = set()

    def delivered(self, answers: Sequence[tuple[ProducerBatch, int, int]], now_ms: float) -> None:
        """The broker has these batches of a request: (batch, base offset, the broker's timestamp), -1 for not known."""
        if answers and answers[0][0].lane == IDEMPOTENT_LANE:
            self._ids.acked(answers, now_ms)
        finished: list[ProducerBatch] = []
        for batch, base_offset, append_time_ms in answers:
            if batch.state is _DONE:
                self.counts.late_answers += 1
            else:
                batch.done(base_offset=base_offset, append_time_ms=append_time_ms)
                finished.append(batch)
        self.finish(finished)

    def refused(self, batch: ProducerBatch, result: PartitionResult, now_ms: float) -> None:
        """The broker's word on one batch is an error."""
        code = result.error_code
        if (code == Code.DUPLICATE_SEQUENCE_NUMBER and batch.lane == IDEMPOTENT_LANE) or (
            code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.appended
        ):
            # It is there, but the broker no longer knows where; or it was there when the broker was asked.
            self.delivered(((batch, -1, -1),), now_ms)
        elif batch.is_done:
            self.counts.late_answers += 1
            self._hint(batch, result)
        elif code in (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE) and batch.count > 1:
            is_in_doubt = batch.has_sequence and batch.may_be_in_log
            if batch.last_chance is not None:
                self.fail(batch, *batch.last_chance, now_ms)
            elif is_in_doubt and not self._room.has_room_for_halves(self.splits):
                # Its halves would have no descriptor before they are sent, and a successor would take them for records
                # that never left. A retry needs none.
                self._try_again(batch, now_ms)
            else:
                self._split(batch, now_ms)
        elif (
            result.record_errors
            and batch.count > 1
            and code in (Code.INVALID_RECORD, Code.INVALID_TIMESTAMP)
            and not batch.may_be_in_log
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
        """The whole batch met an error, or got no answer (NETWORK_EXCEPTION): it is tried again, or fails."""
        row = classify(code)
        if row.stale_metadata:
            self.stale_topics.add(batch.topic)
        if batch.is_done:
            return
        self.counts.batch_errors += 1
        batch.last_error = row.name
        idempotent = batch.lane == IDEMPOTENT_LANE
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
        # A batch that the broker may have is not given up for having been tried often: only its deadline ends
        # it.
        tries_left = batch.attempts < self._config.retries or (idempotent and batch.in_doubt)
        if retry and batch.last_chance is not None:
            self.fail(batch, *batch.last_chance, now_ms)
        elif retry and tries_left:
            self._try_again(batch, now_ms)
        else:
            self.fail(batch, code, text or _own_text(batch, code) or row.text, now_ms)

    def _try_again(self, batch: ProducerBatch, now_ms: float) -> None:
        """After its backoff, as it is. Of old records in doubt its broker is asked first."""
        batch.attempts += 1
        self.counts.batches_retried += 1
        retry_at_ms = now_ms + self._backoff.backoff_ms(batch.attempts - 1)
        if batch.lane == IDEMPOTENT_LANE and batch.may_be_in_log and self._ids.may_be_forgotten(batch):
            self.effects.append(AskBroker(batch, retry_at_ms))
            retry_at_ms = inf
        self._accumulator.reenqueue(batch, retry_at_ms=retry_at_ms, now_ms=now_ms)

    def _out_of_order(self, batch: ProducerBatch) -> bool:
        """The broker lacks the batch and misses something before it. With an earlier one unsettled that is
        the reason, and it goes first; else its own sequence is the gap, and it needs another (Kafka:
        ``canRetry``).

        With a later one in the log the code proves nothing: the broker had forgotten the id when it took that one. A
        later one that was given up in doubt counts as there if nothing is missing before the batch; else it may be
        there, and the code ends no doubt. Nor does it with old records where nothing is missing before them: the broker
        has forgotten what it acknowledged. Sent under another number the batch would stand behind later ones, or twice,
        so it fails, as possibly persisted if an earlier attempt may have been appended. With young records it is the
        log that lacks what was acknowledged (an unclean election cut it back), and it lacks the batch, too.
        """
        ids = self._ids
        ids.note_refused(batch)
        if ids.is_overtaken(batch) or (batch.may_be_in_log and ids.may_be_overtaken(batch)):
            return False
        if batch.in_doubt and ids.follows_the_acked(batch) and ids.may_be_forgotten(batch):
            return False
        if batch.doubtful_parent is not None:
            # Half of a batch that may be there as a whole is refused with the same code: nothing is proved. Nor will it
            # be: what is unsettled before it when a half is sent, surely is not there, and gets another number when
            # nothing is in doubt any more. So the half's gap is never filled.
            batch.in_doubt = True
            return False
        batch.doubt_refuted = batch.doubt_refuted or batch.in_doubt
        batch.in_doubt = False
        if self._ids.is_first(batch):
            self._ids.request_renumbering(batch)
        return True

    def _unknown_producer_id(self, batch: ProducerBatch, log_start_offset: int) -> bool:
        """The broker forgot the producer id. Where the log starts unknown: ask again as it is. Else start
        over under a new epoch, unless an earlier attempt may be in the log: nobody could recognise the second
        copy."""
        if log_start_offset == -1:
            return True
        if batch.may_be_in_log:
            batch.in_doubt = True
            return False
        self._ids.request_renumbering(batch)
        return True

    def _split(self, batch: ProducerBatch, now_ms: float) -> None:
        pieces = batch.split()
        log.info("%r is larger than the topic's max.message.bytes: it is split.", batch)
        self.counts.batches_split += 1
        self._accumulator.limit_growth(batch.topic, batch.size_bytes // 2)
        self._accumulator.forget((batch,))
        if batch.has_sequence:
            self._ids.replace(batch, pieces)
            self.splits += 1
        self.effects.append(Split(batch, pieces))
        self._accumulator.replace(batch, pieces, now_ms)

    def _fail_records(self, batch: ProducerBatch, result: PartitionResult, now_ms: float) -> None:
        """INVALID_RECORD or INVALID_TIMESTAMP with record errors: those fail alone, the rest is sent again as a
        new batch (rule A6). Only for a batch that no earlier attempt can have brought into the log: a broker judges
        records before it looks for a duplicate.

        (Kafka's own producer fails the rest too, with a general text: KIP-467.)
        """
        text = result.error_message or classify(result.error_code).text
        texts = {index: each or text for index, each in result.record_errors if 0 <= index < batch.count}
        if not texts:  # the indexes are none of ours: the batch fails whole
            self.error(batch, result.error_code, text, now_ms)
            return
        bad, good = batch.isolate(texts)
        if batch.has_sequence:
            self._ids.failed(batch)
        self._accumulator.forget((batch,))
        self.effects.append(Split(batch, batch.children))
        self.counts.record_errors += len(texts)
        for piece, piece_text in bad:
            piece.done(
                code=result.error_code, persistence=self._persistence(piece, doubtful=False), text=piece_text
            )
            self.completed.append(piece)
        if good is not None:
            good.attempts += 1
            good.last_error = classify(result.error_code).name
            self._accumulator.replace(batch, (good,), now_ms)
            if batch.last_chance is not None:
                self.fail(good, *batch.last_chance, now_ms)

    def fail(self, batch: ProducerBatch, code: int, text: str, now_ms: float) -> None:
        """Give the batch up. Its persistence says whether it may be in the log."""
        if batch.is_done:
            return
        # On the wire counts as in doubt: what was given to the driver may be sent before this is known there.
        batch.in_doubt = batch.may_be_in_log or batch.state is BatchState.ON_WIRE
        doubtful = batch.in_doubt
        if batch.lane == IDEMPOTENT_LANE and batch.has_sequence:
            self._ids.failed(batch)
        batch.done(code=code, persistence=self._persistence(batch, doubtful=doubtful), text=text)
        self.finish((batch,))
        self.settled((batch,), now_ms)

    @staticmethod
    def _persistence(batch: ProducerBatch, *, doubtful: bool) -> Persistence:
        if doubtful or batch.was_in_doubt:
            return Persistence.POSSIBLY_PERSISTED
        return Persistence.NOT_PERSISTED

    def finish(self, batches: Sequence[ProducerBatch]) -> None:
        """Their fates are decided: each completes now, or behind earlier ones of its partition that have none yet."""
        self._accumulator.forget(batches)
        for batch in batches:
            sequences = batch.queue.sequences
            if (
                sequences is not None
                and sequences.in_flight
                and batch.base_sequence != NO_SEQUENCE
                and sequences.is_overtaking(batch)
            ):
                sequences.parked.append(batch)
            else:
                self.completed.append(batch)

    def settled(self, batches: Sequence[ProducerBatch], now_ms: float) -> None:
        """After any change to these: settle the sequences of their partitions, put each where it belongs now."""
        for batch in batches:
            queue = batch.queue
            sequences = queue.sequences
            if sequences is not None:
                if sequences.renumber and not queue.wire_count:
                    self._fail_overtaken(queue, now_ms)
                if sequences.unresolved or sequences.renumber:
                    self._resolve(queue)
                if sequences.parked:
                    self.completed += sequences.take_parked()
            if queue.batches or queue.express or queue.line is not None or queue.timer_serial:
                self._accumulator.schedule.touch(queue, now_ms)

    def _resolve(self, queue: PartitionQueue) -> None:
        renumbered = self._ids.resolve(queue)
        for batch in renumbered:
            self._accumulator.back_to_start(batch)
        if renumbered:
            self.effects.append(Renumbered(tuple(reversed(renumbered))))
        sequences = queue.sequences
        assert sequences is not None
        if not (sequences.unresolved or sequences.renumber):
            queue.begin_again()

    def _fail_overtaken(self, queue: PartitionQueue, now_ms: float) -> None:
        """The broker said that it lacks these, and turned out to have a later one: see :meth:`_out_of_order`. The same
        holds for what a refused batch left behind to be sent again (:meth:`_fail_records`). Whether it has a later one
        that was given up in doubt, nobody will find out: what was in doubt before it gets no other number."""
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
    """For codes whose usual text names neither topic nor size; empty for all others."""
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return f"Not authorized to write to topic {batch.topic}."
    if code == Code.MESSAGE_TOO_LARGE:
        return (
            f"The record for topic {batch.topic} ({batch.size_bytes:,} bytes with its batch, before compression) is "
            "larger than the topic's max.message.bytes."
        )
    return ""
