"""RequestCapacity: limits the next request by free batch descriptors and request buffers.

A request buffer is private memory in which a Produce request is encoded. It is lent for one request, and returns only
when the kernel has taken the request's bytes or the socket is closed. The broker's checksum covers neither topic nor
partition, so a buffer re-used too early would silently write records to the wrong topic (KAFKA-19012).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sized
from math import inf
from typing import Final, Protocol

DESCRIPTORS_RESERVED: Final = 64
"""Number of descriptors that new batches leave free: a split needs two even if all others are taken."""
NEW_BATCHES_MAX: Final = 1_024
"""Limit of batches without a descriptor in one request. While the second request is under way, the first one's answer
frees descriptors for the third.
"""
_SMALLEST: Final = 64 * 1024
"""Size of the smallest request buffer."""


class Descriptors(Protocol):
    """The part of the slot's descriptor table that is used here."""

    @property
    def free_indexes(self) -> Sized:
        """Indexes of the descriptors that are free now."""


class RequestCapacity:
    """BrokerDrain asks it before each drain. Single-threaded: the worker's loop.

    Descriptors: with more than one broker, the batches of one may hold as many as stay free after it has taken some.
    (A dynamic threshold, as Choudhury and Hahne share a switch's memory.) So one broker that does not answer leaves
    half of the table to the others, and two of them leave a third.

    A full table delays sending but never blocks it for good. Proof: let a broker be connected, with something due and
    nothing in flight.

    1. If the next batch of one of its partitions has a descriptor, that batch goes, now or when its backoff ends.
    2. Otherwise no descriptor that the broker holds can come back before a batch without one is sent: pieces of a split
       go before them, or their partitions have another leader. So these do not count against its share, and one
       batch goes as long as any descriptor is free (:meth:`new_batches_of_stuck`).
    3. If none is free, some come back without help: those of batches on the wire, of batches that are next in their
       partition, and of outcomes not sent yet. They cannot all wait for a batch without one. Consider the last
       publication before such a state. A split gives one back after it has taken two. A request published the next
       batch of its partition, so all batches before it had descriptors. If one of them has none now, it was given
       back later and is still free. This needs requests to be published in the order in which they were drained, and
       none to be left out: no more descriptors are promised than exist.

    Buffers: the first request of a connection may take any free buffer. Another request is encoded after it only if
    the largest request of another broker still finds a buffer.

    A batch may be larger than max.request.size, if it was accepted under an earlier, larger value. No number of free
    buffers is guaranteed to fit it, and small requests of others could keep the memory from it for ever. So once it is
    held back, no connection after it in ``waiting`` gets a buffer, nor another lane of its own connection. Connections
    before it have waited longer; each gets at most one buffer and is then after it. So all buffers come back, as
    requests are taken or connections are closed. With none taken, a batch of any size finds one. The batch holds no
    buffer while it waits, because no request is before its own on its connection. A batch that also lacks a descriptor
    does not wait here.
    """

    __slots__ = (
        "_descriptors",
        "_free_when_lacking",
        "_is_closed",
        "buffers",
        "is_shared",
        "lacks_descriptors",
        "promised",
        "waiting",
    )

    def __init__(self, buffers: RequestBufferPool, descriptors: Descriptors) -> None:
        self.buffers = buffers
        self._descriptors = descriptors
        self.promised = 0
        """Descriptors promised to splits and requests of this poll, which are published after it. Those promised by an
        earlier poll were used or given back.
        """
        self._free_when_lacking = 0
        """Descriptors that were free in the last poll that lacked some."""
        self.is_shared = False
        """The cluster has more than one broker."""
        self.lacks_descriptors = False
        """Since the last poll, batches stay in their queues because the descriptor table is full."""
        self.waiting: dict[int, None] = {}
        """Connections that found no buffer for their first request, longest waiting first."""
        self._is_closed = False
        """A waiting connection has a batch larger than max.request.size: those after it get no buffer in this poll."""

    def begin_poll(self, ready: list[int]) -> None:
        """Begin a poll after one in which something was missing: sort ``ready`` by longest waiting first."""
        self.lacks_descriptors = False
        self._is_closed = False
        if self.waiting:
            turns = {node_id: turn for turn, node_id in enumerate(self.waiting)}
            ready.sort(key=lambda node_id: turns.get(node_id, len(turns)))
            self.waiting = {}

    def wait(self, node_id: int, size_bytes: int) -> None:
        """Note that a connection found no buffer for its first request, which begins with a batch of ``size_bytes``."""
        self.waiting[node_id] = None
        if size_bytes > self.buffers.max_request_size:
            self._is_closed = True

    def lack_descriptors(self) -> None:
        """Note that batches stay in their queues because too few descriptors are free."""
        self.lacks_descriptors = True
        self._free_when_lacking = len(self._descriptors.free_indexes)

    def limits(self, under_way: int, *, is_first: bool) -> tuple[float, int]:
        """The limits of a broker's next request: (its size in bytes, the number of its batches without a descriptor).

        The size is 0 if no request finds a buffer, and infinity if any does. ``under_way``: the broker's batches that
        were drained and have no outcome. ``is_first``: no other request of the connection holds a buffer.
        """
        new_batches = len(self._descriptors.free_indexes) - self.promised - DESCRIPTORS_RESERVED
        if self.is_shared:
            new_batches = (new_batches - under_way + 1) // 2
        new_batches = NEW_BATCHES_MAX if new_batches > NEW_BATCHES_MAX else max(new_batches, 0)
        if self._is_closed:
            return 0, new_batches
        takes_any = is_first or not self.is_shared
        if takes_any and not self.buffers.taken_bytes:
            return inf, new_batches
        return self.buffers.free_bytes_max(reserve_requests=0 if takes_any else 1), new_batches

    def new_batches_of_stuck(self) -> int:
        """Number of new batches of a broker whose descriptors cannot come back before a batch without one is sent. It
        has nothing in flight, and no batch with a descriptor is next in its partition. It may use one of those reserved
        for splits.
        """
        _, new_batches = self.limits(0, is_first=True)
        free = len(self._descriptors.free_indexes) - self.promised
        return max(new_batches, min(free, 1))

    def has_capacity_for_halves(self, splits: int) -> bool:
        """Whether one more split finds two descriptors, after ``splits`` that run before it. Each takes two and gives
        one back.
        """
        return len(self._descriptors.free_indexes) >= splits + 2

    @property
    def has_freed_descriptors(self) -> bool:
        """True if descriptors were freed since a poll whose batches found none."""
        free = len(self._descriptors.free_indexes)
        return self.lacks_descriptors and free > self._free_when_lacking - self.promised


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

    def free_bytes_max(self, *, reserve_requests: int = 0) -> float:
        """The largest size that :meth:`take` would lend now and still leave capacity for ``reserve_requests`` of the
        largest requests. Infinity if nothing is taken or reserved; 0 if not even the smallest buffer is left.
        """
        if not (self.taken_bytes or reserve_requests):
            return inf
        capacity = self.limit_bytes - self.taken_bytes - reserve_requests * self.max_request_size
        if capacity >= self.max_request_size:
            return capacity
        if capacity < min(_SMALLEST, self.max_request_size):
            return 0
        return min(1 << capacity.bit_length() - 1, self.max_request_size // 2)

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
