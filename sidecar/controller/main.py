"""Starts the controller process: checks, run directory, segment, HTTP port, loop and signals, and then the Daemon."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import secrets
import signal
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.common.model import ExitStatus
from sidecar.common.own_process import hide_memory, raise_limit, set_title
from sidecar.common.wording import counted
from sidecar.config.settings import SidecarConfig
from sidecar.controller.container import pool_warning
from sidecar.controller.reload import RELOAD_SIGNAL, ReadConfig
from sidecar.controller.rundir.predecessor import HAND_OVER_SIGNAL, Predecessor
from sidecar.controller.rundir.remains import clear_remains, end_slot_holders
from sidecar.controller.rundir.run_dir import RunDir, RunDirError, usual_run_dir
from sidecar.controller.start_checks import check_cpus, check_dead_letters, warn_of_replacers
from sidecar.controller.status.banner import start_line
from sidecar.controller.systemd import Systemd
from sidecar.controller.workers.standby_worker import StandbyWorker, last_line

if TYPE_CHECKING:
    from sidecar.controller.cluster.cluster import Cluster
    from sidecar.controller.daemon import Daemon
    from sidecar.controller.front.control_endpoint import ControlEndpoint
    from sidecar.controller.front.listeners import Listeners
    from sidecar.controller.rundir.segment_store import SegmentStore
    from sidecar.net.stubs.tcp_listen import Listening
    from sidecar.telemetry.exporter import Exporter

log = logging.getLogger(__name__)

INSTANCE_ID_BYTES = 16
HEARD_SIGNALS = (signal.SIGTERM, signal.SIGINT, RELOAD_SIGNAL, HAND_OVER_SIGNAL)
PREPARE_S = 10.0
"""How long a takeover waits for metadata, and for its workers' imports, before it asks the old daemon to end."""


def run(config: SidecarConfig, run_dir: Path | None, *, read: ReadConfig, takeover: bool = False) -> int:
    """Run the daemon in the foreground until SIGTERM or SIGINT. Returns the exit status; logs to stderr.

    Everything that can be refused is refused before the first worker gets its work, in one sentence each. ``takeover``
    replaces the daemon that holds the run directory, if there is one; whatever can be refused is refused before that
    daemon is asked to end. ``read`` reads the configuration again, for a reload.
    """
    if sys.flags.optimize:
        return _refuse(
            "python -O strips the checks that protect the records: start without -O and PYTHONOPTIMIZE."
        )
    if not sys.platform.startswith("linux"):
        return _refuse("kafka-sidecar runs on Linux only (it needs pidfd, eventfd and /dev/shm).")
    try:
        path = run_dir or Path(config.text("daemon.run_dir") or usual_run_dir())
        log.info("%s", start_line(config, path))
        for sentence in config.warnings:
            log.warning("%s", sentence)
        return _run(config, RunDir(path), read, takeover=takeover)
    except RunDirError as error:
        return _refuse(str(error))


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return ExitStatus.FAILED


def _run(config: SidecarConfig, run_dir: RunDir, read: ReadConfig, *, takeover: bool) -> int:
    try:
        import sidecar.shm.segment  # noqa: F401
    except ImportError as error:
        # Mostly the compiled kernel, whose error says how to get it, or a package of [daemon].
        return _refuse(f"The daemon is not completely installed. {error}")
    raise_limit()
    if config.holds_secrets:
        hide_memory()
    check_cpus(config)
    check_dead_letters(config.text("dead_letters.path"))
    if sentence := pool_warning(config.text("pool.path")):
        log.warning("%s", sentence)
    warn_of_replacers(config.text("pool.path"))
    predecessor = Predecessor.find(run_dir) if takeover else None
    if predecessor is None:
        run_dir.acquire()
    service = _Service(config, run_dir, read, predecessor)
    try:
        service.start_workers()
        return service.run()
    finally:
        service.end()


