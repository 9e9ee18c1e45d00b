"""ReceiveRoom: the receive buffers of attached clients, and the connections that wait for some.

Buffers are bounded for all clients and for those of each user. A message that finds no room waits in the kernel; half a
message that has waited too long gives its buffer to others, and loses its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from client_stub.zmtp import Buffers

if TYPE_CHECKING:
    import select

    from sidecar.net.stub_connection import StubConnection

RECEIVE_BUFFER_BYTES: Final = 1280 << 10
"""Holds a whole submission of the usual size: a bulk client's bytes are not moved while they gather."""
UNFINISHED_BYTES_MAX: Final = 64 << 20
"""Buffers of attached clients with half a message each, all together; more where one submission needs more."""
USER_UNFINISHED_BYTES_MAX: Final = 20 << 20
"""The same of the clients of one user."""
STALLED_S: Final = 1.0
"""While buffers are scarce, half a message may wait this long for its rest."""
RELIEF_S: Final = 0.1
"""How often those that wait for a buffer are looked at."""


class ReceiveRoom:
    """Belongs to an endpoint and its loop. ``connections`` gives all of that; ``spare`` closes one, and ``on_relieved``
    follows a look at those that wait."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        epoll: select.epoll,
        message_bytes_max: int,
        *,
        connections: Callable[[], Iterable[StubConnection]],
        spare: Callable[[StubConnection, str], None],
        on_relieved: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._epoll = epoll
        self._connections = connections
        self._spare = spare
        self._on_relieved = on_relieved
        # Four times: a buffer doubles until its message fits, and is copied from the one before it.
        self.user_bytes_max = max(USER_UNFINISHED_BYTES_MAX, 4 * message_bytes_max)
        self.buffers = Buffers(RECEIVE_BUFFER_BYTES, max(UNFINISHED_BYTES_MAX, 2 * self.user_bytes_max))
        self.by_user: dict[int, Buffers] = {}
        """By uid: the part of them that its attached clients may have."""
        self.paused: dict[StubConnection, None] = {}
        """Connections that wait, longest first; their sockets are not watched."""
        self._timer: asyncio.TimerHandle | None = None

    def of_user(self, uid: int) -> Buffers:
        """The buffers of a user's clients."""
        buffers = self.by_user.get(uid)
        if buffers is None:
            buffers = self.by_user[uid] = Buffers.share_of(self.buffers, self.user_bytes_max)
        return buffers

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
        self.paused.clear()

    def pause(self, connection: StubConnection) -> None:
        """Its message finds no room."""
        if not connection.is_paused:
            connection.is_paused = True
            self.paused[connection] = None
            # All of it: the end of its peer would wake us without end.
            self._epoll.unregister(connection.socket)
        if self._timer is None:
            self._timer = self._loop.call_later(RELIEF_S, self._relieve)

    def resume(self) -> None:
        """Those that wait for room go on as far as there is some, longest waiting first of each user."""
        full: set[int] = set()
        for connection in list(self.paused):
            if connection.peer.uid in full:
                continue
            if not connection.zmtp.space():
                full.add(connection.peer.uid)
                continue
            connection.is_paused = False
            del self.paused[connection]
            self._epoll.register(connection.socket, connection.wanted_events)

    def _relieve(self) -> None:
        """Some wait for room: who has held a buffer for half a message too long makes it."""
        self._timer = None
        self.resume()
        now = self._loop.time()
        late = [
            each
            for each in self._connections()
            if each.has_attached and each.part_since and now - each.part_since > STALLED_S
        ]
        # First who could have gone on; where all of them wait for each other, one of those.
        late.sort(key=lambda each: (each.is_paused, each.part_since))
        has_room = self.buffers.held_bytes + self.user_bytes_max <= self.buffers.limit_bytes
        for connection in late:
            if not self.paused or (connection.is_paused and len(self.paused) == 1):
                break
            if has_room and all(each.peer.uid != connection.peer.uid for each in self.paused):
                continue  # those that wait, wait for their own user's buffers
            self._spare(connection, "half of a message was all that came, and others wait for its buffer")
            self.resume()
        if self.paused:
            self._timer = self._loop.call_later(RELIEF_S, self._relieve)
        self._on_relieved()
