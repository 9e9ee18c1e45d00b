"""Delivery and BulkDelivery: what send() and send_many() give back. Resolved only when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from client_stub.errors import FORKED_TEXT, ForkedProducer, SidecarError
from client_stub.hot import Delivery

if TYPE_CHECKING:
    from client_stub.submission import Submission

__all__ = ["BulkDelivery", "Delivery"]


class BulkDelivery:
    """The future of all records of one send_many() or send_arrow() call. Thread-safe."""

    __slots__ = ("_submissions", "count")

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self._submissions = submissions
        self.count = sum(submission.count for submission in submissions)
        """Records of the call."""

    def done(self) -> bool:
        return all(submission.completed for submission in self._submissions)

    def result(self, timeout: float | None = None) -> int:
        """Wait at most ``timeout`` seconds until every record has its fate; how many were delivered (all).

        Raises the error of the first failed submission, with how many records failed in its text; TimeoutError
        when the patience ends first; ForkedProducer in a forked child.
        """
        self.watch()
        if not self._submissions:
            return 0
        outbox = self._submissions[0].outbox
        if outbox.forked:
            raise ForkedProducer(FORKED_TEXT)
        if not self.done():
            outbox.refuse_wait_in_callback("result()")
            if not outbox.wait_until(self.done, timeout):
                raise TimeoutError(f"Not all of {self.count} records have an outcome after {timeout} s yet.")
        error = self.first_error
        if error is not None:
            raise error
        return self.count

    def watch(self) -> None:
        """The caller looks after this future: flush() and close() do not raise its error."""
        for submission in self._submissions:
            submission.watched = True

    @property
    def failed_count(self) -> int:
        return sum(submission.failed_count for submission in self._submissions)

    @property
    def first_error(self) -> SidecarError | None:
        return next((s.first_error for s in self._submissions if s.first_error is not None), None)
