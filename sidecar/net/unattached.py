"""Unattached: an endpoint's connections whose clients have not attached, by age, by user and by process.

Anybody may open them, and an honest stub has one for milliseconds. So they share what is free: one user has at most
three times as many as there are free places. Alone it gets three quarters, and a newcomer of another user always
finds a place. One more takes the place of the oldest, of the process of that user that has most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sidecar.net.peer import Peer
from sidecar.net.stub_connection import StubConnection

PLACES_PER_FREE: Final = 3
"""Places that one user may have for each free one, of connections as of clients."""


class Unattached:
    """Sans-IO. Not thread-safe. Every call but ``oldest`` of all users takes the same time however many there are."""

    def __init__(self) -> None:
        self._due_s: dict[StubConnection, float] = {}
        """Oldest first, with the time until which they may take."""
        self._of_user: dict[int, dict[int, dict[StubConnection, None]]] = {}
        """By uid and pid, oldest first."""
        self._count_of_user: dict[int, int] = {}

    def __contains__(self, connection: StubConnection) -> bool:
        return connection in self._due_s

    def __len__(self) -> int:
        return len(self._due_s)

    def __iter__(self) -> Iterator[tuple[StubConnection, float]]:
        """Each with its time, oldest first; safe against changes meanwhile."""
        return iter(list(self._due_s.items()))

    def add(self, connection: StubConnection, due_s: float) -> None:
        pid, uid = connection.peer.pid, connection.peer.uid
        self._due_s[connection] = due_s
        self._of_user.setdefault(uid, {}).setdefault(pid, {})[connection] = None
        self._count_of_user[uid] = self._count_of_user.get(uid, 0) + 1

    def remove(self, connection: StubConnection) -> None:
        """Nothing for one that is not there."""
        if self._due_s.pop(connection, None) is None:
            return
        pid, uid = connection.peer.pid, connection.peer.uid
        processes = self._of_user[uid]
        del processes[pid][connection]
        if not processes[pid]:
            del processes[pid]
        self._count_of_user[uid] -= 1
        if not processes:
            del self._of_user[uid], self._count_of_user[uid]

    def clear(self) -> None:
        self._due_s.clear()
        self._of_user.clear()
        self._count_of_user.clear()

    def count_of(self, uid: int) -> int:
        return self._count_of_user.get(uid, 0)

    def gives_way(self, newcomer: Peer, free_places: int) -> StubConnection | None:
        """The connection that makes room for ``newcomer`` while so many places are free; None if none need or can."""
        own = self.count_of(newcomer.uid)
        if own < PLACES_PER_FREE * free_places:
            return None
        return self.oldest(newcomer.uid if own else None)

    def oldest(self, uid: int | None = None) -> StubConnection | None:
        """The oldest connection of the process that has most of them, of this user or of the user with most."""
        if uid is None:
            uid = max(self._count_of_user, key=self._count_of_user.__getitem__, default=None)
        processes = self._of_user.get(uid) if uid is not None else None
        if not processes:
            return None
        largest = max(processes, key=lambda pid: len(processes[pid]))
        return next(iter(processes[largest]))
