"""Opens a broker connection: resolve, connect, TLS, negotiate versions, log in; each address in turn.

BrokerLink calls it on the loop of a worker or the controller; `doctor` on its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sidecar.common.model import Node
from sidecar.net.kafka.link_security import LinkSecurity, SecurityError
from sidecar.net.kafka.name_lookup import AddressInfo, addresses_of, unresolved
from sidecar.net.kafka.questions import EndedEarly, Questions
from sidecar.net.kafka.transport import LinkTransport
from sidecar.protocol.api_versions import (
    FALLBACK_VERSION,
    FIRST_VERSION,
    BrokerVersions,
    api_versions_request,
    decode_api_versions,
    negotiate,
)
from sidecar.protocol.connection import RESPONSE_BYTES_MAX, BrokerConnection
from sidecar.protocol.messages import (
    ProtocolError,
    RequestMessage,
    decode_response,
)

if TYPE_CHECKING:
    from sidecar.net.kafka.authentication import Authenticator

_Exchange = Callable[[RequestMessage], Awaitable[bytes]]
"""Sends a request and returns the body of its answer."""

SOFTWARE_VERSION: Final = "0.1.0"
"""Sent to the broker (KIP-511). A constant: asking importlib.metadata costs 30 ms at each start of a
worker."""


class LinkError(ConnectionError):
    """The connection to a broker could not be made, or ended. The text names the broker."""


class TlsFailed(LinkError):
    """TLS could not be set up: certificates or settings are wrong on one side."""


class SaslFailed(LinkError):
    """The broker refuses the login, or there are no credentials. Another address would not help."""


class SocketBuffers(NamedTuple):
    """send.buffer.bytes and receive.buffer.bytes; negative: the system's default."""

    send_bytes: int = -1
    receive_bytes: int = -1


SYSTEM_BUFFERS: Final = SocketBuffers()


class OpenedConnection(NamedTuple):
    """A connected socket, its transport and protocol state, and the negotiated version of each API."""

    sock: socket.socket
    transport: LinkTransport
    connection: BrokerConnection
    versions: Mapping[int, int]
    offered: BrokerVersions
    session_lifetime_ms: float = 0.0
    """For how many ms the broker accepts requests under this login; 0: no login, or no limit."""


def authenticator_of(values: Mapping[str, Any]) -> Authenticator | None:
    """The Authenticator of all links of a process; None without SASL, and then nothing is imported."""
    if not str(values["security.protocol"]).startswith("SASL"):
        return None
    from sidecar.net.kafka.authentication import Authenticator

    return Authenticator(values)


