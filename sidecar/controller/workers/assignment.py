"""Assigns clients to workers: to the worker that a client had while that lives, else to the one with the fewest
clients of those with rows for its topics. All clients of a transactional id get the same worker.

ClientAnswers asks it at each HELLO, on the controller's loop.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from typing import Final
from zlib import crc32

from sidecar.controller.rundir.segment_store import SegmentStore
from sidecar.controller.workers.supervisor import Supervisor
from sidecar.controller.workers.worker_process import WorkerIdentity
from sidecar.shm.layout import STREAMS_MAX

REMEMBERED_MAX = 65_536
REMEMBERED_MS = 600_000.0
"""Longer than an ATTACH may wait at a worker that hangs. Once the client has a row in the segment, that row names its
worker.
"""
RECENT_MS = 2_000.0
"""For this time an assigned client counts as about to attach, as the loads do not include it yet."""


ROWS_WANTED: Final = STREAMS_MAX + 128
"""A worker with fewer free rows for topics gets a new client only if all have fewer; then the one with most of them
does. A client may use 200, and the last 128 are for topics that Kafka has.
"""


class WorkerChoice:
    """The worker of each client, by the segment's rows and by ``Assignment``. Belongs to the controller's loop."""

    def __init__(self, supervisor: Supervisor, store: SegmentStore) -> None:
        self._supervisor = supervisor
        self._store = store
        self._assignment = Assignment()

    def worker_of(self, client_id: bytes, transactional_id: str | None = None) -> WorkerIdentity | None:
        """The worker that has the client's row, and only that; else the one that has the lane of its transactional id.
        A new id gets one by its hash, any other new client by ``Assignment``. None while it is not ready.
        """
        ready = {worker.identity.index: worker for worker in self._supervisor.ready}
        slot = self._store.slot_of(client_id)
        if slot is None and transactional_id is not None:
            slot = self._store.slot_of_lane(transactional_id)
        if slot is not None:
            return next((each.identity for each in ready.values() if each.identity.slot == slot), None)
        if transactional_id is not None:
            worker = ready.get(index_of_id(transactional_id, self._supervisor.for_new_clients))
            return None if worker is None else worker.identity
        loads = {
            index: self._store.clients_connected(each.identity.slot)
            for index, each in ready.items()
            if self._supervisor.is_for_new_clients(each)
        }
        free_rows = {index: self._store.free_rows(ready[index].identity.slot) for index in loads}
        index = self._assignment.assign(client_id, loads, free_rows, time.monotonic() * 1000.0)
        return None if index is None else ready[index].identity

    def worker_left(self, index: int) -> None:
        """Forget a worker that has left."""
        self._assignment.worker_left(index)


def index_of_id(transactional_id: str, workers: int) -> int:
    """The worker of a transactional id that has no lane yet: the same for all its clients, whichever asks first."""
    return crc32(transactional_id.encode()) % workers


class Assignment:
    """Client id → worker index, for clients without a row yet. A client that asks twice gets the same worker.

    Sans-IO.
    """

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._worker_of: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """Client id → (worker index, time of the last question), oldest first."""
        self._recent: deque[tuple[float, int]] = deque()
        self._coming: Counter[int] = Counter()
        """How many of them each worker has. Kept up to date on each change, as any process may send HELLO many times a
        second.
        """
        self._remembered_max = remembered_max

    def assign(
        self, client_id: bytes, loads: Mapping[int, int], free_rows: Mapping[int, int], now_ms: float
    ) -> int | None:
        """The index of the worker for ``client_id``; None while no worker is ready.

        ``loads``: the ready workers, with the number of clients attached to each. ``free_rows``: the rows for topics
        that each has left.
        """
        if not loads:
            return None
        while self._worker_of and next(iter(self._worker_of.values()))[1] <= now_ms - REMEMBERED_MS:
            self._worker_of.popitem(last=False)
        had = self._worker_of.get(client_id)
        if had is not None and had[0] in loads:
            self._remember(client_id, had[0], now_ms)
            return had[0]
        while self._recent and self._recent[0][0] <= now_ms - RECENT_MS:
            self._coming[self._recent.popleft()[1]] -= 1
        chosen = min(
            loads,
            key=lambda index: (
                max(0, ROWS_WANTED - free_rows[index]),
                loads[index] + self._coming[index],
                index,
            ),
        )
        self._recent.append((now_ms, chosen))
        self._coming[chosen] += 1
        self._remember(client_id, chosen, now_ms)
        if len(self._worker_of) > self._remembered_max:
            self._worker_of.popitem(last=False)
        return chosen

    def worker_left(self, index: int) -> None:
        """Forget a worker that has left. Its clients will ask again and are spread over the others."""
        for client_id in [each for each, (worker, _) in self._worker_of.items() if worker == index]:
            del self._worker_of[client_id]
        self._recent = deque(each for each in self._recent if each[1] != index)
        del self._coming[index]

    def _remember(self, client_id: bytes, index: int, now_ms: float) -> None:
        self._worker_of[client_id] = index, now_ms
        self._worker_of.move_to_end(client_id)
