"""BrokerWalk: checks the way to one broker step by step: name, connection, TLS, versions, login. The first failure
ends it.

Each step is the daemon's own code, so its texts are those of the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sidecar.common.clock import MonotonicClock
from sidecar.common.model import Node
from sidecar.config.rules import parse_address
from sidecar.config.settings import SidecarConfig
from sidecar.doctor.findings import Finding, Mark
from sidecar.doctor.login import EXPIRES_SOON_DAYS
from sidecar.net.kafka.connector import (
    LinkError,
    OpenedConnection,
    SaslFailed,
    open_connection,
)
from sidecar.net.kafka.link_security import LinkSecurity, SecurityError
from sidecar.net.kafka.name_lookup import addresses_of, unresolved
from sidecar.net.kafka.questions import Questions
from sidecar.net.kafka.transport import TlsTransport
from sidecar.net.tls.certificate import read_certificate
from sidecar.protocol.messages import ApiKey

if TYPE_CHECKING:
    from sidecar.net.kafka.authentication import Authenticator

TIMEOUT_MS: Final = 5_000.0
"""Timeout of each step in ms. A broker slower than this has a problem."""
_DAY_S: Final = 86_400.0
HTTP_TIMEOUT_S: Final = 2.0


class BrokerWalk:
    """Checks brokers with one set of settings. Use it from one loop. ``close`` closes the open connection."""

    def __init__(self, values: Mapping[str, Any], authenticator: Authenticator | None) -> None:
        self._values = values
        self._security = LinkSecurity(values, MonotonicClock())
        self._authenticator = authenticator
        self.opened: OpenedConnection | None = None
        """Connection of the last walk, if that succeeded."""

    async def walk(self, node: Node, *, failure: Mark = "FAIL") -> AsyncIterator[Finding]:
        """Findings of each step up to the first that fails, which is marked ``failure``.

        Afterwards ``opened`` is the connection, or None if a step failed.
        """
        self.close()
        steps = {
            "name": self._name,
            "connection": self._connection,
            "TLS": self._tls,
            "versions and login": self._login,
        }
        if not self._security.has_tls:
            del steps["TLS"]
        left = list(steps)
        for name, step in steps.items():
            left.remove(name)
            try:
                async with asyncio.timeout(TIMEOUT_MS / 1000 + 1):
                    text, mark = await step(node)
            except (_StepFailed, TimeoutError) as failed:
                said = str(failed) or f"{_address(node)}: no answer within {TIMEOUT_MS / 1000:g} s ({name})."
                if name not in {"name", "connection"} and await self._speaks_http(node):
                    said = (
                        f"{_address(node)} speaks HTTP: it is not a Kafka port, but perhaps this daemon's http.listen "
                        "or a proxy."
                    )
                yield Finding(failure, said.replace("?.", "?").replace(f" (id {node.id})", ""))
                if left:
                    yield Finding("skip", f"{_address(node)}: not tried after that: {', '.join(left)}.")
                return
            if text:
                yield Finding(mark, text)

    def close(self) -> None:
        """Close the connection of the last walk."""
        if self.opened is not None:
            self.opened.transport.close()
            self.opened = None

    async def ask(self, message: Any) -> Any:
        """Send one request on the open connection and return the response. Raises OSError and ProtocolError."""
        from sidecar.protocol.messages import decode_response

        assert self.opened is not None
        loop = asyncio.get_running_loop()
        questions = Questions(loop, self.opened.sock, self.opened.transport, str(self._values["client.id"]))
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            body = await questions.ask(message)
        return decode_response(int(message.__api_key__), int(message.__version__), body)

    # Steps: each returns its sentence and mark, or raises _StepFailed with a sentence.

    async def _name(self, node: Node) -> tuple[str, Mark]:
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(node.host)
            return "", "ok"
        loop = asyncio.get_running_loop()
        try:
            found = await addresses_of(loop, node.host, node.port)
        except OSError as error:
            raise _StepFailed(unresolved(node, error.strerror or str(error))) from None
        addresses = ", ".join(dict.fromkeys(str(each[4][0]) for each in found))
        return f"{node.host} is {addresses}.", "ok"

    async def _connection(self, node: Node) -> tuple[str, Mark]:
        began_s = time.monotonic()
        with await self._connect(node):
            pass
        return f"{_address(node)} accepts connections, in {(time.monotonic() - began_s) * 1e3:.1f} ms.", "ok"

    async def _connect(self, node: Node) -> socket.socket:
        """Connect to the first address that accepts."""
        loop = asyncio.get_running_loop()
        failures: dict[str, None] = {}
        for family, kind, protocol, _, address in await addresses_of(loop, node.host, node.port):
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                async with asyncio.timeout(TIMEOUT_MS / 1000):
                    await loop.sock_connect(sock, address)
                return sock
            except TimeoutError:
                failures[f"no answer within {TIMEOUT_MS / 1000:g} s"] = None
            except OSError as error:
                failures[os.strerror(error.errno) if error.errno else str(error)] = None
            sock.close()
        raise _StepFailed(
            f"{_address(node)} cannot be connected to ({', '.join(failures)}): is the broker up, and no firewall "
            f"between{_or_advertised(node)}?"
        )

    async def _speaks_http(self, node: Node) -> bool:
        """Check whether it is a web server. These wait for the end of Kafka's first bytes, but answer HTTP at once."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, _StepFailed, TimeoutError):
            async with asyncio.timeout(HTTP_TIMEOUT_S):
                with await self._connect(node) as sock:
                    await loop.sock_sendall(sock, b"HEAD / HTTP/1.0\r\n\r\n")
                    return (await loop.sock_recv(sock, 8)).startswith(b"HTTP/")
        return False

    async def _tls(self, node: Node) -> tuple[str, Mark]:
        sock = await self._connect(node)
        try:
            transport = await self._security.protect(sock, node)
        except SecurityError as error:
            sock.close()
            raise _StepFailed(f"{_address(node)}: {error}.") from None
        except OSError as error:
            sock.close()
            raise _StepFailed(f"{_address(node)}: TLS failed: {error.strerror or error}.") from None
        assert isinstance(transport, TlsTransport)
        version, der = transport.session
        transport.close()
        peer = read_certificate(der)
        left_s = (peer.not_after - datetime.now(UTC)).total_seconds()
        days = int(left_s // _DAY_S)
        mark: Mark = "warn" if days < EXPIRES_SOON_DAYS else "ok"
        names = ", ".join(peer.names) or "no host"
        return (
            f"{_address(node)} speaks {version}; its certificate {peer.subject} from {peer.issuer} is for {names} and "
            f"expires in {days} days.",
            mark,
        )

    async def _login(self, node: Node) -> tuple[str, Mark]:
        loop = asyncio.get_running_loop()
        try:
            self.opened = await open_connection(
                loop,
                node,
                str(self._values["client.id"]),
                TIMEOUT_MS,
                self._security,
                authenticator=self._authenticator,
            )
        except SaslFailed as error:
            raise _StepFailed(f"Login: {error}") from None
        except LinkError as error:
            raise _StepFailed(str(error)) from None
        produce = self.opened.versions.get(ApiKey.PRODUCE)
        if produce is None:
            raise _StepFailed(
                f"{_address(node)} takes no Produce requests that we speak: it needs Kafka 2.1."
            )
        login = ""
        if self._authenticator is not None:
            login = f", and takes the login by {self._authenticator.mechanism}"
            user = self._values["sasl.username"]
            login += f" of {user}" if user else ""
        return f"{_address(node)} is a Kafka broker (Produce version {produce}){login}.", "ok"


def bootstrap_nodes(config: SidecarConfig) -> list[Node]:
    """The addresses of bootstrap.servers as nodes, with negative ids, as they are not brokers yet."""
    return [
        Node(-1 - index, *address)
        for index, server in enumerate(config.words("bootstrap.servers"))
        if (address := parse_address(server)) is not None
    ]


class _StepFailed(Exception):
    """A step failed. The text is a sentence for the user."""


def _or_advertised(node: Node) -> str:
    """A hint about an address that a broker gives: other hosts may know the broker by another one."""
    return f", and do advertised.listeners of broker {node.id} suit this host" if node.id >= 0 else ""


def _address(node: Node) -> str:
    return f"{node.host}:{node.port}"
