"""Explainer: shows what waits for what in this worker, on request. It costs nothing while records pass."""

from __future__ import annotations

from heapq import nlargest, nsmallest
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from sidecar.common.condition import WaitCause
from sidecar.common.control import Explain, Explained
from sidecar.common.explanation import (
    CLIENT_ROWS_MAX,
    EVERY_USER,
    STAGE_ROWS_MAX,
    WAITING_ROWS_MAX,
    ClientAccount,
    OwnCause,
    StageAccount,
    WaitingRow,
)
from sidecar.shm.stage_states import StageRowState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sidecar.metadata.cache import MetadataCache
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.core import Core
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.worker.outcomes.dead_letters import DeadLetters
    from sidecar.worker.reporter import Reporter
    from sidecar.worker.streams.session import ClientSession, StreamState
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.topics.topics import Topics
    from sidecar.worker.transactions.stages import LaneStages

BATCHES_READ_MAX: Final = 10_000
"""Batches examined by one explanation, oldest first: some 10 ms of the worker's time."""


class _Partition:
    """Waiting batches of one partition. The oldest one gives the reason."""

    __slots__ = ("deadline_ms", "oldest", "records", "size_bytes", "submissions")

    def __init__(self, batch: ProducerBatch) -> None:
        self.oldest = batch
        self.records = self.size_bytes = 0
        self.deadline_ms = inf


class Explainer:
    """Reads the worker's rooms. Belongs to its loop."""

    def __init__(
        self,
        *,
        config: ProducerConfig,
        cache: MetadataCache,
        core: Core,
        topics: Topics,
        sessions: Sessions,
        reporter: Reporter,
        dead_letters: DeadLetters,
        stages: LaneStages,
    ) -> None:
        self._config = config
        self._cache = cache
        self._incomplete = core.accumulator.incomplete
        self._sender = core.sender
        self._topics = topics
        self._sessions = sessions
        self._reporter = reporter
        self._dead_letters = dead_letters
        self._stages = stages

    def explain(self, question: Explain, now_ms: float) -> Explained:
        """Answer for one topic, partition (``orders-3``), client or transactional id, or for everything (an empty
        name).
        """
        name = question.name
        own = [each for each in self._sessions if question.uid in {EVERY_USER, each.caller.uid}]
        sessions = [each for each in own if not name or each.name == name]
        wanted = _Wanted(name, {each.topic_queue.topic for one in sessions for each in one.streams.values()})
        rows = [
            *self._unknown(wanted),
            *_held(own, wanted, now_ms),
            *self._batches(wanted, now_ms),
            *self._letters(wanted),
        ]
        stages = list(self._waiting_stages(question))
        return Explained(
            serial=question.serial,
            is_known=not name or bool(sessions or stages) or self._knows(wanted),
            rows=tuple(nsmallest(WAITING_ROWS_MAX, rows, key=lambda row: row.since_ms)),
            row_count=len(rows),
            clients=tuple(
                nlargest(
                    CLIENT_ROWS_MAX,
                    (_client_row(each, now_ms) for each in sessions),
                    key=lambda row: (row.held_streams, row.records),
                )
            ),
            client_count=len(sessions),
            unread=max(0, len(self._incomplete) - BATCHES_READ_MAX),
            stages=tuple(nlargest(STAGE_ROWS_MAX, stages, key=lambda row: row.age_ms)),
            stage_count=len(stages),
        )

    def _waiting_stages(self, question: Explain) -> Iterator[StageAccount]:
        """Stages that are open, or wait for a transaction to include them."""
        for stage in self._stages:
            transactional_id = stage.lane.manager.transactional_id
            is_asked = question.name in {"", transactional_id, stage.client_name}
            is_own = question.uid in {EVERY_USER, stage.user - 1}
            if is_asked and is_own and stage.state in (StageRowState.OPEN, StageRowState.SEALED):
                is_sealed = stage.state is StageRowState.SEALED
                age_ms = float(self._stages.age_ms(stage))
                yield StageAccount(
                    transactional_id,
                    stage.caller_number,
                    stage.owner,
                    stage.client_name,
                    is_sealed,
                    stage.records,
                    stage.size_bytes,
                    age_ms,
                    self._stages.timeout_ms - age_ms if is_sealed else -1.0,
                    stage.token.decode("ascii"),
                )

    def _knows(self, wanted: _Wanted) -> bool:
        known = {queue.topic for queue in self._topics} | set(self._cache.current.topics)
        return wanted.name in known or any(
            wanted.covers(topic, partition)
            for topic in known
            if wanted.name.startswith(f"{topic}-")
            for partition in range(self._cache.current.partition_count(topic) or 0)
        )

    def _unknown(self, wanted: _Wanted) -> Iterator[WaitingRow]:
        """Entries without a partition: their topic, or the partition that they name, does not exist yet."""
        for queue in self._topics.waiting.queues:
            if not wanted.has_topic(queue.topic):
                continue
            for entries, cause, text in (
                (queue.waiting, WaitCause.UNKNOWN_TOPIC, "the topic is not in the cluster's metadata yet"),
                (
                    queue.out_of_range,
                    WaitCause.OUT_OF_RANGE,
                    f"they name a partition that the topic, which has {queue.partition_count}, does not have yet",
                ),
            ):
                if entries:
                    yield WaitingRow(
                        queue.topic,
                        -1,
                        "",
                        str(cause),
                        text,
                        -1,
                        -1,
                        len(entries),
                        queue.held_bytes,
                        entries.first_ms,
                        entries.first_ms + self._config.max_block_ms,
                    )

    def _batches(self, wanted: _Wanted, now_ms: float) -> Iterator[WaitingRow]:
        partitions: dict[tuple[str, int, int], _Partition] = {}
        for batch in islice(self._incomplete, BATCHES_READ_MAX):
            if not wanted.covers(batch.topic, batch.partition):
                continue
            key = batch.topic, batch.partition, batch.lane
            found = partitions.get(key)
            if found is None:
                found = partitions[key] = _Partition(batch)
            elif batch.order < found.oldest.order:
                found.oldest = batch
            found.records += batch.records.count
            found.size_bytes += batch.records.size_bytes
            found.deadline_ms = min(found.deadline_ms, batch.deadline_ms)
        snapshot = self._cache.current
        brokers = {row.id: row for row in self._reporter.brokers(snapshot, now_ms)}
        for (topic, partition, _), found in partitions.items():
            leader = snapshot.leader(topic, partition)
            broker = -1 if leader is None else leader.id
            cause, error = self._reporter.why(found.oldest, broker, brokers.get(broker), now_ms)
            yield WaitingRow(
                topic,
                partition,
                "",
                str(cause),
                self._words(
                    found.oldest, cause, broker, brokers[broker].state if broker in brokers else "", now_ms
                ),
                broker,
                found.records,
                0,
                found.size_bytes,
                found.oldest.created_ms,
                found.deadline_ms,
                error or found.oldest.last_error or "",
            )

    def _letters(self, wanted: _Wanted) -> Iterator[WaitingRow]:
        """Failures whose clients are gone and which the spool does not accept."""
        letters = self._dead_letters
        if not letters.refusal:
            return
        records: dict[str, int] = {}
        submissions: dict[str, int] = {}
        for each in islice(letters.held(), BATCHES_READ_MAX):
            if wanted.has_topic(each.topic):
                records[each.topic] = records.get(each.topic, 0) + each.record_count
                submissions[each.topic] = submissions.get(each.topic, 0) + 1
        for topic, count in records.items():
            yield WaitingRow(
                topic,
                -1,
                "",
                str(OwnCause.SPOOL),
                f"they failed, their clients are gone, and {letters.refusal}",
                -1,
                count,
                submissions[topic],
                0,
                letters.refused_since_ms,
                0.0,
            )

    def _words(self, batch: ProducerBatch, cause: WaitCause, broker: int, state: str, now_ms: float) -> str:
        if cause is WaitCause.QUEUED:
            if not self._sender.in_flight.capacity(broker):
                return f"as many requests as may be at broker {broker} have no answer yet"
            return batch.queue.waiting_for()
        if cause is WaitCause.THROTTLED:
            throttle_ms, at_ms = self._sender.throttles.get(broker, (0, now_ms))
            left_ms = max(at_ms + throttle_ms - now_ms, 0.0)
            return f"broker {broker} asked for silence (a quota), {left_ms:,.0f} ms of it are left"
        left_ms = batch.retry_at_ms - now_ms
        when = f" in {left_ms:,.0f} ms" if 0 < left_ms < inf else ""
        return {
            WaitCause.REFUSED: f"broker {broker} refused them, they are sent again{when}",
            WaitCause.LOST: (
                f"the connection to broker {broker} ended before it answered, they are sent again{when}"
            ),
            WaitCause.ADOPTED: (
                "the worker that had sent them died, they are sent again once "
                f"broker {broker} has said what it has of them"
            ),
            WaitCause.PRODUCER_ID: "the daemon has no producer id yet",
            WaitCause.NO_LEADER: "the partition has no leader",
            WaitCause.METADATA: "the cluster's metadata has not come yet",
            WaitCause.BROKER: f"broker {broker} is {state or 'not known'}",
            WaitCause.UNANSWERED: f"they are in flight: broker {broker} has not answered yet",
            WaitCause.PAUSED: "an operator has paused the topic, `kafka-sidecar resume` lets it continue",
            WaitCause.LINGER: f"linger.ms ({batch.queue.settings.linger_ms:g}) is not over",
        }.get(cause, str(cause))


