"""Worker: builds the rooms of one worker process in order, joins them, and runs until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_stub.wire import SUBMIT_HEAD_BYTES_MAX
from client_stub.zmtp import HEADER_BYTES_MAX
from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.clock import MonotonicClock
from sidecar.common.config_rules import config_of
from sidecar.common.control import (
    ControlMessage,
    Drain,
    NeedTopics,
    Ready,
    Start,
    Stop,
    TopicErrors,
    UpdateMetadata,
)
from sidecar.common.kill_points import adoption_is_over
from sidecar.common.model import ExitStatus
from sidecar.deadletter.letters import Undelivered
from sidecar.deadletter.spool import SpoolWriter
from sidecar.deadletter.spool_files import close_leftovers, writer_of, writers_of
from sidecar.metadata.cache import MetadataCache
from sidecar.net.cluster_links import ClusterLinks
from sidecar.net.control_channel import ControlChannel
from sidecar.net.endpoint import Endpoint
from sidecar.producer.broker_memory import BrokerMemory
from sidecar.producer.config import ProducerConfig
from sidecar.producer.producer_id import ProducerIds
from sidecar.producer.record_accumulator import RecordAccumulator
from sidecar.producer.request_buffers import RequestBufferPool
from sidecar.producer.request_room import RequestRoom
from sidecar.producer.sender import Sender
from sidecar.producer.topic_settings import TopicRules
from sidecar.protocol.connection_states import ConnectionConfig
from sidecar.shm.accept_log import AcceptLog, accept_log_file_bytes, accept_log_folder
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.descriptors import DescriptorTable, LaneRows
from sidecar.shm.disk import Folder
from sidecar.shm.in_work import InWork
from sidecar.shm.rate_words import find_clock
from sidecar.shm.recovery import take_over_pages
from sidecar.shm.share_words import ShareWords
from sidecar.shm.submission_name import submission_name
from sidecar.worker.adoption import Adoption
from sidecar.worker.client_processes import ClientProcesses
from sidecar.worker.dead_letters import DeadLetters
from sidecar.worker.driver import Driver
from sidecar.worker.group_commit import GroupCommit
from sidecar.worker.inquiry import Inquiry
from sidecar.worker.intake import Intake, largest_submission
from sidecar.worker.placement import Placement
from sidecar.worker.poison import Poison
from sidecar.worker.produce_port import ProducePort
from sidecar.worker.producer_id_port import ProducerIdPort
from sidecar.worker.rate_limit import RateLimit
from sidecar.worker.request_encoder import RequestEncoder
from sidecar.worker.sessions import Sessions
from sidecar.worker.settlement import Settlement
from sidecar.worker.shares import Shares
from sidecar.worker.stub_port import StubPort
from sidecar.worker.tellings import Teller
from sidecar.worker.topics import Topics
from sidecar.worker.turn_timer import TurnTimer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from sidecar.kernel import Entry
    from sidecar.shm.segment import Segment
    from sidecar.shm.slots import Counters
    from sidecar.worker.session import StreamState
    from sidecar.worker.topic_queue import TopicQueue

log = logging.getLogger(__name__)

CREDIT_WINDOW_BYTES = 8 << 20
"""How far a stub may send ahead of ACCEPTED; at most an eighth of the pool."""
COMPRESSION_THREADS = 2
LAST_WORDS_MS = 200
"""How long a worker that ends in good order waits for its stubs to take what it has told them."""
COMMIT_PENDING_BYTES_MAX = 32 << 20
"""What may wait for the disk before streams are held; at most a quarter of the pool."""


class Worker:
    """One worker process. Raises ValueError when its configuration cannot be used, OSError when its disk cannot."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, start: Start, segment: Segment, control: socket.socket
    ) -> None:
        self._loop = loop
        self._start = start
        self._exit: asyncio.Future[int] = loop.create_future()
        settings = dict(start.config)
        config = config_of(ProducerConfig, settings)
        rules = TopicRules(config, settings["topics"])
        workers = int(settings["daemon.workers"])
        clock = MonotonicClock()
        slot = segment.slot(start.slot)
        # Before the claim: the number of the owner before tells which pages it had taken.
        left_pages = take_over_pages(segment, start.slot, start.incarnation)
        name_of = partial(submission_name, segment.instance_id, start.slot)
        poison = Poison(slot, name_of)
        slot.claim(pid=os.getpid(), incarnation=start.incarnation)
        in_work = InWork(slot)
        slot_clock_ms = slot.resume_clock(time.monotonic_ns())
        self._slot = slot
        counters = slot.counters
        self._wake_fds = [fd for index, fd in enumerate(start.wake_fds) if index != start.worker_index]

        def beat() -> None:
            slot.store_heartbeat(time.monotonic_ns())

        self._own_wake_fd = start.wake_fds[start.worker_index] if start.wake_fds else None

        pool = BufferPool(
            segment,
            incarnation=start.incarnation,
            workers=workers,
            wake_others=self._wake_workers,
        )
        chain_table = ChainTable(segment, start.slot, incarnation=start.incarnation)
        descriptors = DescriptorTable(segment, start.slot)
        lane_rows = LaneRows(segment, start.slot)
        cache = MetadataCache(start.worker_epoch)

        backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random.random)
        ids = ProducerIds(
            max_in_flight=config.max_in_flight_requests_per_connection,
            backoff=backoff,
            memory=BrokerMemory(clock.timestamp_ms),
        )
        accumulator = RecordAccumulator(config, ids, rules=rules)
        buffers = RequestBufferPool(
            max_request_size=config.max_request_size,
            limit_bytes=int(settings["daemon.request_buffers_bytes"]),
        )
        sender = Sender(config, accumulator, ids, room=RequestRoom(buffers, descriptors), backoff=backoff)

        sessions = Sessions(
            grace_ms=float(settings["daemon.client_grace_s"]) * 1000,
            table=segment.clients,
            slot=start.slot,
            worker_epoch=start.worker_epoch,
            instance_key=start.instance_key,
            counters=counters,
        )
        self._processes = ClientProcesses(loop)
        self._spooling = ThreadPoolExecutor(1, thread_name_prefix="dead-letters")
        self._spool = _spool(settings, start)
        self._dead_letters = dead_letters = DeadLetters(
            spool=self._spool,
            submit=self._submit_spooling,
            row_of=sessions.row,
            name_of=name_of,
            counters=counters,
            now_ms=clock.now_ms,
            wake=lambda: self._driver.wake(),
        )
        teller = Teller(
            on_gone=dead_letters.put,
            session_of=sessions.of_row,
            on_ring_written=lambda session: self._stub_port.has_news(session),
        )
        settlement = Settlement(
            config=config,
            teller=teller,
            descriptors=descriptors,
            lane_rows=lane_rows,
            slot=slot,
            on_records_settled=sessions.records_settled,
        )
        topics = Topics(
            config=config,
            rules=rules,
            placement=Placement(config, accumulator),
            rate_limit=lambda topic, own: RateLimit.of(
                topic, own, workers=workers, find_clock=lambda name: find_clock(segment, name)
            ),
            chain_table=chain_table,
            accumulator=accumulator,
            chains_in_use=lambda: (
                sessions.chains_in_use() | {chain.chain_id for chain in settlement.finished_chains}
            ),
            on_vacate=lane_rows.vacate,
            in_work=in_work,
            on_failed=lambda queue, entry, failures: settlement.fail_records(
                queue, entry, failures, clock.now_ms()
            ),
        )
        self._topics = topics
        self._commit = _group_commit(
            loop,
            start,
            segment,
            counters=counters,
            queues=lambda: topics,
            on_accepted=lambda streams: self._driver.on_committed(streams),
        )
        shares = Shares(
            page_count=segment.page_count,
            page_bytes=segment.page_bytes,
            request_timeout_ms=config.request_timeout_ms,
            queues=lambda: topics,
            words=ShareWords(segment, start.slot),
        )
        submission_bytes_max = largest_submission(config.max_request_size, pool)
        intake = Intake(
            worker_epoch=start.worker_epoch,
            pool=pool,
            shares=shares,
            credit_window_bytes=min(CREDIT_WINDOW_BYTES, config.buffer_memory // 8),
            counters=counters,
            submission_bytes_max=submission_bytes_max,
            topic_queue=topics.open,
            on_entry=self._on_entry,
            on_refused=settlement.refuse,
            give_up=self._give_up,
            send=lambda session, message: self._stub_port.send(session, message),
            commit=self._commit,
            slot_clock_ms=slot_clock_ms,
        )
        self._stub_port = StubPort(
            clock=clock,
            worker_epoch=start.worker_epoch,
            limits={
                "max_request_size": config.max_request_size,
                "max_block_ms": int(config.max_block_ms),
                "message_bytes": submission_bytes_max + SUBMIT_HEAD_BYTES_MAX,
            },
            client_ack_timeout_ms=float(settings["daemon.client_ack_timeout_s"]) * 1000,
            sessions=sessions,
            processes=self._processes,
            intake=intake,
            teller=teller,
            counters=counters,
            on_flush=topics.flush,
            on_cancel=lambda session: self._driver.on_cancel(session),
        )
        self._executor = ThreadPoolExecutor(COMPRESSION_THREADS, thread_name_prefix="compress")
        produce_port = ProducePort(
            loop=loop,
            clock=clock,
            config=config,
            cache=cache,
            buffers=buffers,
            encoder=RequestEncoder(loop, self._executor, in_work=in_work, serial=descriptors.serial),
            descriptors=descriptors,
            sender=sender,
            wake=lambda: self._driver.wake(),
        )
        producer_id_port = ProducerIdPort(
            loop=loop,
            clock=clock,
            cache=cache,
            sender=sender,
            wake=lambda: self._driver.wake(),
            on_identity=lambda identity: slot.store_producer(identity.producer_id, identity.epoch),
        )

        def on_link_state(node_id: int, connected: bool, error: str | None) -> None:
            produce_port.on_link_state(node_id, connected, error)
            producer_id_port.step()

        self._links = ClusterLinks(
            loop,
            client_id=config.client_id,
            config=config_of(ConnectionConfig, settings),
            on_state=on_link_state,
            on_response=produce_port.on_response,
            clock=clock,
        )
        produce_port.links = producer_id_port.links = self._links
        self._channel = ControlChannel(
            control, on_message=self._on_control, on_closed=self._on_controller_gone, loop=loop
        )
        inquiry = Inquiry(
            loop=loop,
            clock=clock,
            cache=cache,
            links=self._links,
            accumulator=accumulator,
            sender=sender,
            counters=counters,
            when_unknown=str(settings["recover.unknown"]),
            retry_ms=config.retry_backoff_ms,
            retry_max_ms=config.retry_backoff_max_ms,
            need_metadata=lambda topics: self._channel.send(NeedTopics(topics=topics, refresh=True)),
            wake=lambda: self._driver.wake(),
        )
        self._turn_timer = TurnTimer(loop, lambda: self._driver.on_timer())
        self._driver = Driver(
            loop=loop,
            clock=clock,
            worker_epoch=start.worker_epoch,
            cache=cache,
            accumulator=accumulator,
            sender=sender,
            ids=ids,
            links=self._links,
            pool=pool,
            counters=counters,
            topics=topics,
            sessions=sessions,
            intake=intake,
            stub_port=self._stub_port,
            produce_port=produce_port,
            producer_id_port=producer_id_port,
            settlement=settlement,
            shares=shares,
            dead_letters=dead_letters,
            inquiry=inquiry,
            send_control=self._channel.send,
            wake_workers=self._wake_workers,
            ring_at=self._turn_timer.set,
            store_heartbeat=beat,
            give_up=self._give_up,
            commit=self._commit,
        )
        adoption = Adoption(
            segment=segment,
            slot=start.slot,
            config=config,
            pool=pool,
            chain_table=chain_table,
            descriptors=descriptors,
            lane_rows=lane_rows,
            accumulator=accumulator,
            topics=topics,
            sessions=sessions,
            settlement=settlement,
            counters=counters,
            poison=poison,
            in_work=in_work,
            beat=beat,
            slot_clock_ms=slot_clock_ms,
        )
        try:
            sent = adoption.run(left_pages, clock.now_ms())
        except ValueError as error:
            # Not the configuration's fault: the next worker tries again.
            raise RuntimeError(f"slot {start.slot} could not be taken over: {error}") from error
        shares.begin(clock.now_ms())
        inquiry.begin(sent)
        self._spool_poison(
            adoption.set_aside
            + poison.give_up(
                adoption.poisonous,
                lambda batch, code, text: sender.give_up(batch, code, text, clock.now_ms()),
                sessions.row,
            )
        )
        adoption_is_over()
        for row in segment.clients.rows(start.slot):
            self._processes.watch(row.index, row.pid)
        if self._commit is not None:
            self._commit.begin(beat)
        self._endpoint = Endpoint(
            loop,
            start.endpoint.removeprefix("ipc://"),
            on_message=self._stub_port.on_message,
            on_turn_end=self._driver.turn_now,
            on_closed_by_us=lambda: counters.inc("client_connections_closed_total"),
            message_bytes_max=HEADER_BYTES_MAX + submission_bytes_max,
        )
        self._stub_port.endpoint = self._endpoint

    async def run(self) -> int:
        """Serve until STOP, the controller's death, or a fault of its own; returns the exit status."""
        self._loop.set_exception_handler(self._on_unexpected)
        house = self._loop.create_task(self._driver.keep_house())
        if self._own_wake_fd is not None:
            self._loop.add_reader(self._own_wake_fd, self._on_pool_wake)
        self._channel.send(Ready(os.getpid(), self._start.worker_epoch))
        self._driver.wake()  # what was adopted has deadlines, whether metadata comes or not
        house.add_done_callback(self._on_house_ended)
        status = await self._exit
        house.cancel()
        if self._own_wake_fd is not None:
            self._loop.remove_reader(self._own_wake_fd)
        self._endpoint.close(LAST_WORDS_MS if status == ExitStatus.OK else 0)
        self._turn_timer.close()
        self._processes.close()
        self._links.close_all()
        self._channel.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._spooling.shutdown(wait=True, cancel_futures=True)
        self._dead_letters.close()
        if self._commit is not None:
            self._commit.close()
        return status

    def _spool_poison(self, letters: list[Undelivered]) -> None:
        """What was set aside goes to the dead letter spool as well, for who looks for the reason."""
        if letters:
            self._submit_spooling(partial(_append, self._spool, letters), _say_not_spooled)

    def _submit_spooling(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        def finished(future: Future[None]) -> None:
            if not future.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, future.exception())

        self._spooling.submit(work).add_done_callback(finished)

    def _on_control(self, message: ControlMessage) -> None:
        if isinstance(message, UpdateMetadata):
            self._driver.on_update_metadata(message)
        elif isinstance(message, TopicErrors):
            self._driver.on_topic_errors(message)
        elif isinstance(message, Drain):
            self._driver.start_drain(message.timeout_ms)
        elif isinstance(message, Stop):
            self._stop(ExitStatus.OK)
        else:
            log.warning("a control message of kind %s is not for a worker", type(message).__name__)

    def _on_controller_gone(self, error: str | None) -> None:
        # Accept nothing more and end: the next controller adopts the segment only after our death.
        log.error("the controller is gone%s; this worker ends", f" ({error})" if error else "")
        self._stop(ExitStatus.WORKER_CONTROLLER_GONE)

    def _stop(self, status: ExitStatus) -> None:
        if not self._exit.done():
            self._exit.set_result(int(status))

    def _on_entry(self, queue: TopicQueue, entry: Entry, now_ms: float, flush_follows: bool) -> None:
        """The submission is accepted: whatever fails from here on is no fault of its frame."""
        try:
            self._topics.on_entry(queue, entry, now_ms, flush_follows)
        except Exception:
            self._slot.counters.inc("sender_exceptions_total")
            log.exception("an accepted submission for topic %s could not be taken on", queue.topic)
            self._give_up("records were accepted and not taken on")

    def _on_unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An event's handler failed in a way that nobody foresaw: what it was to do will not be done."""
        self._slot.counters.inc("sender_exceptions_total")
        log.error("%s", context.get("message", "an event failed"), exc_info=context.get("exception"))
        self._give_up("the handler of an event failed")

    def _on_house_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("housekeeping failed", exc_info=task.exception())
            self._give_up("housekeeping failed")

    def _give_up(self, why: str) -> None:
        """A bug of ours: this memory is not to be trusted any more. The successor on this slot begins with what the
        segment says, so every record that was accepted still gets its fate."""
        if not self._exit.done():
            log.error("%s; this worker ends and is replaced", why)
        self._driver.halt()
        self._endpoint.close()
        self._stop(ExitStatus.FAILED)

    def _wake_workers(self) -> None:
        """Pages went back, or a place in the line, and somebody waits: ring every other worker's eventfd."""
        for fd in self._wake_fds:
            try:
                os.eventfd_write(fd, 1)
            except OSError as error:
                if error.errno != errno.EAGAIN:  # a full counter wakes as well
                    raise

    def _on_pool_wake(self) -> None:
        assert self._own_wake_fd is not None
        try:
            os.eventfd_read(self._own_wake_fd)
        except BlockingIOError:
            return
        self._driver.on_pool_wake()


def _append(spool: SpoolWriter, letters: list[Undelivered]) -> None:
    spool.append(letters)


def _say_not_spooled(error: BaseException | None) -> None:
    if error is not None:
        log.error("What was set aside as poison could not be written to the dead letters: %s", error)


def _spool(settings: dict[str, Any], start: Start) -> SpoolWriter:
    """This slot's writer; what dead workers of this run dir had open is closed, also of slots that get none now."""
    folder = Path(settings["dead_letters.path"])
    run_dir = Path(start.extra["run_dir"])
    close_leftovers(folder, writers_of(run_dir))
    return SpoolWriter(
        folder,
        writer_of(run_dir, start.slot),
        max_bytes=int(settings["dead_letters.max_bytes"]),
        drop_oldest=settings["dead_letters.when_full"] == "drop_oldest",
    )


def _group_commit(
    loop: asyncio.AbstractEventLoop,
    start: Start,
    segment: Segment,
    *,
    counters: Counters,
    queues: Callable[[], Topics],
    on_accepted: Callable[[set[StreamState]], None],
) -> GroupCommit | None:
    """What makes accepted mean on disk; None unless pool.sync asks for it."""
    counters.set("accept_log_errno", 0)
    if start.config["pool.sync"] != "accept":
        return None
    pool_bytes = segment.page_count * segment.page_bytes
    accept_log = AcceptLog(
        Folder(accept_log_folder(str(start.config["pool.path"]))),
        start.slot,
        segment.instance_id,
        accept_log_file_bytes(pool_bytes),
    )
    return GroupCommit(
        loop=loop,
        accept_log=accept_log,
        thread=ThreadPoolExecutor(1, thread_name_prefix="accept-log"),
        pending_bytes_max=min(COMMIT_PENDING_BYTES_MAX, pool_bytes // 4),
        counters=counters,
        queues=queues,
        on_accepted=on_accepted,
    )
