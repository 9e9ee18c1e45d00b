"""Inquiry: asks brokers about batches that were sent and got no answer: those of a dead worker, and this worker's old
records.

A broker does not report that it has forgotten a producer id: it accepts any first sequence without an error, and so
duplicates records. So DescribeProducers is asked first, and only then is a batch sent again, unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from sidecar.common.condition import WaitCause
from sidecar.common.control import NeedTopics
from sidecar.common.errors import Code, classify
from sidecar.net.kafka.connector import LinkError
from sidecar.producer.lanes import IDEMPOTENT_LANE, SEQUENCE_MASK
from sidecar.protocol.describe_producers import (
    ProducerState,
    describe_producers_request,
    parse_describe_producers,
)
from sidecar.protocol.messages import ApiKey, ProtocolError

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.common.model import Node
    from sidecar.metadata.cache import MetadataCache
    from sidecar.net.kafka.broker_link import BrokerLink
    from sidecar.net.kafka.cluster_links import ClusterLinks
    from sidecar.producer.effects import AskBroker
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.sender import Sender
    from sidecar.producer.transaction_manager import TransactionManager
    from sidecar.shm.slots import Counters
    from sidecar.worker.host import Host
    from sidecar.worker.turns import Turns

log = logging.getLogger(__name__)

FRESH_MS: Final = 300_000
"""In ms. If a batch was sent within this time, its records are no older, and its broker does not know it, then it
never arrived. Brokers expire an id by the timestamps of the last batch appended under it, and no sensible expiration
is shorter.
"""
_MAY_NOT_ASK: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.UNSUPPORTED_VERSION,
    }
)


class Verdict(Enum):
    SEND_AGAIN = auto()
    """The broker will recognise each batch that it has."""
    UNKNOWN = auto()
    """The batch may be in the log, and the broker would not recognise a second copy."""


def verdict_on(
    batches: Sequence[tuple[ProducerBatch, int]],
    producers: Mapping[int, ProducerState] | None,
    now_wall_ms: int,
) -> Verdict:
    """Judge one partition's batches of one identity: (batch, wall-clock ms of its publication), oldest first.

    ``producers`` is None if the broker refuses the question; then time alone decides. If the broker names a batch's
    last sequence, that batch is marked as appended. This says nothing of earlier batches: a broker that has forgotten
    the id accepts a later batch without them. Sent again, they are recognised, or known to be in doubt.
    """
    first, published_ms = batches[0]
    # abs(): after the clock was set back, an old batch appears to lie in the future.
    is_fresh = published_ms > 0 and abs(now_wall_ms - published_ms) <= FRESH_MS
    is_fresh = is_fresh and all(
        now_wall_ms - batch.records.max_timestamp_ms <= FRESH_MS for batch, _ in batches
    )
    if producers is None:
        return Verdict.SEND_AGAIN if is_fresh else Verdict.UNKNOWN
    state = producers.get(first.producer_id)
    if state is not None and state.epoch >= first.epoch:
        for batch, _ in batches:
            is_of_epoch = state.epoch == batch.epoch
            ahead = (batch.base_sequence - state.last_sequence) & SEQUENCE_MASK
            batch.appended = is_of_epoch and state.last_sequence == batch.last_sequence
            _note_absent(batch, is_of_epoch and 0 < ahead <= SEQUENCE_MASK // 2)
        return Verdict.SEND_AGAIN
    # Sequence 0 is unsettled, so the broker never acknowledged anything under this identity (or 2^31 records). It can
    # only have forgotten the batch itself, and that was sent too recently to be forgotten.
    if first.base_sequence == 0 and (state is not None or is_fresh):
        for batch, _ in batches:
            _note_absent(batch, True)
        return Verdict.SEND_AGAIN
    return Verdict.UNKNOWN


def _note_absent(batch: ProducerBatch, is_absent: bool) -> None:
    """Note whether the batch is surely not in the log. If so, no batch of which it is a half is there either."""
    batch.was_absent = is_absent
    if is_absent:
        batch.doubtful_parent = None


def take_acked(first: ProducerBatch, producers: Mapping[int, ProducerState] | None) -> None:
    """Take the broker's last sequence as the last one that a dead worker had acknowledged before ``first``. A gap
    between the two is real: the dead worker had given up a batch there.
    """
    state = producers.get(first.producer_id) if producers is not None else None
    sequences = first.queue.sequences
    if state is not None and sequences is not None and sequences.identity == (first.producer_id, state.epoch):
        sequences.acked_next = (state.last_sequence + 1) & SEQUENCE_MASK


def _has_ended(queue: PartitionQueue) -> bool:
    """Whether the transaction is over in which a dead worker may have sent batches of this partition."""
    sequences, transaction = queue.sequences, queue.transaction
    if sequences is None or transaction is None or (transaction.is_abandoned and transaction.is_over):
        return True
    return not sequences.awaits_number or sequences.identity != transaction.identity


def _continue(
    queue: PartitionQueue, transaction: TransactionManager, producers: Mapping[int, ProducerState] | None
) -> None:
    """Continue a dead worker's transaction in a partition whose batches it had all acknowledged. ``producers`` None:
    the broker refuses the question.
    """
    sequences = queue.sequences
    if sequences is None or _has_ended(queue):
        return
    producer_id, epoch = sequences.identity
    state = None if producers is None else producers.get(producer_id)
    if producers is None:
        text = "the broker may not be asked which records it has of the worker that died in this transaction."
        transaction.batch_failed(queue.topic, queue.partition, Code.UNKNOWN_PRODUCER_ID, text)
    elif state is not None and state.epoch > epoch:
        text = (
            "the transaction was ended, by its timeout or by another producer, while its worker was replaced."
        )
        transaction.batch_failed(queue.topic, queue.partition, Code.INVALID_PRODUCER_EPOCH, text)
    elif state is None or state.epoch < epoch:
        sequences.continue_at(0)
    else:
        sequences.continue_at((state.last_sequence + 1) & SEQUENCE_MASK)


class Inquiry:
    """Asks each partition's leader about its batches, with retries, then resumes the batches. Belongs to the worker's
    loop.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: MonotonicClock,
        cache: MetadataCache,
        links: ClusterLinks,
        accumulator: RecordAccumulator,
        sender: Sender,
        counters: Counters,
        when_unknown: str,
        retry_ms: float,
        retry_max_ms: float,
        host: Host,
        turns: Turns,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._cache = cache
        self._links = links
        self._accumulator = accumulator
        self._sender = sender
        self._counters = counters
        self._when_unknown = when_unknown
        self._retry_ms = self._first_retry_ms = retry_ms
        self._host = host
        self._turns = turns
        self._retry_max_ms = retry_max_ms
        self.unanswered: dict[PartitionQueue, list[tuple[ProducerBatch, int]]] = {}
        """Partitions whose leader has not answered, with their batches. Empty if there is nothing to ask."""
        self._asking: set[PartitionQueue] = set()
        self._retry_at_ms = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._said_no_right = False

    def begin(self, batches: Sequence[tuple[ProducerBatch, int]]) -> None:
        """Take adopted batches: (batch, wall-clock ms of its publication), oldest first per partition."""
        now_ms = self._clock.now_ms()
        for batch, published_ms in batches:
            if batch.lane == IDEMPOTENT_LANE and batch.has_sequence:
                self.unanswered.setdefault(batch.queue, []).append((batch, published_ms))
            else:
                self._accumulator.resume(batch, now_ms)  # acks 0 or 1: sent again, at least once

    def ask_for_sequence(self, queue: PartitionQueue) -> None:
        """Ask which sequence is next in a transaction that a dead worker began. New batches wait for the answer."""
        self.unanswered.setdefault(queue, [])
        self._turns.wake()

    def ask_later(self, effect: AskBroker, now_ms: float) -> None:
        """Ask about a batch of this worker when its backoff is over. It is in doubt, and its producer id may be
        forgotten.
        """
        self._loop.call_later(max(0.0, effect.at_ms - now_ms) / 1000, self._add, effect.batch)

    def _add(self, batch: ProducerBatch) -> None:
        if not batch.is_decided:
            # The time of publication does not matter: the records are too old for a verdict by time.
            self.unanswered.setdefault(batch.queue, []).append((batch, 0))
            self._turns.wake()

    def step(self, now_ms: float) -> None:
        """Ask every leader that can be asked now. Called every turn until all have answered."""
        if now_ms < self._retry_at_ms:
            return
        for queue in [
            q
            for q, batches in self.unanswered.items()
            if (all(batch.is_decided for batch, _ in batches) if batches else _has_ended(q))
        ]:
            del self.unanswered[queue]  # all of its batches have expired, or its transaction has ended
        by_node: dict[int, list[PartitionQueue]] = {}
        leaderless: set[str] = set()
        snapshot = self._cache.current
        for queue in self.unanswered.keys() - self._asking:
            leader = snapshot.leader(queue.topic, queue.partition)
            if leader is None:
                leaderless.add(queue.topic)
            else:
                by_node.setdefault(leader.id, []).append(queue)
        for node_id, queues in by_node.items():
            self._ask(snapshot.nodes[node_id], queues)
        if leaderless and snapshot.nodes:
            self._host.send_control(NeedTopics(topics=tuple(sorted(leaderless)), refresh=True))
            self._later()

    def _ask(self, node: Node, queues: list[PartitionQueue]) -> None:
        link = self._links.ready(node)
        if link is None:
            self._later()
            return
        self._asking.update(queues)
        task = self._loop.create_task(self._ask_link(link, queues))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_link(self, link: BrokerLink, queues: list[PartitionQueue]) -> None:
        wanted = {(queue.topic, queue.partition): queue for queue in queues}
        try:
            version = link.version(ApiKey.DESCRIBE_PRODUCERS)
            if version is None:
                self._may_not_ask(queues, f"{link.node} does not offer DescribeProducers")
                return
            partitions: dict[str, list[int]] = {}
            for topic, partition in wanted:
                partitions.setdefault(topic, []).append(partition)
            asked = link.request(describe_producers_request(version, partitions))
            # kill point: inquiry.asked
            answers = parse_describe_producers(await asked)
            # kill point: inquiry.answered
            for answer in answers:
                queue = wanted.get((answer.topic, answer.partition))
                if queue is None:
                    continue
                if answer.error_code == 0:
                    self._answered(queue, answer.producers)
                elif answer.error_code in _MAY_NOT_ASK:
                    self._may_not_ask([queue], classify(answer.error_code).name)
                else:
                    row = classify(answer.error_code)
                    for batch, _ in self.unanswered.get(queue, ()):
                        # Status and the error of a record that expires show it.
                        batch.retry_cause, batch.last_error = WaitCause.REFUSED, row.name
                    if row.stale_metadata:
                        self._host.send_control(NeedTopics(topics=(queue.topic,), refresh=True))
        except (LinkError, ProtocolError) as error:
            log.info("%s could not be asked about unanswered batches: %s.", link.node, error)
        finally:
            self._asking.difference_update(queues)
            if self.unanswered.keys() & set(queues):
                self._later()
            self._turns.wake()

    def _later(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms < self._retry_at_ms:
            return
        self._retry_at_ms = now_ms + self._retry_ms
        self._loop.call_later(self._retry_ms / 1000 + 0.001, self._turns.wake)
        self._retry_ms = min(2 * self._retry_ms, self._retry_max_ms)

    def _may_not_ask(self, queues: Sequence[PartitionQueue], why: str) -> None:
        if not self._said_no_right:
            self._said_no_right = True
            log.warning(
                "DescribeProducers failed (%s): unanswered batches sent within the last "
                "%d minutes, with records no older, are sent again.",
                why,
                FRESH_MS // 60_000,
            )
        for queue in queues:
            self._answered(queue, None)

    def _answered(self, queue: PartitionQueue, producers: Mapping[int, ProducerState] | None) -> None:
        now_ms = self._clock.now_ms()
        self._retry_ms = self._first_retry_ms
        if queue.transaction is not None:
            self.unanswered.pop(queue, None)  # its transaction may have ended meanwhile
            _continue(queue, queue.transaction, producers)
            self._sender.lane_changed(queue.lane, now_ms)
            return
        batches = [each for each in self.unanswered.pop(queue, ()) if not each[0].is_decided]
        while batches:
            identity = (batches[0][0].producer_id, batches[0][0].epoch)
            same = [each for each in batches if (each[0].producer_id, each[0].epoch) == identity]
            batches = [each for each in batches if each not in same]
            if same[0][1] > 0:
                take_acked(same[0][0], producers)
            self._decide(queue, same, verdict_on(same, producers, self._clock.timestamp_ms()), now_ms)

    def _decide(
        self,
        queue: PartitionQueue,
        batches: Sequence[tuple[ProducerBatch, int]],
        verdict: Verdict,
        now_ms: float,
    ) -> None:
        count = sum(batch.count for batch, _ in batches)
        if verdict is Verdict.UNKNOWN:
            log.warning(
                "%d records for %s-%d got no answer, and the broker no longer knows whether it has them "
                "(recover.unknown = %s).",
                count,
                queue.topic,
                queue.partition,
                self._when_unknown,
            )
            if self._when_unknown == "fail":
                text = "The broker no longer knows whether it has the record, whose answer was lost."
                for batch, _ in batches:
                    self._sender.give_up(batch, Code.UNKNOWN_PRODUCER_ID, text, now_ms)
                return
            self._counters.inc("records_resent_unknown_total", count)
        for batch, _ in batches:
            self._accumulator.resume(batch, now_ms)
        self._sender.wake()
