"""Adoption: a worker takes over a dead worker's slot before it accepts anything new.

The caller holds the slot's byte of workers.lock, so the previous owner is dead. Every decision follows from the
journal, and no record is dropped: words, descriptors and rows are read, released batches are ended, stored outcomes
and failures are written again. Batches that were sent are rebuilt from their ranges under their own identity, and
all other records are indexed with the words that they have. A kill during adoption leaves a state that the next
adoption has ended.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import NO_PARTITION, WORD_DONE, WORD_FAILED_MIN, LocalCode, Persistence
from sidecar.common.errors import classify
from sidecar.common.wording import counted
from sidecar.kernel import StickyPartitioner, index_run
from sidecar.producer.effects import Decided
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.shm.chain_table import EXPRESS, STAGED
from sidecar.shm.client_table import ClientTable
from sidecar.shm.descriptor_states import DescriptorEvent, DescriptorState
from sidecar.worker.adoption.balance import balance_counters
from sidecar.worker.adoption.poison import Poison
from sidecar.worker.adoption.ranges import Range, Ranges
from sidecar.worker.streams.session import StreamState

if TYPE_CHECKING:
    from sidecar.deadletter.letters import Undelivered
    from sidecar.kernel import Chain, Entry, RecordBlock
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.sender import Sender
    from sidecar.shm.chain_table import ChainName
    from sidecar.worker.outcomes.settlement import Settlement
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.streams.topic_queue import TopicQueue
    from sidecar.worker.topics.topics import Topics
    from sidecar.worker.transactions.lanes import Lanes
    from sidecar.worker.transactions.stages import LaneStages

log = logging.getLogger(__name__)

_LOST_TEXT: Final = "The record's batch could not be read back after its worker had died."
LINE_BYTES: Final = 64
RUN_ENTRIES: Final = 65_536
"""Submissions read per run. A heartbeat precedes each run: the controller waits as long as heartbeats come."""
RUN_RECORDS: Final = 262_144
"""Records after which a run ends even if it has fewer submissions."""
COMPLETED_BEAT: Final = 1_024
"""Failures written between two heartbeats."""
ACCEPTED_SECONDS: Final = 65_535
"""Period in seconds after which an entry's acceptance time wraps: 18 hours."""
AHEAD_SECONDS: Final = 3_600
"""An acceptance time at most this far ahead of the slot's clock counts as now."""


