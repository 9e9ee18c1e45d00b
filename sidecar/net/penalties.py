"""Penalties: how long the next connection of a misbehaving process, or of its user, waits until it is heard.

A connection has its bounds (messages a turn, bytes before ATTACH, malformed messages), and the next one begins them
again. So what connections cost is counted by process as well, in points that time takes back: regular
use never gets near the bound, and a process that offends and comes back gets a connection or two a second. A process
that ends and begins again as another one would escape that, so its user is charged too, with an allowance for many
processes. Others of that user are late by half a second at most for what one of them did.
"""

from __future__ import annotations

from typing import Final

from sidecar.net.peer import Peer

CONNECTION_POINTS: Final = 1
"""A connection, whatever comes of it."""
USERS_CONNECTION_POINTS: Final = 0.25
"""The same for its user: all clients of a large host come back at once after a restart."""
MALFORMED_POINTS: Final = 16
"""A message that no stub sends."""
BROKEN_POINTS: Final = 50
"""A connection that had to be closed for what came on it."""
USELESS_POINTS: Final = 0.25
"""A submission that opens nothing: for a stream that has not begun, or that may not."""
SKIPPED_BYTES_PER_POINT: Final = 1 << 20
"""Of a message that is too long and is read away: a stub knows the bound and never sends it."""
FREE_POINTS: Final = 512
"""Points of a process before its connections wait: as many connections as a quarter of all clients make twice."""
POINTS_BACK_A_SECOND: Final = 100.0
WAIT_MAX_S: Final = 2.0
"""A stub waits 5 s for an answer: a stub in the same process as the one at fault is late, but not refused."""
PROCESSES_MAX: Final = 1_024
"""Processes remembered; beyond them the one that has been quiet longest is forgotten."""
USERS_FREE_POINTS: Final = 4_096
"""As many connections as an endpoint takes, or 81 that are closed for their content."""
USERS_POINTS_BACK_A_SECOND: Final = 400.0
USERS_WAIT_MAX_S: Final = 0.5
USERS_MAX: Final = 1_024


class Penalties:
    """Points by process and by user; over TCP by host alone. Sans-IO: ``now_s`` comes from the caller. Not thread-safe.

    Process 0 stands for all that cannot be seen (of another pid namespace): nobody pays for another of them, but
    their users pay.
    """

    def __init__(self) -> None:
        self._processes = _Accounts(FREE_POINTS, POINTS_BACK_A_SECOND, WAIT_MAX_S, PROCESSES_MAX)
        self._users = _Accounts(USERS_FREE_POINTS, USERS_POINTS_BACK_A_SECOND, USERS_WAIT_MAX_S, USERS_MAX)

    def charge(self, peer: Peer, points: float, now_s: float) -> None:
        """For what came on a connection."""
        if peer.payer:
            self._processes.charge(peer.payer, points, now_s)
        if not peer.host:
            self._users.charge(peer.uid, points, now_s)

    def charge_connection(self, peer: Peer, now_s: float) -> None:
        if peer.payer:
            self._processes.charge(peer.payer, CONNECTION_POINTS, now_s)
        if not peer.host:
            self._users.charge(peer.uid, USERS_CONNECTION_POINTS, now_s)

    def wait_s(self, peer: Peer, now_s: float) -> float:
        """How long its next connection is to wait; 0 for nearly everybody."""
        return max(self.own_wait_s(peer, now_s), self._users.wait_s(peer.uid, now_s))

    def own_wait_s(self, peer: Peer, now_s: float) -> float:
        """The part of it that the process brought on itself."""
        return self._processes.wait_s(peer.payer, now_s) if peer.payer else 0.0


class _Accounts:
    """Points by process, host or user, in a table of bounded size."""

    def __init__(self, free_points: float, back_a_second: float, wait_max_s: float, most: int) -> None:
        self._free_s = free_points / back_a_second
        self._back_a_second = back_a_second
        self._wait_max_s = wait_max_s
        self._most = most
        self._clear_s: dict[int | str, float] = {}
        """When the points of each will all be gone. Quiet longest first."""

    def charge(self, holder: int | str, points: float, now_s: float) -> None:
        clear_s = max(self._clear_s.pop(holder, 0.0), now_s) + points / self._back_a_second
        if len(self._clear_s) >= self._most:
            del self._clear_s[next(iter(self._clear_s))]
        self._clear_s[holder] = min(clear_s, now_s + self._free_s + self._wait_max_s)

    def wait_s(self, holder: int | str, now_s: float) -> float:
        return max(0.0, self._clear_s.get(holder, 0.0) - now_s - self._free_s)
