"""ProducerStats: what one producer has sent and what became of it. Counted by submission, never by record."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

_LOOKS: Final = 20

if TYPE_CHECKING:
    from client_stub.outbox import Outbox


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """One moment of one producer in one process; all counts but ``waiting…`` only grow.

    ``sent = delivered + failed + waiting``. Without the compiled part ``sent`` may be off by records that the io thread
    takes in at this moment. An outcome is counted when its callbacks have run.
    """

    sent: int
    """Records that calls have queued."""
    accepted: int
    """Of these, what the daemon has taken: it delivers them, whatever becomes of this process."""
    delivered: int
    failed: int
    waiting: int
    """Records without an outcome."""
    waiting_bytes: int
    """Packed bytes that the daemon has not taken yet, without what is still being filled."""
    buffer_bytes: int
    """At so many waiting bytes send() waits."""
    connections: int
    """How often a worker of the daemon has let this producer in: 1 after a start, one more after each loss."""
    is_connected: bool
    why_away: str
    """While it is not connected, the last news about the daemon; empty before the first send."""


def stats_of(outbox: Outbox) -> ProducerStats:
    """The counts of ``outbox``; any thread. Walks over what is undecided, some submissions."""
    # A submission that is over moves from one sum to the other in two steps of the io thread: look again meanwhile. A
    # callback looks from within that thread, before the steps.
    for _ in range(_LOOKS):
        queued, failed, completed = outbox.queued_count, outbox.failures.failed_count, outbox.completed_count
        pending = list(outbox.pending)
        if completed == outbox.completed_count and not any(each.completed for each in pending):
            break
        time.sleep(0)
    waiting = queued
    for submission in pending:
        # In this order: one that callers still fill grows between the two, and nothing of it is decided.
        count = submission.count
        undecided = submission.undecided_count
        waiting += undecided
        completed += max(0, count - undecided)
        failed += submission.failed_count
    return ProducerStats(
        sent=completed + waiting,
        accepted=outbox.accepted_count,
        delivered=completed - failed,
        failed=failed,
        waiting=waiting,
        waiting_bytes=outbox.buffered_bytes,
        buffer_bytes=outbox.buffer_bytes,
        connections=outbox.connection_count,
        is_connected=outbox.attached_once and not outbox.last_word and not outbox.closed,
        why_away=outbox.last_word,
    )
