"""Assembles the daemon's parts: the order of the start, the handling of each event, and the end.

``main`` makes it; all of it runs on the controller's loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sidecar.common.control import (
    Condition,
    Configure,
    Explained,
    FailedRecords,
    NeedTopics,
    TokenRefused,
    UpdateMetadataReply,
)
from sidecar.common.own_process import hide_memory
from sidecar.common.sparse_log import SparseLog
from sidecar.common.wording import PLEASE_REPORT, counted
from sidecar.config.settings import SidecarConfig
from sidecar.controller.cluster.cluster import Cluster
from sidecar.controller.front.asked_cluster import AskedCluster
from sidecar.controller.front.client_answers import ClientAnswers
from sidecar.controller.front.control_endpoint import ControlEndpoint, open_control
from sidecar.controller.front.explanations import Explanations
from sidecar.controller.front.orders import Orders
from sidecar.controller.front.stop_requests import REPEAT_S, StopRequests, StopStep
from sidecar.controller.idle_watch import IdleWatch
from sidecar.controller.lost_run_dir import LostRunDir
from sidecar.controller.reload import WORKERS_ANSWER_S, ReadConfig, Reload
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.controller.rundir.segment_store import SegmentStore
from sidecar.controller.status.banner import Farewell
from sidecar.controller.status.daemon_status import DaemonStatus
from sidecar.controller.status.failure_book import FailureBook
from sidecar.controller.status.overview import TICK_S, Overview
from sidecar.controller.status.publisher import StatusPublisher
from sidecar.controller.systemd import Systemd
from sidecar.controller.workers.assignment import WorkerChoice
from sidecar.controller.workers.standby_worker import Standbys, StandbyWorker
from sidecar.controller.workers.supervisor import Supervisor
from sidecar.controller.workers.worker_process import WorkerProcess
from sidecar.controller.workers.worker_setup import WorkerSetup
from sidecar.net.kafka.name_lookup import addresses_of
from sidecar.net.stubs.tcp_listen import Listening
from sidecar.telemetry.exporter import Exporter

log = logging.getLogger(__name__)

UNREACHABLE_REMINDER_S = 60.0
_HELD = "records_held"
_ACCEPTED = "records_accepted_total"


class Daemon:
    """A running daemon. Everything happens in the loop of the main thread, from which workers are spawned, too."""

    def __init__(
        self,
        config: SidecarConfig,
        run_dir: RunDir,
        store: SegmentStore,
        instance: bytes,
        cluster: Cluster,
        *,
        read: ReadConfig,
        worker_slots: Sequence[int],
        standbys: deque[StandbyWorker] | None = None,
        control: ControlEndpoint | None = None,
        listening: Listening | None = None,
    ) -> None:
        """``cluster`` is already started, and so are ``standbys``, ``control`` and ``listening`` if they were made
        before.

        ``read`` reads the configuration again.
        """
        self.config = config
        self.run_dir = run_dir
        self.store = store
        self.cluster = cluster
        self._control = control
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        started_ms = time.time_ns() // 1_000_000
        self._epoch = max(run_dir.files.last_epoch() + 1, started_ms // 1000)
        named = config.text("dead_letters.path")
        self._dead_letters = Path(named).absolute() if named else run_dir.dead_letters
        self._config_serial = 0
        self._background: set[asyncio.Task[Any]] = set()
        self._stop_asked = asyncio.Event()
        self._stop_requests = StopRequests()
        self._farewell: Farewell | None = None
        """Set once it drains."""
        self._fatal = ""
        self.is_handed_over = False
        """Whether a successor has taken over: nothing is drained, and everything is left as it is."""
        self._systemd = Systemd()
        self._idle = IdleWatch(self._loop.time())
        self._lost = LostRunDir(run_dir, store.path, self._publish_all)
        self._sparse_log = SparseLog(log, lambda: self._loop.time() * 1e3)
        self._failures = FailureBook()
        self.orders = Orders(run_dir, use=self._configure_workers)
        self._overview = Overview(cluster, store, lambda: self.orders.pauses.topics)
        self._worker_setup = WorkerSetup(
            config,
            run_dir,
            store,
            workers=len(worker_slots),
            dead_letters=self._dead_letters,
            controller_epoch=self._epoch,
            pauses=lambda: self.orders.pauses,
        )
        self._explanations = Explanations(
            lambda: self.supervisor.ready, lambda: self._answers.rules, self._failures.last
        )
        self.supervisor = self._new_supervisor(worker_slots, deque() if standbys is None else standbys)
        self._worker_choice = WorkerChoice(self.supervisor, store)
        self._asked = AskedCluster(
            lambda: self.config,
            lambda: self.cluster.snapshot.nodes,
            partial(addresses_of, self._loop),
            self._ask_again,
        )
        self._answers = self._new_answers()
        self.status = self._new_status({"instance": instance.hex(), "started_ms": started_ms})
        self._publisher = StatusPublisher(
            run_dir,
            status=self.status.to_mapping,
            sentence=self.status.sentence,
            last_epoch=lambda: self.supervisor.last_epoch,
            show=self._systemd.status,
        )
        self.reload = Reload(
            config, read=read, use=self._use, publish=self._publish_reload, spawn=self._spawn
        )

    def _new_supervisor(self, worker_slots: Sequence[int], started: deque[StandbyWorker]) -> Supervisor:
        cpus = self.config.values["daemon.cpus"]
        return Supervisor(
            workers=self.config.integer("daemon.workers"),
            worker_slots=worker_slots,
            cpus=[int(cpu) for cpu in cpus] if isinstance(cpus, list) and cpus else None,
            heartbeat_timeout_s=self.config.number("daemon.heartbeat_timeout_s"),
            restart_backoff_max_ms=self.config.number("daemon.restart_backoff_max_ms"),
            slots=self.store,
            setup=self._worker_setup,
            routes={
                NeedTopics: lambda _, message: self.cluster.topics_needed(message),
                TokenRefused: lambda _, message: self.cluster.token_refused(message.fingerprint),
                UpdateMetadataReply: self.cluster.update_replied,
                Condition: self._on_condition,
                Explained: self._explanations.answered,
                FailedRecords: self._on_failed_records,
            },
            on_joined=self._on_worker_joined,
            on_left=self._on_worker_left,
            on_change=self.changed,
            on_fatal=self.fail,
            last_epoch=self._epoch,
            standbys=Standbys(
                started, is_wanted=bool(self.config.values["daemon.standby"]), on_change=self.changed
            ),
        )

    def _new_answers(self) -> ClientAnswers:
        return ClientAnswers(
            self.config,
            worker_of=self._worker_choice.worker_of,
            instance_key=self._worker_setup.instance_key,
            ask_cluster=self.cluster.topics,
            ask_last_record=self.cluster.last_record,
            asked=self._asked,
            orders=self.orders,
            stop_requests=self._stop_requests,
        )

    def _new_status(self, constant: dict[str, Any]) -> DaemonStatus:
        return DaemonStatus(
            self.config,
            self.store,
            self.cluster,
            supervisor=self.supervisor,
            orders=self.orders,
            overview=self._overview,
            failures=self._failures,
            stop_requests=self._stop_requests,
            constant={
                **constant,
                "dead_letters": str(self._dead_letters),
                "controller_epoch": self._epoch,
                "run_dir": str(self.run_dir.path),
                "segment": str(self.store.path),
                "reload_json": str(self.run_dir.files.reload_json),
            },
        )

    def changed(self) -> None:
        """Something that ``status`` shows has changed."""
        self._publisher.changed()

    def _ask_again(self) -> None:
        """Try the HELLOs that wait again."""
        if self._control is not None:
            self._control.ask_again()

    # ---- life

    async def run(self, exporter: Exporter | None, on_ready: Callable[[], None] = lambda: None) -> int:
        """Start, serve until a stop is requested, and drain. Returns the exit status.

        Raises RunDirError before anything is started.
        """
        if self._control is None:
            self._control = open_control(self.run_dir)
        self.status.exporter = exporter
        if exporter is not None:
            exporter.start(
                health=self.status.judge, status=self.status.to_mapping, failures=self._failures.counts
            )
        self.cluster.became_active(self._epoch, self.changed)
        self._publisher.publish()
        self._worker_setup.open()
        self.supervisor.start()
        self.status.control = self._control
        self._control.serve(
            self._answers.hello, self._answers.topics, self._answers.order, self._explanations.answer
        )
        self._control.last_record = self._answers.last_record
        self._control.check_asked = self._asked.wait
        self._control.why_waits = self._overview.why_waits
        if self._listening is not None:
            self._control.listen(self._listening, lambda: self._answers.rules, self.changed)
        self._spawn(
            self._repeat(self._remind, UNREACHABLE_REMINDER_S, "The reminder of an unreachable Kafka")
        )
        self._spawn(self._repeat(self._tick, TICK_S, "The controller's check each second"))
        if self._systemd.watchdog_interval_s is not None:
            self._systemd.watchdog()
            interval_s = self._systemd.watchdog_interval_s
            self._spawn(self._repeat(self._systemd.watchdog, interval_s, "The sign for systemd"))
        ready = self._spawn(self._announce(on_ready))
        try:
            await self._stop_asked.wait()
            return await self._end()
        finally:
            ready.cancel()
            await self._tear_down()
            if self._farewell is not None:
                log.info("%s", self._farewell.line(self._loop.time()))

    def ask_stop(self, why: str) -> None:
        """Drain on the first call. A call at least two seconds later forces the end, without waiting for anything."""
        step = self._stop_requests.ask(self._loop.time())
        if step is StopStep.REPEAT:
            log.info("%s again, within %g s: it counts as the same stop.", why, REPEAT_S)
        elif step is StopStep.DRAIN:
            log.info("%s: draining (at most %g s).", why, self.config.number("daemon.shutdown_timeout_s"))
            self._systemd.stopping("Draining")
            self._stop_asked.set()
            self._ask_again()
            self.changed()
        else:
            log.warning("%s again: records not delivered yet fail to their senders.", why)
            self._spawn(self.supervisor.drain(0.0))

    def terminal_closed(self) -> None:
        """Drain as after SIGTERM. The kernel and the shell may both report a closed terminal, so a repeat forces
        nothing.
        """
        if not self._stop_requests.is_stopping:
            self.ask_stop("The terminal was closed")

    def hand_over(self) -> None:
        """Stop at once: a successor adopts everything in the segment."""
        log.info(
            "A successor takes over: ending without a drain. It has %s to deliver.",
            counted(self.store.total(_HELD), "record"),
        )
        self.is_handed_over = True
        self._stop_requests.is_stopping = True
        self._stop_asked.set()

    async def _end(self) -> int:
        if self.is_handed_over:
            return 0
        timeout_s = 0.0 if self._fatal else self.config.number("daemon.shutdown_timeout_s")
        if self.orders.end() and timeout_s:
            log.warning("A stop delivers all records: nothing is paused any more.")
            self._spawn(self._configure_workers())  # sent before DRAIN on the same channel
            await asyncio.sleep(0)
        self._farewell = Farewell(self.store, self._loop.time())
        # A forced end fails the records to their senders; ``left`` counts those that not even that could settle.
        left = await self.supervisor.drain(timeout_s)
        dead, failed = self._farewell.losses(left, self._dead_letters)
        if dead:
            log.error("%s", dead)
        if self._fatal:
            log.error("%s", self._fatal)
            return 1
        if failed:
            log.error("%s", failed)
        return 1 if dead or failed else 0

    async def _tear_down(self) -> None:
        await self.supervisor.stop()
        self._failures.close()
        self._asked.close()
        for task in self._background:
            task.cancel()
        self._publisher.close()
        if self._control is not None:
            self._control.close()
        await self.cluster.close()
        if self.status.exporter is not None:
            self.status.exporter.close()
        self._worker_setup.close()
        try:
            self.run_dir.files.store_epoch(self.supervisor.last_epoch)
        except OSError as error:
            if not self.run_dir.is_lost:  # which was logged before
                log.warning("Run dir %s cannot be written: %s.", self.run_dir.path, error)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error(f"A task of the controller failed. {PLEASE_REPORT}", exc_info=error)

    async def _repeat(self, work: Callable[[], object], interval_s: float, what: str) -> None:
        """Do ``work`` each ``interval_s``, whatever it raises."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                work()
            except Exception as error:
                self._sparse_log.bug(what, error)

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        await self.supervisor.wait_all_ready()
        if self._stop_requests.is_stopping:
            return
        exporter = self.status.exporter
        where = f", metrics at {exporter.shown_address}" if exporter else ""
        tcp = f" and {self.config.text('daemon.listen')}" if self._listening else ""
        log.info("Taking clients at %s%s%s.", self.run_dir.control_socket, tcp, where)
        self._systemd.ready(self.status.sentence())
        on_ready()

    def _remind(self) -> None:
        """Log an unreachable Kafka once a minute; the cluster logs it at once."""
        if self.cluster.error:
            log.warning("%s", self.cluster.error)
        self._failures.tick(self._loop.time() * 1e3)

    def _tick(self) -> None:
        timeout_s = self.config.number("daemon.idle_timeout_s")
        is_idle = self._idle.is_over(
            self._clients(), self.store.total(_ACCEPTED), timeout_s, self._loop.time()
        )
        if is_idle and not self._stop_requests.is_stopping:
            self.ask_stop(f"No client for {timeout_s:g} s (daemon.idle_timeout_s)")
        if self._overview.tick():
            self.changed()
        self._lost.tick(control=self._control, exporter=self.status.exporter, workers=self.supervisor.alive)

    def _clients(self) -> int:
        """At least 1 while a worker is away: its clients come back."""
        ready = self.supervisor.ready
        away = self.config.integer("daemon.workers") - len(ready)
        return max(away, 0) + sum(self.store.clients_connected(each.identity.slot) for each in ready)

    def _publish_all(self) -> None:
        self.run_dir.files.publish_segment(self.store.path)
        self.run_dir.files.store_epoch(self.supervisor.last_epoch)
        self.run_dir.files.publish_pauses(self.orders.pauses.to_mapping())
        self._publisher.publish()

    def fail(self, sentence: str) -> None:
        """End the daemon with this sentence and exit status 1."""
        self._fatal = self._fatal or sentence
        self._stop_requests.is_stopping = True
        self._stop_asked.set()

    # ---- reload

    async def _use(self, config: SidecarConfig) -> list[str]:
        """Apply a checked configuration here and in all workers, and wait for them. Returns one sentence per late
        worker.
        """
        # Workers that start from now on get it with START.
        self.config = self.status.config = self._worker_setup.config = config
        self._answers.use(config)
        if config.holds_secrets:
            hide_memory()
        logging.getLogger().setLevel(config.text("log.level").upper())
        self.cluster.use(config)
        if self._control is not None:
            self._control.check_keys()
        return await self._configure_workers()

    async def _configure_workers(self) -> list[str]:
        """Send all workers the present settings. Returns one sentence for each worker that has not confirmed them in
        time.
        """
        self._config_serial += 1
        message = Configure(self._config_serial, self._worker_setup.settings())
        late = await self.supervisor.configure(message, WORKERS_ANSWER_S)
        self.changed()
        return [
            f"Worker {worker.identity.index} (pid {worker.pid}) has not confirmed the new settings within "
            f"{WORKERS_ANSWER_S:g} s; it applies them when it continues, or its successor does."
            for worker in late
        ]

    def _publish_reload(self, result: dict[str, Any]) -> None:
        self.run_dir.files.publish_reload({"pid": os.getpid(), **result})

    # ---- workers

    def _on_worker_joined(self, worker: WorkerProcess) -> None:
        """Send a new worker all metadata, and admit the clients that wait for it."""
        self.cluster.worker_joined(worker)
        self._ask_again()

    def _on_condition(self, worker: WorkerProcess, condition: Condition) -> None:
        """Take a worker's report on its brokers, pool and streams."""
        self._overview.report(worker.identity.index, condition)
        self.changed()

    def _on_worker_left(self, worker: WorkerProcess) -> None:
        """Forget a worker that is gone, send no client to it, and remove its socket."""
        self.cluster.worker_left(worker)
        self._worker_choice.worker_left(worker.identity.index)
        self._overview.worker_left(worker.identity.index)
        self.run_dir.remove_worker_socket(worker.identity.index, worker.identity.epoch)

    def _on_failed_records(self, _: WorkerProcess, message: FailedRecords) -> None:
        """Count, log and show a worker's failed records."""
        self._failures.add(message.rows, time.time_ns() / 1e6, self._loop.time() * 1e3)
        self.changed()
