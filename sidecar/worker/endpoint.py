"""The worker's ROUTER socket: frames in, frames out. Knows zmq; knows nothing of records.

libzmq's file descriptor is edge-triggered and a *send* may eat the edge that announces a message, so EVENTS
is read again after every send made outside the reader, and once after the reader is added (without it the
loop was seen to stall for minutes with messages waiting).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import zmq

log = logging.getLogger(__name__)

MESSAGES_PER_TURN_MAX = 64
"""Bound of one drain, so that brokers and timers get their turn under a flood of submissions."""
RECEIVE_QUEUE_MESSAGES = 2000
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


class Endpoint:
    """A bound ROUTER under an asyncio loop. Not thread-safe: everything runs on the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        *,
        on_message: Callable[[bytes, list[zmq.Frame]], None],
        on_turn_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._path = path
        self._on_message = on_message
        self._on_turn_end = on_turn_end
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # A plain ROUTER drops silently what it cannot route; mandatory makes it an error that we see.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.SNDHWM, 1000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, 64 << 20)
        self._closed = False
        self._scheduled = False
        self._socket.bind(f"ipc://{path}")
        Path(path).chmod(0o660)
        self._fd = int(self._socket.getsockopt(zmq.FD))
        loop.add_reader(self._fd, self._on_readable)
        self._schedule()

    def send(self, routing_id: bytes, frames: list[bytes]) -> bool | None:
        """Send one message. True: taken; False: the peer does not read (try again later); None: the peer is gone."""
        if self._closed:
            return None
        try:
            self._socket.send_multipart([routing_id, *frames], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                return None
            raise
        if not self._scheduled and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._schedule()
        return True

    def peer_process(self, frame: zmq.Frame) -> int:
        """The pid behind the connection that a received frame came by, as the kernel knows it; 0: not in sight.

        A process of another pid namespace has none here.
        """
        try:
            with socket.socket(fileno=os.dup(frame.get(zmq.SRCFD))) as peer:
                found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except (OSError, zmq.ZMQError):
            return 0  # the connection has ended since
        pid, _, _ = _CREDENTIALS.unpack(found)
        return int(pid)

    def close(self, linger_ms: int = 0) -> None:
        """Unbind; what stubs did not take within ``linger_ms`` is dropped, and this waits so long at most.

        The path is removed so that stubs see a closed door, not a mute one.
        """
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._socket.close(linger_ms)
        self._context.term()
        Path(self._path).unlink(missing_ok=True)

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        try:
            self._receive()
        finally:
            self._on_turn_end()

    def _receive(self) -> None:
        socket = self._socket
        for _ in range(MESSAGES_PER_TURN_MAX):
            try:
                # copy=False: a payload is copied once, by the kernel walk, straight into the journal.
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return  # drained: the next edge will come
            routing_id = frames[0].bytes
            try:
                self._on_message(routing_id, frames[1:])
            except Exception:
                log.exception("a message of %d frames from a stub failed; the worker goes on", len(frames))
            if self._closed:
                return
        self._schedule()
