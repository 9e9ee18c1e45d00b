"""Locks on a range of bytes (fcntl), packed for both kinds: a process's (F_SETLK) and an open file's (F_OFD_SETLK)."""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

_FLOCK: Final = struct.Struct("hhqqi")
"""struct flock: type, whence, start, length, pid."""
_BYTES: Final = 64
"""Larger than any system's struct flock."""


class ByteLock(NamedTuple):
    """A lock. ``kind`` is F_RDLCK or F_WRLCK; in an answer F_UNLCK means that it is free. ``length`` 0: to the end of
    the file.
    """

    kind: int
    start: int = 0
    length: int = 0
    pid: int = 0

    def pack(self) -> bytes:
        return _FLOCK.pack(self.kind, os.SEEK_SET, self.start, self.length, self.pid).ljust(_BYTES, b"\0")

    @classmethod
    def unpack(cls, answer: bytes) -> ByteLock:
        kind, _, start, length, pid = _FLOCK.unpack_from(answer)
        return cls(kind, start, length, pid)
