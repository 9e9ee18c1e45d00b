"""RequestRoom: what the next request may take of what is bounded, batch descriptors and request buffers."""

from __future__ import annotations

from collections.abc import Sized
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from sidecar.producer.in_flight import ProduceRequest
    from sidecar.producer.request_buffers import RequestBufferPool

DESCRIPTORS_RESERVED: Final = 64
"""Descriptors that new batches leave free: a split must find two when everything else is taken."""
NEW_BATCHES_MAX: Final = 1_024
"""Batches without a descriptor in one request: the answer of a first request frees descriptors for a third one while
the second is under way."""


class Descriptors(Protocol):
    """The slot's table of batch descriptors, as far as it is counted here."""

    @property
    def free_indexes(self) -> Sized:
        """Those that are free now."""


class RequestRoom:
    """Asked by the sender before and after each drain. Single-threaded: the worker's loop.

    Descriptors: with more than one broker in the cluster, the batches of one may hold as many as stay free after it has
    taken some (a dynamic threshold, as Choudhury and Hahne give shares of a switch's memory). So a broker that does not
    answer leaves half of the table to the others, and two of them a third.

    A full table delays and never blocks. Let a broker be connected, with something due and nothing in flight. (1) If
    the next batch of one of its partitions has a descriptor, that one goes, now or when its backoff ends. (2) Else
    none of the descriptors that it has can come back before something without one goes: pieces of a split stand before
    them, or their partitions have another leader. So they do not count against its share, and one batch goes as long
    as any descriptor is free (:meth:`new_batches_of_stuck`). (3) If none is free, some come back by themselves: those
    of batches on the wire, of batches that are next in their partition, and of untold outcomes do. Not all can be
    behind a batch without one. Look at the last publication before such a state. A split gives one back after it has
    taken two. Else it was for a request, and its batch was the next of its partition: all before it had descriptors.
    One of them has none now, so that one was given back later, and is still free. This needs requests to be published
    in the order in which they were drained, none without an earlier one: they are promised no more than there is.

    Buffers: the first request of a connection takes any that there is. One more is encoded behind it only if the
    largest request of another broker still finds a buffer.

    A batch may be larger than max.request.size: one that was accepted under an earlier, larger one. No number of free
    buffers is promised to it, and small requests of others could keep the memory from it for ever. So once it is held
    back, no connection behind it in line is given a buffer, nor another lane of its own. Those before it have waited
    longer, and each is given one at most before it stands behind. So all buffers come back, as their requests are
    taken or their connections are closed, and with none taken a batch of any size finds one. It holds nothing while it
    waits: it has no request before its own on its connection. One that lacks a descriptor as well does not wait here.
    """

    __slots__ = (
        "_descriptors",
        "_free_when_promised",
        "_is_closed",
        "_promised",
        "buffers",
        "is_shared",
        "lacks_descriptors",
        "waiting",
    )

    def __init__(self, buffers: RequestBufferPool, descriptors: Descriptors) -> None:
        self.buffers = buffers
        self._descriptors = descriptors
        self._promised = 0
        """Descriptors for requests of this poll, which are published after it."""
        self._free_when_promised = 0
        self.is_shared = False
        """There is more than one broker."""
        self.lacks_descriptors = False
        """Batches stay in their queues since the last poll because the table is full."""
        self.waiting: dict[int, None] = {}
        """Connections that found no buffer for their first request, longest waiting first."""
        self._is_closed = False
        """One of them has a batch larger than max.request.size: those behind it take none in this poll."""

    def begin_poll(self, ready: list[int], *, brokers: int, splits: int = 0) -> None:
        """Forget earlier promises: they were used or given back. Put ``ready`` in order: longest waiting first.
        ``splits`` are carried out before this poll's requests: each takes one descriptor more than it gives back."""
        self._promised = splits
        self._free_when_promised = len(self._descriptors.free_indexes)
        self.is_shared = brokers > 1
        self.lacks_descriptors = False
        self._is_closed = False
        if self.waiting:
            turns = {node_id: turn for turn, node_id in enumerate(self.waiting)}
            ready.sort(key=lambda node_id: turns.get(node_id, len(turns)))
            self.waiting = {}

    def wait(self, node_id: int, size_bytes: int) -> None:
        """The connection found no buffer for its first request, which begins with a batch of ``size_bytes``."""
        self.waiting[node_id] = None
        if size_bytes > self.buffers.max_request_size:
            self._is_closed = True

    def new_batches(self, under_way: int) -> int:
        """How many batches without a descriptor a broker's next request may have, with ``under_way`` of its batches
        drained before and without a fate."""
        free = len(self._descriptors.free_indexes) - self._promised - DESCRIPTORS_RESERVED
        if self.is_shared:
            free = (free - under_way + 1) // 2
        if free > NEW_BATCHES_MAX:
            return NEW_BATCHES_MAX
        return free if free > 0 else 0

    def new_batches_of_stuck(self) -> int:
        """The same for a broker none of whose descriptors can come back before a batch without one is sent: with
        nothing in flight, and no such batch next in its partition. One may be of those kept for splits."""
        free = len(self._descriptors.free_indexes) - self._promised
        return max(self.new_batches(0), min(free, 1))

    def has_room_for_halves(self, splits: int) -> bool:
        """Whether one more split finds two descriptors, after ``splits`` that are to be carried out before it: each
        takes two and gives one back."""
        return len(self._descriptors.free_indexes) >= splits + 2

    def request_bytes(self, *, is_first: bool) -> float:
        """The largest request that finds a buffer now: 0 when none does, infinity when any does. ``is_first``: no
        other request for the connection holds a buffer."""
        if self._is_closed:
            return 0
        if not self.buffers.taken_bytes and (is_first or not self.is_shared):
            return inf
        return self.buffers.room_bytes(reserve_requests=0 if is_first or not self.is_shared else 1)

    def take(self, request: ProduceRequest) -> None:
        """Give the request its buffer, and count the descriptors that it will need."""
        request.buffer = self.buffers.take(request.size_bytes)
        self._promised += request.new_batches

    @property
    def has_freed_descriptors(self) -> bool:
        """Some were freed since the poll whose batches found none."""
        free = len(self._descriptors.free_indexes)
        return self.lacks_descriptors and free > self._free_when_promised - self._promised
