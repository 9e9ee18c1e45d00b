"""Predecessor: the running daemon of a run directory, as seen by the daemon that replaces it (`run --takeover`).

``main`` of a daemon that takes over calls it, in its main thread.

A takeover is a planned crash. A signal asks the predecessor to stop at once; it releases the run directory, and its
successor adopts its records. It is a signal and not a message because the kernel checks the permission: only the same
user or root may send it. A predecessor that does not react is killed; this costs only that batches under way are sent
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from sidecar.common.processes import process_start_time, process_state
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.remains import kill_and_wait
from sidecar.controller.rundir.run_dir import TAKERS_LOCK_FILE, RunDir, RunDirError
from sidecar.shm.private_files import open_private

log = logging.getLogger(__name__)

HAND_OVER_SIGNAL: Final = signal.SIGUSR2
ANSWER_S: Final = 3.0
"""How long it may take to end its workers and release the run directory."""
POLL_S: Final = 0.001


class Predecessor:
    """Use: :meth:`find`, then :meth:`end` once. Belongs to the main thread."""

    def __init__(self, run_dir: RunDir, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._run_dir = run_dir
        self._pidfd = pidfd
        self._takers_fd = -1
        self.info: dict[str, Any] = read_json(run_dir.files.daemon_json) or {}
        """Its daemon.json, with its HTTP address among others."""

    @classmethod
    def find(cls, run_dir: RunDir) -> Predecessor | None:
        """The daemon that holds the run directory, or None. Raises RunDirError if it cannot be identified, or if
        another daemon takes over as well.
        """
        run_dir.check_length()
        pid = run_dir.holder()
        if pid is None:
            return None
        run_dir.check_ours()
        pidfd = -1
        if pid > 1:
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(pid)
        # Asked again while holding the pidfd: the pid cannot have been reused since.
        if pidfd < 0 or run_dir.holder() != pid or run_dir.holder_start_time() != process_start_time(pid):
            raise RunDirError(
                f"Run dir {run_dir.path} is held by a daemon that is not visible from here (another container?): "
                "stop that daemon, or take over from where it runs."
            )
        found = cls(run_dir, pid, pidfd)
        found._be_the_only_taker()
        return found

    @property
    def segment_path(self) -> Path | None:
        found = read_json(self._run_dir.files.segment_json) or {}
        return Path(found["path"]) if isinstance(found.get("path"), str) else None

    def check(self) -> None:
        """Raise RunDirError if another daemon holds the run directory by now: its control socket must stay."""
        holder = self._run_dir.holder()
        if holder not in {None, self.pid}:
            raise RunDirError(
                f"The daemon with pid {self.pid} has ended, and another one (pid {holder}) has started on run dir "
                f"{self._run_dir.path}: it continues. See `status`."
            )

    async def end(self) -> None:
        """End the predecessor and hold the run directory. On return neither it nor its workers write any more."""
        asked_s = time.monotonic()
        is_stopped = process_state(self.pid) in {"T", "t"}
        if not is_stopped:
            with contextlib.suppress(ProcessLookupError):
                self._signal()
        while not self._run_dir.try_acquire():
            if is_stopped or time.monotonic() - asked_s > ANSWER_S:
                log.warning(
                    "The previous daemon (pid %d) %s; it is killed.",
                    self.pid,
                    "is stopped" if is_stopped else f"has not released the run dir within {ANSWER_S:g} s",
                )
                kill_and_wait(self._pidfd, self.pid)
                self._run_dir.acquire()
                break
            await asyncio.sleep(POLL_S)
        log.info("Took over from pid %d in %.0f ms.", self.pid, (time.monotonic() - asked_s) * 1000)

    def close(self) -> None:
        os.close(self._pidfd)
        if self._takers_fd >= 0:
            os.close(self._takers_fd)

    def _signal(self) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, HAND_OVER_SIGNAL)
        except PermissionError:
            raise RunDirError(
                f"The daemon with pid {self.pid} belongs to another user: take over as that user or as root."
            ) from None

    def _be_the_only_taker(self) -> None:
        path = self._run_dir.path / TAKERS_LOCK_FILE
        try:
            self._takers_fd = open_private(path, os.O_RDWR, make=True)
        except OSError as error:
            self.close()
            raise RunDirError(
                f"{path} cannot be opened ({error.strerror}): check the disk and its permissions."
            ) from None
        try:
            fcntl.flock(self._takers_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunDirError(
                f"Another daemon is taking over run dir {self._run_dir.path} at this moment: look at `status` first."
            ) from None
