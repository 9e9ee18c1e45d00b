"""Settlement: the facts that a decided batch owes the journal, in the one order that survives a crash.

descriptor settled (code, base offset, append time) → outcomes in the clients' outcome rings (Acker) → descriptor
completed → words done → descriptor free → pages back to the pool. Batches that were decided together take each step
together. A crash between any two stores leaves a state from which the next reader goes on; at worst a client gets an
outcome twice and completes it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from client_stub.wire import WORD_DONE, WORD_FAILED_MIN, LocalCode, Persistence
from sidecar.deadletter.letters import persistence_of
from sidecar.kernel import fail_remaining, mark_failed_done
from sidecar.producer.producer_batch import NO_DESCRIPTOR
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

_BY_CLUSTER: Final = frozenset({LocalCode.METADATA_TIMEOUT, LocalCode.UNAUTHENTICATED})
"""Failures to which the cluster's sentence belongs."""

BEAT_BATCHES: Final = 64
"""Batches that are settled together, between two heartbeats: each in well under a millisecond unless its client has
many."""


class Settlement:
    """Brings fates to the journal, and to the clients by the acker. Owned by the worker's loop."""

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
        """The sentence why no broker answers the controller; empty while one does."""
        self.is_login_refused = False
        """The brokers refuse the controller's login."""
        self._incomplete = 0
        """Descriptors of batches whose fate is a fact and not complete yet."""
        self.finished_chains: set[Chain] = set()
        """Chains in which something became done since :meth:`take_finished_chains`."""

    def settle(self, effect: Completed, now_ms: float) -> None:
        """Batches whose fate the core has decided: neighbours with the same fate together, all in their order.

        A backlog that expires at once is minutes of work: no silence."""
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
                # Never drained: the failure is a fact by its words, which hold our own codes only.
                own = WORD_FAILED_MIN <= code < WORD_DONE
                batch.records.mark_failed(code if own else int(LocalCode.ABORTED))
            count = batch.records.count
            if batch.persistence == Persistence.POSSIBLY_PERSISTED:
                self._counters.inc("records_possibly_persisted_total", count)
            row, generation, _, _ = batch.records.slice_share(0)
            client = self.sessions.name_of(row, generation)
            self.failures.note(batch.topic, code, batch.text, batch.persistence, count, client)

    def complete(self, batches: Sequence[ProducerBatch], now_ms: float) -> None:
        """Give the clients of these batches their outcomes, the fate of all being a fact; also once more, after a
        death."""
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
        """More than half of the table is held by batches that their clients do not read: they must not take the rest.
        Those on their way to a broker do not count: of them there may be as many as the table has."""
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
        """Records that fail before sending; their words carry the codes already. ``text`` None: what the code says.

        ``is_repeat``: a worker that has died may have counted them among its failures.
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
        """An entry that stands for records which were not taken fails whole. A successor finds it unreadable."""
        indexes = fail_remaining(queue.chain, entry, refusal.code)
        failures = [(each, int(refusal.code)) for each in indexes]
        self.fail_records(queue, entry, failures, now_ms, refusal.text)

    def take_finished_chains(self) -> set[Chain]:
        """Chains in which something became done since the last call: they may have pages to give back."""
        chains, self.finished_chains = self.finished_chains, set()
        return chains

    def end_delivered(self, batches: Sequence[ProducerBatch]) -> None:
        """Every client of these batches has its outcomes."""
        indexes: list[int] = []
        for batch in batches:
            indexes.append(batch.descriptor)
        self._descriptors.complete(*indexes)
        for batch in batches:
            finished = batch.records.mark_done()
            # kill point: words.done
            if finished:
                assert batch.chain is not None
                self.finished_chains.add(batch.chain)
            batch.descriptor = NO_DESCRIPTOR
        self._descriptors.free(*indexes)
        self._incomplete -= len(indexes)

    def end_failed(self, batch: ProducerBatch, dead: int) -> None:
        """Every client of the batch has acknowledged its outcomes; ``dead`` of its records are dead letters."""
        index = batch.descriptor
        if index == NO_DESCRIPTOR:
            with _WordsThenCounted(self._slot, batch.records.count, dead):
                finished = batch.records.mark_done()
                # kill point: words.done
        else:
            self._complete_failed(index, batch.records.count - dead, dead)
            finished = batch.records.mark_done()
            # kill point: words.done
            self._descriptors.free(index)
            batch.descriptor = NO_DESCRIPTOR
            self._incomplete -= 1
        if finished:
            assert batch.chain is not None
            self.finished_chains.add(batch.chain)

    def _complete_failed(self, index: int, failed: int, dead: int) -> None:
        """Complete and counted is one fact: the descriptor has the counters as they are to be."""
        counters = self._counters
        self._descriptors.complete(
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
        """The client has the outcomes of these records, or they are ``dead`` letters."""
        count = len(completion.failures)
        with _WordsThenCounted(self._slot, count, count if dead else 0):
            mark_failed_done(completion.chain, completion.entry, [index for index, _ in completion.failures])
        self.finished_chains.add(completion.chain)


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
