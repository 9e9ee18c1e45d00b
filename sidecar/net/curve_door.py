"""CurveDoor: the way into an endpoint over TCP. Its listening socket, its keys, and who may come.

The kernel names no user here. A peer has the few bytes of a handshake, and goes on only with a key that a table
``[clients.NAME]`` has. The only file of the daemon that needs PyNaCl (the extra ``[curve]``).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from client_stub.curve import CurveServer, KeyPair
from client_stub.curve_keys import read_key_file
from client_stub.zmtp import Buffers
from sidecar.common.client_rules import ClientRules
from sidecar.common.clock import MonotonicClock
from sidecar.common.sparse_log import SparseLog
from sidecar.net.peer import Peer

log = logging.getLogger(__name__)

KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
UNACKED_MS: Final = 30_000
"""A client whose host is gone is noticed within half a minute, whether it is written to or not."""


class CurveDoor:
    """``rules()``: those that hold now; a client may come in with a key that they know. Not thread-safe."""

    def __init__(self, listening: socket.socket, key_file: str, rules: Callable[[], ClientRules]) -> None:
        """Raises KeyFileError."""
        self.socket = listening
        self._keys = KeyPair.of_secret(read_key_file(key_file, is_client=False).secret_key)
        self._rules = rules
        self._sparse_log = SparseLog(log, MonotonicClock().now_ms)

    def connection(
        self, peer: Peer, peer_types: frozenset[bytes], buffers: Buffers, message_bytes_max: int
    ) -> CurveServer:
        """Our end of a new connection."""
        return CurveServer(
            peer_types,
            buffers,
            self._keys,
            partial(self._is_known, peer),
            message_bytes_max=message_bytes_max,
        )

    def _is_known(self, peer: Peer, public_key: bytes) -> bool:
        if self._rules().knows_key(public_key):
            return True
        self._sparse_log.warning(
            public_key,
            "refused: a client at %s with the public key %s, which no table [clients.NAME] has",
            peer.address,
            public_key.hex(),
        )
        return False

    @staticmethod
    def prepare(connected: socket.socket) -> None:
        """Options of a connection that was accepted."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_MS)
