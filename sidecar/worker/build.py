"""build(): creates and wires every room of one worker. It does no I/O; adopt, open and run come later.

The worker calls it with a real loop; tests pass a loop and a clock that they control.
"""

from __future__ import annotations

import asyncio
import random as random_module
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from client_stub.contract.wire import SUBMIT_HEAD_BYTES_MAX
from sidecar.common.heartbeat import housekeeping_s, resting_s
from sidecar.metadata.cache import MetadataCache
from sidecar.producer.core import Core
from sidecar.shm.client_table import ClientTable
from sidecar.shm.share_words import ShareWords
from sidecar.worker.adoption.adoption import Adoption
from sidecar.worker.brokers.inquiry import Inquiry
from sidecar.worker.brokers.produce_port import ProducePort
from sidecar.worker.brokers.producer_id_port import ProducerIdPort
from sidecar.worker.brokers.request_encoder import RequestEncoder
from sidecar.worker.drain import WorkerDrain
from sidecar.worker.driver import Driver
from sidecar.worker.explainer import Explainer
from sidecar.worker.housekeeping import Housekeeping
from sidecar.worker.outcomes.acker import Acker
from sidecar.worker.outcomes.dead_letters import DeadLetters
from sidecar.worker.outcomes.releases import Releases
from sidecar.worker.outcomes.settlement import Settlement
from sidecar.worker.page_returns import PageReturns
from sidecar.worker.reporter import Reporter
from sidecar.worker.sides import Brokers, Stubs
from sidecar.worker.streams.client_limits import ClientLimits
from sidecar.worker.streams.outboxes import Outboxes
from sidecar.worker.streams.rate_limit import RateLimits
from sidecar.worker.streams.sessions import Sessions
from sidecar.worker.stubs.client_processes import ClientProcesses
from sidecar.worker.stubs.client_watch import ClientWatch
from sidecar.worker.stubs.express import Express
from sidecar.worker.stubs.group_commit import GroupCommit
from sidecar.worker.stubs.holds import Holds
from sidecar.worker.stubs.intake import Intake, full_submission, largest_submission
from sidecar.worker.stubs.openings import StreamOpenings
from sidecar.worker.stubs.shares import Shares
from sidecar.worker.stubs.stub_port import StubPort
from sidecar.worker.topics.placement import Placement
from sidecar.worker.topics.topics import Topics
from sidecar.worker.transactions.lanes import Lanes
from sidecar.worker.transactions.stages import LaneStages
from sidecar.worker.transactions.transaction_port import TransactionPort
from sidecar.worker.turns import Turns

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.common.control import Start
    from sidecar.deadletter.spool import SpoolWriter
    from sidecar.net.kafka.cluster_links import ClusterLinks
    from sidecar.shm.accept_log import AcceptLog
    from sidecar.worker.host import Host
    from sidecar.worker.settings import WorkerSettings
    from sidecar.worker.slot_memory import SlotMemory
    from sidecar.worker.streams.stage import LaneStage

CREDIT_WINDOW_BYTES = 8 << 20
"""Bytes that a stub may send beyond ACCEPTED; at most an eighth of the pool."""
COMPRESSION_THREADS = 2
COMMIT_PENDING_BYTES_MAX = 32 << 20
"""Bytes that may wait for the disk before streams are held; at most a quarter of the pool."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything outside of the rooms that they need. ``accept_log`` is set only with pool.sync = accept."""

    host: Host
    loop: asyncio.AbstractEventLoop
    clock: MonotonicClock
    links: ClusterLinks
    spool: SpoolWriter
    accept_log: AcceptLog | None = None
    random: random_module.Random = random_module.Random()  # noqa: RUF009 (one for the process)


