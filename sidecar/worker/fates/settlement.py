"""Settlement: stores a decided batch's facts in the journal, in the one order that survives a crash.

Order: descriptor settled (code, base offset, append time) → outcomes in the clients' outcome rings →
descriptor completed → words done → descriptor free → pages back to the pool. Batches that were decided together take
each step together. After a crash between any two stores the next reader continues from there. At worst a client gets
an outcome twice, and completes it once.

A delivery is complete when its outcome is in the client's outcome ring. A failure is complete when the client has
acknowledged it. Until then its records keep their pages, so that they can become dead letters if the ack never comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from client_stub.contract.wire import WORD_DONE, WORD_FAILED_MIN, LocalCode, OutcomeKind, Persistence
from sidecar.deadletter.letters import persistence_of
from sidecar.kernel import entry_payload, fail_remaining
from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.shm.descriptor_states import DescriptorEvent
from sidecar.worker.fates.completions import RecordsCompletion, WordsThenCounted, batch_undelivered
from sidecar.worker.fates.failure_tally import FailureTally
from sidecar.worker.fates.failure_texts import invalid_partition_text, local_failure_text

if TYPE_CHECKING:
    from sidecar.deadletter.letters import Undelivered
    from sidecar.kernel import Chain, Entry
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.effects import Completed
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.shm.client_table import ClientRow
    from sidecar.worker.fates.dead_letters import DeadLetters
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.streams.completion import Completion, NameOf
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.refusal import Refusal
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.streams.topic_queue import TopicQueue

_BY_CLUSTER: Final = frozenset({LocalCode.METADATA_TIMEOUT, LocalCode.UNAUTHENTICATED})
"""Failures whose text gets the sentence about the cluster appended."""

_TEXT_BYTES = 512
"""Limit of an outcome's text in bytes; the rest is cut off."""
SLICES_MAX: Final = 256
"""Limit of slices in one completion. Its batches and their pages are held until its last outcome is in the outcome
ring.
"""
_COMPLETE: Final = DescriptorEvent.COMPLETE
_FREE: Final = DescriptorEvent.FREE
_DELIVERED: Final = OutcomeKind.DELIVERED
_FAILED: Final = OutcomeKind.FAILED
"""Cached: reading an enum member through its class costs as much as a call, and these are used for each batch."""
BEAT_BATCHES: Final = 64
"""Limit of batches settled between two heartbeats. Each takes well under a millisecond unless it has many clients."""


