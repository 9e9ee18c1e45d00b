"""FlushWait: what one flush() or close() waits for. The caller waits in its own way, in a thread or on a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_stub.wait_reasons import why_no_outcome, why_not_taken

if TYPE_CHECKING:
    from client_stub.outbox import Outbox
    from client_stub.submission import Submission


class FlushWait:
    """Ends linger for all that was sent so far, and tells when the last of it is over. For one waiting caller.

    ``until``: ``"delivered"`` (every record has its fate and its error is noted) or ``"accepted"`` (the daemon
    answers for each). Raises ValueError for another word.
    """

    def __init__(self, outbox: Outbox, until: str = "delivered") -> None:
        if until not in {"delivered", "accepted"}:
            raise ValueError(f"until is {until!r}: it must be 'delivered' or 'accepted'.")
        self.for_acceptance = until == "accepted"
        self._outbox = outbox
        self._pending = outbox.pending
        self._snapshot = outbox.request_flush()
        self._left: list[Submission] | None = None

    def is_over(self) -> bool:
        """Looks from the oldest on: all calls together look at each submission once."""
        left = self._left
        if left is None:
            if self._snapshot.submissions is None:
                return False
            left = self._left = self._snapshot.submissions[::-1]
        while left and (left[-1].is_accepted if self.for_acceptance else left[-1] not in self._pending):
            left.pop()
        return not left

    def oldest(self) -> Submission | None:
        """The first submission that is waited for; None while its records are still queued in this process."""
        left = list(self._pending) if self._left is None else self._left[::-1]
        name = "is_accepted" if self.for_acceptance else "completed"
        return next((each for each in left if not getattr(each, name)), None)

    def timeout_error(self, timeout: float | None, said: str = "") -> TimeoutError:
        """``said``: the daemon's word on the topic of ``oldest``, if it was asked."""
        left = list(self._pending) if self._left is None else self._left
        count = self._outbox.queued_count if self._left is None else 0
        if self.for_acceptance:
            count += sum(each.count for each in left if not each.is_accepted)
            which = "1 record is not accepted yet" if count == 1 else f"{count} records are not accepted yet"
        else:
            count += sum(each.undecided_count for each in left)
            which = no_outcome_text(count)
        oldest = self.oldest()
        if oldest is None:
            why = why_not_taken(self._outbox, "")
        else:
            whose = "" if count == 1 else " the oldest"
            why = f",{whose} for topic {oldest.topic}{why_no_outcome(oldest, said)}"
        return TimeoutError(f"flush() timed out after {timeout} s: {which}{why}.")


def no_outcome_text(count: int) -> str:
    """The reason why a flush() that waits for outcomes gave up, also that of the FakeProducer."""
    return "1 record has no outcome yet" if count == 1 else f"{count} records have no outcome yet"
