"""The socket for stubs at a worker or the controller: frames in, frames out. In ZMTP's terms it is a ROUTER.

One epoll holds the listener and every connection, and the loop watches that one descriptor. Everything that is ready
in an iteration is read at once, and one turn of the worker follows. A payload is copied once: the kernel module copies
it from the receive buffer straight into the journal.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import select
import socket
import struct
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.frames import ZmtpError, unsent
from sidecar.common.sparse_log import SparseLog
from sidecar.common.wording import PLEASE_REPORT
from sidecar.config.client_rules import Caller
from sidecar.net.stubs.listener import Listener
from sidecar.net.stubs.peer import GONE, Peer, caller_of, user_of
from sidecar.net.stubs.pending import PendingConnections
from sidecar.net.stubs.receive_memory import ReceiveMemory
from sidecar.net.stubs.stub_connection import (
    UNATTACHED_BYTES_MAX,
    UNATTACHED_FREE_MESSAGES,
    UNATTACHED_MESSAGES_MAX,
    StubConnection,
)

if TYPE_CHECKING:
    from sidecar.net.stubs.curve_gate import CurveGate

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 16_384
"""Limit of connections. Another one replaces the oldest that has not attached, or is closed at once."""
DESCRIPTORS_KEPT: Final = 256
"""File descriptors of the process kept for brokers, logs and spool, whatever clients do."""
EVENTS_PER_TURN_MAX: Final = 64
MESSAGES_PER_TURN_MAX: Final = 64
BYTES_PER_TURN_MAX: Final = 1 << 20
"""Limits of one connection's input in one turn, so that brokers, timers and other stubs get their share."""
TURN_MS: Final = 4.0
"""After this time other connections wait for the next turn, in which they are first. So answers of brokers and outcomes
are handled in between."""
SHORT_READ_BYTES: Final = 64 << 10
"""A read of fewer bytes has emptied the socket."""
UNATTACHED_BUFFER_BYTES: Final = 16 << 10
UNATTACHED_UNFINISHED_BYTES_MAX: Final = 4 << 20
"""Limit of all buffers that hold half a message of connections that have not attached."""
REST_MAX_S: Final = 0.25
"""Limit of the pause, in seconds, before a connection is read again whose process is over its points."""
MALFORMED_MAX: Final = 16
"""Malformed messages allowed on one connection; the next one closes it."""
_EPOLLOUT: Final = select.EPOLLOUT
_NOBODY: Final[dict[StubConnection, None]] = {}
_ROUTING_ID: Final = struct.Struct(">Q")


