"""Settlement: stores a decided batch's facts in the journal, in the one order that survives a crash.

Order: stored in the descriptor (code, base offset, append time) → written to the clients' outcome rings → released:
descriptor released → words done → descriptor free → pages back to the pool. Batches that were decided together take
each step together. After a crash between any two stores the next reader continues from there. At worst a client gets
an outcome twice, and uses it once.

A delivery is released when its outcome is in the client's outcome ring. A failure is released when the client has
acknowledged it. Until then its records keep their pages, so that they can become dead letters if the ack never comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import (
    NO_PARTITION,
    STAGE_BIT,
    WORD_DONE,
    WORD_FAILED_MIN,
    LocalCode,
    Persistence,
)
from sidecar.deadletter.letters import persistence_of
from sidecar.kernel import entry_payload, fail_remaining
from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.worker.outcomes.batched_outcomes import BatchedOutcomes, EarlyFailures, SharedBatch
from sidecar.worker.outcomes.failure_tally import FailureTally
from sidecar.worker.outcomes.failure_texts import invalid_partition_text, local_failure_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.kernel import Entry
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.effects import Decided
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.worker.outcomes.dead_letters import DeadLetters
    from sidecar.worker.outcomes.releases import Releases
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.streams.client_outcomes import ClientOutcomes
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.refusal import Refusal
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.streams.topic_queue import TopicQueue

_BY_CLUSTER: Final = frozenset({LocalCode.METADATA_TIMEOUT, LocalCode.UNAUTHENTICATED})
"""Failures whose text gets the sentence about the cluster appended."""

SLICES_MAX: Final = 256
"""Limit of slices in one BatchedOutcomes. Its batches and their pages are held until its last outcome is in the outcome
ring.
"""
BEAT_BATCHES: Final = 64
"""Limit of batches settled between two heartbeats. Each takes well under a millisecond unless it has many clients."""


class Settlement:
    """Stores outcomes in the journal, and gives them to the clients. Belongs to the worker's loop."""

    def __init__(
        self,
        *,
        config: ProducerConfig,
        memory: SlotMemory,
        sessions: Sessions,
        outboxes: Outboxes,
        dead_letters: DeadLetters,
        releases: Releases,
    ) -> None:
        self._config = config
        self._memory = memory
        self._outboxes = outboxes
        self._dead_letters = dead_letters
        self._releases = releases
        self._descriptors = memory.descriptors
        self._counters = memory.counters
        self._delivery_times = memory.histograms.delivery_times
        self._sessions = sessions
        self._by_row = sessions.by_row
        self.failures = FailureTally()
        self.cluster_error = ""
        """Sentence that says why no broker answers the controller; "" while one does."""
        self.is_login_refused = False
        """True while the brokers refuse the controller's login."""
        self.on_included: Callable[[ProducerBatch], None] = lambda batch: None
        """Called for each delivered batch of records of stages. Set where the worker is built."""

    def settle(self, effect: Decided, now_ms: float) -> None:
        """Settle batches whose outcomes the core has decided, in order. Adjacent ones with the same outcome are settled
        together.

        A large backlog that expires at once takes minutes, so heartbeats are stored in between.
        """
        batches, counters = effect.batches, self._counters
        start = 0
        while start < len(batches):
            code = batches[start].code
            stop = start + 1
            while stop < len(batches) and batches[stop].code == code and stop - start < BEAT_BATCHES:
                stop += 1
            alike = batches[start:stop]
            if code:
                self._store_failures(alike)
            else:
                delivered = before = counters.get("records_delivered_total")
                for batch in alike:
                    delivered += batch.records.count
                    self._descriptors.store_outcome(
                        batch.descriptor,
                        code=0,
                        base_offset=batch.base_offset,
                        append_time_ms=batch.append_time_ms,
                        persistence=batch.persistence,
                        counted=delivered,
                    )
                    self._delivery_times.observe_ages(batch.records, now_ms)
                counters.add(
                    {"records_delivered_total": delivered - before, "records_held": before - delivered}
                )
            # kill point: done.counted
            self.write(alike, now_ms)
            start = stop
            if start < len(batches):
                self._memory.beat()

    def _store_failures(self, batches: Sequence[ProducerBatch]) -> None:
        code = batches[0].code
        for batch in batches:
            if batch.descriptor != NO_DESCRIPTOR:
                self._descriptors.store_outcome(
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
            client = self._sessions.name_of(row, generation)
            self.failures.note(batch.topic, code, batch.text, batch.persistence, count, client, batch.cause)

    def write(self, batches: Sequence[ProducerBatch], now_ms: float) -> None:
        """Write the stored outcomes of batches to their clients. Also used again after a worker's death."""
        found: list[BatchedOutcomes] = []
        latest: dict[tuple[int, int], BatchedOutcomes] = {}
        is_failure = batches[0].code != 0
        most = 1 if is_failure else SLICES_MAX
        staged: list[ProducerBatch] = []
        for batch in batches:
            if batch.queue.transaction is not None and _is_staged(batch):
                staged.append(batch)
                continue
            if batch.descriptor != NO_DESCRIPTOR:
                self._releases.unreleased += 1
            records = batch.records
            count = records.slice_count
            shared = SharedBatch(count) if count > 1 else None
            for index in range(count):
                row, generation, its_records, share = records.slice_share(index)
                client = row, generation
                each = latest.get(client)
                if each is None or len(each.slices) == most:
                    each = latest[client] = BatchedOutcomes(self._releases, row, generation, is_failure)
                    found.append(each)
                each.slices.append((batch, index, its_records, share, shared))
        self._hand_over(found, now_ms)
        if staged:
            self._release_staged(staged)

    def _release_staged(self, batches: Sequence[ProducerBatch]) -> None:
        """Release batches of stages' records: these are nobody's, so their outcomes go to no client."""
        for batch in batches:
            if batch.descriptor != NO_DESCRIPTOR:
                self._releases.unreleased += 1
            if batch.code:
                # A successor must find the transaction as failed before it finds its records gone.
                assert batch.queue.transaction is not None
                batch.queue.transaction.store()
                self._releases.release_failed(batch, 0)
            else:
                self.on_included(batch)
        if not batches[0].code:
            self._releases.release_delivered(batches)

    def _hand_over(self, outcomes: Sequence[ClientOutcomes], now_ms: float) -> None:
        """Write the outcomes to each client's outcome ring, or queue them after its earlier ones. They wait
        only for others of its own client: a client that does not read its outcomes delays no other.
        """
        gone: list[ClientOutcomes] = []
        for each in outcomes:
            session = self._by_row.get(each.row)
            if (
                session is None
                or session.row.generation != each.generation
                or (session.is_gone and each.is_failure)
            ):
                # The client is gone or its row has a new owner: a delivery is released.
                is_waited_for = not (session is not None and session.has_cancelled)
                if each.is_failure and is_waited_for and each.may_be_letter:
                    gone.append(each)
                else:
                    each.release()
            elif session.unwritten:
                session.unwritten.append(each)
            elif each.write(session.row):
                self._outboxes.pending.add(session)
                if each.is_failure and not session.has_cancelled:
                    session.unacked.append((session.row.next_number - 1, each, now_ms))
                else:
                    each.release()
            else:
                session.unwritten.append(each)
                self._outboxes.pending.add(session)  # some of its outcomes may have been written
                if session.ring_full_since_ms is None:
                    session.ring_full_since_ms = now_ms
        if gone:
            self._dead_letters.put(gone)

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

        ``is_repeat``: a worker that has died may have counted these failures already. Whose transaction they fail is
        for the caller to say.
        """
        if text is None:
            text = self._text_of(queue, entry, failures)
            if failures[0][1] in _BY_CLUSTER and self.cluster_error:
                text += f" {self.cluster_error}"
        if not is_repeat:
            client = self._sessions.name_of(entry.client_row, entry.client_generation)
            for code, records in Counter(code for _, code in failures).items():
                self.failures.note(queue.topic, code, text, persistence_of(code), records, client)
        transaction = None if is_repeat else queue.transaction
        if transaction is not None and failures[0][1] != LocalCode.TXN_ABORTED:
            transaction.batch_failed(queue.topic, NO_PARTITION, failures[0][1], text)
        if entry.txn_number & STAGE_BIT:
            if queue.transaction is not None:
                queue.transaction.store()
            self._releases.release_unsent(queue.chain, entry, [index for index, _ in failures], dead=False)
            return
        early = EarlyFailures(self._releases, queue.chain, entry, failures, text, queue.topic)
        self._hand_over((early,), now_ms)

    def _text_of(self, queue: TopicQueue, entry: Entry, failures: list[tuple[int, int]]) -> str:
        code = failures[0][1]
        if code != LocalCode.INVALID_PARTITION:
            return local_failure_text(code, queue.topic, self._config)
        indexes = [index for index, each in failures if each == code]
        return invalid_partition_text(
            queue.topic, queue.partition_count, entry_payload(queue.chain, entry), indexes
        )

    def refuse(self, queue: TopicQueue, entry: Entry, refusal: Refusal, now_ms: float) -> None:
        """Fail an entry as a whole whose records were refused. Its payload is not stored, so a successor cannot read
        it.
        """
        indexes = fail_remaining(queue.chain, entry, refusal.code)
        failures = [(each, int(refusal.code)) for each in indexes]
        self.fail_records(queue, entry, failures, now_ms, refusal.text)


def _is_staged(batch: ProducerBatch) -> bool:
    return batch.records.slice_entry(0).txn_number & STAGE_BIT != 0
