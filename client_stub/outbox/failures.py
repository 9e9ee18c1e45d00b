"""Failures: failed records that no caller has asked about, for flush(), for on_error and for the log. Sans-IO.

A caller that waits for its record gets its error. This class makes sure that the failure of any other record is
reported, too.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from client_stub.contract.wire import LocalCode, Persistence
from client_stub.errors import DeliveryFailed, SidecarError
from client_stub.outbox.submission import BulkPart, Submission
from client_stub.outbox.wait_reasons import WaitReasons, topics_text
from client_stub.system.log import log
from client_stub.system.minute_limit import MinuteLimit

OnError: TypeAlias = Callable[[SidecarError, str, int], object]
"""``on_error(error, topic, count)``."""

UNWATCHED_KEPT_MAX: Final = 1_000
GRACE_MS: Final = 1_000.0
"""A caller that asks its future within this time after the failure gets the error, and no line is logged."""
ROWS_MAX: Final = 5
"""How many pairs of topic and error get a line of their own in a minute; all others share one."""
_OTHERS: Final = ("", "", Persistence.POSSIBLY_PERSISTED)
"""The key of the row that the others share."""


@dataclass(slots=True)
class _Row:
    error: DeliveryFailed
    for_example: str = ""
    """The words before the error, if the records of the row may have others."""
    topics: dict[str, None] = field(default_factory=dict)
    """The topics of the records since the last line."""
    count: int = 0
    limit: MinuteLimit = field(default_factory=MinuteLimit)
    """The next line counts all failures since the last."""


class Failures:
    """The failures of one producer. The io thread adds them; any thread may call ``raise_unobserved`` and
    ``newly_failed``.

    ``on_error`` replaces the log. It runs in the io thread.
    """

    def __init__(self, on_error: OnError | None) -> None:
        self.failed_count = 0
        """Failed records of all completed ones."""
        self.has_lines = False
        """Whether ``tick`` has something to do, now or later."""
        self._on_error = on_error
        self._log = _FailureLog()
        self._unwatched: deque[tuple[SidecarError, int, BulkPart | None]] = deque()
        """(error, records, part) of each send_many() and send_arrow() whose future was not watched when it failed. The
        next flush() raises those that still are not watched. An entry without a part stands for several calls.
        """
        self._reported_count = 0

    def add(self, submission: Submission, now_ms: float) -> None:
        """Note a submission: all its records have their outcomes, and some failed."""
        self.failed_count += submission.failed_count
        if submission.transaction is not None:
            return  # its commit fails of them
        self._keep_unwatched(submission)
        error, count = submission.unobserved_failures()
        if error is None:
            return
        if self._on_error is None:
            self._log.note(submission, now_ms)
            self.has_lines = True
            return
        try:
            self._on_error(error, submission.topic, count)
        except BaseException:  # also SystemExit, which must not end the io thread
            if submission.outbox.forked:
                raise
            submission.waiters.callback_log.failed("An on_error", "the producer continues")

    def tick(self, now_ms: float) -> float | None:
        """Log the due lines. Returns the time until the next call in ms; None if there is nothing to wait for."""
        next_ms = self._log.tick(now_ms)
        self.has_lines = next_ms is not None
        return next_ms

    def close(self) -> None:
        """Log all remaining failures, as the producer ends."""
        self._log.close()

    def log_left(self, pending: Sequence[Submission], reasons: WaitReasons, occasion: str) -> None:
        """Warn once, in one line, of the records that a close() is about to abandon. It includes records with
        callbacks and futures, as the program may not look at these any more.
        """
        if self._log.left_is_reported:
            return  # Ctrl-C has ended the close, which is done again
        count = sum(each.undecided_count for each in pending)
        topics = dict.fromkeys(each.topic for each in pending if not each.completed)
        accepted = sum(each.undecided_count for each in pending if each.is_accepted)
        if not count:
            return
        why = next((each.why_slow for each in pending if each.why_slow and not each.completed), "")
        if accepted and not why and not reasons.last_word:
            # Only the daemon knows whether they can be delivered. One question: the end is not to take long.
            first = next((each for each in pending if each.is_accepted and not each.completed), None)
            why = "" if first is None else reasons.why_no_topic(first.topic, first.partition_max)
        them = "it" if count == 1 else "them" if accepted == count else "those"
        delivers = f", and delivers {them} once that can be: {why}" if why else f" and delivers {them}"
        if accepted == count:
            state = f"the daemon has accepted {them}{delivers}"
        elif accepted:
            state = f"the others may be lost; the daemon has accepted {accepted}{delivers}"
        else:
            state = "the daemon has not accepted it, and it may be lost"
            if count > 1:
                state = "the daemon has accepted none of them, and they may be lost"
        log.warning(
            "%d record%s%s had no outcome when the producer was closed %s: %s.",
            count,
            "" if count == 1 else "s",
            f" for {topics_text(topics)}" if topics else "",
            occasion,
            state.rstrip("."),
        )
        self._log.left_is_reported = True

    def newly_failed(self) -> int:
        """The number of records that failed since the last call."""
        failed_count = self.failed_count
        newly, self._reported_count = failed_count - self._reported_count, failed_count
        return newly

    def raise_unobserved(self) -> None:
        """Raises the first error of a send_many() or send_arrow() whose future is not watched, with the number of all
        failed records, and then drops them all.
        """
        if not self._unwatched:
            return
        notes = list(self._unwatched)
        left = [(error, count) for error, count, part in notes if part is None or not part.watched]
        try:
            if left:
                error, count = left[0][0], sum(count for _, count in left)
                if count > 1:
                    error.args = (f"{error} ({count} records of send_many() or send_arrow() failed.)",)
                raise error
        finally:
            for note in notes:
                # Not the first ones: another thread may have removed these, and the io thread may have added others.
                with contextlib.suppress(ValueError, IndexError):
                    self._unwatched.remove(note)

    def _keep_unwatched(self, submission: Submission) -> None:
        for part in submission.parts:
            error: SidecarError | None
            error, failures = part.failures()
            if error is None or part.watched:
                continue
            notes = self._unwatched
            kept: BulkPart | None = part
            if len(notes) >= UNWATCHED_KEPT_MAX:
                with contextlib.suppress(IndexError):
                    error, before, _ = notes.pop()
                    failures += before
                    kept = None
            notes.append((error, failures, kept))


class _FailureLog:
    """Logs warnings, in a minute at most one per topic and error and ROWS_MAX + 1 in all. Io thread only."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Submission]] = deque()
        self._rows: dict[tuple[str, str, Persistence], _Row] = {}
        self.left_is_reported = False
        """Whether a line was logged already for the records that close() abandons."""

    def note(self, submission: Submission, now_ms: float) -> None:
        """Note a submission: all its records have their outcomes, and some failed."""
        self._waiting.append((now_ms + GRACE_MS, submission))

    def tick(self, now_ms: float) -> float | None:
        """Log the due lines. Returns the time until the next call in ms; None if there is nothing to wait for."""
        waiting = self._waiting
        if not waiting and not self._rows:
            return None
        while waiting and waiting[0][0] <= now_ms:
            self._count(waiting.popleft()[1])
        next_ms = waiting[0][0] if waiting else None
        for key, row in list(self._rows.items()):
            if row.limit.next_ms <= now_ms and not row.count:
                del self._rows[key]  # no failure for a whole minute
                continue
            if row.count and row.limit.may_log(now_ms):
                self._write(row)
            next_ms = row.limit.next_ms if next_ms is None else min(next_ms, row.limit.next_ms)
        return None if next_ms is None else next_ms - now_ms

    def close(self) -> None:
        """Log all remaining failures, as the producer ends."""
        while self._waiting:
            self._count(self._waiting.popleft()[1])
        for row in self._rows.values():
            if row.count:
                self._write(row)
        self._rows.clear()

    def _count(self, submission: Submission) -> None:
        error, count = submission.unobserved_failures()
        if error is None or not count or (self.left_is_reported and error.code == LocalCode.CANCELLED):
            return
        key = (submission.topic, error.name, error.persistence)
        rows = self._rows
        row = rows.get(key)
        if row is None and len(rows) - (_OTHERS in rows) < ROWS_MAX:
            row = rows[key] = _Row(error)
        elif row is None:
            row = rows.setdefault(_OTHERS, _Row(error, "for example "))
        row.topics[submission.topic] = None
        row.count += count
        row.error = error

    @staticmethod
    def _write(row: _Row) -> None:
        log.warning(
            "%d record%s of %s failed and nobody asked about %s: %s%s: %s (%s). "
            "Ask result(), or give on_delivery or Producer(on_error=...).",
            row.count,
            "" if row.count == 1 else "s",
            topics_text(row.topics),
            "it" if row.count == 1 else "them",
            row.for_example,
            row.error.name,
            str(row.error).rstrip("."),
            row.error.persistence.words,
        )
        row.count = 0
        row.topics.clear()
