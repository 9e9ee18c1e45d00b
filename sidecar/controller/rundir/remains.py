"""Remains of a dead daemon in a run directory: worker processes that may still write to its segment, and sockets.

A worker locks its slot's byte of workers.lock before it maps the segment, and only its death releases it. So each
locked byte identifies a process that may write there, even one that daemon.json never named.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.common.byte_locks import ByteLock
from sidecar.common.processes import process_start_time, process_state
from sidecar.common.wording import counted
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir, RunDirError
from sidecar.shm.layout import SLOT_COUNT

_KILL_WAIT_MS: Final = 10_000


def clear_remains(run_dir: RunDir, *, keep_control: bool = False) -> list[str]:
    """Kill the processes that a dead daemon left, and remove its sockets. Only the holder may call it. Returns
    phrases about what was done.

    ``keep_control``: control.sock belongs to this daemon already. Raises RunDirError.
    """
    assert run_dir.is_held, "only the holder may clear a run dir"
    done: list[str] = []
    before = read_json(run_dir.files.daemon_json) or {}
    for worker in before.get("workers", []):
        if isinstance(worker, dict) and _kill_worker(worker):
            done.append(f"killed worker {worker.get('index')} (pid {worker.get('pid')}) of a dead daemon")
    sockets = [*run_dir.path.glob("worker-*.sock")]
    if not keep_control:
        sockets.append(run_dir.control_socket)
    stale = [path for path in sockets if path.is_socket()]
    try:
        for path in (*stale, run_dir.files.daemon_json):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise RunDirError(
            f"Run dir {run_dir.path} cannot be cleared of what a dead daemon left ({error.strerror}): "
            "check its permissions, "
            "or choose another with --run-dir."
        ) from None
    if stale:
        done.append(f"removed {counted(len(stale), 'stale socket')} of a dead daemon")
    return done


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


def _kill_worker(worker: Mapping[str, Any]) -> bool:
    """Kill a worker by its pidfd and wait for its death. Returns False when that process is gone already."""
    pid, start_time = worker.get("pid"), worker.get("start_time")
    if not isinstance(pid, int) or pid <= 1:
        return False
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # Open the pidfd first and compare then, so that the pid cannot be reused in between.
        if start_time is None or process_start_time(pid) != start_time:
            return False
        kill_and_wait(pidfd, pid)
        return True
    finally:
        os.close(pidfd)


def kill_and_wait(pidfd: int, pid: int) -> None:
    """Kill a process, also a stopped one, and wait for its death. Raises RunDirError when it does not die."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if not poller.poll(_KILL_WAIT_MS):
        raise RunDirError(
            f"Worker process {pid} of the earlier daemon does not die (state {process_state(pid)}): "
            "it may still write to the segment, so nothing is started."
        )
