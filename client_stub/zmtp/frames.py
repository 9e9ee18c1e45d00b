"""ZMTP frames in pure Python: reads a message out of a buffer, and encodes a message from its frames.

::

    message    (flags size body)+      flags: 1 another frame follows, 2 size is a u64 (else a u8), 4 a command

``_native_frames.pxi`` is the compiled twin. Anything but a plain message that is complete is left to ``zmtp.py``.
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


def whole_message(
    view: memoryview, start: int, end: int, bytes_max: int
) -> tuple[list[memoryview], int] | None:
    """(frames, end) of the message that begins at ``start``; None when next_message() has to parse its first bytes."""
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
    for place, frame in enumerate(frames):
        size = len(frame)
        more = MORE if place < last else 0
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
