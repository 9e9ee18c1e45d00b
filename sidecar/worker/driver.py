"""Driver: the worker's only caller of the core. It reads the clock once per turn, reports events and runs effects.

A turn follows every burst of input: frames from stubs, bytes from brokers, a metadata update, a timer. It polls the
sender, runs its effects, settles decided batches, gives pages back, and sets the next timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from client_stub.contract.wire import LocalCode
from sidecar.common.control import (
    NeedTopics,
    TopicErrors,
    UpdateError,
    UpdateMetadataReply,
)
from sidecar.common.model import broker_of
from sidecar.common.wording import PLEASE_REPORT
from sidecar.metadata.cache import MetadataCache, StaleUpdate
from sidecar.metadata.snapshot import WHOLE_TOPIC
from sidecar.producer.effects import (
    AskBroker,
    CloseLink,
    Connect,
    Decided,
    Effect,
    InitProducerId,
    LeaderHints,
    NeedMetadata,
    Renumbered,
    SendProduce,
    Split,
)
from sidecar.worker.outcomes.publication import free_descriptor, split
from sidecar.worker.turns import NEVER_MS

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.common.control import UpdateMetadata
    from sidecar.common.model import TopicPartition
    from sidecar.producer.core import Core
    from sidecar.worker.drain import WorkerDrain
    from sidecar.worker.host import Host
    from sidecar.worker.outcomes.settlement import Settlement
    from sidecar.worker.page_returns import PageReturns
    from sidecar.worker.sides import Brokers, Stubs
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.topics.topics import Topics
    from sidecar.worker.turns import Turns

log = logging.getLogger(__name__)

UNSENT_RETRY_MS = 20.0
"""Time in ms after which a stub whose socket took nothing is tried again."""
BACKOFF_STEP_MS = 1.0
"""A backoff gets another timer only if it ends this much earlier: two readings of the same end differ by rounding."""
UNREPEATED: tuple[type[Effect], ...] = (Decided, Split, Renumbered, InitProducerId, AskBroker, CloseLink)
"""Effects that nothing repeats. The others come again after a timeout, a backoff or the next refresh."""


class Driver:
    """Runs the core's effects, turn by turn. Belongs to the worker's loop, as do all objects that it is given."""

    def __init__(
        self,
        *,
        host: Host,
        loop: asyncio.AbstractEventLoop,
        clock: MonotonicClock,
        turns: Turns,
        worker_epoch: int,
        cache: MetadataCache,
        memory: SlotMemory,
        core: Core,
        topics: Topics,
        stubs: Stubs,
        brokers: Brokers,
        settlement: Settlement,
        pages: PageReturns,
        drain: WorkerDrain,
    ) -> None:
        self._host = host
        self._loop = loop
        self._clock = clock
        self._turns = turns
        self._worker_epoch = worker_epoch
        self._cache = cache
        self._memory = memory
        self._counters = memory.counters
        self._pool = memory.pool
        self._pages = pages
        self._drain = drain
        self._releases = pages.releases
        self._accumulator = core.accumulator
        self._sender = core.sender
        self._topics = topics
        self._waiting = topics.waiting
        self._outboxes = stubs.outboxes
        self._shares = stubs.shares
        self._openings = stubs.openings
        self._holds = stubs.holds
        self._express = stubs.express
        self._commit = stubs.commit
        self._stub_port = stubs.port
        self._links = brokers.links
        self._produce_port = brokers.produce_port
        self._producer_id_port = brokers.producer_id_port
        self._inquiry = brokers.inquiry
        self._transactions = brokers.transactions
        self._settlement = settlement
        self._backoff_ends_ms: dict[int, float] = {}
        """Brokers with a timer for the end of their backoff, and when that is (monotonic ms)."""
        self._handlers: dict[type[Effect], Callable[[Any, float], None]] = {
            Decided: self._settlement.settle,
            SendProduce: self._produce_port.send,
            Connect: self._connect,
            CloseLink: self._close_link,
            NeedMetadata: self._need_metadata,
            LeaderHints: self._leader_hints,
            InitProducerId: self._init_producer_id,
            AskBroker: self._inquiry.ask_later,
            Split: self._split,
            Renumbered: self._renumbered,
        }
        turns.turn = self.turn

    # --- events --------------------------------------------------------------------------------------------

    def on_link_state(self, node_id: int, connected: bool, error: str | None) -> None:
        """A link became usable, or was lost."""
        self._produce_port.on_link_state(node_id, connected, error)
        self._producer_id_port.step()

    def on_update_metadata(self, update: UpdateMetadata) -> None:
        """Apply a metadata update (rules U3–U5): swap the snapshot, fail deleted partitions, retry entries that
        waited.
        """
        now_ms = self._clock.now_ms()
        try:
            in_use = self._topics.in_use() if update.is_full else set[str]()
            deleted = self._cache.update_metadata(update, in_use, self._topics.names)
        except StaleUpdate as stale:
            self._counters.inc("stale_updates_refused_total")
            log.warning("Refused a metadata push: %s", stale)
            self._host.send_control(UpdateMetadataReply(stale.code, self._worker_epoch, update.version))
            return
        snapshot = self._cache.current
        self._counters.set("metadata_version", snapshot.version)
        self._fail_deleted(deleted, now_ms)
        self._links.update_nodes(snapshot.nodes.values())
        self._topics.on_snapshot(snapshot, now_ms)
        self._openings.names_known()
        unnamed = in_use & snapshot.topics.keys() - {each.topic for each in update.partitions}
        if unnamed:
            self._host.send_control(
                NeedTopics(topics=tuple(unnamed))
            )  # expired at the controller, or deleted: it will check
        self._pages.count_shares(now_ms)
        self._producer_id_port.step()
        self._host.send_control(UpdateMetadataReply(UpdateError.NONE, self._worker_epoch, update.version))
        self._turns.wake()

    def on_topic_errors(self, message: TopicErrors) -> None:
        self._settlement.cluster_error = message.cluster_error
        self._settlement.is_login_refused = message.is_login_refused
        codes = {topic: error.code for topic, error in message.errors.items()}
        self._topics.on_topic_errors(codes, self._clock.now_ms())
        self._topics.missing.ask_again(message.errors)
        self._turns.wake()

    def on_pool_wake(self) -> None:
        """Another worker gave pages back, or stopped waiting for some."""
        if self._holds.share_held:
            self._holds.shares_freed(self._clock.now_ms())
        self._turns.wake()

    # --- the turn ------------------------------------------------------------------------------------------

    def turn(self, now_ms: float) -> float:
        """Run one turn. Returns the monotonic ms of the next one, if no event comes before.

        Rooms with nothing to do are not called: each has an attribute that is empty, or a due time.
        """
        topics, waiting, sender, outboxes = self._topics, self._waiting, self._sender, self._outboxes
        if waiting.queues:
            waiting.expire(now_ms)
            if waiting.go_on(now_ms):
                self._turns.wake()
        if self._inquiry.unanswered:
            self._inquiry.step(now_ms)
        for effect in sender.poll(self._cache.current, self._links, now_ms):
            try:
                self._handlers[type(effect)](effect, now_ms)
            except Exception:
                # The core's state has changed already, so the remaining effects must still run.
                self._counters.inc("sender_exceptions_total")
                log.exception(f"The effect %r failed. {PLEASE_REPORT}", effect)
                if isinstance(effect, SendProduce):
                    self._produce_port.abandon(effect.request)
                elif isinstance(effect, UNREPEATED):
                    self._host.give_up(
                        f"the effect {type(effect).__name__} failed, and nothing would repeat it"
                    )
        transactions = self._transactions
        if transactions.active or transactions.waiting:
            transactions.step(now_ms)
        if sender.watches_lateness:
            topics.on_late_brokers(sender.late_brokers(now_ms))
        if self._holds.next_timed_ms <= now_ms:
            self._holds.timed_due(now_ms)
        if topics.missing.unrequested or waiting.queues or waiting.outdated:
            self._ask_for_topics(now_ms)
        if self._releases.released_chains:
            self._pages.give_back(now_ms)
            if self._express.changing:
                self._express.check_changing()
        if self._pool.waiters or self._accumulator.schedule.is_exhausted:
            self._pages.serve_waiters(now_ms)
        if self._commit is not None:
            self._commit.step()
        later_ms = outboxes.next_due_ms if outboxes.later else NEVER_MS
        if outboxes.pending or later_ms <= now_ms:
            self._stub_port.end_turn(now_ms)
            later_ms = outboxes.next_due_ms if outboxes.later else NEVER_MS
        if self._drain.has_begun:
            self._drain.step(now_ms)
        if sender.capacity.lacks_descriptors:
            sender.check_descriptors()
        due_ms, timed_ms = sender.next_wakeup_ms, self._holds.next_timed_ms
        due_ms = timed_ms if timed_ms < due_ms else due_ms
        due_ms = later_ms if later_ms < due_ms else due_ms
        if transactions.active or transactions.waiting:
            due_ms = min(due_ms, transactions.next_due_ms)
        if outboxes.pending or waiting.queues or sender.watches_lateness or self._drain.has_begun:
            due_ms = min(due_ms, self._next_due_ms(now_ms))
        return due_ms

    def _next_due_ms(self, now_ms: float) -> float:
        """When the next rare timed work is due, monotonic ms."""
        due_ms = NEVER_MS
        if self._waiting.queues or self._waiting.outdated:
            due_ms = self._waiting.next_due_ms
        if self._sender.watches_lateness:
            due_ms = min(due_ms, self._sender.next_lateness_ms(now_ms))
        if self._outboxes.pending:  # their sockets did not take the message
            due_ms = min(due_ms, now_ms + UNSENT_RETRY_MS)
        if self._drain.has_begun:
            due_ms = min(due_ms, self._drain.next_due_ms)
        return due_ms

    def _ask_for_topics(self, now_ms: float) -> None:
        missing = self._topics.missing
        if missing.unrequested:
            self._host.send_control(NeedTopics(topics=missing.take_unrequested()))
        stale = self._waiting.take_stale(now_ms)
        if stale:
            self._host.send_control(NeedTopics(topics=stale, refresh=True))

    # --- effects -------------------------------------------------------------------------------------------

    def _connect(self, effect: Connect, now_ms: float) -> None:
        self._produce_port.connect(effect.node_id)
        delay_ms = self._links.next_attempt_delay_ms(effect.node_id, now_ms)
        # Nothing waits for a second connection: it is requested again in any turn that lacks it.
        if not 0 < delay_ms < inf or effect.node_id != broker_of(effect.node_id):
            return
        # Each turn asks for the broker: one timer serves them all. A new address or login may begin a shorter backoff.
        ends_ms = now_ms + delay_ms
        if ends_ms < self._backoff_ends_ms.get(effect.node_id, inf) - BACKOFF_STEP_MS:
            self._backoff_ends_ms[effect.node_id] = ends_ms
            self._loop.call_later(delay_ms / 1000, self._end_backoff, effect.node_id, ends_ms)

    def _end_backoff(self, node_id: int, ends_ms: float) -> None:
        if self._backoff_ends_ms.get(node_id) == ends_ms:
            del self._backoff_ends_ms[node_id]
        self._turns.wake()

    def _close_link(self, effect: CloseLink, now_ms: float) -> None:
        self._produce_port.close_link(effect.node_id, effect.reason)

    def _need_metadata(self, effect: NeedMetadata, now_ms: float) -> None:
        self._host.send_control(NeedTopics(topics=tuple(effect.topics), refresh=True))

    def _leader_hints(self, effect: LeaderHints, now_ms: float) -> None:
        """Apply leaders that a broker named (KIP-951) until the next metadata update, and report them to the
        controller.
        """
        if self._cache.apply_leader_hints(effect.hints, self._produce_port.take_leader_endpoints()):
            topics = {hint.topic for hint in effect.hints}
            self._host.send_control(NeedTopics(topics=tuple(topics), refresh=True))
            self._turns.wake()

    def _init_producer_id(self, effect: InitProducerId, now_ms: float) -> None:
        self._producer_id_port.init_producer_id()

    def _split(self, effect: Split, now_ms: float) -> None:
        split(self._memory.descriptors, effect.parent, effect.pieces)
        self._sender.on_descriptors_changed(effect.parent.queue, now_ms)

    def _renumbered(self, effect: Renumbered, now_ms: float) -> None:
        for batch in effect.batches:
            free_descriptor(self._memory.descriptors, batch)
            # kill point: renumber.freed
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
