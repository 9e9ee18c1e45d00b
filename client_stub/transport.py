"""Transport: the sockets of one client, and the only file that imports zmq. Used by the io thread alone.

Every attachment gets a new DEALER with a fresh routing id, no reconnecting and no linger: libzmq would deliver
what was left in its pipe to a restarted peer, out of the middle. A monitor tells when a connection ends.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import zmq

MESSAGES_PER_TURN_MAX: Final = 64
RECEIVE_QUEUE_MESSAGES: Final = 1000
SEND_QUEUE_MESSAGES: Final = 1000
BYE_LINGER_MS: Final = 500
_LOST_EVENTS: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)

_MONITOR_EVENT: Final = struct.Struct("=Hi")
"""First frame of a monitor's message: event, value (zmq_socket_monitor(3)). pyzmq's own reader of it would import
asyncio and ssl: 8 MB and a good part of the stub's import time."""

Message: TypeAlias = tuple[str, list[bytes]]
"""("control" | "worker", frames) or ("lost", [reason])."""


class _Link:
    """One connected DEALER and its monitor."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self.socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MESSAGES)
        self.socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE_MESSAGES)
        self.monitor = self.socket.get_monitor_socket(_LOST_EVENTS)
        self.socket.connect(endpoint)

    def close(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


class Transport:
    """Control and worker sockets behind one poll; ``wake_fd`` may be written by any thread."""

    def __init__(self, control_path: str) -> None:
        self._control_path = control_path
        self._context = zmq.Context(io_threads=1)
        self._control: _Link | None = None
        self._worker: _Link | None = None
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self.wake_fd, zmq.POLLIN)
        self._writable_wanted = False
        self._stillborn: list[Message] = []
        """Connections that were lost before they could take a frame: told by the next poll."""

    def open_control(self, frames: Sequence[Any]) -> None:
        self._control = self._drop(self._control)
        self._control = self._open(f"ipc://{self._control_path}")
        self._greet("control", self._control, frames)

    def open_worker(self, endpoint: str, frames: Sequence[Any]) -> None:
        self._control = self._drop(self._control)
        self._worker = self._drop(self._worker)
        self._worker = self._open(endpoint if "://" in endpoint else f"ipc://{endpoint}")
        self._greet("worker", self._worker, frames)

    def send(self, frames: Sequence[Any]) -> bool:
        """Give one message to the worker's socket; False when its queue is full (poll tells when it is not)."""
        if self._worker is None:
            return True  # the connection is gone and so is this message; WELCOME will say what is missing
        try:
            self._worker.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._want_writable(True)
            return False
        return True

    def wake(self) -> None:
        """End a running or the next ``poll`` at once. Any thread, no lock."""
        with contextlib.suppress(OSError):  # closed meanwhile: then there is nobody to wake
            os.eventfd_write(self.wake_fd, 1)

    def poll(self, timeout_ms: float | None) -> list[Message]:
        """Wait for messages, broken connections, room to write, or ``wake_fd``; at most one bounded turn."""
        wait_ms = None if timeout_ms is None else max(0, int(timeout_ms + 0.999))
        ready = dict(self._poller.poll(wait_ms))
        messages, self._stillborn = self._stillborn, []
        if self.wake_fd in ready:
            os.eventfd_read(self.wake_fd)
        for name, link in (("control", self._control), ("worker", self._worker)):
            if link is None:
                continue
            events = ready.get(link.socket, 0)
            if events & zmq.POLLOUT:
                self._want_writable(False)
            if events & zmq.POLLIN:
                self._receive(name, link.socket, messages)
            if link.monitor in ready:
                # Messages that arrived before the end were read above; what comes behind them is the end.
                event, _value = _MONITOR_EVENT.unpack(link.monitor.recv_multipart()[0])
                messages.append(("lost", [f"{name} connection: {_reason(event)}".encode()]))
        return messages

    def close_sockets(self) -> None:
        self._stillborn.clear()
        self._control = self._drop(self._control)
        self._worker = self._drop(self._worker)

    def close(self, farewell: Sequence[Any] | None) -> None:
        """Say ``farewell`` if there is somebody, close all, end the context."""
        linger_ms = 0
        if farewell is not None and self._worker is not None and self.send(farewell):
            linger_ms = BYE_LINGER_MS
        self._control = self._drop(self._control)
        self._worker = self._drop(self._worker, linger_ms)
        self._poller.unregister(self.wake_fd)
        os.close(self.wake_fd)
        self._context.term()

    def _open(self, endpoint: str) -> _Link:
        link = _Link(self._context, endpoint)
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)
        return link

    def _greet(self, name: str, link: _Link, frames: Sequence[Any]) -> None:
        """The first message of a connection. libzmq may have seen by now that nobody listens, and takes it no more."""
        try:
            link.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._stillborn.append(("lost", [f"{name} connection: nobody listens there".encode()]))
            self.wake()

    def _drop(self, link: _Link | None, linger_ms: int = 0) -> _Link | None:
        """Close ``link``; returns None, what its owner is to hold from now on."""
        if link is not None:
            self._poller.unregister(link.socket)
            self._poller.unregister(link.monitor)
            link.close(linger_ms)
            self._writable_wanted = False
        return None

    def _receive(self, name: str, socket: zmq.Socket[bytes], messages: list[Message]) -> None:
        for _ in range(MESSAGES_PER_TURN_MAX):
            try:
                messages.append((name, socket.recv_multipart(zmq.NOBLOCK)))
            except zmq.Again:
                return

    def _want_writable(self, wanted: bool) -> None:
        if self._worker is not None and wanted != self._writable_wanted:
            self._writable_wanted = wanted
            self._poller.modify(self._worker.socket, zmq.POLLIN | (zmq.POLLOUT if wanted else 0))


def _reason(event: int) -> str:
    if event == zmq.EVENT_DISCONNECTED:
        return "the daemon closed it"
    return "nobody listens there"
