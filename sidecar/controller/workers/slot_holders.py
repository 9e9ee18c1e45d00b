"""The holders of slots, as locks on the bytes of workers.lock, which only the death of a process releases.

A worker locks its slot's byte before it maps the segment. So each locked byte identifies a process that may write
there, even one that daemon.json never named.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sidecar.common.byte_locks import ByteLock
from sidecar.controller.rundir.run_dir import RunDirError, kill_and_wait
from sidecar.shm.layout import SLOT_COUNT


def end_slot_holders(path: Path) -> dict[int, int]:
    """Kill every process that holds a slot's byte, and wait until it is dead. Only the holder of the run directory may
    call it.

    Returns the killed pids by slot. Raises RunDirError when one does not die or cannot be identified.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    killed: dict[int, int] = {}
    try:
        while (held := _holder(fd)) is not None:
            slot, pid = held
            if pid <= 0:
                raise RunDirError(
                    f"A process of another container holds a slot in {path}: stop it, or choose another --run-dir."
                )
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                # Asked again while holding the pidfd: the pid cannot have been reused since.
                if _holder(fd) == held:
                    kill_and_wait(pidfd, pid)
                    killed[slot] = pid
            finally:
                os.close(pidfd)
    finally:
        os.close(fd)
    return killed


def _holder(fd: int) -> tuple[int, int] | None:
    """(slot, pid) of the first locked byte; None when all are free."""
    asked = ByteLock(fcntl.F_WRLCK, 0, SLOT_COUNT).pack()
    found = ByteLock.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if found.kind == fcntl.F_UNLCK else (found.start, found.pid)
