"""Unattached: an endpoint's connections whose clients have not attached, by age, user and process.

Anyone may open them, and a valid stub has one for milliseconds. So users share the free connections: one user may have
at most three times as many as there are free ones. Alone it gets three quarters, and another user always finds a free
one. A further connection replaces the oldest, of that user's process with the most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sidecar.net.stubs.peer import Peer
from sidecar.net.stubs.stub_connection import StubConnection

PER_FREE: Final = 3
"""How many one user may have for each free one. Used for connections and for clients."""


class Unattached:
    """Sans-IO. Not thread-safe. Every call takes constant time, except ``oldest`` over all users."""

    def __init__(self) -> None:
        self._due_s: dict[StubConnection, float] = {}
        """Connections, oldest first, each with its deadline in seconds."""
        self._of_user: dict[int, dict[int, dict[StubConnection, None]]] = {}
        """Connections by uid and pid, oldest first."""
        self._count_of_user: dict[int, int] = {}

    def __contains__(self, connection: StubConnection) -> bool:
        return connection in self._due_s

    def __len__(self) -> int:
        return len(self._due_s)

    def __iter__(self) -> Iterator[tuple[StubConnection, float]]:
        """Yield (connection, deadline), oldest first. Changes meanwhile are allowed."""
        return iter(list(self._due_s.items()))

    def add(self, connection: StubConnection, due_s: float) -> None:
        pid, uid = connection.peer.pid, connection.peer.uid
        self._due_s[connection] = due_s
        self._of_user.setdefault(uid, {}).setdefault(pid, {})[connection] = None
        self._count_of_user[uid] = self._count_of_user.get(uid, 0) + 1

    def remove(self, connection: StubConnection) -> None:
        """Remove a connection. Unknown ones are ignored."""
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

    def gives_way(self, peer: Peer, free: int) -> StubConnection | None:
        """The connection to close for ``peer`` while so many are free; None if none must or can be closed."""
        own = self.count_of(peer.uid)
        if own < PER_FREE * free:
            return None
        return self.oldest(peer.uid if own else None)

    def oldest(self, uid: int | None = None) -> StubConnection | None:
        """The oldest connection of the process that has the most, of this user or else of the user with the most."""
        if uid is None:
            uid = max(self._count_of_user, key=self._count_of_user.__getitem__, default=None)
        processes = self._of_user.get(uid) if uid is not None else None
        if not processes:
            return None
        largest = max(processes, key=lambda pid: len(processes[pid]))
        return next(iter(processes[largest]))
