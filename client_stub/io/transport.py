"""Transport: the sockets of one client, each a ``Link``, in one poll. Used by the io thread, and by look-ups.

The name of the daemon's host is resolved for each connection, as the daemon may have moved. Only that connection waits
for it.

Every attachment is a new connection: the unsent rest of an earlier one never reaches a restarted peer in the middle of
a message. Messages that arrived before a connection ended are passed on before its end is reported.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from client_stub.contract.tcp import join_address, split_address
from client_stub.io.daemon_address import worker_path
from client_stub.io.host_lookup import HostLookup, look_up
from client_stub.io.link import Link
from client_stub.native.hot import clear_wakes
from client_stub.outbox.waker import Waker
from client_stub.system.originals import monotonic, poll
from client_stub.zmtp.buffers import Buffers
from client_stub.zmtp.frames import Pieces
from client_stub.zmtp.keys import KeyFile, WatchedKeyFile

BYE_LINGER_MS: Final = 500
RECEIVE_BUFFER_BYTES: Final = 512 << 10
"""More than the daemon's outcome ring of one client holds."""
LOOKUP_S: Final = 4.0
"""How long a connection waits for the addresses of its host: shorter than the session waits for an answer, so that the
error names this cause.
"""
_POLLIN: Final = select.POLLIN
_POLLOUT: Final = select.POLLOUT

Message: TypeAlias = tuple[str, list[bytes]]
"""("control" | "worker", frames), ("lost", [reason]), or ("barred", [reason]): this user or key may not connect."""


class _Unresolved(NamedTuple):
    """A connection to make once its host is resolved."""

    name: str
    address: str
    frames: Sequence[Any]
    lookup: HostLookup
    turn: int
    until_s: float


