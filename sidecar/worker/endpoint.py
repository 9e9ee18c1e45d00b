"""The worker's socket for stubs: frames in, frames out. A ROUTER in ZMTP's words; knows nothing of records.

One epoll holds the listener and every connection, and the loop watches that one descriptor: whatever is ready in an
iteration is read in one go, and one turn of the worker follows. A payload is copied once, by the kernel walk, from
the receive buffer straight into the journal.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from client_stub.zmtp import Buffer, Buffers, ZmtpConnection, ZmtpError, encode, opening, unsent

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 16_384
"""One more is closed at once; its stub comes back after its backoff."""
EVENTS_PER_TURN_MAX: Final = 64
MESSAGES_PER_TURN_MAX: Final = 64
BYTES_PER_TURN_MAX: Final = 1 << 20
"""Bounds of what one connection brings in one turn, so that brokers, timers and other stubs get theirs."""
RECEIVE_BUFFER_BYTES: Final = 1280 << 10
"""Holds a whole submission of the usual size: a bulk client's bytes are not moved while they gather."""
SHORT_READ_BYTES: Final = 64 << 10
"""A read that brought less has emptied the socket."""
HANDSHAKE_S: Final = 30.0
"""How long a connection may take to say what it is (libzmq's ZMQ_HANDSHAKE_IVL)."""
BACKLOG: Final = 4096
_OPENING: Final = opening(b"ROUTER")
_PEER_TYPES: Final = frozenset({b"DEALER", b"REQ", b"ROUTER"})
_ROUTING_ID: Final = struct.Struct(">Q")
_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


class _Connection:
    __slots__ = ("is_deaf", "routing_id", "socket", "unsent", "zmtp")

    def __init__(self, connected: socket.socket, routing_id: bytes, buffers: Buffers) -> None:
        self.socket = connected
        self.routing_id = routing_id
        self.zmtp = ZmtpConnection(_PEER_TYPES, buffers)
        self.is_deaf = False
        """The other end is closed: nothing can be written, but what it sent before is still read."""
        self.unsent: list[Buffer] = []
        """The rest of one message at most: a peer that does not read is written to no more."""