async def open_connection(
    loop: asyncio.AbstractEventLoop,
    node: Node,
    client_id: str | None,
    timeout_ms: float,
    security: LinkSecurity,
    buffers: SocketBuffers = SYSTEM_BUFFERS,
    authenticator: Authenticator | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> OpenedConnection:
    """Connect to ``node``, set up TLS, negotiate and log in, at each address of its name in order.

    Each address gets ``timeout_ms`` from connect to the end of the login (socket.connection.setup.timeout.ms), so a
    port that accepts and never answers fails as fast as one that drops packets. Raises LinkError, which names the node
    and the error of each address; its subclass TlsFailed; and SaslFailed as soon as one address refuses the login.
    ``on_step`` gets a phrase for each wait that begins.
    """
    if authenticator is not None:
        on_step(f"{authenticator.missing} has come yet")
        await _credentials(node, authenticator, timeout_ms)
    on_step(f"the name {node.host} has not been resolved yet")
    addresses = await _resolve(loop, node, timeout_ms)
    failures: list[str] = []
    error_type: type[LinkError] = LinkError
    tried: set[object] = set()
    for family, kind, protocol, _, address in addresses:
        if address in tried:
            continue
        tried.add(address)
        sock = socket.socket(family, kind, protocol)
        try:
            _prepare(sock, buffers)
            on_step(f"{address[0]} has not accepted the connection yet")
            async with asyncio.timeout(timeout_ms / 1000):
                await loop.sock_connect(sock, address)
                on_step(f"{address[0]} has accepted the connection and not answered yet")
                transport = await security.protect(sock, node)
                questions = Questions(loop, sock, transport, client_id)
                offered = await _ask_versions(questions.ask)
                versions = negotiate(offered.ranges)
                lifetime_ms = 0.0
                if authenticator is not None:
                    lifetime_ms = await _log_in(node, authenticator, questions.ask, versions)
            questions.connection.answer_bytes_max = RESPONSE_BYTES_MAX
            return OpenedConnection(sock, transport, questions.connection, versions, offered, lifetime_ms)
        except SaslFailed:
            sock.close()
            raise
        except (OSError, ProtocolError) as error:
            sock.close()
            if isinstance(error, SecurityError):
                error_type = TlsFailed
            where = "" if address[0] == node.host else f"{address[0]}: "
            failures.append(where + _why(error, security, timeout_ms))
        except BaseException:  # cancelled, because the link was closed meanwhile
            sock.close()
            raise
    raise error_type(f"Cannot connect to {node}: {'; '.join(failures) or 'its name has no address'}.")


async def _resolve(loop: asyncio.AbstractEventLoop, node: Node, timeout_ms: float) -> list[AddressInfo]:
    """The addresses of the node's name. Raises LinkError."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await addresses_of(loop, node.host, node.port)
    except TimeoutError:
        raise LinkError(unresolved(node, f"no answer within {timeout_ms:.0f} ms")) from None
    except OSError as error:
        raise LinkError(unresolved(node, error.strerror or str(error))) from error


def _prepare(sock: socket.socket, buffers: SocketBuffers) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if buffers.send_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers.send_bytes)
    if buffers.receive_bytes >= 0:  # before the connect, which fixes TCP's window scale
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers.receive_bytes)


def _why(error: OSError | ProtocolError, security: LinkSecurity, timeout_ms: float) -> str:
    """Why one address failed, for the sentence that names all of them."""
    match error:
        case TimeoutError():
            return f"not connected and negotiated within {timeout_ms:.0f} ms"
        case EndedEarly():
            return (
                "the connection was closed during the login" if error.has_answered else security.ended_early()
            )
        case OSError(errno=int(number)) if number and not isinstance(error, SecurityError):
            return os.strerror(number)
    return str(error)


async def _credentials(node: Node, authenticator: Authenticator, timeout_ms: float) -> None:
    """Wait for credentials before connecting: without them a connection would only cost the broker work."""
    from sidecar.protocol.sasl.credentials import CredentialsMissing

    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await authenticator.ready()
    except TimeoutError:
        raise SaslFailed(f"{node}: {authenticator.missing} came within {timeout_ms:.0f} ms.") from None
    except CredentialsMissing as error:
        raise SaslFailed(f"{node}: {str(error).rstrip('.')}.") from None


async def _log_in(
    node: Node, authenticator: Authenticator, exchange: _Exchange, versions: Mapping[int, int]
) -> float:
    from sidecar.protocol.sasl.credentials import CredentialsMissing, LoginFailed

    async def ask(message: RequestMessage) -> Any:
        api_key, version = int(message.__api_key__), int(message.__version__)
        return decode_response(api_key, version, await exchange(message))

    try:
        return await authenticator.log_in(ask, versions)
    except (LoginFailed, CredentialsMissing) as error:
        raise SaslFailed(f"{node}: {str(error).rstrip('.')}.") from None


async def _ask_versions(exchange: _Exchange) -> BrokerVersions:
    asked = FIRST_VERSION
    while True:
        body = await exchange(api_versions_request(asked, SOFTWARE_VERSION))
        offered = decode_api_versions(asked, body)
        if offered is not None:
            return offered
        asked = FALLBACK_VERSION