class Endpoint:
    """A listening ROUTER on an asyncio loop. Not thread-safe: everything runs on the loop's thread.

    ``on_message(routing_id, frames, skipped_bytes)``: of a message longer than ``message_bytes_max`` only the first
    frames are passed. ``on_turn_end()`` follows if messages were passed, or a peer took bytes that it had not read. A
    connection may use 64 KiB and 5 s until its owner calls ``has_attached``; from then on it may send whole messages.
    Over TCP it has another 5 s before that, to prove its key.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        *,
        on_message: Callable[[bytes, list[memoryview], int], None],
        on_turn_end: Callable[[], None],
        on_closed_by_us: Callable[[], None] = lambda: None,
        message_bytes_max: int,
        attach_s: float | None = None,
    ) -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_turn_end = on_turn_end
        self._on_closed_by_us = on_closed_by_us
        self._message_bytes_max = message_bytes_max
        self._unattached_buffers = Buffers(UNATTACHED_BUFFER_BYTES)
        self._by_id: dict[bytes, StubConnection] = {}
        self._by_fd: dict[int, StubConnection] = {}
        self._unattached_parts: dict[StubConnection, None] = {}
        """Unattached connections with half a message, oldest first."""
        self._unread: dict[StubConnection, None] = {}
        """Connections with more buffered messages than a turn handles."""
        self._late: dict[StubConnection, None] = {}
        """Connections that were not read because a turn's time was over."""
        self._turn_is_due = False
        """Whether messages were passed, or a full socket took bytes again, since the last ``on_turn_end``."""
        self._again: asyncio.Handle | None = None
        self._next_id = 1
        self._closed = False
        self._sparse_log = SparseLog(log, lambda: loop.time() * 1000)
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections_max = min(CONNECTIONS_MAX, max(soft_limit // 2, soft_limit - DESCRIPTORS_KEPT))
        self._pending = PendingConnections(loop, attach_s, self._connections_max, self._end_late)
        self._epoll = select.epoll()
        self._memory = ReceiveMemory(
            loop,
            self._epoll,
            message_bytes_max,
            connections=self._by_id.values,
            drop=self._drop_uncharged,
            on_relieved=on_turn_end,
        )
        self._listener = Listener(
            loop,
            self._epoll,
            path,
            on_connected=self._on_connected,
            on_turned_away=on_closed_by_us,
            free_descriptor=self._free_descriptor,
        )
        loop.add_reader(self._epoll.fileno(), self._on_ready)

    def add_gate(self, gate: CurveGate) -> None:
        """Accept clients over TCP as well."""
        self._listener.add_gate(gate)

    def listen_again(self) -> None:
        self._listener.listen_again()

    def has_attached(self, routing_id: bytes) -> None:
        """Note that the client has attached: it may send whole messages as long as the connection lasts."""
        connection = self._by_id.get(routing_id)
        if connection is not None and not connection.has_attached:
            if connection.is_stranger:
                self._pending.has_proved(connection)
            connection.has_attached = True
            self._pending.remove(connection)
            buffers = self._memory.of_user(connection.peer.uid)
            connection.zmtp.skip_long_messages(buffers, self._message_bytes_max)
            self._unattached_parts.pop(connection, None)

    def has_detached(self, routing_id: bytes) -> None:
        """Note that the client is gone or may not stay. The connection gets the time of a new one, in which its stub
        should leave.
        """
        connection = self._by_id.get(routing_id)
        if connection is not None and connection.has_attached:
            connection.has_attached = False
            connection.came_bytes = connection.came_messages = 0
            self._pending.begin(connection)

    def sent_nonsense(self, routing_id: bytes) -> None:
        """Count a malformed or refused message. Too many of them close the connection."""
        connection = self._by_id.get(routing_id)
        if connection is not None:
            connection.malformed += 1
            self._listener.sent_nonsense(connection.peer)
            if connection.malformed > MALFORMED_MAX:
                self._drop_uncharged(
                    connection, f"it sent more than {MALFORMED_MAX} malformed or refused messages"
                )

    def sent_useless(self, routing_id: bytes) -> None:
        """Count a well-formed message that changed nothing. The connection is charged once per read."""
        connection = self._by_id.get(routing_id)
        if connection is not None:
            connection.useless += 1

    def send(self, routing_id: bytes, frames: list[bytes]) -> bool | None:
        """Send one message. True: taken; False: the peer does not read (try again later); None: the peer is gone."""
        connection = self._by_id.get(routing_id)
        if connection is None:
            return None
        if connection.is_deaf:
            return True  # dropped; bytes that the peer sent before it closed (perhaps a BYE) are still read
        if connection.unsent:
            return False
        buffers = connection.encode(frames)
        try:
            sent = connection.socket.sendmsg(buffers)
        except BlockingIOError:
            sent = 0
        except OSError:
            connection.is_deaf = True
            return True
        if len(buffers) > 1 or sent < len(buffers[0]):  # a short message goes whole
            connection.keep(unsent(buffers, sent), self._epoll)
        return True

    def has(self, routing_id: bytes) -> bool:
        """Whether a connection is open."""
        return routing_id in self._by_id

    def caller(self, routing_id: bytes) -> Caller:
        """The user behind a connection; a user that does not exist if the connection is gone."""
        connection = self._by_id.get(routing_id)
        if connection is None:
            return Caller(GONE.uid)
        if connection.key:
            return Caller(user_of(connection.key), key=connection.key)
        return caller_of(connection.socket, connection.peer)

    def peer(self, routing_id: bytes) -> Peer:
        """The process and user behind a connection; GONE if it is closed."""
        connection = self._by_id.get(routing_id)
        return GONE if connection is None else connection.peer

    def close(self, linger_ms: int = 0) -> None:
        """Stop listening. Waits up to ``linger_ms`` for stubs to take their messages, then drops the rest.

        The path is removed, so that stubs are refused at once and do not wait.
        """
        if self._closed:
            return
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        self._memory.close()
        self._loop.remove_reader(self._epoll.fileno())
        self._listener.close()
        deadline = self._loop.time() + linger_ms / 1000
        for connection in list(self._by_id.values()):
            if connection.unsent and (left := deadline - self._loop.time()) > 0:
                connection.socket.settimeout(left)
                try:
                    connection.socket.sendall(b"".join(connection.unsent))
                except OSError:
                    log.debug("A stub did not read its last messages.")
            connection.is_closed = True
            connection.socket.close()
        self._by_id.clear()
        self._by_fd.clear()
        for table in (self._unattached_parts, self._unread, self._late):
            table.clear()
        self._pending.clear()
        self._epoll.close()

    def _on_ready(self) -> None:
        """Read the connections left over from the last turn first, then the readable ones, then the busy ones.

        Busy connections have more messages than a turn handles. At least one of them is read in each turn, so a quiet
        connection does not wait for them all.
        """
        if self._closed:
            return
        try:
            until_s = monotonic() + TURN_MS / 1000
            # Usually both are empty; then no new tables are made.
            late, self._late = self._late or _NOBODY, self._late and {}
            unread, self._unread = self._unread or _NOBODY, self._unread and {}
            has_received = False
            for connection in late:
                if connection.is_closed:
                    continue
                if has_received and monotonic() >= until_s:
                    self._late[connection] = None
                    continue
                has_received = True
                self._receive(connection)
            for fd, events in self._epoll.poll(0, EVENTS_PER_TURN_MAX):
                found = self._by_fd.get(fd)
                if found is None:
                    if self._listener.is_gate(fd):
                        self._listener.accept(fd)
                    continue
                if events & _EPOLLOUT and found.unsent:
                    found.write(found.unsent, self._epoll)
                    self._turn_is_due = True
                if found.is_resting and events & select.EPOLLHUP:
                    self._end_rest(found)  # otherwise its end would wake the loop until it is read
                elif events & ~_EPOLLOUT and found not in unread and found not in late:
                    if has_received and monotonic() >= until_s:
                        self._late[found] = None
                        continue
                    has_received = True
                    self._receive(found)
                if self._closed:
                    return
            while unread:
                connection = next(iter(unread))
                if not connection.is_closed:
                    self._receive(connection)
                del unread[connection]
                if monotonic() >= until_s:
                    self._unread = unread | self._unread  # first those that were left out
                    break
            if self._closed:
                return
            if self._memory.paused:
                self._memory.resume()
            if (self._unread or self._late) and self._again is None:
                self._again = self._loop.call_soon(self._read_again)
        finally:
            if self._turn_is_due:
                self._turn_is_due = False
                self._on_turn_end()

    def _read_again(self) -> None:
        self._again = None
        self._on_ready()

    def _on_connected(self, connected: socket.socket, peer: Peer, gate: CurveGate | None) -> None:
        given = self._pending.gives_way(peer, len(self._by_id), is_stranger=gate is not None)
        if given is not None:
            self._drop_uncharged(*given)
        elif len(self._by_id) >= self._connections_max:
            connected.close()
            self._log_closed(f"there are {self._connections_max} of them already", peer)
            return
        connected.setblocking(False)
        routing_id = _ROUTING_ID.pack(self._next_id)
        connection = StubConnection(connected, peer, routing_id, self._unattached_buffers, gate)
        self._next_id += 1
        self._by_id[routing_id] = self._by_fd[connected.fileno()] = connection
        self._epoll.register(connected, select.EPOLLIN)
        self._pending.begin(connection)
        connection.write([connection.opening], self._epoll)

    def _free_descriptor(self) -> bool:
        """Close a connection that has not attached, because no file descriptor is left. False if there is none."""
        oldest = self._pending.oldest()
        if oldest is not None:
            self._drop_uncharged(oldest, "it did not attach, and no descriptor is left")
        return oldest is not None

    def _end_late(self, late: list[StubConnection]) -> None:
        """Close connections that did not attach in time."""
        for connection in late:
            why = self._pending.late_words(connection)
            was_stranger = connection.is_stranger
            # Data that has arrived by now counts: this loop may have been slow.
            self._receive(connection)
            if connection in self._pending and connection.is_stranger == was_stranger:
                self._drop_uncharged(connection, why)
        self._turn_is_due = False
        self._on_turn_end()

    def _receive(self, connection: StubConnection) -> None:
        """Read and handle everything that has arrived from one peer, within the limits of a turn."""
        try:
            messages = self._read(connection)
        except ZmtpError as error:
            self._drop_charged(connection, str(error))
            return
        except OSError:
            self._drop(connection)
            return
        if connection.is_closed:
            return
        if not connection.has_attached and not self._may_stay(connection, messages):
            return
        if connection.zmtp.has_part:
            self._note_part(connection, messages)
        elif connection.part_since:
            connection.part_since = 0.0
            self._unattached_parts.pop(connection, None)
        if connection.useless:
            self._charge_useless(connection)

    def _read(self, connection: StubConnection) -> int:
        """Read until the socket is empty or a limit is reached, and pass the messages on. Returns how many there were.

        The connection may be closed afterwards.
        """
        read_bytes = 0
        messages = self._pass_messages(connection, MESSAGES_PER_TURN_MAX) if connection.part_since else 0
        while not connection.is_closed and messages < MESSAGES_PER_TURN_MAX:
            count = self._read_once(connection)
            if not count:
                break
            read_bytes += count
            messages += self._pass_messages(connection, MESSAGES_PER_TURN_MAX - messages)
            if count < SHORT_READ_BYTES or read_bytes >= BYTES_PER_TURN_MAX:
                break
        return messages

    def _read_once(self, connection: StubConnection) -> int:
        """Read what fits into the buffer. Returns the number of bytes: 0 if nothing has come, if no buffer is free, or
        if the connection is closed, now or by its peer.
        """
        zmtp = connection.zmtp
        space = zmtp.space()
        if not space:
            self._memory.pause(connection)
            return 0
        if not connection.has_attached:
            space = space[: UNATTACHED_BYTES_MAX - connection.came_bytes]
            if not space:
                self._drop_charged(connection, f"{UNATTACHED_BYTES_MAX} bytes came and no client attached")
                return 0
        try:
            count = connection.socket.recv_into(space)
        except BlockingIOError:
            zmtp.give_back_unused()
            return 0
        if not count:
            self._drop(connection)
            return 0
        zmtp.received(count)
        if not connection.has_attached:
            connection.came_bytes += count
        return count

    def _pass_messages(self, connection: StubConnection, at_most: int) -> int:
        """Hand the messages that are complete to the owner, and answer pings. Returns how many messages there were."""
        zmtp = connection.zmtp
        messages = 0
        while messages < at_most and (frames := zmtp.next_message()) is not None:
            messages += 1
            self._turn_is_due = True
            if zmtp.skipped_bytes:
                self._listener.read_away(connection.peer, zmtp.skipped_bytes)
            try:
                self._on_message(connection.routing_id, frames, zmtp.skipped_bytes)
            except Exception as error:
                self._log_failed(len(frames), error)
            if connection.is_closed:
                return messages
        if zmtp.replies:
            self._reply(connection)
        return messages

    def _log_failed(self, frames: int, error: Exception) -> None:
        self._sparse_log.warning(
            "message",
            f"A message of %d frames from a client failed. {PLEASE_REPORT}",
            frames,
            exc_info=error,
        )

    def _may_stay(self, connection: StubConnection, messages: int) -> bool:
        """Check the limits of a connection that has not attached. False: it was closed."""
        if connection.is_stranger and connection.key:
            self._pending.has_proved(connection)
        free = max(connection.came_messages, UNATTACHED_FREE_MESSAGES)
        connection.came_messages += messages
        connection.useless += max(0, connection.came_messages - free)
        if connection.came_messages > UNATTACHED_MESSAGES_MAX:
            self._drop_charged(connection, f"{UNATTACHED_MESSAGES_MAX} messages came and no client attached")
            return False
        return True

    def _charge_useless(self, connection: StubConnection) -> None:
        """Charge useless messages. If its process is over its points, the connection is not read for a while, so its
        sender blocks.
        """
        useless, connection.useless = connection.useless, 0
        wait_s = self._listener.sent_useless(connection.peer, useless)
        if wait_s > 0 and not connection.is_paused:
            connection.is_resting = True
            self._unread.pop(connection, None)
            self._late.pop(connection, None)
            self._epoll.modify(connection.socket, connection.wanted_events)
            self._loop.call_later(min(wait_s, REST_MAX_S), self._end_rest, connection)

    def _end_rest(self, connection: StubConnection) -> None:
        if connection.is_closed or not connection.is_resting:
            return
        connection.is_resting = False
        self._epoll.modify(connection.socket, connection.wanted_events)
        self._unread[connection] = None
        if self._again is None:
            self._again = self._loop.call_soon(self._read_again)

    def _note_part(self, connection: StubConnection, messages: int) -> None:
        """Note that half a message, or more than a turn handles, is buffered. ``messages`` complete ones came before
        it.

        Among connections that have not attached, the oldest is closed if buffers run out.
        """
        if messages == MESSAGES_PER_TURN_MAX:
            self._unread[connection] = (
                None  # its messages are buffered already, so its socket may stay silent
            )
        if messages or not connection.part_since:
            connection.part_since = self._loop.time()
        if connection.has_attached:
            return
        self._unattached_parts[connection] = None
        while (
            self._unattached_parts and self._unattached_buffers.held_bytes > UNATTACHED_UNFINISHED_BYTES_MAX
        ):
            self._drop_charged(
                next(iter(self._unattached_parts)), "it sent half a message and did not attach"
            )

    def _reply(self, connection: StubConnection) -> None:
        """Answer ZMTP pings. A peer that sends pings without reading the answers is closed."""
        replies, connection.zmtp.replies = connection.zmtp.replies, []
        if connection.unsent:
            self._drop_charged(connection, "it asks without reading the answers")
        elif not connection.is_deaf:
            connection.write([b"".join(replies)], self._epoll)

    def _drop_charged(self, connection: StubConnection, why: str) -> None:
        """Close a connection because of its peer's behaviour, and charge the peer."""
        self._listener.broke_rules(connection.peer)
        self._drop_uncharged(connection, why)

    def _drop_uncharged(self, connection: StubConnection, why: str) -> None:
        """Close a connection without charging its peer."""
        self._drop(connection)
        self._log_closed(why, connection.peer)

    def _log_closed(self, why: str, peer: Peer) -> None:
        self._on_closed_by_us()
        self._sparse_log.warning(("closed", peer.payer), "A connection of %s is closed: %s.", peer.words, why)

    def _drop(self, connection: StubConnection) -> None:
        if self._by_id.pop(connection.routing_id, None) is None:
            return
        connection.is_closed = True
        self._pending.remove(connection)
        for table in (self._unattached_parts, self._memory.paused, self._unread, self._late):
            table.pop(connection, None)
        connection.zmtp.close()
        fd = connection.socket.fileno()
        del self._by_fd[fd]
        if not connection.is_paused:
            self._epoll.unregister(fd)
        connection.socket.close()
