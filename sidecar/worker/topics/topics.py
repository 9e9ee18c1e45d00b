"""Topics: every topic to which this worker's clients send, and the rules by which new names are admitted and
dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from client_stub.contract.wire import WORD_UNPARTITIONED, LocalCode
from sidecar.kernel import index
from sidecar.shm.chain_table import EXPRESS, STAGED
from sidecar.worker.streams.topic_queue import TopicQueue
from sidecar.worker.topics.missing_topics import MissingTopics
from sidecar.worker.topics.waiting_entries import WaitingEntries

if TYPE_CHECKING:
    from sidecar.kernel import Entry
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.topic_settings import TopicRules
    from sidecar.producer.transaction_manager import TransactionManager
    from sidecar.shm.chain_table import ChainName, ChainTable
    from sidecar.shm.in_work import InWork
    from sidecar.worker.outcomes.releases import Releases
    from sidecar.worker.outcomes.settlement import Settlement
    from sidecar.worker.streams.rate_limit import RateLimits
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.topics.placement import Placement

log = logging.getLogger(__name__)

_FATAL_TOPIC_ERRORS = {29: LocalCode.TOPIC_UNAUTHORIZED, 17: LocalCode.INVALID_TOPIC}
"""Topic errors in metadata that waiting does not cure, by Kafka's code. All others may pass."""

NAMES_PER_FREE_ROW = 8
"""Number of topics that a client may have per free name in the table of chains."""
ROWS_FOR_KNOWN = 128
"""Number of last rows reserved for topics that Kafka has, so that names of no topic cannot fill the table."""
ROWS_FOR_NEWCOMERS = 16
"""Number of last rows of which a client may use fewer the more names it has, even for topics that Kafka has."""
VACATE_MS = 1_000.0
"""Minimum interval in ms between searches for unused names, while the table is short of them."""
CHECK_MS = 60_000.0
"""Interval in ms of the searches for names that were unused for long."""
IDLE_MS = 300_000.0
"""A name that nothing has used for this time is dropped then."""


