"""StubConnection: an endpoint's state of one connection.

The endpoint makes, reads and closes it, on the loop of a worker or the controller.
"""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING, Final

from client_stub.native.hot import encode, whole_message
from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.frames import Buffer, unsent
from client_stub.zmtp.mechanism import Mechanism, Null
from sidecar.net.stubs.peer import Peer

if TYPE_CHECKING:
    from client_stub.zmtp.curve import CurveServer
    from sidecar.net.stubs.curve_gate import CurveGate

UNATTACHED_BYTES_MAX: Final = 64 << 10
"""Limit of bytes on a connection before its client has attached."""
UNATTACHED_MESSAGES_MAX: Final = 128
"""Limit of messages before that: enough for a HELLO repeated for a minute, at the stub's slowest rate."""
UNATTACHED_FREE_MESSAGES: Final = 8
"""Messages of these that are free. Each further one costs points, like a submission that opens nothing."""
_NULL: Final = Null(b"ROUTER", whole_message=whole_message, encode=encode)
_PEER_TYPES: Final = frozenset({b"DEALER", b"ROUTER"})
"""Not REQ, which a ROUTER could serve: its empty first frame is no message of ours, and it would wait for ever."""


class StubConnection:
    """State of one connection. Its endpoint reads and closes it, and writes the bytes that its socket takes at once."""

    __slots__ = (
        "_curve",
        "came_bytes",
        "came_messages",
        "encode",
        "has_attached",
        "is_closed",
        "is_deaf",
        "is_paused",
        "is_resting",
        "is_stranger",
        "malformed",
        "part_since",
        "peer",
        "routing_id",
        "socket",
        "unsent",
        "useless",
        "zmtp",
    )

    @property
    def opening(self) -> bytes:
        """The first bytes that this end sends."""
        return (self._curve or _NULL).opening

    @property
    def key(self) -> bytes:
        """The public key that its client has proved; b"" before that, and for a Unix socket."""
        return b"" if self._curve is None else self._curve.peer_key

    @property
    def wanted_events(self) -> int:
        """Events for which its socket is watched."""
        return (0 if self.is_resting else select.EPOLLIN) | (select.EPOLLOUT if self.unsent else 0)

    def __init__(
        self,
        connected: socket.socket,
        peer: Peer,
        routing_id: bytes,
        buffers: Buffers,
        gate: CurveGate | None = None,
    ) -> None:
        """``gate``: the TCP gate through which it came; None for the Unix socket."""
        self.socket = connected
        self.peer = peer
        self.routing_id = routing_id
        self._curve: CurveServer | None = None if gate is None else gate.mechanism(peer)
        mechanism: Mechanism = self._curve or _NULL
        self.zmtp = ZmtpConnection(mechanism, _PEER_TYPES, buffers, message_bytes_max=UNATTACHED_BYTES_MAX)
        self.encode = mechanism.encode
        self.is_stranger = gate is not None
        """True over TCP until it has proved its key."""
        self.has_attached = False
        self.came_bytes = self.came_messages = 0
        """Bytes and messages that came before it has attached."""
        self.malformed = 0
        self.useless = 0
        """Messages that changed nothing, since its process was last charged for them."""
        self.part_since = 0.0
        """The loop's time at which an incomplete message began; 0 if there is none."""
        self.is_closed = False
        self.is_paused = False
        """It is not read, because its message needs a larger buffer than is free."""
        self.is_resting = False
        """It is not read for a moment, because its process has sent too many messages that change nothing."""
        self.is_deaf = False
        """The other end is closed: nothing can be written, but data sent before is still read."""
        self.unsent: list[Buffer] = []
        """The unsent rest of at most one message: nothing more is written to a peer that does not read."""

    def write(self, buffers: list[Buffer], epoll: select.epoll) -> None:
        """Write what the socket takes and keep the rest."""
        try:
            sent = self.socket.sendmsg(buffers)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.is_deaf = True
            self.unsent = []
            return
        self.keep(unsent(buffers, sent), epoll)

    def keep(self, rest: list[Buffer], epoll: select.epoll) -> None:
        """Keep what the socket did not take, and watch the socket while there is something."""
        was_waiting = bool(self.unsent)
        self.unsent = rest
        if was_waiting != bool(rest) and not self.is_paused:
            epoll.modify(self.socket, self.wanted_events)
