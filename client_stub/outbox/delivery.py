"""Delivery and BulkDelivery: the results of send() and send_many(), resolved only when the caller asks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from client_stub.errors import FORKED_TEXT, ForkedProducer, SidecarError
from client_stub.native.hot import Delivery, refuses_await
from client_stub.outbox.callback_log import CallbackLog
from client_stub.outbox.submission import make_call
from client_stub.record_metadata import OffsetRange
from client_stub.records.arguments import check_callable, checked_wait
from client_stub.records.habits import no_pickle

if TYPE_CHECKING:
    from client_stub.outbox.submission import BulkPart, Submission

__all__ = ["BulkDelivery", "Delivery"]


@refuses_await
class BulkDelivery:
    """The future of all records of one send_many() or send_arrow() call. Thread-safe."""

    __slots__ = ("_parts", "count")

    def __init__(self, parts: Sequence[BulkPart]) -> None:
        self._parts = parts
        self.count = sum(part.count for part in parts)
        """The number of records of the call."""

    def done(self) -> bool:
        return all(part.is_over for part in self._parts)

    def result(self, timeout: float | None = None) -> int:
        """Wait at most ``timeout`` seconds until every record has its outcome. Returns how many were delivered, which
        is all.

        Raises the error of the first failed submission, with the number of failed records in its text; TimeoutError
        after ``timeout``; ForkedProducer in a forked child.
        """
        timeout = checked_wait(timeout)
        self.watch()
        if not self._parts:
            return 0
        waiters = self._parts[0].submission.waiters
        if waiters.outbox.forked:
            raise ForkedProducer(FORKED_TEXT)
        if not self.done() and not waiters.wait_until(self.done, timeout, for_outcome=True):
            raise self._no_outcome(timeout)
        error = self.first_error
        if error is not None:
            raise error
        return self.count

    def _no_outcome(self, timeout: float | None) -> TimeoutError:
        """The TimeoutError of a caller whose timeout has ended. It may ask the daemon for the cause."""
        left = next((part for part in self._parts if not part.is_over), self._parts[0]).submission
        why = left.why_no_outcome(left.ask(timeout), of_many=self.count > 1)
        which = f"The record for topic {left.topic} has no"
        if self.count > 1:
            which = f"Not all of {self.count} records for topic {left.topic} have an"
        return TimeoutError(f"{which} outcome after {timeout} s yet{why}.")

    def exception(self, timeout: float | None = None) -> SidecarError | None:
        """Wait as ``result`` does. Returns the first error, or None when every record was delivered."""
        try:
            self.result(timeout)
        except SidecarError as error:
            if error is self.first_error:
                return error
            raise
        return None

    def watch(self) -> None:
        """Mark this future as watched by the caller: flush() and close() then do not raise its error."""
        for part in self._parts:
            part.watched = True

    def add_done_callback(self, callback: Callable[[BulkDelivery], object]) -> None:
        """Call ``callback(delivery)`` once every record has its outcome, and otherwise as
        ``Delivery.add_done_callback``.

        It marks the future as watched, as ``watch()`` does.
        """
        check_callable("callback", callback, "callback(delivery)")
        self.watch()
        entry = [callback]

        def check() -> None:
            if self.done():
                with contextlib.suppress(IndexError):  # two parts finished at the same time
                    entry.pop()(self)

        for part in self._parts:
            part.when_over(check)
        if not self._parts:  # no records: the call is over already
            make_call([check], CallbackLog())

    def offsets(self) -> tuple[OffsetRange, ...]:
        """The positions of the delivered records, by partition and offset; adjacent ranges are merged. Does not wait.

        Records that failed or have no outcome yet are left out.
        """
        return joined(each for part in self._parts for each in part.ranges())

    def __repr__(self) -> str:
        return bulk_text(self.count, self.failed_count, is_done=self.done())

    def __reduce__(self) -> NoReturn:
        raise no_pickle("BulkDelivery")

    @property
    def failed_count(self) -> int:
        return sum(part.failures()[1] for part in self._parts)

    @property
    def first_error(self) -> SidecarError | None:
        return next(
            (error for error, _ in (part.failures() for part in self._parts) if error is not None), None
        )


def submission_of(delivery: Delivery) -> Submission:
    """The submission that has the record of ``delivery``."""
    return delivery._submission


def bulk_text(count: int, failed: int, *, is_done: bool) -> str:
    """The ``repr`` of a future of many records."""
    state = "all have their outcome" if is_done else "not all have their outcome"
    return f"<BulkDelivery of {count}: {state}{f', {failed} failed' if failed else ''}>"


def joined(positions: Iterable[tuple[int, int, int]]) -> tuple[OffsetRange, ...]:
    """Sorted ranges of (partition, first offset, records); adjacent ones are merged."""
    ranges: list[OffsetRange] = []
    for partition, first, count in sorted(positions):
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and last.partition == partition
            and first == (last.end_offset if last.first_offset >= 0 else -1)
        ):
            ranges[-1] = last._replace(count=last.count + count)
        else:
            ranges.append(OffsetRange(partition, first, count))
    return tuple(ranges)