class Topics:
    """Topic queues by name. Belongs to the worker's loop. Entries of unknown topics wait in :attr:`waiting`."""

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
        releases: Releases,
        in_work: InWork,
    ) -> None:
        self._config = config
        self._rules = rules
        self._placement = placement
        self._rates = rates
        self._chain_table = chain_table
        self._accumulator = accumulator
        self._sessions = sessions
        self._releases = releases
        self._vacated_ms = self._checked_ms = float("-inf")
        self._in_work = in_work.loop_word
        self._queues: dict[str, TopicQueue] = {}
        """By topic, outside of transactions."""
        self._of_lanes: dict[int, dict[str, TopicQueue]] = {}
        """By transactional lane and topic; those of stages by the lane with :data:`STAGED`."""
        self.by_chain: dict[int, TopicQueue] = {}
        """Queues by chain id. Only this object changes it."""
        self._brought: dict[int, int] = {}
        """By process: number of topics here that its clients were the first to name."""
        self._kept_lanes: dict[str, int] = {}
        """Topics whose journal was begun by a daemon with other settings, with its lane: kept for the worker's life."""
        self._snapshot: MetadataSnapshot | None = None
        """The last metadata: a topic may be in it before this worker's clients use it, because of other workers."""
        self._used: set[str] = set()
        self.missing = MissingTopics()
        self.waiting = WaitingEntries(
            config=config,
            accumulator=accumulator,
            settlement=settlement,
            in_work=in_work,
            missing=self.missing,
        )
        """Entries with an unknown topic, or with a partition that does not exist."""

    def __iter__(self) -> Iterator[TopicQueue]:
        """Iterate over all queues. A topic's express queue comes before its bulk queue, because a client's records in
        express are older.
        """
        for queue in self._bulk():
            if queue.express is not None:
                yield queue.express
            yield queue

    def _bulk(self) -> Iterator[TopicQueue]:
        """All queues but the express ones."""
        yield from self._queues.values()
        for queues in self._of_lanes.values():
            yield from queues.values()

    def _of(self, topic: str) -> list[TopicQueue]:
        """The topic's queues in all lanes, without the express ones."""
        found = [queues[topic] for queues in self._of_lanes.values() if topic in queues]
        return [self._queues[topic], *found] if topic in self._queues else found

    def _is_named(self, topic: str, transaction: TransactionManager | None, is_staged: bool) -> bool:
        if transaction is None:
            return topic in self._queues or topic in self._kept_lanes
        return topic in self._of_lanes.get(_chain_lane(transaction, is_staged), ())

    def open(
        self,
        topic: str,
        names: int,
        now_ms: float,
        process: int = 0,
        *,
        is_wanted: bool = True,
        transaction: TransactionManager | None = None,
        is_staged: bool = False,
    ) -> TopicQueue | None:
        """The topic's queue for a client that uses ``names`` topics; None if the client may not bring in a new one.

        A client may bring in new names while it has fewer than NAMES_PER_FREE_ROW times the free ones. The fuller the
        table, the fewer names one client may have, and one is always left for a client without any. Names that earlier
        clients of its ``process`` (0: not known) brought in count as well, while records wait under them. So
        reconnecting as another client gains nothing. The last ROWS_FOR_KNOWN rows are for topics that Kafka is known
        to have.
        """
        if transaction is None:
            queue = self._queues.get(topic)
        else:
            queue = self._of_lanes.get(_chain_lane(transaction, is_staged), {}).get(topic)
        if queue is not None:
            queue.is_wanted = queue.is_wanted or is_wanted
            return queue
        may_open = self.may_open(topic, names, now_ms, process, transaction, is_staged)
        queue = self.get(topic, transaction, is_staged) if may_open else None
        if queue is not None and not is_wanted:
            queue.is_wanted = False
            self.asks_no_more(topic)
        if queue is not None and process:
            queue.brought_by = process
            self._brought[process] = self._brought.get(process, 0) + 1
        return queue

    def may_open(
        self,
        topic: str,
        names: int,
        now_ms: float,
        process: int,
        transaction: TransactionManager | None = None,
        is_staged: bool = False,
    ) -> bool:
        """Whether :meth:`open` would return the topic's queue. Drops unused names if that is needed."""
        if self._is_named(topic, transaction, is_staged) or self._may_name(topic, names, process):
            return True
        if now_ms - self._vacated_ms >= VACATE_MS:
            self._vacated_ms = now_ms
            self._vacate_unused()
        return self._may_name(topic, names, process)

    def is_known(self, topic: str) -> bool:
        """True if Kafka has the topic, by the last metadata."""
        return self._snapshot is not None and bool(self._snapshot.partition_count(topic))

    def ask_for(self, topic: str) -> None:
        """Ask the controller whether Kafka has a topic that has no queue here."""
        self.missing.add(topic)

    def asks_no_more(self, topic: str) -> None:
        """Cancel :meth:`ask_for`: no stream waits for the answer any more."""
        if not any(queue.is_wanted for queue in self._of(topic)):
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

    def forget_idle(self, now_ms: float) -> None:
        """Drop the names that nothing has used for IDLE_MS, and the second ones of topics without a backlog. Called
        periodically; the table is checked once in CHECK_MS.
        """
        if now_ms - self._checked_ms < CHECK_MS:
            return
        self._checked_ms = now_ms
        in_use = self._chains_in_use()
        self._vacate_express(in_use, now_ms - IDLE_MS)
        for last_used_ms, lane, topic in self._unused(in_use):
            if last_used_ms <= now_ms - IDLE_MS:
                self._vacate(lane, topic)

    def _vacate_unused(self) -> None:
        """Drop the second names of all topics without a backlog. Then the names of half of the chains that are empty
        and in no client's stream, those unused longest.
        """
        in_use = self._chains_in_use()
        self._vacate_express(in_use)
        unused = self._unused(in_use)
        for _, lane, topic in unused[: (len(unused) + 1) // 2]:
            self._vacate(lane, topic)

    def _chains_in_use(self) -> set[int]:
        return self._sessions.chains_in_use() | {chain.chain_id for chain in self._releases.released_chains}

    def _unused(self, in_use: set[int]) -> list[tuple[float, int, str]]:
        """(last used ms, lane, topic) of the chains that are empty and in no client's stream, unused longest first."""
        unused: list[tuple[float, int, str]] = []
        for (lane, topic), chain_id in self._chain_table.ids().items():
            if lane & EXPRESS:
                continue  # it is dropped with the topic's bulk chain
            queue = self.by_chain.get(chain_id)
            ids = {chain_id, self._chain_table.ids().get((lane | EXPRESS, topic), chain_id)}
            if ids & in_use or (queue is not None and not queue.is_empty):
                continue
            unused.append((queue.last_used_ms if queue is not None else float("-inf"), lane, topic))
        unused.sort()
        return unused

    def _vacate(self, lane: int, topic: str) -> None:
        """Drop a topic's names. Nothing may use them."""
        if (lane | EXPRESS, topic) in self._chain_table.ids():
            self.by_chain.pop(self._chain_table.vacate(lane | EXPRESS, topic), None)
        chain_id = self._chain_table.vacate(lane, topic)
        queue = self.by_chain.pop(chain_id, None)
        if queue is not None:
            self._brought_less(queue.brought_by)
            if queue.transaction is None or (lane ^ STAGED, topic) not in self._chain_table.ids():
                self._accumulator.forget_topic(topic, queue.lane)
            if queue.transaction is not None:
                del self._of_lanes[lane][topic]
            else:
                del self._queues[topic]
                self._kept_lanes.pop(topic, None)
            self.asks_no_more(topic)
            if not self._of(topic):
                self._rules.forget(topic)

    def _vacate_express(self, in_use: set[int], used_before_ms: float = float("inf")) -> None:
        """Drop the express chains that are empty and were last used before a time. A topic gets another one with its
        next backlog.
        """
        for queue in self._queues.values():
            express = queue.express
            if (
                express is not None
                and express.is_empty
                and not express.counted_pages
                and express.last_used_ms <= used_before_ms
                and express.chain.chain_id not in in_use
            ):
                lane = self._kept_lanes.get(queue.topic, queue.lane)
                del self.by_chain[self._chain_table.vacate(lane | EXPRESS, queue.topic)]
                queue.express = None

    def _brought_less(self, process: int) -> None:
        left = self._brought.pop(process, 0) - 1
        if left > 0:
            self._brought[process] = left

    def get(
        self, topic: str, transaction: TransactionManager | None = None, is_staged: bool = False
    ) -> TopicQueue | None:
        """The topic's queue, outside of transactions, in a transactional lane or in the stages of that. Made on first
        use; None if the table of chains is full.
        """
        settings = self._rules.of(topic)
        if transaction is None:
            queues, lane = self._queues, settings.lane
            chain_lane = self._kept_lanes.get(topic, lane)
        else:
            lane, chain_lane = transaction.lane, _chain_lane(transaction, is_staged)
            queues = self._of_lanes.setdefault(chain_lane, {})
        queue = queues.get(topic)
        if queue is None:
            chain = self._chain_table.open(chain_lane, topic)
            if chain is None:
                return None
            rate = self._rates.of(topic, settings)
            queue = queues[topic] = TopicQueue(
                topic, lane, chain, settings, rate, transaction=transaction, is_staged=is_staged
            )
            self.by_chain[chain.chain_id] = queue
            if self._snapshot is None or not self._placement.follow(queue, self._snapshot):
                self.missing.add(topic)
        return queue

    def express_of(self, bulk: TopicQueue) -> TopicQueue | None:
        """The topic's express queue, made on first use; None if names are scarce."""
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
        """Use new rules for all topics, including existing ones. Their lanes stay."""
        self._rules = rules
        self._rates = rates
        for queue in self._bulk():
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
        """Note that the topic's records are in the chain of this lane, whatever the present settings. Call before
        :meth:`get`.
        """
        self._kept_lanes[topic] = lane

    def of_stream(self, name: ChainName) -> TopicQueue:
        """The topic's queue for a dead worker's client whose stream names this chain.

        If acks was changed since, and the chain is the topic's only one, the topic keeps it: the table may lack room
        for a second name per topic.
        """
        topic = name.topic
        if topic not in self._queues and (self._rules.of(topic).lane, topic) not in self._chain_table.ids():
            self.keep_chain(topic, name.lane)
        queue = self.get(topic)
        assert queue is not None, "the topic has a name in the table"
        return queue

    def adopt(self, queue: TopicQueue, ordinals: Sequence[int], now_ms: float) -> None:
        """Let entries of a dead worker, with records without a partition, wait for the topic's metadata."""
        if ordinals:
            self._used.add(queue.topic)
            self.waiting.extend(queue, ordinals, now_ms)

    def on_entry(self, queue: TopicQueue, entry: Entry, now_ms: float, flushes: bool = False) -> None:
        """Partition an accepted entry now, or queue it after those that wait (strictly in order).

        ``flushes``: its stub waits for it, so neither its records nor earlier ones of the topic linger.
        """
        topic, waiting = queue.topic, self.waiting
        self._used.add(topic)
        if (queue in waiting.queues and queue.waiting) or queue.partitioner is None or queue.is_deleted:
            waiting.append(queue, entry.ordinal, now_ms)
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
            if block.groups:
                self._accumulator.append(
                    topic, queue.lane, block, now_ms, expedited=flushes, express=queue.is_express
                )
            # kill point: index.batched
            if block.failures:
                waiting.take_failures(queue, block, now_ms, now_ms)
        if flushes:
            if topic in self._accumulator.lanes[queue.lane].opened:  # earlier records of the topic linger
                self._accumulator.expedite(topic, queue.lane, now_ms)
            if waiting.queues:
                waiting.flush(self._queues[topic] if queue.is_express else queue)

    def flush(self, queue: TopicQueue, now_ms: float) -> None:
        """End linger for the topic's records in the queue's lane, including those that still wait for a partition: a
        FLUSH that came without new records.
        """
        self._accumulator.expedite(queue.topic, queue.lane, now_ms)
        self.waiting.flush(self._queues[queue.topic] if queue.is_express else queue)

    # --- transactional lanes --------------------------------------------------------------------------------

    def _of_lane(self, lane: int) -> Iterator[TopicQueue]:
        """The queues of a lane and of its stages."""
        for each in (lane, lane | STAGED):
            yield from self._of_lanes.get(each, {}).values()

    def is_quiet(self, lane: int) -> bool:
        """Whether no entry of the lane waits for metadata or a partition. One of a stage waits once it is included."""
        return not any(queue.waiting or queue.out_of_range for queue in self._of_lane(lane))

    def flush_lane(self, lane: int) -> None:
        """End linger for the lane's entries that wait: they are sent as soon as they have their partitions."""
        for queue in self._of_lane(lane):
            self.waiting.flush(queue)

    def abort_lane(self, lane: int, code: LocalCode, text: str, now_ms: float) -> None:
        """Fail the lane's entries that wait."""
        for queue in self._of_lane(lane):
            if queue.waiting or queue.out_of_range:
                self.waiting.fail_queue(queue, code, now_ms, text)

    def include(self, queue: TopicQueue, ordinals: Sequence[int], now_ms: float) -> None:
        """Send entries of stages, in the order of the journal."""
        self._used.add(queue.topic)
        self.waiting.extend(queue, ordinals, now_ms)

    def forget_lane(self, lane: int) -> bool:
        """Drop the names of a lane's topics. False while something of one is left, or a stream uses it."""
        in_use = self._chains_in_use()
        lanes = lane, lane | STAGED
        named = [
            (its, topic, chain) for (its, topic), chain in self._chain_table.ids().items() if its in lanes
        ]
        for its, topic, chain_id in named:
            queue = self.by_chain.get(chain_id)
            if chain_id not in in_use and (queue is None or queue.is_empty):
                self._vacate(its, topic)
        self._of_lanes = {each: queues for each, queues in self._of_lanes.items() if queues}
        return not any(each in self._of_lanes for each in lanes)

    # --- metadata -------------------------------------------------------------------------------------------

    def on_snapshot(self, snapshot: MetadataSnapshot, now_ms: float) -> None:
        """Follow a metadata update and partition the entries that waited for it."""
        self._snapshot = snapshot
        for queue in self._bulk():
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
                    self.waiting.check_again(each, now_ms)
                self.waiting.partition(each, now_ms)
        self.waiting.set_expiry()

    def on_late_brokers(self, late: frozenset[int]) -> None:
        """Move keyless records away from late brokers, while there are others (KIP-794)."""
        if self._placement.set_late_brokers(late) and self._snapshot is not None:
            for queue in self._bulk():
                if self._placement.follow(queue, self._snapshot) and queue.express is not None:
                    queue.express.follow(queue)

    def on_topic_errors(self, codes: Mapping[str, int], now_ms: float) -> None:
        """Fail the entries of topics that Metadata refused for good; those of other errors wait on (M9)."""
        for topic, code in codes.items():
            for queue in self._of(topic) if code in _FATAL_TOPIC_ERRORS else ():
                for each in (queue,) if queue.express is None else (queue.express, queue):
                    self.waiting.refuse(each, _FATAL_TOPIC_ERRORS[code], now_ms)

    @property
    def names(self) -> Collection[str]:
        """Topics with a queue here: a client names them, or did so until lately."""
        if not self._of_lanes:
            return self._queues.keys()
        return {queue.topic for queue in self._bulk()}

    def take_used(self) -> list[str]:
        """Topics used since the last call, or with records here. The controller renews their expiry (M1).

        A topic for which records wait must not expire, however long they may wait (max.block.ms, delivery.timeout.ms).
        """
        used, self._used = list(self._used.union(self.in_use())), set()
        return used

    def in_use(self) -> set[str]:
        """Topics with records that have not ended, or whose transaction has not."""
        return {
            queue.topic
            for queue in self
            if queue.is_wanted
            and (
                queue.chain.live_entries or (queue.transaction is not None and not queue.transaction.is_over)
            )
        }


def _chain_lane(transaction: TransactionManager, is_staged: bool) -> int:
    return transaction.lane | STAGED if is_staged else transaction.lane
