"""PartitionTimers: when partitions that linger or back off are due.

Sans-IO: PartitionSchedule owns it, on the worker's loop.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.producer.partition_queue import PartitionQueue


class PartitionTimers:
    """A heap of due times. A partition has at most one valid entry, named by its ``timer_serial`` (0: none). Stale
    entries are skipped when they come up.
    """

    __slots__ = ("_heap", "_serial", "earliest_ms")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PartitionQueue]] = []
        self._serial = count(1)
        self.earliest_ms = inf
        """Lower bound of all due times, monotonic ms. It may be a stale entry's: :attr:`next_due_ms` finds the next
        valid one.
        """

    def set(self, queue: PartitionQueue, due_ms: float) -> None:
        """Set the partition's timer, replacing an earlier one."""
        if queue.timer_serial and queue.timer_due_ms == due_ms:
            return
        queue.timer_due_ms = due_ms
        queue.timer_serial = next(self._serial)
        heappush(self._heap, (due_ms, queue.timer_serial, queue))
        self.earliest_ms = self._heap[0][0]

    def take_due(self, now_ms: float) -> list[PartitionQueue]:
        """Remove and return the partitions that are due, soonest first."""
        due: list[PartitionQueue] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            _, serial, queue = heappop(heap)
            if queue.timer_serial == serial:
                queue.timer_serial = 0
                due.append(queue)
        self.earliest_ms = heap[0][0] if heap else inf
        return due

    @property
    def next_due_ms(self) -> float:
        """When the next lingering or backing-off batch is due; infinity when none waits for time."""
        heap = self._heap
        while heap and heap[0][2].timer_serial != heap[0][1]:
            heappop(heap)
        self.earliest_ms = heap[0][0] if heap else inf
        return self.earliest_ms

    def waiting(self) -> list[PartitionQueue]:
        """Partitions with a timer set."""
        return [queue for _, serial, queue in self._heap if queue.timer_serial == serial]
