"""FlushWait: the condition that one flush() or close() waits for. The caller itself waits, in a thread or on a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client_stub.outbox.outbox import Outbox
    from client_stub.outbox.submission import Submission


class FlushWait:
    """Ends linger for all records sent so far, and reports when the last of them is over. For one waiting caller.

    ``until``: ``"delivered"`` (every record has its outcome, and errors are noted) or ``"accepted"`` (the daemon has
    taken each).
    """

    def __init__(self, outbox: Outbox, until: str = "delivered") -> None:
        self.for_acceptance = until == "accepted"
        self._outbox = outbox
        self._pending = outbox.pending
        self._left = outbox.request_flush()[::-1]
        """Submissions that it waits for, the oldest last."""

    def is_over(self) -> bool:
        """Whether the wait is over. It checks from the oldest submission on; all calls together check each one once."""
        left = self._left
        while left and (left[-1].is_accepted if self.for_acceptance else left[-1] not in self._pending):
            left.pop()
        return not left

    def oldest(self) -> Submission | None:
        """The first submission that the caller waits for; None when all are over."""
        name = "is_accepted" if self.for_acceptance else "completed"
        return next((each for each in reversed(self._left) if not getattr(each, name)), None)

    def timeout_error(self, timeout: float | None, said: str = "") -> TimeoutError:
        """The error after ``timeout`` seconds. ``said`` is the daemon's answer about the topic of ``oldest``, if it
        was asked.
        """
        if self.for_acceptance:
            count = sum(each.count for each in self._left if not each.is_accepted)
            which = "1 record is not accepted yet" if count == 1 else f"{count} records are not accepted yet"
        else:
            count = sum(each.undecided_count for each in self._left)
            which = "1 record has no outcome yet" if count == 1 else f"{count} records have no outcome yet"
        oldest = self.oldest()
        if oldest is None:
            why = self._outbox.waiters.reasons.why_not_taken("")
        else:
            whose = "" if count == 1 else " the oldest"
            why = f",{whose} for topic {oldest.topic}{oldest.why_no_outcome(said)}"
        return TimeoutError(f"flush() timed out after {timeout} s: {which}{why}.")
