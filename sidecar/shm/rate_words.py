"""Rate clocks: one per limited topic in the segment's header, so that all workers keep to one rate together.

A clock is one 8-byte word, the moment in monotonic microseconds at which what was taken so far is paid for
(the "theoretical arrival time" of the generic cell rate algorithm); it moves by compare-and-swap. However far ahead
it is, it is believed: one submission may cost hours. Clocks of another boot are zeroed by Segment.begin_boot.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from sidecar.kernel import compare_and_swap_u64, load_acquire_u64
from sidecar.shm import layout

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment


class RateClock:
    """One word of a buffer that lives as long as this object. Safe between processes."""

    __slots__ = ("_buffer", "_position")

    def __init__(self, buffer: bytearray | memoryview, position: int) -> None:
        self._buffer = buffer
        self._position = position

    def paid_at_us(self) -> int:
        """When what was taken is paid for; a moment of the past when nothing is owed."""
        return load_acquire_u64(self._buffer, self._position)

    def charge(self, cost_us: int, now_us: int) -> None:
        """Owe ``cost_us`` more, from now on or from the end of what is owed already."""
        while True:
            before = load_acquire_u64(self._buffer, self._position)
            if compare_and_swap_u64(self._buffer, self._position, before, max(before, now_us) + cost_us):
                return


def find_clock(segment: Segment, name: str) -> RateClock | None:
    """The clock of that name, taken when it is new; None when all are taken by other names."""
    header = segment.header
    key = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") or 1
    for row in range(layout.RATE_ROWS_MAX):
        position = layout.RATE_ROWS_OFFSET + row * layout.RATE_ROW_BYTES
        compare_and_swap_u64(header, position, 0, key)
        if load_acquire_u64(header, position) == key:
            return RateClock(header, position + 8)
    return None
