"""Rate clocks: one per limited topic in the segment's header, so that all workers keep to one rate together.

A clock is two 8-byte words: whose it is, and the moment in monotonic microseconds at which what was taken so far is
paid for (the "theoretical arrival time" of the generic cell rate algorithm). That moment moves by compare-and-swap.
However far ahead it is, it is believed: one submission may cost hours. Clocks of another boot are zeroed by
Segment.begin_boot.

A clock that owes nothing says nothing. So when all are taken, one that has owed nothing for a while goes to the next
name. Its holder sees that it is another's, and looks for one again.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from sidecar.kernel import compare_and_swap_u64, load_acquire_u64
from sidecar.shm import layout

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

IDLE_MS: Final = 1_000
"""Since it owed something: then another name may have the clock."""


class RateClock:
    """A clock in a buffer that lives as long as this object. Safe between processes."""

    __slots__ = ("_buffer", "_key", "_position")

    def __init__(self, buffer: bytearray | memoryview, position: int, key: int = 0) -> None:
        """``position``: of the moment; the word before it says whose the clock is. ``key`` 0: it is ours alone."""
        self._buffer = buffer
        self._position = position
        self._key = key

    def paid_at_us(self) -> int:
        """When what was taken is paid for; a moment of the past when nothing is owed."""
        paid_us = load_acquire_u64(self._buffer, self._position)
        return paid_us if self._is_ours() else 0

    def charge(self, cost_us: int, now_us: int) -> bool:
        """Owe ``cost_us`` more, from now on or from the end of what is owed; False: another name has the clock."""
        while True:
            before = load_acquire_u64(self._buffer, self._position)
            # After the moment was read: who takes the clock changes the key first, so that moment is not theirs yet,
            # and theirs replaces whatever we store.
            if not self._is_ours():
                return False
            if compare_and_swap_u64(self._buffer, self._position, before, max(before, now_us) + cost_us):
                return True

    def _is_ours(self) -> bool:
        return not self._key or load_acquire_u64(self._buffer, self._position - 8) == self._key


def find_clock(segment: Segment, name: str, now_us: int | None = None) -> RateClock | None:
    """The clock of that name, taken when it is new; None when other names have all.

    With ``now_us`` one that has owed nothing for IDLE_MS is taken then. Of two that workers took for one name at the
    same moment the first counts, so who keeps a clock asks again now and then.
    """
    header = segment.header
    key = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") or 1
    positions = [layout.RATE_ROWS_OFFSET + row * layout.RATE_ROW_BYTES for row in range(layout.RATE_ROWS_MAX)]
    for position in positions:
        compare_and_swap_u64(header, position, 0, key)
        if load_acquire_u64(header, position) == key:
            return RateClock(header, position + 8, key)
    if now_us is None:
        return None
    for paid_us, position in sorted((load_acquire_u64(header, each + 8), each) for each in positions):
        if paid_us + IDLE_MS * 1000 > now_us:
            break
        held = load_acquire_u64(header, position)
        if compare_and_swap_u64(header, position, held, key):
            if compare_and_swap_u64(header, position + 8, paid_us, now_us):
                return RateClock(header, position + 8, key)
            compare_and_swap_u64(header, position, key, held)  # it was charged meanwhile
    return None
