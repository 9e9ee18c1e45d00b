"""The lock of a run directory: one daemon holds it for its life, and others can read its state without taking it.

RunDir calls it: the controller at its start, and commands that ask who holds the lock.

There are two locks on one file. Daemons of every version take flock(), so an older and a newer one exclude each other.
The lock of the open file description (fcntl's F_OFD_SETLK) can be queried by F_OFD_GETLK without taking it. A reader
that took a shared flock would look like a holder to a daemon that starts at that moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.common.byte_locks import ByteLock
from sidecar.common.processes import process_start_time
from sidecar.shm.private_files import open_private

LOCK_RETRY_S: Final = 1.0
"""How long to retry while no daemon is named. An older version that only reads holds the lock for a moment. A daemon
that starts at the same moment takes the lock before it writes its name over that of a dead one.
"""
_POLL_S: Final = 0.01
_TEXT_BYTES: Final = 48


class Holder(NamedTuple):
    """The holder, as it wrote itself. The start time distinguishes a reused pid, or one of another container."""

    pid: int
    """-1 if unknown."""
    start_time: int


def take_lock(path: Path) -> int | None:
    """Take the lock. Returns the descriptor that holds it until it is closed; None when a daemon has it. Raises
    OSError.
    """
    # A file of an older version was readable, and any process that can open it can lock it: this closes it to others.
    fd = open_private(path, os.O_RDWR, make=True)
    try:
        until_s = time.monotonic() + LOCK_RETRY_S
        while not _try_both(fd):
            if _lives(lock_holder(path)) or time.monotonic() > until_s:
                os.close(fd)
                return None
            time.sleep(_POLL_S)  # flock has no timeout
        text = f"{os.getpid()} {process_start_time(os.getpid())}"
        os.pwrite(fd, text.encode().ljust(_TEXT_BYTES) + b"\n", 0)
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(fd)
        raise
    return fd


def release_lock(fd: int) -> None:
    """Release the lock and clear the name in the file. The file stays, as deleting it would race."""
    # On a file system that has become read-only, close() still releases the lock.
    with contextlib.suppress(OSError):
        os.pwrite(fd, b" " * _TEXT_BYTES, 0)
    os.close(fd)


def lock_holder(path: Path) -> Holder | None:
    """The holder; None if there is none. Raises PermissionError when this user may not read it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError:
        return None
    try:
        holder = _holder(os.pread(fd, 2 * _TEXT_BYTES, 0))
        if _is_held(fd):
            return holder or Holder(-1, -1)
    except OSError:
        return None
    finally:
        os.close(fd)
    # An older version holds only the flock, and writes its pid.
    return holder if _lives(holder) else None


def _lives(holder: Holder | None) -> bool:
    return holder is not None and process_start_time(holder.pid, alive=True) == holder.start_time


def _holder(text: bytes) -> Holder | None:
    with contextlib.suppress(ValueError, IndexError):
        pid, start_time = text.split()[:2]
        return Holder(int(pid), int(start_time))
    return None


def _try_both(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, ByteLock(fcntl.F_WRLCK).pack())
    except (BlockingIOError, PermissionError):
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False
    return True


def _is_held(fd: int) -> bool:
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, ByteLock(fcntl.F_RDLCK).pack())
    return ByteLock.unpack(found).kind != fcntl.F_UNLCK
