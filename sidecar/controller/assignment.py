"""Which worker a client gets: the one it had while that lives, else the one with the fewest clients.
Sans-IO."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

REMEMBERED_MAX = 65_536


class Assignment:
    """Client id → worker index. A client keeps its worker over reconnects, so its order holds. Not
    thread-safe."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._worker_of: OrderedDict[bytes, int] = OrderedDict()
        self._clients: dict[int, int] = {}
        self._remembered_max = remembered_max

    def assign(self, client_id: bytes, ready: Iterable[int]) -> int | None:
        """The index of the worker for ``client_id``; None while no worker is ready."""
        choices = sorted(ready)
        if not choices:
            return None
        had = self._worker_of.get(client_id)
        if had in choices:
            self._worker_of.move_to_end(client_id)
            return had
        self.forget(client_id)
        chosen = min(choices, key=lambda index: (self._clients.get(index, 0), index))
        self._worker_of[client_id] = chosen
        self._clients[chosen] = self._clients.get(chosen, 0) + 1
        if len(self._worker_of) > self._remembered_max:
            self.forget(next(iter(self._worker_of)))
        return chosen

    def forget(self, client_id: bytes) -> None:
        """The client is gone for good."""
        had = self._worker_of.pop(client_id, None)
        if had is not None:
            self._clients[had] -= 1

    def worker_left(self, index: int) -> None:
        """Its clients will ask again and be spread anew."""
        for client_id in [each for each, worker in self._worker_of.items() if worker == index]:
            self.forget(client_id)

    def count(self, index: int) -> int:
        return self._clients.get(index, 0)
