"""Mechanism: the part of a connection that a security mechanism decides, and NULL, which decides nothing.

Sans-IO: a connection calls it, in the stub's io thread or on the loop of a worker or the controller.

A mechanism runs the handshake and says how frames look after it. ``ZmtpConnection`` does all else: the greeting, frames
and their limits, heartbeats.

::

    greeting   FF, 8 x 00, 7F | 03 01 | mechanism, padded to 20 | as-server | 31 x 00     64 bytes, each way
    READY      04 size | 05 "READY" | metadata                          NULL: each way, right after the greeting
    metadata   (u8 name-length, name, u32 value-length, value)*
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from client_stub.zmtp import frames
from client_stub.zmtp.frames import Buffer, ZmtpError, command, short_text

GREETING_BYTES: Final = 64
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_U32: Final = struct.Struct(">I")

Metadata: TypeAlias = dict[bytes, bytes]
WholeMessage: TypeAlias = Callable[[memoryview, int, int, int], tuple[list[memoryview], int] | None]
Encode: TypeAlias = Callable[[Sequence[Buffer]], list[Buffer]]


class PeerRefused(ZmtpError):
    """The peer has answered the handshake by ERROR. ``reason`` is its word for it."""

    def __init__(self, reason: bytes) -> None:
        super().__init__(f"the peer refuses the connection: {reason[:200]!r}")
        self.reason = reason


class Mechanism(ABC):
    """What one end of one connection does by its mechanism. ``ZmtpConnection`` calls it."""

    __slots__ = ("opening",)

    name: bytes
    """As in the greeting, without padding."""
    box_bytes: int = 0
    """How many bytes longer a frame is on the wire than its body. 0: frames are not encrypted."""
    whole_message: WholeMessage | None = None
    """Reads a complete message at once; None if frames are encrypted."""
    opening: bytes
    """The first bytes of this end, sent without waiting for the peer's."""
    encode: Encode
    """Returns one message as buffers to be written one after another."""

    def greeted(self) -> bytes:
        """The peer's greeting has arrived. Returns what to send."""
        return b""

    @abstractmethod
    def handshake(self, name: bytes, rest: bytes) -> tuple[bytes, Metadata | None]:
        """A command before the end of the handshake: (what to send, the peer's metadata if that was the end).

        Raises ZmtpError.
        """

    @abstractmethod
    def command(self, name: bytes, rest: bytes) -> bytes:
        """A command as it is sent after the handshake."""

    def open(self, frame: memoryview) -> tuple[int, memoryview]:
        """(flags, body) of an encrypted frame; the flags are those of ``frames``. Raises ZmtpError."""
        raise NotImplementedError


class Null(Mechanism):
    """NULL: both ends send READY at once, and frames are sent as they are. Without state, so connections may share it.

    ``whole_message`` and ``encode`` may be compiled functions.
    """

    __slots__ = ("encode", "whole_message")

    name = b"NULL"

    def __init__(
        self,
        socket_type: bytes,
        *,
        whole_message: WholeMessage = frames.whole_message,
        encode: Encode = frames.encode,
    ) -> None:
        self.opening = opening(socket_type)
        self.whole_message = whole_message
        self.encode = encode

    def handshake(self, name: bytes, rest: bytes) -> tuple[bytes, Metadata | None]:
        if name == b"READY":
            return b"", read_metadata(rest)
        if name == b"ERROR":
            raise PeerRefused(short_text(rest)[0])
        raise ZmtpError(f"the command {name[:20]!r} before READY")

    def command(self, name: bytes, rest: bytes) -> bytes:
        return command(name, rest)


def greeting(mechanism: bytes, *, as_server: bool = False) -> bytes:
    """The 64 bytes that each side sends first."""
    return _SIGNATURE + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31)


def opening(socket_type: bytes) -> bytes:
    """Greeting and READY of NULL."""
    return greeting(Null.name) + command(b"READY", metadata(socket_type))


def check_greeting(found: bytes, mechanism: bytes) -> None:
    """Check a greeting as far as it has arrived: a peer with another protocol may never send 64 bytes.

    Raises ZmtpError.
    """
    if found[:1] not in (b"", b"\xff") or found[9:10] not in (b"", b"\x7f"):
        raise ZmtpError("the peer does not speak ZMTP")
    if found[10:11] not in (b"", b"\x03"):
        raise ZmtpError(f"the peer speaks version {found[10]} of ZMTP, not 3")
    if len(found) == GREETING_BYTES and found[12:32] != mechanism.ljust(20, b"\0"):
        theirs = found[12:32].rstrip(b"\0")
        raise ZmtpError(f"the peer wants the mechanism {theirs!r}, not {mechanism.decode()}")


def metadata(socket_type: bytes) -> bytes:
    """The metadata of this end: the socket type, and no identity."""
    fields = ((b"Socket-Type", socket_type), (b"Identity", b""))
    return b"".join(bytes([len(name)]) + name + _U32.pack(len(value)) + value for name, value in fields)


def read_metadata(data: bytes) -> Metadata:
    """The metadata of a peer; names are compared without regard to case. Raises ZmtpError."""
    found: Metadata = {}
    while data:
        name, data = short_text(data)
        if len(data) < 4:
            raise ZmtpError("a property that ends in the middle")
        size = _U32.unpack_from(data)[0]
        if len(data) < 4 + size:
            raise ZmtpError("a property that ends in the middle")
        found[name.lower()] = data[4 : 4 + size]
        data = data[4 + size :]
    return found