@dataclass(frozen=True, slots=True)
class Rooms:
    """All rooms of a worker, before it has adopted or opened anything."""

    memory: SlotMemory
    core: Core
    turns: Turns
    topics: Topics
    lanes: Lanes
    stages: LaneStages
    stubs: Stubs
    acker: Acker
    settlement: Settlement
    releases: Releases
    dead_letters: DeadLetters
    brokers: Brokers
    reporter: Reporter
    explainer: Explainer
    pages: PageReturns
    drain: WorkerDrain
    driver: Driver
    housekeeping: Housekeeping
    adoption: Adoption


def build(start: Start, settings: WorkerSettings, memory: SlotMemory, outside: Outside) -> Rooms:
    """Make and wire the rooms. Raises ValueError for settings that cannot be used together."""
    config, clock, random = settings.config, outside.clock, outside.random
    timeout_s = settings.heartbeat_timeout_s
    turns = Turns(
        outside.loop,
        clock,
        outside.host,
        memory.counters,
        housekeeping_s=housekeeping_s(timeout_s),
        resting_s=resting_s(timeout_s),
    )
    cache = MetadataCache(start.worker_epoch)
    core = Core.build(
        config,
        memory.descriptors,
        random=random.random,
        timestamp_ms=clock.timestamp_ms,
        rules=settings.rules,
        request_buffers_bytes=settings.request_buffers_bytes,
    )
    limits = ClientLimits(
        settings.client_rules,
        segment=memory.segment,
        workers=settings.workers,
        counters=memory.counters,
    )
    sessions = Sessions(
        limits=limits,
        grace_ms=settings.client_grace_ms,
        table=ClientTable(memory.segment),
        slot=memory.index,
        worker_epoch=start.worker_epoch,
        instance_key=start.instance_key,
        counters=memory.counters,
    )
    outboxes = Outboxes()
    dead_letters = DeadLetters(
        spool=outside.spool,
        submit=outside.host.run_beside,
        row_of=sessions.row,
        name_of=memory.name_of,
        counters=memory.counters,
        now_ms=clock.now_ms,
        turns=turns,
    )
    acker = Acker(outboxes, dead_letters)
    releases = Releases(memory, sessions)
    settlement = Settlement(
        config=config,
        memory=memory,
        sessions=sessions,
        outboxes=outboxes,
        dead_letters=dead_letters,
        releases=releases,
    )
    topics = Topics(
        config=config,
        rules=settings.rules,
        placement=Placement(config, core.accumulator, seed=lambda: random.getrandbits(63)),
        rates=RateLimits(memory.segment, settings.workers),
        chain_table=memory.chain_table,
        in_work=memory.in_work,
        accumulator=core.accumulator,
        sessions=sessions,
        releases=releases,
        settlement=settlement,
    )
    lanes = Lanes(memory.lanes, core, topics)
    settlement.on_included = lanes.note_included
    stages = LaneStages(
        records=memory.stages,
        lanes=lanes,
        topics=topics,
        sessions=sessions,
        releases=releases,
        counters=memory.counters,
        instance_id=memory.segment.instance_id,
        slot=memory.index,
        wall_ms=clock.timestamp_ms,
        timeout_ms=settings.stage_timeout_ms,
    )
    stubs = _build_stubs(
        start,
        settings,
        outside=outside,
        memory=memory,
        turns=turns,
        topics=topics,
        sessions=sessions,
        limits=limits,
        outboxes=outboxes,
        settlement=settlement,
        acker=acker,
    )
    brokers = _build_brokers(
        settings,
        outside=outside,
        memory=memory,
        turns=turns,
        cache=cache,
        core=core,
        lanes=lanes,
        stages=stages,
        outboxes=outboxes,
    )
    stubs.port.on_transaction = brokers.transactions.on_frame
    stubs.port.on_stages = brokers.transactions.stages.on_frame
    stubs.port.on_lane_left = brokers.transactions.check_clients
    reporter = Reporter(
        host=outside.host,
        links=outside.links,
        cache=cache,
        core=core,
        topics=topics,
        sessions=sessions,
        holds=stubs.holds,
        openings=stubs.openings,
        produce_port=brokers.produce_port,
        dead_letters=dead_letters,
        page_count=memory.segment.page_count,
        page_bytes=memory.segment.page_bytes,
    )
    pages = PageReturns(
        host=outside.host,
        pool=memory.pool,
        schedule=core.accumulator.schedule,
        topics=topics,
        shares=stubs.shares,
        holds=stubs.holds,
        commit=stubs.commit,
        releases=releases,
    )
    stubs.intake.staged.fail = stages.fail
    stubs.intake.staged.evict = partial(_evict, stages, pages)
    drain = WorkerDrain(
        host=outside.host,
        clock=clock,
        turns=turns,
        topics=topics,
        sender=core.sender,
        stub_port=stubs.port,
        clients=stubs.clients,
        settlement=settlement,
        dead_letters=dead_letters,
        transactions=brokers.transactions,
    )
    driver = Driver(
        host=outside.host,
        loop=outside.loop,
        clock=clock,
        turns=turns,
        worker_epoch=start.worker_epoch,
        cache=cache,
        memory=memory,
        core=core,
        topics=topics,
        stubs=stubs,
        brokers=brokers,
        settlement=settlement,
        pages=pages,
        drain=drain,
    )
    housekeeping = Housekeeping(
        host=outside.host,
        clock=clock,
        turns=turns,
        memory=memory,
        core=core,
        topics=topics,
        stubs=stubs,
        brokers=brokers,
        settlement=settlement,
        releases=releases,
        dead_letters=dead_letters,
        reporter=reporter,
        pages=pages,
        drain=drain,
    )
    outside.links.report_to(on_state=driver.on_link_state, on_response=brokers.produce_port.on_response)
    adoption = Adoption(
        config=config,
        memory=memory,
        accumulator=core.accumulator,
        topics=topics,
        lanes=lanes,
        stages=stages,
        sessions=sessions,
        settlement=settlement,
    )
    return Rooms(
        memory=memory,
        core=core,
        turns=turns,
        topics=topics,
        lanes=lanes,
        stages=stages,
        stubs=stubs,
        acker=acker,
        settlement=settlement,
        releases=releases,
        dead_letters=dead_letters,
        brokers=brokers,
        reporter=reporter,
        explainer=Explainer(
            config=config,
            cache=cache,
            core=core,
            topics=topics,
            sessions=sessions,
            reporter=reporter,
            dead_letters=dead_letters,
            stages=stages,
        ),
        pages=pages,
        drain=drain,
        driver=driver,
        housekeeping=housekeeping,
        adoption=adoption,
    )


