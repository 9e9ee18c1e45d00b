"""Peer: the process at the other end of a Unix socket, as the kernel saw it when it connected (SO_PEERCRED)."""

from __future__ import annotations

import socket
import struct
from typing import Final, NamedTuple

_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""


class Peer(NamedTuple):
    """Credentials of a connection. ``pid`` 0: it is gone, or of another pid namespace."""

    pid: int
    uid: int
    gid: int


GONE: Final = Peer(0, 0xFFFF_FFFF, 0xFFFF_FFFF)
"""In place of a connection that is closed. No user and no group has these ids."""


def peer_of(connected: socket.socket) -> Peer:
    """Raises OSError for a socket that is no Unix socket."""
    return Peer(
        *_CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    )