class Endpoint:
    """A listening ROUTER under an asyncio loop. Not thread-safe: everything runs on the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        *,
        on_message: Callable[[bytes, list[memoryview]], None],
        on_turn_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._path = path
        self._on_message = on_message
        self._on_turn_end = on_turn_end
        self._buffers = Buffers(RECEIVE_BUFFER_BYTES)
        self._by_id: dict[bytes, _Connection] = {}
        self._by_fd: dict[int, _Connection] = {}
        self._handshakes: dict[_Connection, float] = {}
        """Connections that are not ready yet, oldest first, with the loop's time until which they may take."""
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._next_id = 1
        self._closed = False
        Path(path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(path)
        Path(path).chmod(0o660)
        self._listener.listen(BACKLOG)
        # Given up for a moment when descriptors run out, to take a connection and close it: it would ring for ever.
        self._reserve_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        loop.add_reader(self._epoll.fileno(), self._on_ready)

    def send(self, routing_id: bytes, frames: list[bytes]) -> bool | None:
        """Send one message. True: taken; False: the peer does not read (try again later); None: the peer is gone."""
        connection = self._by_id.get(routing_id)
        if connection is None:
            return None
        if connection.is_deaf:
            return True  # lost, as in the buffer of a peer that died; what it sent before (a BYE, perhaps) comes first
        if connection.unsent:
            return False
        self._write(connection, encode(frames))
        return True

    def peer_process(self, routing_id: bytes) -> int:
        """The pid behind a connection, as the kernel knows it; 0: gone, or of another pid namespace."""
        connection = self._by_id.get(routing_id)
        if connection is None:
            return 0
        found = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(found)
        return int(pid)

    def close(self, linger_ms: int = 0) -> None:
        """Stop listening; what stubs did not take within ``linger_ms`` is dropped, and this waits so long at most.

        The path is removed so that stubs see a closed door, not a mute one.
        """
        if self._closed:
            return
        self._closed = True
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self._loop.remove_reader(self._epoll.fileno())
        Path(self._path).unlink(missing_ok=True)
        self._listener.close()
        deadline = self._loop.time() + linger_ms / 1000
        for connection in list(self._by_id.values()):
            if connection.unsent and (left := deadline - self._loop.time()) > 0:
                connection.socket.settimeout(left)
                try:
                    connection.socket.sendall(b"".join(connection.unsent))
                except OSError:
                    log.debug("a stub did not take its last words")
            connection.socket.close()
        self._by_id.clear()
        self._by_fd.clear()
        self._handshakes.clear()
        self._epoll.close()
        os.close(self._reserve_fd)

    def _on_ready(self) -> None:
        if self._closed:
            return
        try:
            for fd, events in self._epoll.poll(0, EVENTS_PER_TURN_MAX):
                connection = self._by_fd.get(fd)
                if connection is None:
                    if fd == self._listener.fileno():
                        self._accept()
                    continue
                if events & select.EPOLLOUT and connection.unsent:
                    self._write(connection, connection.unsent)
                if events & ~select.EPOLLOUT:
                    self._receive(connection)
                if self._closed:
                    return
        finally:
            self._on_turn_end()

    def _accept(self) -> None:
        for _ in range(EVENTS_PER_TURN_MAX):
            try:
                connected, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away()
                else:
                    log.warning("a stub could not be let in: %s", error)
                return
            if len(self._by_id) >= CONNECTIONS_MAX:
                connected.close()
                continue
            connected.setblocking(False)
            connection = _Connection(connected, _ROUTING_ID.pack(self._next_id), self._buffers)
            self._next_id += 1
            self._by_id[connection.routing_id] = self._by_fd[connected.fileno()] = connection
            self._epoll.register(connected, select.EPOLLIN)
            if self._handshake_timer is None:
                self._handshake_timer = self._loop.call_later(HANDSHAKE_S, self._end_handshakes)
            self._handshakes[connection] = self._loop.time() + HANDSHAKE_S
            self._write(connection, [_OPENING])

    def _turn_away(self) -> None:
        log.warning("no descriptor is left for another stub; raise LimitNOFILE")
        os.close(self._reserve_fd)
        try:
            self._listener.accept()[0].close()
        except OSError:
            log.debug("it went away by itself")
        self._reserve_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _end_handshakes(self) -> None:
        """Close who has not said by now what it is; look again when the next one is due."""
        self._handshake_timer = None
        now = self._loop.time()
        for connection, due in list(self._handshakes.items()):
            if due > now:
                self._handshake_timer = self._loop.call_later(due - now, self._end_handshakes)
                return
            self._drop(connection)

    def _receive(self, connection: _Connection) -> None:
        """Everything that is there from one peer, within the bounds of a turn."""
        zmtp = connection.zmtp
        messages = read = 0
        try:
            while messages < MESSAGES_PER_TURN_MAX and read < BYTES_PER_TURN_MAX:
                count = connection.socket.recv_into(zmtp.space())
                if not count:
                    self._drop(connection)
                    return
                zmtp.received(count)
                read += count
                while (frames := zmtp.next_message()) is not None:
                    messages += 1
                    self._handle(connection.routing_id, frames)
                if zmtp.replies and not self._reply(connection):
                    return
                if count < SHORT_READ_BYTES:
                    break
        except BlockingIOError:
            pass
        except ZmtpError as error:
            log.warning("a connection is closed: %s", error)
            self._drop(connection)
            return
        except OSError:
            self._drop(connection)
            return
        if zmtp.is_ready and self._handshakes:
            self._handshakes.pop(connection, None)

    def _handle(self, routing_id: bytes, frames: list[memoryview]) -> None:
        try:
            self._on_message(routing_id, frames)
        except Exception:
            log.exception("a message of %d frames from a stub failed; the worker goes on", len(frames))

    def _reply(self, connection: _Connection) -> bool:
        """Answer its pings; False when it asks without reading the answers, and is closed for it."""
        replies, connection.zmtp.replies = connection.zmtp.replies, []
        if connection.unsent:
            self._drop(connection)
            return False
        if not connection.is_deaf:
            self._write(connection, [b"".join(replies)])
        return True

    def _write(self, connection: _Connection, buffers: list[Buffer]) -> None:
        """Write what the socket takes and keep the rest."""
        was_waiting = bool(connection.unsent)
        try:
            sent = connection.socket.sendmsg(buffers)
        except BlockingIOError:
            sent = 0
        except OSError:
            connection.is_deaf = True
            connection.unsent = []
            return
        connection.unsent = unsent(buffers, sent)
        if was_waiting != bool(connection.unsent):
            wanted = select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0)
            self._epoll.modify(connection.socket, wanted)

    def _drop(self, connection: _Connection) -> None:
        if self._by_id.pop(connection.routing_id, None) is None:
            return
        self._handshakes.pop(connection, None)
        fd = connection.socket.fileno()
        del self._by_fd[fd]
        self._epoll.unregister(fd)
        connection.socket.close()
