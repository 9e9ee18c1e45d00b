"""StageRecords: what a slot remembers of its stages, so that a successor can keep, continue or end each one.

::

    row      0 u64  word: {state u8; end u8; lane u16; transaction u32}, stored last
             8 u64  number, unique in the slot   16 u64 the caller's number   24 u64 bytes
            32 u32  digest of the owner          36 u32 digest of the client's name
            40 u32  records      44 u32 client row     48 u32 generation      52 u32 the client's number of it
            56 u32  opened at, then sealed at, wall clock s          60 u32 user of the client + 1 (0: not known)

The fields that a state needs are written before its word is stored; those of the state before stay as they are. So a
reader finds the old state or the new one, with all that belongs to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.kernel import load_acquire_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.stage_states import StageRowState

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

STAGE_FORMAT: Final = 1
"""Number of this form of the rows, in the slot's header. Any other: the area was not written in this form."""

_ROW: Final = struct.Struct("<BBHIQQQIIIIIIII")
_WORD: Final = struct.Struct("<BBHI")
_BYTES_AT: Final = 24
_RECORDS_AT: Final = 40
_SINCE_AT: Final = 56
assert _ROW.size == layout.STAGE_BYTES


class StageEnd(IntEnum):
    """How a stage ended, or ends."""

    NONE = 0
    INCLUDED = 1
    DROPPED = 2
    """Its client asked for it."""
    EXPIRED = 3
    """Nobody included it in time."""
    ABANDONED = 4
    """Its client was gone before it was sealed."""
    EVICTED = 5
    """Another owner's stages of its transactional id needed its share of the pool."""
    FAILED = 6
    """A record of it could not be accepted."""


class StageRow(NamedTuple):
    """A copy of one row, in its order."""

    row: int
    state: StageRowState
    end: StageEnd
    lane: int
    transaction: int
    """The transaction that included it, modulo 2**32."""
    number: int
    caller_number: int
    size_bytes: int
    owner_digest: int
    name_digest: int
    records: int
    client_row: int
    client_generation: int
    client_number: int
    since_s: int
    user: int


class StageRecords:
    """The rows of one slot. Written by the slot's owner only; any reader may iterate over it."""

    def __init__(self, segment: Segment, slot: int) -> None:
        self._area = segment.slot(slot).area

    def __iter__(self) -> Iterator[StageRow]:
        """Iterate over the rows that are not free."""
        if not self._is_formed:
            return
        table = self._area[layout.STAGES_OFFSET :][: layout.STAGES_MAX * layout.STAGE_BYTES]
        states = bytes(table[:: layout.STAGE_BYTES])
        for row, state in enumerate(states):
            if StageRowState.OPEN <= state <= StageRowState.ENDED:
                _, end, *fields = _ROW.unpack_from(table, row * layout.STAGE_BYTES)
                yield StageRow(row, StageRowState(state), StageEnd(min(end, max(StageEnd))), *fields)

    @property
    def _is_formed(self) -> bool:
        return load_acquire_u64(self._area, layout.STAGE_FORMAT_OFFSET) == STAGE_FORMAT

    def take_number(self) -> int:
        """The number of the next stage. It is stored as used before any row or entry has it."""
        if not self._is_formed:
            size = layout.STAGES_MAX * layout.STAGE_BYTES
            self._area[layout.STAGES_OFFSET : layout.STAGES_OFFSET + size] = bytes(size)
            store_release_u64(self._area, layout.STAGE_NUMBER_OFFSET, 0)
            store_release_u64(self._area, layout.STAGE_FORMAT_OFFSET, STAGE_FORMAT)
        number = self.last_number + 1
        store_release_u64(self._area, layout.STAGE_NUMBER_OFFSET, number)
        # kill point: stage.number
        return number

    @property
    def last_number(self) -> int:
        """The number that a stage got last; 0: none did."""
        return load_acquire_u64(self._area, layout.STAGE_NUMBER_OFFSET) if self._is_formed else 0

    def open(self, row: StageRow) -> None:
        """Begin a row that is free or has ended."""
        at = _at(row.row)
        store_release_u64(self._area, at, StageRowState.FREE)
        fields = _ROW.pack(*row[1:])
        self._area[at + _WORD.size : at + _ROW.size] = fields[_WORD.size :]
        # kill point: stage.fields
        self._store(row.row, row.state, row.end, row.lane, 0)
        # kill point: stage.opened

    def seal(self, row: int, lane: int, records: int, size_bytes: int, since_s: int) -> None:
        at = _at(row)
        struct.pack_into("<Q", self._area, at + _BYTES_AT, size_bytes)
        struct.pack_into("<I", self._area, at + _RECORDS_AT, records)
        struct.pack_into("<I", self._area, at + _SINCE_AT, since_s)
        # kill point: stage.sealing
        self._store(row, StageRowState.SEALED, StageEnd.NONE, lane, 0)
        # kill point: stage.sealed

    def include(self, row: int, lane: int, transaction: int) -> None:
        """Note which transaction includes the stage. That it does is stored with the lane's record, for all its stages
        at once.
        """
        self._store(row, StageRowState.INCLUDED, StageEnd.INCLUDED, lane, transaction & 0xFFFFFFFF)
        # kill point: stage.included

    def exclude(self, row: int, lane: int) -> None:
        """Take :meth:`include` back: its worker died before all stages had it."""
        self._store(row, StageRowState.SEALED, StageEnd.NONE, lane, 0)

    def drop(self, row: int, lane: int, end: StageEnd) -> None:
        self._store(row, StageRowState.DROPPED, end, lane, 0)
        # kill point: stage.dropped

    def end(self, row: int, lane: int, end: StageEnd) -> None:
        """Note that none of its records is left."""
        self._store(row, StageRowState.ENDED, end, lane, 0)
        # kill point: stage.ended

    def _store(self, row: int, state: StageRowState, end: StageEnd, lane: int, transaction: int) -> None:
        word = int.from_bytes(_WORD.pack(state, end, lane, transaction), "little")
        store_release_u64(self._area, _at(row), word)


def _at(row: int) -> int:
    return layout.STAGES_OFFSET + row * layout.STAGE_BYTES
