"""ZMTP frames: reads a whole message out of a buffer, and encodes messages and commands. Pure Python.

Pure functions: the stub's io thread, and the loops of workers and controller.

::

    message    (flags size body)+      flags: 1 another frame follows, 2 size is a u64 (else a u8), 4 a command
    command    flags size (u8 name-length, name, rest)

A compiled ``whole_message`` and ``encode`` can take the place of these two (see ``mechanism.Null``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

MORE, LONG, COMMAND = 1, 2, 4
U64: Final = struct.Struct(">Q")
LONG_HEAD: Final = struct.Struct(">BQ")
HEADER_BYTES_MAX: Final = 64 << 10
"""The limit of frame 0, which its reader unpacks into objects; all other frames stay bytes."""
FRAMES_MAX: Final = 64
MESSAGE_BYTES_MAX: Final = 64 << 20
FRAME_COPIED_BYTES: Final = 4096
"""A larger frame is not copied before it is written."""


class Pieces:
    """The body of one frame in buffers that do not lie next to each other in memory: it is sent without joining them.

    Larger than FRAME_COPIED_BYTES; ``of`` makes bytes of a smaller one.
    """

    __slots__ = ("buffers", "size")

    def __init__(self, buffers: list[Buffer]) -> None:
        self.buffers = buffers
        self.size = sum(map(len, buffers))

    @classmethod
    def of(cls, buffers: list[Buffer]) -> Pieces | bytes:
        made = cls(buffers)
        return made if made.size > FRAME_COPIED_BYTES else bytes(made)

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers)


class ZmtpError(ValueError):
    """The peer's bytes are not ZMTP 3 by the expected mechanism, or exceed a limit. The connection must be closed."""


def whole_message(
    view: memoryview, start: int, end: int, bytes_max: int
) -> tuple[list[memoryview], int] | None:
    """(frames, end) of the message that begins at ``start``; None if it is incomplete, too long, or no plain message.

    ``ZmtpConnection`` then reads it frame by frame.
    """
    if start < 0 or end > len(view):
        raise ValueError(f"bytes {start} to {end} of {len(view)}")
    frames: list[memoryview] = []
    at, flags = start, MORE
    while flags & MORE:
        if end - at < 2 or len(frames) == FRAMES_MAX:
            return None
        flags = view[at]
        if flags > MORE | LONG:
            return None
        if flags & LONG:
            if end - at < 9:
                return None
            body = at + 9
            at = body + U64.unpack_from(view, at + 1)[0]
        else:
            body = at + 2
            at = body + view[at + 1]
        if at > end or at - start > bytes_max or (not frames and at - body > HEADER_BYTES_MAX):
            return None
        frames.append(view[body:at])
    return frames, at


def encode(frames: Sequence[Buffer]) -> list[Buffer]:
    """One message as buffers to be written one after another. Large frames are not copied."""
    buffers: list[Buffer] = []
    gathered = b""
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        size = len(frame)
        more = MORE if index < last else 0
        gathered += LONG_HEAD.pack(more | LONG, size) if size > 255 else bytes((more, size))
        if size <= FRAME_COPIED_BYTES:
            gathered += frame
        else:
            buffers.append(gathered)
            buffers.append(frame)
            gathered = b""
    if gathered:
        buffers.append(gathered)
    return buffers


def unsent(buffers: Sequence[Buffer], sent: int) -> list[Buffer]:
    """The rest of ``buffers`` after a write of ``sent`` bytes."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []


def command(name: bytes, rest: bytes) -> bytes:
    """A command as a frame."""
    body = bytes([len(name)]) + name + rest
    if len(body) > 255:
        return LONG_HEAD.pack(COMMAND | LONG, len(body)) + body
    return bytes([COMMAND, len(body)]) + body


def short_text(data: bytes) -> tuple[bytes, bytes]:
    """(text, rest): a text preceded by its length in one byte, and the bytes after it. Raises ZmtpError."""
    if not data or len(data) < 1 + data[0]:
        raise ZmtpError("a command that ends in the middle")
    return data[1 : 1 + data[0]], data[1 + data[0] :]
