"""DeadLetters: failures of clients that are gone, on their way to the spool.

The letters are written to disk first; then the words of their records become done. If the worker dies in between, the
records stay in the journal and its successor writes them again. Readers of the spool recognise such duplicates by the
records' identity. While the spool cannot take letters, their records stay in the journal, count as held, and are
retried; letters that are on disk by then are not written twice. A letter that can never fit is held and delays no
other.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from sidecar.common.condition import SPOOL_ADVICE
from sidecar.common.wording import counted
from sidecar.deadletter.spool import LetterTooLarge

if TYPE_CHECKING:
    from sidecar.deadletter.letters import Undelivered
    from sidecar.deadletter.spool import SpoolWriter
    from sidecar.shm.client_table import ClientRow
    from sidecar.shm.slots import Counters
    from sidecar.worker.streams.client_outcomes import ClientOutcomes, NameOf
    from sidecar.worker.turns import Turns

log = logging.getLogger(__name__)

STEP_BYTES: Final = 4 << 20
"""Payload bytes copied out of the journal at a time."""
RETRY_MS: Final = 1_000.0
SAID_AGAIN_MS: Final = 60_000.0
IDLE_CLOSE_MS: Final = 10_000.0
"""Time in ms without a letter after which the file is closed, so that replay can remove it."""

Submit = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""(work, done): run ``work`` off the loop, then call ``done`` on the worker's loop with its exception, or None."""


class DeadLetters:
    """Writes dead letters. Belongs to the worker's loop; only ``SpoolWriter`` runs elsewhere, one call at a time."""

    def __init__(
        self,
        *,
        spool: SpoolWriter,
        submit: Submit,
        row_of: Callable[[int, int], ClientRow | None],
        name_of: NameOf,
        counters: Counters,
        now_ms: Callable[[], float],
        turns: Turns,
    ) -> None:
        self._spool = spool
        self._submit = submit
        self._row_of = row_of
        self._name_of = name_of
        self._counters = counters
        self._now_ms = now_ms
        self._turns = turns
        self._waiting: deque[ClientOutcomes] = deque()
        self._writing: list[tuple[ClientOutcomes, int]] = []
        """Completions that the spool is writing now, each with its number of letters."""
        self._on_disk = 0
        """Number of letters already on disk, of the failures that are being written or come next."""
        self._too_large: list[ClientOutcomes] = []
        """Completions with a letter larger than the whole spool: held until a daemon with a larger spool starts."""
        self._retry_ms = float("-inf")
        self._said_ms = float("-inf")
        self._last_write_ms: float | None = None
        self._error = self._size_error = ""
        """Why the last write failed, and why the spool can never take the letters of ``_too_large``."""
        self.refused_since_ms = 0.0

    def put(self, failures: Sequence[ClientOutcomes]) -> None:
        """Take over failures whose client is gone. Each is released once it is on disk."""
        self._waiting += failures
        self.step(self._now_ms())

    @property
    def is_writing(self) -> bool:
        """True while a write is in progress or can start at once, so that it will end soon in success or failure."""
        return bool(self._writing) or (bool(self._waiting) and self._retry_ms == float("-inf"))

    @property
    def refusal(self) -> str:
        """Why letters wait; "" while the spool takes them."""
        return self._error or self._size_error

    @property
    def held_count(self) -> int:
        return len(self._waiting) + len(self._writing) + len(self._too_large)

    def held(self) -> Iterator[ClientOutcomes]:
        """Failures that the spool has not taken."""
        yield from self._waiting
        yield from (each for each, _ in self._writing)
        yield from self._too_large

    def step(self, now_ms: float) -> None:
        """Write waiting letters, a bounded number of bytes at a time. Called again after each write and
        periodically.
        """
        if self._writing or not self._waiting or now_ms < self._retry_ms:
            is_idle = self._last_write_ms is not None and now_ms - self._last_write_ms > IDLE_CLOSE_MS
            if is_idle and not self._writing:
                # Off the loop: on a mount that is away the rename does not return.
                self._last_write_ms = None
                self._submit(self._close_file, _raise)
            return
        groups: list[Undelivered] = []
        size = 0
        while self._waiting and size < STEP_BYTES:
            each = self._waiting.popleft()
            found = each.undelivered(self._row_of(each.row, each.generation), self._name_of)
            groups += found
            size += sum(len(group.payload) for group in found)
            self._writing.append((each, sum(len(group.indexes) for group in found)))
        self._submit(lambda: self._write(groups), self._written)

    def close(self) -> None:
        """Close the current file, at the end of the worker: nothing else uses the spool any more."""
        if not self._writing:
            self._close_file()

    def _close_file(self) -> None:
        with contextlib.suppress(OSError):  # then the next start closes it
            self._spool.close()

    def _write(self, groups: list[Undelivered]) -> None:
        try:
            self._spool.append(groups, skip=self._on_disk)
        finally:
            self._on_disk = self._spool.written

    def _written(self, error: BaseException | None) -> None:
        writing, self._writing = deque(self._writing), []
        now_ms = self._now_ms()
        for path, records in self._spool.dropped:
            self._counters.inc("dead_letters_dropped_total", records)
            log.error(
                "Dead letters: %s with %d records was removed for room (dead_letters.when_full = drop_oldest).",
                path,
                records,
            )
        self._spool.dropped.clear()
        if self._on_disk:
            self._last_write_ms = now_ms
        while writing and self._on_disk >= writing[0][1]:
            each, letters = writing.popleft()
            self._on_disk -= letters
            each.release(dead=True)
            self._turns.wake()
        if isinstance(error, LetterTooLarge):
            self._too_large.append(writing.popleft()[0])
            self._on_disk = 0
        self._waiting.extendleft(each for each, _ in reversed(writing))
        if error is None:
            self._retry_ms = self._said_ms = float("-inf")
            self._error = ""
        else:
            self._failed(error, now_ms)
        self._counters.set("dead_letters_waiting", len(self._waiting) + len(self._too_large))
        self.step(now_ms)

    def _failed(self, error: BaseException, now_ms: float) -> None:
        self._counters.inc("dead_letter_errors_total")
        if not self.refusal:
            self.refused_since_ms = now_ms
        why = (error.strerror if isinstance(error, OSError) else "") or error
        reason = f"the dead letter spool {self._spool.folder} cannot be written ({why})"
        if isinstance(error, LetterTooLarge):
            self._size_error = reason
        else:
            self._error = reason
            self._retry_ms = now_ms + RETRY_MS
            if now_ms - self._said_ms < SAID_AGAIN_MS:
                return
            self._said_ms = now_ms
        log.error(
            "%s. The failed records of %s, whose clients are gone, stay in the journal and take up buffer.memory "
            "until it can. %s",
            reason[:1].upper() + reason[1:],
            counted(len(self._waiting) + len(self._too_large), "submission"),
            SPOOL_ADVICE,
        )


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error
