"""Link: one connection to the daemon, over a Unix socket or TCP. Io thread only, or the thread of a look-up."""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Sequence
from typing import Any, Final

from client_stub.contract.run_dir import not_permitted_text
from client_stub.io.host_lookup import HostLookup
from client_stub.native.hot import encode, receive, whole_message
from client_stub.system.missing_resources import NOBODY_LISTENS
from client_stub.system.originals import Socket
from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.frames import Buffer, ZmtpError, unsent
from client_stub.zmtp.keys import KeyFile
from client_stub.zmtp.mechanism import Mechanism, Null, PeerRefused

SEND_BUFFER_BYTES: Final = 1280 << 10
"""The size requested; the kernel limits it to net.core.wmem_max. It fits a whole submission with the kernel's
overhead, so a bulk client writes one in a single call instead of waking again for the rest.
"""
_CLOSED: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN})
_CLOSED_TEXT: Final = "the daemon closed it"
_NULL: Final = Null(b"DEALER", whole_message=whole_message, encode=encode)
_PEER_TYPES: Final = frozenset({b"ROUTER"})
_NOBODY: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN})
"""The path does not exist, no process listens there, or the queue of waiting connections is full. All of these may
pass.
"""
_IN_HANDSHAKE: Final = (
    "the daemon closed it before the handshake of CURVE was over; is server-key its public key?"
)
_KEY_NOT_KNOWN: Final = (
    "the daemon does not know this client's public key: it is to be in curve.public.keys of a table "
    "[clients.NAME]"
)
KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
UNACKED_MS: Final = 30_000
"""TCP keep-alive: a daemon whose host is gone is noticed within half a minute. Behind a proxy that still answers, the
pings notice it.
"""
_U32: Final = struct.Struct("=I")
_U64: Final = struct.Struct("=Q")
_ACKED_AT: Final = 120
"""The position of tcpi_bytes_acked in struct tcp_info (Linux 4.1)."""
_TCP_INFO_BYTES: Final = _ACKED_AT + 8


class Link:
    """A connection to a ROUTER: at a path, or with ``keys`` at ``tcp://host:port``."""

    def __init__(
        self,
        name: str,
        address: str,
        first: Sequence[Any],
        buffers: Buffers,
        keys: KeyFile | None,
        lookup: HostLookup | None = None,
        turn: int = 0,
    ) -> None:
        """``lookup`` is the finished look-up of the host in ``address``, and ``turn`` selects one of its addresses.

        Raises OSError and ValueError.
        """
        self.name = name
        self.lost_reason = ""
        """The reason why nothing more can be sent; data that has arrived is still read."""
        self.is_barred = False
        """Whether that is so because this user or key may not connect."""
        self._path = address if keys is None else ""
        target: Any = address
        family = int(socket.AF_UNIX)
        mechanism: Mechanism = _NULL
        if keys is not None:
            from client_stub.zmtp.curve import CurveClient, KeyPair

            mechanism = CurveClient(b"DEALER", KeyPair.of_secret(keys.secret_key), keys.server_key)
            assert lookup is not None
            found = lookup.addresses
            if found:
                family, target = found[turn % len(found)]
            else:
                family, self.lost_reason = int(socket.AF_INET), f"its host cannot be found ({lookup.why_not})"
        self.zmtp = ZmtpConnection(mechanism, _PEER_TYPES, buffers)
        self.encode = mechanism.encode
        self.socket = Socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.fd = self.socket.fileno()
        if keys is None:
            # Not over TCP, whose buffers grow automatically unless they are set.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        else:
            _set_tcp_options(self.socket)
        self.unsent: list[Buffer] = []
        self._first: Sequence[Any] | None = first
        """The first message. It waits for the peer's READY, as libzmq accepts no message before it has sent its own."""
        self.watched = select.POLLIN
        self._acked_bytes = 0
        """The TCP counter when ``is_moving`` was last called."""
        self._was_part_written = False
        """Whether a message was only partly written at that time."""
        self._is_broken = False
        """The peer has broken the protocol; nothing after that is parsed."""
        if not self.lost_reason:
            try:
                self.socket.connect(target)
            except OSError as error:
                if error.errno != errno.EINPROGRESS:
                    self._failed(error)
        self.write([mechanism.opening])

    def write(self, buffers: list[Buffer]) -> None:
        """Write as much as the socket takes; the rest stays in ``unsent``."""
        if self.lost_reason:
            return  # the connection is gone, and so is this message: the next WELCOME says what is missing
        try:
            sent = self.socket.sendmsg(buffers)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._failed(error)
            self.unsent = []
            return
        # The common case of a short message first.
        self.unsent = [] if len(buffers) == 1 and sent == len(buffers[0]) else unsent(buffers, sent)

    def receive(self) -> list[list[bytes]]:
        """The messages that have arrived. Sets ``lost_reason`` at the end of the connection."""
        messages: list[list[bytes]] = []
        if self._is_broken:
            return messages
        try:
            count = 1
            while count:
                count = receive(self.fd, self.zmtp.space())
                self.zmtp.received(count)
                while (frames := self.zmtp.next_message()) is not None:
                    messages.append(list(map(bytes, frames)))
                if not self.lost_reason and count:
                    break  # one read per turn; after a loss, all that had arrived
            if not count:
                self._failed(None)
        except BlockingIOError:
            pass
        except ZmtpError as error:
            self._is_broken = True
            self.is_barred = not self._path and isinstance(error, PeerRefused)
            self._lost(_KEY_NOT_KNOWN if self.is_barred else str(error))
        except OSError as error:
            self._failed(error)
        if self.zmtp.replies:
            self._enqueue([b"".join(self.zmtp.replies)])
            self.zmtp.replies.clear()
        if self._first is not None and self.zmtp.is_ready:
            self._enqueue(self.encode(self._first))
            self._first = None
        return messages

    def is_moving(self) -> bool:
        """Over TCP: whether the connection can be relied on, as ``Transport.is_moving`` says."""
        unacked_bytes = _U32.unpack(fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(_U32.size)))[0]
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        before, self._acked_bytes = self._acked_bytes, _U64.unpack_from(info, _ACKED_AT)[0]
        was_part_written, self._was_part_written = self._was_part_written, bool(self.unsent)
        return self._acked_bytes > before and (bool(unacked_bytes) or was_part_written)

    def _failed(self, error: OSError | None) -> None:
        """Note the end of the connection, or the system error that ended it."""
        if error is not None and error.errno in _NOBODY:
            self._lost(NOBODY_LISTENS)
        elif error is not None and error.errno == errno.EACCES and self._path:
            self.is_barred = True
            self._lost(not_permitted_text(self._path))
        elif error is not None and error.errno not in _CLOSED:
            self._lost(error.strerror or str(error))
        else:
            self._lost(_IN_HANDSHAKE if not self._path and not self.zmtp.is_ready else _CLOSED_TEXT)

    def _lost(self, reason: str) -> None:
        self.lost_reason = self.lost_reason or reason

    def _enqueue(self, buffers: list[Buffer]) -> None:
        """Write after what is unsent."""
        if self.unsent:
            self.unsent += buffers
        else:
            self.write(buffers)


def _set_tcp_options(connecting: Socket) -> None:
    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_MS)
