"""Transports: move a link's bytes into its socket, plain or through TLS.

Both report how many bytes of the caller's buffers the kernel has taken, and never read those again. A plain transport
uses the socket's own methods. A TLS transport encrypts one chunk at a time in memory (``MemoryBIO``): one call of
OpenSSL and one of the kernel per 7 records.

    buffers ── join ──▶ chunk ── SSL_write ──▶ ciphertext ── send ──▶ kernel
                                               at most one chunk of it waits here
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sidecar.protocol.messages import Buffer

log = logging.getLogger(__name__)

TLS_RECORD_BYTES: Final = 16 << 10
CHUNK_BYTES: Final = 7 * TLS_RECORD_BYTES
"""Plaintext encrypted at once. Its ciphertext stays just below 128 KiB, above which malloc asks the kernel for each
block: 2.1 GB/s, against 1.2 GB/s with chunks of 256 KiB.
"""
RECEIVE_BYTES: Final = 64 << 10
TAKES_MAX: Final = 2
"""Limit of socket reads per call: a peer may send TLS messages without end that carry no data."""
ANSWER_BYTES_MAX: Final = 64 << 10
"""Limit of queued TLS messages of this end (answers to key updates) that the peer does not read."""


class LinkTransport(Protocol):
    """A non-blocking transport. ``send`` and ``receive_into`` raise BlockingIOError if nothing can be done now, and
    OSError if the connection is broken.
    """

    @property
    def send(self) -> Callable[[Sequence[Buffer]], int]:
        """Pass bytes of these buffers to the kernel. Returns how many it has taken.

        Bytes that were not reported must be passed again, first in the next call. 0 means progress without a report.
        """
        ...

    @property
    def receive_into(self) -> Callable[[memoryview], int]:
        """Read into the buffer. Returns 0 at the end of the stream.

        If it fills less than the whole buffer, the socket shows when there is more.
        """
        ...

    @property
    def unreported_bytes(self) -> int:
        """Bytes passed to ``send`` and not reported. Some of them may be on their way to the peer."""
        ...

    @property
    def wants_write(self) -> bool:
        """True if bytes of the transport itself wait for the kernel; ``flush`` sends them."""
        ...

    @property
    def has_pending(self) -> bool:
        """True if data can be read although the socket is not readable."""
        ...

    def flush(self) -> None:
        """Send the transport's own bytes as far as the kernel takes them. Never raises BlockingIOError."""
        ...

    def close(self) -> None:
        """Send the protocol's end message if there is one, and close the socket."""
        ...


class PlainTransport:
    """The socket's own methods, so that no Python code runs per request."""

    __slots__ = ("_sock", "receive_into", "send")

    unreported_bytes: Final = 0
    wants_write: Final = False
    has_pending: Final = False

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.send = sock.sendmsg
        self.receive_into = sock.recv_into

    def flush(self) -> None:
        return

    def close(self) -> None:
        self._sock.close()


