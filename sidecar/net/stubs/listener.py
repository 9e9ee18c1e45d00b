"""The listening sockets of an endpoint: accepts connections, and delays those of processes that misbehave.

A process that has cost too much (see :mod:`sidecar.net.stubs.penalties`) waits before its connections are used, and
all but a few of its further ones are closed. Other processes of its user wait too, but much less. While many such
connections arrive, the gate stays shut for some milliseconds at a time, so that the loop has time for other work.
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
from sidecar.net.stubs.peer import Peer, peer_of
from sidecar.net.stubs.penalties import (
    BROKEN_POINTS,
    MALFORMED_POINTS,
    SKIPPED_BYTES_PER_POINT,
    USELESS_POINTS,
    Penalties,
)

if TYPE_CHECKING:
    from sidecar.net.stubs.curve_gate import CurveGate

log = logging.getLogger(__name__)

ACCEPTED_PER_TURN_MAX: Final = 64
PARKED_MAX: Final = 128
"""Limit of connections that wait for the end of a penalty."""
PARKED_PER_USER_MAX: Final = 64
"""Limit of these per user, so that other users' connections can wait too."""
PARKED_PER_PROCESS_MAX: Final = 4
"""Limit of these per process. Another one is closed at once."""
UNWELCOME_MAX: Final = 16
"""After this many connections in one turn that had to wait or were closed, the gate is shut for a moment."""
SHUT_S: Final = 0.02
BACKLOG: Final = 4096


