"""A scripted broker on a real local socket, with framing of its own so that codec bugs cannot cancel out."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple


def api_versions_body(*rows: tuple[int, int, int]) -> bytes:
    """An ApiVersions v0 body; rows are (api key, lowest, highest version)."""
    return struct.pack(">hi", 0, len(rows)) + b"".join(struct.pack(">hhh", *row) for row in rows)


API_VERSIONS_BODY_V0 = api_versions_body((0, 3, 11), (3, 4, 12), (18, 0, 3), (22, 0, 4))


class Request(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    frame: bytes


Handler = Callable[["Peer", Request], Awaitable[None]]


class Peer:
    """One accepted connection, through TLS where the broker has a context for it."""

    def __init__(self, broker: FakeBroker, sock: socket.socket) -> None:
        self.broker = broker
        self.sock = sock
        self.loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (
            None
            if broker.tls is None
            else broker.tls.wrap_bio(self._incoming, self._outgoing, server_side=True)
        )

    async def shake_hands(self) -> None:
        if self.tls is not None:
            await self._with_tls(self.tls.do_handshake)

    async def read_frame(self) -> bytes | None:
        head = await self._read(4)
        return None if head is None else await self._read(struct.unpack(">i", head)[0])

    async def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            got = await self._receive(count - len(data))
            if not got:
                return None
            data += got
        return data

    async def _receive(self, most: int) -> bytes:
        if self.tls is None:
            return await self.loop.sock_recv(self.sock, most)
        try:
            return await self._with_tls(lambda: self.tls.read(most))  # type: ignore[union-attr]
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def _with_tls(self, step: Callable[[], Any]) -> Any:
        """Repeat a step of TLS until it has the bytes it needs; send its bytes."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self.loop.sock_recv(self.sock, 64 << 10)
                self._incoming.write(data) if data else self._incoming.write_eof()
            except ssl.SSLError:
                await self._flush()
                raise
            else:
                await self._flush()
                return done

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self.loop.sock_sendall(self.sock, self._outgoing.read())

    async def send(self, data: bytes) -> None:
        """Raw bytes, encrypted where the connection is."""
        if self.tls is None:
            await self.loop.sock_sendall(self.sock, data)
        else:
            self.tls.write(data)
            await self._flush()

    async def answer(self, request: Request, body: bytes, *, flexible: bool = False) -> None:
        payload = struct.pack(">i", request.correlation_id) + (b"\0" if flexible else b"") + body
        await self.send(struct.pack(">i", len(payload)) + payload)

    def close(self) -> None:
        self.sock.close()


async def speak_api_versions(peer: Peer, request: Request) -> None:
    """Answers ApiVersions v0; to anything newer error 35 with a body that no strict decoder takes."""
    if request.version == 0:
        await peer.answer(request, API_VERSIONS_BODY_V0)
    else:
        await peer.answer(request, struct.pack(">h", 35) + b"\x7fgarbage")


class FakeBroker:
    """Accepts connections; each frame goes to ``handler``, ApiVersions to ``on_api_versions``.

    With ``reads=False`` a connection is accepted, negotiated, and then never read again.
    """

    usual_tls: ssl.SSLContext | None = None
    """For brokers that are given none: a suite of tests runs in plaintext and in TLS."""

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        on_api_versions: Handler = speak_api_versions,
        host: str = "127.0.0.1",
        reads: bool = True,
        accepts_only: bool = False,
        receive_buffer_bytes: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls or FakeBroker.usual_tls
        self.refused: list[ssl.SSLError] = []
        """Handshakes that have failed here."""
        self.requests: list[Request] = []
        self.peers: list[Peer] = []
        self._handler = handler
        self._on_api_versions = on_api_versions
        self._reads = reads
        self._accepts_only = accepts_only
        self._tasks: list[asyncio.Task[None]] = []
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer_bytes is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._sock.setblocking(False)
        self._host = host
        self.port = 0

    async def __aenter__(self) -> FakeBroker:
        self._sock.bind((self._host, self.port))
        self._sock.listen(16)
        self.port = self._sock.getsockname()[1]
        self._tasks.append(asyncio.create_task(self._accept()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sock.close()
        for peer in self.peers:
            peer.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._sock)
            sock.setblocking(False)
            peer = Peer(self, sock)
            self.peers.append(peer)
            if not self._accepts_only:
                self._tasks.append(asyncio.create_task(self._serve(peer)))

    async def _serve(self, peer: Peer) -> None:
        try:
            await peer.shake_hands()
        except ssl.SSLError as error:
            self.refused.append(error)
            peer.close()
            return
        while True:
            frame = await peer.read_frame()
            if frame is None:
                return
            request = Request(*struct.unpack(">hhi", frame[:8]), frame)
            self.requests.append(request)
            if request.api_key == 18:
                await self._on_api_versions(peer, request)
                if not self._reads and request.version == 0:
                    return
            elif self._handler is not None:
                await self._handler(peer, request)
