"""Listeners and connections of the fault kit: read a request, apply its rule, pass it on, answer in order.

Each connection has two threads, one for requests and one for answers, so that a rule may simply wait. A
:class:`Channel` connects it to a real broker, or to the fake one.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from typing import Any
from uuid import UUID

from sidecar.tools.testing.fault_rules import Rule, RuleBook
from sidecar.tools.testing.kafka_frames import (
    FRAME_BYTES_MAX,
    Api,
    Request,
    Unreadable,
    read_answer,
    read_request,
    write_answer,
)
from sidecar.tools.testing.refusals import edited, note_codes
from sidecar.tools.testing.running import Running

_CHUNK_BYTES = 1 << 16


class ConnectionLost(OSError):
    """The peer is gone, or a rule closed the connection."""


class Exchange:
    """A request and the place of its answer."""

    def __init__(self, request: Request, taken: tuple[Rule, int] | None) -> None:
        self.request = request
        self.rule: Rule | None = taken[0] if taken is not None else None
        self.hit = taken[1] if taken is not None else 0
        self.answer: bytes | None = None
        self.is_lost = False
        self.ready = threading.Event()

    @property
    def refusal(self) -> int | None:
        return self.rule.refusal(self.hit) if self.rule is not None else None

    def complete(self, answer: bytes) -> None:
        """The answer, without its 4-byte length."""
        self.answer = answer
        self.ready.set()

    def lose(self) -> None:
        self.is_lost = True
        self.ready.set()


class Channel(ABC):
    """The receiver of a connection's requests."""

    @abstractmethod
    def submit(self, exchange: Exchange) -> None:
        """Carry out the request (or refuse it if the exchange says so), and complete the exchange now or later. Raises
        ConnectionLost when the connection must end.
        """

    @abstractmethod
    def close(self) -> None: ...