class _Wanted:
    """The name asked for, and the topics of the client if it names one."""

    __slots__ = ("name", "topics")

    def __init__(self, name: str, topics: set[str]) -> None:
        self.name = name
        self.topics = topics

    def has_topic(self, topic: str) -> bool:
        return not self.name or topic == self.name or topic in self.topics

    def covers(self, topic: str, partition: int) -> bool:
        return self.has_topic(topic) or (self.name.startswith(topic) and self.name == f"{topic}-{partition}")


def _held(sessions: Iterable[ClientSession], wanted: _Wanted, now_ms: float) -> Iterator[WaitingRow]:
    """Streams that are held or wait for the disk."""
    for session in sessions:
        for stream in session.streams.values():
            if stream.held or stream.position != stream.accepted:
                topic = stream.topic_queue.topic
                if wanted.name in {"", session.name, topic}:
                    yield _stream_row(session, stream, now_ms)


def _stream_row(session: ClientSession, stream: StreamState, now_ms: float) -> WaitingRow:
    if stream.held:
        cause, text, since_ms = str(stream.hold_cause), stream.hold_reason or "", stream.hold_since_ms
    else:
        cause, text, since_ms = (
            str(OwnCause.DISK_SYNC),
            "they are being written to the disk of pool.path",
            now_ms,
        )
    submissions = stream.position - stream.accepted
    return WaitingRow(
        stream.topic_queue.topic, -1, session.name, cause, text, -1, -1, submissions, 0, since_ms, 0.0
    )


def _client_row(session: ClientSession, now_ms: float) -> ClientAccount:
    return ClientAccount(
        session.name,
        session.row.pid,
        session.attached,
        session.unsettled_records,
        session.unsettled_bytes,
        len(session.streams),
        sum(stream.held for stream in session.streams.values()),
        max(now_ms - session.last_heard_ms, 0.0),
    )
