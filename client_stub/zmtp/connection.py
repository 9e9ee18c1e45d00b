"""ZMTP 3.1 with the NULL mechanism: the bytes that libzmq's DEALER and ROUTER write on a stream socket. Sans-IO.

::

    greeting   FF, 8 x 00, 7F | 03 01 | "NULL", 16 x 00 | 00 | 31 x 00     64 bytes, each way
    READY      04 size | 05 "READY" | (u8 name, name, u32 value, value)*   a command, each way
    message    (flags size body)+      flags: 1 another frame follows, 2 size is a u64 (else a u8), 4 a command

Why not libzmq itself: its io thread sits between each side and its socket, which costs two more thread switches per
message. It also copies every payload once more, and takes most of a small client's memory. The protocol is still
ZeroMQ's: each of our ends can talk to libzmq. Source: RFC 37/ZMTP of ZeroMQ. Not thread-safe.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Sequence
from typing import Final

from client_stub.native.hot import whole_message
from client_stub.zmtp.frames import (
    COMMAND,
    FRAMES_MAX,
    HEADER_BYTES_MAX,
    LONG,
    LONG_HEAD,
    MESSAGE_BYTES_MAX,
    MORE,
    U64,
    Buffer,
)

GREETING_BYTES: Final = 64
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_MECHANISM: Final = b"NULL".ljust(20, b"\0")
_U32: Final = struct.Struct(">I")

SKIPPED_BYTES_MAX: Final = 1 << 32
"""The longest message that is read and discarded; no client of ours sends a longer one even by mistake."""
COMMAND_BYTES_MAX: Final = 1 << 10
"""The limit of a command with its header. No message may come before READY, so this is also all that an unknown peer
can make us store.
"""
ROOM_BYTES_MIN: Final = 8 << 10
SPARES_MAX: Final = 4
SHORT_BUFFER_BYTES: Final = 32 << 10
_NO_ROOM: Final = memoryview(b"")


class ZmtpError(ValueError):
    """The peer does not speak ZMTP 3 with the NULL mechanism, or exceeds a limit. The connection must be closed."""


class KeyNotKnown(ZmtpError):
    """The daemon's configuration has this client's key under no name."""


class Buffers:
    """Receive buffers of ``size`` bytes that the connections of one owner share. Not thread-safe.

    ``held_bytes`` are the bytes in use by connections: each that waits for the rest of a message has one buffer. From
    ``limit_bytes`` on no buffer grows, and a new message gets only a short buffer.

    ``are_kept``: a connection keeps its buffer between messages. That suits an owner of few connections.
    """

    __slots__ = ("_size", "_spares", "_whole", "held_bytes", "kept_bytes", "limit_bytes")

    def __init__(self, size: int, limit_bytes: float = math.inf, *, are_kept: bool = False) -> None:
        self._size = size
        self.kept_bytes = size if are_kept else 0
        """The size of a buffer that its connection keeps; one that has grown is given back."""
        self.limit_bytes = limit_bytes
        self._spares: list[memoryview] = []
        self._whole: Buffers | None = None
        self.held_bytes = 0

    @classmethod
    def share_of(cls, whole: Buffers, limit_bytes: float) -> Buffers:
        """A part of ``whole`` with its own limit. Its bytes count for ``whole``, too."""
        share = cls(whole._size, limit_bytes)
        share._spares = whole._spares
        share._whole = whole
        return share

    def first(self) -> memoryview:
        """A buffer for the begin of a message, a short one when the limit is reached."""
        whole = self._whole
        if self.held_bytes >= self.limit_bytes or (
            whole is not None and whole.held_bytes >= whole.limit_bytes
        ):
            self.count(SHORT_BUFFER_BYTES)
            return _pages(SHORT_BUFFER_BYTES)
        self.held_bytes += self._size
        if whole is not None:
            whole.held_bytes += self._size
        return self._spares.pop() if self._spares else _pages(self._size)

    def give(self, view: memoryview) -> None:
        size = len(view)
        self.held_bytes -= size
        if self._whole is not None:
            self._whole.held_bytes -= size
        if size == self._size and len(self._spares) < SPARES_MAX:
            self._spares.append(view)

    def larger(self, than: int) -> memoryview | None:
        """A buffer at least twice as large as one of ``than`` bytes; None when there is no room for it."""
        size = self._size if 2 * than <= self._size else 2 * than
        whole = self._whole
        if self.held_bytes + size > self.limit_bytes or (
            whole is not None and whole.held_bytes + size > whole.limit_bytes
        ):
            return None
        self.count(size)
        return self._spares.pop() if size == self._size and self._spares else _pages(size)

    def count(self, size: int) -> None:
        """Count ``size`` more bytes held by a connection, or fewer if negative."""
        self.held_bytes += size
        if self._whole is not None:
            self._whole.held_bytes += size


def _pages(size: int) -> memoryview:
    """Memory pages that are allocated only when written to, unlike those of a bytearray."""
    return memoryview(mmap.mmap(-1, size))


class ZmtpConnection:
    """One end of a connection: ``opening`` is sent first, and bytes are received by ``space`` and ``received``.

    A connection without a partial message holds none of ``buffers``, unless these are kept. A message over
    ``message_bytes_max`` raises ZmtpError, unless :meth:`skip_long_messages` was called.
    """

    __slots__ = (
        "_buffers",
        "_end",
        "_frames",
        "_greeted",
        "_kept",
        "_left_to_skip",
        "_message_bytes_max",
        "_more_to_skip",
        "_peer_types",
        "_ready",
        "_skipped",
        "_skips",
        "_start",
        "_view",
        "_wanted",
        "replies",
        "skipped_bytes",
    )

    def __init__(
        self, peer_types: frozenset[bytes], buffers: Buffers, *, message_bytes_max: int = MESSAGE_BYTES_MAX
    ) -> None:
        self._peer_types = peer_types
        self._buffers = buffers
        self._message_bytes_max = message_bytes_max
        self._skips = False
        self._view: memoryview | None = None
        self._start = 0
        self._end = 0
        self._wanted = 0
        """The number of bytes from ``_start`` on that the present message needs at least, as far as is known."""
        self._greeted = False
        self._ready = False
        self._kept: list[bytes] | None = None
        """The first frames of a message whose rest is being discarded."""
        self._skipped = self._frames = 0
        self._left_to_skip = 0
        self._more_to_skip = False
        self.skipped_bytes = 0
        """Of the last message that ``next_message`` returned: how many bytes after its frames were discarded."""
        self.replies: list[bytes] = []
        """Commands (PONG) that the owner has to send."""

    @property
    def is_ready(self) -> bool:
        """Whether the peer has sent READY, so that messages may come."""
        return self._ready

    @property
    def has_part(self) -> bool:
        """Whether bytes have arrived that are not a complete message (or were not parsed yet); they occupy a buffer."""
        return self._view is not None and self._end > self._start

    def skip_long_messages(self, buffers: Buffers, message_bytes_max: int) -> None:
        """Use other buffers and another limit from now on; of a message over the limit only the first frames are kept.

        Its other bytes are discarded and counted in ``skipped_bytes``, so that its sender can be answered.
        """
        if self._view is not None:
            self._buffers.count(-len(self._view))
            buffers.count(len(self._view))
        self._buffers = buffers
        self._message_bytes_max = message_bytes_max
        self._skips = True

    def space(self) -> memoryview:
        """The memory for the next bytes. Empty when a bounded ``Buffers`` has no room until another connection frees
        some.

        Frames that ``next_message`` returned before are then invalid.
        """
        view = self._view
        if view is None:
            view = self._view = self._buffers.first()
            self._start = self._end = 0
        elif len(view) - self._end < ROOM_BYTES_MIN or (
            self._start and len(view) - self._start < self._wanted
        ):
            left = self._end - self._start
            if self._start and 2 * left <= len(view):
                view[:left] = view[self._start : self._end]
            else:
                # Doubles each time, whatever size the peer announces: memory follows the bytes that really came.
                room = self._buffers.larger(len(view))
                if room is None:
                    return _NO_ROOM
                room[:left] = view[self._start : self._end]
                self._buffers.give(view)
                view = self._view = room
            self._start, self._end = 0, left
        return view[self._end :]

    def received(self, count: int) -> None:
        """Note that ``count`` bytes were written to the memory of ``space``."""
        self._end += count

    def give_back_unused(self) -> None:
        """Note that nothing was written to the memory of ``space``."""
        if self._view is not None and self._end == self._start:
            self._give_back(self._view)

    def close(self) -> None:
        """Free the buffer, as the connection is gone."""
        if self._view is not None:
            self._buffers.give(self._view)
            self._view = None

    def next_message(self) -> list[memoryview] | None:
        """The frames of the next complete message, valid until ``space``; None when more bytes are needed.

        Raises ZmtpError.
        """
        view = self._view
        if view is None:
            return None
        self.skipped_bytes = 0
        if self._ready and self._kept is None:
            if self._start == self._end:
                if len(view) == self._buffers.kept_bytes:
                    self._start = self._end = self._wanted = 0
                else:  # as _give_back
                    self._view, self._wanted = None, 0
                    self._buffers.give(view)
                return None
            found = whole_message(view, self._start, self._end, self._message_bytes_max)
            if found is not None:
                frames, self._start = found
                return frames
        elif not self._greeted and not self._greet(view):
            return None
        return self._next_of(view)

    def _next_of(self, view: memoryview) -> list[memoryview] | None:
        """Parse a message that is incomplete, long, or preceded by commands."""
        if self._kept is not None:
            return self._skip(view, self._kept)
        at, end = self._start, self._end
        frames: list[memoryview] = []
        while end - at >= 2:
            flags = view[at]
            if flags & LONG:
                if end - at < 9:
                    break
                body = at + 9
                stop = body + U64.unpack_from(view, at + 1)[0]
            else:
                body = at + 2
                stop = body + view[at + 1]
            if not frames and stop - body > HEADER_BYTES_MAX:
                raise ZmtpError(f"a first frame of more than {HEADER_BYTES_MAX} bytes")
            if flags & COMMAND or not self._ready:
                if stop - self._start > COMMAND_BYTES_MAX:
                    raise ZmtpError(f"a command of more than {COMMAND_BYTES_MAX} bytes")
            elif stop - self._start > self._message_bytes_max:
                if not self._skips or not frames or flags > 3:
                    raise ZmtpError(f"a message of more than {self._message_bytes_max} bytes")
                self._kept = [bytes(frame) for frame in frames]
                self._start = at
                self._wanted = self._skipped = self._left_to_skip = 0
                self._frames = len(frames)
                self._more_to_skip = True
                return self._skip(view, self._kept)
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
        if self._start == end:  # as _give_back
            self._view, self._wanted = None, 0
            self._buffers.give(view)
        return None

    def _skip(self, view: memoryview, kept: list[bytes]) -> list[memoryview] | None:
        """Discard the rest of a message. Returns its kept frames once its last frame has ended."""
        while True:
            gone = min(self._left_to_skip, self._end - self._start)
            self._start += gone
            self._left_to_skip -= gone
            left = self._end - self._start
            if not self._left_to_skip and not self._more_to_skip:
                self._kept = None
                self.skipped_bytes = self._skipped
                return [memoryview(frame) for frame in kept]
            if self._left_to_skip or left < 2 or (view[self._start] & LONG and left < 9):
                if not left:
                    self._give_back(view)
                return None
            flags = view[self._start]
            if flags > 3:
                raise ZmtpError(f"a frame with flags {flags:#x} where none is expected")
            if flags & LONG:
                size = U64.unpack_from(view, self._start + 1)[0]
                self._start += 9
            else:
                size = view[self._start + 1]
                self._start += 2
            self._left_to_skip, self._more_to_skip = size, bool(flags & MORE)
            self._skipped += size
            self._frames += 1
            if self._frames > FRAMES_MAX:
                raise ZmtpError(f"a message of more than {FRAMES_MAX} frames")
            if self._skipped > SKIPPED_BYTES_MAX:
                raise ZmtpError(f"a message of more than {SKIPPED_BYTES_MAX} bytes")

    def _give_back(self, view: memoryview) -> None:
        self._view, self._wanted = None, 0
        self._buffers.give(view)

    def _greet(self, view: memoryview) -> bool:
        return self._greet_by(view, _MECHANISM)

    def _greet_by(self, view: memoryview, mechanism: bytes) -> bool:
        """True once the peer's greeting has arrived and names this mechanism. Raises ZmtpError."""
        greeting = bytes(view[self._start : min(self._end, self._start + GREETING_BYTES)])
        # Checked as far as it has arrived: a peer with another protocol may never send 64 bytes.
        if greeting[:1] not in (b"", b"\xff") or greeting[9:10] not in (b"", b"\x7f"):
            raise ZmtpError("the peer does not speak ZMTP")
        if greeting[10:11] not in (b"", b"\x03"):
            raise ZmtpError(f"the peer speaks version {greeting[10]} of ZMTP, not 3")
        if len(greeting) < GREETING_BYTES:
            return False
        if greeting[12:32] != mechanism:
            theirs, ours = (each.rstrip(bytes(1)) for each in (greeting[12:32], mechanism))
            raise ZmtpError(f"the peer wants the mechanism {theirs!r}, not {ours.decode()}")
        self._start += GREETING_BYTES
        self._greeted = True
        return True

    def _command(self, body: bytes) -> None:
        name, rest = short_text(body)
        if name == b"READY" and not self._ready:
            self._check_type(properties(rest))
            self._ready = True
        elif name == b"PING" and self._ready and len(rest) >= 2:
            self.replies.append(self._pong(rest[2:18]))
        elif name == b"ERROR":
            raise ZmtpError(f"the peer refuses the connection: {rest[1:200]!r}")
        elif not self._ready:
            raise ZmtpError(f"the command {name[:20]!r} before READY")

    def _check_type(self, found: dict[bytes, bytes]) -> None:
        kind = found.get(b"socket-type", b"")
        if kind not in self._peer_types:
            raise ZmtpError(f"the peer's socket is a {kind[:20]!r}")

    def _pong(self, context: bytes) -> bytes:
        return command(b"PONG", context)


