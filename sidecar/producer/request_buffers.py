"""RequestBufferPool: private memory in which Produce requests are encoded, bounded and allocated on demand.

A buffer is lent for one request. It returns only when the kernel has taken the request's bytes or the socket is
closed. The broker's checksum covers neither topic nor partition, so a buffer re-used too early would silently write
records to the wrong topic (KAFKA-19012).
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import Final

_SMALLEST: Final = 64 * 1024


class RequestBuffer:
    """Memory of one request. ``view`` is the whole buffer, at least as large as requested."""

    __slots__ = ("lent", "size", "trims", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))
        self.lent = False
        self.trims = 0
        """The pool's trim count when this buffer was given back."""


class RequestBufferPool:
    """Buffers by size class (powers of two from 64 KiB). Single-threaded. taken_bytes + free_bytes <= limit_bytes.

    One exception: a request larger than the limit is lent a buffer while no other request has one.
    """

    __slots__ = (
        "_free",
        "_trims",
        "free_bytes",
        "limit_bytes",
        "max_request_size",
        "taken_bytes",
        "taken_count",
    )

    def __init__(self, *, max_request_size: int, limit_bytes: int) -> None:
        """Raises ValueError when less than two largest requests fit."""
        if limit_bytes < 2 * max_request_size:
            raise ValueError(
                f"The request buffers may use {limit_bytes} bytes, but two requests of max.request.size="
                f"{max_request_size} must fit; lower max.request.size or raise the limit of request buffers."
            )
        self.max_request_size = max_request_size
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self.taken_count = 0
        self.free_bytes = 0
        self._free: defaultdict[int, list[RequestBuffer]] = defaultdict(list)
        self._trims = 0

    def take(self, size_bytes: int) -> RequestBuffer | None:
        """A buffer of at least ``size_bytes``, or None when the limit is reached.

        With nothing taken, any size is lent. Otherwise a batch accepted under an earlier, larger max.request.size
        would block its broker for ever.
        """
        largest = self.max_request_size
        if size_bytes > largest // 2:
            # Not a power of two: so 64 MiB hold as many of the largest requests as promised.
            size = max(size_bytes, largest)
        else:
            size = _SMALLEST
            while size < size_bytes:
                size *= 2
            size = min(size, largest)
        if self.taken_bytes and self.taken_bytes + size > self.limit_bytes:
            return None
        free = self._free[size]
        if free:
            buffer = free.pop()
            self.free_bytes -= size
        else:
            self._shrink_to(self.limit_bytes - self.taken_bytes - size)
            buffer = RequestBuffer(size)
        buffer.lent = True
        self.taken_bytes += size
        self.taken_count += 1
        return buffer

    def room_bytes(self, *, reserve_requests: int = 0) -> float:
        """The largest size that :meth:`take` would lend now and still leave room for ``reserve_requests`` of the
        largest requests. Infinity if nothing is taken or reserved; 0 if not even the smallest buffer is left.
        """
        if not (self.taken_bytes or reserve_requests):
            return inf
        room = self.limit_bytes - self.taken_bytes - reserve_requests * self.max_request_size
        if room >= self.max_request_size:
            return room
        if room < min(_SMALLEST, self.max_request_size):
            return 0
        return min(1 << room.bit_length() - 1, self.max_request_size // 2)

    def give(self, buffer: RequestBuffer) -> None:
        """Give a buffer back, exactly once."""
        assert buffer.lent, "a request buffer was given back twice"
        buffer.lent = False
        self.taken_bytes -= buffer.size
        self.taken_count -= 1
        if buffer.size <= self.max_request_size:  # a larger one has a size of its own that hardly comes again
            self.free_bytes += buffer.size
            buffer.trims = self._trims
            self._free[buffer.size].append(buffer)

    def trim_unused(self) -> None:
        """Free the buffers that were not lent since the previous trim: those of a past backlog, or all of an idle
        worker.
        """
        for size, buffers in self._free.items():
            # The buffer given back last is lent first, so unused ones are at the front.
            unused = 0
            while unused < len(buffers) and buffers[unused].trims < self._trims:
                unused += 1
            del buffers[:unused]
            self.free_bytes -= unused * size
        self._trims += 1

    def _shrink_to(self, free_bytes: int) -> None:
        for size in sorted(self._free, reverse=True):
            buffers = self._free[size]
            while buffers and self.free_bytes > free_bytes:
                buffers.pop()
                self.free_bytes -= size
