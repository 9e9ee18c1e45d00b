"""The doors of an endpoint: takes connections from the kernel, and says who is let in when.

A process that has cost too much (see :mod:`sidecar.net.penalties`) waits before its connections are looked at; what it
opens beyond a few of them is closed. Processes of a user that has cost too much wait too, much less long. While such
ones come in numbers the door stays shut for some milliseconds at a time, so that opening and closing cannot be all
that the loop does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sidecar.common.sparse_log import SparseLog
from sidecar.net.peer import Peer, peer_of
from sidecar.net.penalties import (
    BROKEN_POINTS,
    MALFORMED_POINTS,
    SKIPPED_BYTES_PER_POINT,
    USELESS_POINTS,
    Penalties,
)

if TYPE_CHECKING:
    from sidecar.net.curve_door import CurveDoor

log = logging.getLogger(__name__)

ACCEPTED_PER_TURN_MAX: Final = 64
PARKED_MAX: Final = 128
"""Connections of all processes that wait for the end of a penalty."""
PARKED_PER_USER_MAX: Final = 64
"""So many of one user, so that another one that waits finds a place."""
PARKED_PER_PROCESS_MAX: Final = 4
"""One more is closed at once."""
UNWELCOME_MAX: Final = 16
"""So many of one turn that had to wait or were closed, and the door is shut for a moment."""
SHUT_S: Final = 0.02
BACKLOG: Final = 4096


class Listener:
    """A listening Unix socket in its owner's ``epoll``, and TCP beside it. Belongs to the loop's thread.

    ``on_connected(socket, peer, door)`` gets each connection that is let in; ``door`` is None at the Unix socket.
    ``make_room()`` closes a connection that can be spared because no descriptor is left; False: there is none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        epoll: select.epoll,
        path: str,
        *,
        on_connected: Callable[[socket.socket, Peer, CurveDoor | None], None],
        on_turned_away: Callable[[], None],
        make_room: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._epoll = epoll
        self._path = path
        self._on_connected = on_connected
        self._on_turned_away = on_turned_away
        self._make_room = make_room
        self._penalties = Penalties()
        self._parked: dict[socket.socket, tuple[Peer, CurveDoor | None, asyncio.TimerHandle]] = {}
        """With the process of each, its door, and when it is let in."""
        self._parked_of: dict[int | str, int] = {}
        self._parked_of_user: dict[int, int] = {}
        self._shut: dict[int, asyncio.TimerHandle] = {}
        """By descriptor: doors that are shut for a moment, and until when."""
        self._sparse_log = SparseLog(log, lambda: loop.time() * 1000)
        Path(path).unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        # The path gets the socket's own mode, less the umask. Set here and not by umask(), which all threads share.
        os.fchmod(self._socket.fileno(), 0o600)
        self._socket.bind(path)
        Path(path).chmod(0o660)
        self._socket.listen(BACKLOG)
        # Given up for a moment when descriptors run out, to take a connection and close it: it would wake us for ever.
        self._reserve_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._doors: dict[int, tuple[socket.socket, CurveDoor | None]] = {}
        """By descriptor."""
        self._add(self._socket, None)

    def add_door(self, door: CurveDoor) -> None:
        """Take connections over TCP as well."""
        self._add(door.socket, door)

    def _add(self, listening: socket.socket, door: CurveDoor | None) -> None:
        self._doors[listening.fileno()] = listening, door
        self._epoll.register(listening, select.EPOLLIN)

    def is_door(self, fd: int) -> bool:
        return fd in self._doors

    def sent_nonsense(self, peer: Peer) -> None:
        """A message of this process was malformed."""
        self._penalties.charge(peer, MALFORMED_POINTS, self._loop.time())

    def broke_rules(self, peer: Peer) -> None:
        """A connection of this process had to be closed for what came on it."""
        self._penalties.charge(peer, BROKEN_POINTS, self._loop.time())

    def sent_useless(self, peer: Peer, messages: int) -> float:
        """So many messages of this process changed nothing; how long its connection with them is to rest."""
        now_s = self._loop.time()
        self._penalties.charge(peer, USELESS_POINTS * messages, now_s)
        return self._penalties.wait_s(peer, now_s)

    def read_away(self, peer: Peer, skipped_bytes: int) -> None:
        """A message of this process was too long, and its bytes were read for nothing."""
        self._penalties.charge(peer, skipped_bytes // SKIPPED_BYTES_PER_POINT, self._loop.time())

    def close(self) -> None:
        """The path is removed first: stubs see a closed door, not a mute one."""
        with contextlib.suppress(OSError):  # the file system has become read-only: our end goes on
            Path(self._path).unlink(missing_ok=True)
        for timer in self._shut.values():
            timer.cancel()
        for parked, (_, _, timer) in self._parked.items():
            timer.cancel()
            parked.close()
        self._parked.clear()
        for listening, _ in self._doors.values():
            listening.close()
        os.close(self._reserve_fd)

    def accept(self, fd: int) -> None:
        """Somebody knocks at this door: take who is there, up to a turn's number."""
        listening, door = self._doors[fd]
        unwelcome = 0
        for _ in range(ACCEPTED_PER_TURN_MAX):
            try:
                connected, _address = listening.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away(listening)
                else:
                    self._sparse_log.warning(
                        "accept", "A client's connection could not be accepted: %s.", error
                    )
                break
            try:
                peer = peer_of(connected)
                if door is not None:
                    door.prepare(connected)
            except OSError:  # reset before it was taken
                connected.close()
                continue
            now_s = self._loop.time()
            wait_s = self._penalties.wait_s(peer, now_s)
            self._penalties.charge_connection(peer, now_s)
            if not wait_s:
                self._on_connected(connected, peer, door)
                continue
            unwelcome += 1
            self._park(connected, peer, door, wait_s)
        if unwelcome >= UNWELCOME_MAX and fd not in self._shut:
            # This one alone: what comes over TCP keeps nobody of this host out.
            self._epoll.unregister(fd)
            self._shut[fd] = self._loop.call_later(SHUT_S, self._reopen, fd)

    def _park(self, connected: socket.socket, peer: Peer, door: CurveDoor | None, wait_s: float) -> None:
        of_process = self._parked_of.get(peer.payer, 0)
        of_user = self._parked_of_user.get(peer.uid, 0)
        # Payer 0 are all processes of other pid namespaces.
        has_its_part = bool(peer.payer) and of_process >= PARKED_PER_PROCESS_MAX
        if has_its_part or of_user >= PARKED_PER_USER_MAX or len(self._parked) >= PARKED_MAX:
            connected.close()
            self._on_turned_away()
            self._say_turned_away(peer)
            return
        self._parked_of[peer.payer] = of_process + 1
        self._parked_of_user[peer.uid] = of_user + 1
        timer = self._loop.call_later(wait_s, self._let_in, connected)
        self._parked[connected] = peer, door, timer

    def _say_turned_away(self, peer: Peer) -> None:
        if self._penalties.own_wait_s(peer, self._loop.time()):
            self._sparse_log.warning(
                peer.payer, "Connections of %s are closed: it opens more than it uses well.", peer.words
            )
        else:
            self._sparse_log.warning(
                ("user", peer.uid),
                "Connections of uid %d are closed: its processes open more than they use well (now %s).",
                peer.uid,
                peer.words,
            )

    def _let_in(self, connected: socket.socket) -> None:
        peer, door, _ = self._parked.pop(connected)
        _take_one(self._parked_of, peer.payer)
        _take_one(self._parked_of_user, peer.uid)
        self._on_connected(connected, peer, door)

    def _reopen(self, fd: int) -> None:
        del self._shut[fd]
        self._epoll.register(fd, select.EPOLLIN)

    def _turn_away(self, listening: socket.socket) -> None:
        """No descriptor is left: one that can be spared gives up its own, else the connection that waits is closed."""
        self._sparse_log.warning(
            "descriptors", "No descriptor is left for another client: raise LimitNOFILE."
        )
        if self._make_room():
            return
        os.close(self._reserve_fd)
        try:
            listening.accept()[0].close()
        except OSError:
            log.debug("A connection that was to be turned away has gone by itself.")
        self._reserve_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _take_one(counts: dict[Any, int], key: int | str) -> None:
    left = counts.pop(key) - 1
    if left > 0:
        counts[key] = left
