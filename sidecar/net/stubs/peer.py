"""Peer: the process at the other end of a Unix socket when it connected, as the kernel reports it (SO_PEERCRED).

Over TCP there is neither process nor user. A number made from the peer's host is its user until it has proved
a key, and a number made from the key after that. Both are larger than any uid. An IPv6 host can choose from a whole
network of addresses, so it counts as that network.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from typing import Final, NamedTuple

from sidecar.config.client_rules import Caller

_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""


class Peer(NamedTuple):
    """Credentials of a connection. ``pid`` 0: the process is gone, or in another pid namespace."""

    pid: int
    uid: int
    gid: int
    address: str = ""
    """Its address over TCP; "" for a Unix socket."""
    host: str = ""
    """The address, or the network of an IPv6 address: all limits treat it as one host."""

    @property
    def payer(self) -> int | str:
        """The process, or the host, that is charged for its penalties."""
        return self.host or self.pid

    @property
    def words(self) -> str:
        """Description for the log."""
        return f"host {self.address}" if self.address else f"process {self.pid} of uid {self.uid}"


_SO_PEERGROUPS: Final = 59
"""In Linux since 4.13; Python's socket module lacks it."""
_GROUPS_BYTES_MAX: Final = 1024
"""The largest answer that Python accepts: 256 groups. For a user with more, only its own group counts."""
_GID: Final = struct.Struct("I")

GONE: Final = Peer(0, 0xFFFF_FFFF, 0xFFFF_FFFF)
"""Stands for a closed connection. No user and no group has these ids."""


def user_of(name: bytes) -> int:
    """A number for an address or key that is used like a uid. Uids have at most 32 bits."""
    return 1 << 62 | int.from_bytes(hashlib.sha256(name).digest()[:7])


def host_of(address: str) -> str:
    """The address, or the 64-bit network of an IPv6 address, which may belong to one host."""
    if ":" not in address:
        return address
    prefix = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:8]
    return socket.inet_ntop(socket.AF_INET6, prefix + bytes(8)) + "/64"


def peer_of(connected: socket.socket) -> Peer:
    """Peer of a connected socket. Raises OSError if the connection is gone."""
    if connected.family != socket.AF_UNIX:
        address = str(connected.getpeername()[0])
        host = host_of(address)
        return Peer(0, user_of(host.encode()), GONE.gid, address, host)
    return Peer(
        *_CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    )


def caller_of(connected: socket.socket, peer: Peer) -> Caller:
    """The user at the other end and all its groups at the time of the connect."""
    try:
        groups = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES_MAX)
    except OSError:
        groups = b""
    return Caller(peer.uid, frozenset((peer.gid, *(gid for (gid,) in _GID.iter_unpack(groups)))))