class Transport:
    """Control and worker connections in one poll, with a waker for other threads."""

    def __init__(self, control_path: str, keys: WatchedKeyFile | None = None, turn: int = 0) -> None:
        """``keys`` is needed for ``tcp://host:port``; each connection reads the present keys of the file. ``turn``
        selects the address to try first when the host's name has several.
        """
        self._control_path = control_path
        self._keys = keys
        self._used_keys: KeyFile | None = None
        """Those of the last connection."""
        self._links: dict[str, Link] = {}
        self._by_fd: dict[int, Link] = {}
        self._lost: list[Link] = []
        """Connections whose end the next ``poll`` reports, after their last messages."""
        self._not_made = ""
        """The reason why there is no connection at all; the next ``poll`` reports it."""
        self._unresolved: _Unresolved | None = None
        self._turn = turn
        """The index of the address to use; it advances when one does not answer."""
        self._buffers = Buffers(RECEIVE_BUFFER_BYTES, are_kept=True)
        self.waker = Waker()
        """Any thread may signal it, which ends the present or the next ``poll`` at once."""
        self._waker_fd = self.waker.fd
        self._poller = poll()
        self._poller.register(self._waker_fd, select.POLLIN)

    def open_control(self, frames: Sequence[Any]) -> None:
        self._drop("control")
        self._open("control", self._control_path, frames)
        self._turn += 1  # unless it answers

    def open_worker(self, endpoint: str, frames: Sequence[Any]) -> None:
        self._turn -= 1
        try:
            path = worker_path(self._control_path, endpoint)
        except ValueError as error:
            self.close_sockets()
            self._could_not("worker", error)
            return
        control = self._links.get("control")
        if self._keys is not None and control is not None:
            # Use the same address that answered, if the name has several.
            with contextlib.suppress(OSError):
                path = join_address(control.socket.getpeername()[0], split_address(path)[1])
        self.close_sockets()
        self._open("worker", path, frames)

    def send(self, frames: Sequence[Any]) -> bool:
        """Write one message to the worker. Returns False while an earlier one is only partly written; ``poll`` notices
        when that changes.
        """
        link = self._links.get("worker")
        if link is None:
            return True  # as if the connection had just been lost
        if link.unsent:
            return False
        buffers: list[Any] = link.encode(frames)
        if buffers[-1].__class__ is Pieces:
            buffers[-1:] = buffers[-1].buffers
        link.write(buffers)
        if link.unsent or link.lost_reason or link.watched != _POLLIN:
            self._watch(link)
        return True

    def is_moving(self) -> bool:
        """Whether the connection to the worker can be relied on.

        False over TCP when the peer has taken none of our bytes since the last call, or when it has taken all: a proxy
        takes bytes even without a daemon. A message that was partly written at the last call is an exception: no PING
        fitted after it, so its rest still counts. The end of a local socket is always noticed.
        """
        link = self._links.get("worker")
        if self._keys is None or link is None:
            return True
        return link.is_moving()

    def control_fileno(self) -> int | None:
        """A descriptor that is readable when ``poll`` can read from the connection made by ``open_control``; None once
        that is gone.
        """
        if self._unresolved is not None:
            return self._unresolved.lookup.waker.fd
        link = self._links.get("control")
        return None if link is None else link.fd

    def poll(self, timeout_ms: float | None) -> list[Message]:
        """Wait for messages, broken connections, a socket that takes bytes, or the waker. At most one bounded turn."""
        if self._unresolved is not None:
            timeout_ms = self._check_host(timeout_ms)
        wait_ms = None if timeout_ms is None else int(timeout_ms + 0.999) if timeout_ms > 0 else 0
        messages: list[Message] = []
        for fd, events in self._poller.poll(0 if self._lost or self._not_made else wait_ms):
            if fd == self._waker_fd:
                clear_wakes(fd)
                continue
            link = self._by_fd.get(fd)
            if link is None:
                continue  # the host is resolved: the next call connects
            if events & _POLLOUT and link.unsent:
                link.write(link.unsent)
            if events & ~_POLLOUT:
                for frames in link.receive():
                    messages.append((link.name, frames))
            if link.unsent or link.lost_reason or link.watched != _POLLIN:
                self._watch(link)
        while self._lost:
            link = self._lost.pop()
            messages += [(link.name, frames) for frames in link.receive()]
            if link.is_barred and not self.key_is_replaced:
                messages.append(("barred", [link.lost_reason.encode()]))
            else:
                messages.append(("lost", [f"{link.name} connection: {link.lost_reason}".encode()]))
            self._drop(link.name)
        if self._not_made:
            messages.append(("lost", [self._not_made.encode()]))
            self._not_made = ""
        return messages

    def close_sockets(self) -> None:
        self._not_made = ""
        self._end_lookup()
        self._drop("control")
        self._drop("worker")

    def forked(self) -> None:
        """In a forked child: close its copies of the descriptors, so that the daemon notices the end of the parent's
        connection.
        """
        for link in self._links.values():
            link.socket.close()
        self._links.clear()
        self._by_fd.clear()
        self._unresolved = None
        self._lost.clear()
        self._give_up_waker()

    @property
    def key_is_replaced(self) -> bool:
        """Over TCP: the key file has changed since the last connection was made."""
        return self._keys is not None and self._keys.keys() != self._used_keys

    def close(self, farewell: Sequence[Any] | None) -> None:
        """Send ``farewell`` to the worker if it is connected, then close everything."""
        link = self._links.get("worker")
        if farewell is not None and link is not None and not link.lost_reason:
            link.socket.settimeout(BYE_LINGER_MS / 1e3)
            with contextlib.suppress(OSError):  # the worker is gone, or does not read
                link.socket.sendall(b"".join([*link.unsent, *link.encode(farewell)]))
        self.close_sockets()
        self._give_up_waker()

    def _give_up_waker(self) -> None:
        """Drop the reference to the waker, which closes with its last reference. A second call does nothing, as in a
        child that is forked after a close.
        """
        self.__dict__.pop("waker", None)

    def _open(self, name: str, path: str, frames: Sequence[Any]) -> None:
        if self._keys is None:
            self._connect(name, path, frames)
            return
        try:
            lookup = look_up(*split_address(path))
        except (OSError, ValueError) as error:
            self._could_not(name, error)
            return
        self._end_lookup()
        if lookup.is_over:
            self._connect(name, path, frames, lookup, self._turn)
            return
        self._unresolved = _Unresolved(name, path, frames, lookup, self._turn, monotonic() + LOOKUP_S)
        self._poller.register(lookup.waker.fd, select.POLLIN)

    def _check_host(self, timeout_ms: float | None) -> float | None:
        """Connect if the host is resolved, or give up if its time is over. Returns how long ``poll`` may wait then."""
        unresolved = self._unresolved
        assert unresolved is not None
        left_ms = (unresolved.until_s - monotonic()) * 1e3
        if unresolved.lookup.is_over:
            self._end_lookup()
            self._connect(
                unresolved.name, unresolved.address, unresolved.frames, unresolved.lookup, unresolved.turn
            )
        elif left_ms <= 0:
            self._end_lookup()
            self._not_made = f"{unresolved.name} connection: its host was not found within {LOOKUP_S:g} s"
        elif timeout_ms is None or left_ms < timeout_ms:
            return left_ms
        return timeout_ms

    def _end_lookup(self) -> None:
        """Stop waiting for the look-up. It continues for the next connection to that host."""
        if self._unresolved is not None:
            self._poller.unregister(self._unresolved.lookup.waker.fd)
            self._unresolved = None

    def _connect(
        self, name: str, path: str, frames: Sequence[Any], lookup: HostLookup | None = None, turn: int = 0
    ) -> None:
        try:
            self._used_keys = None if self._keys is None else self._keys.keys()
            link = Link(name, path, frames, self._buffers, self._used_keys, lookup, turn)
        except (OSError, ValueError, ImportError) as error:
            # No file descriptor is free, for the socket or for the modules of CURVE; or the address is invalid.
            self._could_not(name, error)
            return
        self._links[name] = link
        self._by_fd[link.socket.fileno()] = link
        self._poller.register(link.socket, link.watched)
        self._watch(link)

    def _could_not(self, name: str, error: OSError | ValueError | ImportError) -> None:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._not_made = f"{name} connection: it cannot be made ({why.rstrip('.')})"

    def _watch(self, link: Link) -> None:
        """Update the poll set and the list of lost connections after reading from or writing to ``link``."""
        if link.lost_reason and link not in self._lost:
            self._lost.append(link)
        wanted = select.POLLIN | (select.POLLOUT if link.unsent else 0)
        if wanted != link.watched:
            link.watched = wanted
            self._poller.modify(link.socket, wanted)

    def _drop(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            self._poller.unregister(link.socket)
            del self._by_fd[link.socket.fileno()]
            link.socket.close()
            link.zmtp.close()
            if link in self._lost:
                self._lost.remove(link)
