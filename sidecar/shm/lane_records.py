"""LaneRecords: what a slot remembers of its transactional lanes, so that a successor can continue or end each one.

::

    row      0 u64  word: {state u8: 0 free, 1 used; content u8: 0 or 1 is valid; content bytes u16; id bytes u16}
             8      transactional id, 160 B, written once
           168      content 0, 64 B; content 1 lies in the same row of an area of its own

The content that is not valid is written, then the word is stored. So a reader finds the old one or the new one, never a
part of each. Its fields are its owner's (``TransactionManager.record``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from client_stub.contract.wire import TRANSACTIONAL_ID_BYTES_MAX
from sidecar.kernel import load_acquire_u64, store_release_u64
from sidecar.shm import layout

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

LANE_FORMAT: Final = 1
"""Number of this form of the rows, in the slot's header. Any other: the area was not written in this form."""

_WORD: Final = struct.Struct("<BBHH2x")
_ID_OFFSET: Final = 8
_CONTENT_OFFSET: Final = _ID_OFFSET + TRANSACTIONAL_ID_BYTES_MAX
_FREE, _USED = 0, 1
assert _CONTENT_OFFSET + layout.LANE_CONTENT_BYTES <= layout.LANE_BYTES


class LaneRow(NamedTuple):
    """A copy of one row."""

    row: int
    transactional_id: str
    content: bytes


class LaneRecords:
    """The rows of one slot. Written by the slot's owner only; any reader may iterate over it."""

    def __init__(self, segment: Segment, slot: int) -> None:
        self._area = segment.slot(slot).area

    def __iter__(self) -> Iterator[LaneRow]:
        """Iterate over the rows in use."""
        if not self._is_formed:
            return
        table = self._area[layout.LANES_OFFSET :][: layout.LANES_MAX * layout.LANE_BYTES]
        states = bytes(table[:: layout.LANE_BYTES])
        row = states.find(_USED)
        while row >= 0:
            start = row * layout.LANE_BYTES
            _, which, content_bytes, id_bytes = _WORD.unpack_from(table, start)
            name = bytes(table[start + _ID_OFFSET :][: min(id_bytes, TRANSACTIONAL_ID_BYTES_MAX)])
            at = _content_offset(row, which)
            content = bytes(self._area[at : at + min(content_bytes, layout.LANE_CONTENT_BYTES)])
            yield LaneRow(row, name.decode("utf-8", "replace"), content)
            row = states.find(_USED, row + 1)

    @property
    def _is_formed(self) -> bool:
        return load_acquire_u64(self._area, layout.LANE_FORMAT_OFFSET) == LANE_FORMAT

    def open(self, row: int, transactional_id: str, content: bytes) -> None:
        """Begin a free row. If the slot's rows have another form, they are emptied first."""
        if not self._is_formed:
            for start, size in (
                (layout.LANES_OFFSET, layout.LANES_MAX * layout.LANE_BYTES),
                (layout.LANE_CONTENTS_OFFSET, layout.LANES_MAX * layout.LANE_CONTENT_BYTES),
            ):
                self._area[start : start + size] = bytes(size)
            store_release_u64(self._area, layout.LANE_FORMAT_OFFSET, LANE_FORMAT)
        name = transactional_id.encode()
        assert 0 < len(name) <= TRANSACTIONAL_ID_BYTES_MAX, "the id was checked when its client came"
        start = layout.LANES_OFFSET + row * layout.LANE_BYTES + _ID_OFFSET
        self._area[start : start + len(name)] = name
        # kill point: lane.named
        self._store(row, 0, content, len(name))

    def store(self, row: int, content: bytes) -> None:
        """Replace the content of a row in use."""
        state, which, _, id_bytes = _WORD.unpack_from(
            self._area, layout.LANES_OFFSET + row * layout.LANE_BYTES
        )
        assert state == _USED, f"lane row {row} is not in use"
        self._store(row, 1 - which, content, id_bytes)

    def _store(self, row: int, which: int, content: bytes, id_bytes: int) -> None:
        assert len(content) <= layout.LANE_CONTENT_BYTES
        at = _content_offset(row, which)
        self._area[at : at + len(content)] = content
        # kill point: lane.content
        word = int.from_bytes(_WORD.pack(_USED, which, len(content), id_bytes), "little")
        store_release_u64(self._area, layout.LANES_OFFSET + row * layout.LANE_BYTES, word)
        # kill point: lane.stored

    def free(self, row: int) -> None:
        """Give a row back."""
        store_release_u64(self._area, layout.LANES_OFFSET + row * layout.LANE_BYTES, _FREE)
        # kill point: lane.freed


def _content_offset(row: int, which: int) -> int:
    if which & 1:
        return layout.LANE_CONTENTS_OFFSET + row * layout.LANE_CONTENT_BYTES
    return layout.LANES_OFFSET + row * layout.LANE_BYTES + _CONTENT_OFFSET