class Settlement:
    """Stores fates in the journal, and gives their outcomes to the clients. Belongs to the worker's loop."""

    def __init__(
        self,
        *,
        config: ProducerConfig,
        memory: SlotMemory,
        sessions: Sessions,
        outboxes: Outboxes,
        dead_letters: DeadLetters,
    ) -> None:
        self._config = config
        self._memory = memory
        self._outboxes = outboxes
        self._dead_letters = dead_letters
        self.descriptors = memory.descriptors
        self.slot = memory.slot
        self._counters = memory.counters
        self._delivery_times = memory.histograms.delivery_times
        self.sessions = sessions
        self.by_row = sessions.by_row
        self.failures = FailureTally()
        self.cluster_error = ""
        """Sentence that says why no broker answers the controller; "" while one does."""
        self.is_login_refused = False
        """True while the brokers refuse the controller's login."""
        self.incomplete = 0
        """Number of descriptors whose batch is settled and not yet complete."""
        self.finished_chains: set[Chain] = set()
        """Chains in which an entry became done: they may have pages to give back. The driver empties it."""

    def settle(self, effect: Completed, now_ms: float) -> None:
        """Settle batches whose fates the core has decided, in order. Adjacent ones with the same fate are settled
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
                    self.descriptors.settle(
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
            self.complete(alike, now_ms)
            start = stop
            if start < len(batches):
                self._memory.beat()

    def _store_failures(self, batches: Sequence[ProducerBatch]) -> None:
        code = batches[0].code
        for batch in batches:
            if batch.descriptor != NO_DESCRIPTOR:
                self.descriptors.settle(
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
            self.failures.note(batch.topic, code, batch.text, batch.persistence, count, client, batch.cause)

    def complete(self, batches: Sequence[ProducerBatch], now_ms: float) -> None:
        """Write the outcomes of settled batches to their clients. Also used again after a worker's death."""
        completions: list[BatchCompletion] = []
        latest: dict[tuple[int, int], BatchCompletion] = {}
        is_failure = batches[0].code != 0
        most = 1 if is_failure else SLICES_MAX
        for batch in batches:
            if batch.descriptor != NO_DESCRIPTOR:
                self.incomplete += 1
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
        self._hand_over(completions, now_ms)

    def _hand_over(self, completions: Sequence[Completion], now_ms: float) -> None:
        """Write the outcomes to each client's outcome ring, or queue them behind its earlier ones. A completion waits
        only behind others of its own client: a client that does not read its outcomes delays no other.
        """
        gone: list[Completion] = []
        for each in completions:
            session = self.by_row.get(each.row)
            if (
                session is None
                or session.row.generation != each.generation
                or (session.is_gone and each.is_failure)
            ):
                # The client is gone or its row has a new owner: a delivery counts as complete.
                if each.is_failure and not (session is not None and session.has_cancelled):
                    gone.append(each)
                else:
                    each.finish()
            elif session.unwritten:
                session.unwritten.append(each)
            elif each.write(session.row):
                self._outboxes.pending.add(session)
                if each.is_failure and not session.has_cancelled:
                    session.unacked.append((session.row.next_number - 1, each, now_ms))
                else:
                    each.finish()
            else:
                session.unwritten.append(each)
                self._outboxes.pending.add(session)  # some of its outcomes may have been written
                if session.ring_full_since_ms is None:
                    session.ring_full_since_ms = now_ms
        if gone:
            self._dead_letters.put(gone)

    @property
    def descriptors_are_scarce(self) -> bool:
        """True if batches whose clients do not read their outcomes hold more than half of the descriptor table. They
        must not take the rest. Batches on their way to a broker do not count: they may use the whole table.
        """
        return self.incomplete > self.descriptors.capacity // 2

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
            text = self._text_of(queue, entry, failures)
            if failures[0][1] in _BY_CLUSTER and self.cluster_error:
                text += f" {self.cluster_error}"
        if not is_repeat:
            client = self.sessions.name_of(entry.client_row, entry.client_generation)
            for code, records in Counter(code for _, code in failures).items():
                self.failures.note(queue.topic, code, text, persistence_of(code), records, client)
        completion = RecordsCompletion(self, queue.chain, entry, failures, text, queue.topic)
        self._hand_over((completion,), now_ms)

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

    def end_failed(self, batch: ProducerBatch, dead: int) -> None:
        """Mark a failed batch as done: every client has acknowledged it, or its records are letters. ``dead``: its
        records that became dead letters.
        """
        index = batch.descriptor
        if index == NO_DESCRIPTOR:
            with WordsThenCounted(self.slot, batch.records.count, dead):
                finished = batch.records.mark_done()
                # kill point: words.done
        else:
            self._complete_failed(index, batch.records.count - dead, dead)
            finished = batch.records.mark_done()
            # kill point: words.done
            self.descriptors.step(_FREE, index)
            batch.descriptor = NO_DESCRIPTOR
            self.incomplete -= 1
        if finished:
            assert batch.chain is not None
            self.finished_chains.add(batch.chain)

    def _complete_failed(self, index: int, failed: int, dead: int) -> None:
        """Complete the descriptor and count it in one store: the descriptor holds the counters' new values."""
        counters = self._counters
        self.descriptors.complete_failed(
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


class SharedBatch:
    """Counts the slices of a batch that has several. The batch is complete when all of them are."""

    __slots__ = ("dead", "remaining")

    def __init__(self, slices: int) -> None:
        self.remaining = slices
        self.dead = 0
        """Number of records that became dead letters."""


Slice: TypeAlias = "tuple[ProducerBatch, int, int, int, SharedBatch | None]"
"""The records of one submission in one batch: (batch, index of the slice, record count, bytes in the client's share,
the batch's SharedBatch or None).
"""


class BatchCompletion:
    """Slices of batches that were decided together, all of one client, and all delivered or all failed.

    A failure has one slice, because it waits for the ack of its own outcome.
    """

    __slots__ = ("_settlement", "_written", "generation", "is_failure", "row", "slices")

    def __init__(self, settlement: Settlement, row: int, generation: int, is_failure: bool) -> None:
        self._settlement = settlement
        self.row = row
        self.generation = generation
        self.is_failure = is_failure
        self.slices: list[Slice] = []
        """Filled by the caller that makes the completion."""
        self._written = 0
        """Number of slices whose outcomes are in the outcome ring."""

    @property
    def outcomes(self) -> int:
        return len(self.slices)

    @property
    def topic(self) -> str:
        return self.slices[0][0].topic

    @property
    def record_count(self) -> int:
        return sum(each[2] for each in self.slices)

    def write(self, row: ClientRow) -> bool:
        """Write as many outcomes as the outcome ring has room for, with one store."""
        room = row.ring_free_bytes
        number = row.next_number
        outcomes: list[bytes] = []
        for batch, index, _, _, _ in self.slices[self._written :]:
            data = batch.records.outcomes(
                index,
                number=number,
                kind=_FAILED if self.is_failure else _DELIVERED,
                persistence=batch.persistence,
                code=batch.code,
                partition=batch.partition,
                base_offset=batch.base_offset,
                append_time_ms=batch.append_time_ms,
                text=batch.text.encode()[:_TEXT_BYTES] if batch.text else b"",
            )
            room -= len(data)
            if room < 0:
                self._written += len(outcomes)
                break
            number += 1
            outcomes.append(data)
        if outcomes:
            row.ring_append(b"".join(outcomes))
        return room >= 0

    def undelivered(self, row: ClientRow | None, name_of: NameOf) -> list[Undelivered]:
        return [batch_undelivered(batch, index, row, name_of) for batch, index, _, _, _ in self.slices]

    def finish(self, *, dead: bool = False) -> None:
        records = share = 0
        ended: list[ProducerBatch] = []
        for batch, _, its_records, its_share, shared in self.slices:
            records += its_records
            share += its_share
            if shared is not None:
                shared.remaining -= 1
                if dead:
                    shared.dead += its_records
                if shared.remaining:
                    continue
            ended.append(batch)
        settlement = self._settlement
        session = settlement.by_row.get(self.row)
        if session is not None and session.row.generation == self.generation:
            # As Sessions.records_settled, which costs a call for each batch.
            session.unsettled_records -= records
            session.unsettled_bytes = session.unsettled_bytes - share if session.unsettled_records else 0
        if not ended:
            return
        if self.is_failure:
            settlement.end_failed(batch, shared.dead if shared is not None else records if dead else 0)
            return
        # All clients of these batches have their outcomes. The batches take each step together.
        indexes: list[int] = []
        for batch in ended:
            indexes.append(batch.descriptor)
        settlement.descriptors.step(_COMPLETE, *indexes)
        for batch in ended:
            finished = batch.records.mark_done()
            # kill point: words.done
            if finished:
                assert batch.chain is not None
                settlement.finished_chains.add(batch.chain)
            batch.descriptor = NO_DESCRIPTOR
        settlement.descriptors.step(_FREE, *indexes)
        settlement.incomplete -= len(indexes)
