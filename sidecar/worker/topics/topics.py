"""Topics: every topic this worker's clients send to, and what waits for its metadata."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from client_stub.wire import WORD_UNPARTITIONED, LocalCode
from sidecar.kernel import fail_remaining, index, index_run
from sidecar.shm.chain_table import EXPRESS
from sidecar.worker.streams.topic_queue import EntryLine, TopicQueue
from sidecar.worker.topics.missing_topics import MissingTopics

if TYPE_CHECKING:
    from sidecar.kernel import Entry, RecordBlock
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.topic_settings import TopicRules
    from sidecar.shm.chain_table import ChainName, ChainTable
    from sidecar.shm.in_work import InWork
    from sidecar.worker.fates.settlement import Settlement
    from sidecar.worker.streams.rate_limit import RateLimits
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.topics.placement import Placement

log = logging.getLogger(__name__)

RUN_ENTRIES = 65_536
"""Entries that waited for their topic's metadata and are partitioned in one turn; then others have theirs."""
EXPIRED_ENTRIES = 8_192
"""Entries of a topic that give up waiting in one turn."""
_FATAL_TOPIC_ERRORS = {29: LocalCode.TOPIC_UNAUTHORIZED, 17: LocalCode.INVALID_TOPIC}
"""Metadata's topic errors that no waiting heals (Kafka's codes); all others may pass."""

NAMES_PER_FREE_ROW = 8
"""A client may have this many topics for each name that is still free in the table of chains."""
ROWS_FOR_KNOWN = 128
"""So many of the last rows are for topics that Kafka has: names that nobody made cannot fill the whole table."""
ROWS_FOR_NEWCOMERS = 16
"""Of the very last rows a client has the fewer, the more names it has, also for topics that Kafka has."""
VACATE_MS = 1_000.0
"""Names that nothing uses are looked for no more often."""


