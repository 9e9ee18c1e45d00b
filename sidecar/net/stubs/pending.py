"""PendingConnections: an endpoint's connections that must still attach or prove a key, with limits of number and time.

The endpoint owns it, on the loop of a worker or the controller.

Strangers over TCP must prove a key first. They have a limit of their own, so that the network cannot use up those of
this host. Once they have proved a key they must attach like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sidecar.net.stubs.peer import Peer, user_of
from sidecar.net.stubs.stub_connection import StubConnection
from sidecar.net.stubs.unattached import Unattached

ATTACH_S: Final = 5.0
"""Time in seconds until a connection's client must have attached."""
HANDSHAKE_S: Final = 5.0
"""Time in seconds until a stranger over TCP must have proved a key of a table ``[clients.NAME]``."""
HANDSHAKES_MAX: Final = 1_024
"""Limit of strangers, or a quarter of all connections if that is less. Another one replaces one of them."""


class _Table(Unattached):
    """Unattached, with a timer of the loop: ``on_late`` gets the connections whose time is over."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit_s: float, on_late: Callable[[list[StubConnection]], None]
    ) -> None:
        super().__init__()
        self._loop = loop
        self.limit_s = limit_s
        self._on_late = on_late
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: StubConnection) -> None:
        self.add(connection, self._loop.time() + self.limit_s)
        if self._timer is None:
            self._timer = self._loop.call_later(self.limit_s, self.check)

    def clear(self) -> None:
        super().clear()
        if self._timer is not None:
            self._timer.cancel()

    def check(self) -> None:
        """Report connections that are late, and set the timer for the next one."""
        self._timer = None
        now = self._loop.time()
        late = []
        for connection, due in self:
            if due > now:
                self._timer = self._loop.call_later(due - now, self.check)
                break
            late.append(connection)
        self._on_late(late)


class PendingConnections:
    """Tracks pending. ``on_late(connections)`` gets those whose time is over. ``connections_max`` counts all
    connections, including attached ones. Belongs to the loop's thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        attach_s: float | None,
        connections_max: int,
        on_late: Callable[[list[StubConnection]], None],
    ) -> None:
        self._connections_max = connections_max
        self._strangers_max = min(HANDSHAKES_MAX, connections_max // 4)
        self.unattached = _Table(loop, ATTACH_S if attach_s is None else attach_s, on_late)
        self.strangers = _Table(loop, HANDSHAKE_S, on_late)

    def __contains__(self, connection: StubConnection) -> bool:
        return connection in self._table(connection)

    def begin(self, connection: StubConnection) -> None:
        """Start a connection's time, because it was accepted or its client has gone."""
        self._table(connection).begin(connection)

    def remove(self, connection: StubConnection) -> None:
        """Forget a connection that was closed or has attached. Unknown ones are ignored."""
        self._table(connection).remove(connection)

    def clear(self) -> None:
        self.unattached.clear()
        self.strangers.clear()

    def has_proved(self, connection: StubConnection) -> None:
        """Move a stranger that has proved its key: from now on limits count for the key, wherever it connects from."""
        self.strangers.remove(connection)
        connection.is_stranger = False
        connection.peer = connection.peer._replace(uid=user_of(connection.key))
        self.unattached.begin(connection)

    def late_words(self, connection: StubConnection) -> str:
        what = "prove a key" if connection.is_stranger else "attach"
        return f"it did not {what} within {self._table(connection).limit_s:g} s"

    def gives_way(self, peer: Peer, opened: int, *, is_stranger: bool) -> tuple[StubConnection, str] | None:
        """The connection to close for another one while ``opened`` are open, and why. None if none must or can be
        closed.
        """
        table, free = self.unattached, self._connections_max - opened
        if is_stranger:
            table, free = self.strangers, min(free, self._strangers_max - len(self.strangers))
        oldest = table.gives_way(peer, free)
        if oldest is None and free <= 0:
            oldest = self.strangers.oldest()
        if oldest is None:
            return None
        count = self._table(oldest).count_of(oldest.peer.uid)
        if oldest.is_stranger:
            return oldest, (
                f"it proved no key yet, as {len(self.strangers)} of at most {self._strangers_max} connections over TCP "
                f"({count} of its host)"
            )
        return oldest, (
            f"it did not attach, and {opened} of {self._connections_max} connections are open "
            f"({count} of its {'key' if oldest.key else 'user'})"
        )

    def oldest(self) -> StubConnection | None:
        """The connection that can best be closed, strangers first."""
        return self.strangers.oldest() or self.unattached.oldest()

    def _table(self, connection: StubConnection) -> _Table:
        return self.strangers if connection.is_stranger else self.unattached