class Listener:
    """A listening Unix socket in its owner's ``epoll``, and TCP. Belongs to the loop's thread.

    ``on_connected(socket, peer, gate)`` gets each accepted connection; ``gate`` is None at the Unix socket.
    ``free_descriptor()`` closes a connection that can be spared, if no file descriptor is left; False: there is none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        epoll: select.epoll,
        path: str,
        *,
        on_connected: Callable[[socket.socket, Peer, CurveGate | None], None],
        on_turned_away: Callable[[], None],
        free_descriptor: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._epoll = epoll
        self._path = path
        self._on_connected = on_connected
        self._on_turned_away = on_turned_away
        self._free_descriptor = free_descriptor
        self._penalties = Penalties()
        self._parked: dict[socket.socket, tuple[Peer, CurveGate | None, asyncio.TimerHandle]] = {}
        """Waiting connections, each with its process, its gate, and the timer that lets it in."""
        self._parked_of: dict[int | str, int] = {}
        self._parked_of_user: dict[int, int] = {}
        self._shut: dict[int, asyncio.TimerHandle] = {}
        """By descriptor: gates that are shut for a moment, with the timer that opens them."""
        self._sparse_log = SparseLog(log, lambda: loop.time() * 1000)
        self._socket = _listening(path)
        # Closed for a moment if descriptors run out, to accept and close a connection, which would otherwise wake the
        # loop for ever.
        self._reserve_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._gates: dict[int, tuple[socket.socket, CurveGate | None]] = {}
        """By descriptor: the Unix socket with None, and that of TCP."""
        self._add(self._socket, None)

    def add_gate(self, gate: CurveGate) -> None:
        """Accept connections over TCP as well."""
        self._add(gate.socket, gate)

    def listen_again(self) -> None:
        """Make the Unix socket again, whose path was removed with its folder. Raises OSError."""
        old, self._socket = self._socket, _listening(self._path)
        if old.fileno() in self._shut:
            self._shut.pop(old.fileno()).cancel()
        else:
            self._epoll.unregister(old)
        del self._gates[old.fileno()]
        old.close()
        self._add(self._socket, None)

    def _add(self, listening: socket.socket, gate: CurveGate | None) -> None:
        self._gates[listening.fileno()] = listening, gate
        self._epoll.register(listening, select.EPOLLIN)

    def is_gate(self, fd: int) -> bool:
        return fd in self._gates

    def sent_nonsense(self, peer: Peer) -> None:
        """Charge a process for a malformed message."""
        self._penalties.charge(peer, MALFORMED_POINTS, self._loop.time())

    def broke_rules(self, peer: Peer) -> None:
        """Charge a process for a connection that had to be closed because of its content."""
        self._penalties.charge(peer, BROKEN_POINTS, self._loop.time())

    def sent_useless(self, peer: Peer, messages: int) -> float:
        """Charge a process for messages that changed nothing. Returns the seconds for which their connection is not
        read.
        """
        now_s = self._loop.time()
        self._penalties.charge(peer, USELESS_POINTS * messages, now_s)
        return self._penalties.wait_s(peer, now_s)

    def read_away(self, peer: Peer, skipped_bytes: int) -> None:
        """Charge a process for a message that was too long and was read only to be skipped."""
        self._penalties.charge(peer, skipped_bytes // SKIPPED_BYTES_PER_POINT, self._loop.time())

    def close(self) -> None:
        """Close all gates. The path is removed first, so that stubs are refused at once and do not wait."""
        with contextlib.suppress(OSError):  # the file system has become read-only: continue to close
            Path(self._path).unlink(missing_ok=True)
        for timer in self._shut.values():
            timer.cancel()
        for parked, (_, _, timer) in self._parked.items():
            timer.cancel()
            parked.close()
        self._parked.clear()
        for listening, _ in self._gates.values():
            listening.close()
        os.close(self._reserve_fd)

    def accept(self, fd: int) -> None:
        """Accept the connections that wait at this gate, up to a turn's limit."""
        listening, gate = self._gates[fd]
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
                if gate is not None:
                    gate.prepare(connected)
            except OSError:  # reset before it was accepted
                connected.close()
                continue
            now_s = self._loop.time()
            wait_s = self._penalties.wait_s(peer, now_s)
            self._penalties.charge_connection(peer, now_s)
            if not wait_s:
                self._on_connected(connected, peer, gate)
                continue
            unwelcome += 1
            self._park(connected, peer, gate, wait_s)
        if unwelcome >= UNWELCOME_MAX and fd not in self._shut:
            # Only this gate: TCP connections must not keep out clients of this host.
            self._epoll.unregister(fd)
            self._shut[fd] = self._loop.call_later(SHUT_S, self._reopen, fd)

    def _park(self, connected: socket.socket, peer: Peer, gate: CurveGate | None, wait_s: float) -> None:
        of_process = self._parked_of.get(peer.payer, 0)
        of_user = self._parked_of_user.get(peer.uid, 0)
        # Payer 0 is for all processes of other pid namespaces.
        has_its_part = bool(peer.payer) and of_process >= PARKED_PER_PROCESS_MAX
        if has_its_part or of_user >= PARKED_PER_USER_MAX or len(self._parked) >= PARKED_MAX:
            connected.close()
            self._on_turned_away()
            self._say_turned_away(peer)
            return
        self._parked_of[peer.payer] = of_process + 1
        self._parked_of_user[peer.uid] = of_user + 1
        timer = self._loop.call_later(wait_s, self._let_in, connected)
        self._parked[connected] = peer, gate, timer

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
        peer, gate, _ = self._parked.pop(connected)
        _take_one(self._parked_of, peer.payer)
        _take_one(self._parked_of_user, peer.uid)
        self._on_connected(connected, peer, gate)

    def _reopen(self, fd: int) -> None:
        del self._shut[fd]
        self._epoll.register(fd, select.EPOLLIN)

    def _turn_away(self, listening: socket.socket) -> None:
        """Handle a lack of file descriptors: close a connection that can be spared, or else the one that waits."""
        self._sparse_log.warning(
            "descriptors", "No file descriptor is left for another client: raise LimitNOFILE."
        )
        if self._free_descriptor():
            return
        os.close(self._reserve_fd)
        try:
            listening.accept()[0].close()
        except OSError:
            log.debug("A connection that was to be closed was closed by its peer.")
        self._reserve_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _listening(path: str) -> socket.socket:
    """A Unix socket of mode 0660 that listens at the path, instead of an earlier one."""
    Path(path).unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listen_at(made, path, BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def listen_at(sock: socket.socket, path: str, backlog: int) -> None:
    """Let a Unix socket listen at a free path, for its user and group alone at every moment. Raises OSError."""
    # The path gets the socket's own mode, less the umask. Set here: umask() would affect all threads.
    os.fchmod(sock.fileno(), 0o600)
    sock.bind(path)
    Path(path).chmod(0o660)
    sock.listen(backlog)


def _take_one(counts: dict[Any, int], key: int | str) -> None:
    left = counts.pop(key) - 1
    if left > 0:
        counts[key] = left
