"""RequestRoom: what the next request may take of what is bounded, batch descriptors and request buffers."""

from __future__ import annotations

from collections.abc import Sized
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

    Buffers: the first request of a connection takes any that there is. One more is encoded behind it only if the
    largest request of another broker still finds a buffer.
    """

    __slots__ = (
        "_descriptors",
        "_free_when_promised",
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

    def begin_poll(self, ready: list[int], *, brokers: int) -> None:
        """What was promised before is published, or was given back. Puts ``ready`` in order: who waits comes first."""
        self._promised = 0
        self._free_when_promised = len(self._descriptors.free_indexes)
        self.is_shared = brokers > 1
        self.lacks_descriptors = False
        if self.waiting:
            turns = {node_id: turn for turn, node_id in enumerate(self.waiting)}
            ready.sort(key=lambda node_id: turns.get(node_id, len(turns)))
            self.waiting = {}

    def wait(self, node_id: int) -> None:
        """The connection found no buffer for its first request."""
        self.waiting[node_id] = None

    def new_batches(self, under_way: int) -> int:
        """How many batches without a descriptor a broker's next request may have, with ``under_way`` of its batches
        drained before and without a fate."""
        free = len(self._descriptors.free_indexes) - self._promised - DESCRIPTORS_RESERVED
        if self.is_shared:
            free = (free - under_way + 1) // 2
        return max(0, min(free, NEW_BATCHES_MAX))

    def request_bytes(self, *, is_first: bool) -> int:
        """The largest request that finds a buffer now; 0 when none does. ``is_first`` counts if ``is_shared``."""
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
