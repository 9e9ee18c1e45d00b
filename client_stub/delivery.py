"""Delivery and BulkDelivery: what send() and send_many() give back. Resolved only when somebody asks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from client_stub.arguments import check_callable
from client_stub.errors import FORKED_TEXT, ForkedProducer, SidecarError
from client_stub.habits import missing_call, no_pickle
from client_stub.hot import Delivery
from client_stub.record_metadata import OffsetRange
from client_stub.submission import make_call
from client_stub.wait_reasons import ask, why_no_outcome, why_not_taken

if TYPE_CHECKING:
    from client_stub.submission import BulkPart

__all__ = ["BulkDelivery", "Delivery"]


class BulkDelivery:
    """The future of all records of one send_many() or send_arrow() call. Thread-safe."""

    __slots__ = ("_parts", "count")

    def __init__(self, parts: Sequence[BulkPart]) -> None:
        self._parts = parts
        self.count = sum(part.count for part in parts)
        """Records of the call."""

    def done(self) -> bool:
        return all(part.is_over for part in self._parts)

    def result(self, timeout: float | None = None) -> int:
        """Wait at most ``timeout`` seconds until every record has its fate; how many were delivered (all).

        Raises the error of the first failed submission, with how many records failed in its text; TimeoutError
        when the patience ends first; ForkedProducer in a forked child.
        """
        self.watch()
        if not self._parts:
            return 0
        outbox = self._parts[0].outbox
        if outbox.forked:
            raise ForkedProducer(FORKED_TEXT)
        if not self.done() and not outbox.wait_for_outcome(self.done, timeout):
            raise self._no_outcome(timeout)
        error = self.first_error
        if error is not None:
            raise error
        return self.count

    def _no_outcome(self, timeout: float | None) -> TimeoutError:
        """The error of a caller whose patience has ended. It may ask the daemon for the cause."""
        left = next((part for part in self._parts if not part.is_over), self._parts[0]).submission
        if left is None:
            topic, why = "", why_not_taken(self._parts[0].outbox, "")
        else:
            topic = f" for topic {left.topic}"
            why = why_no_outcome(left, ask(left, timeout), of_many=self.count > 1)
        which = f"The record{topic} has no"
        if self.count > 1:
            which = f"Not all of {self.count} records{topic} have an"
        return TimeoutError(f"{which} outcome after {timeout} s yet{why}.")

    def exception(self, timeout: float | None = None) -> SidecarError | None:
        """Wait as ``result`` does; the first failure, None when every record was delivered."""
        try:
            self.result(timeout)
        except SidecarError as error:
            if error is self.first_error:
                return error
            raise
        return None

    def watch(self) -> None:
        """The caller looks after this future: flush() and close() do not raise its error."""
        for part in self._parts:
            part.watched = True

    def add_done_callback(self, callback: Callable[[BulkDelivery], object]) -> None:
        """Call ``callback(delivery)`` once, when every record has its outcome; else as ``Delivery.add_done_callback``.

        The caller looks after this future from now on, as with ``watch()``.
        """
        check_callable("callback", callback, "callback(delivery)")
        self.watch()
        entry = [callback]

        def look() -> None:
            if self.done():
                with contextlib.suppress(IndexError):  # another part was the last one, too
                    entry.pop()(self)

        for part in self._parts:
            part.when_over(look)
        if not self._parts:  # no record, no submission: it is over as it is
            make_call([look])

    def offsets(self) -> tuple[OffsetRange, ...]:
        """Where the delivered records stand, by partition and offset; adjacent ranges are one. Does not wait.

        Records that failed, or have no outcome yet, are in none of them.
        """
        return joined(each for part in self._parts for each in part.ranges())

    def __repr__(self) -> str:
        return bulk_text(self.count, self.failed_count, is_done=self.done())

    def __reduce__(self) -> NoReturn:
        raise no_pickle("BulkDelivery")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_call("BulkDelivery", name, self)

    @property
    def failed_count(self) -> int:
        return sum(part.failures()[1] for part in self._parts)

    @property
    def first_error(self) -> SidecarError | None:
        return next(
            (error for error, _ in (part.failures() for part in self._parts) if error is not None), None
        )


def bulk_text(count: int, failed: int, *, is_done: bool) -> str:
    """The ``repr`` of a future of many records."""
    state = "all have their outcome" if is_done else "not all have their outcome"
    return f"<BulkDelivery of {count}: {state}{f', {failed} failed' if failed else ''}>"


def joined(places: Iterable[tuple[int, int, int]]) -> tuple[OffsetRange, ...]:
    """Sorted ranges of (partition, first offset, records); those that meet are one."""
    ranges: list[OffsetRange] = []
    for partition, first, count in sorted(places):
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