class _Service:
    """The steps of one daemon's life, and the resources to release at its end, however far it came."""

    def __init__(
        self, config: SidecarConfig, run_dir: RunDir, read: ReadConfig, predecessor: Predecessor | None
    ) -> None:
        self.config = config
        self.read = read
        self.terminal = _Terminal()
        self.run_dir = run_dir
        self.predecessor = predecessor
        self.forget_segment = False
        """Whether to forget the segment at the end; one that was refused must stay findable."""
        self.is_handed_over = False
        self.replaced_pid: int | None = None
        """The process id of the daemon that this one took over from."""
        self.is_reload_asked = False
        """Whether a reload was requested before the daemon existed."""
        self.standbys: deque[StandbyWorker] = deque()

    def start_workers(self) -> None:
        """Start the worker processes, before anything else. They import in parallel with this process, and end with it
        if it is refused.
        """
        count = self.config.integer("daemon.workers")
        try:
            for _ in range(count):
                self.standbys.append(StandbyWorker.spawn())
        except OSError as error:
            raise RunDirError(f"A worker process cannot be started: {error}.") from None

    def run(self) -> int:
        import uvloop

        from sidecar.protocol.kio_guard import hide_hypothesis

        hide_hypothesis()
        set_title("controller")
        faulthandler.enable()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(self._serve())
        finally:
            for number in HEARD_SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def end(self) -> None:
        while self.standbys:
            self.standbys.popleft().end()
        self.run_dir.release(forget_segment=self.forget_segment, handed_over=self.is_handed_over)
        self._let_go_of_predecessor()

    def _let_go_of_predecessor(self) -> None:
        if self.predecessor is not None:
            self.predecessor.close()
            self.predecessor = None

    async def _serve(self) -> int:
        from sidecar.controller.cluster.cluster import Cluster

        # There is nothing to reload yet, but the signal's default action would kill this process.
        asyncio.get_running_loop().add_signal_handler(RELOAD_SIGNAL, self._hung_up_early)
        cluster = Cluster(self.config)
        control: ControlEndpoint | None = None
        listeners: Listeners | None = None
        try:
            listeners = self._listen()
            cluster.start()
            if self.predecessor is not None:
                control = await self._succeed(self.predecessor, cluster)
                listeners.open()  # also at the predecessor's addresses
            store, instance = self._open_segment(keep_control=control is not None)
        except BaseException:
            for each in (control, listeners):
                if each is not None:
                    each.close()
            await cluster.close()
            raise
        exporter = listeners.exporter
        try:
            if exporter is not None:
                exporter.attach(store.segment)
            status = await self._live(store, instance, cluster, control, exporter, listeners.listening)
        finally:
            is_empty = self._close(store)
        return status if is_empty else ExitStatus.FAILED

    async def _live(
        self,
        store: SegmentStore,
        instance: bytes,
        cluster: Cluster,
        control: ControlEndpoint | None,
        exporter: Exporter | None,
        listening: Listening | None,
    ) -> int:
        from sidecar.controller.daemon import Daemon

        daemon = Daemon(
            self.config,
            self.run_dir,
            store,
            instance,
            cluster,
            read=self.read,
            worker_slots=store.worker_slots(self.config.integer("daemon.workers")),
            standbys=self.standbys,
            control=control,
            listening=listening,
        )
        daemon.status.replaced_pid = self.replaced_pid
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.ask_stop, number.name)
        loop.add_signal_handler(HAND_OVER_SIGNAL, daemon.hand_over)
        loop.add_signal_handler(RELOAD_SIGNAL, self._hung_up, daemon)
        self._let_go_of_predecessor()  # from here on another daemon may take over
        gc.freeze()
        try:
            return await daemon.run(exporter, lambda: self._ready(daemon))
        finally:
            # The end of the loop restores the default handlers: another SIGTERM would kill a daemon that is cleaning
            # up.
            signal.pthread_sigmask(signal.SIG_BLOCK, HEARD_SIGNALS)
            self.is_handed_over = daemon.is_handed_over

    def _hung_up_early(self) -> None:
        """Handle SIGHUP before there is a daemon: the configuration may be newer than the one that was read."""
        log.info("SIGHUP: still starting; the configuration is read again then.")
        self.is_reload_asked = True

    def _ready(self, daemon: Daemon) -> None:
        if self.is_reload_asked:
            daemon.reload.ask()

    def _hung_up(self, daemon: Daemon) -> None:
        """Handle SIGHUP: reload, or end if the terminal was closed."""
        if self.terminal.is_closed:
            daemon.terminal_closed()
        else:
            daemon.reload.ask()

    # ---- the steps

    def _listen(self) -> Listeners:
        """Open and check all that is possible while a predecessor can still continue."""
        from sidecar.controller.front.listeners import Listeners
        from sidecar.controller.rundir.pool_check import check_pool

        listeners = None
        try:
            listeners = Listeners(self.config, self.run_dir.path)
            listeners.open(self.predecessor.info if self.predecessor is not None else None)
            if self.predecessor is not None:
                check_pool(self.config, self.predecessor.segment_path)
        except RunDirError as error:
            if listeners is not None:
                listeners.close()
            if self.predecessor is None:
                raise
            raise RunDirError(f"{error} The running daemon continues.") from None
        return listeners

    async def _succeed(self, predecessor: Predecessor, cluster: Cluster) -> ControlEndpoint:
        """Prepare everything possible, then end the predecessor. Returns with the run directory held and HELLOs
        waiting.
        """
        from sidecar.controller.front.control_endpoint import open_control
        from sidecar.controller.rundir.pool_check import topics_of

        topics = topics_of(predecessor.segment_path)
        if not await cluster.know(topics, PREPARE_S):
            log.warning("Metadata is missing for some topics in use; taking over anyway.")
        with contextlib.suppress(TimeoutError):  # late workers finish their imports afterwards
            async with asyncio.timeout(PREPARE_S):
                for standby in self.standbys:
                    if not await standby.wait_warm():
                        raise RunDirError(
                            f"The workers of this version cannot be started ({last_line(standby.take_words())}). "
                            "The running daemon continues."
                        )
        predecessor.check()
        Systemd().take_main_process()
        predecessor.check()  # systemd may take seconds, in which another daemon may start
        # Clients that lose their worker from here on come to this daemon and wait for its workers.
        control = open_control(self.run_dir)
        try:
            await predecessor.end()
        except BaseException:
            control.close()
            raise
        self.replaced_pid = predecessor.pid
        return control

    def _open_segment(self, *, keep_control: bool) -> tuple[SegmentStore, bytes]:
        from sidecar.controller.rundir.opening import PoolSize, open_segment

        # First the holders of slots: this process ends them, and that must be noted in their slots.
        killed = end_slot_holders(self.run_dir.workers_lock)
        for done in clear_remains(self.run_dir, keep_control=keep_control):
            log.warning("Cleaned up: %s.", done)
        killed |= end_slot_holders(self.run_dir.workers_lock)
        for pid in killed.values():
            log.warning("Cleaned up: killed a worker (pid %d) of a dead daemon.", pid)
        instance = secrets.token_bytes(INSTANCE_ID_BYTES)
        store = open_segment(
            self.run_dir,
            PoolSize(
                page_bytes=self.config.integer("pool.page_bytes"),
                buffer_memory_bytes=self.config.integer("buffer.memory"),
                clients_max=self.config.integer("daemon.clients_max"),
            ),
            configured_path=self.config.text("pool.path"),
            instance_id=instance,
            sync=self.config.text("pool.sync"),
            workers=self.config.integer("daemon.workers"),
        )
        store.exempt_holders(killed)
        log.info(
            "%s, for %s.", store.describe_pool(), counted(self.config.integer("daemon.workers"), "worker")
        )
        return store, instance

    def _close(self, store: SegmentStore) -> bool:
        """Close the segment. Returns False when it still has records without an outcome."""
        if self.is_handed_over:
            store.leave()
            return True
        left = store.close()
        self.forget_segment = not left
        if left:
            log.error("The segment %s is kept: it holds %s.", store.path, left)
        return not left


class _Terminal:
    """Whether the terminal that this process was started from was closed, which SIGHUP alone does not prove.

    Made at the start of the process. The kernel detaches a closed terminal from the whole session, so /dev/tty shows
    it.
    """

    def __init__(self) -> None:
        # nohup ignores the signal: such a daemon should outlive its terminal.
        self._is_ours = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    @property
    def is_closed(self) -> bool:
        """Whether there was a terminal that is gone now."""
        return self._is_ours and not _has_terminal()


def _has_terminal() -> bool:
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(fd)
    return True