class Topics:
    """Topic queues by name. Records that fail before they are sent go to the settlement."""

    def __init__(
        self,
        *,
        config: ProducerConfig,
        rules: TopicRules,
        placement: Placement,
        chain_table: ChainTable,
        accumulator: RecordAccumulator,
        rates: RateLimits,
        sessions: Sessions,
        settlement: Settlement,
        in_work: InWork,
    ) -> None:
        self._config = config
        self._rules = rules
        self._placement = placement
        self._rates = rates
        self._chain_table = chain_table
        self._accumulator = accumulator
        self._sessions = sessions
        self._settlement = settlement
        self._vacated_ms = float("-inf")
        self._in_work = in_work.loop_word
        self._queues: dict[str, TopicQueue] = {}
        self.by_chain: dict[int, TopicQueue] = {}
        """By chain id. Only this object changes it."""
        self._brought: dict[int, int] = {}
        """By process: topics here that its clients were the first to name."""
        self._kept_lanes: dict[str, int] = {}
        """Topics whose journal a daemon with other settings began: it goes on there, for the worker's life."""
        self.waiting_queues: dict[TopicQueue, None] = {}
        """The queues with waiting entries. None: nothing here is due by time alone."""
        self._going_on: dict[TopicQueue, None] = {}
        """Those of them whose topic is known: a turn looks at these only, however many wait for theirs to be known."""
        self._out_of_range: dict[TopicQueue, None] = {}
        """Those with records for a partition that is not there, and some that had."""
        self._snapshot: MetadataSnapshot | None = None
        """The last push: another worker's clients may have brought a topic in before ours first use it."""
        self._refresh_due_ms = 0.0
        self._expiry_ms = float("inf")
        """Nothing here gives up before: a thousand topics that wait are not looked at in each turn. It may be too early
        (for what has gone on meanwhile); then one look sets it again."""
        self._used: set[str] = set()
        self._flush_asked: set[str] = set()
        """Topics flushed while records of theirs waited for metadata: linger is over for those, too."""
        self._refused: dict[TopicQueue, tuple[LocalCode, int]] = {}
        """Topics that Kafka refused, with the code and how many of their waiting entries have to fail yet."""
        self.missing = MissingTopics()

    def __iter__(self) -> Iterator[TopicQueue]:
        """A topic's express queue, if it has one, before its other one: what a client has there comes first."""
        for queue in self._queues.values():
            if queue.express is not None:
                yield queue.express
            yield queue

    def open(
        self, topic: str, names: int, now_ms: float, process: int = 0, *, is_wanted: bool = True
    ) -> TopicQueue | None:
        """The topic's queue for a client that uses ``names`` topics; None where it may not have a new one.

        A client may bring in new names while it has fewer than NAMES_PER_FREE_ROW times those that are free: the nearer
        the table is to its end, the fewer one client may have, and there is always one left for a client without any.
        Names that earlier clients of its ``process`` brought in count too (0: it cannot be seen): a process that leaves
        and comes back as another client has them still, as long as records wait under them. The last ROWS_FOR_KNOWN
        rows are for topics that Kafka is known to have.
        """
        queue = self._queues.get(topic)
        if queue is not None:
            queue.is_wanted = queue.is_wanted or is_wanted
            return queue
        queue = self.get(topic) if self.may_open(topic, names, now_ms, process) else None
        if queue is not None and not is_wanted:
            queue.is_wanted = False
            self.missing.discard(topic)
        if queue is not None and process:
            queue.brought_by = process
            self._brought[process] = self._brought.get(process, 0) + 1
        return queue

    def may_open(self, topic: str, names: int, now_ms: float, process: int) -> bool:
        """Whether :meth:`open` would give the topic's queue; names that nothing uses make room for it."""
        if topic in self._queues or self._may_name(topic, names, process) or topic in self._kept_lanes:
            return True
        if now_ms - self._vacated_ms >= VACATE_MS:
            self._vacated_ms = now_ms
            self._vacate_unused()
        return self._may_name(topic, names, process)

    def is_known(self, topic: str) -> bool:
        """Kafka has it, by the last metadata."""
        return self._snapshot is not None and bool(self._snapshot.partition_count(topic))

    def ask_for(self, topic: str) -> None:
        """The controller is to find out whether Kafka has a topic that has no queue here."""
        self.missing.add(topic)

    def asks_no_more(self, topic: str) -> None:
        """Nobody waits for the answer to :meth:`ask_for` any more."""
        if topic not in self._queues:
            self.missing.discard(topic)

    def _may_name(self, topic: str, names: int, process: int) -> bool:
        free = self._chain_table.free_count
        if self.is_known(topic):
            if free > ROWS_FOR_NEWCOMERS:
                return True
        else:
            free -= ROWS_FOR_KNOWN
        names_max = NAMES_PER_FREE_ROW * free
        return max(names, self._brought.get(process, 0)) < names_max

    def _vacate_unused(self) -> None:
        """Of the chains that hold nothing and stand in no client's stream half lose their names, unused longest."""
        in_use = self._sessions.chains_in_use()
        in_use |= {chain.chain_id for chain in self._settlement.finished_chains}
        unused: list[tuple[float, int, str]] = []
        for (lane, topic), chain_id in self._chain_table.ids().items():
            if lane & EXPRESS:
                continue  # it goes with the topic's other one
            queue = self.by_chain.get(chain_id)
            ids = {chain_id, self._chain_table.ids().get((lane | EXPRESS, topic), chain_id)}
            if ids & in_use or (queue is not None and not queue.is_empty):
                continue
            unused.append((queue.last_used_ms if queue is not None else float("-inf"), lane, topic))
        unused.sort()
        for _, lane, topic in unused[: (len(unused) + 1) // 2]:
            if (lane | EXPRESS, topic) in self._chain_table.ids():
                self.by_chain.pop(self._chain_table.vacate(lane | EXPRESS, topic), None)
            chain_id = self._chain_table.vacate(lane, topic)
            queue = self.by_chain.pop(chain_id, None)
            if queue is not None:
                del self._queues[queue.topic]
                self._brought_less(queue.brought_by)
                self._accumulator.forget_topic(topic, queue.lane)
                self._rules.forget(topic)
                self.missing.discard(topic)
                self._kept_lanes.pop(topic, None)

    def _brought_less(self, process: int) -> None:
        left = self._brought.pop(process, 0) - 1
        if left > 0:
            self._brought[process] = left

    def get(self, topic: str) -> TopicQueue | None:
        """The topic's queue, made on first use; None when the table of chains is full."""
        queue = self._queues.get(topic)
        if queue is None:
            settings = self._rules.of(topic)
            chain = self._chain_table.open(self._kept_lanes.get(topic, settings.lane), topic)
            if chain is None:
                return None
            rate = self._rates.of(topic, settings)
            queue = self._queues[topic] = TopicQueue(topic, settings.lane, chain, settings, rate)
            self.by_chain[chain.chain_id] = queue
            if self._snapshot is None or not self._placement.follow(queue, self._snapshot):
                self.missing.add(topic)
        return queue

    def express_of(self, bulk: TopicQueue) -> TopicQueue | None:
        """The queue of those that pass the topic's backlog, made on first use; None when names run short."""
        express = bulk.express
        if express is None:
            lane = self._kept_lanes.get(bulk.topic, bulk.lane)
            is_named = (lane | EXPRESS, bulk.topic) in self._chain_table.ids()
            if not is_named and self._chain_table.free_count <= ROWS_FOR_KNOWN:
                return None
            chain = self._chain_table.open(lane | EXPRESS, bulk.topic)
            assert chain is not None, "a name is free"
            express = TopicQueue(bulk.topic, bulk.lane, chain, is_express=True)
            self.by_chain[chain.chain_id] = express
            bulk.express = express
            express.follow(bulk)
        return express

    def use_rules(self, rules: TopicRules, rates: RateLimits) -> None:
        """From now on these hold for all topics, also for those that are here. Their lanes stay."""
        self._rules = rules
        self._rates = rates
        for queue in self._queues.values():
            before, queue.settings = queue.settings, rules.of(queue.topic)
            queue.rate = rates.of(queue.topic, queue.settings)
            if before is not None and before.batch_size != queue.settings.batch_size:
                # The next keyless record begins a batch of the new size.
                partitioner, queue.partitioner = queue.partitioner, None
                if self._snapshot is None or not self._placement.follow(queue, self._snapshot):
                    queue.partitioner = partitioner
            if queue.express is not None:
                queue.express.follow(queue)

    def keep_chain(self, topic: str, lane: int) -> None:
        """Before the first :meth:`get`: the topic's records are in the chain of this lane, whatever is set now."""
        self._kept_lanes[topic] = lane

    def of_stream(self, name: ChainName) -> TopicQueue:
        """The topic's queue for a dead worker's client, whose stream names this chain.

        Where acks was changed since, and the chain is the topic's only one, it goes on: the table may have no second
        name for each topic.
        """
        topic = name.topic
        if topic not in self._queues and (self._rules.of(topic).lane, topic) not in self._chain_table.ids():
            self.keep_chain(topic, name.lane)
        queue = self.get(topic)
        assert queue is not None, "the topic has a name in the table"
        return queue

    def adopt(self, queue: TopicQueue, ordinals: Sequence[int], now_ms: float) -> None:
        """Entries of a dead worker with records that have no partition yet: they wait for the topic's metadata."""
        if ordinals:
            self._used.add(queue.topic)
            queue.waiting.extend(ordinals, now_ms)
            self._waits(queue)

    def on_entry(self, queue: TopicQueue, entry: Entry, now_ms: float, flush_follows: bool = False) -> None:
        """An entry was accepted: partition it now, or queue it behind those that wait (strictly in order).

        ``flush_follows``: :meth:`flush` is called next, so that what is opened for the entry need not begin to linger.
        """
        self._used.add(queue.topic)
        waits = queue in self.waiting_queues and bool(queue.waiting)
        if waits or queue.partitioner is None or queue.is_deleted:
            queue.waiting.append(entry.ordinal, now_ms)
            self._waits(queue)
        else:
            # kill point: index.begin of self._in_work, queue.chain, entry.ordinal
            block = index(
                queue.chain,
                entry,
                queue.partitioner,
                self._config.max_request_size,
                WORD_UNPARTITIONED,
                self._in_work,
                queue.work_word,
            )
            self._distribute(queue, block, now_ms, now_ms, expedited=flush_follows)

    def _waits(self, queue: TopicQueue) -> None:
        self.waiting_queues[queue] = None
        if queue.waiting:
            self._expiry_ms = min(self._expiry_ms, queue.waiting.first_ms + self._config.max_block_ms)
        if queue.partitioner is None or queue.is_deleted:
            self.missing.add(queue.topic)
        elif queue.waiting:
            self._going_on[queue] = None

    def _waits_no_more(self, queue: TopicQueue) -> None:
        self.waiting_queues.pop(queue, None)
        if not queue.is_express:
            self._flush_asked.discard(queue.topic)

    def flush(self, topic: str, now_ms: float) -> None:
        """End linger for what is here of the topic, also for what still waits for its partitions."""
        queue = self._queues.get(topic)
        if queue is None:
            return
        self._accumulator.expedite(topic, queue.lane, now_ms)
        if queue in self.waiting_queues:
            self._flush_asked.add(topic)

    def on_snapshot(self, snapshot: MetadataSnapshot, now_ms: float) -> None:
        """Follow a metadata push: partition what waited."""
        self._snapshot = snapshot
        for queue in self._queues.values():
            before = queue.partition_count
            if not self._placement.follow(queue, snapshot):
                queue.delete()
                if queue.express is not None:
                    queue.express.follow(queue)
                continue
            self.missing.discard(queue.topic)
            if queue.express is not None:
                queue.express.follow(queue)
            for each in (queue,) if queue.express is None else (queue.express, queue):
                if queue.partition_count > before:
                    # Before anything newer, so that the records of a new partition keep their order.
                    again, each.out_of_range = each.out_of_range, EntryLine()
                    while again:
                        ordinal, accepted_ms = again.popleft()
                        self._look_again(each, ordinal, accepted_ms, now_ms)
                self._partition_waiting(each, now_ms)
        self._expiry_ms = self._first_expiry_ms()

    def go_on(self, now_ms: float) -> bool:
        """More of what waited when metadata or a refusal came; True when there is still more, for the next turn."""
        if self._refused:
            for queue in list(self._refused):
                self._fail_refused(queue, now_ms)
        if self._going_on:
            for queue in list(self._going_on):
                if queue.is_deleted:
                    del self._going_on[queue]  # until a push brings it back
                elif queue not in self._refused:
                    self._partition_waiting(queue, now_ms)
        return bool(self._refused or self._going_on)

    def _partition_waiting(self, queue: TopicQueue, now_ms: float) -> None:
        """A part of the topic's waiting entries, strictly in order: what is behind it comes in the next turns."""
        waiting = queue.waiting
        left = min(RUN_ENTRIES, len(waiting))
        while left > 0 and waiting:
            ordinals = waiting.first(left)
            # kill point: index.begin of self._in_work, queue.chain, int.from_bytes(ordinals[:8], "little")
            assert queue.partitioner is not None
            block = index_run(
                queue.chain,
                ordinals,
                queue.partitioner,
                self._config.max_request_size,
                WORD_UNPARTITIONED,
                self._in_work,
                queue.work_word,
            )
            accepted_ms = waiting.since_ms(block.taken - 1)
            waiting.drop(block.taken)
            left -= block.taken
            self._distribute(queue, block, accepted_ms, now_ms)
        if queue.topic in self._flush_asked:
            self._accumulator.expedite(queue.topic, queue.lane, now_ms)
        if waiting:
            self._going_on[queue] = None
            return
        self._going_on.pop(queue, None)
        if not queue.out_of_range:
            self._waits_no_more(queue)

    def on_late_brokers(self, late: frozenset[int]) -> None:
        """Brokers that do not keep up: keyless records go elsewhere while there is an elsewhere (KIP-794)."""
        if self._placement.set_late_brokers(late) and self._snapshot is not None:
            for queue in self._queues.values():
                if self._placement.follow(queue, self._snapshot) and queue.express is not None:
                    queue.express.follow(queue)

    def on_topic_errors(self, codes: Mapping[str, int], now_ms: float) -> None:
        """Metadata refused these topics: fail at once what no waiting heals; the others wait on (M9)."""
        for topic, code in codes.items():
            queue = self._queues.get(topic)
            if queue is not None and code in _FATAL_TOPIC_ERRORS:
                for each in (queue,) if queue.express is None else (queue.express, queue):
                    self._refused[each] = _FATAL_TOPIC_ERRORS[code], len(each.waiting)
                    self._fail_refused(each, now_ms)

    def expire(self, now_ms: float) -> None:
        """Fail what waited for metadata, or for its partition to appear, longer than max.block.ms (M5, M10)."""
        if now_ms < self._expiry_ms:
            return
        since_ms = now_ms - self._config.max_block_ms
        code = LocalCode.METADATA_TIMEOUT
        if self._settlement.is_login_refused:
            code = LocalCode.UNAUTHENTICATED
        for queue in list(self.waiting_queues):
            left = EXPIRED_ENTRIES
            while left and queue.waiting and queue.waiting.first_ms <= since_ms:
                self._fail(queue, queue.waiting.popleft()[0], code, now_ms)
                left -= 1
            while left and queue.out_of_range and queue.out_of_range.first_ms <= since_ms:
                ordinal, accepted_ms = queue.out_of_range.popleft()
                self._look_again(queue, ordinal, accepted_ms, now_ms)
                left -= 1
            if not queue.waiting and not queue.out_of_range:
                self._waits_no_more(queue)
        self._expiry_ms = self._first_expiry_ms()

    def take_stale(self, now_ms: float) -> tuple[str, ...]:
        """Topics of which a record names a partition that is not there yet: to be refreshed, about once a second."""
        if not self._out_of_range or now_ms < self._refresh_due_ms:
            return ()
        self._out_of_range = dict.fromkeys(queue for queue in self._out_of_range if queue.out_of_range)
        if self._out_of_range:
            self._refresh_due_ms = now_ms + self._config.retry_backoff_max_ms
        return tuple(dict.fromkeys(queue.topic for queue in self._out_of_range))

    @property
    def next_due_ms(self) -> float:
        """When something here gives up or is asked for again; infinity when nothing waits."""
        if not self.waiting_queues:
            return float("inf")
        return min(self._expiry_ms, self._refresh_due_ms) if self._out_of_range else self._expiry_ms

    def _first_expiry_ms(self) -> float:
        return min(
            (
                line.first_ms + self._config.max_block_ms
                for queue in self.waiting_queues
                for line in (queue.waiting, queue.out_of_range)
                if line
            ),
            default=float("inf"),
        )

    def fail_all_waiting(self, code: LocalCode, now_ms: float) -> None:
        """Forced close: nothing waits for metadata any more."""
        for queue in list(self.waiting_queues):
            self._fail_waiting(queue, code, now_ms)
            while queue.out_of_range:
                ordinal, accepted_ms = queue.out_of_range.popleft()
                self._look_again(queue, ordinal, accepted_ms, now_ms)
        self._expiry_ms = self._first_expiry_ms()

    @property
    def waiting_entries(self) -> int:
        return sum(len(queue.waiting) + len(queue.out_of_range) for queue in self.waiting_queues)

    @property
    def waiting_topics(self) -> int:
        return sum(1 for queue in self.waiting_queues if queue.waiting or queue.out_of_range)

    def take_used(self) -> list[str]:
        """Topics used since the last call, or with records here: their expiry is renewed at the controller (M1).

        What records wait for must not be forgotten, however long they may wait (max.block.ms, delivery.timeout.ms).
        """
        used, self._used = list(self._used.union(self.in_use())), set()
        return used

    def in_use(self) -> set[str]:
        """Topics with records that have no end yet."""
        return {queue.topic for queue in self if queue.chain.live_entries and queue.is_wanted}

    def _distribute(
        self,
        queue: TopicQueue,
        block: RecordBlock,
        accepted_ms: float,
        now_ms: float,
        *,
        expedited: bool = False,
    ) -> None:
        """Into batches what has its partition. What failed is of the last entry, accepted at ``accepted_ms``.

        A record that names a partition beyond the topic's waits up to max.block.ms for it to appear, as in Kafka's
        KafkaProducer.waitOnMetadata; the other records of its entry go on.
        """
        if block.groups:
            self._accumulator.append(
                queue.topic,
                queue.lane,
                block,
                now_ms,
                expedited=expedited,
                express=queue.is_express,
                since_ms=accepted_ms,
            )
        # kill point: index.batched
        failures = block.failures
        if failures and now_ms < accepted_ms + self._config.max_block_ms:
            final = [each for each in failures if each[1] != LocalCode.INVALID_PARTITION]
            if len(final) < len(failures):
                queue.out_of_range.append(block.entry.ordinal, accepted_ms)
                self._expiry_ms = min(self._expiry_ms, accepted_ms + self._config.max_block_ms)
                self.waiting_queues[queue] = self._out_of_range[queue] = None
            failures = final
        if failures:
            self._settlement.fail_records(queue, block.entry, failures, now_ms)

    def _look_again(self, queue: TopicQueue, ordinal: int, accepted_ms: float, now_ms: float) -> None:
        """At the records of an entry that named a partition which was not there."""
        assert queue.partitioner is not None
        entry = queue.chain.entry(ordinal)
        # kill point: index.begin of self._in_work, queue.chain, entry.ordinal
        block = index(
            queue.chain,
            entry,
            queue.partitioner,
            self._config.max_request_size,
            int(LocalCode.INVALID_PARTITION),
            self._in_work,
            queue.work_word,
        )
        self._distribute(queue, block, accepted_ms, now_ms)

    def _fail_refused(self, queue: TopicQueue, now_ms: float) -> None:
        """A part of what waited when the topic was refused; the rest in the next turns."""
        code, left = self._refused.pop(queue)
        for _ in range(min(left, EXPIRED_ENTRIES, len(queue.waiting))):
            self._fail(queue, queue.waiting.popleft()[0], code, now_ms)
        left = min(left - EXPIRED_ENTRIES, len(queue.waiting))
        if left > 0:
            self._refused[queue] = code, left
            return
        if not queue.waiting:
            self._going_on.pop(queue, None)
            if not queue.out_of_range:
                self._waits_no_more(queue)
        self.missing.discard(queue.topic)

    def _fail_waiting(self, queue: TopicQueue, code: LocalCode, now_ms: float) -> None:
        while queue.waiting:
            self._fail(queue, queue.waiting.popleft()[0], code, now_ms)
        self._going_on.pop(queue, None)
        if not queue.out_of_range:
            self._waits_no_more(queue)
        self.missing.discard(queue.topic)

    def _fail(self, queue: TopicQueue, ordinal: int, code: LocalCode, now_ms: float) -> None:
        entry = queue.chain.entry(ordinal)
        failures = [(i, int(code)) for i in fail_remaining(queue.chain, entry, code)]
        self._settlement.fail_records(queue, entry, failures, now_ms)
