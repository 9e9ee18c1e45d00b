"""StoreRecorder: the segment as it was after every single store, for tests that let a successor begin at each.

Stores of the kernel are reported by its store hook. Those of Python are found by looking at the segment after every
line that runs in ``sidecar/shm``, the only room that writes to it. Several words that changed at once (a copy of
plain writes) are taken apart again, so that a death in the middle of it is a moment as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sidecar.kernel import set_store_hook
from sidecar.shm import layout
from sidecar.shm.segment import Segment

SHM_FOLDER: Final = str(Path(layout.__file__).parent)
PIECES_MAX: Final = 4
"""Into so many parts one change of more words is taken apart."""

Outside = TypeVar("Outside")


class Change(NamedTuple):
    """One store: from this position on these bytes; and what the world outside the segment was then."""

    position: int
    data: bytes
    outside: int


class StoreRecorder(Generic[Outside]):
    """Records while used as a context manager. ``version`` says whether the outside is news, ``copy`` keeps it.

    Only the parts of the segment that a small harness uses are looked at: slot 0 and client row 0, few tables' rows,
    or other ``windows``.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        version: Callable[[], object],
        copy: Callable[[], Outside],
        windows: list[tuple[int, int]] | None = None,
    ) -> None:
        self._segment = segment
        self._version, self._copy = version, copy
        self._windows = windows or windows_of(segment)
        self._last = [bytes(segment.view[start:end]) for start, end in self._windows]
        self.before = b"".join(self._last)
        self.changes: list[Change] = []
        self.outsides: list[Outside] = [copy()]
        self._seen_version = version()

    def __len__(self) -> int:
        """How many moments there are: before the first store, and after each."""
        return len(self.changes) + 1

    def change(self, number: int) -> str:
        """The store before a moment, for error texts."""
        if not number:
            return "before the first"
        position, data, _ = self.changes[number - 1]
        return (
            f"{len(data)} bytes at {position}: {data[:16].hex()}" if data else "nothing; the broker moved on"
        )

    def look(self) -> None:
        version = self._version()
        if version != self._seen_version:
            self._seen_version = version
            self.outsides.append(self._copy())
            self.changes.append(Change(0, b"", len(self.outsides) - 1))
        for place, (start, end) in enumerate(self._windows):
            now = bytes(self._segment.view[start:end])
            before = self._last[place]
            if now != before:
                self._last[place] = now
                for at, data in pieces(before, now):
                    self.changes.append(Change(start + at, data, len(self.outsides) - 1))

    def moments(self, *, step: int = 1, start: int = 0) -> Iterator[tuple[Callable[[], None], Outside]]:
        """(put the segment back to that moment, the outside at it), of every ``step``-th."""
        image = bytearray(self.before)
        offsets: dict[int, int] = {}
        total = 0
        for begin, end in self._windows:
            offsets[begin] = total
            total += end - begin
        places = [(begin, end, offsets[begin]) for begin, end in self._windows]

        def put_back() -> None:
            for begin, end, at in places:
                self._segment.view[begin:end] = image[at : at + end - begin]
            self._segment._slots.clear()
            self._segment._clients = None

        for number in range(len(self)):
            outside = 0
            if number:
                change = self.changes[number - 1]
                outside = change.outside
                if change.data:
                    at = next(
                        at + change.position - begin
                        for begin, end, at in places
                        if begin <= change.position < end
                    )
                    image[at : at + len(change.data)] = change.data
            if number >= start and (number - start) % step == 0:
                yield put_back, self.outsides[outside]

    def __enter__(self) -> StoreRecorder[Outside]:
        self._tracer_before = sys.gettrace()
        set_store_hook(lambda point: self.look())
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(self._tracer_before)
        set_store_hook(None)
        self.look()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._trace_line if frame.f_code.co_filename.startswith(SHM_FOLDER) else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.look()
        return self._trace_line


def windows_of(segment: Segment) -> list[tuple[int, int]]:
    """(start, end) of what a small harness may write: all there is of pages, the first rows of the tables."""
    places = segment.layout
    slot, client = places.slot(0), places.client(0)
    found = [
        (0, places.pages + places.page_bytes * places.page_count),
        (slot, slot + layout.CHAINS_OFFSET + 2 * layout.CHAIN_ROW_BYTES),
        (slot + layout.DESCRIPTORS_OFFSET, slot + layout.DESCRIPTORS_OFFSET + 40 * layout.DESCRIPTOR_BYTES),
        (client, client + layout.CLIENT_ROW_BYTES + 24_576),
    ]
    return found


def pieces(before: bytes, now: bytes) -> Iterator[tuple[int, bytes]]:
    """Changes in whole 8-byte words in order of address; long stretches in a few parts."""
    words = list(_changed_words(before, now, 0, len(now)))
    runs: list[tuple[int, int]] = []
    for word in words:
        if runs and runs[-1][1] == word:
            runs[-1] = (runs[-1][0], word + 8)
        else:
            runs.append((word, word + 8))
    for start, end in runs:
        size = max(8, -(-(end - start) // PIECES_MAX // 8) * 8)
        for at in range(start, end, size):
            yield at, now[at : min(at + size, end)]


def _changed_words(before: bytes, now: bytes, start: int, end: int) -> Iterator[int]:
    if before[start:end] == now[start:end]:
        return
    if end - start <= 8:
        yield start
        return
    middle = start + (end - start) // 16 * 8 or start + 8
    middle = max(middle, start + 8)
    yield from _changed_words(before, now, start, middle)
    yield from _changed_words(before, now, middle, end)
