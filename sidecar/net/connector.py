"""Opening a broker connection: resolve, connect, agree on versions; each resolved address in its turn."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple

from sidecar.common.model import Node
from sidecar.protocol.api_versions import (
    FALLBACK_VERSION,
    FIRST_VERSION,
    api_versions_request,
    decode_api_versions,
    negotiate,
)
from sidecar.protocol.connection import BrokerConnection, InFlightRequest
from sidecar.protocol.messages import ApiKey, ProtocolError, encode_request

RECEIVE_BYTES: Final = 64 << 10

SOFTWARE_VERSION: Final = "0.1.0"
"""Sent to the broker (KIP-511). A constant: asking importlib.metadata costs 30 ms at each start of a
worker."""


class LinkError(ConnectionError):
    """The connection to a broker could not be made, or ended. The text names the broker."""


class SocketBuffers(NamedTuple):
    """send.buffer.bytes and receive.buffer.bytes; negative: the system's default."""

    send_bytes: int = -1
    receive_bytes: int = -1


SYSTEM_BUFFERS: Final = SocketBuffers()


class OpenedConnection(NamedTuple):
    """A connected socket, its protocol state, and the version of each API both sides speak."""

    sock: socket.socket
    connection: BrokerConnection
    versions: Mapping[int, int]


async def open_connection(
    loop: asyncio.AbstractEventLoop,
    node: Node,
    client_id: str | None,
    timeout_ms: float,
    buffers: SocketBuffers = SYSTEM_BUFFERS,
) -> OpenedConnection:
    """Connect to ``node`` and negotiate; every address its name resolves to is tried in order.

    Each address gets ``timeout_ms`` from connect to negotiated (socket.connection.setup.timeout.ms), so a
    port that accepts and never answers is given up as fast as one that drops packets. Raises LinkError
    naming the node and what each address said.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            addresses = await loop.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise LinkError(f"{node.host} was not resolved within {timeout_ms:.0f} ms.") from None
    except OSError as error:
        raise LinkError(f"The name {node.host} cannot be resolved: {error}") from error
    failures: list[str] = []
    tried: set[object] = set()
    for family, kind, protocol, _, address in addresses:
        if address in tried:
            continue
        tried.add(address)
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if buffers.send_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers.send_bytes)
            if buffers.receive_bytes >= 0:  # before the connect: the window that TCP offers is decided there
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers.receive_bytes)
            async with asyncio.timeout(timeout_ms / 1000):
                await loop.sock_connect(sock, address)
                connection = BrokerConnection()
                versions = await _negotiate(loop, sock, connection, client_id)
            return OpenedConnection(sock, connection, versions)
        except TimeoutError:
            sock.close()
            failures.append(f"{address[0]}: not connected and negotiated within {timeout_ms:.0f} ms")
        except OSError as error:
            sock.close()
            failures.append(f"{address[0]}: {os.strerror(error.errno) if error.errno else error}")
        except ProtocolError as error:
            sock.close()
            failures.append(f"{address[0]}: {error}")
        except BaseException:  # cancelled: the link was closed meanwhile
            sock.close()
            raise
    raise LinkError(f"Cannot connect to {node}: {'; '.join(failures) or 'its name has no address'}.")


async def _negotiate(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, connection: BrokerConnection, client_id: str | None
) -> Mapping[int, int]:
    asked = FIRST_VERSION
    while True:
        body = await _exchange_api_versions(loop, sock, connection, client_id, asked)
        offered = decode_api_versions(asked, body)
        if offered is not None:
            return negotiate(offered)
        asked = FALLBACK_VERSION


async def _exchange_api_versions(
    loop: asyncio.AbstractEventLoop,
    sock: socket.socket,
    connection: BrokerConnection,
    client_id: str | None,
    asked: int,
) -> bytes:
    correlation_id = connection.take_correlation_id()
    connection.expect(InFlightRequest(correlation_id, ApiKey.API_VERSIONS, asked, False, None))
    request = encode_request(api_versions_request(asked, SOFTWARE_VERSION), correlation_id, client_id)
    await loop.sock_sendall(sock, request)
    while True:
        data = await loop.sock_recv(sock, RECEIVE_BYTES)
        if not data:
            raise ProtocolError(
                "the connection was closed before the versions were agreed (a TLS or SASL port?)"
            )
        responses = connection.receive_data(data)
        if responses:
            return responses[0].body
