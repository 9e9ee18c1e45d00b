"""A relay of bytes in front of one port: it counts and cuts connections and refuses new ones, and changes no byte."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

CONNECT_TIMEOUT_S = 10.0
_CHUNK_BYTES = 1 << 16
_SLOW_CHUNK_BYTES = 1 << 13


class TcpRelay:
    """Passes bytes to ``target_host:target_port`` and back; TLS passes unchanged. Thread-safe.

    ``accepted_s`` has the time (time.monotonic()) of every connection so far. ``port`` 0: any free one. ``tap``: a
    list; each connection appends a list of the chunks that its client sent.
    """

    def __init__(
        self,
        target_port: int,
        *,
        target_host: str = "127.0.0.1",
        port: int = 0,
        tap: list[list[bytes]] | None = None,
    ) -> None:
        self._target = target_host, target_port
        self._tap = tap
        self._listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self.accepted_s: list[float] = []
        self._open: set[socket.socket] = set()
        self._dropping: set[socket.socket] = set()
        self._frozen: set[socket.socket] = set()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._is_refusing = False
        self._bytes_per_s = 0
        self._thread = threading.Thread(target=self._accept, daemon=True, name=f"relay-{self.port}")

    def start(self) -> None:
        self._thread.start()

    @property
    def open_connections(self) -> int:
        with self._lock:
            return len(self._open) // 2

    def cut(self) -> None:
        """Close both sides of every open connection."""
        with self._lock:
            ends = list(self._open)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def silence(self, *, drops: bool) -> None:
        """Stop the bytes of connections that are open now, without closing them; new connections work.

        With ``drops`` the bytes that either end sends are read and discarded, else not read.
        """
        with self._lock:
            (self._dropping if drops else self._frozen).update(self._open)

    def slow_down(self, bytes_per_s: int) -> None:
        """Limit the bytes per second that are read from clients of new connections; the rest waits at the clients."""
        self._listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_CHUNK_BYTES
        )  # accepted sockets inherit it
        self._bytes_per_s = bytes_per_s

    def refuse(self, *, cuts: bool = True) -> None:
        """Close every new connection at once until :meth:`go_on`; with ``cuts`` also the open ones."""
        self._is_refusing = True
        if cuts:
            self.cut()

    def go_on(self) -> None:
        self._is_refusing = False

    def stop(self) -> None:
        """Close everything. Safe to call twice."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._stopped.set()
        self.refuse()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted_s.append(time.monotonic())
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if self._is_refusing:
                return
            try:
                server = socket.create_connection(self._target, CONNECT_TIMEOUT_S)
            except OSError:
                return
            with server:
                server.settimeout(None)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open |= {client, server}
                if self._is_refusing:
                    self.cut()
                back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
                back.start()
                heard: list[bytes] = []
                if self._tap is not None:
                    self._tap.append(heard)
                self._pump(client, server, heard if self._tap is not None else None)
                back.join()
                with self._lock:
                    self._open -= {client, server}

    def _pump(self, source: socket.socket, target: socket.socket, heard: list[bytes] | None = None) -> None:
        """Pass bytes until one end is closed, then close both."""
        with contextlib.suppress(OSError):
            while chunk := source.recv(_SLOW_CHUNK_BYTES if self._bytes_per_s else _CHUNK_BYTES):
                if self._bytes_per_s:
                    time.sleep(len(chunk) / self._bytes_per_s)
                if source in self._frozen:
                    self._stopped.wait()
                if source in self._dropping:
                    continue
                if heard is not None:
                    heard.append(chunk)
                target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
