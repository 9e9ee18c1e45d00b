"""ClientIndex: finds the slot of a client's row without a walk through the table."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import CLIENT_ID_BYTES
from sidecar.kernel import load_acquire_u64
from sidecar.shm import layout
from sidecar.shm.client_table import ROW_LIVE

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

_CHUNK_BYTES: Final = 512
"""Bytes of words compared at once, where the table differs from the last copy."""
_WORD: Final = struct.Struct("<Q")


class ClientIndex:
    """Rows by client id, for one reader in one thread.

    Other processes take and release rows. So each query compares the words of all rows with the last copy, and reads
    the rows whose words differ: a word gets a new generation with each client. The word also holds the row's slot, so
    an adopted row needs no more.
    """

    def __init__(self, segment: Segment) -> None:
        areas = segment.layout
        self._segment = segment
        self._words_at = areas.client_words
        self._seen = bytearray(8 * areas.clients_max)
        """Copy of the words at the last check; all rows are free at first."""
        self._id_of: dict[int, bytes] = {}
        self._rows_of: dict[bytes, list[int]] = {}
        """Has more than one row only if a client forged its way to two workers."""

    def slot_of(self, client_id: bytes) -> int | None:
        """Slot of the client's live row, the lowest row if there are several; None if there is none."""
        self._follow()
        rows = self._rows_of.get(client_id)
        if not rows:
            return None
        (word,) = _WORD.unpack_from(self._seen, 8 * min(rows))
        return int(word) >> 8 & 0xFF

    def _follow(self) -> None:
        # Keep no view of the segment: it would keep its mapping, and its lock, beyond close().
        words = bytes(self._segment.view[self._words_at : self._words_at + len(self._seen)])
        if words == self._seen:
            return
        for start in range(0, len(words), _CHUNK_BYTES):
            chunk = slice(start, start + _CHUNK_BYTES)
            if words[chunk] == self._seen[chunk]:
                continue
            for at in range(start, min(start + _CHUNK_BYTES, len(words)), 8):
                if words[at : at + 8] != self._seen[at : at + 8]:
                    self._look_at(at // 8)

    def _look_at(self, row: int) -> None:
        """Read one row again. A row that changes meanwhile counts as free, and differs at the next check."""
        before = self._id_of.pop(row, None)
        if before is not None:
            rows = self._rows_of[before]
            rows.remove(row)
            if not rows:
                del self._rows_of[before]
        word = load_acquire_u64(self._segment.view, self._words_at + 8 * row)
        _WORD.pack_into(self._seen, 8 * row, word)
        if word & 0xFF != ROW_LIVE:
            return
        start = self._segment.layout.client(row) + layout.CLIENT_ID_OFFSET
        client_id = bytes(self._segment.view[start : start + CLIENT_ID_BYTES])
        if load_acquire_u64(self._segment.view, self._words_at + 8 * row) == word:
            self._id_of[row] = client_id
            self._rows_of.setdefault(client_id, []).append(row)
