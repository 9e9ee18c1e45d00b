"""Sender: decides which batches go to which broker and when, and how to handle each answer (rules S1–S5, A6–A8).

Sans-IO. The driver calls :meth:`Sender.poll` after every event and at ``next_wakeup_ms``, executes the effects in
order, and reports the results. Behaviour follows Kafka's ``Sender`` and ``NetworkClient``; for differences in the
idempotent lane see producer_id.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.common.condition import WaitCause
from sidecar.common.errors import Code
from sidecar.common.model import broker_of, second_of
from sidecar.producer.batch_drain import BatchDrain
from sidecar.producer.batch_outcomes import BatchOutcomes
from sidecar.producer.batch_states import BatchState
from sidecar.producer.broker_drain import BrokerDrain
from sidecar.producer.broker_latency import BrokerLatency
from sidecar.producer.effects import (
    CloseLink,
    Connect,
    Decided,
    Effect,
    InitProducerId,
    LeaderHints,
    NeedMetadata,
)
from sidecar.producer.in_flight import InFlightRequests, ProduceRequest
from sidecar.producer.lanes import IDEMPOTENT_LANE
from sidecar.producer.leaderless_topics import LeaderlessTopics
from sidecar.producer.lost_links import LostLinks
from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.producer.producer_id import refusal_of_id
from sidecar.producer.throttle_times import ThrottleTimes

if TYPE_CHECKING:
    from sidecar.common.backoff import ExponentialBackoff
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.broker_drain import LinkView
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.partition_queue import PartitionQueue
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.producer_id import ProducerIds
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.request_capacity import RequestCapacity
    from sidecar.protocol.produce import PartitionResult

log = logging.getLogger(__name__)


THROTTLE_SHOWN_MS: Final = 30_000.0
"""Time in ms for which a broker's last throttle is shown."""
STALLED_MS_MAX: Final = 500.0
"""While another connection waits for a request buffer, one whose bytes the kernel does not take keeps its buffer for
this long.
"""


