"""Buffers: the receive buffers that the connections of one owner share.

An endpoint of the daemon has them on its loop, and each connection of a stub in its io thread.
"""

from __future__ import annotations

import mmap
from typing import Final

SPARES_MAX: Final = 4


class Buffers:
    """Receive buffers of ``size`` bytes. Not thread-safe. A subclass may set limits.

    ``held_bytes`` are the bytes in use by connections: each that waits for the rest of a message has one buffer.

    ``are_kept``: a connection keeps its buffer between messages. That suits an owner of few connections.
    """

    __slots__ = ("_spares", "held_bytes", "kept_bytes", "size")

    def __init__(self, size: int, *, are_kept: bool = False) -> None:
        self.size = size
        self.kept_bytes = size if are_kept else 0
        """The size of a buffer that its connection keeps; one that has grown is given back."""
        self._spares: list[memoryview] = []
        self.held_bytes = 0

    def first(self) -> memoryview:
        """A buffer for the begin of a message."""
        self.held_bytes += self.size
        return self._spares.pop() if self._spares else pages(self.size)

    def larger(self, than: int) -> memoryview | None:
        """A buffer at least twice as large as one of ``than`` bytes; None while a limit forbids it."""
        size = self.larger_bytes(than)
        self.held_bytes += size
        return self._spares.pop() if size == self.size and self._spares else pages(size)

    def larger_bytes(self, than: int) -> int:
        """How many bytes the buffer has that ``larger`` returns."""
        return self.size if 2 * than <= self.size else 2 * than

    def give(self, view: memoryview) -> None:
        """Take a buffer back."""
        size = len(view)
        self.held_bytes -= size
        if size == self.size and len(self._spares) < SPARES_MAX:
            self._spares.append(view)

    def count(self, size: int) -> None:
        """Count ``size`` more bytes held by a connection, or fewer if negative."""
        self.held_bytes += size


def pages(size: int) -> memoryview:
    """Memory pages that are allocated only when written to, unlike those of a bytearray."""
    return memoryview(mmap.mmap(-1, size))