def greeting(mechanism: bytes, *, as_server: bool = False) -> bytes:
    """The 64 bytes that each side sends first."""
    return _SIGNATURE + b"\x03\x01" + mechanism + bytes((as_server,)) + bytes(31)


def opening(socket_type: bytes) -> bytes:
    """The first bytes of each side, sent without waiting for the peer: greeting and READY."""
    return greeting(_MECHANISM) + command(b"READY", ready_properties(socket_type))


def ready_properties(socket_type: bytes) -> bytes:
    """The metadata of READY: the socket type, and no identity."""
    name = b"Socket-Type"
    fields = bytes([len(name)]) + name + _U32.pack(len(socket_type)) + socket_type
    name = b"Identity"
    return fields + bytes([len(name)]) + name + _U32.pack(0)


def unsent(buffers: Sequence[Buffer], sent: int) -> list[Buffer]:
    """The rest of ``buffers`` after a write of ``sent`` bytes."""
    for place, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[place + 1 :]]
        sent -= len(buffer)
    return []


def command(name: bytes, rest: bytes) -> bytes:
    """A command with its header."""
    body = bytes([len(name)]) + name + rest
    if len(body) > 255:
        return LONG_HEAD.pack(COMMAND | LONG, len(body)) + body
    return bytes([COMMAND, len(body)]) + body


def short_text(data: bytes) -> tuple[bytes, bytes]:
    """(text, rest): a text preceded by its length in one byte, and the bytes after it. Raises ZmtpError."""
    if not data or len(data) < 1 + data[0]:
        raise ZmtpError("a command that ends in the middle")
    return data[1 : 1 + data[0]], data[1 + data[0] :]


def properties(data: bytes) -> dict[bytes, bytes]:
    """The metadata of READY; names are compared without regard to case. Raises ZmtpError."""
    found: dict[bytes, bytes] = {}
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
