"""BrokerLink: one TCP connection to one broker, on a raw non-blocking socket inside the event loop.

Without TLS, ``sendmsg`` sends straight from the caller's buffers. Its result says exactly which bytes the kernel has
taken, and so when a buffer may be re-used. A transport for TLS reports the plaintext whose ciphertext the kernel has.
After ``close()`` has returned, the buffers are not read any more.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from random import random
from typing import TYPE_CHECKING, Any, Final

from sidecar.common.clock import MonotonicClock
from sidecar.common.model import Node
from sidecar.net.kafka.connector import (
    SYSTEM_BUFFERS,
    LinkError,
    SaslFailed,
    SocketBuffers,
    TlsFailed,
    open_connection,
)
from sidecar.net.kafka.link_security import LinkSecurity
from sidecar.net.kafka.questions import complete
from sidecar.net.kafka.transport import LinkTransport, failure_words, take_nothing
from sidecar.protocol.api_versions import NOTHING_OFFERED
from sidecar.protocol.connection import (
    BrokerConnection,
    InFlightRequest,
    OnTaken,
    Outgoing,
    SendQueue,
    make_tuple,
)
from sidecar.protocol.messages import (
    ApiKey,
    Buffer,
    ProtocolError,
    RequestMessage,
    encode_request,
    is_response_header_flexible,
)
from sidecar.protocol.produce import PRODUCE_FLEXIBLE_VERSION

if TYPE_CHECKING:
    from sidecar.net.kafka.authentication import Authenticator, Held, SessionRenewal

SENDMSG_BUFFERS_MAX: Final = 1024
"""IOV_MAX on Linux: one more and sendmsg fails with EMSGSIZE."""
RECEIVE_BYTES: Final = 64 << 10
RECEIVES_MAX: Final = 8
"""Limit of reads in one turn of the loop, so that other sockets get their share."""

_PRODUCE: Final = ApiKey.PRODUCE
"""Cached: reading an enum member through its class costs as much as a call, and this is used for each request."""


class BrokerLink:
    """A connection to ``node``, made by ClusterLinks. Belongs to the loop's thread. Used once: connect, use, close.

    ``on_response(link, correlation_id, body, now_ms)`` runs for each answer to ``send_buffers``, in order; ``body`` is
    the part after the response header. ``on_closed(link, error)`` runs exactly once, even if the connect fails; error
    is None only after ``close(None)``. ``on_deadline(at_ms)`` requests a call of ``check_deadlines`` at that time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: Node,
        *,
        client_id: str | None,
        clock: MonotonicClock,
        setup_timeout_ms: float,
        request_timeout_ms: float,
        security: LinkSecurity,
        buffers: SocketBuffers = SYSTEM_BUFFERS,
        authenticator: Authenticator | None = None,
        on_ready: Callable[[BrokerLink], None],
        on_response: Callable[[BrokerLink, int, bytes, float], None],
        on_closed: Callable[[BrokerLink, str | None], None],
        on_deadline: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.node = node
        self.client_id = client_id
        self.is_ready = False
        self.is_closed = False
        self.is_refused = False
        """Closed because the login was refused."""
        self.has_tls_failed = False
        """Closed because TLS could not be set up."""
        self.last_used_ms = clock.now_ms()
        self.step = ""
        """Phrase that says what the connection waits for while it is being set up."""
        self.untouched_at_close: tuple[int, ...] = ()
        """Correlation ids of messages of which the kernel had no byte when the link closed: they surely were
        not sent.
        """
        self._loop = loop
        self._clock = clock
        self._setup_timeout_ms = setup_timeout_ms
        self._request_timeout_ms = request_timeout_ms
        self._security = security
        self._buffers = buffers
        self._authenticator = authenticator
        self._renewal: SessionRenewal | None = None
        """Renews a login that ends before the connection; None without such a limit."""
        self._on_ready = on_ready
        self._on_response = on_response
        self._on_closed = on_closed
        self._on_deadline = on_deadline
        self._connection = BrokerConnection()
        self.take_correlation_id = self._connection.take_correlation_id
        """Returns a correlation id for one message of ``send_buffers``. Messages leave in the order in which they are
        sent.
        """
        self._versions: Mapping[int, int] = {}
        self.produce_version: int | None = None
        """``version`` of Produce, for each request."""
        self.offered = NOTHING_OFFERED
        """What the broker offered, and the features of its cluster, when the link was opened."""
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._outgoing = SendQueue()
        self._receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._sock: socket.socket | None = None
        self._transport: LinkTransport | None = None
        self._give: Callable[[Sequence[Buffer]], int]
        """The transport's ``send``; ``_receive_into`` below is its ``receive_into``. Without TLS both are the socket's
        methods.
        """
        self._receive_into: Callable[[memoryview], int]
        self._is_writer_set = False
        self._failure: Exception | None = None
        """Why the transport could not send; the link is about to close."""
        self._progress_ms = 0.0
        self._watched_ms = inf
        """A call of ``check_deadlines`` is requested for this time; no later deadline needs another one."""
        self._setup_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "ready" if self.is_ready else "connecting"
        return f"<BrokerLink {self.node} {state}>"

    # Setting up and closing

    def connect(self) -> None:
        """Start connecting: resolve, connect to each address in turn, agree on versions; then ``on_ready`` runs."""
        self._setup_task = self._loop.create_task(self._set_up())

    def close(self, reason: str | None = None) -> None:
        """Close at once. When this returns, the socket is closed, every pending ``on_taken`` was called with False,
        every awaited request has failed with LinkError, and ``on_closed`` has run. Repeated calls do nothing.
        """
        if self.is_closed:
            return
        self.is_closed = True
        self.is_ready = False
        if self._setup_task is not None:
            self._setup_task.cancel()
        outgoing, self._outgoing = self._outgoing, SendQueue()
        futures, self._futures = self._futures, {}
        if self._renewal is not None:
            outgoing.extend(each.outgoing for each in self._renewal.held)
            self._renewal.close()
        if self._transport is not None and isinstance(self._failure, OSError | None):
            self.untouched_at_close = tuple(outgoing.untouched(self._transport.unreported_bytes))
        error = LinkError(reason or f"The connection to {self.node} was closed.")
        with ExitStack() as ends:  # runs them from the last to the first, even if one of them fails
            ends.callback(self._on_closed, self, reason)
            for future in reversed(futures.values()):
                if not future.done():
                    ends.callback(future.set_exception, error)
            for each in reversed(outgoing):
                each.buffers = []
                if each.on_taken is not None:
                    ends.callback(each.on_taken, False)
            if self._sock is not None and self._transport is not None:
                self._loop.remove_reader(self._sock.fileno())
                if self._is_writer_set:
                    self._loop.remove_writer(self._sock.fileno())
                ends.callback(self._transport.close)

    # Sending

    def version(self, api_key: int) -> int | None:
        """API version negotiated with this broker; None if the broker lacks the API or the link is not ready."""
        return self._versions.get(api_key)

    def send_buffers(
        self,
        correlation_id: int,
        buffers: Sequence[Buffer],
        on_taken: OnTaken | None = None,
        *,
        expect_response: bool = True,
        deadline_ms: float | None = None,
        now_ms: float | None = None,
    ) -> bool:
        """Send one complete Produce request (its 4-byte length first) after queued ones. Never blocks.

        True: the kernel has all bytes, and ``on_taken`` is not called. False: the buffers must not change until
        ``on_taken(complete)`` is called, once: True when the kernel has all bytes (maybe before this returns), False if
        the link closed before that. ``expect_response`` is False for acks=0. If no answer comes by ``deadline_ms``
        (monotonic), the link closes; None: the caller watches the time. ``now_ms`` saves a clock read. Raises LinkError
        if the link is not ready; then ``on_taken`` is not called.
        """
        if not self.is_ready:
            raise LinkError(f"The connection to {self.node} is not ready.")
        expected: InFlightRequest | None = None
        if expect_response:
            if deadline_ms is not None and deadline_ms < self._watched_ms:
                self._watched_ms = deadline_ms
                self._on_deadline(deadline_ms)
            version = self.produce_version
            assert version is not None
            flexible = version >= PRODUCE_FLEXIBLE_VERSION
            fields = correlation_id, _PRODUCE, version, flexible, deadline_ms
            expected = make_tuple(InFlightRequest, fields)
        if self._renewal is not None and self._renewal.is_holding:
            self._renewal.hold(expected, Outgoing(correlation_id, buffers, on_taken))
            return False
        if expected is not None:
            self._connection.expect(expected)
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        if self._outgoing or self._is_writer_set or len(buffers) > SENDMSG_BUFFERS_MAX:
            self._send(Outgoing(correlation_id, buffers, on_taken), now_ms)
            return False
        # Nothing is before it: the kernel usually takes it whole, so it is never queued.
        assert self._transport is not None
        self.last_used_ms = self._progress_ms = now_ms
        size, taken = sum(map(len, buffers)), 0
        try:
            taken = self._give(buffers)
        except (BlockingIOError, InterruptedError):
            pass
        except Exception as error:  # whatever it is, the buffers come back
            self._fail_soon(error)
        # kill point: send.part if 0 < taken < size
        # kill point: send.all if taken == size
        if taken == size and not self._transport.wants_write:
            return True
        if taken < size:
            outgoing = Outgoing(correlation_id, buffers, on_taken)
            outgoing.advance(taken)
            self._outgoing.append(outgoing)
        self._write(now_ms)
        return taken == size

    def request(
        self, message: RequestMessage, *, timeout_ms: float | None = None, may_wait: bool = True
    ) -> asyncio.Future[Any]:
        """Send a small request. The future returns the response entity (kio).

        It raises LinkError if the link closes first, and ProtocolError if the answer cannot be read. After
        ``timeout_ms`` (default: request.timeout.ms) without an answer the link closes. ``may_wait`` False: it passes
        requests that are held while the login is renewed.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_ready:
            future.set_exception(LinkError(f"The connection to {self.node} is not ready."))
            return future
        api_key, version = int(message.__api_key__), int(message.__version__)
        correlation_id = self.take_correlation_id()
        now_ms = self._clock.now_ms()
        deadline_ms = now_ms + (self._request_timeout_ms if timeout_ms is None else timeout_ms)
        expected = InFlightRequest(
            correlation_id, api_key, version, is_response_header_flexible(api_key, version), deadline_ms
        )
        self._futures[correlation_id] = future
        self._on_deadline(deadline_ms)
        outgoing = Outgoing(correlation_id, [encode_request(message, correlation_id, self.client_id)], None)
        if may_wait and self._renewal is not None and self._renewal.is_holding:
            self._renewal.hold(expected, outgoing)
            return future
        self._connection.expect(expected)
        self._send(outgoing, now_ms)
        return future

    def send_held(self, held: Held) -> None:
        """Send a request that was held while the login was renewed."""
        if held.expected is not None:
            self._connection.expect(held.expected)
        self._send(held.outgoing, self._clock.now_ms())

    # State for the owner

    @property
    def in_flight_count(self) -> int:
        """Number of requests without an answer, including queued ones."""
        held = 0 if self._renewal is None else len(self._renewal.held)
        return len(self._connection.in_flight) + held

    @property
    def awaited_count(self) -> int:
        """Number of requests that were sent and have no answer."""
        return len(self._connection.in_flight)

    @property
    def unsent_count(self) -> int:
        """Number of messages of which the kernel does not have all bytes."""
        return len(self._outgoing)

    @property
    def stalled_since_ms(self) -> float | None:
        """Monotonic ms since which the kernel has taken no byte of queued or held data; None if there is none.

        If request buffers run out, the link that has stalled longest is closed.
        """
        if self._outgoing:
            return self._progress_ms
        return None if self._renewal is None else self._renewal.held_since_ms

    def next_deadline_ms(self) -> float | None:
        """When ``check_deadlines`` should run next, monotonic ms; None if nothing is awaited."""
        deadline_ms = self._connection.next_deadline_ms()
        if self._renewal is None:
            return deadline_ms
        due_ms = self._renewal.next_due_ms(self._clock.now_ms())
        if deadline_ms is None:
            return due_ms if due_ms < inf else None
        return min(deadline_ms, due_ms)

    def check_deadlines(self, now_ms: float) -> None:
        """Close the link if an answer is overdue (request.timeout.ms); renew a login that is due."""
        self._watched_ms = inf
        late = self._connection.expired(now_ms)
        if late is not None and not self.is_closed:
            self.close(f"{self.node} did not answer {ApiKey(late.api_key).name} within the request timeout.")
        elif self._renewal is not None and not self.is_closed:
            self._renewal.tick(now_ms)

    def refuse(self, reason: str) -> None:
        """Close the link because the broker refuses the login."""
        self.is_refused = True
        self.close(reason)

    # Inside

    async def _set_up(self) -> None:
        try:
            opened = await open_connection(
                self._loop,
                self.node,
                self.client_id,
                self._setup_timeout_ms,
                self._security,
                self._buffers,
                self._authenticator,
                self._note_step,
            )
        except Exception as error:
            self._setup_task = None
            self.is_refused = isinstance(error, SaslFailed)
            self.has_tls_failed = isinstance(error, TlsFailed)
            reason = str(error)
            if not isinstance(error, LinkError):
                reason = f"Connecting to {self.node} failed: {type(error).__name__}: {reason}"
            self.close(reason)
            return
        self._setup_task = None
        self._sock = opened.sock
        self._transport = opened.transport
        self._give = opened.transport.send
        self._receive_into = opened.transport.receive_into
        self._connection = opened.connection
        self.take_correlation_id = opened.connection.take_correlation_id
        self._versions = opened.versions
        self.produce_version = opened.versions.get(_PRODUCE)
        self.offered = opened.offered
        self.last_used_ms = self._clock.now_ms()
        if opened.session_lifetime_ms:
            self._watch_session(opened.session_lifetime_ms)
        self.is_ready = True
        self._loop.add_reader(
            opened.sock.fileno(), self._readable_through_tls if self._security.has_tls else self._readable
        )
        if opened.transport.has_pending:
            self._loop.call_soon(self._read_on)
        self._on_ready(self)

    def _note_step(self, step: str) -> None:
        self.step = step

    def _watch_session(self, lifetime_ms: float) -> None:
        from sidecar.net.kafka.authentication import SessionRenewal
        from sidecar.protocol.sasl.session import SaslSession

        assert self._authenticator is not None
        self._renewal = SessionRenewal(
            self._loop,
            self,
            self._authenticator,
            self._versions,
            SaslSession(lifetime_ms, self.last_used_ms, random),
            self._clock.now_ms,
            self._on_deadline,
        )

    def _send(self, message: Outgoing, now_ms: float) -> None:
        self.last_used_ms = now_ms
        if not self._outgoing:
            self._progress_ms = now_ms
        self._outgoing.append(message)
        if not self._is_writer_set:
            self._write(now_ms)

    def _write(self, now_ms: float | None = None) -> None:
        assert self._sock is not None and self._transport is not None
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        while self._outgoing and not self.is_closed:
            try:
                taken = self._give(self._outgoing.next_buffers(SENDMSG_BUFFERS_MAX))
            except (BlockingIOError, InterruptedError):
                break
            except Exception as error:
                self._fail_soon(error)
                return
            self._progress_ms = now_ms
            self._outgoing.advance(taken)
            # kill point: send.part if self._outgoing and not self._outgoing[0].is_untouched
            # kill point: send.all if not self._outgoing or self._outgoing[0].is_untouched
        if self.is_closed:
            return
        is_wanted = bool(self._outgoing)
        if self._transport.wants_write and not is_wanted:  # bytes of TLS itself
            try:
                self._transport.flush()
            except Exception as error:
                self._fail_soon(error)
                return
            is_wanted = self._transport.wants_write
        if is_wanted and not self._is_writer_set:
            self._loop.add_writer(self._sock.fileno(), self._write)
        elif not is_wanted and self._is_writer_set:
            self._loop.remove_writer(self._sock.fileno())
        self._is_writer_set = is_wanted

    def _readable_through_tls(self) -> None:
        """Read through TLS, which may hold more than the socket shows, and may have bytes of its own to send."""
        self._readable()
        if self.is_closed:
            return
        assert self._transport is not None
        if self._transport.has_pending:
            self._loop.call_soon(self._read_on)
        if self._transport.wants_write and not self._is_writer_set:
            self._write()

    def _read_on(self) -> None:
        if not self.is_closed:
            self._readable_through_tls()

    def _readable(self) -> None:
        for _ in range(RECEIVES_MAX):
            try:
                count = self._receive_into(self._receive_buffer)
            except (BlockingIOError, InterruptedError):
                return
            except Exception as error:
                self.close(failure_words(f"Reading from {self.node}", error))
                return
            if count == 0:
                self.close(f"{self.node} closed the connection.")
                return
            self.last_used_ms = now_ms = self._clock.now_ms()
            try:
                responses = self._connection.receive_data(self._receive_buffer[:count])
            except ProtocolError as error:
                self.close(f"{self.node}: {error}")
                return
            for request, body in responses:
                future = self._futures.pop(request.correlation_id, None) if self._futures else None
                if future is None:
                    self._on_response(self, request.correlation_id, body, now_ms)
                else:
                    complete(future, request, body)
                if self.is_closed:
                    return
            if self._renewal is not None and self._renewal.is_holding:
                self._renewal.tick(now_ms)
            if count < RECEIVE_BYTES:
                return

    def _fail_soon(self, error: Exception) -> None:
        # The failure was found inside a caller's send. Report it from the loop, when the caller's state is consistent.
        # Before that, read the bytes that the broker still sent: it may answer requests that arrived.
        if self._failure is None:
            self._failure = error
            self._give = take_nothing
            self._loop.call_soon(self._fail, error)

    def _fail(self, error: Exception) -> None:
        try:
            if not self.is_closed:
                self._readable()
        finally:
            self.close(failure_words(f"Sending to {self.node}", error))
