"""ZMTP 3.1 with the NULL mechanism: the bytes that libzmq's DEALER and ROUTER write on a stream socket. Sans-IO.

::

    greeting   FF, 8 x 00, 7F | 03 01 | "NULL", 16 x 00 | 00 | 31 x 00     64 bytes, each way
    READY      04 size | 05 "READY" | (u8 name, name, u32 value, value)*   a command, each way
    message    (flags size body)+      flags: 1 another frame follows, 2 size is a u64 (else a u8), 4 a command

Why not libzmq itself: its io thread stands between each side and its socket (two more thread switches for every
message), copies every payload once more, and is most of a small client's memory. The wire stays ZeroMQ's: either
end of ours talks to libzmq at the other. Source: RFC 37/ZMTP of ZeroMQ. Not thread-safe.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

MORE, LONG, COMMAND = 1, 2, 4
GREETING_BYTES: Final = 64
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_MECHANISM: Final = b"NULL".ljust(20, b"\0")
_GREETING: Final = _SIGNATURE + b"\x03\x01" + _MECHANISM + bytes(32)
_U64: Final = struct.Struct(">Q")
_U32: Final = struct.Struct(">I")
_LONG_HEAD: Final = struct.Struct(">BQ")

MESSAGE_BYTES_MAX: Final = 64 << 20
FRAMES_MAX: Final = 64
COMMAND_BYTES_MAX: Final = 64 << 10
ROOM_BYTES_MIN: Final = 8 << 10
SPARES_MAX: Final = 4


class ZmtpError(ValueError):
    """The peer does not speak ZMTP 3 with the NULL mechanism, or breaks a bound; its connection is to be closed."""


class Buffers:
    """Receive buffers of ``size`` bytes that the connections of one owner share. Not thread-safe."""

    __slots__ = ("_size", "_spares")

    def __init__(self, size: int) -> None:
        self._size = size
        self._spares: list[memoryview] = []

    def take(self) -> memoryview:
        return self._spares.pop() if self._spares else self.make(self._size)

    def give(self, view: memoryview) -> None:
        if len(view) == self._size and len(self._spares) < SPARES_MAX:
            self._spares.append(view)

    @staticmethod
    def make(size: int) -> memoryview:
        """Pages that take memory once something stands in them, unlike a bytearray's."""
        return memoryview(mmap.mmap(-1, size))


