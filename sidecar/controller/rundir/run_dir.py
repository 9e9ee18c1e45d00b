"""The run directory: its paths, who holds it, and whether it is this user's alone.

The controller has one for its life; each command makes its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
from pathlib import Path
from typing import Final

from client_stub.contract.run_dir import LOCK_FILE, default_run_dir, not_permitted_text
from client_stub.contract.wire import IPC_PATH_BYTES_MAX, LONGEST_SOCKET, TCP_PREFIX
from sidecar.common.processes import process_start_time, process_state
from sidecar.controller.rundir.lock import (
    lock_holder,
    release_lock,
    take_lock,
)
from sidecar.controller.rundir.own_files import NotOurs, check_entries, check_folder
from sidecar.controller.rundir.published import DAEMON_JSON_MODE, PublishedFiles, read_json
from sidecar.shm.private_files import (
    close_file_to_others,
    close_folder_to_others,
    make_folder,
)

log = logging.getLogger(__name__)

TAKERS_LOCK_FILE: Final = "takeover.lock"
BELIEVED: Final = (
    *(LOCK_FILE, TAKERS_LOCK_FILE, "workers.lock"),
    *("daemon.json", "segment.json", "pauses.json", "epoch", "dead-letters"),
)
"""Entries whose contents a daemon acts on: pids to kill, a segment to adopt, a folder to write to."""
PRIVATE: Final = (LOCK_FILE, TAKERS_LOCK_FILE, "workers.lock", "segment.json", "pauses.json", "epoch")
FOLDER_MODE: Final = 0o750


class RunDirError(RuntimeError):
    """The run directory cannot be used. The text is a sentence for the user."""


def usual_run_dir() -> Path:
    """The default run directory, which the stub uses, too. Raises RunDirError when this user has none."""
    try:
        named = default_run_dir()
    except ValueError as error:
        raise RunDirError(str(error)) from None
    if named.startswith(TCP_PREFIX):
        raise RunDirError(
            f"{named} is the address of a daemon for clients: daemons and commands need a run directory, by --run-dir."
        )
    return Path(named)


class RunDir:
    """A run directory, either held or only read. One per process; not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - a symlink is kept: users know its name
        self.files = PublishedFiles(self.path, lambda: self.is_lost)
        self._lock_fd: int | None = None
        self._loose: list[Path] = []
        """Folders above it that other users may write and that were logged."""
        self._is_loss_logged = False
        self._folder_mode = FOLDER_MODE
        self._folder_group: int | None = None
        """Rights of the folder that was held: one that is made again gets the same."""

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def dead_letters(self) -> Path:
        return self.path / "dead-letters"

    @property
    def workers_lock(self) -> Path:
        return self.path / "workers.lock"

    def worker_socket(self, index: int, epoch: int) -> Path:
        return self.path / f"worker-{index}.{epoch}.sock"

    def default_segment_path(self, instance: str) -> Path:
        digest = hashlib.sha1(str(self.path.resolve()).encode(), usedforsecurity=False).hexdigest()
        return Path(f"/dev/shm/kafka-sidecar-{digest[:12]}-{instance[:8]}.segment")

    def is_segment_name(self, path: Path) -> bool:
        """Whether a daemon of this run directory would choose such a path for its segment without pool.path."""
        usual = self.default_segment_path("*")
        return path.parent == usual.parent and path.match(usual.name)

    def check_length(self) -> None:
        """Raises RunDirError when a socket's path under it would be too long for a UNIX address."""
        longest = self.path / LONGEST_SOCKET
        excess = len(os.fsencode(longest)) - IPC_PATH_BYTES_MAX
        if excess > 0:
            raise RunDirError(
                f"Run dir {self.path} is {excess} bytes too long: a UNIX socket path such as {longest} "
                f"may have "
                f"{IPC_PATH_BYTES_MAX} bytes; choose a shorter one with --run-dir."
            )

    def acquire(self) -> None:
        """Create the folder if needed, and hold it until this process ends.

        Raises RunDirError when the path is too long for sockets, the folder cannot be made, or another daemon holds
        it.
        """
        if not self.try_acquire():
            raise RunDirError(self._taken_sentence())

    def try_acquire(self) -> bool:
        """As :meth:`acquire`, but returns False when another daemon holds it."""
        self.check_length()
        try:
            if make_folder(self.path, self._folder_mode) and self._folder_group is not None:
                with contextlib.suppress(OSError):  # this user is not in that group any more
                    os.chown(self.path, -1, self._folder_group)
            self._name_loose(self.check_ours())
            found = self.path.stat()
            lock = take_lock(self.path / LOCK_FILE)
        except OSError as error:
            raise RunDirError(
                f"Run dir {self.path} cannot be used ({error.strerror}): choose another with --run-dir."
            ) from None
        if lock is None:
            return False
        self._lock_fd = lock
        self._folder_mode, self._folder_group = stat.S_IMODE(found.st_mode), found.st_gid
        self._close_to_others()
        return True

    def _name_loose(self, folders: list[Path]) -> None:
        """Log each folder once: a takeover tries the lock a thousand times a second."""
        for loose in folders:
            if loose in self._loose:
                continue
            self._loose.append(loose)
            found = loose.stat()
            everybody = found.st_mode & stat.S_IWOTH
            log.warning(
                "%s may put another folder in the place of run dir %s, because %s has mode %04o: take that right "
                "away (chmod %s-w), or set the sticky bit (chmod +t).",
                "Every user" if everybody else f"Every user of group {found.st_gid}",
                self.path,
                loose,
                stat.S_IMODE(found.st_mode),
                "o" if everybody else "g",
            )

    @property
    def is_held(self) -> bool:
        """Whether this process holds it."""
        return self._lock_fd is not None

    @property
    def is_lost(self) -> bool:
        """Whether the held folder was removed. Another daemon may then hold one at its path, so nothing there may be
        written or removed. Logged once.
        """
        if self._lock_fd is None:
            return False
        own = os.fstat(self._lock_fd)
        try:
            found = os.lstat(self.path / LOCK_FILE)
        except OSError:
            found = None
        if found is not None and (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
            return False
        if not self._is_loss_logged:
            self._is_loss_logged = True
            log.error(
                "Run dir %s was removed under this daemon, as systemd-logind does with /run/user at the last logout. "
                "Connected clients continue, and no other finds this daemon until it is there again: that needs "
                "the folder above it, and neither another daemon nor records of one in its place.",
                self.path,
            )
        return True

    def make_again(self, segment: Path) -> bool:
        """Make and hold the folder that was removed. False if that is not possible now, or if another daemon holds it
        or has left another segment than ``segment`` there.
        """
        lost, self._lock_fd = self._lock_fd, None
        try:
            # Its parents are somebody else's to make: root would make /run/user/UID where a mount belongs.
            is_possible = self.path.parent.is_dir() and not self._is_of_another(segment)
            is_held = is_possible and self.try_acquire()
        except (OSError, RunDirError):
            is_held = False
        if not is_held:
            self._lock_fd = lost
            return False
        if lost is not None:
            os.close(lost)
        self._is_loss_logged = False
        return True

    def _is_of_another(self, own_segment: Path) -> bool:
        """Whether another daemon holds the folder at this path, or has left a segment there: its records would have no
        successor.

        Raises RunDirError or OSError for a folder that this daemon may not use.
        """
        if not os.path.lexists(self.path):
            return False
        self.check_ours()  # first: opening a pipe that another user has put there would block
        # The lock is not tried, as that may take a second. A copy of this daemon's lock file has its own pid.
        if self.holder() not in {None, os.getpid()}:
            return True
        return bool(
            (read_json(self.files.segment_json) or {}).get("path", str(own_segment)) != str(own_segment)
        )

    def _close_to_others(self) -> None:
        """Close files of earlier versions, which followed the umask: the group could read, lock or even write some."""
        closed = [each for name in PRIVATE for each in close_file_to_others(self.path / name)]
        closed += close_file_to_others(self.files.daemon_json, DAEMON_JSON_MODE)
        if not self.dead_letters.is_symlink():
            closed += close_folder_to_others(self.dead_letters)
        if closed:
            log.warning(
                "In run dir %s other users could read or change %s: these are this user's alone now. If you do not "
                "trust every member of the group, look at what was sent meanwhile.",
                self.path,
                ", ".join(closed),
            )

    def check_ours(self) -> list[Path]:
        """Raises RunDirError unless the folder is this user's, and no other user can redirect the way to it. The
        entries that will be trusted in it must have been made by this user, too. Returns the folders above that others
        may write. Raises OSError.
        """
        try:
            loose = check_folder(self.path)
            check_entries(self.path, BELIEVED, may_be_links=(self.dead_letters.name,))
        except NotOurs as error:
            raise RunDirError(str(error)) from None
        return loose

    def holder(self) -> int | None:
        """The pid of the running daemon that holds the run directory; -1 when it is unknown, None when there is none.

        It takes no lock, so no start is disturbed. Raises RunDirError when this user may read neither the lock nor
        daemon.json.
        """
        try:
            held = lock_holder(self.path / LOCK_FILE)
        except PermissionError:
            return self._published_pid()
        return None if held is None else held.pid

    def holder_start_time(self) -> int | None:
        """The start time of the process that ``holder`` returns, as that process wrote it; None if unknown."""
        held = lock_holder(self.path / LOCK_FILE)
        return None if held is None or held.pid < 0 else held.start_time

    def _published_pid(self) -> int | None:
        """The pid in daemon.json, if that process exists: for users that may send records but not read the lock."""
        try:
            info = json.loads(self.files.daemon_json.read_text(encoding="utf-8"))
            pid, start_time = int(info["pid"]), info.get("start_time")
        except PermissionError:
            raise RunDirError(not_permitted_text(str(self.files.daemon_json))) from None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        now = process_start_time(pid, alive=True)
        return pid if now is not None and start_time in {None, now} else None

    def remove_worker_socket(self, index: int, epoch: int) -> None:
        """Remove the socket of a dead worker. If that fails, the socket stays: no client is sent to it, and the next
        start removes it.
        """
        path = self.worker_socket(index, epoch)
        try:
            if not self.is_lost:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("The socket %s of a dead worker cannot be removed: %s.", path, error.strerror)

    def release(self, *, forget_segment: bool, handed_over: bool = False) -> None:
        """Remove the files of this daemon and release the lock. The lock file stays, as deleting it would race.

        ``handed_over``: everything belongs to the successor, whose control.sock is there already.
        """
        if self._lock_fd is None:
            return
        if not handed_over and not self.is_lost:
            sockets = [self.control_socket, *self.path.glob("worker-*.sock")]
            try:
                for path in (*sockets, *self.files.own(with_segment=forget_segment)):
                    path.unlink(missing_ok=True)
            except OSError as error:
                log.error(
                    "Run dir %s cannot be cleared (%s): the next start does it.", self.path, error.strerror
                )
        release_lock(self._lock_fd)
        self._lock_fd = None

    def _taken_sentence(self) -> str:
        pid = self.holder()
        if pid is None:
            return (
                f"Run dir {self.path} cannot be used: a process that is not a daemon holds its lock file {LOCK_FILE} "
                f"(`fuser {self.path / LOCK_FILE}` names it); "
                "end that process, or choose another run dir with --run-dir."
            )
        who = f"a daemon with pid {pid}" if pid > 0 else "another daemon"
        stopped = process_state(pid) in {"T", "t"}
        state = f", which is stopped (`kill -CONT {pid}` lets it continue)" if stopped else ""
        return (
            f"Run dir {self.path} is held by {who}{state}: "
            f"stop that daemon, or give this one its own run dir with --run-dir."
        )
