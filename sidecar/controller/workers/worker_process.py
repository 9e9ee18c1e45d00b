"""The controller's view of one worker: its process, its control channel, its state, and the meaning of its exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.common.control import ControlMessage, Start
from sidecar.common.model import ExitStatus
from sidecar.controller.workers.standby_worker import StandbyWorker, last_line
from sidecar.controller.workers.worker_deaths import DeathCause
from sidecar.controller.workers.worker_states import TRANSITIONS, WorkerEvent, WorkerState
from sidecar.net.control_channel import ControlChannel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The identity of one start of a worker. The incarnation and the epoch are never used again."""

    index: int
    slot: int
    incarnation: int
    epoch: int
    endpoint: str


FATAL_EXITS = {
    int(ExitStatus.WORKER_BAD_CONFIG): "cannot use its configuration",
    int(
        ExitStatus.WORKER_SEGMENT_VERSION
    ): "cannot read the segment (another version of kafka-sidecar is installed?)",
}
"""Exits that would only be repeated: the daemon stops instead of restarting the worker without end."""


class WorkerProcess:
    """A worker: :meth:`begin` gives ``standby`` its identity. Belongs to the controller's loop.

    ``on_message(worker, message)`` is called for each control message. ``on_ended(worker)`` is called once, after the
    process has been reaped (its pidfd became readable); ``exit_code`` is then set as in subprocess.
    """

    channel: ControlChannel
    """Set by :meth:`begin`."""

    def __init__(
        self,
        identity: WorkerIdentity,
        standby: StandbyWorker,
        *,
        cpu: int | None,
        exempt: Callable[[], None],
        on_message: Callable[[WorkerProcess, ControlMessage], None],
        on_ended: Callable[[WorkerProcess], None],
    ) -> None:
        """``cpu``: the CPU to pin it to. ``exempt`` notes in the worker's slot that we end it."""
        self.identity = identity
        self.state = WorkerState.STARTING
        self.cpu = cpu
        """The CPU to which it is pinned, or None."""
        self.exit_code: int | None = None
        self.is_warm = False
        """Whether it has reported that everything is imported."""
        self.last_words = ""
        """The last line of its output, if it ended before that."""
        self._cause: tuple[DeathCause, str] | None = None
        """Why we end it, with a phrase; None if we do not."""
        self.left: int | None = None
        """The number of records not delivered when its drain ended; None before."""
        self.config_serial = 0
        """The serial number of the last settings that it has confirmed."""
        self.missed_heartbeats = 0
        self.last_heartbeat = -1
        self._standby = standby
        self._exempt = exempt
        self._on_message = on_message
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self.started_ms = self._loop.time() * 1000.0
        self.ready_ms: float | None = None
        """Loop time at which it said READY; None before."""
        self.moved_ms = self.started_ms
        """When its heartbeat was last seen to change, or when it was started."""
        self.process = standby.process
        self.pid = standby.pid
        self.start_time = standby.start_time
        self._pidfd = standby.pidfd

    def begin(self, start: Start) -> None:
        """Pin the process, send it START, and watch it from now on.

        Raises OSError when the process cannot be given its work; it is then ended and reaped.
        """
        if self.cpu is not None:
            self._pin(self.cpu)
        try:
            self._standby.hand_over(start)
        except OSError:
            self._standby.end()
            raise
        self._loop.add_reader(self._pidfd, self._exited)
        self.channel = ControlChannel(
            self._standby.socket,
            on_message=lambda message: self._on_message(self, message),
            on_closed=self._channel_closed,
        )
        self.channel.start()
        self.channel.send(start)

    def _pin(self, cpu: int) -> None:
        """Pin the process before START, so that all its threads inherit it."""
        try:
            os.sched_setaffinity(self.pid, {cpu})
        except ProcessLookupError:
            return  # its pidfd shows that it is dead
        except OSError as error:
            # EINVAL: the CPU was removed from this process's cpuset, or went offline, since the daemon started.
            self.cpu = None
            log.warning(
                "Worker %d is not pinned: CPU %d cannot be used (%s). See which CPUs the cgroup of this daemon has "
                "(cpuset.cpus), and change daemon.cpus.",
                self.identity.index,
                cpu,
                error.strerror,
            )

    @property
    def is_ready(self) -> bool:
        return self.state is WorkerState.READY

    def move(self, event: WorkerEvent) -> bool:
        """Take the transition of the table. Returns True when the state has changed."""
        before, self.state = self.state, TRANSITIONS[self.state][event]
        return self.state is not before

    def note_cause(self, cause: DeathCause, words: str) -> None:
        """Note why we end it, for status and metrics. The first cause is kept."""
        if self._cause is None and self.exit_code is None:
            self._cause = cause, words

    @property
    def death_cause(self) -> DeathCause:
        """The cause of its death, once it has ended."""
        if self._cause is not None:
            return self._cause[0]
        return DeathCause.KILLED if (self.exit_code or 0) < 0 else DeathCause.EXITED

    def end(self, number: signal.Signals) -> None:
        """End it deliberately. That is noted in its slot first, so that the submissions it works on are not blamed for
        its death.
        """
        if self.exit_code is None:
            self._exempt()
            self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal by pidfd. No error when it is dead already."""
        if self.exit_code is None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def exit_sentence(self) -> str:
        """A sentence on how it ended, for log and status."""
        code = self.exit_code
        who = f"Worker {self.identity.index} (pid {self.pid})"
        if code is None:
            return f"{who} is running."
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            why = f": {self._cause[1]}" if self._cause else ""
            return f"{who} was killed by {name}{why}."
        if code in FATAL_EXITS:
            return f"{who} ended: it {FATAL_EXITS[code]}."
        words = f": {self.last_words}" if self.last_words else ""
        return f"{who} exited with status {code}{words}."

    def _channel_closed(self, error: str | None) -> None:
        # EOF comes with its death, which the pidfd shows. A broken stream from a live worker cannot be repaired.
        if error is not None:
            self.note_cause(DeathCause.CHANNEL, f"its messages could not be read ({error.rstrip('.')})")
            self.end(signal.SIGKILL)

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.exit_code = self.process.wait()
        os.close(self._pidfd)
        self.move(WorkerEvent.EXIT)
        self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        # One turn later: its last messages (Drained) are in the socket and are handled first.
        if not self.channel.is_closed:
            self.channel.close()
        words = self._standby.take_words()
        if not self.is_warm:
            self.last_words = last_line(words)
            # stderr has no reader, its disk is full, or it is closed.
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(words)
                sys.stderr.flush()
        self._on_ended(self)
