"""Heartbeats: ends a worker whose loop is silent, so that another takes its slot."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from sidecar.common.heartbeat import MISSES_MAX
from sidecar.common.processes import process_state
from sidecar.controller.workers.worker_deaths import DeathCause
from sidecar.controller.workers.worker_process import WorkerProcess
from sidecar.controller.workers.worker_states import WorkerState

log = logging.getLogger(__name__)

START_SILENCE_MS = 30_000.0
"""A starting worker may take as long as its slot needs while its heartbeat moves. Without a heartbeat it has this
time, for imports and for the longest single step of an adoption.
"""
ABORT_GRACE_S = 3.0
KILL_GRACE_S = 3.0
"""A killed process is dead within milliseconds, unless it waits in the kernel without interruption."""


class Heartbeats:
    """Ends workers whose loop has stopped. Belongs to the controller's loop."""

    def __init__(self, heartbeat_of: Callable[[int], int]) -> None:
        """``heartbeat_of(slot)``: the slot's heartbeat word. The working loop changes it, and an adoption as it
        progresses.
        """
        self._heartbeat_of = heartbeat_of
        self._loop = asyncio.get_running_loop()

    def check(self, worker: WorkerProcess) -> None:
        """Compare its heartbeat with that of the last check, and end it after MISSES_MAX checks without a change. One
        that starts has START_SILENCE_MS.
        """
        now_ms = self._loop.time() * 1000.0
        beat = self._heartbeat_of(worker.identity.slot)
        if beat != worker.last_heartbeat:
            worker.last_heartbeat = beat
            worker.missed_heartbeats = 0
            worker.moved_ms = now_ms
            return
        if worker.state is WorkerState.STARTING and not worker.missed_heartbeats:
            if now_ms - worker.moved_ms > START_SILENCE_MS:
                worker.missed_heartbeats = MISSES_MAX  # only once: the signals below take a moment
                self._end(worker, now_ms)
            return
        if not worker.is_ready:
            return
        worker.missed_heartbeats += 1
        if worker.missed_heartbeats == MISSES_MAX:
            self._end(worker, now_ms)

    def _end(self, worker: WorkerProcess, now_ms: float) -> None:
        # The line about its replacement says this too: one line for one event.
        when = "" if worker.is_ready else " and was not ready yet"
        silence = f"silent for {(now_ms - worker.moved_ms) / 1000.0:.1f} s{when}"
        worker.note_cause(DeathCause.SILENT, f"it had been {silence}")
        if process_state(worker.pid) in {"T", "t"}:
            self._kill(worker, silence)  # a stopped process handles no other signal
            return
        # SIGABRT first: faulthandler then logs where it hangs.
        worker.end(signal.SIGABRT)
        self._loop.call_later(ABORT_GRACE_S, self._kill, worker, silence)

    def _kill(self, worker: WorkerProcess, silence: str) -> None:
        worker.end(signal.SIGKILL)
        self._loop.call_later(KILL_GRACE_S, self._log_undead, worker, silence)

    @staticmethod
    def _log_undead(worker: WorkerProcess, silence: str) -> None:
        if worker.exit_code is None:
            log.error(
                "Worker %d (pid %d) had been %s and does not die on SIGKILL (state %s): it waits in the kernel, mostly "
                "for a disk. It is replaced once it is dead; look at the host's disks and its kernel log.",
                worker.identity.index,
                worker.pid,
                silence,
                process_state(worker.pid) or "unknown",
            )