def _evict(stages: LaneStages, pages: PageReturns, stage: LaneStage, now_ms: float) -> bool:
    """Drop a stage of another owner for this one, and give its pages back."""
    if not stages.evict(stage):
        return False
    pages.give_back(now_ms)
    return True


def _build_stubs(
    start: Start,
    settings: WorkerSettings,
    *,
    outside: Outside,
    memory: SlotMemory,
    turns: Turns,
    topics: Topics,
    sessions: Sessions,
    limits: ClientLimits,
    outboxes: Outboxes,
    settlement: Settlement,
    acker: Acker,
) -> Stubs:
    config, segment = settings.config, memory.segment
    shares = Shares(
        page_count=segment.page_count,
        page_bytes=segment.page_bytes,
        request_timeout_ms=config.request_timeout_ms,
        queues=topics,
        words=ShareWords(segment, memory.index),
        staged_share=settings.staged_share,
    )
    openings = StreamOpenings(topics, limits, outboxes, memory.counters)
    holds = Holds(memory.pool, shares, outboxes, memory.counters, openings)
    express = Express(topics, holds, shares)
    submission_bytes_max = largest_submission(config.max_request_size, memory.pool)
    intake = Intake(
        worker_epoch=start.worker_epoch,
        shares=shares,
        counters=memory.counters,
        submission_sizes=memory.histograms.submission_sizes,
        submission_bytes_max=submission_bytes_max,
        topics=topics,
        settlement=settlement,
        openings=openings,
        holds=holds,
        express=express,
        outboxes=outboxes,
        host=outside.host,
        limits=limits,
        clock_ahead_ms=memory.clock_ahead_ms,
    )
    if outside.accept_log is not None:
        pool_bytes = segment.page_count * segment.page_bytes
        express.is_on = False  # the accept log keeps one order per topic
        intake.commit = GroupCommit(
            loop=outside.loop,
            accept_log=outside.accept_log,
            thread=ThreadPoolExecutor(1, thread_name_prefix="accept-log"),
            pending_bytes_max=min(COMMIT_PENDING_BYTES_MAX, pool_bytes // 4),
            counters=memory.counters,
            queues=topics,
            turns=turns,
            on_accepted=intake.committed,
        )
    processes = ClientProcesses(outside.loop)
    port = StubPort(
        clock=outside.clock,
        worker_epoch=start.worker_epoch,
        limits={
            "max_request_size": config.max_request_size,
            "max_block_ms": int(config.max_block_ms),
            "submission_bytes": full_submission(memory.pool),
            "transactions": 1,
            "stages": 1,
            "message_bytes": submission_bytes_max + SUBMIT_HEAD_BYTES_MAX,
        },
        credit_window_bytes=min(CREDIT_WINDOW_BYTES, config.buffer_memory // 8),
        sessions=sessions,
        processes=processes,
        openings=openings,
        holds=holds,
        intake=intake,
        topics=topics,
        acker=acker,
        outboxes=outboxes,
        counters=memory.counters,
    )
    clients = ClientWatch(
        clock=outside.clock,
        client_ack_timeout_ms=settings.client_ack_timeout_ms,
        sessions=sessions,
        limits=limits,
        processes=processes,
        acker=acker,
        counters=memory.counters,
        port=port,
    )
    return Stubs(
        sessions=sessions,
        limits=limits,
        outboxes=outboxes,
        processes=processes,
        shares=shares,
        openings=openings,
        holds=holds,
        express=express,
        intake=intake,
        commit=intake.commit,
        port=port,
        clients=clients,
        submission_bytes_max=submission_bytes_max,
    )


def _build_brokers(
    settings: WorkerSettings,
    *,
    outside: Outside,
    memory: SlotMemory,
    turns: Turns,
    cache: MetadataCache,
    core: Core,
    lanes: Lanes,
    stages: LaneStages,
    outboxes: Outboxes,
) -> Brokers:
    config, loop, clock, links = settings.config, outside.loop, outside.clock, outside.links
    codecs = ThreadPoolExecutor(COMPRESSION_THREADS, thread_name_prefix="compress")
    produce_port = ProducePort(
        loop=loop,
        clock=clock,
        config=config,
        cache=cache,
        buffers=core.buffers,
        encoder=RequestEncoder(loop, codecs, in_work=memory.in_work, serial=memory.descriptors.serial),
        descriptors=memory.descriptors,
        histograms=memory.histograms,
        sender=core.sender,
        links=links,
        turns=turns,
    )
    producer_id_port = ProducerIdPort(
        loop=loop, clock=clock, cache=cache, sender=core.sender, links=links, turns=turns, slot=memory.slot
    )
    inquiry = Inquiry(
        loop=loop,
        clock=clock,
        cache=cache,
        links=links,
        accumulator=core.accumulator,
        sender=core.sender,
        counters=memory.counters,
        when_unknown=settings.when_unknown,
        retry_ms=config.retry_backoff_ms,
        retry_max_ms=config.retry_backoff_max_ms,
        host=outside.host,
        turns=turns,
    )
    lanes.ask_for_sequence = inquiry.ask_for_sequence
    transactions = TransactionPort(
        loop=loop,
        clock=clock,
        config=config,
        cache=cache,
        links=links,
        lanes=lanes,
        stages=stages,
        outboxes=outboxes,
        turns=turns,
        random=outside.random,
    )
    return Brokers(links, produce_port, producer_id_port, inquiry, transactions, codecs)
