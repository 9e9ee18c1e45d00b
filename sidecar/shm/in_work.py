"""Marks a worker's entries and batches in work for its adopter, and counts how often each killed its worker.

A word of 8 bytes names one of them: {kind u4, chain u10, number u50}. The loop has one word and each codec thread
another. It is stored before an entry is walked or a batch is encoded, and is 0 afterwards. Adoption counts a death for
each word that it finds, unless the controller noted that it ended the worker itself. An entry or batch that killed
three workers is poison: it is set aside, so that the fourth worker lives.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from sidecar.shm import layout

if TYPE_CHECKING:
    from sidecar.shm.slots import SlotView

KILLS_MAX: Final = 3
"""Number of deaths after which an entry or batch in work is poison."""
ENTRY: Final = 1
BATCH: Final = 2
_KIND_SHIFT: Final = 60
BATCH_WORDS: Final = BATCH << _KIND_SHIFT
"""Added to a descriptor's serial, this gives the word of its batch."""
NUMBER_BITS: Final = 50
_CHAIN_SHIFT: Final = NUMBER_BITS
_NUMBER_MASK: Final = (1 << _CHAIN_SHIFT) - 1
assert layout.CHAINS_MAX <= 1 << _KIND_SHIFT - _CHAIN_SHIFT


def entry_word(chain_id: int, ordinal: int) -> int:
    return ENTRY << _KIND_SHIFT | chain_id << _CHAIN_SHIFT | ordinal & _NUMBER_MASK


def batch_word(serial: int) -> int:
    """Word of a batch, by its descriptor's serial, which no other descriptor of the slot ever has."""
    return BATCH_WORDS | serial & _NUMBER_MASK


def name_of(word: int) -> str:
    """Name of an entry or batch for the log."""
    number = word & _NUMBER_MASK
    if word >> _KIND_SHIFT == ENTRY:
        return f"entry {number} of chain {word >> _CHAIN_SHIFT & (1 << _KIND_SHIFT - _CHAIN_SHIFT) - 1}"
    return f"batch {number}"


class InWork:
    """Marks of the slot's owner. ``words[0]`` belongs to the loop; codec threads call :meth:`begin_thread`."""

    def __init__(self, slot: SlotView) -> None:
        self.words = slot.area[layout.IN_WORK_OFFSET :][: 8 * layout.IN_WORK_WORDS].cast("Q")
        self.loop_word = slot.area[layout.IN_WORK_OFFSET :][:8]
        """The loop's word. The kernel stores each entry here that it walks."""
        self._free = list(range(1, layout.IN_WORK_WORDS))
        self._lock = threading.Lock()

    def begin_thread(self, word: int) -> int:
        """Mark work of another thread than the loop's. Returns its index for :meth:`end_thread`; 0 if all are in use
        and nothing is marked.
        """
        with self._lock:
            index = self._free.pop() if self._free else 0
        if index:
            self.words[index] = word
        return index

    def end_thread(self, index: int) -> None:
        if index:
            self.words[index] = 0
            with self._lock:
                self._free.append(index)


class Suspects:
    """Death counts by suspect: 16 rows {what u64, kills u32 << 32 | the worker that died last u32}.

    Used only by the worker that adopts the slot. If all rows are in use, the one with the fewest deaths is replaced.
    """

    def __init__(self, slot: SlotView) -> None:
        self._slot = slot
        self._words = slot.area[layout.IN_WORK_OFFSET :][: 8 * layout.IN_WORK_WORDS].cast("Q")
        self._rows = slot.area[layout.SUSPECTS_OFFSET :][: 16 * layout.SUSPECTS_MAX].cast("Q")

    def count_deaths(self) -> dict[int, int]:
        """Count one death for each word in work, then clear the words. Returns word → deaths. Call before the slot is
        claimed.

        Can be repeated: a row names the worker whose death it counted last, and the slot still has that worker's
        number. A worker that its controller ended (silence, stop, takeover) did not die of its work, so nothing is
        counted.
        """
        dead = self._slot.incarnation & 0xFFFFFFFF
        counted: dict[int, int] = {}
        if self._slot.spared == self._slot.incarnation:
            self._clear()
            return counted
        for word in self._words.tolist():
            if word:
                counted[word] = self._count(word, dead)
        self._clear()
        return counted

    def poison(self) -> set[int]:
        """Words that were in work at three deaths and were not set aside yet."""
        rows = self._rows.tolist()
        return {
            what
            for what, deaths in zip(rows[::2], rows[1::2], strict=True)
            if what and deaths >> 32 >= KILLS_MAX
        }

    def forget(self, what: int) -> None:
        """Remove a word that was set aside for good."""
        for row in range(layout.SUSPECTS_MAX):
            if self._rows[2 * row] == what:
                self._rows[2 * row] = 0

    def _clear(self) -> None:
        for index in range(layout.IN_WORK_WORDS):
            self._words[index] = 0

    def _count(self, what: int, dead: int) -> int:
        row = self._row_of(what)
        kills, last = self._rows[2 * row + 1] >> 32, self._rows[2 * row + 1] & 0xFFFFFFFF
        if self._rows[2 * row] != what:
            # Clear the deaths of the row's previous word before its name changes.
            self._rows[2 * row + 1] = kills = last = 0
            self._rows[2 * row] = what
        if last != dead:
            kills += 1
            self._rows[2 * row + 1] = kills << 32 | dead
        return kills

    def _row_of(self, what: int) -> int:
        rows = self._rows.tolist()
        if what in rows[::2]:
            return rows[::2].index(what)
        if 0 in rows[::2]:
            return rows[::2].index(0)
        deaths = rows[1::2]
        return deaths.index(min(deaths))
