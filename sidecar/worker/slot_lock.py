"""The lock that proves that a slot's owner lives: one byte of workers.lock in the run directory."""

from __future__ import annotations

import fcntl
import os

from sidecar.common.byte_locks import ByteLock
from sidecar.common.control import Start
from sidecar.shm.private_files import open_private


def take_slot_byte(start: Start) -> int | None:
    """Lock the slot's byte for the life of the process, or return None. Only the kernel drops the lock.

    A POSIX lock, because it belongs to the process and ends with it, in whatever state that was. Raises OSError if the
    file cannot be opened.
    """
    fd = open_private(start.extra["workers_lock"], os.O_RDWR, make=True)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLK, ByteLock(fcntl.F_WRLCK, start.slot, 1).pack())
    except OSError:
        os.close(fd)
        return None
    return fd
