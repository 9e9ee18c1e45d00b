"""StubConnection: what an endpoint knows of one connection."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from client_stub.frames import Buffer
from client_stub.hot import encode
from client_stub.zmtp import Buffers, ZmtpConnection, opening
from sidecar.net.peer import Peer

if TYPE_CHECKING:
    from client_stub.curve import CurveServer
    from sidecar.net.curve_door import CurveDoor

UNATTACHED_BYTES_MAX: Final = 64 << 10
"""All that may come on a connection before its client has attached."""
UNATTACHED_MESSAGES_MAX: Final = 128
"""The same in messages: at the control socket a HELLO that is asked again for a minute, as slowly as stubs ask."""
UNATTACHED_FREE_MESSAGES: Final = 8
"""Of those the first ones; each further one costs points, as a submission that opens nothing does."""
_OPENING: Final = opening(b"ROUTER")
_PEER_TYPES: Final = frozenset({b"DEALER", b"REQ", b"ROUTER"})


class StubConnection:
    """State of one connection; its endpoint reads, writes and closes it."""

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
        """The first bytes of our end."""
        return _OPENING if self._curve is None else self._curve.opening

    @property
    def key(self) -> bytes:
        """The public key that its client has proved; empty of a Unix socket, and before that."""
        return b"" if self._curve is None else self._curve.peer_key

    @property
    def wanted_events(self) -> int:
        """The events that its socket is watched for."""
        return (0 if self.is_resting else select.EPOLLIN) | (select.EPOLLOUT if self.unsent else 0)

    def __init__(
        self,
        connected: socket.socket,
        peer: Peer,
        routing_id: bytes,
        buffers: Buffers,
        door: CurveDoor | None = None,
    ) -> None:
        """``door``: the one through which it came over TCP."""
        self.socket = connected
        self.peer = peer
        self.routing_id = routing_id
        self.zmtp: ZmtpConnection
        self.encode: Callable[[Sequence[Buffer]], list[Buffer]] = encode
        self._curve: CurveServer | None = None
        if door is None:
            self.zmtp = ZmtpConnection(_PEER_TYPES, buffers, message_bytes_max=UNATTACHED_BYTES_MAX)
        else:
            curve = self._curve = door.connection(peer, _PEER_TYPES, buffers, UNATTACHED_BYTES_MAX)
            self.zmtp, self.encode = curve, curve.encode
        self.is_stranger = door is not None
        """Over TCP, until it has proved its key."""
        self.has_attached = False
        self.came_bytes = self.came_messages = 0
        """Before it has attached."""
        self.malformed = 0
        self.useless = 0
        """Messages that changed nothing, since their process was last charged for them."""
        self.part_since = 0.0
        """The loop's time at which the message began that has not come whole; 0: there is none."""
        self.is_closed = False
        self.is_paused = False
        """Its message needs a larger buffer than there is: it is not read until there is one."""
        self.is_resting = False
        """Its process has sent too much that changes nothing: it is not read for a moment."""
        self.is_deaf = False
        """The other end is closed: nothing can be written, but what it sent before is still read."""
        self.unsent: list[Buffer] = []
        """The rest of one message at most: a peer that does not read is written to no more."""
