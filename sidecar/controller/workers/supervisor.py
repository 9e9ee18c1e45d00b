"""Supervisor: the table of workers. Starts, pins, watches, restarts and drains them.

Each worker has an index and a slot of the segment for the daemon's life. A worker that dies is replaced under the same
index and slot, at once the first time and then after a backoff. The replacement adopts the contents of the slot.

A slot is never split. If a dead daemon left more slots with content than there are workers, additional workers are
started for those. They end when their clients are gone and their records have outcomes.

A standby is a worker process without an index that has imported everything. It replaces the next worker that dies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sidecar.common.control import Configure, Configured, ControlMessage, Drain, Drained, Ready, Stop, Warm
from sidecar.common.heartbeat import check_interval_s
from sidecar.common.wording import PLEASE_REPORT
from sidecar.controller.event_wait import happens_within
from sidecar.controller.rundir.segment_store import SegmentStore
from sidecar.controller.workers.heartbeats import Heartbeats
from sidecar.controller.workers.standby_worker import Standbys
from sidecar.controller.workers.worker_deaths import DeathCause, WorkerDeaths
from sidecar.controller.workers.worker_process import FATAL_EXITS, WorkerIdentity, WorkerProcess
from sidecar.controller.workers.worker_setup import WorkerSetup
from sidecar.controller.workers.worker_states import WorkerEvent

log = logging.getLogger(__name__)

RESTART_BACKOFF_MS = 100.0
STEADY_MS = 1_000.0
"""A worker that was ready for this long did not die of its start: its successor need not wait."""
STANDBY_DELAY_S = 0.25
"""The delay after the last worker became ready, so that its adoption has the CPU first."""
STOP_GRACE_S = 5.0
EPOCH_MAX = 2**32 - 1
FAILED_STARTS_MAX = 3
"""The daemon ends with the cause after this many failed starts in a row while no worker is ready. A start fails when
the process ends before it has imported what it needs, without being ended by us.
"""


Route = Callable[[WorkerProcess, Any], None]
"""Handles one kind of a worker's control messages."""


