"""Settlement: what a decided batch still owes the journal, in the one order that survives a crash.

descriptor settled (code, base offset, append time) → outcomes in the clients' rings → descriptor told →
words done → lane row stored → descriptor free → pages back to the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_stub.wire import WORD_DONE, WORD_FAILED_MIN, LocalCode, Persistence
from sidecar.producer.lanes import IDEMPOTENT_LANE
from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.worker.tellings import BatchTelling, FailurePart, OnRecordsSettled, Teller, local_failure_text

if TYPE_CHECKING:
    from sidecar.kernel import Chain, Entry
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.descriptors import DescriptorTable, LaneRows
    from sidecar.shm.slots import Counters
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
        counters: Counters,
        on_records_settled: OnRecordsSettled,
    ) -> None:
        self._config = config
        self._teller = teller
        self._descriptors = descriptors
        self._lane_rows = lane_rows
        self._counters = counters
        self._on_records_settled = on_records_settled
        self._finished_chains: set[Chain] = set()

    def settle_batch(self, batch: ProducerBatch, now_ms: float) -> None:
        """A batch's fate is decided: make it a fact, then tell."""
        count = batch.records.count
        if batch.descriptor != NO_DESCRIPTOR:
            row = "records_failed_total" if batch.code else "records_delivered_total"
            self._descriptors.settle(
                batch.descriptor,
                code=batch.code,
                base_offset=batch.base_offset,
                append_time_ms=batch.append_time_ms,
                persistence=batch.persistence,
                counted=self._counters.get(row) + count,
            )
        elif batch.code:
            # Never drained: the failure is a fact by its words, which hold our own codes only.
            own = WORD_FAILED_MIN <= batch.code < WORD_DONE
            batch.records.mark_failed(batch.code if own else int(LocalCode.ABORTED))
        if batch.code:
            self._counters.inc("records_failed_total", count)
            if batch.persistence == Persistence.POSSIBLY_PERSISTED:
                self._counters.inc("records_possibly_persisted_total", count)
        else:
            self._counters.inc("records_delivered_total", count)
        self.tell(batch, now_ms)

    def tell(self, batch: ProducerBatch, now_ms: float) -> None:
        """Tell a batch whose fate is a fact and counted; also once more, when nobody knows whether it was told."""
        telling = BatchTelling(batch, self._batch_told)
        self._teller.tell(telling.parts(self._on_records_settled), now_ms)

    def fail_records(
        self, queue: TopicQueue, entry: Entry, failures: list[tuple[int, int]], now_ms: float
    ) -> None:
        """Records that fail before sending; their words carry the codes already."""
        self._counters.inc("records_failed_total", len(failures))
        text = local_failure_text(failures[0][1], queue.topic, queue.partition_count, self._config)
        part = FailurePart(queue.chain, entry, failures, text, self._failure_told, self._on_records_settled)
        self._teller.tell([part], now_ms)

    def free_descriptor(self, batch: ProducerBatch) -> None:
        """A batch that loses its identity (renumbered) or whose pieces took its place (split)."""
        if batch.descriptor != NO_DESCRIPTOR:
            self._descriptors.free(batch.descriptor)
            batch.descriptor = NO_DESCRIPTOR

    def take_finished_chains(self) -> set[Chain]:
        """Chains in which something became done since the last call: they may have pages to give back."""
        chains, self._finished_chains = self._finished_chains, set()
        return chains

    def _batch_told(self, batch: ProducerBatch) -> None:
        index = batch.descriptor
        if index != NO_DESCRIPTOR:
            self._descriptors.told(index)
        finished = batch.records.mark_done()
        assert batch.chain is not None
        if index != NO_DESCRIPTOR:
            if batch.lane == IDEMPOTENT_LANE and batch.has_sequence:
                self._lane_rows.store(batch.chain.chain_id, batch.partition, batch.epoch, batch.next_sequence)
            self._descriptors.free(index)
            batch.descriptor = NO_DESCRIPTOR
        if finished:
            self._finished_chains.add(batch.chain)

    def _failure_told(self, chain: Chain) -> None:
        self._finished_chains.add(chain)