class Adoption:
    """One adoption of one slot. Synchronous, before the worker's first turn; it runs on that worker's loop thread."""

    def __init__(
        self,
        *,
        config: ProducerConfig,
        memory: SlotMemory,
        accumulator: RecordAccumulator,
        topics: Topics,
        lanes: Lanes,
        stages: LaneStages,
        sessions: Sessions,
        settlement: Settlement,
    ) -> None:
        self._segment = memory.segment
        self._slot = memory.index
        self._config = config
        self._memory = memory
        self._pool = memory.pool
        self._chain_table = memory.chain_table
        self._descriptors = memory.descriptors
        self._counters = memory.counters
        self._poison = Poison(memory)
        self._in_work = memory.in_work
        self._accumulator = accumulator
        self._topics = topics
        self._lanes = lanes
        self._stages = stages
        self._sessions = sessions
        self._settlement = settlement
        self.poisonous: list[ProducerBatch] = []
        """Sent batches that must not be encoded again; they will be given up."""
        self.set_aside: list[Undelivered] = []
        """Submissions that are not read again, as dead letters."""
        # Any partition number is valid here; the metadata will show whether the topic still has it.
        self._any_partition = StickyPartitioner(WORD_FAILED_MIN, (), 1, 1)
        self._ranges = Ranges(memory, accumulator, topics)
        self._failures: list[tuple[TopicQueue, Entry, list[tuple[int, int]]]] = []

    def run(self, now_ms: float) -> list[tuple[ProducerBatch, int]]:
        """Take over the state that the slot's memory had when it was claimed.

        Returns the batches that were sent and not settled, each with the wall-clock ms of its publication, oldest
        first per partition. They are not sent again until ``resume`` is called on the accumulator.
        """
        ClientTable(self._segment).release_half_taken(self._slot)
        # kill point: adopt.half_taken
        pages = self._memory.left_pages
        self._pool.adopt(sum(map(len, pages.values())))
        names = {name.chain_id: name for name in self._chain_table.names()}
        self._lanes.adopt()
        self._stages.adopt()
        # A topic's bulk chain is adopted before its express chain, which belongs to it.
        found = sorted(pages, key=lambda chain_id: (names[chain_id].is_express, chain_id))
        chains = [self._adopt_chain(names[chain_id], pages[chain_id], now_ms) for chain_id in found]
        # kill point: adopt.chains
        self._adopt_clients(names, chains, now_ms)
        # kill point: adopt.clients
        self._ranges.rebuild(names, now_ms)
        # kill point: adopt.ranges
        open_records = sum(chain.live_records for chain in chains)
        for chain in chains:
            self._index(names[chain.chain_id], chain, now_ms)
        self._ranges.mark_withdrawn(names)
        # kill point: adopt.indexed
        balance_counters(self._memory, self._ranges, open_records, self._stages.staged_records)
        # kill point: adopt.balanced
        self._complete(now_ms)
        # kill point: adopt.released
        sent = self._sent(now_ms)
        # kill point: adopt.sent
        self._poison.forget_ended(chains, self._descriptors)
        for chain in chains:
            self._give_back(chain)
        self._accumulator.incomplete.put_in_order()
        self._counters.set("clients_connected", 0)
        if names:
            self._counters.inc("adoptions_total")
            self._counters.inc("records_adopted_total", open_records)
        if open_records:
            log.info(
                "Took over slot %d of a dead worker: %s without an outcome, %s sent and not answered, %s.",
                self._slot,
                counted(open_records, "record"),
                counted(len(sent), "batch", "batches"),
                counted(sum(1 for _ in ClientTable(self._segment).rows(self._slot)), "client"),
            )
        return sent

    # --- the journal, and who sent it --------------------------------------------------------------------------

    def give_up_poison(self, sender: Sender, now_ms: float) -> list[Undelivered]:
        """Fail batches that were being encoded at too many deaths. Returns them as dead letters, with the submissions
        that were set aside.
        """
        given_up = self._poison.give_up(
            self.poisonous,
            lambda batch, code, text: sender.give_up(batch, code, text, now_ms),
            self._sessions.row,
        )
        return self.set_aside + given_up

    def _adopt_chain(self, name: ChainName, pages: list[int], now_ms: float) -> Chain:
        self._memory.beat()
        chain = self._chain_table.adopt(name.chain_id, name.lane, name.topic, pages)
        for damage in chain.damage:
            log.error(
                "ALARM: the journal of topic %s in slot %d is damaged: %s.", name.topic, self._slot, damage
            )
        queue: TopicQueue | None
        if name.is_transactional:
            queue = self._topics.get(name.topic, self._lanes.manager_of(_lane_of(name)), name.is_staged)
        else:
            self._topics.keep_chain(name.topic, name.lane & ~EXPRESS)
            queue = self._topics.get(name.topic)
            if name.is_express and queue is not None:
                queue = self._topics.express_of(queue)
        assert queue is not None and queue.chain is chain, "a chain of this segment has its row in the table"
        queue.last_settled_ms = queue.last_used_ms = now_ms
        return chain

    def _adopt_clients(self, names: dict[int, ChainName], chains: list[Chain], now_ms: float) -> None:
        """Turn client rows into sessions within their grace period. A stream is accepted up to the later of the
        positions in its row and in the journal.
        """
        accepted: dict[tuple[int, int, int], int] = {}
        unsettled: dict[tuple[int, int], tuple[int, int]] = {}
        for chain in chains:
            self._memory.beat()
            for row_index, generation, stream, seq, records, size in chain.streams():
                # A stream may be in both chains of its topic, and they are read in any order.
                named = row_index, generation, stream
                accepted[named] = max(seq, accepted.get(named, 0))
                if names[chain.chain_id].is_staged:
                    continue  # records of stages do not count as their client's
                before = unsettled.get((row_index, generation), (0, 0))
                unsettled[row_index, generation] = (before[0] + records, before[1] + size)
        for row in ClientTable(self._segment).rows(self._slot):
            session = self._sessions.adopt(row, now_ms)
            client = (row.index, row.generation)
            session.unsettled_records, session.unsettled_bytes = unsettled.get(client, (0, 0))
            session.lane = self._lanes.of_client(client)
            if session.lane is not None:
                session.lane.session = session
            for stream_id, chain_id, stored in list(row.streams()):
                name = names[chain_id]
                if name.is_transactional:
                    # Of its own lane, or of one from which another client has fenced it.
                    lane = self._lanes.lane_of(_lane_of(name))
                    session.lane = session.lane or lane
                    if name.is_staged and session.stages is None:
                        session.stages = {}
                    queue = self._topics.get(name.topic, lane.manager, name.is_staged)
                    assert queue is not None, "the topic has a name in the table"
                else:
                    queue = self._topics.of_stream(name)
                position = max(stored, accepted.get((*client, stream_id), 0))
                if position > stored:
                    row.store_position(stream_id, position)
                state = session.streams[stream_id] = StreamState(session, stream_id, queue, position)
                state.bulk_ordinal = queue.chain.tail // LINE_BYTES

    # --- batches -----------------------------------------------------------------------------------------------

    def _index(self, name: ChainName, chain: Chain, now_ms: float) -> None:
        """Walk over the chain once, in order: each record goes to its range, or to a new batch without an identity."""
        queue = self._topics.by_chain[chain.chain_id]
        wait = self._stages.adopt_entries if queue.is_staged else partial(self._topics.adopt, now_ms=now_ms)
        ranges = self._ranges.of_chain(chain)
        poison = self._poison.entries_of(chain)
        next_ordinal = 0
        while ordinals := chain.ordinals(next_ordinal, RUN_ENTRIES):
            self._memory.beat()
            first, last = (int.from_bytes(ordinals[at : at + 8 or None], sys.byteorder) for at in (0, -8))
            if first in poison:
                self._set_aside(queue, chain.entry(first))
                next_ordinal = first + 1
                continue
            # Submissions that are set aside are not walked: a run ends before them.
            stop = min((ordinal for ordinal in poison if first < ordinal <= last), default=None)
            if stop is not None:
                ordinals = ordinals[: 8 * _count_below(ordinals, stop)]
            # kill point: index.begin of self._in_work.loop_word, chain, first
            block = index_run(
                chain,
                ordinals,
                self._any_partition,
                self._config.max_request_size,
                WORD_DONE,
                self._in_work.loop_word,
                queue.work_word,
                records_max=RUN_RECORDS,
            )
            next_ordinal = int.from_bytes(ordinals[8 * (block.taken - 1) :][:8], sys.byteorder) + 1
            self._distribute(queue, block, ranges, now_ms)
            if block.failures:
                self._failures.append((queue, block.entry, block.failures))
            wait(queue, block.unplaced)

    def _distribute(
        self, queue: TopicQueue, block: RecordBlock, ranges: dict[int, list[Range]], now_ms: float
    ) -> None:
        def accepted_ms(ref: int) -> float:
            # Records of stages are as old as their transaction.
            return now_ms if queue.is_staged else now_ms - self._age_ms(block, ref, now_ms)

        def append(groups: list[tuple[int, int, int]], lane: int) -> None:
            self._accumulator.append(
                queue.topic,
                lane,
                block,
                now_ms,
                groups,
                express=queue.is_express,
                accepted_ms=accepted_ms,
            )
            if queue.transaction is not None:
                # The lane's stages are in another chain, and a batch has records of one.
                self._accumulator.close_batches(queue.topic, lane, groups, now_ms)
            if lane != queue.lane:
                for partition, _, _ in groups:
                    sent = self._accumulator.queue(queue.topic, lane, partition)
                    self._ranges.goes_first(sent, queue.lane)

        whole: list[tuple[int, int, int]] = []
        for group in block.groups:
            partition = group[0]
            lane = self._ranges.lane_of_unsent(queue, partition)
            if partition in ranges:
                self._ranges.assign(block, group, ranges[partition], append, accepted_ms, lane)
            elif lane != queue.lane:
                append([group], lane)
            else:
                whole.append(group)
        if whole:
            append(whole, queue.lane)

    def _age_ms(self, block: RecordBlock, ref: int, now_ms: float) -> float:
        """Age of the record in ms since it was accepted, up to a second too short; 0 if not known.

        The entry holds the second of the slot's clock, modulo 18 hours. If that is slightly ahead, the entry was
        accepted after the last heartbeat.
        """
        stamp = block.accepted(ref)
        if not stamp:
            return 0.0
        seconds = (int((now_ms + self._memory.clock_ahead_ms) / 1000) - (stamp - 1)) % ACCEPTED_SECONDS
        return max(seconds - 1, 0) * 1000.0 if seconds < ACCEPTED_SECONDS - AHEAD_SECONDS else 0.0

    def _set_aside(self, queue: TopicQueue, entry: Entry) -> None:
        chain = queue.chain
        descriptors = [each.descriptor for ranges in self._ranges.of_chain(chain).values() for each in ranges]
        for failures in self._poison.set_aside(chain, queue.topic, entry, descriptors):
            self._failures.append((queue, entry, failures))
            row = self._sessions.row(entry.client_row, entry.client_generation)
            self.set_aside += self._poison.letters_of(chain, queue.topic, entry, failures, row)

    # --- what is decided already -------------------------------------------------------------------------------

    def _complete(self, now_ms: float) -> None:
        """End batches that were released; write stored outcomes and failures again."""
        for each in list(self._ranges):
            self._memory.beat()
            descriptor, batch = each.descriptor, each.batch
            if each.is_sent:
                continue
            if descriptor.state == DescriptorState.RELEASED or not batch.records.count:
                for (row_index, generation), (records, size) in batch.records.shares().items():
                    if not self._queue_of(batch).is_staged:
                        self._sessions.records_settled(row_index, generation, records, size)
                batch.records.mark_done()
                self._descriptors.step(DescriptorEvent.FREE, descriptor.index)
                continue
            whole = batch.records.count == descriptor.count
            if not whole:
                self._alarm(each)
            batch.decide(
                base_offset=descriptor.base_offset if whole else -1,
                append_time_ms=descriptor.append_time_ms,
                code=descriptor.code,
                persistence=descriptor.persistence if descriptor.code else Persistence.PERSISTED,
                text=_text_of(descriptor.code),
            )
            transaction = batch.queue.transaction
            if transaction is not None and descriptor.code:
                entry = batch.records.slice_entry(0)
                self._note_failure(self._queue_of(batch), entry, descriptor.code, batch.text)
            self._settlement.write((batch,), now_ms)
        for number, (queue, entry, failures) in enumerate(self._failures):
            if number % COMPLETED_BEAT == 0:
                self._memory.beat()
            if queue.transaction is not None:
                text = "A record failed before its worker died."
                self._note_failure(queue, entry, failures[0][1], text)
            self._settlement.fail_records(queue, entry, failures, now_ms, is_repeat=True)

    def _queue_of(self, batch: ProducerBatch) -> TopicQueue:
        assert batch.chain is not None
        return self._topics.by_chain[batch.chain.chain_id]

    def _note_failure(self, queue: TopicQueue, entry: Entry, code: int, text: str) -> None:
        """Note that a record of the open transaction failed, if the dead worker had no time to store that."""
        transaction = queue.transaction
        assert transaction is not None
        if queue.is_staged:
            is_of_open = self._stages.is_in_open_transaction(entry)
        else:
            is_of_open = entry.txn_number == transaction.number and (
                (entry.client_row, entry.client_generation) == transaction.client
            )
        if is_of_open:
            transaction.batch_failed(queue.topic, NO_PARTITION, code, text)

    def _sent(self, now_ms: float) -> list[tuple[ProducerBatch, int]]:
        sent: list[tuple[ProducerBatch, int]] = []
        for each in self._ranges:
            if not each.is_sent:
                continue
            batch = each.batch
            if batch.records.count == each.descriptor.count and self._poison.is_batch(each.descriptor):
                self.poisonous.append(batch)
                continue
            if batch.records.count == each.descriptor.count:
                sent.append((batch, each.descriptor.published_ms))
                continue
            self._alarm(each)
            if not batch.records.count:
                self._descriptors.step(DescriptorEvent.FREE, each.descriptor.index)
                continue
            # The broker would silently drop other content under the same sequences.
            if batch.queue.transaction is not None:
                entry = batch.records.slice_entry(0)
                code = LocalCode.ENCODE_MISMATCH
                self._note_failure(self._queue_of(batch), entry, code, _LOST_TEXT)
            batch.decide(
                code=int(LocalCode.ENCODE_MISMATCH),
                persistence=Persistence.POSSIBLY_PERSISTED,
                text=_LOST_TEXT,
            )
            self._accumulator.withdraw(batch, now_ms)
            self._settlement.settle(Decided((batch,)), now_ms)
        sent.sort(key=lambda each: each[0].order)
        return sent

    def _alarm(self, each: Range) -> None:
        log.error(
            "ALARM: of the %d records of %r in slot %d only %d are in the journal.",
            each.descriptor.count,
            each.batch,
            self._slot,
            each.batch.records.count,
        )

    def _give_back(self, chain: Chain) -> None:
        if chain.damage:
            return  # pages that could not be read are kept
        pages = chain.release_pages() if chain.live_entries else chain.release_idle()
        if pages:
            # kill point: pages.released
            self._pool.give(pages)
            # kill point: adopt.pages_back


def _lane_of(name: ChainName) -> int:
    return name.lane & ~STAGED


def _count_below(ordinals: bytes, stop: int) -> int:
    return bisect_left(memoryview(ordinals).cast("Q"), stop)


def _text_of(code: int) -> str:
    """General text for a code: the exact one was lost with the dead worker."""
    if code == LocalCode.EXPIRED:
        return "delivery.timeout.ms has passed since the record was appended."
    return classify(code).text if code else ""
