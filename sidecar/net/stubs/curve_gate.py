"""CurveGate: an endpoint's entrance over TCP: its listening socket, its keys, and the check of client keys.

An endpoint asks it at each connection over TCP, on the loop of a worker or the controller.

Over TCP the kernel names no user. A peer gets only a handshake of few bytes, and continues only with a key that a
table ``[clients.NAME]`` has. The key file is checked before each connection, like the files of TLS. This is the
daemon's only file that needs PyNaCl (the extra ``[curve]``).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from client_stub.zmtp.curve import CurveServer, KeyPair
from client_stub.zmtp.keys import KeyFile, WatchedKeyFile, read_key_file
from sidecar.common.clock import MonotonicClock
from sidecar.common.sparse_log import SparseLog
from sidecar.config.client_rules import ClientRules
from sidecar.net.stubs.peer import Peer

log = logging.getLogger(__name__)

KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
UNACKED_MS: Final = 30_000
"""Time in ms after which a client whose host is gone is noticed, whether data is sent to it or not."""


class CurveGate:
    """Accepts TCP clients by their keys. ``rules()`` returns the current client rules. Not thread-safe.

    ``on_new_keys()`` is called when the key file has changed.
    """

    def __init__(
        self,
        listening: socket.socket,
        key_file: str,
        rules: Callable[[], ClientRules],
        on_new_keys: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises KeyFileError."""
        self.socket = listening
        self._file = WatchedKeyFile(key_file, is_client=False, complain=partial(log.error, "%s"))
        self._read = self._file.keys()
        self._keys = _pairs(self._read)
        self._rules = rules
        self._on_new_keys = on_new_keys
        self._sparse_log = SparseLog(log, MonotonicClock().now_ms)

    @property
    def public_keys(self) -> list[str]:
        """Public keys by which clients may know this daemon, in hexadecimal."""
        return [keys.public.hex() for keys in self._keys]

    def check(self) -> None:
        """Check whether the file has other keys now."""
        read = self._file.keys()
        if read is self._read:
            return
        self._read, self._keys = read, _pairs(read)
        log.info("New connections over TCP find the public key %s.", " and ".join(self.public_keys))
        self._on_new_keys()

    def mechanism(self, peer: Peer) -> CurveServer:
        """The mechanism of a new connection, with the keys that the file has now."""
        self.check()
        return CurveServer(b"ROUTER", self._keys, partial(self._is_known, peer))

    def knows(self, public_key: bytes) -> bool:
        """Whether the current rules let a client use this key."""
        return self._rules().knows_key(public_key)

    def _is_known(self, peer: Peer, public_key: bytes) -> bool:
        if self.knows(public_key):
            return True
        self._sparse_log.warning(
            public_key,
            "Refused: a client at %s with the public key %s, which is in no curve.public.keys of [clients.NAME].",
            peer.address,
            public_key.hex(),
        )
        return False

    @staticmethod
    def prepare(connected: socket.socket) -> None:
        """Set the options of an accepted connection."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_MS)


def public_keys_of(key_file: str) -> list[str]:
    """Public keys of a daemon's key file, in hexadecimal. Raises KeyFileError."""
    return [keys.public.hex() for keys in _pairs(read_key_file(key_file, is_client=False))]


def _pairs(read: KeyFile) -> list[KeyPair]:
    return [KeyPair.of_secret(each) for each in (read.secret_key, read.earlier_key) if each]