class ZmtpConnection:
    """One end of a connection: ``opening`` goes out first, bytes come in by ``space`` and ``received``.

    One without half a message holds none of ``buffers``.
    """

    __slots__ = (
        "_buffers",
        "_end",
        "_greeted",
        "_peer_types",
        "_ready",
        "_start",
        "_view",
        "_wanted",
        "replies",
    )

    def __init__(self, peer_types: frozenset[bytes], buffers: Buffers) -> None:
        self._peer_types = peer_types
        self._buffers = buffers
        self._view: memoryview | None = None
        self._start = 0
        self._end = 0
        self._wanted = 0
        """Bytes from ``_start`` on that the message at hand needs at least, as far as it is known."""
        self._greeted = False
        self._ready = False
        self.replies: list[bytes] = []
        """Commands (PONG) that the owner is to send."""

    @property
    def is_ready(self) -> bool:
        """The peer has introduced itself: messages may come."""
        return self._ready

    def space(self) -> memoryview:
        """Where the next bytes go. What ``next_message`` gave before is not valid any more."""
        view = self._view
        if view is None:
            view = self._view = self._buffers.take()
            self._start = self._end = 0
        elif len(view) - self._end < ROOM_BYTES_MIN or (
            self._start and len(view) - self._start < self._wanted
        ):
            left = self._end - self._start
            # Twice as large at a time, not what the peer announces: memory follows what really came.
            room = view if self._start and 2 * left <= len(view) else self._buffers.make(2 * len(view))
            room[:left] = view[self._start : self._end]
            view = self._view = room
            self._start, self._end = 0, left
        return view[self._end :]

    def received(self, count: int) -> None:
        """``count`` bytes stand in what ``space`` gave."""
        self._end += count

    def next_message(self) -> list[memoryview] | None:
        """The frames of the next whole message, valid until ``space``; None when more bytes must come first.

        Raises ZmtpError.
        """
        view = self._view
        if view is None:
            return None
        if not self._greeted and not self._greet(view):
            return None
        at, end = self._start, self._end
        frames: list[memoryview] = []
        while end - at >= 2:
            flags = view[at]
            if flags & LONG:
                if end - at < 9:
                    break
                body = at + 9
                stop = body + _U64.unpack_from(view, at + 1)[0]
            else:
                body = at + 2
                stop = body + view[at + 1]
            if stop - self._start > MESSAGE_BYTES_MAX:
                raise ZmtpError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
            if stop > end:
                self._wanted = stop - self._start
                return None
            if flags > 3 or not self._ready:
                if flags & ~(LONG | COMMAND) or not flags & COMMAND or frames:
                    raise ZmtpError(f"a frame with flags {flags:#x} where none is expected")
                self._command(bytes(view[body:stop]))
                at = self._start = stop
                continue
            frames.append(view[body:stop])
            at = stop
            if not flags & MORE:
                self._start = at
                return frames
            if len(frames) == FRAMES_MAX:
                raise ZmtpError(f"a message of more than {FRAMES_MAX} frames")
        self._wanted = at + 9 - self._start
        if self._start == end:
            self._view, self._wanted = None, 0
            self._buffers.give(view)
        return None

    def _greet(self, view: memoryview) -> bool:
        greeting = bytes(view[self._start : min(self._end, self._start + GREETING_BYTES)])
        # Judged as far as it has come: one who speaks something else may never send 64 bytes.
        if greeting[:1] not in (b"", b"\xff") or greeting[9:10] not in (b"", b"\x7f"):
            raise ZmtpError("the peer does not speak ZMTP")
        if greeting[10:11] not in (b"", b"\x03"):
            raise ZmtpError(f"the peer speaks version {greeting[10]} of ZMTP, not 3")
        if len(greeting) < GREETING_BYTES:
            return False
        if greeting[12:32] != _MECHANISM:
            raise ZmtpError(f"the peer wants the mechanism {greeting[12:32].rstrip(bytes(1))!r}, not NULL")
        self._start += GREETING_BYTES
        self._greeted = True
        return True

    def _command(self, body: bytes) -> None:
        if len(body) > COMMAND_BYTES_MAX:
            raise ZmtpError("a command of more than 64 KiB")
        name, rest = _short_text(body)
        if name == b"READY" and not self._ready:
            kind = _properties(rest).get(b"socket-type", b"")
            if kind not in self._peer_types:
                raise ZmtpError(f"the peer's socket is a {kind[:20]!r}")
            self._ready = True
        elif name == b"PING" and self._ready and len(rest) >= 2:
            self.replies.append(_command(b"PONG", rest[2:18]))
        elif name == b"ERROR":
            raise ZmtpError(f"the peer refuses the connection: {rest[1:200]!r}")
        elif not self._ready:
            raise ZmtpError(f"the command {name[:20]!r} before READY")


def opening(socket_type: bytes) -> bytes:
    """What each side sends first, without waiting for the other: greeting and READY."""
    name = b"Socket-Type"
    fields = bytes([len(name)]) + name + _U32.pack(len(socket_type)) + socket_type
    name = b"Identity"
    return _GREETING + _command(b"READY", fields + bytes([len(name)]) + name + _U32.pack(0))


def encode(frames: Sequence[Buffer]) -> list[Buffer]:
    """One message as buffers to be written one behind the other; large frames are not copied."""
    buffers: list[Buffer] = []
    gathered = b""
    last = len(frames) - 1
    for place, frame in enumerate(frames):
        size = len(frame)
        more = MORE if place < last else 0
        gathered += _LONG_HEAD.pack(more | LONG, size) if size > 255 else bytes((more, size))
        if size <= 4096:
            gathered += frame
        else:
            buffers.append(gathered)
            buffers.append(frame)
            gathered = b""
    if gathered:
        buffers.append(gathered)
    return buffers


def unsent(buffers: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of ``buffers`` after a write of ``sent`` bytes."""
    if len(buffers) == 1 and sent == len(buffers[0]):
        return []  # the usual case of a short message
    for place, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[place + 1 :]]
        sent -= len(buffer)
    return []


def _command(name: bytes, rest: bytes) -> bytes:
    body = bytes([len(name)]) + name + rest
    return bytes([COMMAND, len(body)]) + body


def _short_text(data: bytes) -> tuple[bytes, bytes]:
    if not data or len(data) < 1 + data[0]:
        raise ZmtpError("a command that ends in the middle")
    return data[1 : 1 + data[0]], data[1 + data[0] :]


def _properties(data: bytes) -> dict[bytes, bytes]:
    """READY's metadata; names are compared without regard to case."""
    found: dict[bytes, bytes] = {}
    while data:
        name, data = _short_text(data)
        if len(data) < 4:
            raise ZmtpError("a property that ends in the middle")
        size = _U32.unpack_from(data)[0]
        if len(data) < 4 + size:
            raise ZmtpError("a property that ends in the middle")
        found[name.lower()] = data[4 : 4 + size]
        data = data[4 + size :]
    return found
