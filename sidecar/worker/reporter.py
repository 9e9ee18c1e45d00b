"""Reporter: this worker's condition for the controller: its brokers, its part of the pool, and waiting records.

It checks once a second. Records, batches and requests do no work for it.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from sidecar.common.condition import (
    DELIBERATE,
    SILENT_MS,
    BrokerRow,
    BrokerState,
    HoldCause,
    HoldRow,
    LettersRow,
    ShareRow,
    WaitCause,
    WaitRow,
)
from sidecar.common.control import Condition
from sidecar.common.model import second_of
from sidecar.worker.stubs.shares import CLIENT_SHARE, TOPIC_SHARE

if TYPE_CHECKING:
    from sidecar.metadata.cache import MetadataCache
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.net.kafka.cluster_links import ClusterLinks
    from sidecar.producer.core import Core
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.worker.brokers.produce_port import ProducePort
    from sidecar.worker.host import Host
    from sidecar.worker.outcomes.dead_letters import DeadLetters
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.stubs.holds import Holds
    from sidecar.worker.stubs.openings import StreamOpenings
    from sidecar.worker.topics.topics import Topics

REPORT_MS: Final = 1_000.0
"""Time between two reports in ms."""
BATCHES_SEEN_MAX: Final = 2_000
"""Batches, oldest first, whose brokers a report examines. Held records beyond them are left out."""
ROWS_MAX: Final = 20
"""Limit of topics, clients and held streams in one report: those with the most pages, or held longest."""


class _Held:
    """Records that wait for one broker."""

    __slots__ = ("bytes", "oldest_ms", "records")

    def __init__(self) -> None:
        self.records = self.bytes = 0
        self.oldest_ms = inf


class Reporter:
    """Reads the worker's rooms. Belongs to its loop. ``page_count`` and ``page_bytes`` are those of the whole pool."""

    def __init__(
        self,
        *,
        host: Host,
        links: ClusterLinks,
        cache: MetadataCache,
        core: Core,
        topics: Topics,
        sessions: Sessions,
        holds: Holds,
        openings: StreamOpenings,
        produce_port: ProducePort,
        dead_letters: DeadLetters,
        page_count: int,
        page_bytes: int,
    ) -> None:
        self._host = host
        self._links = links
        self._cache = cache
        self._sender = core.sender
        self._incomplete = core.accumulator.incomplete
        self._topics = topics
        self._sessions = sessions
        self._holds = holds
        self._openings = openings
        self._produce_port = produce_port
        self._dead_letters = dead_letters
        self._page_bytes = page_bytes
        self._topic_share_bytes = TOPIC_SHARE * page_count * page_bytes
        self._client_share_bytes = CLIENT_SHARE * page_count * page_bytes
        self._next_ms = 0.0
        self._ignorant_since_ms: float | None = None
        """When it first found no metadata (monotonic ms)."""
        self._had_metadata = False
        self._states: dict[int, tuple[BrokerState, float]] = {}
        """By broker: its state, and since when (monotonic ms)."""
        self._last: Condition | None = None

    def step(self, now_ms: float) -> None:
        """Send a report if it is time and something has changed."""
        has_metadata = bool(self._cache.current.nodes)
        if now_ms < self._next_ms and has_metadata is self._had_metadata:
            return
        self._next_ms, self._had_metadata = now_ms + REPORT_MS, has_metadata
        if not has_metadata and self._ignorant_since_ms is None:
            self._ignorant_since_ms = now_ms
        condition = self._condition(now_ms)
        if condition != self._last:
            self._last = condition
            self._host.send_control(condition)

    def _condition(self, now_ms: float) -> Condition:
        snapshot = self._cache.current
        brokers = self.brokers(snapshot, now_ms)
        streams = tuple(islice(self._holds.held, 10 * ROWS_MAX))
        full = {
            stream.topic_queue.topic if stream.topic_queue.share_waiters else stream.session.name
            for stream in streams
            if stream.hold_cause is HoldCause.SHARE
        }
        holds: dict[tuple[str, str, str], tuple[float, int, str]] = {}
        for stream in streams:
            key = stream.session.name, str(stream.hold_cause), stream.topic_queue.topic
            since_ms, count, _ = holds.get(key, (inf, 0, ""))
            rate = (stream.hold_reason or "") if stream.hold_cause is HoldCause.RATE else ""
            holds[key] = min(since_ms, stream.hold_since_ms), count + 1, rate
        for session in self._sessions:
            if session.unwritten and session.ring_full_since_ms is not None:
                # It may be sending nothing, so none of its streams is held.
                key = session.name, str(HoldCause.RING), ""
                holds.setdefault(key, (session.ring_full_since_ms, len(session.streams), ""))
        for waiting, wait in self._openings.queue.waiting.items():
            key = waiting.session.name, str(HoldCause.UNKNOWN_TOPIC), wait.topic
            holds.setdefault(key, (wait.since_ms, 1, ""))
        longest = sorted(holds.items(), key=lambda each: each[1][0])[:ROWS_MAX]
        knows_cluster = bool(snapshot.nodes) or now_ms - (self._ignorant_since_ms or 0.0) >= SILENT_MS
        return Condition(
            brokers=brokers,
            topics=self._topic_shares(full),
            clients=self._client_shares(full),
            holds=tuple(HoldRow(*key, *row) for key, row in longest),
            waits=self._waits(snapshot, {row.id: row for row in brokers}, now_ms) if knows_cluster else (),
            letters=self._letters(),
            knows_cluster=knows_cluster,
        )

    # ---- brokers

    def brokers(self, snapshot: MetadataSnapshot, now_ms: float) -> tuple[BrokerRow, ...]:
        """Rows of the brokers that this worker has needed."""
        held = self._held(snapshot)
        rows = []
        states: dict[int, tuple[BrokerState, float]] = {}
        in_flight = self._sender.in_flight
        for node_id in snapshot.nodes:
            second = second_of(node_id)
            unanswered_ms = min(in_flight.oldest_ms(node_id), in_flight.oldest_ms(second))
            waits = held.get(node_id)
            before = self._states.get(node_id)
            slow_step = self._links.slow_step(node_id, now_ms) if waits is not None else ""
            state = self._state(node_id, unanswered_ms, waits is not None, before, now_ms)
            if slow_step:
                state = BrokerState.DOWN
            if state is None:
                continue  # never needed by this worker
            if before is not None and before[0] is state:
                since_ms = before[1]
            else:
                since_ms = unanswered_ms if state is BrokerState.SILENT else now_ms
            states[node_id] = state, since_ms
            rows.append(
                BrokerRow(
                    node_id,
                    str(state),
                    since_ms,
                    slow_step or self._links.last_error(node_id) or "",
                    in_flight.count(node_id) + in_flight.count(second),
                    self._sender.throttle_of(node_id, now_ms),
                    waits.records if waits else 0,
                    waits.bytes if waits else 0,
                    waits.oldest_ms if waits else 0.0,
                )
            )
        self._states = states
        return tuple(rows)

    def _state(
        self,
        node_id: int,
        unanswered_ms: float,
        is_needed: bool,
        before: tuple[BrokerState, float] | None,
        now_ms: float,
    ) -> BrokerState | None:
        if self._links.link(node_id) is not None:
            return BrokerState.SILENT if now_ms - unanswered_ms >= SILENT_MS else BrokerState.UP
        was_bad = before is not None and before[0] in {BrokerState.SILENT, BrokerState.DOWN}
        # A lost link may be up again at once; one that could not be made says more.
        if self._links.last_error(node_id) and (was_bad or self._links.has_refused(node_id)):
            return BrokerState.DOWN
        if is_needed or before is not None:
            return BrokerState.CONNECTING if is_needed else BrokerState.KNOWN
        return None

    def _held(self, snapshot: MetadataSnapshot) -> dict[int, _Held]:
        found: dict[int, _Held] = {}
        for batch in islice(self._incomplete, BATCHES_SEEN_MAX):
            leader = snapshot.leader(batch.topic, batch.partition)
            if leader is None or batch.is_paused:
                continue
            held = found.get(leader.id)
            if held is None:
                held = found[leader.id] = _Held()
            held.records += batch.records.count
            held.bytes += batch.records.size_bytes
            held.oldest_ms = min(held.oldest_ms, batch.created_ms)
        return found

    # ---- the oldest records

    def _waits(
        self, snapshot: MetadataSnapshot, brokers: dict[int, BrokerRow], now_ms: float
    ) -> tuple[WaitRow, ...]:
        found: list[WaitRow] = []
        oldest = self._incomplete.oldest()
        if oldest is not None:
            found.append(self._wait_of(oldest, snapshot, brokers, now_ms))
            if found[0].cause in DELIBERATE:
                seen = islice(self._incomplete, BATCHES_SEEN_MAX)
                rows = (self._wait_of(batch, snapshot, brokers, now_ms) for batch in seen)
                others = [row for row in rows if row.cause not in DELIBERATE]
                found += sorted(others, key=lambda row: row.accepted_ms)[:1]
        unknown = [
            (entries.first_ms, queue.topic, cause)
            for queue in self._topics.waiting.queues
            for entries, cause in (
                (queue.waiting, WaitCause.UNKNOWN_TOPIC),
                (queue.out_of_range, WaitCause.OUT_OF_RANGE),
            )
            if entries
        ]
        if unknown:
            first_ms, topic, cause = min(unknown)
            found.append(WaitRow(topic, -1, -1, first_ms, str(cause)))
        return tuple(found)

    def _wait_of(
        self,
        batch: ProducerBatch,
        snapshot: MetadataSnapshot,
        brokers: dict[int, BrokerRow],
        now_ms: float,
    ) -> WaitRow:
        leader = snapshot.leader(batch.topic, batch.partition)
        broker = -1 if leader is None else leader.id
        cause, error = self.why(batch, broker, brokers.get(broker), now_ms)
        return WaitRow(batch.topic, batch.partition, broker, batch.created_ms, str(cause), error)

    def why(
        self, batch: ProducerBatch, broker: int, row: BrokerRow | None, now_ms: float
    ) -> tuple[WaitCause, str]:
        """Why a batch is still here, and the matching error text. ``broker``: its leader's id, -1 if none."""
        link_error = None if row is None or row.state == BrokerState.UP else row.last_error
        return self._sender.why_waits(batch, broker, link_error, now_ms)

    def _letters(self) -> tuple[LettersRow, ...]:
        letters = self._dead_letters
        if not letters.refusal or not letters.held_count:
            return ()
        return (LettersRow(letters.held_count, letters.refused_since_ms, letters.refusal),)

    # ---- the pool

    def _topic_shares(self, full: set[str]) -> tuple[ShareRow, ...]:
        rows = [
            ShareRow(
                queue.topic,
                queue.held_bytes / self._topic_share_bytes,
                queue.chain.page_count,
                queue.topic in full,
            )
            for queue in self._topics
            if queue.chain.page_count and not queue.is_express
        ]
        return tuple(nlargest(ROWS_MAX, rows, key=lambda row: row.share)) if rows else ()

    def _client_shares(self, full: set[str]) -> tuple[ShareRow, ...]:
        held: dict[str, int] = {}
        for session in self._sessions:
            if session.unsettled_bytes:
                held[session.name] = held.get(session.name, 0) + session.unsettled_bytes
        rows = [
            ShareRow(
                name, size_bytes / self._client_share_bytes, -(-size_bytes // self._page_bytes), name in full
            )
            for name, size_bytes in held.items()
        ]
        return tuple(nlargest(ROWS_MAX, rows, key=lambda row: row.share)) if rows else ()
