"""BufferPool: the pages of the segment, shared by all workers (rule A2; Kafka's BufferPool).

A page is taken by compare-and-swap on its owner word. Each worker has a floor of pages that no other can take. Above
it, pages are borrowed while there are any beyond all floors. Within a worker, waiters are served in order. Between
workers, tickets decide, so that a worker with large requests is not overtaken for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sidecar.kernel import fetch_add_u64, give_pages, load_acquire_u64, store_release_u64, take_pages
from sidecar.shm import layout

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

FLOOR_SHARE: Final = 0.25
"""Share of the pool that is divided into the workers' floors. The rest is lent on demand."""
DEAD_AFTER_MS: Final = 3_000.0
"""A slot whose heartbeat is older than this is skipped in the queue between workers."""


class Waiter(NamedTuple):
    waiter: Any
    pages: int


class BufferPool:
    """One worker's access to the shared pool. Not thread-safe: belongs to the worker's loop. Never blocks.

    ``taken_count``: pages this worker took and did not give back; 0 at rest. ``wake_others`` is called when another
    worker waits and may now continue: pages were given back, or this worker left the queue.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        incarnation: int,
        workers: int,
        slot: int | None = None,
        floor_pages: int | None = None,
        wake_others: Callable[[], None] = lambda: None,
    ) -> None:
        self._wake_others = wake_others
        self._owners = segment.owners
        self._header = segment.header
        self._segment = segment
        table = 8 * layout.SLOT_COUNT
        self._ticket_words = segment.header[layout.SLOT_TICKETS_OFFSET :][:table].cast("Q")
        self._borrowed_words = segment.header[layout.SLOT_BORROWED_OFFSET :][:table].cast("Q")
        self._incarnation = incarnation
        self._slot = self._slot_of(incarnation) if slot is None else slot
        self.page_count = segment.page_count
        workers = max(1, workers)
        if floor_pages is None:
            floor_pages = int(segment.page_count * FLOOR_SHARE) // workers
        self.floor_pages = min(floor_pages, segment.page_count // workers)
        self._lendable = segment.page_count - self.floor_pages * workers
        self.pages_max = self.floor_pages + self._lendable
        """The most pages that one worker can ever hold; a larger request fails at once."""
        self.taken_count = 0
        self._hint = (segment.page_count // layout.SLOT_COUNT) * self._slot
        self.waiters: deque[Waiter] = deque()
        """Waiters of this worker, in order. Only the pool itself changes it."""
        self._store(layout.SLOT_BORROWED_OFFSET, 0)
        self._store(layout.SLOT_TAKEN_OFFSET, 0)
        self._has_ticket = True  # a dead owner of the slot may have left one
        self._end_of_line()

    @property
    def waiting_count(self) -> int:
        return len(self.waiters)

    @property
    def entry_bytes_max(self) -> int:
        """Size in bytes of the largest journal entry that one worker can hold, with its header and words."""
        return self.pages_max * (self._segment.page_bytes - layout.PAGE_HEADER_BYTES)

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` pages, or none: then None. Also None while others wait before this caller."""
        self._check(count)
        if self.waiters or not self._is_my_turn(count):
            return None
        return self._acquire(count)

    def give(self, pages: Sequence[int]) -> None:
        """Give back pages of this worker, and wake other workers that wait.

        Raises ValueError for a page that is not this worker's (given back twice).
        """
        give_pages(self._owners, self._incarnation, pages)
        self._count(-len(pages))
        self._wake_who_waits()

    def adopt(self, count: int) -> None:
        """Count ``count`` pages of a dead worker as this one's. They may exceed its usual limit."""
        self._count(count)

    def enqueue(self, waiter: Hashable, count: int) -> None:
        """Wait for ``count`` pages until :meth:`poll` grants them, or :meth:`cancel`.

        Raises ValueError for more pages than can ever be had.
        """
        self._check(count)
        self.waiters.append(Waiter(waiter, count))
        if len(self.waiters) == 1:
            self._draw_ticket()

    def cancel(self, waiter: Hashable) -> None:
        """Leave the queue, if the waiter is in it."""
        self.waiters = deque(entry for entry in self.waiters if entry.waiter != waiter)
        self._end_of_line()

    def poll(self, now_ms: float) -> list[tuple[Any, list[int]]]:
        """Serve the queue. Returns the waiters that got their pages, with these. Call after pages were given back."""
        granted: list[tuple[Any, list[int]]] = []
        if not self.waiters:
            return granted
        while self.waiters and self._is_my_turn(self.waiters[0].pages, now_ms):
            pages = self._acquire(self.waiters[0].pages)
            if pages is None:
                break
            granted.append((self.waiters.popleft().waiter, pages))
            if self.waiters:
                self._draw_ticket()  # to the end of the queue between workers
        self._end_of_line()
        if granted and self.waiters:
            self._wake_who_waits()  # another worker is next
        return granted

    # ---- inside ------------------------------------------------------------------------------------------------

    def _check(self, count: int) -> None:
        if not 0 < count <= self.pages_max:
            raise ValueError(
                f"{count} pages of {self._segment.page_bytes} bytes cannot be allocated: this worker has at most "
                f"{self.pages_max} of {self.page_count}; raise buffer.memory"
            )

    def _acquire(self, count: int) -> list[int] | None:
        self._count(count)
        if self.taken_count > self.floor_pages and sum(self._borrowed_words.tolist()) > self._lendable:
            self._count(-count)
            return None
        pages = take_pages(self._owners, self._incarnation, count, self._hint)
        if len(pages) < count:
            give_pages(self._owners, self._incarnation, pages)
            self._count(-count)
            return None
        self._hint = pages[-1] + 1
        return pages

    def _count(self, pages: int) -> None:
        """Store this worker's count before reading the sum of all: if two borrow at once, each sees the other."""
        before, floor = self.taken_count, self.floor_pages
        self.taken_count = taken = before + pages
        if taken > floor or before > floor:
            change = max(0, taken - floor) - max(0, before - floor)
            fetch_add_u64(self._header, layout.SLOT_BORROWED_OFFSET + 8 * self._slot, change)
        self._store(layout.SLOT_TAKEN_OFFSET, self.taken_count)

    def _is_my_turn(self, count: int, now_ms: float | None = None) -> bool:
        if self.taken_count + count <= self.floor_pages:
            return True
        mine = load_acquire_u64(self._header, layout.SLOT_TICKETS_OFFSET + 8 * self._slot)
        for slot, ticket in self._tickets():
            if slot != self._slot and (not mine or ticket < mine) and not self._is_dead(slot, now_ms):
                return False
        return True

    def _tickets(self) -> list[tuple[int, int]]:
        words = self._ticket_words.tolist()
        return [(slot, ticket) for slot, ticket in enumerate(words) if ticket] if any(words) else []

    def _is_dead(self, slot: int, now_ms: float | None) -> bool:
        """True if the slot's heartbeat is too old: its worker will not take its turn. ``now_ms`` is on the heartbeat's
        clock.
        """
        return now_ms is not None and now_ms - self._segment.slot(slot).heartbeat / 1e6 > DEAD_AFTER_MS

    def _draw_ticket(self) -> None:
        ticket = fetch_add_u64(self._header, layout.TICKET_OFFSET, 1) + 1
        self._store(layout.SLOT_TICKETS_OFFSET, ticket)
        self._has_ticket = True

    def _end_of_line(self) -> None:
        """Return the ticket if no waiter is left here, so that the next worker has its turn."""
        if not self.waiters and self._has_ticket:
            self._has_ticket = False
            self._store(layout.SLOT_TICKETS_OFFSET, 0)
            self._wake_who_waits()

    def _wake_who_waits(self) -> None:
        words = self._ticket_words.tolist()
        words[self._slot] = 0
        if any(words):
            self._wake_others()

    def _store(self, table: int, value: int) -> None:
        store_release_u64(self._header, table + 8 * self._slot, value)

    def _slot_of(self, incarnation: int) -> int:
        for slot in self._segment.prepared_slots():
            if self._segment.slot(slot).incarnation == incarnation:
                return slot
        raise ValueError(f"no slot of the segment belongs to incarnation {incarnation}: claim it first")
