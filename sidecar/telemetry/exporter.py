"""HTTP of the daemon: /metrics, /healthz, /status.json and a small page. Reads only, no secrets in it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from sidecar.shm.segment import Segment
from sidecar.telemetry.collector import SegmentCollector, read_counters, sum_counters
from sidecar.telemetry.page import render_page

REQUEST_BYTES_MAX = 16 << 10
REQUEST_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 64
"""One more ends the oldest: of those that have not asked yet, else of those that do not take their answer."""

Health = Callable[[], tuple[bool, str]]
Answer = tuple[HTTPStatus, str, bytes]


class Exporter:
    """Bound early (so that a taken port is refused before anything starts), served in the controller's
    loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        host, port = sock.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._segment: Segment | None = None
        self._registry = CollectorRegistry()
        self._health: Health = lambda: (False, "Starting.")
        self._status: Callable[[], dict[str, Any]] = dict
        self._server: asyncio.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        # Oldest first. Who has asked is answered at once; a connection that says nothing must not stand in its way.
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._answered: dict[asyncio.StreamWriter, None] = {}

    @classmethod
    def bind(cls, host: str, port: int) -> Exporter:
        """Take the port. Raises OSError when it is taken or the host is not ours."""
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(CONNECTIONS_MAX)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        return cls(sock)

    def attach(self, segment: Segment) -> None:
        self._segment = segment
        self._registry.register(SegmentCollector(segment, self._current_status))

    def _current_status(self) -> dict[str, Any]:
        return self._status()

    def start(self, *, health: Health, status: Callable[[], dict[str, Any]]) -> None:
        """Serve from the running loop."""
        self._health = health
        self._status = status
        self._starting = asyncio.get_running_loop().create_task(self._serve())

    def close(self) -> None:
        """Stop listening; after this the segment is not read any more."""
        if self._server is not None:
            self._server.close()
        elif self._starting is not None:
            self._starting.cancel()
        self._sock.close()
        self._segment = None

    async def _serve(self) -> None:
        self._server = await asyncio.start_server(self._connection, sock=self._sock, limit=REQUEST_BYTES_MAX)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._make_room()
        self._silent[writer] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    return
                self._silent.pop(writer, None)
                self._answered[writer] = None
                writer.write(self._respond(head))
                await writer.drain()
        except (OSError, TimeoutError):
            writer.transport.abort()
        finally:
            self._silent.pop(writer, None)
            self._answered.pop(writer, None)
            writer.close()

    def _make_room(self) -> None:
        if len(self._silent) + len(self._answered) >= CONNECTIONS_MAX:
            line = self._silent or self._answered
            oldest = next(iter(line))
            del line[oldest]
            oldest.transport.abort()

    def _respond(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            status, kind, body = HTTPStatus.BAD_REQUEST, "text/plain", b"Not an HTTP/1 request.\n"
        elif words[0] not in (b"GET", b"HEAD"):
            status, kind, body = (
                HTTPStatus.METHOD_NOT_ALLOWED,
                "text/plain",
                b"Only GET and HEAD are answered.\n",
            )
        else:
            status, kind, body = self._answer(words[1].split(b"?", 1)[0].decode("latin-1"))
        headers = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: "
            f"{len(body)}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        ).encode()
        return headers if words[0] == b"HEAD" else headers + body

    def _answer(self, path: str) -> Answer:
        if self._segment is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"The daemon is ending.\n"
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == "/healthz":
            is_healthy, sentence = self._health()
            if is_healthy:
                return HTTPStatus.OK, "text/plain; charset=utf-8", b"ok\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{sentence}\n".encode()
        if path in ("/", "/status.json"):
            shown = {**self._status(), "counters": sum_counters(read_counters(self._segment))}
            if path == "/":
                return HTTPStatus.OK, "text/html; charset=utf-8", render_page(shown).encode()
            return HTTPStatus.OK, "application/json", json.dumps(shown, indent=1).encode()
        return HTTPStatus.NOT_FOUND, "text/plain", b"Here are /, /metrics, /healthz and /status.json.\n"
