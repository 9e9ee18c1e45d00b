"""A worker process before it is told who it is: it imports everything, then waits for START on its socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from sidecar.common.control import START_FD_BYTE, Start
from sidecar.controller.run_dir import process_start_time, process_state

WORKER_COMMAND = (sys.executable, "-m", "sidecar.worker")
"""Exec'd fresh by module name: a fork of a process with threads and sockets would inherit both."""


class BareWorker:
    """Started by the constructor, from the main thread; needs no event loop yet.

    It holds no slot and no part of the segment: what it may touch comes with START. When this process ends before,
    it ends as well (its socket says so). Raises OSError when no process can be made.
    """

    def __init__(self, command: Sequence[str] = WORKER_COMMAND) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.process = subprocess.Popen(
                [*command, "--control-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # A Ctrl-C at the terminal is for the controller, which drains the workers by message.
                process_group=0,
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self.process.pid
        self.start_time = process_start_time(self.pid)
        self.pidfd = os.pidfd_open(self.pid)

    @property
    def is_usable(self) -> bool:
        """It runs: not dead, and not stopped by somebody's SIGSTOP."""
        return process_state(self.pid) not in {None, "Z", "X", "T", "t"}

    async def wait_warm(self) -> None:
        """Until it has said that everything is imported, or is dead. The message stays in the socket."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.socket.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.socket.fileno())

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
