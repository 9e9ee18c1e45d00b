"""The daemon's HTTP server: metrics, health, the state as JSON, and the page. It only reads, and shows no secrets.

The controller owns it, on its loop.

Each connection gets one answer. It has one second until its first byte and ten in all. When the limit is reached, a
new connection ends the oldest one without a request, so idle connections block no other. Concurrent requests share an
answer, and so its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from sidecar.common.sparse_log import SparseLog
from sidecar.shm.segment import Segment
from sidecar.telemetry.collector import SegmentCollector, read_counters, sum_counters
from sidecar.telemetry.flows import Flows
from sidecar.telemetry.history import INTERVAL_S, History, column_totals, delivery_counts
from sidecar.telemetry.page import PAGE, PAGE_POLICY
from sidecar.telemetry.shared_answer import RenderBudget, SharedAnswer
from sidecar.telemetry.state_rows import Samples, Status

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 16 << 10
REQUEST_TIMEOUT_S = 10.0
FIRST_BYTE_S = 1.0
"""The time until the first byte of a request. With TLS it is the time until the end of the handshake, and again until
that byte.
"""
BACKLOG = 1024
"""How many connections the kernel queues for the loop. With fewer, a client's connect() would be repeated after a
second.
"""
ACCEPT_PAUSE_S = 0.1
STALE_S = 10.0
"""A page that nobody has asked for longer begins without rates of topics and clients. It asks every 2 s."""
CONNECTIONS_MAX = 64
"""One more connection ends the oldest one without a request, or else the oldest one that does not read its answer."""

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/"})
"""Paths that need no token: probes have none, and learn only one sentence. The page is the same for all daemons and
asks its reader for the token.
"""
SEND_BUFFER_BYTES = 128 << 10
"""The kernel's send buffer of one connection. It is small, so that a reader that reads nothing is noticed and holds no
more.
"""
ANSWER_BYTES_MAX = 16 << 20
"""The limit of all answers that are not read yet; beyond it the oldest connection is ended."""

Health = Callable[[], tuple[bool, str]]
Answer = tuple[HTTPStatus, str, bytes]


class Exporter:
    """Serves a listening socket. The socket is bound early, so that a port in use is refused before anything starts.

    ``allows(token)`` returns whether a request with this bearer token is answered; None: every request is.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        tls: ssl.SSLContext | None = None,
        allows: Callable[[bytes], Awaitable[bool]] | None = None,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._tls = tls
        self._allows = allows
        self.address = _address(sock, "https://" if tls else "")
        """The address as in daemon.json: ``host:port``, ``https://host:port`` or ``unix:PATH``."""
        self._path = Path(sock.getsockname()) if sock.family == socket.AF_UNIX else None
        self._inode = None if self._path is None else _inode(self._path)
        self._segment: Segment | None = None
        self._registry = CollectorRegistry()
        self._health: Health = lambda: (False, "Starting.")
        self._status: Callable[[], Status] = dict
        self._flows: Flows | None = None
        self._history = History()
        budget = RenderBudget()
        self._shared = {
            path: SharedAnswer(make, budget, now_s=time.monotonic, cpu_s=time.thread_time)
            for path, make in {
                "/metrics": self._metrics,
                "/status.json": self._shown,
                "/api/status": self._live_status,
                "/readyz": self._readiness,
            }.items()
        }
        self._sparse_log = SparseLog(log, lambda: time.monotonic() * 1000)
        self._accepting: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None
        # Oldest first. Requests are answered at once, and connections without a request must not delay them.
        self._silent: dict[asyncio.Task[None], None] = {}
        self._answered: dict[asyncio.Task[None], int] = {}
        """Connections being answered → the bytes of the answer."""

    @property
    def shown_address(self) -> str:
        """The address of the metrics, for the log."""
        if self._path is not None:
            return self.address
        return f"{'' if self._tls else 'http://'}{self.address}/metrics"

    def attach(self, segment: Segment) -> None:
        """Set the segment. Called before :meth:`start`, if there is a segment."""
        self._segment = segment
        self._flows = Flows(segment, STALE_S)

    def start(
        self, *, health: Health, status: Callable[[], Status], failures: Callable[[], Samples] = list
    ) -> None:
        """Serve in the running loop. ``failures``: ((topic, error), records) since the daemon's start."""
        self._health = health
        self._status = status
        if self._segment is not None:
            self._registry.register(SegmentCollector(self._segment, status, failures))
        loop = asyncio.get_running_loop()
        self._accepting = loop.create_task(self._accept())
        self._sampling = loop.create_task(self._sample())

    def listen_at(self, sock: socket.socket) -> None:
        """Serve this socket instead of the one whose path was removed."""
        assert self._path is not None and self._accepting is not None
        self._accepting.cancel()
        self._sock.close()
        sock.setblocking(False)
        self._sock, self._inode = sock, _inode(self._path)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def lost_path(self) -> Path | None:
        """The path of its Unix socket, if that socket is no longer there."""
        try:
            is_there = self._path is None or _inode(self._path) == self._inode
        except OSError:
            is_there = False
        return None if is_there else self._path

    def close(self) -> None:
        """Stop listening; the segment is not read after this. A socket's path is removed first, unless another daemon
        has it now. May be called again.
        """
        if self._path is not None:
            with contextlib.suppress(OSError):
                if _inode(self._path) == self._inode:
                    self._path.unlink()
            self._path = None
        for task in (self._accepting, self._sampling, *self._silent, *self._answered):
            if task is not None:
                task.cancel()
        self._sock.close()
        self._segment = None

    async def _sample(self) -> None:
        """Take samples for the history of the page."""
        while True:
            try:
                if self._segment is not None:
                    now_ms = time.time_ns() // 1_000_000
                    self._history.add(now_ms, column_totals(self._segment), delivery_counts(self._segment))
            except Exception as error:
                self._sparse_log.bug("A sample for the page", error)
            await asyncio.sleep(INTERVAL_S)

    async def _accept(self) -> None:
        """Accept connections. Not by start_server, which would not limit the connections in their TLS handshakes."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(self._sock)
            except OSError as error:  # no descriptor is free, or the peer has gone
                log.debug("A connection could not be taken: %s.", error)
                self._end_oldest(1)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            try:
                self._end_oldest(CONNECTIONS_MAX)
            except Exception as error:
                connected.close()
                self._sparse_log.bug("Taking a connection to http.listen", error)
                continue
            task = loop.create_task(self._connection(connected))
            self._silent[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._silent.pop(task, None)
        self._answered.pop(task, None)

    async def _connection(self, connected: socket.socket) -> None:
        """Answer one request. Cancelled when another connection replaces it."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                reader, writer = await self._streams(connected)
                async with asyncio.timeout(FIRST_BYTE_S):
                    head = await reader.readexactly(1)
                head += await reader.readuntil(b"\r\n\r\n")
                task = asyncio.current_task()
                assert task is not None
                self._silent.pop(task, None)
                self._answered[task] = 0
                response = await self._respond(head)
                self._answered[task] = sum(map(len, response))
                self._shed(task)
                writer.writelines(response)  # not joined: connections share the body
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        except Exception as error:
            self._sparse_log.bug("An answer over HTTP", error)
        finally:
            if writer is not None:
                writer.transport.abort()
            connected.close()

    async def _streams(self, connected: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        reader = asyncio.StreamReader(limit=REQUEST_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connected,
            ssl=self._tls,
            ssl_handshake_timeout=FIRST_BYTE_S if self._tls is not None else None,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _end_oldest(self, most: int) -> None:
        """End the oldest connection when there are ``most`` of them."""
        if len(self._silent) + len(self._answered) < most:
            return
        for table in (self._silent, self._answered):
            for oldest in table:
                self._end(oldest)
                return

    def _shed(self, newest: asyncio.Task[None]) -> None:
        """End the oldest connections that do not read their answers, while these hold too many bytes."""
        while sum(self._answered.values()) > ANSWER_BYTES_MAX:
            oldest = next(iter(self._answered))
            if oldest is newest:
                return  # a single answer may have any size
            self._end(oldest)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._ended(task)
        task.cancel()

    async def _respond(self, head: bytes) -> list[bytes]:
        """Head and body."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        more = ""
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            status, kind, body = HTTPStatus.BAD_REQUEST, "text/plain", b"Not an HTTP/1 request.\n"
        elif words[0] not in (b"GET", b"HEAD"):
            status, kind, body = (
                HTTPStatus.METHOD_NOT_ALLOWED,
                "text/plain",
                b"Only GET and HEAD are answered.\n",
            )
            more = "Allow: GET, HEAD\r\n"
        else:
            path = words[1].split(b"?", 1)[0].decode("latin-1")
            if self._allows and path not in OPEN_PATHS and not await self._allows(_bearer(head)):
                status, kind, body = HTTPStatus.UNAUTHORIZED, "text/plain", b"A bearer token is needed.\n"
                more = "WWW-Authenticate: Bearer\r\n"
            else:
                status, kind, body = self._answer(path)
                if path == "/":
                    more = f"Content-Security-Policy: {PAGE_POLICY}\r\nReferrer-Policy: no-referrer\r\n"
        headers = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: "
            f"{len(body)}\r\n"
            f"{more}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        ).encode()
        return [headers] if words[0] == b"HEAD" else [headers, body]

    def _answer(self, path: str) -> Answer:
        if path == "/livez":
            return HTTPStatus.OK, "text/plain", b"ok\n"  # the loop runs, whatever the state of Kafka
        if path == "/":
            return HTTPStatus.OK, "text/html; charset=utf-8", PAGE
        if self._segment is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"The daemon is ending.\n"
        if path == "/healthz":
            is_healthy, sentence = self._health()
            if is_healthy:
                return HTTPStatus.OK, "text/plain; charset=utf-8", b"ok\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{sentence}\n".encode()
        shared = self._shared.get(path)
        if shared is not None:
            # Pages ask continuously, and their curves need a second between two samples.
            return shared.get(is_crowded=path == "/api/status" or len(self._answered) > 1)
        return (
            HTTPStatus.NOT_FOUND,
            "text/plain",
            b"Here are /, /metrics, /healthz, /livez, /readyz, /api/status and /status.json.\n",
        )

    def _metrics(self) -> Answer:
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def _readiness(self) -> Answer:
        status = self._status()
        if status["accepts_records"]:
            return HTTPStatus.OK, "text/plain", b"ok\n"
        sentence = status["sentence"] or "No record is accepted."
        return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{sentence}\n".encode()

    def _shown(self) -> Answer:
        assert self._segment is not None
        shown = {**self._status(), "counters": sum_counters(read_counters(self._segment))}
        return HTTPStatus.OK, "application/json", _as_json(shown, indent=1)

    def _live_status(self) -> Answer:
        """The state for the page: also with the history, and the flows of topics and clients."""
        assert self._segment is not None and self._flows is not None
        shown = {
            **self._status(),
            "counters": sum_counters(read_counters(self._segment)),
            "now_ms": time.time_ns() // 1_000_000,
            "host": socket.gethostname(),
            "history": self._history.to_json(),
            "flows": self._flows.sample(time.monotonic()),
        }
        return HTTPStatus.OK, "application/json", _as_json(shown)


def _as_json(shown: Status, indent: int | None = None) -> bytes:
    """JSON without any character that begins markup, for a reader that takes it for a page."""
    return json.dumps(shown, indent=indent).replace("<", "\\u003c").encode()


def _inode(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _address(sock: socket.socket, scheme: str) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"{scheme}[{host}]:{port}" if ":" in host else f"{scheme}{host}:{port}"


def _bearer(head: bytes) -> bytes:
    """The bearer token of the first Authorization header; empty without one, or for another scheme."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
    return b""
