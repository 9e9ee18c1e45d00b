"""A small OpenID Connect server: tokens for client credentials, their public keys, and faults on demand.

::

    with TokenServer() as tokens:
        start_client(token_url=tokens.token_url)
        tokens.fault = Fault.UNAUTHORIZED
        ...
        tokens.fault = None

Tokens are JWTs signed with RS256; a real Kafka validates them with :attr:`TokenServer.jwks`. Needs ``cryptography``.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
import time
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote_plus

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from sidecar.tools.testing.certificates import Certificate
from sidecar.tools.testing.kafka_listeners import AUDIENCE, ISSUER
from sidecar.tools.testing.running import Running

KEY_ID = "kit"
SLOW_S = 60.0
EXPIRED_S = -600.0
"""A margin of minutes: a validator may tolerate clock differences of seconds or minutes."""


class Fault(Enum):
    """Behaviour of the token endpoint during a fault."""

    DOWN = "the connection is closed without an answer"
    SLOW = "no answer until the fault is over, or for a minute"
    UNAUTHORIZED = "401 with Kafka's usual JSON"
    SERVER_ERROR = "500"
    HTML = "200 with the page of a proxy"
    NO_TOKEN = "200 with JSON that has no token"
    NO_JWT = "200 with a token that is no JWT"
    EXPIRED = "a signed token whose time is over"
    FORGED = "a token that another key signed"


class TokenRequest(NamedTuple):
    """One request to the token endpoint. ``at_s`` is by time.monotonic()."""

    at_s: float
    client_id: str
    scope: str
    fault: Fault | None


class TokenServer(Running):
    """Token endpoint and key set in a thread; use as a context manager. Thread-safe.

    ``clients``: id → secret of the clients that get a token; None: every client does. ``certificate``: serve over TLS.
    ``subject``: Kafka's user, by default the client's id. ``lifetime_s`` may be changed at any time.
    """

    def __init__(
        self,
        *,
        clients: dict[str, str] | None = None,
        certificate: Certificate | None = None,
        subject: str | None = None,
        lifetime_s: float = 3600.0,
    ) -> None:
        self.clients = clients
        self.subject = subject
        self.lifetime_s = lifetime_s
        self.requests: list[TokenRequest] = []
        self.issued: list[str] = []
        """All tokens issued so far."""
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        self._fault: Fault | None = None
        self._mended = threading.Event()
        self._serial = 0
        self._server = _Server(("127.0.0.1", 0), self, certificate)
        self._scheme = "http" if certificate is None else "https"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True, name="tokens"
        )

    # For clients and brokers

    @property
    def token_url(self) -> str:
        return f"{self._scheme}://localhost:{self._server.server_port}/token"

    @property
    def jwks(self) -> str:
        """The public keys as JSON (RFC 7517); also served at ``/jwks``."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "kid": KEY_ID,
            "use": "sig",
            "alg": "RS256",
            "n": _base64url(numbers.n.to_bytes(256)),
            "e": _base64url(numbers.e.to_bytes(3)),
        }
        return json.dumps({"keys": [key]})

    def sign(self, subject: str, *, lifetime_s: float = 3600.0, forged: bool = False) -> str:
        """Return a token for ``subject`` that expires in ``lifetime_s`` seconds; ``forged``: signed with an unknown
        key.
        """
        now = time.time()
        with_dot = [
            {"alg": "RS256", "typ": "JWT", "kid": KEY_ID},
            {
                "iss": ISSUER,
                "sub": subject,
                "aud": AUDIENCE,
                "iat": int(now + min(0.0, lifetime_s) - 1),
                "exp": int(now + lifetime_s),
                "jti": self._next_id(),
            },
        ]
        signed = ".".join(_base64url(json.dumps(part).encode()) for part in with_dot)
        key = rsa.generate_private_key(public_exponent=65_537, key_size=2048) if forged else self._key
        signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.issued.append(f"{signed}.{_base64url(signature)}")
        return self.issued[-1]

    # Faults

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        """Set the fault. Requests that wait under :attr:`Fault.SLOW` continue."""
        self._fault = fault
        mended, self._mended = self._mended, threading.Event()
        mended.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.fault = None
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # For the handler

    def _next_id(self) -> str:
        self._serial += 1
        return str(self._serial)

    def answer(self, client_id: str, secret: str, scope: str) -> tuple[int, str, str] | None:
        """Return status, content type and body for one request; None: close the connection."""
        fault, mended = self._fault, self._mended
        self.requests.append(TokenRequest(time.monotonic(), client_id, scope, fault))
        if fault is Fault.SLOW:
            mended.wait(SLOW_S)
            fault = self._fault if self._fault is not Fault.SLOW else Fault.DOWN
        known = self.clients is None or self.clients.get(client_id) == secret
        refusal = json.dumps({"error": "invalid_client", "error_description": "The client is not known."})
        match fault:
            case Fault.DOWN:
                return None
            case Fault.SERVER_ERROR:
                return 500, "text/plain", "Internal Server Error"
            case Fault.HTML:
                return 200, "text/html", "<!DOCTYPE html><html><body><h1>Welcome</h1></body></html>"
            case Fault.NO_TOKEN:
                return 200, "application/json", '{"token_type": "Bearer"}'
            case Fault.UNAUTHORIZED:
                return 401, "application/json", refusal
        if not known:
            return 401, "application/json", refusal
        subject = self.subject or client_id
        lifetime_s = EXPIRED_S if fault is Fault.EXPIRED else self.lifetime_s
        if fault is Fault.NO_JWT:
            token = "opaque"
        else:
            token = self.sign(subject, lifetime_s=lifetime_s, forged=fault is Fault.FORGED)
        body = {"access_token": token, "token_type": "Bearer", "expires_in": int(max(0, lifetime_s))}
        return 200, "application/json", json.dumps(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], tokens: TokenServer, certificate: Certificate | None
    ) -> None:
        super().__init__(address, _Handler)
        self.tokens = tokens
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            with tempfile.TemporaryDirectory() as folder:
                self._context.load_cert_chain(certificate.write(Path(folder) / "server.pem"))

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. The TLS handshake happens at the first read, in the handler's own thread."""
        connection, address = super().get_request()
        if self._context is not None:
            connection = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback: tests use clients that reject the certificate or disconnect."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/jwks":
            self._reply(200, "application/json", self.server.tokens.jwks)
        else:
            self._reply(404, "text/plain", "no such page")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        fields = {name: values[0] for name, values in parse_qs(body).items()}
        # RFC 6749 section 2.3.1: credentials in the header, or in the body.
        client_id, secret = fields.get("client_id", ""), fields.get("client_secret", "")
        scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "basic":
            client_id, _, secret = base64.b64decode(encoded).decode().partition(":")
            client_id, secret = unquote_plus(client_id), unquote_plus(secret)
        answer = self.server.tokens.answer(client_id, secret, fields.get("scope", ""))
        if answer is None:
            self.close_connection = True
        else:
            self._reply(*answer)

    def _reply(self, status: int, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: the list of requests is the log."""


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
