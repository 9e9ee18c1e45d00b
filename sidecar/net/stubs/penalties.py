"""Penalties: delays for the next connections of a misbehaving process, and of its user.

A connection has limits (messages per turn, bytes before ATTACH, malformed messages), but a new connection starts at
zero. So costs are also counted per process, in points that decrease with time. Normal use never comes near the limit;
a process that keeps offending gets one or two connections per second. A process that restarts under another pid would
escape that, so its user is charged too, with an allowance for many processes. For the misbehaviour of one process,
others of its user are delayed by at most half a second.
"""

from __future__ import annotations

from typing import Final

from sidecar.net.stubs.peer import Peer

CONNECTION_POINTS: Final = 1
"""Points of a process for a connection."""
USERS_CONNECTION_POINTS: Final = 0.25
"""Points of its user for a connection: all clients of a large host reconnect at once after a restart."""
MALFORMED_POINTS: Final = 16
"""Points for a message that no valid stub sends."""
BROKEN_POINTS: Final = 50
"""Points for a connection that had to be closed because of its content."""
USELESS_POINTS: Final = 0.25
"""Points for a submission to a stream that has not begun or that may not be used."""
SKIPPED_BYTES_PER_POINT: Final = 1 << 20
"""Bytes per point of a message that is too long and is skipped: a valid stub knows the limit and never sends one."""
FREE_POINTS: Final = 512
"""Points of a process before its connections wait: a quarter of all clients may connect twice."""
POINTS_BACK_A_SECOND: Final = 100.0
WAIT_MAX_S: Final = 2.0
"""Longest delay in seconds. A stub waits 5 s for an answer, so one in the same process as the offender is late, but
not refused.
"""
PROCESSES_MAX: Final = 1_024
"""Limit of processes remembered. Beyond it, the one that was quiet longest is forgotten."""
USERS_FREE_POINTS: Final = 4_096
"""Points of a user: as many connections as an endpoint accepts, or 81 that are closed for their content."""
USERS_POINTS_BACK_A_SECOND: Final = 400.0
USERS_WAIT_MAX_S: Final = 0.5
USERS_MAX: Final = 1_024


class Penalties:
    """Points by process and by user; over TCP by host alone. Sans-IO: ``now_s`` is an argument. Not thread-safe.

    Process 0 means all processes that are not visible (other pid namespaces). It is not charged, so that no
    process pays for another, but their users are.
    """

    def __init__(self) -> None:
        self._processes = _Accounts(FREE_POINTS, POINTS_BACK_A_SECOND, WAIT_MAX_S, PROCESSES_MAX)
        self._users = _Accounts(USERS_FREE_POINTS, USERS_POINTS_BACK_A_SECOND, USERS_WAIT_MAX_S, USERS_MAX)

    def charge(self, peer: Peer, points: float, now_s: float) -> None:
        """Charge points for the content of a connection."""
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
        """Seconds that the peer's next connection must wait; usually 0."""
        return max(self.own_wait_s(peer, now_s), self._users.wait_s(peer.uid, now_s))

    def own_wait_s(self, peer: Peer, now_s: float) -> float:
        """The part of the wait that the process itself has caused."""
        return self._processes.wait_s(peer.payer, now_s) if peer.payer else 0.0


class _Accounts:
    """Points by process, host or user, in a table of bounded size."""

    def __init__(self, free_points: float, back_a_second: float, wait_max_s: float, most: int) -> None:
        self._free_s = free_points / back_a_second
        self._back_a_second = back_a_second
        self._wait_max_s = wait_max_s
        self._most = most
        self._clear_s: dict[int | str, float] = {}
        """By holder: when all its points will be gone (seconds). Those quiet for longest come first."""

    def charge(self, holder: int | str, points: float, now_s: float) -> None:
        clear_s = max(self._clear_s.pop(holder, 0.0), now_s) + points / self._back_a_second
        if len(self._clear_s) >= self._most:
            del self._clear_s[next(iter(self._clear_s))]
        self._clear_s[holder] = min(clear_s, now_s + self._free_s + self._wait_max_s)

    def wait_s(self, holder: int | str, now_s: float) -> float:
        return max(0.0, self._clear_s.get(holder, 0.0) - now_s - self._free_s)