class TlsTransport:
    """TLS over a connected non-blocking socket. ``tls`` has completed its handshake over the two BIOs.

    ``explain`` turns an OpenSSL error into a phrase.
    """

    __slots__ = (
        "_ciphertext",
        "_explain",
        "_failure",
        "_incoming",
        "_is_ended",
        "_outgoing",
        "_received",
        "_sock",
        "_tls",
        "has_pending",
        "unreported_bytes",
    )

    def __init__(
        self,
        sock: socket.socket,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        explain: Callable[[ssl.SSLError], str],
    ) -> None:
        self._sock = sock
        self._tls = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._explain = explain
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._ciphertext = memoryview(b"")
        """The rest of a chunk, or of a TLS message, that the kernel has not taken yet."""
        self._is_ended = False
        self._failure: OSError | None = None
        """A failure found after data that is delivered first."""
        self.unreported_bytes = 0
        self.has_pending = False

    @property
    def session(self) -> tuple[str, bytes]:
        """(TLS version, the peer's certificate in DER)."""
        return self._tls.version() or "TLS", self._tls.getpeercert(binary_form=True) or b""

    @property
    def wants_write(self) -> bool:
        return bool(self._ciphertext) or self._outgoing.pending > 0

    def send(self, buffers: Sequence[Buffer]) -> int:
        if not self._ciphertext and not self.unreported_bytes:
            chunk = _chunk(buffers)
            self.unreported_bytes = len(chunk)  # before the write, which may fail after some of its records
            try:
                self._tls.write(chunk)
            except ssl.SSLError as error:
                raise ConnectionError(self._explain(error)) from error
            self._ciphertext = memoryview(self._outgoing.read())
        if self._ciphertext:
            self._ciphertext = self._ciphertext[self._sock.send(self._ciphertext) :]
            if self._ciphertext:
                return 0
        reported, self.unreported_bytes = self.unreported_bytes, 0
        return reported

    def flush(self) -> None:
        # The rest of a chunk goes first; `send` reports it.
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while self.wants_write:
                if not self._ciphertext:
                    self._ciphertext = memoryview(self._outgoing.read())
                self._ciphertext = self._ciphertext[self._sock.send(self._ciphertext) :]

    def receive_into(self, buffer: memoryview) -> int:
        self.has_pending = False
        if self._failure is not None:
            raise self._failure
        count = self._decrypt(buffer)
        if self._outgoing.pending and self._failure is None:  # an answer to a key update
            try:
                self.flush()
            except OSError as error:
                self._failure = error
            if self._outgoing.pending > ANSWER_BYTES_MAX:
                self._failure = ConnectionError("it asks for new TLS keys endlessly")
        is_over = self._is_ended or self._failure is not None
        self.has_pending = count == len(buffer) or is_over
        if not count and self._failure is not None:
            raise self._failure
        if not count and not is_over:
            raise BlockingIOError
        return count

    def _decrypt(self, buffer: memoryview) -> int:
        count = 0
        may_take, takes = True, 0
        try:
            while count < len(buffer) and not self._is_ended:
                if not self._incoming.pending and not self._tls.pending():
                    if not may_take or takes == TAKES_MAX:
                        break
                    takes += 1
                    may_take = self._take()
                try:
                    got = int(self._tls.read(len(buffer) - count, buffer[count:]))
                except ssl.SSLWantReadError:  # the record is not complete
                    continue
                except ssl.SSLZeroReturnError:
                    got = 0
                self._is_ended |= not got
                count += got
        except (BlockingIOError, InterruptedError):
            pass
        except ssl.SSLError as error:
            self._failure = ConnectionError(self._explain(error))
        except OSError as error:
            self._failure = error
        return count

    def _take(self) -> bool:
        """Move ciphertext from the kernel to OpenSSL. False if there is surely no more now."""
        count = self._sock.recv_into(self._received)
        if not count:
            # Many peers end without TLS's close_notify. Kafka answers carry their length, so truncation is noticed.
            self._is_ended = True
        self._incoming.write(self._received[:count])
        return count == len(self._received)

    def close(self) -> None:
        if not self._ciphertext:  # otherwise close_notify would be in the middle of a record
            with contextlib.suppress(OSError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self.flush()
        self._sock.close()


def _chunk(buffers: Sequence[Buffer]) -> bytes:
    """The first bytes of the buffers, joined, because OpenSSL makes at least one record per write."""
    chosen: list[Buffer] = []
    left = CHUNK_BYTES
    for each in buffers:
        count = len(each)
        if count >= left:
            chosen.append(memoryview(each)[:left])
            break
        chosen.append(each)
        left -= count
    return b"".join(chosen)


def take_nothing(buffers: Sequence[Buffer]) -> int:
    """Replaces ``send`` of a transport that has failed: no byte may follow those that may or may not have left."""
    raise BlockingIOError


def failure_words(what: str, error: Exception) -> str:
    """Sentence about a transport's failure. One that is no OSError was not foreseen, so its stack is logged."""
    if isinstance(error, OSError):
        return f"{what} failed: {error}"
    log.error("%s failed.", what, exc_info=error)
    return f"{what} failed: {type(error).__name__}: {error}"
