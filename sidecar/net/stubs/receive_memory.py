"""ReceiveMemory: the receive buffers of attached clients, and the connections that wait for one.

The endpoint owns it, on the loop of a worker or the controller.

Buffers are limited in total and per user. A message without a buffer waits in the kernel. If half a message waits too
long for its rest, its connection is closed and others get the buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from client_stub.zmtp.buffers import Buffers, pages

if TYPE_CHECKING:
    import select

    from sidecar.net.stubs.stub_connection import StubConnection

RECEIVE_BUFFER_BYTES: Final = 1280 << 10
"""Holds a complete submission of the usual size, so a bulk client's bytes are not moved while they arrive."""
UNFINISHED_BYTES_MAX: Final = 64 << 20
"""Limit of all buffers of attached clients that hold half a message; more if one submission needs more."""
USER_UNFINISHED_BYTES_MAX: Final = 20 << 20
"""The same limit for the clients of one user."""
STALLED_S: Final = 1.0
"""Time in seconds that half a message may wait for its rest while buffers are scarce."""
RELIEF_S: Final = 0.1
"""Interval in seconds at which waiting connections are examined."""
SHORT_BUFFER_BYTES: Final = 32 << 10


class UserBuffers(Buffers):
    """The share of one user in ``whole``, whose limit is ``whole_max``. All its bytes count for ``whole``, too.

    From ``bytes_max`` or ``whole_max`` on no buffer grows, and a new message gets only a short buffer.
    """

    __slots__ = ("_bytes_max", "_whole", "_whole_max")

    def __init__(self, whole: Buffers, whole_max: int, bytes_max: int) -> None:
        super().__init__(whole.size)
        self._whole = whole
        self._whole_max = whole_max
        self._bytes_max = bytes_max
        self._spares = whole._spares

    def first(self) -> memoryview:
        whole = self._whole
        if self.held_bytes >= self._bytes_max or whole.held_bytes >= self._whole_max:
            self.count(SHORT_BUFFER_BYTES)
            return pages(SHORT_BUFFER_BYTES)
        self.held_bytes += self.size
        whole.held_bytes += self.size
        return self._spares.pop() if self._spares else pages(self.size)

    def larger(self, than: int) -> memoryview | None:
        size = self.larger_bytes(than)
        if self.held_bytes + size > self._bytes_max or self._whole.held_bytes + size > self._whole_max:
            return None
        self.held_bytes += size
        return self._whole.larger(than)

    def give(self, view: memoryview) -> None:
        self.held_bytes -= len(view)
        self._whole.give(view)

    def count(self, size: int) -> None:
        self.held_bytes += size
        self._whole.held_bytes += size


class ReceiveMemory:
    """Receive buffers of an endpoint; belongs to its loop. ``connections`` returns all its connections, ``drop``
    closes one, and ``on_relieved`` runs after the waiting ones were examined.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        epoll: select.epoll,
        message_bytes_max: int,
        *,
        connections: Callable[[], Iterable[StubConnection]],
        drop: Callable[[StubConnection, str], None],
        on_relieved: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._epoll = epoll
        self._connections = connections
        self._drop = drop
        self._on_relieved = on_relieved
        # Four times the size: a buffer doubles until its message fits, and is copied from the previous one.
        self.user_bytes_max = max(USER_UNFINISHED_BYTES_MAX, 4 * message_bytes_max)
        self.bytes_max = max(UNFINISHED_BYTES_MAX, 2 * self.user_bytes_max)
        self.buffers = Buffers(RECEIVE_BUFFER_BYTES)
        self.by_user: dict[int, UserBuffers] = {}
        """By uid: the share of the buffers for the user's attached clients."""
        self.paused: dict[StubConnection, None] = {}
        """Waiting connections, longest waiting first. Their sockets are not watched."""
        self._timer: asyncio.TimerHandle | None = None

    def of_user(self, uid: int) -> Buffers:
        """Buffers of a user's clients."""
        buffers = self.by_user.get(uid)
        if buffers is None:
            buffers = self.by_user[uid] = UserBuffers(self.buffers, self.bytes_max, self.user_bytes_max)
        return buffers

    def close(self) -> None:
        """Stop the timer and forget all waiting connections."""
        if self._timer is not None:
            self._timer.cancel()
        self.paused.clear()

    def pause(self, connection: StubConnection) -> None:
        """Stop reading a connection whose message finds no buffer."""
        if not connection.is_paused:
            connection.is_paused = True
            self.paused[connection] = None
            # Unregister it: the peer's hang-up would wake the loop again and again.
            self._epoll.unregister(connection.socket)
        if self._timer is None:
            self._timer = self._loop.call_later(RELIEF_S, self._relieve)

    def resume(self) -> None:
        """Resume waiting connections as far as there are buffers, those of each user in order of waiting."""
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
        """Make room for waiting connections by closing those that have held a buffer for half a message too long."""
        self._timer = None
        self.resume()
        now = self._loop.time()
        late = [
            each
            for each in self._connections()
            if each.has_attached and each.part_since and now - each.part_since > STALLED_S
        ]
        # Begin with connections that were not waiting themselves. If all wait for each other, close one of them.
        late.sort(key=lambda each: (each.is_paused, each.part_since))
        has_room = self.buffers.held_bytes + self.user_bytes_max <= self.bytes_max
        for connection in late:
            if not self.paused or (connection.is_paused and len(self.paused) == 1):
                break
            if has_room and all(each.peer.uid != connection.peer.uid for each in self.paused):
                continue  # the waiting ones need buffers of their own user
            self._drop(connection, "half of a message was all that came, and others wait for its buffer")
            self.resume()
        if self.paused:
            self._timer = self._loop.call_later(RELIEF_S, self._relieve)
        self._on_relieved()
