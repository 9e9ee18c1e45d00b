"""ClientIndex: the slot that has a client's row, found without a walk through the table."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from client_stub.wire import CLIENT_ID_BYTES
from sidecar.kernel import load_acquire_u64
from sidecar.shm import layout
from sidecar.shm.client_table import ROW_LIVE

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

_CHUNK_BYTES: Final = 512
"""Words compared in one go, where the table differs from what was seen."""
_WORD: Final = struct.Struct("<Q")


class ClientIndex:
    """Rows by client id, for one reader in one thread.

    Other processes take rows and give them back. So each question compares the words of all rows with those that were
    seen last, and reads the rows whose words differ: a word has a new generation with each client. A row's slot is
    part of its word, so an adopted row needs nothing more.
    """

    def __init__(self, segment: Segment) -> None:
        places = segment.layout
        self._segment = segment
        self._words_at = places.client_words
        self._seen = bytearray(8 * places.clients_max)
        """The words as of the last look; all rows are free at first."""
        self._id_of: dict[int, bytes] = {}
        self._rows_of: dict[bytes, list[int]] = {}
        """More than one only where a client forged its way to two workers."""

    def slot_of(self, client_id: bytes) -> int | None:
        """The slot that has the client's live row, the first one's where there are more; None: there is none."""
        self._follow()
        rows = self._rows_of.get(client_id)
        if not rows:
            return None
        (word,) = _WORD.unpack_from(self._seen, 8 * min(rows))
        return int(word) >> 8 & 0xFF

    def _follow(self) -> None:
        # No view of the segment is kept: it would keep its mapping, and with that its lock, beyond close().
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
        """Read one row again. One that changes meanwhile counts as free, and its word differs at the next look."""
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
