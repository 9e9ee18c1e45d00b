"""Settlement: what a decided batch still owes the journal, in the one order that survives a crash.

descriptor settled (code, base offset, append time) → outcomes in the clients' rings → descriptor told →
words done → lane row stored → descriptor free → pages back to the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from client_stub.wire import WORD_DONE, WORD_FAILED_MIN, LocalCode, Persistence
from sidecar.common.kill_points import ARMED, passed
from sidecar.kernel import fail_remaining, mark_failed_done
from sidecar.producer.lanes import IDEMPOTENT_LANE, NO_SEQUENCE
from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.worker.publication import free_descriptor, split
from sidecar.worker.tellings import BatchTelling, FailurePart, Teller, local_failure_text

if TYPE_CHECKING:
    from sidecar.kernel import Chain, Entry
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.descriptors import DescriptorTable, LaneRows
    from sidecar.shm.slots import Counters, SlotView
    from sidecar.worker.intake import Refusal
    from sidecar.worker.sessions import Sessions
    from sidecar.worker.topic_queue import TopicQueue


class Settlement:
    """Brings fates to the journal and to the clients. Owned by the worker's loop."""

    def __init__(
        self,
        *,
        config: ProducerConfig,
        teller: Teller,
        descriptors: DescriptorTable,
        lane_rows: LaneRows,
        slot: SlotView,
        sessions: Sessions,
    ) -> None:
        self._config = config
        self._teller = teller
        self._descriptors = descriptors
        self._lane_rows = lane_rows
        self._slot = slot
        self._counters: Counters = slot.counters
        self._on_records_settled = sessions.records_settled
        self._untold = 0
        """Descriptors of batches whose fate is a fact and not told yet."""
        self.finished_chains: set[Chain] = set()
        """Chains in which something became done since :meth:`take_finished_chains`."""

    def settle_batch(self, batch: ProducerBatch, now_ms: float) -> None:
        """A batch's fate is decided: make it a fact, then tell."""
        count = batch.records.count
        if batch.descriptor != NO_DESCRIPTOR:
            delivered = 0 if batch.code else self._counters.get("records_delivered_total") + count
            self._descriptors.settle(
                batch.descriptor,
                code=batch.code,
                base_offset=batch.base_offset,
                append_time_ms=batch.append_time_ms,
                persistence=batch.persistence,
                counted=delivered,
            )
        elif batch.code:
            # Never drained: the failure is a fact by its words, which hold our own codes only.
            own = WORD_FAILED_MIN <= batch.code < WORD_DONE
            batch.records.mark_failed(batch.code if own else int(LocalCode.ABORTED))
        if not batch.code:
            self._counters.count_delivered(count)
        elif batch.persistence == Persistence.POSSIBLY_PERSISTED:
            self._counters.inc("records_possibly_persisted_total", count)
        if ARMED:
            passed("done.counted")
        self.tell(batch, now_ms)

    def tell(self, batch: ProducerBatch, now_ms: float) -> None:
        """Tell a batch whose fate is a fact and counted; also once more, when nobody knows whether it was told."""
        if batch.descriptor != NO_DESCRIPTOR:
            self._untold += 1
        telling = BatchTelling(batch, self._batch_told)
        self._teller.tell(telling.parts(self._on_records_settled), now_ms)

    @property
    def descriptors_are_scarce(self) -> bool:
        """More than half of the table is held by batches that their clients do not read: they must not take the rest.
        Those on their way to a broker do not count: of them there may be as many as the table has."""
        return self._untold > self._descriptors.capacity // 2

    def fail_records(
        self,
        queue: TopicQueue,
        entry: Entry,
        failures: list[tuple[int, int]],
        now_ms: float,
        text: str | None = None,
    ) -> None:
        """Records that fail before sending; their words carry the codes already. ``text`` None: what the code says."""
        if text is None:
            text = local_failure_text(failures[0][1], queue.topic, queue.partition_count, self._config)
        part = FailurePart(
            queue.chain,
            entry,
            failures,
            text,
            queue.topic,
            self._failure_told,
            self._on_records_settled,
        )
        self._teller.tell([part], now_ms)

    def refuse(self, queue: TopicQueue, entry: Entry, refusal: Refusal, now_ms: float) -> None:
        """An entry that stands for records which were not taken fails whole. A successor finds it unreadable."""
        indexes = fail_remaining(queue.chain, entry, refusal.code)
        failures = [(each, int(refusal.code)) for each in indexes]
        self.fail_records(queue, entry, failures, now_ms, refusal.text)

    def split(self, parent: ProducerBatch, pieces: Sequence[ProducerBatch]) -> None:
        """The pieces take the place of a batch that the broker refused."""
        split(self._descriptors, parent, pieces)

    def free_descriptor(self, batch: ProducerBatch) -> None:
        """A batch that loses its identity."""
        free_descriptor(self._descriptors, batch)

    def take_finished_chains(self) -> set[Chain]:
        """Chains in which something became done since the last call: they may have pages to give back."""
        chains, self.finished_chains = self.finished_chains, set()
        return chains

    def _batch_told(self, telling: BatchTelling) -> None:
        batch, dead = telling.batch, telling.dead
        index = batch.descriptor
        if index == NO_DESCRIPTOR:
            with _WordsThenCounted(self._slot, batch.records.count, dead):
                finished = batch.records.mark_done()
                if ARMED:
                    passed("words.done")
        else:
            if batch.code:
                self._count_told(index, batch.records.count - dead, dead)
            else:
                self._descriptors.told(index)
            finished = batch.records.mark_done()
            if ARMED:
                passed("words.done")
        assert batch.chain is not None
        if index != NO_DESCRIPTOR:
            if batch.lane == IDEMPOTENT_LANE and batch.base_sequence != NO_SEQUENCE:
                self._lane_rows.store(batch.chain.chain_id, batch.partition, batch.epoch, batch.next_sequence)
            self._descriptors.free(index)
            batch.descriptor = NO_DESCRIPTOR
            self._untold -= 1
        if finished:
            self.finished_chains.add(batch.chain)

    def _count_told(self, index: int, failed: int, dead: int) -> None:
        """Told and how it counts are one fact: the descriptor has the counters as they are to be."""
        counters = self._counters
        self._descriptors.told(
            index,
            failed_counted=counters.get("records_failed_total") + failed,
            dead_counted=counters.get("records_dead_lettered_total") + dead,
        )
        counters.add(
            {
                "records_failed_total": failed,
                "records_dead_lettered_total": dead,
                "records_held": -failed - dead,
            }
        )

    def _failure_told(self, part: FailurePart, dead: bool) -> None:
        count = len(part.failures)
        with _WordsThenCounted(self._slot, count, count if dead else 0):
            mark_failed_done(part.chain, part.entry, [index for index, _ in part.failures])
        self.finished_chains.add(part.chain)


class _WordsThenCounted:
    """Failures that are a fact by their words alone: words := done inside, counted after.

    A worker that dies in between leaves records that ended and are not counted; how many of them are dead letters
    stands in the slot, and adoption counts them.
    """

    __slots__ = ("_count", "_dead", "_slot")

    def __init__(self, slot: SlotView, count: int, dead: int) -> None:
        self._slot = slot
        self._count = count
        self._dead = dead

    def __enter__(self) -> None:
        if self._dead:
            self._slot.dead_lettering = self._dead

    def __exit__(self, *error: object) -> None:
        self._slot.counters.add(
            {
                "records_failed_total": self._count - self._dead,
                "records_dead_lettered_total": self._dead,
                "records_held": -self._count,
            }
        )
        if self._dead:
            self._slot.dead_lettering = 0
