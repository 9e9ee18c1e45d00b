"""Two ends of ours, fed by hand or at a socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from client_stub.native.hot import encode, whole_message
from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.connection import ZmtpConnection
from client_stub.zmtp.curve import CurveClient, CurveServer, KeyPair
from client_stub.zmtp.frames import Buffer
from client_stub.zmtp.mechanism import Null

DAEMON, CLIENT, STRANGER = KeyPair.new(), KeyPair.new(), KeyPair.new()
ROUTERS, DEALERS = frozenset({b"ROUTER"}), frozenset({b"DEALER"})
BUFFER_BYTES: Final = 16 << 10


def null_client(buffers: Buffers | None = None) -> ZmtpConnection:
    mechanism = Null(b"DEALER", whole_message=whole_message, encode=encode)
    return ZmtpConnection(mechanism, ROUTERS, buffers or Buffers(BUFFER_BYTES))


def null_server(buffers: Buffers | None = None) -> ZmtpConnection:
    mechanism = Null(b"ROUTER", whole_message=whole_message, encode=encode)
    return ZmtpConnection(mechanism, DEALERS, buffers or Buffers(BUFFER_BYTES))


def client(server_key: bytes = DAEMON.public, keys: KeyPair = CLIENT) -> ZmtpConnection:
    return ZmtpConnection(CurveClient(b"DEALER", keys, server_key), ROUTERS, Buffers(64 << 10))


def server(
    known: Iterable[bytes] = (CLIENT.public,), keys: Sequence[KeyPair] = (DAEMON,), **bounds: int
) -> ZmtpConnection:
    mechanism = CurveServer(b"ROUTER", keys, frozenset(known).__contains__)
    return ZmtpConnection(mechanism, DEALERS, Buffers(64 << 10), **bounds)


def proved_key(end: ZmtpConnection) -> bytes:
    """The key that the client of this server has proved."""
    assert isinstance(end.mechanism, CurveServer)
    return end.mechanism.peer_key


def as_bytes(end: ZmtpConnection, *frames: bytes) -> bytes:
    """A message as ``end`` writes it."""
    return b"".join(end.mechanism.encode(frames))


def feed(end: ZmtpConnection, data: Buffer) -> list[list[bytes]]:
    """Give it the bytes as it has space for them; the messages that were in them."""
    found: list[list[bytes]] = []
    data = memoryview(data)
    while data:
        space = end.space()
        count = min(len(space), len(data))
        assert count, "no space was given"
        space[:count] = data[:count]
        end.received(count)
        data = data[count:]
        while (frames := end.next_message()) is not None:
            found.append([bytes(frame) for frame in frames])
    return found


def take(end: ZmtpConnection) -> bytes:
    """What it wants to reply."""
    data = b"".join(end.replies)
    end.replies.clear()
    return data


def joined(one: ZmtpConnection, other: ZmtpConnection) -> None:
    """The whole handshake of a client and a server."""
    feed(other, one.mechanism.opening)
    feed(one, other.mechanism.opening)
    while data := take(one):
        feed(other, data)
        feed(one, take(other))


def pump(
    end: ZmtpConnection, connected: socket.socket, until: Callable[[], bool] = lambda: False
) -> list[bytes] | None:
    """The next message from a socket; None once ``until``, or at the end of the connection."""
    while True:
        message = end.next_message()
        if end.replies:
            connected.sendall(take(end))
        if message is not None:
            return [bytes(frame) for frame in message]
        if until():
            return None
        count = connected.recv_into(end.space())
        if not count:
            return None
        end.received(count)
