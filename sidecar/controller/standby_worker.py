"""A worker process without an identity: it imports everything, then waits for START on its socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence

from sidecar.common.control import Start
from sidecar.common.control_codec import START_FD_BYTE
from sidecar.common.python_child import python_command
from sidecar.controller.run_dir import process_state
from sidecar.controller.run_dir_lock import process_start_time

WORKER_COMMAND = tuple(python_command("sidecar.worker"))
"""Exec'd fresh by module name: a fork of a process with threads and sockets would inherit both."""
WORDS_BYTES_MAX = 64 << 10


class StandbyWorker:
    """Started by the constructor, from the main thread; needs no event loop yet.

    It holds no slot and no part of the segment: what it may touch comes with START. When this process ends before,
    it ends as well (its socket says so). What it says before it has imported everything is kept, so that one that
    cannot can be quoted; then it has our stderr. Raises OSError when no process can be made.
    """

    def __init__(self, command: Sequence[str] = WORKER_COMMAND) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # A file and no pipe: it never makes its writer wait, and nobody need read it.
        self._words_fd = os.memfd_create("first words")
        try:
            stderr_fd = os.dup(2)
        except OSError:  # ours is closed
            stderr_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            self.process = subprocess.Popen(
                [
                    *command,
                    *("--control-fd", str(theirs.fileno()), "--stderr-fd", str(stderr_fd)),
                    *("--parent-pid", str(os.getpid())),
                ],
                pass_fds=(theirs.fileno(), stderr_fd),
                stdin=subprocess.DEVNULL,
                stderr=self._words_fd,
                # A Ctrl-C at the terminal is for the controller, which drains the workers by message.
                process_group=0,
            )
        except BaseException:
            self.socket.close()
            os.close(self._words_fd)
            raise
        finally:
            theirs.close()
            os.close(stderr_fd)
        self.pid = self.process.pid
        self.start_time = process_start_time(self.pid)
        self.pidfd = os.pidfd_open(self.pid)

    @property
    def is_usable(self) -> bool:
        """It runs: not dead, and not stopped by somebody's SIGSTOP."""
        return process_state(self.pid) not in {None, "Z", "X", "T", "t"}

    async def wait_warm(self) -> bool:
        """Until it has said that everything is imported (True; the message stays in the socket), or has ended."""
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
        """Its last words before it had our stderr."""
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
        """Give it the descriptors that START names; START itself follows on the socket.

        By message and not by inheritance: it may have been started before there was a segment. No error when it is
        dead: its pidfd tells.
        """
        descriptors = [fd for fd in (start.segment_fd, *start.wake_fds) if fd >= 0]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.socket, [START_FD_BYTE], descriptors)

    def end(self) -> None:
        """Kill and reap it; only while it has not been handed over."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.process.wait()
        os.close(self.pidfd)
        self.socket.close()
        if self._words_fd >= 0:
            os.close(self._words_fd)
            self._words_fd = -1


def last_line(words: str) -> str:
    """The last line that says something: of a traceback its error."""
    return next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "")
