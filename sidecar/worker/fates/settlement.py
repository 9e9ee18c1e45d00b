"""Settlement: stores a decided batch's facts in the journal, in the one order that survives a crash.

Order: descriptor settled (code, base offset, append time) → outcomes in the clients' outcome rings (Acker) →
descriptor completed → words done → descriptor free → pages back to the pool. Batches that were decided together take
each step together. After a crash between any two stores the next reader continues from there. At worst a client gets
an outcome twice, and completes it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from client_stub.wire import WORD_DONE, WORD_FAILED_MIN, LocalCode, Persistence
from sidecar.deadletter.letters import persistence_of
from sidecar.kernel import fail_remaining, mark_failed_done
from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.shm.descriptor_states import DescriptorEvent
from sidecar.worker.fates.completions import SLICES_MAX, BatchCompletion, RecordsCompletion, SharedBatch
from sidecar.worker.fates.failure_tally import FailureTally
from sidecar.worker.fates.failure_texts import local_failure_text

if TYPE_CHECKING:
    from sidecar.kernel import Chain, Entry
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.effects import Completed
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.slots import SlotView
    from sidecar.worker.fates.acker import Acker
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.streams.refusal import Refusal
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.streams.topic_queue import TopicQueue

_COMPLETE: Final = DescriptorEvent.COMPLETE
_FREE: Final = DescriptorEvent.FREE
_BY_CLUSTER: Final = frozenset({LocalCode.METADATA_TIMEOUT, LocalCode.UNAUTHENTICATED})
"""Failures whose text gets the sentence about the cluster appended."""

BEAT_BATCHES: Final = 64
"""Limit of batches settled between two heartbeats. Each takes well under a millisecond unless it has many clients."""


class Settlement:
    """Stores fates in the journal and passes them to clients through the acker. Belongs to the worker's loop."""

    def __init__(
        self, *, config: ProducerConfig, memory: SlotMemory, sessions: Sessions, acker: Acker
    ) -> None:
        self._config = config
        self._memory = memory
        self._acker = acker
        self._descriptors = memory.descriptors
        self._slot = memory.slot
        self._counters = memory.counters
        self._delivery_times = memory.histograms.delivery_times
        self.sessions = sessions
        self.failures = FailureTally()
        self.cluster_error = ""
        """Sentence that says why no broker answers the controller; "" while one does."""
        self.is_login_refused = False
        """True while the brokers refuse the controller's login."""
        self._incomplete = 0
        """Number of descriptors whose batch is settled and not yet complete."""
        self.finished_chains: set[Chain] = set()
        """Chains in which an entry became done since :meth:`take_finished_chains`."""

    def settle(self, effect: Completed, now_ms: float) -> None:
        """Settle batches whose fates the core has decided, in order. Adjacent ones with the same fate are settled
        together.

        A large backlog that expires at once takes minutes, so heartbeats are stored in between.
        """
        batches = effect.batches
        start = 0
        while start < len(batches):
            code = batches[start].code
            stop = start + 1
            while stop < len(batches) and batches[stop].code == code and stop - start < BEAT_BATCHES:
                stop += 1
            alike = batches[start:stop]
            if code:
                self._settle_failed(alike)
            else:
                self._settle_delivered(alike, now_ms)
            # kill point: done.counted
            self.complete(alike, now_ms)
            start = stop
            if start < len(batches):
                self._memory.beat()

    def _settle_delivered(self, batches: Sequence[ProducerBatch], now_ms: float) -> None:
        delivered = before = self._counters.get("records_delivered_total")
        for batch in batches:
            delivered += batch.records.count
            self._descriptors.settle(
                batch.descriptor,
                code=0,
                base_offset=batch.base_offset,
                append_time_ms=batch.append_time_ms,
                persistence=batch.persistence,
                counted=delivered,
            )
            self._delivery_times.observe_ages(batch.records, now_ms)
        self._counters.count_delivered(delivered - before)

    def _settle_failed(self, batches: Sequence[ProducerBatch]) -> None:
        code = batches[0].code
        for batch in batches:
            if batch.descriptor != NO_DESCRIPTOR:
                self._descriptors.settle(
                    batch.descriptor,
                    code=code,
                    base_offset=batch.base_offset,
                    append_time_ms=batch.append_time_ms,
                    persistence=batch.persistence,
                )
            else:
                # The batch was never drained: its failure is stored in the words, which hold only codes of our own.
                own = WORD_FAILED_MIN <= code < WORD_DONE
                batch.records.mark_failed(code if own else int(LocalCode.ABORTED))
            count = batch.records.count
            if batch.persistence == Persistence.POSSIBLY_PERSISTED:
                self._counters.inc("records_possibly_persisted_total", count)
            row, generation, _, _ = batch.records.slice_share(0)
            client = self.sessions.name_of(row, generation)
            self.failures.note(batch.topic, code, batch.text, batch.persistence, count, client)

    def complete(self, batches: Sequence[ProducerBatch], now_ms: float) -> None:
        """Write the outcomes of settled batches to their clients. Also used again after a worker's death."""
        completions: list[BatchCompletion] = []
        latest: dict[tuple[int, int], BatchCompletion] = {}
        is_failure = batches[0].code != 0
        most = 1 if is_failure else SLICES_MAX
        for batch in batches:
            if batch.descriptor != NO_DESCRIPTOR:
                self._incomplete += 1
            records = batch.records
            count = records.slice_count
            shared = SharedBatch(count) if count > 1 else None
            for index in range(count):
                row, generation, its_records, share = records.slice_share(index)
                client = row, generation
                each = latest.get(client)
                if each is None or len(each.slices) == most:
                    each = latest[client] = BatchCompletion(self, row, generation, is_failure)
                    completions.append(each)
                each.slices.append((batch, index, its_records, share, shared))
        self._acker.complete(completions, now_ms)

    @property
    def descriptors_are_scarce(self) -> bool:
        """True if batches whose clients do not read their outcomes hold more than half of the descriptor table. They
        must not take the rest. Batches on their way to a broker do not count: they may use the whole table.
        """
        return self._incomplete > self._descriptors.capacity // 2

    def fail_records(
        self,
        queue: TopicQueue,
        entry: Entry,
        failures: list[tuple[int, int]],
        now_ms: float,
        text: str | None = None,
        *,
        is_repeat: bool = False,
    ) -> None:
        """Fail records before sending. Their words already hold the codes. ``text`` None: use the code's own text.

        ``is_repeat``: a worker that has died may have counted these failures already.
        """
        if text is None:
            text = local_failure_text(failures[0][1], queue.topic, queue.partition_count, self._config)
            if failures[0][1] in _BY_CLUSTER and self.cluster_error:
                text += f" {self.cluster_error}"
        if not is_repeat:
            client = self.sessions.name_of(entry.client_row, entry.client_generation)
            for code, records in Counter(code for _, code in failures).items():
                self.failures.note(queue.topic, code, text, persistence_of(code), records, client)
        completion = RecordsCompletion(self, queue.chain, entry, failures, text, queue.topic)
        self._acker.complete([completion], now_ms)

    def refuse(self, queue: TopicQueue, entry: Entry, refusal: Refusal, now_ms: float) -> None:
        """Fail an entry as a whole whose records were refused. Its payload is not stored, so a successor cannot read
        it.
        """
        indexes = fail_remaining(queue.chain, entry, refusal.code)
        failures = [(each, int(refusal.code)) for each in indexes]
        self.fail_records(queue, entry, failures, now_ms, refusal.text)

    def take_finished_chains(self) -> set[Chain]:
        """Remove and return the chains in which an entry became done since the last call: they may have pages to give
        back.
        """
        chains, self.finished_chains = self.finished_chains, set()
        return chains

    def end_delivered(self, batches: Sequence[ProducerBatch]) -> None:
        """Mark batches as done whose clients all have their outcomes."""
        indexes: list[int] = []
        for batch in batches:
            indexes.append(batch.descriptor)
        self._descriptors.step(_COMPLETE, *indexes)
        for batch in batches:
            finished = batch.records.mark_done()
            # kill point: words.done
            if finished:
                assert batch.chain is not None
                self.finished_chains.add(batch.chain)
            batch.descriptor = NO_DESCRIPTOR
        self._descriptors.step(_FREE, *indexes)
        self._incomplete -= len(indexes)

    def end_failed(self, batch: ProducerBatch, dead: int) -> None:
        """Mark a failed batch as done: every client has acknowledged it, or its records are letters. ``dead``: its
        records that became dead letters.
        """
        index = batch.descriptor
        if index == NO_DESCRIPTOR:
            with _WordsThenCounted(self._slot, batch.records.count, dead):
                finished = batch.records.mark_done()
                # kill point: words.done
        else:
            self._complete_failed(index, batch.records.count - dead, dead)
            finished = batch.records.mark_done()
            # kill point: words.done
            self._descriptors.step(_FREE, index)
            batch.descriptor = NO_DESCRIPTOR
            self._incomplete -= 1
        if finished:
            assert batch.chain is not None
            self.finished_chains.add(batch.chain)

    def _complete_failed(self, index: int, failed: int, dead: int) -> None:
        """Complete the descriptor and count it in one store: the descriptor holds the counters' new values."""
        counters = self._counters
        self._descriptors.complete_failed(
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

    def end_records(self, completion: RecordsCompletion, *, dead: bool) -> None:
        """Mark failed records as done: the client has their outcomes, or they are ``dead`` letters."""
        count = len(completion.failures)
        with _WordsThenCounted(self._slot, count, count if dead else 0):
            mark_failed_done(completion.chain, completion.entry, [index for index, _ in completion.failures])
        self.finished_chains.add(completion.chain)


class _WordsThenCounted:
    """Context for failures that only the words record: the words become done inside it, and are counted at its end.

    If the worker dies in between, the records have ended without being counted. The slot says how many of them are
    dead letters, and the adoption counts them.
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
