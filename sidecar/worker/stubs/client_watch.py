"""ClientWatch: detaches clients that may not stay: those that are silent, do not read, are not allowed, or died."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sidecar.common.sparse_log import SparseLog
from sidecar.common.wording import counted

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.shm.slots import Counters
    from sidecar.worker.outcomes.acker import Acker
    from sidecar.worker.streams.client_limits import ClientLimits
    from sidecar.worker.streams.session import ClientSession
    from sidecar.worker.streams.sessions import Sessions
    from sidecar.worker.stubs.client_processes import ClientProcesses
    from sidecar.worker.stubs.stub_port import StubPort

log = logging.getLogger(__name__)

UNSEEN_MS_MAX = 5_000.0
"""Limit in ms for a client whose process is not in sight and whose connection has ended, before its open transaction is
aborted and its open stages are dropped. Readers of committed records wait for them.
"""
UNACKED_MS_MAX = 2_000.0
"""Limit in ms while descriptors are scarce: for the ACK of a failure, and for any ACK while an outcome ring is full."""


class ClientWatch:
    """Watches all clients of a worker, attached or gone for a while. Belongs to the worker's loop, which asks it in
    each periodic round.
    """

    def __init__(
        self,
        *,
        clock: MonotonicClock,
        client_ack_timeout_ms: float,
        sessions: Sessions,
        limits: ClientLimits,
        processes: ClientProcesses,
        acker: Acker,
        counters: Counters,
        port: StubPort,
    ) -> None:
        self.client_ack_timeout_ms = client_ack_timeout_ms
        self._sessions = sessions
        self._limits = limits
        self._processes = processes
        self._acker = acker
        self._counters = counters
        self._port = port
        port.on_table_full = self.reclaim_rows
        self._sparse_log = SparseLog(log, clock.now_ms)
        self._unseen_since_ms: dict[ClientSession, float] = {}
        """Such clients, with the time at which their connection was found to have ended."""

    def check(self, now_ms: float, *, descriptors_are_scarce: bool) -> None:
        """Detach the clients that may not stay any longer, and release the rows of those that are gone."""
        self.expel_silent(now_ms)
        self.end_unseen(now_ms)
        self.cut_unread(now_ms, descriptors_are_scarce=descriptors_are_scarce)
        self.reclaim_rows(now_ms)

    def apply_rules(self, now_ms: float) -> None:
        """Apply changed client rules: detach clients that may not stay, and give the others their limits.

        Accepted records of detached clients are delivered. Such clients may send HELLO again, which decides about
        them.
        """
        for session in self._sessions:
            why = self._sessions.refusal_of(session)
            if why is None:
                self._limits.apply(session)
                continue
            log.warning("Detached by a reload: %s", ascii(why))
            self._port.expel(session, why, now_ms)

    def expel_silent(self, now_ms: float) -> None:
        for session in self._sessions.expel_silent(now_ms):
            self._sparse_log.info(
                ("silent", session.name), "Client %s was silent for too long and is detached.", session.name
            )
            self._port.end(session, now_ms)

    def end_unseen(self, now_ms: float) -> None:
        """End clients with a transactional id or stages whose process cannot be watched, some time after their
        connection: whether they will come back is not known, and others wait for their transactions.
        """
        before, self._unseen_since_ms = self._unseen_since_ms, {}
        for session in self._sessions:
            if (
                session.lane is None
                or self._processes.sees(session.row.index)
                or self._port.is_connected(session)
            ):
                continue
            since_ms = before.get(session, now_ms)
            if now_ms - since_ms < UNSEEN_MS_MAX:
                self._unseen_since_ms[session] = since_ms
                continue
            self._sparse_log.info(
                ("unseen", session.name),
                "Client %s has not come back since its connection ended: what it has open is aborted.",
                session.name,
            )
            self._port.end(session, now_ms, for_good=True)

    def cut_unread(self, now_ms: float, *, descriptors_are_scarce: bool) -> None:
        """Cut off clients whose outcome ring has been full for too long. Their unread outcomes count as acknowledged.

        While descriptors are scarce, the client that holds up most outcomes is cut after 2 s without an ACK. So a
        client that does not read cannot hold up a batch shared with others, or the sender, for long.
        """
        if descriptors_are_scarce:
            self._give_up_one(now_ms)
        full_for_ms = {
            session: now_ms - session.ring_full_since_ms
            for session in self._sessions
            if session.unwritten and session.ring_full_since_ms is not None
        }
        late = [each for each, waited_ms in full_for_ms.items() if waited_ms >= self.client_ack_timeout_ms]
        if not late and descriptors_are_scarce:
            # Not at once: an outcome ring that is full for a moment belongs to a busy client.
            deaf = [each for each, waited_ms in full_for_ms.items() if waited_ms >= UNACKED_MS_MAX]
            late = [max(deaf, key=lambda deaf: sum(each.outcomes for each in deaf.unwritten))] if deaf else []
        for session in late:
            self._sparse_log.warning(
                ("cut", session.name),
                "Client %s has not read its outcomes for %.1f s and is cut (daemon.client_ack_timeout_s). Look at that "
                "process: it is stopped, or a callback blocks its io thread.",
                session.name,
                full_for_ms[session] / 1000,
            )
            self._counters.inc("clients_cut_total")
            self._port.end(session, now_ms, for_good=True)

    def _give_up_one(self, now_ms: float) -> None:
        """Give up the client with the most unacknowledged failures, because descriptors are scarce."""
        silent = [
            session
            for session in (*self._sessions, *self._sessions.absent())
            if session.unacked and now_ms - session.unacked[0][2] >= UNACKED_MS_MAX
        ]
        if silent:
            worst = max(silent, key=lambda session: len(session.unacked))
            self._sparse_log.warning(
                ("unacked", worst.name),
                "Client %s did not acknowledge %s: they become dead letters, as batch descriptors run short.",
                worst.name,
                counted(len(worst.unacked), "failure"),
            )
            if worst.attached:
                self._counters.inc("clients_cut_total")
                self._port.end(worst, now_ms, for_good=True)
            else:
                self._acker.abandon(worst)

    def reclaim_rows(self, now_ms: float) -> None:
        """Release the rows of clients that are dead, or were gone for longer than the grace period. Their unread
        outcomes count as acknowledged.
        """
        for row in self._processes.take_dead():
            session = self._sessions.of_row(row)
            if session is not None:
                if not session.is_gone and session.unsettled_records:
                    self._sparse_log.info(
                        ("died", session.name),
                        "Client %s has died with %s under way. The daemon continues: what fails becomes a dead letter.",
                        session.name,
                        counted(session.unsettled_records, "record"),
                    )
                self._port.end(session, now_ms, for_good=True)
        for session in self._sessions.reclaim(now_ms):
            self._acker.abandon(session)
            if self._sessions.of_row(session.row.index) is None:
                self._processes.forget(session.row.index)

    def give_up_all(self) -> None:
        """Give up the outcomes that no client has acknowledged, at the end of the daemon."""
        for session in (*self._sessions, *self._sessions.absent()):
            if session.unacked or session.unwritten:
                self._acker.abandon(session)

    @property
    def has_unacked(self) -> bool:
        """True if an attached stub has outcomes that it has not acknowledged."""
        return any(session.row.acked_number + 1 < session.row.next_number for session in self._sessions)
