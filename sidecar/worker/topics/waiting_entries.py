"""WaitingEntries: accepted entries that wait for their topic's metadata, or for a partition that does not exist yet.

Rules M5, M9 and M10: they wait up to max.block.ms, strictly in order, while their stubs continue. The end of a wait
(metadata, a refusal, time) is handled in parts, so that one topic's backlog does not delay a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import WORD_UNPARTITIONED, LocalCode, SubmitFlag
from sidecar.kernel import fail_records, fail_remaining, index, index_run
from sidecar.worker.streams.topic_queue import EntryLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.kernel import RecordBlock
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.shm.in_work import InWork
    from sidecar.worker.outcomes.settlement import Settlement
    from sidecar.worker.streams.topic_queue import TopicQueue
    from sidecar.worker.topics.missing_topics import MissingTopics

RUN_ENTRIES = 65_536
"""Limit of waiting entries that are partitioned in one run, so that other work gets its turn."""
EXPIRED_ENTRIES = 8_192
"""Limit of a topic's entries that expire or are refused in one turn."""
LOOK_UP_MS: Final = 1_000.0
"""How long a record waits for the look-up of its topic if max.block.ms is 0. Then only one that finds none waiting
fails at once, as in Kafka's send(): a burst would fail as a whole before the answer can come, and no caller waits for
it here.
"""
_NEVER_MS: Final = float("inf")
_FIXED_PARTITIONS: Final = int(SubmitFlag.FIXED_PARTITIONS)


