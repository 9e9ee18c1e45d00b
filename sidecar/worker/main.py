"""A worker's process: import everything, take START from the controller, attach the segment, build, adopt, open, run,
and exit with a status.

The controller execs each worker; it never forks one from a process with threads. So a worker inherits only the control
socket. The segment and the eventfds arrive over it with START. Until then the worker is a standby: it holds nothing,
and does not know its slot yet.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from sidecar.protocol.kio_guard import hide_hypothesis

hide_hypothesis()

from sidecar.common.control import ControlMessage, Start, Warm  # noqa: E402 (kio must be imported after the guard)
from sidecar.common.control_codec import LENGTH, START_FD_BYTE, decode_message, encode_message  # noqa: E402
from sidecar.common.log_lines import log_to_stderr  # noqa: E402
from sidecar.common.model import ExitStatus  # noqa: E402
from sidecar.common.own_process import KILL_POINTS, hide_memory, raise_limit, set_title  # noqa: E402
from sidecar.shm.layout import SLOT_COUNT  # noqa: E402
from sidecar.worker.slot_lock import take_slot_byte  # noqa: E402

if TYPE_CHECKING:
    from sidecar.worker.worker import Worker

log = logging.getLogger("sidecar.worker")


def main(argv: list[str] | None = None) -> int:
    """Run one worker until it gets STOP or its controller is gone. Returns an ExitStatus."""
    parser = argparse.ArgumentParser(prog="python -m sidecar.worker")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--stderr-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    arguments = parser.parse_args(argv)
    faulthandler.enable()
    # The controller drains a worker by message. A Ctrl-C or systemd's SIGTERM to the group must not end it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_limit()
    control = socket.socket(fileno=arguments.control_fd)
    if os.getppid() != arguments.parent_pid:
        return ExitStatus.WORKER_CONTROLLER_GONE
    set_title("standby")
    if KILL_POINTS in os.environ:
        _arm()
    # All slow work is done before START, which may come hours later, after another worker's death.
    import uvloop  # noqa: F401

    import sidecar.worker.worker  # noqa: F401

    _take_stderr(arguments.stderr_fd)
    with contextlib.suppress(OSError):  # the controller is gone, so START will not come
        control.sendall(encode_message(Warm(os.getpid())))
    start = _read_start(control)
    if start is None:
        return ExitStatus.WORKER_CONTROLLER_GONE
    if start.config.get("holds_secrets"):
        hide_memory()
    set_title(f"worker {start.worker_index}")
    log_to_stderr(
        str(start.config["log.level"]), str(start.config["log.format"]), f"worker {start.worker_index}"
    )
    try:
        lock_fd = take_slot_byte(start)
    except OSError as error:
        log.error("This worker ends before it serves clients: its lock cannot be taken (%s).", error)
        return ExitStatus.FAILED
    if lock_fd is None:
        log.error("Slot %d is still locked by another process; this worker ends.", start.slot)
        return ExitStatus.FAILED
    if os.getppid() != arguments.parent_pid:
        # If the controller is alive at this point, any successor of it starts after the byte was taken, and sees it.
        return ExitStatus.WORKER_CONTROLLER_GONE
    if KILL_POINTS in os.environ:
        _take_order(os.environ[KILL_POINTS])
    try:
        return _run(start, control)
    finally:
        os.close(lock_fd)


def _arm() -> None:
    from sidecar.tools.testing.kill_points.marks import arm

    arm()


def _take_order(folder: str) -> None:
    from sidecar.tools.testing.kill_points.orders import take_order

    if take_order(folder):
        log.warning("%s is set: this worker may be killed on purpose. That is for tests only.", KILL_POINTS)


def _take_stderr(fd: int) -> None:
    """Write to the real stderr from now on. Until now the controller collected stderr, to quote it if the start
    failed.
    """
    said = os.pread(2, os.fstat(2).st_size, 0)
    os.dup2(fd, 2)
    os.close(fd)
    sys.stderr.write(said.decode(errors="replace"))


def _run(start: Start, control: socket.socket) -> int:
    import uvloop

    from sidecar.shm.segment import Segment, SegmentError
    from sidecar.worker.worker import CannotStart, Worker

    try:
        segment = Segment.attach(start.segment_fd)
    except SegmentError as error:
        log.error("%s", error)
        return ExitStatus.WORKER_SEGMENT_VERSION

    if start.config["pool.prefault"]:
        segment.prefault()

    async def live() -> int:
        loop = asyncio.get_running_loop()
        worker: Worker
        try:
            worker = Worker.claim(loop, start, segment, control)
            worker.adopt()
            worker.open()
        except ValueError as error:
            log.error("%s", error)
            return ExitStatus.WORKER_BAD_CONFIG
        except (CannotStart, OSError) as error:
            log.error("This worker ends before it serves clients: %s.", error)
            return ExitStatus.FAILED
        # Objects that exist now live as long as the process, so the collector need not walk them.
        gc.collect()
        gc.freeze()
        return await worker.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(live())
    segment.close()
    return status


def _read_start(control: socket.socket) -> Start | None:
    """Read START, the first message, and its file descriptors. None if the controller went away before."""
    control.setblocking(True)
    try:
        first, descriptors, _, _ = socket.recv_fds(control, len(START_FD_BYTE), 1 + SLOT_COUNT)
    except ConnectionResetError:
        return None  # killed with unread data of this worker
    if first != START_FD_BYTE:
        return None
    header = _read_exactly(control, LENGTH.size)
    if header is None:
        return None
    body = _read_exactly(control, LENGTH.unpack(header)[0])
    message: ControlMessage | None = decode_message(body) if body is not None else None
    if not isinstance(message, Start) or len(descriptors) != 1 + len(message.wake_fds):
        return None
    return dataclasses.replace(message, segment_fd=descriptors[0], wake_fds=tuple(descriptors[1:]))


def _read_exactly(control: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            part = control.recv(count - len(data))
        except ConnectionResetError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)
