"""Driver: the worker's only caller of the core. One clock read a turn; events in, effects out.

A turn follows every burst of input (frames from stubs, bytes from brokers, a metadata push, a timer):
poll the sender → carry out its effects → settle and tell what is decided → give pages back → set the next timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from client_stub.wire import LocalCode
from sidecar.common.control import (
    ControlMessage,
    Drained,
    NeedTopics,
    TopicErrors,
    UpdateError,
    UpdateMetadata,
    UpdateMetadataReply,
)
from sidecar.common.kill_points import ARMED, passed
from sidecar.common.model import broker_of
from sidecar.metadata.cache import MetadataCache, StaleUpdate
from sidecar.metadata.snapshot import WHOLE_TOPIC
from sidecar.producer.effects import (
    AskBroker,
    CloseLink,
    Completed,
    Connect,
    Effect,
    InitProducerId,
    LeaderHints,
    NeedMetadata,
    Renumbered,
    SendProduce,
    Split,
)
from sidecar.shm.slots import RunningTotals

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.common.model import TopicPartition
    from sidecar.net.cluster_links import ClusterLinks
    from sidecar.producer.producer_id import ProducerIds
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.sender import Sender
    from sidecar.shm.buffer_pool import BufferPool
    from sidecar.shm.slots import Counters
    from sidecar.worker.dead_letters import DeadLetters
    from sidecar.worker.group_commit import GroupCommit
    from sidecar.worker.inquiry import Inquiry
    from sidecar.worker.intake import Intake
    from sidecar.worker.produce_port import ProducePort
    from sidecar.worker.producer_id_port import ProducerIdPort
    from sidecar.worker.session import ClientSession, StreamState
    from sidecar.worker.sessions import Sessions
    from sidecar.worker.settlement import Settlement
    from sidecar.worker.shares import Shares
    from sidecar.worker.stub_port import StubPort
    from sidecar.worker.topics import Topics

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 0.5
"""Heartbeat, silent stubs, row grace, gauges. An idle worker wakes for this and for nothing else."""
ACKS_WAIT_MS_MAX = 1_000.0
"""How long a drained worker waits for its stubs to acknowledge their last outcomes."""
UNSENT_RETRY_MS = 20.0
"""How soon a stub that did not read is tried again."""
FAILED_TURNS_MAX = 20
"""So many turns in a row that failed will not be followed by a good one: the worker ends, and its successor begins
with what the segment says."""
FAILED_TURN_PAUSE_MS = 20.0
"""Before a turn that failed is tried again; what was due then is due now."""
TOLD_ONCE: tuple[type[Effect], ...] = (Completed, Split, Renumbered, InitProducerId, AskBroker, CloseLink)
"""Effects that nothing repeats. The others come again: by a timeout, a backoff, the next refresh."""


class Driver:
    """Owns the turn. Everything it is given belongs to the same loop and is touched by nobody else."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: MonotonicClock,
        worker_epoch: int,
        cache: MetadataCache,
        accumulator: RecordAccumulator,
        sender: Sender,
        ids: ProducerIds,
        links: ClusterLinks,
        pool: BufferPool,
        counters: Counters,
        topics: Topics,
        sessions: Sessions,
        intake: Intake,
        stub_port: StubPort,
        produce_port: ProducePort,
        producer_id_port: ProducerIdPort,
        settlement: Settlement,
        shares: Shares,
        dead_letters: DeadLetters,
        inquiry: Inquiry,
        send_control: Callable[[ControlMessage], None],
        wake_workers: Callable[[], None],
        ring_at: Callable[[float], None],
        store_heartbeat: Callable[[], None],
        give_up: Callable[[str], None],
        commit: GroupCommit | None = None,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._worker_epoch = worker_epoch
        self._cache = cache
        self._accumulator = accumulator
        self._sender = sender
        self._ids = ids
        self._links = links
        self._pool = pool
        self._counters = counters
        self._topics = topics
        self._sessions = sessions
        self._intake = intake
        self._stub_port = stub_port
        self._produce_port = produce_port
        self._producer_id_port = producer_id_port
        self._settlement = settlement
        self._shares = shares
        self._dead_letters = dead_letters
        self._inquiry = inquiry
        self._send_control = send_control
        self._wake_workers = wake_workers
        self._ring_at = ring_at
        self._store_heartbeat = store_heartbeat
        self._give_up = give_up
        self._failed_turns = 0
        self._halted = False
        self._commit = commit
        self._turn_handle: asyncio.Handle | None = None
        self._timer_ms = float("inf")
        """When the timer rings."""
        self._due_ms = float("inf")
        """When the next turn is due though nothing happens, as the last turn left things."""
        self._drain_deadline_ms: float | None = None
        self._acks_deadline_ms: float | None = None
        self._drained = False
        self._forced = False
        self._asked_topics: set[str] = set()
        self._totals = RunningTotals(counters)
        self._handlers: dict[type[Effect], Callable[[Any, float], None]] = {
            Completed: self._completed,
            SendProduce: self._send_produce,
            Connect: self._connect,
            CloseLink: self._close_link,
            NeedMetadata: self._need_metadata,
            LeaderHints: self._leader_hints,
            InitProducerId: self._init_producer_id,
            AskBroker: self._ask_broker,
            Split: self._split,
            Renumbered: self._renumbered,
        }

    # --- events --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Ask for a turn in this iteration of the loop; any number of asks make one turn."""
        if self._turn_handle is None:
            self._turn_handle = self._loop.call_soon(self._run_turn)

    def turn_now(self) -> None:
        """The endpoint has handed over all the frames it had: run the turn without waiting for the loop."""
        stub_port = self._stub_port
        if not stub_port.has_heard and not stub_port.to_tell:
            return  # it had none: a part of one came, or somebody to talk to
        stub_port.has_heard = False
        if self._turn_handle is not None:
            self._turn_handle.cancel()
        self._run_turn()

    def halt(self) -> None:
        """Nothing more is sent, settled or told: what comes behind a fault must not overtake what it struck."""
        self._halted = True

    def on_update_metadata(self, update: UpdateMetadata) -> None:
        """Rule U3–U5: swap the snapshot, fail what was deleted, look again at what waited."""
        now_ms = self._clock.now_ms()
        try:
            in_use = self._topics.in_use() if update.is_full else set[str]()
            deleted = self._cache.update_metadata(update, in_use)
        except StaleUpdate as stale:
            self._counters.inc("stale_updates_refused_total")
            log.warning("refused a metadata push: %s", stale)
            self._send_control(UpdateMetadataReply(stale.code, self._worker_epoch, update.version))
            return
        snapshot = self._cache.current
        self._counters.set("metadata_version", snapshot.version)
        self._fail_deleted(deleted, now_ms)
        self._links.update_nodes(snapshot.nodes.values())
        self._asked_topics -= snapshot.topics.keys()
        self._topics.on_snapshot(snapshot, now_ms)
        unnamed = in_use & snapshot.topics.keys() - {each.topic for each in update.partitions}
        if unnamed:
            self._send_control(NeedTopics(topics=tuple(unnamed)))  # expired there, or deleted: it finds out
        self._shares.count_all(now_ms)
        if self._shares.look_is_due:
            self._look_at_held(now_ms)
        self._producer_id_port.step()
        self._send_control(UpdateMetadataReply(UpdateError.NONE, self._worker_epoch, update.version))
        self.wake()

    def on_topic_errors(self, message: TopicErrors) -> None:
        self._topics.on_topic_errors({topic: error.code for topic, error in message.errors.items()})
        self._asked_topics -= message.errors.keys()
        self.wake()

    def on_cancel(self, session: ClientSession) -> None:
        """A stub left without waiting. What it had accepted is still delivered: it was promised."""
        log.info("client %s left without waiting for %d records", session.name, session.unsettled_records)

    def on_committed(self, streams: set[StreamState]) -> None:
        """What these streams sent is on disk: their stubs may know."""
        for session in self._intake.committed(streams):
            self._stub_port.has_news(session)
        self.wake()

    def on_pool_wake(self) -> None:
        """Another worker gave pages back, or left its place in the line."""
        if self._intake.share_held:
            self._intake.shares_freed(self._clock.now_ms())
        self.wake()

    # --- drain (rule S2) -----------------------------------------------------------------------------------

    def start_drain(self, timeout_ms: float) -> None:
        """Take nothing new, finish what is there; what is left at the deadline fails to its submitter."""
        if self._drain_deadline_ms is None:
            self._stub_port.start_draining()
            self._sender.begin_close(self._clock.now_ms())
        self._drain_deadline_ms = self._clock.now_ms() + timeout_ms
        self.wake()

    def _drain_step(self, now_ms: float) -> None:
        if self._drained or self._drain_deadline_ms is None:
            return
        if not self._forced and (self._topics.waiting_entries or not self._sender.is_idle):
            if now_ms >= self._drain_deadline_ms:
                log.warning("the drain ran out of time: what is left fails to its submitters")
                self._topics.fail_all_waiting(LocalCode.ABORTED, now_ms)
                self._sender.force_close(now_ms)
                # From here on nobody waits for answers: requests to a mute broker would outlive the daemon.
                self._forced = True
                self._drain_deadline_ms = float("inf")
                self.wake()
            return
        if self._acks_deadline_ms is None:
            self._acks_deadline_ms = now_ms + ACKS_WAIT_MS_MAX
        # A short wait for the stubs' ACKs: what they know they need not ask the next daemon for.
        if self._stub_port.has_unacked and now_ms < self._acks_deadline_ms:
            return
        # What they did not acknowledge cannot be told any more.
        self._stub_port.give_up_all()
        if self._dead_letters.is_writing:
            return
        self._drained = True
        self._stub_port.end_draining()
        self._send_control(Drained(sum(queue.chain.live_records for queue in self._topics)))

    # --- the turn ------------------------------------------------------------------------------------------

    def _run_turn(self) -> None:
        self._turn_handle = None
        if self._halted:
            return
        now_ms = self._clock.now_ms()
        try:
            self._turn(now_ms)
            self._failed_turns = 0
        except Exception:
            # S1: one bad iteration is logged and counted, and the loop goes on.
            self._counters.inc("sender_exceptions_total")
            log.exception("an iteration of the sender failed; the worker goes on")
            self._failed_turns += 1
            if self._failed_turns == FAILED_TURNS_MAX:
                self._give_up(f"{FAILED_TURNS_MAX} iterations of the sender failed one after the other")
        self._set_timer(now_ms)

    def _turn(self, now_ms: float) -> None:
        """Rooms with nothing to do are not called: what each keeps for that is empty, or due later."""
        topics, sender, stub_port = self._topics, self._sender, self._stub_port
        if topics.waiting_queues:
            topics.expire(now_ms)
            if topics.go_on(now_ms):
                self.wake()
        if self._inquiry.unanswered:
            self._inquiry.step(now_ms)
        self._counters.inc("wakeups_total")
        for effect in sender.poll(self._cache.current, self._produce_port, now_ms):
            try:
                self._handlers[type(effect)](effect, now_ms)
            except Exception:
                # The core has moved on already: the effects behind this one must still happen.
                self._counters.inc("sender_exceptions_total")
                log.exception("the effect %r failed", effect)
                if isinstance(effect, TOLD_ONCE):
                    self._give_up(f"the effect {type(effect).__name__} failed, and nothing would repeat it")
        if sender.watches_lateness:
            topics.on_late_brokers(sender.late_brokers(now_ms))
        if self._intake.next_timed_ms <= now_ms:
            self._intake.timed_due(now_ms)
        if topics.missing or topics.waiting_queues:
            self._ask_for_topics(now_ms)
        if self._settlement.finished_chains:
            self._give_pages_back(now_ms)
        if self._pool.waiters or self._accumulator.is_exhausted:
            self._serve_pool_waiters(now_ms)
        if self._commit is not None:
            self._commit.step()
        if stub_port.to_tell or stub_port.to_tell_later:
            stub_port.end_turn(now_ms)
        if self._drain_deadline_ms is not None:
            self._drain_step(now_ms)
        if sender.room.lacks_descriptors:
            sender.look_for_descriptors()

    def _ask_for_topics(self, now_ms: float) -> None:
        self._asked_topics &= (
            self._topics.missing
        )  # names that are not used any more are not remembered for ever
        missing = self._topics.missing - self._asked_topics
        if missing:
            self._asked_topics |= missing
            self._send_control(NeedTopics(topics=tuple(missing)))
        stale = self._topics.take_stale(now_ms)
        if stale:
            self._send_control(NeedTopics(topics=stale, refresh=True))

    def _give_pages_back(self, now_ms: float) -> None:
        for chain in self._settlement.take_finished_chains():
            queue = self._topics.queue_of(chain)
            queue.last_settled_ms = now_ms
            if self._commit is not None:
                self._commit.entries_ended(chain, queue.topic)
            pages = chain.release_pages()
            if pages:
                self._give(pages)
            if pages or queue.stalled_bytes or (queue.held_bytes and not chain.live_entries):
                self._shares.count(queue, now_ms)
        if self._shares.look_is_due:
            self._look_at_held(now_ms)

    def _look_at_held(self, now_ms: float) -> None:
        """Streams held by a share go on, here and at the other workers, once enough was given back."""
        self._shares.looked()
        if self._intake.share_held:
            self._intake.shares_freed(now_ms)
        if self._shares.others_wait():
            self._wake_workers()

    def _serve_pool_waiters(self, now_ms: float) -> None:
        granted, _ = self._pool.poll(now_ms)
        for stream, pages in granted:
            self._intake.pool_granted(stream, pages, now_ms)
        self._accumulator.set_exhausted(self._pool.waiting_count > 0, now_ms)

    def _set_timer(self, now_ms: float) -> None:
        due_ms = min(self._sender.next_wakeup_ms, self._intake.next_timed_ms)
        if self._topics.waiting_queues:
            due_ms = min(due_ms, self._topics.next_due_ms)
        if self._sender.watches_lateness:
            due_ms = min(due_ms, self._sender.next_lateness_ms(now_ms))
        if self._stub_port.to_tell:  # not taken by their sockets
            due_ms = min(due_ms, now_ms + UNSENT_RETRY_MS)
        if self._stub_port.to_tell_later:
            due_ms = min(due_ms, self._stub_port.next_due_ms)
        if self._drain_deadline_ms is not None and not self._drained:
            due_ms = min(due_ms, self._acks_deadline_ms or self._drain_deadline_ms)
        if self._failed_turns:
            due_ms = now_ms + FAILED_TURN_PAUSE_MS
        self._due_ms = due_ms
        if due_ms <= now_ms:
            self.wake()
        elif due_ms < self._timer_ms:
            # One that rings too early is left: setting it costs every turn.
            self._arm()

    def _arm(self) -> None:
        self._timer_ms = self._due_ms
        self._ring_at(self._due_ms)

    def on_timer(self) -> None:
        """The timer rings. Other than the loop's, never before its time: a turn would follow the other until then."""
        self._timer_ms = float("inf")
        if self._due_ms <= self._clock.now_ms():
            self.wake()
        elif self._due_ms < float("inf"):
            self._arm()  # what it was set for has been settled since

    # --- effects -------------------------------------------------------------------------------------------

    def _completed(self, effect: Completed, now_ms: float) -> None:
        for number, batch in enumerate(effect.batches):
            if number:  # a backlog that expires at once is minutes of work, and no silence
                self._store_heartbeat()
            self._settlement.settle_batch(batch, now_ms)

    def _send_produce(self, effect: SendProduce, now_ms: float) -> None:
        self._produce_port.send(effect.request, now_ms)

    def _connect(self, effect: Connect, now_ms: float) -> None:
        self._produce_port.connect(effect.node_id)
        delay_ms = self._links.next_attempt_delay_ms(effect.node_id, now_ms)
        # Nothing waits for a second connection: it is asked for again at any turn in which it is missed.
        if 0 < delay_ms < float("inf") and effect.node_id == broker_of(effect.node_id):
            self._loop.call_later(delay_ms / 1000, self.wake)

    def _close_link(self, effect: CloseLink, now_ms: float) -> None:
        self._produce_port.close_link(effect.node_id, effect.reason)

    def _need_metadata(self, effect: NeedMetadata, now_ms: float) -> None:
        self._send_control(NeedTopics(topics=tuple(effect.topics), refresh=True))

    def _leader_hints(self, effect: LeaderHints, now_ms: float) -> None:
        """KIP-951: overlay what the broker said until the next push, and report it upward."""
        if self._cache.apply_leader_hints(effect.hints, self._produce_port.take_leader_endpoints()):
            topics = {hint.topic for hint in effect.hints}
            self._send_control(NeedTopics(topics=tuple(topics), refresh=True))
            self.wake()

    def _ask_broker(self, effect: AskBroker, now_ms: float) -> None:
        self._inquiry.ask_later(effect, now_ms)

    def _init_producer_id(self, effect: InitProducerId, now_ms: float) -> None:
        self._producer_id_port.init_producer_id()

    def _split(self, effect: Split, now_ms: float) -> None:
        self._settlement.split(effect.parent, effect.pieces)
        self._sender.on_descriptors_changed(effect.parent.queue, now_ms)

    def _renumbered(self, effect: Renumbered, now_ms: float) -> None:
        for batch in effect.batches:
            self._settlement.free_descriptor(batch)
            if ARMED:
                passed("renumber.freed")
        self._sender.on_descriptors_changed(effect.batches[0].queue, now_ms)

    def _fail_deleted(self, deleted: tuple[TopicPartition, ...], now_ms: float) -> None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in deleted:
            by_topic.setdefault(topic, []).append(partition)
        for topic, partitions in by_topic.items():
            is_whole = WHOLE_TOPIC in partitions
            what = f"Topic {topic}" if is_whole else f"Partition {partitions[0]} of topic {topic}"
            text = f"{what} was deleted while records waited for it."
            self._sender.fail_partitions(
                topic, None if is_whole else partitions, LocalCode.TOPIC_DELETED, text, now_ms
            )

    # --- housekeeping --------------------------------------------------------------------------------------

    async def keep_house(self) -> None:
        """Runs for the worker's life: the heartbeat comes from the loop that works, not from a thread beside it."""
        while True:
            self._store_heartbeat()
            now_ms = self._clock.now_ms()
            self._stub_port.expel_silent(now_ms)
            self._stub_port.cut_unread(now_ms, descriptors_are_scarce=self._settlement.descriptors_are_scarce)
            self._stub_port.reclaim_rows(now_ms)
            self._dead_letters.step(now_ms)
            for session in self._sessions:
                self._intake.reclaim_reservations(list(session.streams.values()), now_ms)
            self._release_idle(now_ms)
            self._shares.count_all(now_ms)
            if self._shares.look_is_due:
                self._look_at_held(now_ms)
            self._intake.shares_freed(now_ms)
            if self._pool.waiters:
                self.wake()  # who was before us in the line between workers may be dead by now
            if self._commit is not None:
                self._commit.keep_house()
            used = self._topics.take_used()
            if used:
                self._send_control(NeedTopics(used=tuple(used)))
            self._publish_gauges(now_ms)
            if self._sender.room.lacks_descriptors and self._sender.look_for_descriptors():
                self.wake()  # a client that was given up had them
            await asyncio.sleep(HOUSEKEEPING_S)

    def _release_idle(self, now_ms: float) -> None:
        """A chain with nothing live keeps no page: the pool is whole again when the worker is idle."""
        for queue in self._topics:
            chain = queue.chain
            if chain.page_count and not chain.live_entries and now_ms - queue.last_used_ms > 1000:
                pages = chain.release_idle()
                if pages:
                    self._give(pages)

    def _give(self, pages: list[int]) -> None:
        if ARMED:
            passed("pages.released")
        self._pool.give(pages)

    def _publish_gauges(self, now_ms: float) -> None:
        counters, counts = self._counters, self._sender.counts
        counters.set("buffer_pages_taken", self._pool.taken_count)
        counters.set("buffer_waiters", self._pool.waiting_count)
        counters.set("topics_waiting", self._topics.waiting_topics)
        counters.set("in_flight_requests", self._sender.in_flight_count)
        counters.set("broker_connections", self._links.connection_count)
        counters.set("incomplete_batches", len(self._accumulator.incomplete))
        counters.set("produce_throttle_avg_ms", self._sender.throttle_times.average_ms(now_ms))
        counters.set("produce_throttle_max_ms", self._sender.throttle_times.max_ms(now_ms))
        counts_by_row = {
            "requests_total": counts.requests,
            "request_errors_total": counts.request_errors,
            "batches_sent_total": counts.batches_sent,
            "batches_retried_total": counts.batches_retried,
            "batches_split_total": counts.batches_split,
            "batches_expired_total": counts.batches_expired,
            "batch_errors_total": counts.batch_errors,
            "bytes_sent_total": counts.bytes_sent,
            "record_errors_total": counts.record_errors,
            "late_answers_total": counts.late_answers,
            "epoch_bumps_total": self._ids.epoch_bumps,
            "produce_throttle_ms_total": counts.throttle_ms,
        }
        self._totals.publish(counts_by_row)
