"""Rate clocks: one per limited topic in the segment's header, so that all workers share one rate.

A clock is two 8-byte words::

    | key u64: hash of the name | paid_at u64: monotonic µs at which all charges so far are paid for |

``paid_at`` is the "theoretical arrival time" of the generic cell rate algorithm. It moves by compare-and-swap. It may
be far ahead: one submission may cost hours. Segment.begin_boot zeroes clocks of another boot.

A clock that owes nothing carries no information. So if all are in use, the next name takes one that has owed nothing
for a while. Its holder sees that the key changed, and looks for another clock.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from sidecar.kernel import compare_and_swap_u64, load_acquire_u64
from sidecar.shm import layout

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

IDLE_MS: Final = 1_000
"""Time in ms without a debt after which another name may take the clock."""


class RateClock:
    """A clock in a buffer, which it keeps alive. Safe between processes."""

    __slots__ = ("_buffer", "_key", "_position")

    def __init__(self, buffer: bytearray | memoryview, position: int, key: int = 0) -> None:
        """``position``: that of ``paid_at``; the key is in the word before it. ``key`` 0: a private clock without a
        key.
        """
        self._buffer = buffer
        self._position = position
        self._key = key

    def paid_at_us(self) -> int:
        """When all charges are paid for, in monotonic µs; in the past if nothing is owed."""
        paid_us = load_acquire_u64(self._buffer, self._position)
        return paid_us if self._is_ours() else 0

    def charge(self, cost_us: int, now_us: int) -> bool:
        """Add ``cost_us`` to the debt, or to the present time if nothing is owed. False if another name has
        the clock.
        """
        while True:
            before = load_acquire_u64(self._buffer, self._position)
            # Check the key after ``paid_at`` was read. A new holder changes the key first, so this value is not its
            # own, and its own value replaces any that is stored here.
            if not self._is_ours():
                return False
            if compare_and_swap_u64(self._buffer, self._position, before, max(before, now_us) + cost_us):
                return True

    def _is_ours(self) -> bool:
        return not self._key or load_acquire_u64(self._buffer, self._position - 8) == self._key


def find_clock(segment: Segment, name: str, now_us: int | None = None) -> RateClock | None:
    """The clock of a name, taken if it is new; None if other names have all clocks.

    With ``now_us``, a clock that has owed nothing for IDLE_MS is taken if no other is free. If two workers take one
    each for a name at the same moment, the first in the table counts, so holders check again now and then.
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
            compare_and_swap_u64(header, position, key, held)  # it was charged meanwhile, so give it back
    return None
