"""Acker: writes outcomes to the clients' outcome rings, and keeps those that each client has not acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sidecar.common.wording import counted

if TYPE_CHECKING:
    from sidecar.worker.fates.dead_letters import DeadLetters
    from sidecar.worker.streams.completion import Completion
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.session import ClientSession
    from sidecar.worker.streams.sessions import Sessions

log = logging.getLogger(__name__)


class Acker:
    """Completes batches and failures for clients. Belongs to the worker's loop.

    A completion waits only behind others of its own client: a client that does not read its outcomes delays no other.
    Failures of a client that is gone become dead letters.
    """

    def __init__(self, sessions: Sessions, outboxes: Outboxes, dead_letters: DeadLetters) -> None:
        self._sessions = sessions.by_row
        self._outboxes = outboxes
        self._dead_letters = dead_letters

    def complete(self, completions: Sequence[Completion], now_ms: float) -> None:
        """Write the outcomes to each client's outcome ring, or queue them behind its earlier ones."""
        gone: list[Completion] = []
        for each in completions:
            session = self._sessions.get(each.row)
            if (
                session is None
                or session.row.generation != each.generation
                or (session.is_gone and each.is_failure)
            ):
                # The client is gone or its row has a new owner: a delivery counts as complete.
                if each.is_failure and not (session is not None and session.has_cancelled):
                    gone.append(each)
                else:
                    each.finish()
            elif session.unwritten:
                session.unwritten.append(each)
            elif each.write(session.row):
                self._outboxes.pending.add(session)
                if each.is_failure and not session.has_cancelled:
                    session.unacked.append((session.row.next_number - 1, each, now_ms))
                else:
                    each.finish()
            else:
                session.unwritten.append(each)
                self._outboxes.pending.add(session)  # some of its outcomes may have been written
                if session.ring_full_since_ms is None:
                    session.ring_full_since_ms = now_ms
        if gone:
            self._dead_letters.put(gone)

    def acked(self, session: ClientSession, now_ms: float) -> None:
        """Handle a client's ACK: complete its failures up to there, and write completions that waited for room."""
        acked_number = session.row.acked_number
        while session.unacked and session.unacked[0][0] <= acked_number:
            session.unacked.popleft()[1].finish()
        while session.unwritten:
            each = session.unwritten[0]
            if not each.write(session.row):
                session.ring_full_since_ms = now_ms  # it has read something: its timeout starts again
                self._outboxes.pending.add(session)
                return
            session.unwritten.popleft()
            self._outboxes.pending.add(session)
            if each.is_failure and not session.has_cancelled:
                session.unacked.append((session.row.next_number - 1, each, now_ms))
            else:
                each.finish()
        session.ring_full_since_ms = None

    def abandon(self, session: ClientSession) -> None:
        """Complete the deliveries of a client that is gone, so that shared batches are freed. Its failures become dead
        letters, unless the client has said that it does not wait for them.
        """
        session.is_gone = True
        if session.unwritten:
            unread = sum(each.outcomes for each in session.unwritten)
            log.warning("Client %s is gone; it never read %s.", session.name, counted(unread, "outcome"))
        completions = [each for _, each, _ in session.unacked] + list(session.unwritten)
        session.unacked.clear()
        session.unwritten.clear()
        session.ring_full_since_ms = None
        dead = [each for each in completions if each.is_failure and not session.has_cancelled]
        for each in completions:
            if not each.is_failure or session.has_cancelled:
                each.finish()
        if dead:
            self._dead_letters.put(dead)
