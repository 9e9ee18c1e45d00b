"""A worker process without an identity: it imports everything, then waits for START on its socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence

from sidecar.common.control import Start
from sidecar.common.control_codec import START_FD_BYTE
from sidecar.common.processes import process_start_time, process_state
from sidecar.common.python_child import python_command

WORKER_COMMAND = tuple(python_command("sidecar.worker"))
"""Started by exec of a module: a fork of a process with threads and sockets would inherit both."""
WORDS_BYTES_MAX = 64 << 10
STANDBY_RETRY_S = 5.0

log = logging.getLogger(__name__)


class StandbyWorker:
    """:meth:`spawn` starts it.

    It holds no slot and no part of the segment; START brings both. When this process ends before that, the standby
    ends as well, as its socket closes. Its output before all its imports are done is kept, so that the error of a
    failed start can be quoted; after that it uses our stderr.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], pidfd: int, control: socket.socket, words_fd: int
    ) -> None:
        self.process = process
        self.pid = process.pid
        self.pidfd = pidfd
        self.start_time = process_start_time(self.pid)
        self.socket = control
        self._words_fd = words_fd

    @classmethod
    def spawn(cls, command: Sequence[str] = WORKER_COMMAND) -> StandbyWorker:
        """Start one, from the main thread; that needs no event loop yet. Raises OSError when no process can be made."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # A file instead of a pipe: a writer never blocks, and it need not be read.
        words_fd = os.memfd_create("first words")
        try:
            stderr_fd = os.dup(2)
        except OSError:  # our stderr is closed
            stderr_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            process = subprocess.Popen(
                [
                    *command,
                    *("--control-fd", str(theirs.fileno()), "--stderr-fd", str(stderr_fd)),
                    *("--parent-pid", str(os.getpid())),
                ],
                pass_fds=(theirs.fileno(), stderr_fd),
                stdin=subprocess.DEVNULL,
                stderr=words_fd,
                # A Ctrl-C at the terminal is handled by the controller, which drains the workers by message.
                process_group=0,
            )
        except BaseException:
            ours.close()
            os.close(words_fd)
            raise
        finally:
            theirs.close()
            os.close(stderr_fd)
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            ours.close()
            os.close(words_fd)
            raise
        return cls(process, pidfd, ours, words_fd)

    @property
    def is_usable(self) -> bool:
        """Whether it runs: neither dead nor stopped by a SIGSTOP."""
        return process_state(self.pid) not in {None, "Z", "X", "T", "t"}

    async def wait_warm(self) -> bool:
        """Wait until it has reported that everything is imported (True; the message stays in the socket), or has ended
        (False).
        """
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.socket.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.socket.fileno())
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except ConnectionResetError:
            return False

    def take_words(self) -> str:
        """Its output before it used our stderr."""
        fd, self._words_fd = self._words_fd, -1
        if fd < 0:
            return ""
        try:
            size = os.fstat(fd).st_size
            said = os.pread(fd, WORDS_BYTES_MAX, max(0, size - WORDS_BYTES_MAX))
        finally:
            os.close(fd)
        return said.decode(errors="replace")

    def hand_over(self, start: Start) -> None:
        """Send it the descriptors that START names; START itself follows on the socket.

        They are sent and not inherited, as the process may have been started before there was a segment. No error when
        it is dead: its pidfd shows that.
        """
        descriptors = [fd for fd in (start.segment_fd, *start.wake_fds) if fd >= 0]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.socket, [START_FD_BYTE], descriptors)

    def end(self) -> None:
        """Kill and reap it. Only before it was handed over."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.process.wait()
        os.close(self.pidfd)
        self.socket.close()
        if self._words_fd >= 0:
            os.close(self._words_fd)
            self._words_fd = -1


def last_line(words: str) -> str:
    """The last line that is not empty; the error of a traceback."""
    return next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "")


class Standbys:
    """The standby that replaces the next worker that dies, and any processes that were started before.

    This object ends all processes in ``started``. Belongs to the controller's loop.
    """

    def __init__(
        self,
        started: deque[StandbyWorker],
        *,
        is_wanted: bool,
        on_change: Callable[[], None],
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        """``on_change`` is called when there is one more or one fewer."""
        self._command = command
        self._standbys = started
        self.is_wanted = is_wanted
        """Whether one standby is kept: another is started when it is taken or ends."""
        self._on_change = on_change
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def pid(self) -> int | None:
        """The pid of the process that is taken next; None without any."""
        return self._standbys[0].pid if self._standbys else None

    def start(self) -> None:
        """Watch the processes that were started before."""
        for standby in self._standbys:
            self._watch(standby)

    def take(self) -> StandbyWorker:
        """A process to give an identity to; it then belongs to the caller. Without a standby it is a new one. Raises
        OSError when none can be made.
        """
        while self._standbys:
            standby = self._standbys[0]
            if standby.is_usable:
                self._standbys.popleft()
                self._loop.remove_reader(standby.pidfd)
                return standby
            self._drop(standby)
        return StandbyWorker.spawn(self._command)

    def want(self, delay_s: float) -> None:
        """Start a standby after ``delay_s``, unless there is one already, or none is wanted."""
        if not self.is_wanted or self._standbys:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._start_one)

    def close(self) -> None:
        """End all standbys and start no more."""
        self.is_wanted = False
        if self._timer is not None:
            self._timer.cancel()
        while self._standbys:
            self._drop(self._standbys[0])

    def _start_one(self) -> None:
        self._timer = None
        if not self.is_wanted or self._standbys:
            return
        try:
            standby = StandbyWorker.spawn(self._command)
        except OSError as error:
            log.error("A standby worker cannot be started: %s.", error)
            self.want(STANDBY_RETRY_S)
            return
        self._standbys.append(standby)
        self._watch(standby)
        self._on_change()

    def _watch(self, standby: StandbyWorker) -> None:
        self._loop.add_reader(standby.pidfd, self._died, standby)

    def _died(self, standby: StandbyWorker) -> None:
        words = last_line(standby.take_words())
        self._drop(standby)
        log.warning(
            "The standby worker (pid %d) has ended%s; another is started.",
            standby.pid,
            f" ({words})" if words else "",
        )
        self.want(STANDBY_RETRY_S)

    def _drop(self, standby: StandbyWorker) -> None:
        self._standbys.remove(standby)
        self._loop.remove_reader(standby.pidfd)
        standby.end()
        self._on_change()