class FaultServer(Running):
    """One listener per broker; subclasses define the channel behind it. All methods are thread-safe."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        advertised_host: str | None = None,
        receive_buffer_bytes: int | None = None,
        log_max: int | None = None,
    ) -> None:
        self._host = host
        self._advertised_host = advertised_host or host
        self._receive_buffer_bytes = receive_buffer_bytes
        self._book = RuleBook(log_max)
        self._listeners: dict[int, Listener] = {}
        self._connections: set[Connection] = set()
        self._connection_count = 0
        self._lock = threading.RLock()
        self.topic_names: dict[UUID, str] = {}
        """Topic id → name, learned from Metadata; Produce v13 names topics by id."""

    # --- scripting -----------------------------------------------------------------------------------------

    def add(self, rule: Rule) -> Rule:
        """Add a rule. It stays until it has had its hits, or until :meth:`clear_rules`."""
        return self._book.add(rule)

    def clear_rules(self) -> None:
        """Remove all rules and release everything they hold."""
        self._book.clear()

    def requests(self, api: int | None = None, topic: str | None = None) -> list[Request]:
        """Every request so far, oldest first; of one api, or with a batch for one topic."""
        return self._book.requests(api, topic)

    def disconnect(self, node: int | None = None) -> None:
        """Close every connection (to one broker); clients may reconnect at once."""
        for connection in self._connections_to(node):
            connection.close()

    def stop_listening(self, node: int) -> None:
        """Take the broker down: its port refuses connections, and the present ones are closed."""
        self._listeners[node].stop()
        self.disconnect(node)

    def listen_again(self, node: int) -> None:
        """Bring the broker back, on the same port."""
        self._listeners[node].start()

    def stop_reading(self, node: int | None = None) -> None:
        """Accept connections but read nothing from any until :meth:`read_again`: the client's bytes fill the sockets'
        buffers.
        """
        for listener in self._listeners_of(node):
            listener.reading.clear()

    def read_again(self, node: int | None = None) -> None:
        for listener in self._listeners_of(node):
            listener.reading.set()

    def nodes(self) -> list[int]:
        """The brokers known so far, without a proxy's bootstrap addresses."""
        with self._lock:
            return sorted(node for node in self._listeners if node >= 0)

    def connections(self, node: int | None = None) -> list[int]:
        """The numbers of the open connections, as in the log of requests."""
        return [each.number for each in self._connections_to(node)]

    def address(self, node: int) -> str:
        """``host:port`` of a broker's listener, as it is advertised."""
        return f"{self._advertised_host}:{self._listeners[node].port}"

    def stop(self) -> None:
        """Close everything. Safe to call twice."""
        self._book.clear()
        for listener in self._listeners_of(None):
            listener.stop()
            listener.reading.set()
        self.disconnect()

    # --- for listeners, connections and subclasses ---------------------------------------------------------

    @abstractmethod
    def open_channel(self, connection: Connection) -> Channel:
        """Open the channel of a connection, in the connection's own thread. Raises OSError when there is no broker."""

    def translate(self, request: Request, entity: Any) -> Any:
        """A replacement of an answer's entity; None leaves it unchanged."""
        return None

    def listen(self, node: int, port: int = 0) -> Listener:
        """The listener for that broker, made at its first use."""
        with self._lock:
            if node not in self._listeners:
                self._listeners[node] = Listener(self, node, self._host, port, self._receive_buffer_bytes)
                self._listeners[node].start()
            return self._listeners[node]

    def accepted(self, listener: Listener, sock: socket.socket) -> None:
        with self._lock:
            self._connection_count += 1
            connection = Connection(self, listener, self._connection_count, sock, self._book)
            self._connections.add(connection)
        connection.start()

    def ended(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _connections_to(self, node: int | None) -> list[Connection]:
        with self._lock:
            return [each for each in self._connections if node in (None, each.node)]

    def _listeners_of(self, node: int | None) -> list[Listener]:
        with self._lock:
            return [each for each in self._listeners.values() if node in (None, each.node)]


class Listener:
    """A port for one broker. It keeps its port when it is stopped and started again."""

    def __init__(
        self, server: FaultServer, node: int, host: str, port: int, receive_buffer_bytes: int | None
    ) -> None:
        self.node = node
        self.port = port
        self.reading = threading.Event()
        self.reading.set()
        self._server = server
        self._host = host
        self._receive_buffer_bytes = receive_buffer_bytes
        self._sock: socket.socket | None = None

    def start(self) -> None:
        if self._sock is not None:
            return
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        sock.bind((self._host, self.port))
        sock.listen(64)
        self.port = sock.getsockname()[1]
        self._sock = sock
        threading.Thread(target=self._accept, args=(sock,), daemon=True, name=f"fault-{self.node}").start()

    def stop(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the accept()
            sock.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._server.accepted(self, sock)


class Connection:
    """One client's connection."""

    def __init__(
        self, server: FaultServer, listener: Listener, number: int, sock: socket.socket, book: RuleBook
    ) -> None:
        self.node = listener.node
        self.number = number
        self._server = server
        self._listener = listener
        self._sock = sock
        self._book = book
        self._pending: queue.SimpleQueue[Exchange | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._channel: Channel | None = None

    def start(self) -> None:
        for target in (self._read_requests, self._write_answers):
            threading.Thread(target=target, daemon=True, name=f"fault-connection-{self.number}").start()

    def close(self) -> None:
        """Close both sides at once."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if self._channel is not None:
            self._channel.close()
        self._pending.put(None)
        self._server.ended(self)

    def _read_requests(self) -> None:
        try:
            self._channel = channel = self._server.open_channel(self)
            if self._closed.is_set():
                channel.close()
            while True:
                frame = read_frame(self._sock, self._listener.reading)
                request = read_request(
                    frame,
                    node=self.node,
                    connection=self.number,
                    at_s=time.monotonic(),
                    topic_names=self._server.topic_names,
                )
                self._pass_on(channel, request)
        except (OSError, Unreadable):
            self.close()

    def _pass_on(self, channel: Channel, request: Request) -> None:
        exchange = Exchange(request, self._book.take(request))
        rule = exchange.rule
        if rule is not None:
            if rule.delay_ms:
                self._closed.wait(rule.delay_ms / 1000)
            if rule.holds:
                rule.gate.wait()
            if rule.cuts:
                request.fate = "cut"
                raise ConnectionLost("cut by a rule")
        if request.api == Api.PRODUCE and request.acks == 0:
            if exchange.refusal is not None:
                request.fate = "refused"
                raise ConnectionLost("an acks=0 request has no other answer than the end of its connection")
            exchange.ready.set()
        else:
            self._pending.put(exchange)
        request.fate = "refused" if exchange.refusal is not None else "forwarded"
        channel.submit(exchange)

    def _write_answers(self) -> None:
        try:
            while True:
                exchange = self._pending.get()
                if exchange is None:
                    return
                exchange.ready.wait()
                if exchange.is_lost or exchange.answer is None:
                    self.close()
                    return
                self._answer(exchange, exchange.answer)
        except (OSError, Unreadable):
            self.close()

    def _answer(self, exchange: Exchange, answer: bytes) -> None:
        request, rule = exchange.request, exchange.rule
        answer = self._rewritten(exchange, answer)
        if rule is not None:
            if rule.answer_delay_ms:
                self._closed.wait(rule.answer_delay_ms / 1000)
            if rule.holds_answer:
                rule.gate.wait()
            if rule.drops_answer:
                request.fate = "answer dropped"
                return
            if rule.cuts_answer:
                request.fate = "answer cut"
                raise ConnectionLost("cut by a rule")
        request.fate = "answered"
        self._sock.sendall(struct.pack(">i", len(answer)) + answer)

    def _rewritten(self, exchange: Exchange, answer: bytes) -> bytes:
        request, rule = exchange.request, exchange.rule
        if request.message is None:
            return answer
        entity = read_answer(request.api, request.version, answer)
        changed = self._server.translate(request, entity)
        if rule is not None and exchange.refusal is None:
            code = rule.code(exchange.hit)
            if code is not None:
                changed = edited(
                    request, changed or entity, code, rule.text, rule, topic_names=self._server.topic_names
                )
        if rule is not None and rule.edit is not None:
            changed = rule.edit(changed or entity)
        note_codes(request, changed or entity, self._server.topic_names)
        return answer if changed is None else write_answer(request.correlation_id, changed)


def read_frame(sock: socket.socket, reading: threading.Event | None = None) -> bytes:
    """One frame without its length. Raises ConnectionLost at the end, and Unreadable for an invalid length."""
    (length,) = struct.unpack(">i", _read(sock, 4, reading))
    if not 0 <= length <= FRAME_BYTES_MAX:
        raise Unreadable(f"a frame of {length} bytes")
    return _read(sock, length, reading)


def _read(sock: socket.socket, count: int, reading: threading.Event | None) -> bytes:
    parts, missing = [], count
    while missing:
        if reading is not None:
            reading.wait()
        part = sock.recv(min(missing, _CHUNK_BYTES))
        if not part:
            raise ConnectionLost("the connection was closed")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
