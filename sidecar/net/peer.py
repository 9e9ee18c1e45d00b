"""Peer: the process at the other end of a Unix socket, as the kernel saw it when it connected (SO_PEERCRED).

Over TCP there is no process and no user. A number made of the peer's host stands for its user until it has proved
a key, and a number made of the key from then on. Both lie beyond all uids. A host of IPv6 has a whole network of
addresses to choose from, and counts as that network.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from typing import Final, NamedTuple

from sidecar.common.client_rules import Caller

_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""


class Peer(NamedTuple):
    """Credentials of a connection. ``pid`` 0: it is gone, or of another pid namespace."""

    pid: int
    uid: int
    gid: int
    address: str = ""
    """The address it comes from over TCP; empty of a Unix socket."""
    host: str = ""
    """The address, or the network of an IPv6 address: one host to all bounds."""

    @property
    def payer(self) -> int | str:
        """The process that pays for its penalties, or the host."""
        return self.host or self.pid

    @property
    def words(self) -> str:
        """For the log."""
        return f"host {self.address}" if self.address else f"process {self.pid} of uid {self.uid}"


_SO_PEERGROUPS: Final = 59
"""Of Linux since 4.13; not in Python's socket module."""
_GROUPS_BYTES_MAX: Final = 1024
"""The largest answer that Python takes: 256 groups. Of a user with more only the first counts, its own."""
_GID: Final = struct.Struct("I")

GONE: Final = Peer(0, 0xFFFF_FFFF, 0xFFFF_FFFF)
"""In place of a connection that is closed. No user and no group has these ids."""


def user_of(name: bytes) -> int:
    """A number for an address or a key where a uid is expected; no uid has more than 32 bits."""
    return 1 << 62 | int.from_bytes(hashlib.sha256(name).digest()[:7])


def host_of(address: str) -> str:
    """The address itself, or the network of 64 bits of an IPv6 address, which one host may have to itself."""
    if ":" not in address:
        return address
    prefix = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:8]
    return socket.inet_ntop(socket.AF_INET6, prefix + bytes(8)) + "/64"


def peer_of(connected: socket.socket) -> Peer:
    """Raises OSError for a connection that is gone."""
    if connected.family != socket.AF_UNIX:
        address = str(connected.getpeername()[0])
        host = host_of(address)
        return Peer(0, user_of(host.encode()), GONE.gid, address, host)
    return Peer(
        *_CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    )


def caller_of(connected: socket.socket, peer: Peer) -> Caller:
    """The user at the other end with all its groups, as they were when it connected."""
    try:
        groups = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES_MAX)
    except OSError:
        groups = b""
    return Caller(peer.uid, frozenset((peer.gid, *(gid for (gid,) in _GID.iter_unpack(groups)))))