class Sender:
    """Decides what to send. Single-threaded: the worker's loop. No clock inside; methods that need one take
    ``now_ms``.
    """

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        ids: ProducerIds,
        *,
        capacity: RequestCapacity,
        backoff: ExponentialBackoff,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._schedule = accumulator.schedule
        self._timers = accumulator.schedule.timers
        self._incomplete = accumulator.incomplete
        self._ids = ids
        self.capacity = capacity
        self._wants_identity = config.enable_idempotence
        self._outcomes = BatchOutcomes(config, accumulator, ids, backoff, capacity)
        self.counts = self._outcomes.counts
        self.in_flight = self._in_flight = InFlightRequests(
            config.max_in_flight_requests_per_connection, timeout_ms=config.request_timeout_ms
        )
        self._closing_links: set[int] = set()
        """Links with a pending CloseLink: nothing is drained for them before :meth:`on_disconnect`."""
        self.lost_links = LostLinks()
        self._relief_ms = inf
        """Monotonic ms at which a stalled connection loses its request buffer to one that waits; infinity if none
        waits.
        """
        self._leaderless = LeaderlessTopics(config.retry_backoff_max_ms)
        self._muted_until_ms: dict[int, float] = {}
        self.throttles: dict[int, tuple[int, float]] = {}
        """By broker: the last throttle that it asked for, in ms, and when (monotonic ms)."""
        self.throttle_times = ThrottleTimes()
        self._latency = BrokerLatency(config.partitioner_availability_timeout_ms)
        self.watches_lateness = self._latency.is_on
        """Whether lateness is measured at all; if not, :meth:`late_brokers` is always empty."""
        self._drain = BrokerDrain(
            config,
            accumulator,
            BatchDrain(accumulator.lanes, accumulator.schedule, accumulator.incomplete),
            in_flight=self._in_flight,
            capacity=capacity,
            latency=self._latency,
            counts=self.counts,
        )
        self._wake_now = True
        self._closing = False

    # --- the loop -------------------------------------------------------------------------------------------

    def poll(self, snapshot: MetadataSnapshot, links: LinkView, now_ms: float) -> list[Effect]:
        """Return the effects of all work that is possible now. The cost is per broker with work and per due batch;
        idle partitions cost nothing.
        """
        # Elapsed time and new metadata: timers, leaders, and deadlines.
        schedule = self._schedule
        if self._timers.earliest_ms <= now_ms:
            schedule.fire_timers(now_ms)
        if snapshot is not schedule.snapshot:
            self._accumulator.follow(snapshot, now_ms)
        if self._incomplete.next_expiry_ms <= now_ms:
            self._expire_batches(now_ms)
        if self._in_flight.next_deadline_ms <= now_ms:
            self._time_out_requests(now_ms)
        if self._accumulator.answered_forgotten:
            self._accumulator.drop_forgotten()
        self._wake_now = False
        effects = self._take_decisions(now_ms)
        if self._muted_until_ms:
            for node_id in [node for node, until_ms in self._muted_until_ms.items() if until_ms <= now_ms]:
                del self._muted_until_ms[node_id]
        if schedule.widened:
            self._drain.narrow(now_ms)
        # Requests to the brokers with something ready, within the capacity that there is.
        has_decided = bool(effects)
        ready = [node_id for node_id, its in schedule.ready.items() if any(its)]
        capacity = self.capacity
        capacity.is_shared = len(snapshot.nodes) > 1
        # Each split runs before the requests, and takes one descriptor more than it gives back.
        capacity.promised, self._outcomes.splits = self._outcomes.splits, 0
        if capacity.lacks_descriptors or capacity.waiting:
            capacity.begin_poll(ready)
        if self._latency.is_on:
            self._note_latency(ready, now_ms)
        for node_id in ready:
            if node_id in self._muted_until_ms or node_id in self._closing_links:
                self._latency.blocked(broker_of(node_id), now_ms)
                continue
            if node_id not in links.connected:
                self._latency.blocked(broker_of(node_id), now_ms)
                effects.append(Connect(node_id))
                continue
            if self._drain.send_to(node_id, links, now_ms, effects, has_decided=has_decided):
                self._wake_now = True
        self._relief_ms = inf
        if capacity.waiting:
            self._relieve(links, now_ms, effects)
        self._outcomes.effects = []
        return effects

    def _take_decisions(self, now_ms: float) -> list[Effect]:
        """The effects decided since the last poll, and requests for what is missing to go on.

        All effects go to one list, which the outcomes give up at the end of the poll: an exception there loses none.
        """
        outcomes = self._outcomes
        effects = outcomes.effects
        if outcomes.decided:
            effects.append(Decided(tuple(outcomes.decided)))
            outcomes.decided = []
        if outcomes.hints:
            effects.append(LeaderHints(tuple(outcomes.hints)))
            outcomes.hints = []
        if (
            self._ids.identity.producer_id < 0
            and (self._wants_identity or self._ids.is_wanted)
            and self._ids.take_init_request(now_ms)
        ):
            effects.append(InitProducerId())
        if outcomes.stale_topics or self._schedule.leaderless or self._leaderless.requested:
            self._ask_for_metadata(effects, now_ms)
        return effects

    @property
    def next_wakeup_ms(self) -> float:
        """Monotonic ms at which :meth:`poll` must be called even if no event happens; infinity if never.

        Work that waits for an event (an answer, a link, capacity for a request, metadata) does not count: the driver
        polls after events.
        """
        if self._wake_now or self._outcomes.effects or self._outcomes.decided or self._outcomes.hints:
            return 0.0
        # No min() here: this runs once per turn.
        wakeup_ms = self._relief_ms
        if self._timers.earliest_ms < wakeup_ms:
            wakeup_ms = min(wakeup_ms, self._timers.next_due_ms)
        next_ms = self._incomplete.next_expiry_ms
        wakeup_ms = next_ms if next_ms < wakeup_ms else wakeup_ms
        next_ms = self._in_flight.next_deadline_ms
        wakeup_ms = next_ms if next_ms < wakeup_ms else wakeup_ms
        if self._ids.identity.producer_id < 0 and (self._wants_identity or self._ids.is_wanted):
            wakeup_ms = min(wakeup_ms, self._ids.next_init_ms)
        if self._schedule.leaderless:
            wakeup_ms = min(wakeup_ms, self._leaderless.ask_again_ms)
        if self._muted_until_ms:
            wakeup_ms = min(wakeup_ms, *self._muted_until_ms.values())
        return wakeup_ms

    def _note_latency(self, ready: list[int], now_ms: float) -> None:
        # A partition with all its batches in flight is in no wait list, whatever waits after them. So a broker with as
        # many unanswered requests as allowed is late, too.
        full = {broker_of(node_id) for node_id in self._in_flight.full_nodes()}
        self._latency.keep(full.union(map(broker_of, ready)))
        for node_id in full:
            self._latency.blocked(node_id, now_ms)

    def late_brokers(self, now_ms: float) -> frozenset[int]:
        """Brokers that took nothing for partitioner.availability.timeout.ms although something was ready for them."""
        return self._latency.late(now_ms)

    def next_lateness_ms(self, now_ms: float) -> float:
        """When :meth:`late_brokers` changes by the passing of time alone, monotonic ms; infinity if it does not."""
        return self._latency.next_change_ms(now_ms)

    def wake(self) -> None:
        """Poll at the next opportunity. Called after an append that asked for it."""
        self._wake_now = True

    def _relieve(self, links: LinkView, now_ms: float, effects: list[Effect]) -> None:
        """Close the connection that has stalled longest, if a connection waits for its first request buffer and others
        hold them all. Otherwise a stopped broker would keep its buffer until its request times out.
        """
        since_ms, stalled = inf, 0
        for node_id in self._in_flight.unsent_nodes():
            its_ms = links.stalled_since_ms(node_id)
            if its_ms is not None and its_ms < since_ms and node_id not in self._closing_links:
                since_ms, stalled = its_ms, node_id
        if since_ms + STALLED_MS_MAX > now_ms:
            self._relief_ms = since_ms + STALLED_MS_MAX
            return
        reason = (
            f"it has taken no byte for {now_ms - since_ms:.0f} ms, and other brokers' records wait for its request "
            "buffer (daemon.request_buffers_bytes)"
        )
        self._close_link(stalled, reason, effects)

    def _close_link(self, node_id: int, reason: str, effects: list[Effect]) -> None:
        self._closing_links.add(node_id)
        effects.append(CloseLink(node_id, reason))

    def on_descriptors_changed(self, queue: PartitionQueue, now_ms: float) -> None:
        """Update a partition after a Split or Renumbered ran: some of its batches gained or lost descriptors. Batches
        that have one may go even when no others may.
        """
        self._schedule.touch(queue, now_ms)
        if self.capacity.lacks_descriptors:
            self._wake_now = True

    def check_descriptors(self) -> bool:
        """Whether to poll again after the effects of a poll, for instance because they freed descriptors that batches
        wait for.
        """
        if self.capacity.has_freed_descriptors:
            self._wake_now = True
        return self._wake_now

    def _ask_for_metadata(self, effects: list[Effect], now_ms: float) -> None:
        topics = self._leaderless.take(self._schedule.leaderless, now_ms) | self._outcomes.stale_topics
        self._outcomes.stale_topics.clear()
        if topics:
            effects.append(NeedMetadata(topics))

    # --- what happened to a request -------------------------------------------------------------------------

    def on_request_sent(self, request: ProduceRequest, now_ms: float) -> bool:
        """The kernel has taken all bytes of the request. With acks=0 no answer follows; only then ``now_ms`` is used.

        True if there is something to :meth:`poll` for now.
        """
        request.sent = True
        if request.acks == 0 and self._in_flight.end(request):
            topics = self._accumulator.unanswered_topics[request.node_id]
            for batch in request.batches:
                topics.add(batch.topic)
                if batch.state is not BatchState.DECIDED:
                    batch.decide(persistence=Persistence.POSSIBLY_PERSISTED)
            self._outcomes.collect(request.batches, now_ms)
        # The connection has capacity again, which matters only if something is ready.
        if request.acks == 0 or any(map(any, self._schedule.ready.values())):
            self._wake_now = True
        return self._wake_now

    def on_request_not_sent(self, request: ProduceRequest, now_ms: float) -> None:
        """The driver could not prepare the request (no descriptors, no link), and no byte of it left. Its batches
        return to their queues as if never drained: identities stay, and no attempt is counted.
        """
        if self._in_flight.end(request):
            self._take_back(request, now_ms)
            self._wake_now = True

    def on_batch_unsendable(
        self, request: ProduceRequest, batch: ProducerBatch, text: str, now_ms: float
    ) -> None:
        """The encoder found other bytes than expected (a bug or damage): the batch leaves the request and fails.

        Call before any byte of the request is sent. The request then goes without the batch. If it is empty, report it
        by :meth:`on_request_not_sent`.
        """
        request.batches.remove(batch)
        batch.leave_wire()
        batch.in_doubt = True
        self._outcomes.fail(batch, LocalCode.ENCODE_MISMATCH, text, now_ms)
        # Even if it had an outcome before: one batch fewer is in flight.
        self._outcomes.collect((batch,), now_ms)

    def on_produce_response(
        self, request: ProduceRequest, results: Iterable[PartitionResult], throttle_ms: int, now_ms: float
    ) -> None:
        """Handle the answer to a Produce request. A late answer (the request has timed out) or a doubled entry changes
        nothing.
        """
        if throttle_ms > 0:
            self.throttle_times.note(throttle_ms, now_ms)
            self.counts.throttle_ms += throttle_ms
            broker = broker_of(request.node_id)
            self._muted_until_ms[broker] = self._muted_until_ms[second_of(broker)] = now_ms + throttle_ms
            self.throttles[broker] = throttle_ms, now_ms
        self.throttle_times.answers += 1
        if not self._in_flight.end(request):
            self.counts.late_answers += 1
            return
        outcomes = self._outcomes
        unanswered: dict[tuple[str, int], ProducerBatch] = {}
        for batch in request.batches:
            unanswered[batch.topic, batch.partition] = batch
        delivered: list[tuple[ProducerBatch, int, int]] = []
        try:
            for result in results:
                topic = result.topic
                if topic is None and result.topic_id is not None:
                    topic = request.topic_names.get(result.topic_id)
                found = unanswered.pop((topic or "", result.partition), None)
                if found is None:
                    continue
                if result.error_code:
                    outcomes.refused(found, result, now_ms)
                else:
                    delivered.append((found, result.base_offset, result.append_time_ms))
        finally:
            # If one result raises an exception, the other batches are still settled and none is left without an
            # answer.
            for batch in unanswered.values():
                text = f"Broker {broker_of(request.node_id)} left {batch.topic}-{batch.partition} out of its answer."
                outcomes.error(batch, Code.NETWORK_EXCEPTION, text, now_ms)
            outcomes.delivered(delivered, now_ms)
            outcomes.collect(request.batches, now_ms)
        self._wake_now = True

    def on_disconnect(
        self, node_id: int, now_ms: float, *, reason: str = "", is_refused: bool = False
    ) -> None:
        """The link is gone or could not be made. A broker without its second link gets everything by the first.

        Requests that were ``begun`` may have reached the broker: their batches are in doubt and are sent again
        unchanged.
        """
        self._closing_links.discard(node_id)
        self.lost_links.lost(node_id, reason, is_refused=is_refused)
        # Even with nothing in flight: a broker that cannot be reached may no longer lead these topics (M7).
        self._outcomes.stale_topics |= self._schedule.topics_waiting_for(node_id)
        unanswered = self._accumulator.unanswered_topics.pop(node_id, None)
        if unanswered and reason:
            self._outcomes.stale_topics |= unanswered
        requests = self._in_flight.requests(node_id)
        self._muted_until_ms.pop(node_id, None)
        for request in requests:
            self._in_flight.end(request)
            if not request.begun:
                self._take_back(request, now_ms)
                continue
            self.counts.request_errors += 1
            ended = f"The connection to broker {broker_of(node_id)} ended before it answered"
            text = f"{ended}: {reason or 'closed by it'}."
            for batch in request.batches:
                self._outcomes.error(batch, Code.NETWORK_EXCEPTION, text, now_ms)
            self._outcomes.collect(request.batches, now_ms)
        if node_id != broker_of(node_id):
            self._schedule.narrow(broker_of(node_id))
        if requests or self._outcomes.stale_topics:
            self._wake_now = True

    def _take_back(self, request: ProduceRequest, now_ms: float) -> None:
        for batch in request.batches:
            if not batch.is_decided:
                if batch.descriptor == NO_DESCRIPTOR:
                    self._incomplete.back_to_start(batch)
                self._ids.not_judged(batch)
                self._accumulator.reenqueue(batch, retry_at_ms=0.0, now_ms=now_ms)
        self._outcomes.collect(request.batches, now_ms)

    def _time_out_requests(self, now_ms: float) -> None:
        for node_id in self._in_flight.timed_out(now_ms):
            if node_id not in self._closing_links:
                reason = f"no answer within request.timeout.ms={self._config.request_timeout_ms:g}"
                self._close_link(node_id, reason, self._outcomes.effects)

    def _expire_batches(self, now_ms: float) -> None:
        for batch in self._incomplete.expired(now_ms):
            self.counts.batches_expired += 1
            waited = now_ms - batch.created_ms
            snapshot = self._schedule.snapshot
            leader = None if snapshot is None else snapshot.leader(batch.topic, batch.partition)
            broker = -1 if leader is None else leader.id
            why, error = self.why_waits(batch, broker, self.lost_links.of(broker), now_ms)
            where, cause = batch.where(), self.lost_links.cause(batch, snapshot)
            was_sent = batch.last_error or batch.state is BatchState.ON_WIRE
            if why is WaitCause.THROTTLED and not was_sent:
                where = f"not sent, as broker {broker} throttles (a quota)"
            if not cause and self._ids.why_none and batch.lane == IDEMPOTENT_LANE and not batch.has_sequence:
                where, cause = "not sent, waiting for a producer id", f" {self._ids.why_none}"
            text = (
                f"Expiring {batch.count} record(s) for {batch.topic}-{batch.partition}: {waited:.0f} ms have "
                f"passed since they were appended (delivery.timeout.ms="
                f"{batch.lifetime_ms:g}); the batch was {where}.{cause}"
            )
            is_refused = self.lost_links.is_refused(batch, snapshot)
            code = LocalCode.UNAUTHENTICATED if is_refused else LocalCode.EXPIRED
            self._outcomes.fail(batch, code, text, now_ms, error if why is WaitCause.REFUSED else str(why))

    def why_waits(
        self, batch: ProducerBatch, broker: int, link_error: str | None, now_ms: float
    ) -> tuple[WaitCause, str]:
        """Why a batch is still here, and the matching error text. ``broker``: its leader's id, -1 if none.
        ``link_error``: why that cannot be used; None while it can.
        """
        error = batch.last_error or ""
        cause = batch.retry_cause
        if batch.is_paused:
            return WaitCause.PAUSED, ""
        if broker < 0:
            snapshot = self._schedule.snapshot
            is_known = snapshot is not None and batch.topic in snapshot.topics
            return (WaitCause.NO_LEADER if is_known else WaitCause.METADATA), error
        if link_error is not None:
            return WaitCause.BROKER, link_error
        if cause is WaitCause.REFUSED:
            return cause, error
        if broker in self._muted_until_ms:
            return WaitCause.THROTTLED, ""
        if batch.state is BatchState.ON_WIRE:
            return WaitCause.UNANSWERED, ""
        if cause is WaitCause.LOST and self.throttle_of(broker, now_ms):
            # The broker reads nothing while it throttles, so what was sent before times out here.
            return WaitCause.THROTTLED, error
        if cause is not None:
            return cause, error
        if self._ids.why_none and batch.lane == IDEMPOTENT_LANE and not batch.has_sequence:
            return WaitCause.PRODUCER_ID, self._ids.why_none
        return (WaitCause.LINGER if batch.queue.lingers else WaitCause.QUEUED), ""

    def throttle_of(self, broker: int, now_ms: float) -> int:
        """The last throttle in ms that the broker asked for; 0 if that is over for long."""
        throttle_ms, at_ms = self.throttles.get(broker, (0, 0.0))
        return throttle_ms if now_ms - at_ms < max(throttle_ms, THROTTLE_SHOWN_MS) else 0

    # --- the producer id ------------------------------------------------------------------------------------

    def on_producer_id(self, producer_id: int, epoch: int, now_ms: float) -> None:
        """InitProducerId succeeded. An answer with id -1 counts as COORDINATOR_LOAD_IN_PROGRESS."""
        try:
            self._ids.initialized(producer_id, epoch)
        except ValueError:
            self.on_producer_id_error(Code.COORDINATOR_LOAD_IN_PROGRESS, now_ms)
            return
        self._accumulator.touch_all(IDEMPOTENT_LANE, now_ms)
        self._wake_now = True

    def on_producer_id_error(self, code: int, now_ms: float, text: str = "") -> None:
        """InitProducerId failed (NETWORK_EXCEPTION if its link ended). It is sent again after a backoff. If the
        refusal is final (not authorised), batches that wait for the id fail now; later records may still succeed.
        """
        if not self._ids.init_failed(code, now_ms, text):
            return
        for batch in self._incomplete.oldest_first():
            if batch.lane == IDEMPOTENT_LANE and not batch.has_sequence:
                self._outcomes.fail(batch, code, text or refusal_of_id(code), now_ms)

    # --- transactional lanes --------------------------------------------------------------------------------

    def lane_changed(self, lane: int, now_ms: float) -> None:
        """Continue a lane that may send now what it could not send before."""
        self._accumulator.touch_all(lane, now_ms)
        self._wake_now = True

    def abort_lane(self, lane: int, text: str, now_ms: float) -> None:
        """End all records of a lane that are not on the wire; those get their answers, but are not sent again."""
        for queue in self._accumulator.lanes[lane]:
            for batch in list(queue.batches):
                self._outcomes.fail(batch, LocalCode.TXN_ABORTED, text, now_ms)
        for batch in self._in_flight.batches_of(lane):
            batch.last_chance = (LocalCode.TXN_ABORTED, text)
        self._wake_now = True

    # --- the end --------------------------------------------------------------------------------------------

    def fail_partitions(
        self, topic: str, partitions: Iterable[int] | None, code: int, text: str, now_ms: float
    ) -> None:
        """Fail the batches that wait for these partitions, which were deleted (rule U5). ``partitions`` None: all of
        the topic. Batches on the wire get their own answer, and are not retried after it.
        """
        for batch in self._accumulator.batches_of(topic, partitions):
            self._outcomes.fail(batch, code, text, now_ms)
        deleted = None if partitions is None else set(partitions)
        for batch in self._incomplete.oldest_first():
            is_deleted = batch.topic == topic and (deleted is None or batch.partition in deleted)
            if is_deleted and batch.state is BatchState.ON_WIRE:
                batch.last_chance = (code, text)

    def give_up(self, batch: ProducerBatch, code: int, text: str, now_ms: float) -> None:
        """Fail a batch that must not be sent again, because it may be in the log and the broker would not recognise a
        copy.
        """
        self._wake_now = True
        self._outcomes.fail(batch, code, text, now_ms)

    def begin_close(self, now_ms: float) -> None:
        """Begin a graceful close (rule S2): linger ends. Go on polling until :attr:`is_idle`, then stop."""
        self._closing = True
        self._schedule.begin_close(now_ms)
        self._wake_now = True

    def force_close(self, now_ms: float) -> None:
        """Fail every incomplete batch. One more poll returns them as Decided."""
        self.begin_close(now_ms)
        for batch in self._incomplete.oldest_first():
            text = (
                f"The daemon was closed before {batch.count} record(s) for {batch.topic}-{batch.partition} "
                f"were delivered; the batch was {batch.where()}."
            )
            self._outcomes.fail(batch, LocalCode.ABORTED, text, now_ms)

    @property
    def has_decided(self) -> bool:
        """Whether a decided outcome waits for a poll."""
        return bool(self._outcomes.decided)

    @property
    def is_idle(self) -> bool:
        """True if nothing is unsent or in flight, and no decided outcome waits for a poll."""
        return not (self._incomplete or len(self._in_flight) or self._outcomes.decided)

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)
