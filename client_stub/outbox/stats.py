"""ProducerStats: counts of the records that one producer has sent, and of their outcomes. Counted by submission, never
by record.

stats() of a producer makes it, in any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from client_stub.system.originals import let_others_run

_LOOKS: Final = 20

if TYPE_CHECKING:
    from client_stub.outbox.outbox import Outbox


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """A snapshot of one producer in one process. All counts except ``waiting…`` only grow.

    ``sent = delivered + failed + waiting``. An outcome is counted once its callbacks have run.
    """

    sent: int
    """Records that calls have queued."""
    accepted: int
    """How many of them the daemon has accepted. It delivers them even if this process ends."""
    delivered: int
    failed: int
    waiting: int
    """Records without an outcome."""
    waiting_bytes: int
    """Packed bytes that the daemon has not accepted yet, without the submissions that are still open."""
    buffer_bytes: int
    """At this many waiting bytes send() waits for room."""
    connections: int
    """How many times a worker of the daemon has accepted this producer: 1 after a start, one more after each loss."""
    is_connected: bool
    why_away: str
    """The latest reason why it is not connected; empty before the first send."""


def stats_of(outbox: Outbox) -> ProducerStats:
    """The counts of ``outbox``. Any thread. It walks over the undecided submissions, which are few."""
    # The io thread moves a completed submission from one sum to the other in two steps, so the look-up is repeated if
    # it comes between. A callback runs in that thread, before both steps.
    for _ in range(_LOOKS):
        failed, completed = outbox.failures.failed_count, outbox.completed_count
        pending = list(outbox.pending)
        if completed == outbox.completed_count and not any(each.completed for each in pending):
            break
        let_others_run()
    waiting = 0
    for submission in pending:
        # In this order: a submission that callers still fill grows between the two reads, but none of it is decided.
        count = submission.count
        undecided = submission.undecided_count
        waiting += undecided
        completed += max(0, count - undecided)
        failed += submission.failed_count
    away = outbox.waiters.reasons.last_word
    return ProducerStats(
        sent=completed + waiting,
        # A delivered record was accepted, even if the io thread has not counted that yet.
        accepted=max(outbox.accepted_count, completed - failed),
        delivered=completed - failed,
        failed=failed,
        waiting=waiting,
        waiting_bytes=outbox.buffered_bytes,
        buffer_bytes=outbox.buffer_bytes,
        connections=outbox.connection_count,
        is_connected=outbox.attached_once and not away and not outbox.closed,
        why_away=away,
    )
