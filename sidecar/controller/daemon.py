"""The daemon's parts put together: what starts in which order, what each event means, how it all ends."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sidecar.common.client_rules import Caller, ClientRules
from sidecar.common.control import Condition, Configure, Discard, FailedRecords, Start
from sidecar.common.errors import Refused
from sidecar.common.own_process import hide_memory, own_version
from sidecar.common.settings import SidecarConfig
from sidecar.common.tickets import attach_ticket
from sidecar.controller.admission import assigned_endpoint, check_hello
from sidecar.controller.assignment import Assignment
from sidecar.controller.banner import Farewell
from sidecar.controller.cluster import Cluster
from sidecar.controller.control_endpoint import ControlEndpoint
from sidecar.controller.discards import Discards
from sidecar.controller.failure_book import FailureBook
from sidecar.controller.health import Health, disk_sentence
from sidecar.controller.orders import Orders
from sidecar.controller.overview import LOOK_S, Overview
from sidecar.controller.reload import WORKERS_ANSWER_S, ReadConfig, Reload
from sidecar.controller.run_dir import RunDir
from sidecar.controller.run_dir_lock import process_start_time
from sidecar.controller.segment_store import SegmentStore
from sidecar.controller.standby_worker import StandbyWorker
from sidecar.controller.stop_requests import REPEAT_S, StopRequests, StopStep
from sidecar.controller.supervisor import Supervisor
from sidecar.controller.systemd import Systemd
from sidecar.controller.topic_questions import answer_topics
from sidecar.controller.worker_process import WorkerIdentity, WorkerProcess
from sidecar.net.tcp_listen import Listening
from sidecar.telemetry.exporter import Exporter

log = logging.getLogger(__name__)

UNREACHABLE_REMINDER_S = 60.0
_FAILED = "records_failed_total"
_DEAD_LETTERED = "records_dead_lettered_total"
_HELD = "records_held"


def dead_letter_folder(config: SidecarConfig, run_dir: RunDir) -> Path:
    named = config.text("dead_letters.path")
    return Path(named).absolute() if named else run_dir.dead_letters


class Daemon:
    """One running daemon. Everything happens in the loop of the main thread (workers are spawned from it)."""

    def __init__(
        self,
        config: SidecarConfig,
        run_dir: RunDir,
        store: SegmentStore,
        instance: bytes,
        cluster: Cluster,
        *,
        read: ReadConfig,
        standbys: deque[StandbyWorker] | None = None,
        control: ControlEndpoint | None = None,
        listening: Listening | None = None,
    ) -> None:
        """``cluster`` is started already; ``standbys``, ``control`` and ``listening`` too where they were made ahead.

        ``read`` reads the configuration again.
        """
        self.config = config
        self.run_dir = run_dir
        self.store = store
        self._instance = instance
        self._instance_key = secrets.token_bytes(32)
        self._started_ms = time.time_ns() // 1_000_000
        self._epoch = max(run_dir.last_epoch() + 1, self._started_ms // 1000)
        self._systemd = Systemd()
        self._shown_state = ""
        self._assignment = Assignment()
        worker_slots = store.worker_slots(config.integer("daemon.workers"))
        self._dead_letters = dead_letter_folder(config, run_dir)
        self._wake_fds = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in worker_slots)
        # What lies in the segment is as large as its maker wanted it; all workers that share it divide it.
        self._for_workers = {
            "buffer.memory": store.buffer_memory_bytes,
            "daemon.workers": len(worker_slots),
            "dead_letters.path": str(self._dead_letters),
        }
        self._config_serial = 0
        self._failures = FailureBook()
        self.orders = Orders(run_dir, use=self._configure_workers)
        self._rules = ClientRules.from_mapping(config.to_mapping())
        self._discards = Discards()
        self._overview = Overview(cluster, store)
        self._is_stopping = False
        self._stop_asked = asyncio.Event()
        self._stop_requests = StopRequests()
        self._farewell: Farewell | None = None
        """Once it drains."""
        self._fatal = ""
        self._background: set[asyncio.Task[Any]] = set()
        self._publish_handle: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self.supervisor = Supervisor(
            workers=config.integer("daemon.workers"),
            worker_slots=worker_slots,
            cpus=self._configured_cpus(),
            heartbeat_timeout_s=config.number("daemon.heartbeat_timeout_s"),
            restart_backoff_max_ms=config.number("daemon.restart_backoff_max_ms"),
            slots=store,
            owner=self,
            cluster=cluster,
            last_epoch=self._epoch,
            with_standby=bool(config.values["daemon.standby"]),
            standbys=standbys,
        )
        self.supervisor.explanations.use(lambda: self._rules, self._failures)
        self.cluster = cluster
        self.cluster.became_active(self._epoch, self.changed)
        self.exporter: Exporter | None = None
        self.is_handed_over = False
        """A successor has asked for everything: nothing is drained, all is left as it is."""
        self.replaced_pid: int | None = None
        """The daemon that this one took over from."""
        self._control = control
        self._listening = listening
        self.reload = Reload(
            config, read=read, use=self._use, publish=self._publish_reload, spawn=self._spawn
        )

    # ---- life

    async def run(self, exporter: Exporter | None, on_ready: Callable[[], None] = lambda: None) -> int:
        """Start, serve until a stop is asked for, drain. Returns the exit status."""
        self.exporter = exporter
        if exporter is not None:
            exporter.start(health=self._judge, status=self.status, failures=self._failures.counts)
        self._publish()
        self.supervisor.start()
        if self._control is None:
            self._control = ControlEndpoint(self.run_dir.control_socket)
        self._control.serve(self._hello, self._topics, self._order, self.supervisor.explanations.answer)
        if self._listening is not None:
            self._control.listen(self._listening, lambda: self._rules, self.changed)
        self._spawn(self._remind())
        self._spawn(self._look())
        if self._systemd.watchdog_interval_s is not None:
            self._spawn(self._feed_watchdog(self._systemd.watchdog_interval_s))
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
        """First call: drain. A call two seconds later, or more: force (nothing more is waited for)."""
        step = self._stop_requests.ask(self._loop.time())
        if step is StopStep.REPEAT:
            log.info("%s again, within %g s: it counts as the same stop.", why, REPEAT_S)
        elif step is StopStep.DRAIN:
            log.info("%s: draining (at most %g s).", why, self.config.number("daemon.shutdown_timeout_s"))
            self._is_stopping = True
            self._systemd.stopping("Draining")
            self._stop_asked.set()
            if self._control is not None:
                self._control.ask_again()
            self.changed()
        else:
            log.warning("%s again: records not delivered yet fail to their senders.", why)
            self._spawn(self.supervisor.drain(0.0))

    def terminal_closed(self) -> None:
        """Drain as after SIGTERM; the kernel and the shell may both say it, which forces nothing."""
        if not self._is_stopping:
            self.ask_stop("The terminal was closed")

    def hand_over(self) -> None:
        """Stop where we stand: a successor is there and adopts what is in the segment."""
        log.info(
            "A successor takes over: ending without a drain. It has %d records to deliver.",
            self.store.total(_HELD),
        )
        self.is_handed_over = True
        self._is_stopping = True
        self._stop_asked.set()

    async def _end(self) -> int:
        if self.is_handed_over:
            return 0
        timeout_s = 0.0 if self._fatal else self.config.number("daemon.shutdown_timeout_s")
        if self.orders.end() and timeout_s:
            log.warning("A stop delivers all records: nothing is paused any more.")
            self._spawn(self._configure_workers())  # before DRAIN, on the same channel
            await asyncio.sleep(0)
        failed_before, dead_before = (self.store.total(name) for name in (_FAILED, _DEAD_LETTERED))
        self._farewell = Farewell(self.store, self._loop.time())
        # A forced end fails the records to their senders; what even that could not settle is `left`.
        left = await self.supervisor.drain(timeout_s)
        left += self.store.total(_FAILED) - failed_before
        dead = self.store.total(_DEAD_LETTERED) - dead_before
        if dead:
            log.error(
                "%s of clients that are gone could not be delivered before the end: they are in %s.",
                "1 record" if dead == 1 else f"{dead:,} records",
                self._dead_letters,
            )
        if self._fatal:
            log.error("%s", self._fatal)
            return 1
        if left:
            what, who = ("1 record", "its sender") if left == 1 else (f"{left:,} records", "their senders")
            log.error("%s could not be delivered before the end and failed to %s.", what, who)
            return 1
        return 1 if dead else 0

    async def _tear_down(self) -> None:
        await self.supervisor.stop()
        self._failures.close()
        for task in self._background:
            task.cancel()
        if self._publish_handle is not None:
            self._publish_handle.cancel()
        if self._control is not None:
            self._control.close()
        await self.cluster.close()
        if self.exporter is not None:
            self.exporter.close()
        for fd in self._wake_fds:
            os.close(fd)
        self.run_dir.store_epoch(self.supervisor.last_epoch)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        await self.supervisor.wait_all_ready()
        if self._is_stopping:
            return
        where = f", metrics at {self.exporter.shown_address}" if self.exporter else ""
        tcp = f" and {self.config.text('daemon.listen')}" if self._listening else ""
        log.info("Taking clients at %s%s%s.", self.run_dir.control_socket, tcp, where)
        self._shown_state = self.health().sentence or "Running"
        self._systemd.ready(self._shown_state)
        on_ready()

    async def _remind(self) -> None:
        """An unreachable Kafka is said at once (by the cluster) and then once a minute."""
        while True:
            await asyncio.sleep(UNREACHABLE_REMINDER_S)
            if self.cluster.error:
                log.warning("%s", self.cluster.error)
            self._failures.tick(self._loop.time() * 1e3)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._overview.tick():
                self.changed()

    async def _feed_watchdog(self, interval_s: float) -> None:
        while True:
            self._systemd.watchdog()
            await asyncio.sleep(interval_s)

    def fail(self, sentence: str) -> None:
        """End with this sentence and status 1."""
        self._fatal = self._fatal or sentence
        self._is_stopping = True
        self._stop_asked.set()

    # ---- reload

    async def _use(self, config: SidecarConfig) -> list[str]:
        """Take a checked configuration on, here and in all workers, and wait until they have."""
        # From here on a worker that starts gets it with START.
        self.config = config
        self._rules = ClientRules.from_mapping(config.to_mapping())
        if config.holds_secrets:
            hide_memory()
        logging.getLogger().setLevel(config.text("log.level").upper())
        self.cluster.use(config)
        if self._control is not None:
            self._control.look_at_keys()
        return await self._configure_workers()

    async def _configure_workers(self) -> list[str]:
        """Give all workers what holds now; one sentence for each that has not confirmed it in time."""
        self._config_serial += 1
        message = Configure(self._config_serial, self._worker_settings())
        late = await self.supervisor.configure(message, WORKERS_ANSWER_S)
        self.changed()
        return [
            f"Worker {worker.identity.index} (pid {worker.pid}) has not confirmed the new settings within "
            f"{WORKERS_ANSWER_S:g} s; it takes them on when it goes on, or its successor does."
            for worker in late
        ]

    def _publish_reload(self, result: dict[str, Any]) -> None:
        self.run_dir.publish_reload({"pid": os.getpid(), **result})

    # ---- workers

    def worker_endpoint(self, index: int, epoch: int) -> str:
        return f"ipc://{self.run_dir.worker_socket(index, epoch)}"

    def start_message(self, identity: WorkerIdentity) -> Start:
        return Start(
            worker_index=identity.index,
            worker_epoch=identity.epoch,
            slot=identity.slot,
            incarnation=identity.incarnation,
            endpoint=identity.endpoint,
            instance_key=self._instance_key,
            segment_fd=self.store.fd,
            wake_fds=self._wake_fds,
            controller_pid=os.getpid(),
            controller_epoch=self._epoch,
            segment_path=str(self.store.path),
            config=self._worker_settings(),
            extra={
                "run_dir": str(self.run_dir.path),
                "workers_lock": str(self.run_dir.workers_lock),
            },
        )

    def _worker_settings(self) -> dict[str, object]:
        own = {"holds_secrets": self.config.holds_secrets}
        return self.config.to_mapping() | own | self.orders.pauses.to_settings() | self._for_workers

    def worker_joined(self, worker: WorkerProcess) -> None:
        """It gets all metadata, and the clients that wait for it are let in."""
        self.cluster.worker_joined(worker)
        if self._control is not None:
            self._control.ask_again()

    def discarded(self, topics: Mapping[str, Discard]) -> None:
        """A worker's clients were over their rates."""
        self._discards.add(topics)
        self.changed()

    def condition_reported(self, worker: WorkerProcess, condition: Condition) -> None:
        """How it stands with a worker's brokers, pool and streams."""
        self._overview.report(worker.identity.index, condition)
        self.changed()

    def worker_left(self, worker: WorkerProcess) -> None:
        """Nothing is sent to it any more, no client goes to it, and its socket is removed."""
        self.cluster.worker_left(worker)
        self._assignment.worker_left(worker.identity.index)
        self._overview.worker_left(worker.identity.index)
        self.run_dir.worker_socket(worker.identity.index, worker.identity.epoch).unlink(missing_ok=True)

    def records_failed(self, message: FailedRecords) -> None:
        """They are counted, logged and shown."""
        self._failures.add(message.rows, time.time_ns() / 1e6, self._loop.time() * 1e3)
        self.changed()

    def _configured_cpus(self) -> list[int] | None:
        cpus = self.config.values["daemon.cpus"]
        return [int(cpu) for cpu in cpus] if isinstance(cpus, list) and cpus else None

    # ---- clients

    def _hello(self, fields: list[Any], caller: Caller) -> tuple[str, int, bytes] | None:
        """The worker for a client; None while that one is not ready."""
        client_id, name, token_digest = check_hello(fields, self._rules, caller)
        if self._is_stopping:
            raise Refused("DRAINING", "The daemon is shutting down and takes no more clients.")
        identity = self._worker_for(client_id)
        if identity is None:
            return None
        return (
            assigned_endpoint(fields, caller, identity.endpoint, self.config, identity.index),
            identity.epoch,
            attach_ticket(self._instance_key, client_id, name, identity.epoch, token_digest),
        )

    async def _topics(self, names: list[str] | None, max_wait_ms: float | None, caller: Caller) -> list[Any]:
        return await answer_topics(self.cluster.topics, self._rules, names, max_wait_ms, caller)

    async def _order(self, verb: str, topics: list[str], caller: Caller) -> list[object]:
        if self._is_stopping:
            raise Refused("DRAINING", "The daemon is shutting down, which delivers all that it holds.")
        done = await self.orders.carry_out(verb, topics, caller)
        await asyncio.sleep(0)  # daemon.json says it before the answer does
        return done

    def _worker_for(self, client_id: bytes) -> WorkerIdentity | None:
        """The worker that has the client's row, and no other; a new client goes where the fewest are."""
        ready = {worker.identity.index: worker for worker in self.supervisor.ready}
        slot = self.store.slot_of(client_id)
        if slot is not None:
            return next((each.identity for each in ready.values() if each.identity.slot == slot), None)
        loads = {
            index: self.store.clients_connected(each.identity.slot)
            for index, each in ready.items()
            if self.supervisor.is_for_new_clients(each)
        }
        index = self._assignment.assign(client_id, loads, self._loop.time() * 1000.0)
        return None if index is None else ready[index].identity

    # ---- what is shown

    def health(self) -> Health:
        """Whether records are taken and delivered now, and the sentence why not."""
        ready, wanted = len(self.supervisor.ready), self.supervisor.wanted
        if self._is_stopping:
            return Health("draining", "The daemon is draining and takes no new records.")
        if self.orders.pauses.drained_since_ms is not None:
            return Health(
                "draining", "The daemon is drained and takes no records: `kafka-sidecar resume` ends that."
            )
        disk_errno = self.store.highest("accept_log_errno")
        if disk_errno:
            return Health("refusing", disk_sentence(disk_errno, self.config.text("pool.path")))
        if self.cluster.error:
            return Health("unreachable", self.cluster.error)
        if not ready and self.supervisor.last_death:
            return Health("starting", f"No worker is ready. {self.supervisor.last_death}")
        if not ready or not self.cluster.is_known:
            what = "its first metadata" if ready else "its workers"
            servers = ", ".join(self.config.words("bootstrap.servers"))
            return Health("starting", f"The daemon waits for {what} (bootstrap.servers {servers}).")
        if ready < wanted:
            return Health(
                "degraded", f"{wanted - ready} of {wanted} workers are down. {self.supervisor.last_death}"
            )
        trouble = self._overview.trouble()
        if trouble is not None:
            return Health("degraded", *trouble)
        return Health("running", "")

    @property
    def _accepts_records(self) -> bool:
        """Also while Kafka is away: records wait in the pool then."""
        return (
            not self._is_stopping
            and self.orders.pauses.drained_since_ms is None
            and bool(self.supervisor.ready)
            and not self.store.highest("accept_log_errno")
        )

    def _judge(self) -> tuple[bool, str]:
        health = self.health()
        return health.is_healthy, health.sentence

    def status(self) -> dict[str, Any]:
        """The data of daemon.json, the page and `status --json`."""
        health = self.health()
        return {
            "pid": os.getpid(),
            "start_time": process_start_time(os.getpid()),
            "version": own_version(),
            "instance": self._instance.hex(),
            "state": health.state,
            "takes_records": health.takes_records,
            "accepts_records": self._accepts_records,
            "sentence": health.sentence,
            "advice": health.remedy,
            "run_dir": str(self.run_dir.path),
            "segment": str(self.store.path),
            "dead_letters": str(self._dead_letters),
            "reload_json": str(self.run_dir.reload_json),
            "http": self.exporter.address if self.exporter else "",
            "listen": self.config.text("daemon.listen"),
            "curve_public_keys": self._control.public_keys if self._control else [],
            "config_file": str(Path(self.config.file).absolute()) if self.config.file else "",
            "bootstrap": ",".join(self.config.words("bootstrap.servers")),
            "cluster_id": self.cluster.cluster_id,
            "batch_size": self.config.integer("batch.size"),
            **self._overview.status(
                self.config.integer("max.in.flight.requests.per.connection") * self.supervisor.wanted
            ),
            "started_ms": self._started_ms,
            "controller_epoch": self._epoch,
            "restarts": self.supervisor.restarts,
            "last_restart": self.supervisor.last_restart,
            "predecessor": self._predecessor(),
            "refused": dict(self._control.refused) if self._control else {},
            "held_slots": sorted(self.supervisor.held_slots),
            "failures": self._failures.last(),
            "standby": self.supervisor.standby_pid,
            "discards": self._discards.to_list(),
            **self.orders.shown(),
            "workers": [
                {
                    "index": worker.identity.index,
                    "pid": worker.pid,
                    "start_time": worker.start_time,
                    "slot": worker.identity.slot,
                    "incarnation": worker.identity.incarnation,
                    "epoch": worker.identity.epoch,
                    "endpoint": worker.identity.endpoint,
                    "state": str(worker.state),
                    "cpu": worker.cpu,
                    "clients": self.store.clients_connected(worker.identity.slot),
                }
                for worker in self.supervisor.workers
                if worker is not None
            ],
        }

    def _predecessor(self) -> dict[str, Any] | None:
        """The daemon before, with whose segment this one goes on: one that died, or that handed it over."""
        if not self.store.inherited and self.replaced_pid is None:
            return None
        return {"taken_over_pid": self.replaced_pid, "held": self.store.inherited}

    def changed(self) -> None:
        """Something that `status` shows is different: write it, once for all changes of this turn."""
        if self._publish_handle is None:
            self._publish_handle = self._loop.call_soon(self._publish)

    def _note_state(self) -> None:
        """`systemctl status` shows the sentence of /healthz."""
        shown = self.health().sentence or "Running"
        if shown != self._shown_state:
            self._shown_state = shown
            self._systemd.status(shown)

    def _publish(self) -> None:
        self._publish_handle = None
        self._note_state()
        try:
            self.run_dir.publish(self.status())
            self.run_dir.store_epoch(self.supervisor.last_epoch)
        except OSError as error:
            log.error("%s cannot be written: %s.", self.run_dir.daemon_json, error)
