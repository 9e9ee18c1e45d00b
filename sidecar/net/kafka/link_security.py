"""LinkSecurity: protects the links of one process as ``security.protocol`` and ``ssl.*`` require."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping, Set
from datetime import UTC, datetime
from typing import Any, Final

from sidecar.common.clock import MonotonicClock
from sidecar.common.model import Node
from sidecar.config.tls_settings import has_tls
from sidecar.net.kafka.transport import LinkTransport, PlainTransport, TlsTransport
from sidecar.net.tls.certificate import Certificate, read_certificate
from sidecar.net.tls.tls_context import TlsContexts
from sidecar.net.tls.tls_errors import PLAINTEXT_PORT, closed_phrase, tls_phrase, verification_phrase
from sidecar.net.tls.tls_files import TlsFault

HANDSHAKE_BYTES: Final = 64 << 10
PEER_CHECK_INTERVAL_MS: Final = 60_000.0
"""Minimum interval in ms of extra connections to a broker whose certificate was refused, made only to read it for the
error text.
"""
PEER_CHECK_S: Final = 1.0
"""Timeout in seconds of such a connection, so that the error is reported even if it hangs."""


class SecurityError(ConnectionError):
    """A connection cannot be protected as the settings require. The text is a phrase without a full stop."""


class LinkSecurity:
    """Security of all links of a process. Belongs to the loop's thread."""

    def __init__(self, values: Mapping[str, Any], clock: MonotonicClock) -> None:
        self._contexts = TlsContexts(values) if has_tls(values) else None
        self._clock = clock
        self._peers: dict[tuple[str, int], tuple[float, Certificate | None]] = {}
        """By address: when a refused certificate was read (ms), and the certificate."""
        self._accepted: dict[tuple[str, int], float] = {}
        """By address: when the certificate shown at the last connection expires (Unix time, seconds)."""

    def use(self, values: Mapping[str, Any]) -> None:
        """Use changed ``ssl.*`` settings from the next connection on. ``security.protocol`` does not change."""
        if self._contexts is not None:
            self._contexts.use(values)

    def keep(self, addresses: Set[tuple[str, int]]) -> None:
        """Forget the certificates of all other brokers: they have left the cluster, or have another address."""
        for seen in (self._accepted, self._peers):
            for address in seen.keys() - addresses:
                del seen[address]

    @property
    def has_tls(self) -> bool:
        return self._contexts is not None

    async def protect(self, sock: socket.socket, node: Node) -> LinkTransport:
        """Return the transport over a connected socket, after the TLS handshake if there is one.

        Raises SecurityError with the cause, OSError if the connection ends meanwhile.
        """
        if self._contexts is None:
            return PlainTransport(sock)
        try:
            context = await self._contexts.current()
        except TlsFault as fault:
            raise SecurityError(str(fault).rstrip(".")) from None
        has_certificate = self._contexts.has_certificate

        def explain(error: ssl.SSLError) -> str:
            return f"TLS failed: {tls_phrase(error, has_certificate=has_certificate)}"

        try:
            tls, incoming, outgoing = await _shake_hands(sock, context, node.host)
            self._note_end(tls, node)
            return TlsTransport(sock, tls, incoming, outgoing, explain)
        except ssl.SSLCertVerificationError as error:
            peer = await self._fetch_certificate(sock, node)
            phrase = verification_phrase(error, node.host, peer, datetime.now(UTC))
            raise SecurityError(f"TLS failed: {phrase}") from error
        except ssl.SSLError as error:
            raise SecurityError(explain(error)) from error
        except (ConnectionResetError, BrokenPipeError) as error:
            raise SecurityError(f"TLS failed: {PLAINTEXT_PORT}") from error

    def _note_end(self, tls: ssl.SSLObject, node: Node) -> None:
        der = tls.getpeercert(binary_form=True)
        with contextlib.suppress(ValueError):  # OpenSSL has accepted it; the date is only shown
            if der is not None:
                self._accepted[node.host, node.port] = read_certificate(der).not_after.timestamp()

    @property
    def expiries(self) -> list[tuple[str, float]]:
        """(description, Unix time of expiry) of the certificates of this client, its CA, and the brokers seen."""
        found = list(self._contexts.expiries) if self._contexts is not None else []
        shown = sorted(self._accepted.items())
        return [*found, *((f"The certificate of broker {host}:{port}", ends) for (host, port), ends in shown)]

    def ended_early(self) -> str:
        """Phrase for a broker that closes the connection before it has answered anything."""
        if self._contexts is None:
            return "it closed the connection before it answered; is this a port with TLS or SASL (security.protocol)?"
        return f"TLS failed: {closed_phrase(has_certificate=self._contexts.has_certificate)}"

    async def _fetch_certificate(self, refused: socket.socket, node: Node) -> Certificate | None:
        """Fetch the broker's certificate by a separate connection; None if that fails."""
        now_ms = self._clock.now_ms()
        read_ms, peer = self._peers.get(node[1:3], (float("-inf"), None))
        if now_ms - read_ms < PEER_CHECK_INTERVAL_MS:
            return peer
        peer = None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with contextlib.suppress(OSError, ValueError), socket.socket(refused.family) as sock:
            sock.setblocking(False)
            async with asyncio.timeout(PEER_CHECK_S):
                await asyncio.get_running_loop().sock_connect(sock, refused.getpeername())
                tls, _, _ = await _shake_hands(sock, context, node.host)
            der = tls.getpeercert(binary_form=True)
            peer = read_certificate(der) if der else None
        self._peers[node[1:3]] = now_ms, peer
        return peer


async def _shake_hands(
    sock: socket.socket, context: ssl.SSLContext, host: str
) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """Complete a handshake. Returns the TLS object and its BIOs for incoming and outgoing ciphertext."""
    loop = asyncio.get_running_loop()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=host.rstrip("."))
    while True:
        try:
            tls.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            is_done = False
        except ssl.SSLError:
            with contextlib.suppress(OSError):  # send the alert, so that the broker's log has the cause too
                sock.send(outgoing.read())
            raise
        if outgoing.pending:
            await loop.sock_sendall(sock, outgoing.read())
        if is_done:
            return tls, incoming, outgoing
        data = await loop.sock_recv(sock, HANDSHAKE_BYTES)
        if not data:
            raise ConnectionResetError
        incoming.write(data)
