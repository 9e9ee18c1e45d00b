"""Acker: releases the outcomes that a client has acknowledged, or never will."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sidecar.common.wording import counted

if TYPE_CHECKING:
    from sidecar.worker.outcomes.dead_letters import DeadLetters
    from sidecar.worker.streams.client_outcomes import ClientOutcomes
    from sidecar.worker.streams.outboxes import Outboxes
    from sidecar.worker.streams.session import ClientSession

log = logging.getLogger(__name__)


class Acker:
    """Releases failures, and deliveries that waited for capacity in an outcome ring. Belongs to the worker's loop.

    Failures of a client that is gone become dead letters.
    """

    def __init__(self, outboxes: Outboxes, dead_letters: DeadLetters) -> None:
        self._outboxes = outboxes
        self._dead_letters = dead_letters

    def acked(self, session: ClientSession, now_ms: float) -> None:
        """Handle a client's ACK: release its failures up to there, and write outcomes that waited."""
        acked_number = session.row.acked_number
        while session.unacked and session.unacked[0][0] <= acked_number:
            session.unacked.popleft()[1].release()
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
                each.release()
        session.ring_full_since_ms = None

    def abandon(self, session: ClientSession) -> None:
        """Complete the deliveries of a client that is gone, so that shared batches are freed. Its failures become dead
        letters, unless the client has said that it does not wait for them.
        """
        session.is_gone = True
        if session.unwritten:
            unread = sum(each.outcomes for each in session.unwritten)
            log.warning("Client %s is gone; it never read %s.", session.name, counted(unread, "outcome"))
        outcomes = [each for _, each, _ in session.unacked] + list(session.unwritten)
        session.unacked.clear()
        session.unwritten.clear()
        session.ring_full_since_ms = None
        dead: list[ClientOutcomes] = []
        for each in outcomes:
            if each.is_failure and each.may_be_letter and not session.has_cancelled:
                dead.append(each)
            else:
                each.release()
        if dead:
            self._dead_letters.put(dead)