class WaitingEntries:
    """Tracks which queues have waiting entries and which of these are due. The entries are in the topics' queues."""

    def __init__(
        self,
        *,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        settlement: Settlement,
        in_work: InWork,
        missing: MissingTopics,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._settlement = settlement
        self._in_work = in_work.loop_word
        self._missing = missing
        self.queues: dict[TopicQueue, None] = {}
        """Queues with waiting entries. If it is empty, nothing here is due by time alone."""
        self._going_on: dict[TopicQueue, None] = {}
        """Queues among them whose topic is known. A turn examines only these, however many wait for metadata."""
        self._out_of_range: dict[TopicQueue, None] = {}
        """Queues with records for a partition that does not exist, and some that had such records."""
        self.outdated: set[str] = set()
        """Topics of records that failed for a missing partition and do not wait for it."""
        self._refresh_due_ms = 0.0
        self._expiry_ms = _NEVER_MS
        """Lower bound of all expiry times, monotonic ms, so that a turn need not examine a thousand waiting topics. If
        it is too early, one check corrects it.
        """
        self._flush_asked: set[tuple[int, str]] = set()
        """Lanes and topics flushed while records waited for metadata: linger does not apply to those records."""
        self._refused: dict[TopicQueue, tuple[LocalCode, int]] = {}
        """Topics that Kafka refused, with the code and the number of waiting entries still to fail."""

    # --- in -------------------------------------------------------------------------------------------------

    def append(self, queue: TopicQueue, ordinal: int, now_ms: float) -> None:
        """Add an entry that was just accepted."""
        begins_wait = not queue.waiting
        queue.waiting.append(ordinal, now_ms)
        self._waits(queue)
        if begins_wait and not self._config.max_block_ms:
            self._fail_first(queue, now_ms)

    def extend(self, queue: TopicQueue, ordinals: Sequence[int], now_ms: float) -> None:
        """Add entries with records without a partition, of a dead worker or of stages that are included."""
        queue.waiting.extend(ordinals, now_ms)
        self._waits(queue)

    def _waits(self, queue: TopicQueue) -> None:
        self.queues[queue] = None
        if queue.waiting:
            self._expiry_ms = min(self._expiry_ms, queue.waiting.first_ms + self._look_up_max_ms)
        if queue.partitioner is None or queue.is_deleted:
            self._missing.add(queue.topic)
        elif queue.waiting:
            self._going_on[queue] = None

    def _waits_no_more(self, queue: TopicQueue) -> None:
        self.queues.pop(queue, None)
        if not queue.is_express:
            self._flush_asked.discard((queue.lane, queue.topic))

    def flush(self, queue: TopicQueue) -> None:
        """End linger for the topic's waiting entries: they are sent as soon as they have their partitions."""
        if queue in self.queues:
            self._flush_asked.add((queue.lane, queue.topic))

    # --- out: into batches ----------------------------------------------------------------------------------

    def _distribute(self, queue: TopicQueue, block: RecordBlock, accepted_ms: float, now_ms: float) -> None:
        """Put the partitioned records of a block into batches. Failures belong to its last entry, accepted at
        ``accepted_ms``.
        """
        if block.groups:
            if queue.is_staged:
                # The lane's own records are in another chain, and a batch has records of one.
                self._accumulator.close_batches(queue.topic, queue.lane, block.groups, now_ms)
            self._accumulator.append(
                queue.topic, queue.lane, block, now_ms, express=queue.is_express, since_ms=accepted_ms
            )
            if queue.is_staged:
                self._accumulator.close_batches(queue.topic, queue.lane, block.groups, now_ms)
        # kill point: index.batched
        if block.failures:
            self.take_failures(queue, block, accepted_ms, now_ms)

    def take_failures(self, queue: TopicQueue, block: RecordBlock, accepted_ms: float, now_ms: float) -> None:
        """Fail the records of a block's last entry, accepted at ``accepted_ms``, that could not be partitioned.

        A record that names a partition beyond the topic's waits up to max.block.ms for it to appear, as in Kafka's
        KafkaProducer.waitOnMetadata, unless its client wants it to fail at once, as in librdkafka. Either way the topic
        is refreshed. The other records of its entry continue.
        """
        failures = final = block.failures
        if not block.entry.flags & _FIXED_PARTITIONS:
            final = [each for each in failures if each[1] != LocalCode.INVALID_PARTITION]
        elif any(code == LocalCode.INVALID_PARTITION for _, code in failures):
            self.outdated.add(queue.topic)
        if len(final) < len(failures):
            queue.out_of_range.append(block.entry.ordinal, accepted_ms)
            self._expiry_ms = min(self._expiry_ms, accepted_ms + self._config.max_block_ms)
            self.queues[queue] = self._out_of_range[queue] = None
        if final:
            self._settlement.fail_records(queue, block.entry, final, now_ms)

    def partition(self, queue: TopicQueue, now_ms: float) -> None:
        """Partition a part of the topic's waiting entries, strictly in order. The next turns take the rest."""
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
            # An include brings all records of its stages at once: its runs are bounded by these.
            left = 0 if queue.is_staged else left - block.taken
            self._distribute(queue, block, accepted_ms, now_ms)
        if (queue.lane, queue.topic) in self._flush_asked:
            self._accumulator.expedite(queue.topic, queue.lane, now_ms)
        if waiting:
            self._going_on[queue] = None
            return
        self._going_on.pop(queue, None)
        if not queue.out_of_range:
            self._waits_no_more(queue)

    def go_on(self, now_ms: float) -> bool:
        """Continue with entries whose wait ended by metadata or a refusal. True if more is left for the next turn."""
        if self._refused:
            for queue in list(self._refused):
                self._fail_refused(queue, now_ms)
        if self._going_on:
            for queue in list(self._going_on):
                if queue.is_deleted:
                    del self._going_on[queue]  # until a metadata update brings it back
                elif queue not in self._refused:
                    self.partition(queue, now_ms)
        return bool(self._refused or self._going_on)

    def check_again(self, queue: TopicQueue, now_ms: float) -> None:
        """Retry entries that named a missing partition, after the topic got more partitions. Call before newer entries
        are partitioned, so that records of a new partition keep their order.
        """
        again, queue.out_of_range = queue.out_of_range, EntryLine()
        while again:
            ordinal, accepted_ms = again.popleft()
            self._check_again(queue, ordinal, accepted_ms, now_ms)

    def _check_again(self, queue: TopicQueue, ordinal: int, accepted_ms: float, now_ms: float) -> None:
        """Retry the records of an entry that named a missing partition."""
        assert queue.partitioner is not None
        entry = queue.chain.entry(ordinal)
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
        self._distribute(queue, block, accepted_ms, now_ms)

    # --- out: time and refusals -----------------------------------------------------------------------------

    def expire(self, now_ms: float) -> None:
        """Fail entries that waited longer than max.block.ms for metadata or for a partition (M5, M10)."""
        if now_ms < self._expiry_ms:
            return
        since_ms = now_ms - self._config.max_block_ms
        looked_up_since_ms = now_ms - self._look_up_max_ms
        code = self._code_of_timeout()
        for queue in list(self.queues):
            left = EXPIRED_ENTRIES
            while left and queue.waiting and queue.waiting.first_ms <= looked_up_since_ms:
                self._fail(queue, queue.waiting.popleft()[0], code, now_ms)
                left -= 1
            while left and queue.out_of_range and queue.out_of_range.first_ms <= since_ms:
                self._fail(queue, queue.out_of_range.popleft()[0], LocalCode.INVALID_PARTITION, now_ms)
                left -= 1
                if self._config.max_block_ms < self._config.retry_backoff_max_ms:
                    self.outdated.add(queue.topic)  # it may not have waited for a refresh
            if not queue.waiting and not queue.out_of_range:
                self._waits_no_more(queue)
        self.set_expiry()

    @property
    def _look_up_max_ms(self) -> float:
        """How long an entry waits for its topic."""
        return self._config.max_block_ms or LOOK_UP_MS

    def _code_of_timeout(self) -> LocalCode:
        return LocalCode.UNAUTHENTICATED if self._settlement.is_login_refused else LocalCode.METADATA_TIMEOUT

    def _fail_first(self, queue: TopicQueue, now_ms: float) -> None:
        """Fail the first waiting record. The others of its entry wait on."""
        code = self._code_of_timeout()
        entry = queue.chain.entry(int.from_bytes(queue.waiting.first(1), "little"))
        if entry.count > 1:
            fail_records(queue.chain, entry, [0], code)
            self._settlement.fail_records(queue, entry, [(0, int(code))], now_ms)
            return
        self._fail(queue, queue.waiting.popleft()[0], code, now_ms)
        if not queue.out_of_range:
            self._waits_no_more(queue)

    def refuse(self, queue: TopicQueue, code: LocalCode, now_ms: float) -> None:
        """Fail all waiting entries of a topic that Kafka refused, a first part of them at once."""
        self._refused[queue] = code, len(queue.waiting)
        self._fail_refused(queue, now_ms)

    def fail_all(self, code: LocalCode, now_ms: float) -> None:
        """Fail all waiting entries, for a forced close: also those that wait for a partition."""
        for queue in list(self.queues):
            self.fail_queue(queue, code, now_ms)
        self.set_expiry()

    def fail_queue(self, queue: TopicQueue, code: LocalCode, now_ms: float, text: str | None = None) -> None:
        """Fail all waiting entries of one queue. ``text`` None: the code's own."""
        self._refused.pop(queue, None)  # all that it was about end here
        while queue.waiting:
            self._fail(queue, queue.waiting.popleft()[0], code, now_ms, text)
        self._has_failed(queue)
        while queue.out_of_range:
            self._fail(queue, queue.out_of_range.popleft()[0], code, now_ms, text)

    def _fail_refused(self, queue: TopicQueue, now_ms: float) -> None:
        """Fail a part of the entries that waited when the topic was refused. The next turns fail the rest."""
        code, left = self._refused.pop(queue)
        for _ in range(min(left, EXPIRED_ENTRIES, len(queue.waiting))):
            self._fail(queue, queue.waiting.popleft()[0], code, now_ms)
        left = min(left - EXPIRED_ENTRIES, len(queue.waiting))
        if left > 0:
            self._refused[queue] = code, left
            return
        if not queue.waiting:
            self._has_failed(queue)
        else:
            self._missing.discard(queue.topic)

    def _has_failed(self, queue: TopicQueue) -> None:
        """Note that no entry of the topic waits for metadata any more."""
        self._going_on.pop(queue, None)
        if not queue.out_of_range:
            self._waits_no_more(queue)
        self._missing.discard(queue.topic)

    def _fail(
        self, queue: TopicQueue, ordinal: int, code: LocalCode, now_ms: float, text: str | None = None
    ) -> None:
        entry = queue.chain.entry(ordinal)
        failures = [(i, int(code)) for i in fail_remaining(queue.chain, entry, code)]
        self._settlement.fail_records(queue, entry, failures, now_ms, text)

    # --- what is due, and how much --------------------------------------------------------------------------

    def take_stale(self, now_ms: float) -> tuple[str, ...]:
        """Topics with records for a missing partition, to be refreshed about once a second."""
        if not (self._out_of_range or self.outdated) or now_ms < self._refresh_due_ms:
            return ()
        self._out_of_range = dict.fromkeys(queue for queue in self._out_of_range if queue.out_of_range)
        topics = {queue.topic: None for queue in self._out_of_range} | dict.fromkeys(self.outdated)
        self.outdated.clear()
        if topics:
            self._refresh_due_ms = now_ms + self._config.retry_backoff_max_ms
        return tuple(topics)

    @property
    def next_due_ms(self) -> float:
        """When the next entry expires or a topic is refreshed, monotonic ms; infinity if nothing waits."""
        if not (self.queues or self.outdated):
            return _NEVER_MS
        refresh_ms = self._refresh_due_ms if self._out_of_range or self.outdated else _NEVER_MS
        return min(self._expiry_ms if self.queues else _NEVER_MS, refresh_ms)

    def set_expiry(self) -> None:
        """Set the time at which the first of the remaining entries expires."""
        self._expiry_ms = min(
            (
                *(queue.waiting.first_ms + self._look_up_max_ms for queue in self.queues if queue.waiting),
                *(
                    queue.out_of_range.first_ms + self._config.max_block_ms
                    for queue in self.queues
                    if queue.out_of_range
                ),
            ),
            default=_NEVER_MS,
        )

    @property
    def entry_count(self) -> int:
        return sum(len(queue.waiting) + len(queue.out_of_range) for queue in self.queues)

    @property
    def topic_count(self) -> int:
        return sum(1 for queue in self.queues if queue.waiting or queue.out_of_range)