class Supervisor:
    """Runs in the controller's loop, in its main thread."""

    def __init__(
        self,
        *,
        workers: int,
        worker_slots: Sequence[int],
        cpus: Sequence[int] | None,
        heartbeat_timeout_s: float,
        restart_backoff_max_ms: float,
        slots: SegmentStore,
        setup: WorkerSetup,
        routes: Mapping[type[ControlMessage], Route],
        on_joined: Callable[[WorkerProcess], None],
        on_left: Callable[[WorkerProcess], None],
        on_change: Callable[[], None],
        on_fatal: Callable[[str], None],
        last_epoch: int,
        standbys: Standbys,
    ) -> None:
        """``routes``: who handles the messages of workers that are not about their own start and end.

        ``on_joined``: a worker is ready. ``on_left``: a worker is dead. ``on_change``: the output of `status` would
        change. ``on_fatal``: restarting a worker would not help, for this reason.
        """
        self._count = workers
        self._worker_slots = list(worker_slots)
        """Index → slot. From index ``workers`` on, they only finish the records of a dead daemon."""
        self._cpus = choose_cpus(workers, cpus)
        self._check_interval_s = check_interval_s(heartbeat_timeout_s)
        self._backoff_max_ms = restart_backoff_max_ms
        self._slots = slots
        self._setup = setup
        self._routes: dict[type[ControlMessage], Route] = {
            **routes,
            Warm: self._on_warm,
            Ready: self._on_ready,
            Configured: self._on_configured,
            Drained: self._on_drained,
        }
        self._on_joined = on_joined
        self._on_left = on_left
        self._on_change = on_change
        self._on_fatal = on_fatal
        self.last_epoch = last_epoch
        self.standbys = standbys
        self._heartbeats = Heartbeats(slots.heartbeat)
        self._loop = asyncio.get_running_loop()
        self.workers: list[WorkerProcess | None] = [None] * len(worker_slots)
        self.held_slots: set[int] = set()
        self.deaths = WorkerDeaths(len(worker_slots))
        self.last_death = ""
        self._failed_starts = 0
        self._backoff_ms = [0.0] * len(worker_slots)
        self._ended: set[int] = set()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    @property
    def alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker is not None and worker.exit_code is None]

    @property
    def ready(self) -> list[WorkerProcess]:
        return [worker for worker in self.alive if worker.is_ready]

    @property
    def wanted(self) -> int:
        """How many workers there should be now."""
        return len(self._worker_slots) - len(self._ended)

    @property
    def for_new_clients(self) -> int:
        """Number of workers that get new clients, the first ones. The others only finish a dead daemon's records."""
        return self._count

    def is_for_new_clients(self, worker: WorkerProcess) -> bool:
        """False for a worker that only finishes the records of a dead daemon."""
        return worker.identity.index < self._count

    def start(self) -> None:
        """Spawn every worker and begin to watch them."""
        self.standbys.start()
        for index in range(len(self._worker_slots)):
            self._spawn(index)
        self._watch = self._loop.create_task(self._watch_heartbeats(), name="heartbeats")

    async def wait_all_ready(self) -> None:
        """Wait until every worker has sent READY, or the daemon is stopping."""
        while len(self.ready) < self.wanted and not self._is_stopping:
            await self._wait_change()

    async def drain(self, timeout_s: float) -> int:
        """Rule S2: take no new records, deliver the present ones, then end. Returns the number of records not
        delivered.

        May be called again with a shorter time while it runs (a second SIGTERM forces the end).
        """
        self._is_stopping = True
        self.standbys.is_wanted = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        drained = self.alive
        for worker in drained:
            worker.move(WorkerEvent.DRAIN)
            worker.channel.send(Drain(timeout_s * 1000.0))
        self._change()
        deadline = self._loop.time() + timeout_s + STOP_GRACE_S
        while any(worker.left is None and worker.exit_code is None for worker in drained):
            if not await self._wait_change(deadline - self._loop.time()):
                log.error("A worker did not finish draining in time and is stopped now.")
                break
        return sum(worker.left or 0 for worker in drained)

    async def configure(self, message: Configure, timeout_s: float) -> list[WorkerProcess]:
        """Send every worker these settings. Returns the ready workers that have not confirmed them in time."""
        sent = self.alive
        for worker in sent:
            worker.channel.send(message)
        deadline = self._loop.time() + timeout_s
        while late := [each for each in sent if each.is_ready and each.config_serial < message.serial]:
            if not await self._wait_change(deadline - self._loop.time()):
                return late
        return []

    async def stop(self) -> None:
        """End every worker: STOP, and SIGKILL for one that does not end. Returns when all are reaped."""
        self._is_stopping = True
        if self._watch is not None:
            self._watch.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self.standbys.close()
        for worker in self.alive:
            worker.channel.send(Stop())
        deadline = self._loop.time() + STOP_GRACE_S
        while self.alive:
            if not await self._wait_change(deadline - self._loop.time()):
                for worker in self.alive:
                    log.error(
                        "Worker %d (pid %d) does not end; killing it.", worker.identity.index, worker.pid
                    )
                    worker.end(signal.SIGKILL)
                deadline = self._loop.time() + STOP_GRACE_S

    def _spawn(self, index: int) -> None:
        self._timers.pop(index, None)
        if self._is_stopping:
            return
        slot = self._worker_slots[index]
        try:
            self._slots.prepare(slot)
        except Exception as error:
            self._on_fatal(f"Worker {index} cannot be started: {error}")
            return
        # Seconds since 1970 as a seed keep the epochs of one run directory distinct even if the folder was emptied in
        # between.
        self.last_epoch = min(self.last_epoch + 1, EPOCH_MAX)
        epoch = self.last_epoch
        incarnation = self._slots.next_incarnation()
        identity = WorkerIdentity(index, slot, incarnation, epoch, self._setup.endpoint(index, epoch))
        try:
            worker = WorkerProcess(
                identity,
                self.standbys.take(),
                cpu=self._cpus[index % len(self._cpus)] if self._cpus else None,
                exempt=partial(self._slots.exempt, slot, incarnation),
                on_message=self.on_message,
                on_ended=self._worker_ended,
            )
            worker.begin(self._setup.start_message(identity))
            self.workers[index] = worker
            self.held_slots.discard(slot)
        except OSError as error:
            self.last_death = f"Worker {index} cannot be started: {error}."
            self._restart_later(index, DeathCause.NOT_STARTED)
        self._change()

    # ---- messages of workers

    def on_message(self, worker: WorkerProcess, message: ControlMessage) -> None:
        """Pass a worker's control message to its handler."""
        handle = self._routes.get(type(message))
        if handle is None:
            log.warning("Worker %d sent an unexpected %s.", worker.identity.index, message.kind.name)
        else:
            handle(worker, message)

    def _on_warm(self, worker: WorkerProcess, message: Warm) -> None:
        # Sent before START; wait_warm() has seen it in the socket.
        worker.is_warm = True
        self._failed_starts = 0

    def _on_ready(self, worker: WorkerProcess, message: Ready) -> None:
        if worker.move(WorkerEvent.READY):
            worker.ready_ms = self._loop.time() * 1000.0
            self._failed_starts = 0
            log.info(
                "Worker %d is ready (pid %d, slot %d, epoch %d%s).",
                worker.identity.index,
                worker.pid,
                worker.identity.slot,
                worker.identity.epoch,
                f", CPU {worker.cpu}" if worker.cpu is not None else "",
            )
            self._on_joined(worker)
            if len(self.ready) >= self.wanted:
                self.standbys.want(STANDBY_DELAY_S)
        self._change()

    def _on_configured(self, worker: WorkerProcess, message: Configured) -> None:
        worker.config_serial = message.serial
        self._change()

    def _on_drained(self, worker: WorkerProcess, message: Drained) -> None:
        worker.left = message.left
        self._change()

    def _worker_ended(self, worker: WorkerProcess) -> None:
        """Replace a worker whose process has been reaped, unless it was meant to end."""
        index, slot = worker.identity.index, worker.identity.slot
        self._on_left(worker)
        if self._is_stopping or index in self._ended:
            self._change()
            return
        self.held_slots.add(slot)
        self.last_death = worker.exit_sentence()
        # A worker that we ended was slow, perhaps as the CPU was full; its successor may do better.
        is_its_own = worker.death_cause in {DeathCause.EXITED, DeathCause.KILLED}
        if is_its_own and not worker.is_warm and worker.exit_code not in {-signal.SIGKILL, -signal.SIGTERM}:
            self._failed_starts += 1
        if worker.exit_code in FATAL_EXITS:
            self._on_fatal(self.last_death)
        elif self._failed_starts >= FAILED_STARTS_MAX and not self.ready:
            self._on_fatal(
                f"No worker can be started, {self._failed_starts} ended one after the other while they were loaded. "
                f"{self.last_death} `kafka-sidecar doctor` checks the installation."
            )
        else:
            if worker.ready_ms is not None and self._loop.time() * 1000.0 - worker.ready_ms >= STEADY_MS:
                self._backoff_ms[index] = 0.0
            self._restart_later(index, worker.death_cause)
        self._change()

    def _restart_later(self, index: int, cause: DeathCause) -> None:
        delay_ms = self._backoff_ms[index]
        self._backoff_ms[index] = min(max(2 * delay_ms, RESTART_BACKOFF_MS), self._backoff_max_ms)
        self.deaths.note(index, cause, self.last_death)
        when = f"in {delay_ms:g} ms" if delay_ms else "now"
        level = logging.ERROR if cause is DeathCause.SILENT else logging.WARNING
        log.log(level, "%s It is replaced %s.", self.last_death, when)
        self._timers[index] = self._loop.call_later(delay_ms / 1000.0, self._spawn, index)

    async def _watch_heartbeats(self) -> None:
        while not self._is_stopping:
            before = self._loop.time()
            await asyncio.sleep(self._check_interval_s)
            # If this loop itself was delayed (a stopped machine, a full CPU), a worker's silence means nothing.
            if self._loop.time() - before > 1.5 * self._check_interval_s:
                continue
            for worker in self.alive:
                try:
                    self._heartbeats.check(worker)
                    self._end_if_over(worker)
                except Exception:  # the other workers must still be watched
                    log.exception(f"Watching worker %d failed. {PLEASE_REPORT}", worker.identity.index)

    def _end_if_over(self, worker: WorkerProcess) -> None:
        """End a worker of an earlier daemon's slot once the slot is empty: no client can come back to it then."""
        index, slot = worker.identity.index, worker.identity.slot
        if self.is_for_new_clients(worker) or not worker.is_ready or index in self._ended:
            return
        if not self._slots.has_content(slot):
            log.info("Worker %d has finished the records of slot %d; it ends.", index, slot)
            self._ended.add(index)
            worker.move(WorkerEvent.DRAIN)
            worker.channel.send(Stop())
            self._change()

    def _change(self) -> None:
        self._changed.set()
        self._on_change()

    async def _wait_change(self, timeout_s: float | None = None) -> bool:
        """Wait for a change. Returns False after the timeout."""
        self._changed.clear()
        return await happens_within(self._changed, timeout_s)


def choose_cpus(workers: int, configured: Sequence[int] | None) -> list[int]:
    """The CPUs to pin workers to, round robin; empty for no pinning.

    Workers are pinned only when that is configured, or when at least two CPUs are left for the broker and all others.
    """
    usable = sorted(os.sched_getaffinity(0))
    if configured is not None:
        return list(configured)
    return usable[-workers:] if len(usable) >= workers + 2 else []
