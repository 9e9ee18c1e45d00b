"""Worker: one worker process. It builds its rooms, adopts its slot, opens its socket, and runs until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_stub.zmtp.frames import HEADER_BYTES_MAX
from client_stub.zmtp.keys import KeyFileError
from sidecar.common.clock import MonotonicClock
from sidecar.common.control import (
    Configure,
    Configured,
    ControlMessage,
    Drain,
    Explain,
    ListenAgain,
    LoginToken,
    Ready,
    Start,
    Stop,
    TokenRefused,
    TopicErrors,
    UpdateMetadata,
)
from sidecar.common.model import ExitStatus
from sidecar.common.wording import PLEASE_REPORT
from sidecar.config.rules import config_of
from sidecar.deadletter.letters import Undelivered
from sidecar.deadletter.spool import SpoolWriter
from sidecar.deadletter.spool_files import close_leftovers, writer_of, writers_of
from sidecar.net.control_channel import ControlChannel
from sidecar.net.kafka.cluster_links import ClusterLinks
from sidecar.net.kafka.connector import authenticator_of
from sidecar.net.kafka.link_security import LinkSecurity
from sidecar.net.stubs.endpoint import Endpoint
from sidecar.protocol.connection_states import ConnectionConfig
from sidecar.shm.accept_log import AcceptLog, accept_log_file_bytes, accept_log_folder
from sidecar.shm.client_table import ClientTable
from sidecar.shm.disk import Folder
from sidecar.worker.build import Outside, build
from sidecar.worker.live_settings import use_settings
from sidecar.worker.settings import WorkerSettings
from sidecar.worker.slot_lock import take_slot_byte
from sidecar.worker.slot_memory import SlotMemory
from sidecar.worker.turn_timer import TurnTimer

if TYPE_CHECKING:
    import socket

    from sidecar.shm.segment import Segment
    from sidecar.shm.slots import Counters

log = logging.getLogger(__name__)

LISTEN_AGAIN_S = 1.0
LAST_WORDS_MS = 200
"""Time in ms that a worker, at a normal end, waits for its stubs to take their last messages."""


class CannotStart(RuntimeError):
    """The worker cannot serve clients. The text says what failed, without a full stop."""


class Worker:
    """One worker process. Call in this order: :meth:`claim`, :meth:`adopt`, :meth:`open`, :meth:`run`. It is the Host
    of its rooms.
    """

    @classmethod
    def claim(
        cls, loop: asyncio.AbstractEventLoop, start: Start, segment: Segment, control: socket.socket
    ) -> Worker:
        """Claim the slot and build the rooms. Raises ValueError for a configuration that cannot be used, CannotStart
        for the log of accepted records.
        """
        settings = WorkerSettings.from_mapping(start.config)
        memory = SlotMemory.claim(
            segment,
            start.slot,
            incarnation=start.incarnation,
            pid=os.getpid(),
            workers=settings.workers,
            wake_workers=partial(_wake_others, start),
        )
        return cls(loop, start, settings, memory, _accept_log(start, segment, memory.counters), control)

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        start: Start,
        settings: WorkerSettings,
        memory: SlotMemory,
        accept_log: AcceptLog | None,
        control: socket.socket,
    ) -> None:
        """Build the rooms. Raises ValueError for a configuration that cannot be used."""
        self._loop = loop
        self._start = start
        self._exit: asyncio.Future[int] = loop.create_future()
        values = dict(start.config)
        self._own_wake_fd = start.wake_fds[start.worker_index] if start.wake_fds else None
        self._endpoint: Endpoint | None = None
        self._clock = MonotonicClock()
        self._memory = memory
        self._spooling = ThreadPoolExecutor(1, thread_name_prefix="dead-letters")
        self._spool = _spool(values, start)
        self._authenticator = authenticator_of(values)
        if self._authenticator is not None:
            self._authenticator.on_token_refused = lambda print_: self.send_control(TokenRefused(print_))
        self._security = LinkSecurity(values, self._clock)
        self._links = ClusterLinks(
            loop,
            client_id=settings.config.client_id,
            config=config_of(ConnectionConfig, values),
            security=self._security,
            authenticator=self._authenticator,
            logs_first_refusal=True,  # the controller may still log in, since it gets a token sooner
            clock=self._clock,
        )
        outside = Outside(
            host=self,
            loop=loop,
            clock=self._clock,
            links=self._links,
            spool=self._spool,
            accept_log=accept_log,
        )
        self._rooms = build(start, settings, memory, outside)
        self._rooms.stubs.intake.open_to_records(settings.takes_records)
        self._driver = self._rooms.driver
        self._turn_timer = TurnTimer(loop, self._rooms.turns.on_timer)
        self._channel = ControlChannel(
            control, on_message=self._on_control, on_closed=self._on_controller_gone, loop=loop
        )

    def adopt(self) -> None:
        """Take over the slot's records from a dead worker, before anything new is accepted. Raises RuntimeError if
        that fails: the next worker tries again.
        """
        # Off the loop: a mount that is away keeps no worker from its records.
        self._spooling.submit(_close_leftovers, self._spool.folder, Path(self._start.extra["run_dir"]))
        rooms, now_ms = self._rooms, self._clock.now_ms()
        try:
            sent = rooms.adoption.run(now_ms)
        except ValueError as error:
            raise RuntimeError(f"slot {self._start.slot} could not be taken over: {error}") from error
        now_ms = self._clock.now_ms()
        rooms.stubs.shares.begin(now_ms)
        rooms.brokers.inquiry.begin(sent)
        rooms.lanes.adopted(now_ms)
        rooms.stages.adopted(now_ms)
        self._spool_poison(rooms.adoption.give_up_poison(rooms.core.sender, now_ms))
        # kill point: adopt.end

    def open(self) -> None:
        """Open the endpoint for stubs, known ones and new ones. Raises CannotStart."""
        stubs, memory = self._rooms.stubs, self._memory
        for row in ClientTable(memory.segment).rows(memory.index):
            stubs.processes.watch(row.index, row.pid)
        if stubs.commit is not None:
            try:
                stubs.commit.begin(memory.beat)
            except OSError as error:
                raise _log_fault(self._start, error) from None
        path = self._start.endpoint.removeprefix("ipc://")
        try:
            self._endpoint = stubs.port.endpoint = Endpoint(
                self._loop,
                path,
                on_message=stubs.port.on_message,
                on_turn_end=self._rooms.turns.run_now,
                on_closed_by_us=lambda: memory.counters.inc("client_connections_closed_total"),
                message_bytes_max=HEADER_BYTES_MAX + stubs.submission_bytes_max,
            )
        except OSError as error:
            raise CannotStart(f"its socket {path} cannot be made ({error.strerror})") from None
        if self._start.config["daemon.listen"]:
            self._open_tcp()

    def _open_tcp(self) -> None:
        """Listen for clients over TCP too, on this worker's own port. If another process has the port, try again
        later.
        """
        from sidecar.net.stubs.curve_gate import CurveGate
        from sidecar.net.stubs.tcp_listen import listen_on

        config, endpoint = self._start.config, self._endpoint
        if endpoint is None or self._exit.done():
            return
        try:
            listening = listen_on(str(config["daemon.listen"]), 1 + self._start.worker_index)
        except OSError as error:
            log.error("This worker's port after daemon.listen is not open (%s); trying again.", error)
            self._loop.call_later(LISTEN_AGAIN_S, self._open_tcp)
            return
        limits = self._rooms.stubs.limits
        try:
            endpoint.add_gate(
                CurveGate(listening, str(config["daemon.curve_key_file"]), lambda: limits.rules)
            )
        except KeyFileError as error:
            listening.close()
            log.error("%s Trying again.", error)
            self._loop.call_later(LISTEN_AGAIN_S, self._open_tcp)

    async def run(self) -> int:
        """Serve until STOP, the controller's death, or a fault of its own; returns the exit status."""
        self._loop.set_exception_handler(self._on_unexpected)
        self._channel.start()
        house = self._loop.create_task(self._rooms.housekeeping.run())
        if self._own_wake_fd is not None:
            self._loop.add_reader(self._own_wake_fd, self._on_pool_wake)
        self._channel.send(Ready(os.getpid(), self._start.worker_epoch))
        self._rooms.turns.wake()  # adopted records have deadlines, even if no metadata comes
        house.add_done_callback(self._on_house_ended)
        status = await self._exit
        house.cancel()
        self._close(status)
        return status

    def _close(self, status: int) -> None:
        if self._own_wake_fd is not None:
            self._loop.remove_reader(self._own_wake_fd)
        if self._endpoint is not None:
            self._endpoint.close(LAST_WORDS_MS if status == ExitStatus.OK else 0)
        self._turn_timer.close()
        self._rooms.stubs.processes.close()
        self._links.close_all()
        self._channel.close()
        self._rooms.brokers.codecs.shutdown(wait=False, cancel_futures=True)
        self._spooling.shutdown(wait=True, cancel_futures=True)
        self._rooms.dead_letters.close()
        if self._rooms.stubs.commit is not None:
            self._rooms.stubs.commit.close()

    # --- Host ----------------------------------------------------------------------------------------------

    def send_control(self, message: ControlMessage) -> None:
        self._channel.send(message)

    def set_timer(self, at_ms: float) -> None:
        self._turn_timer.set(at_ms)

    def run_beside(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        def finished(future: Future[None]) -> None:
            if not future.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, future.exception())

        self._spooling.submit(work).add_done_callback(finished)

    def give_up(self, why: str) -> None:
        """End the worker after a bug, because its memory can no longer be trusted. The slot's successor starts from
        the segment, so every accepted record still gets its outcome.
        """
        if not self._exit.done():
            log.error("This worker ends and is replaced: %s.", why)
        self._rooms.turns.halt()
        if self._endpoint is not None:
            self._endpoint.close()
        self._stop(ExitStatus.FAILED)

    def wake_workers(self) -> None:
        _wake_others(self._start)

    # --- events --------------------------------------------------------------------------------------------

    def _on_control(self, message: ControlMessage) -> None:
        try:
            self._handle(message)
        except Exception:
            # Otherwise the channel would go on with the next message, and this worker with half of what this one says.
            log.exception(f"A message of the controller could not be handled. {PLEASE_REPORT}")
            if not isinstance(message, Explain):
                self.give_up(f"it has handled a part of {message.kind.name}")

    def _handle(self, message: ControlMessage) -> None:
        if isinstance(message, UpdateMetadata):
            self._driver.on_update_metadata(message)
        elif isinstance(message, TopicErrors):
            self._driver.on_topic_errors(message)
        elif isinstance(message, LoginToken):
            if self._authenticator is not None:
                self._authenticator.put_token(message)
        elif isinstance(message, Drain):
            self._rooms.drain.begin(message.timeout_ms)
        elif isinstance(message, Configure):
            self._configure(message)
        elif isinstance(message, Explain):
            self._channel.send(self._rooms.explainer.explain(message, self._clock.now_ms()))
        elif isinstance(message, ListenAgain):
            self._listen_again()
        elif isinstance(message, Stop):
            self._stop(ExitStatus.OK)
        else:
            log.warning("A control message of kind %s is not for a worker.", type(message).__name__)

    def _configure(self, message: Configure) -> None:
        use_settings(
            message.config,
            self._rooms,
            self._links,
            self._authenticator,
            self._security,
            self._spool,
            self._clock.now_ms(),
        )
        self._channel.send(Configured(message.serial))
        self._rooms.turns.wake()

    def _listen_again(self) -> None:
        """The clients that are connected stay. After an error this worker ends, and its successor listens there."""
        if self._exit.done():
            return
        assert self._endpoint is not None
        try:
            is_ours = take_slot_byte(self._start) is not None
            self._endpoint.listen_again()
        except OSError as error:
            self.give_up(f"its socket cannot be made again ({error.strerror})")
            return
        if not is_ours:
            self.give_up("another process holds its slot's lock in the new run directory")

    def _on_controller_gone(self, error: str | None) -> None:
        # Accept nothing more and end: the next controller adopts the segment only after this worker's death.
        log.error(
            "The controller is gone%s, so this worker ends. Its records stay in the segment for the next daemon.",
            f" ({error})" if error else "",
        )
        self._stop(ExitStatus.WORKER_CONTROLLER_GONE)

    def _stop(self, status: ExitStatus) -> None:
        if not self._exit.done():
            self._exit.set_result(int(status))

    def _on_unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an unforeseen exception in an event handler: its work will not be done, so the worker ends."""
        self._memory.counters.inc("sender_exceptions_total")
        log.error("%s", context.get("message", "An event failed."), exc_info=context.get("exception"))
        self.give_up("the handler of an event failed")

    def _on_house_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error(
                f"Housekeeping failed. {PLEASE_REPORT}",
                exc_info=task.exception(),
            )
            self.give_up("housekeeping failed")

    def _spool_poison(self, letters: list[Undelivered]) -> None:
        """Also write the set-aside records to the dead-letter spool, for investigation."""
        if letters:
            self.run_beside(partial(_append, self._spool, letters), _log_not_spooled)

    def _on_pool_wake(self) -> None:
        assert self._own_wake_fd is not None
        try:
            os.eventfd_read(self._own_wake_fd)
        except BlockingIOError:
            return
        self._driver.on_pool_wake()


def _append(spool: SpoolWriter, letters: list[Undelivered]) -> None:
    spool.append(letters)


def _log_not_spooled(error: BaseException | None) -> None:
    if error is not None:
        log.error("Poison records could not be written to the dead-letter spool: %s", error)


def _close_leftovers(folder: Path, run_dir: Path) -> None:
    """Close files of dead letters that dead workers of this run dir left open, including those of unused slots."""
    try:
        close_leftovers(folder, writers_of(run_dir))
    except OSError as error:
        # The disk has become read-only. The pool, which is elsewhere, is still delivered.
        log.warning("Dead letters in %s that dead workers had open cannot be closed: %s.", folder, error)


def _spool(settings: dict[str, Any], start: Start) -> SpoolWriter:
    """Spool writer of this slot."""
    return SpoolWriter(
        Path(settings["dead_letters.path"]),
        writer_of(Path(start.extra["run_dir"]), start.slot),
        max_bytes=int(settings["dead_letters.max_bytes"]),
        drop_oldest=settings["dead_letters.when_full"] == "drop_oldest",
    )


def _wake_others(start: Start) -> None:
    """Write every other worker's eventfd: pages were given back, or the queue for pages moved, and one waits."""
    for index, fd in enumerate(start.wake_fds):
        if index == start.worker_index:
            continue
        try:
            os.eventfd_write(fd, 1)
        except OSError as error:
            if error.errno != errno.EAGAIN:  # a full counter wakes the worker, too
                raise


def _accept_log(start: Start, segment: Segment, counters: Counters) -> AcceptLog | None:
    """The accept log, by which accepted means on disk; None unless pool.sync = accept."""
    counters.set("accept_log_errno", 0)
    if start.config["pool.sync"] != "accept":
        return None
    try:
        return AcceptLog(
            Folder(accept_log_folder(str(start.config["pool.path"]))),
            start.slot,
            segment.instance_id,
            accept_log_file_bytes(segment.page_count * segment.page_bytes),
        )
    except OSError as error:
        raise _log_fault(start, error) from None


def _log_fault(start: Start, error: OSError) -> CannotStart:
    return CannotStart(
        f"the records of its slot cannot be written to the disk of pool.path = {start.config['pool.path']} "
        f"({error.strerror})"
    )
