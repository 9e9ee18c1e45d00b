"""ClientTable and ClientRow: a client's identity, the accepted positions of its streams, its unread outcomes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import CLIENT_ID_BYTES, OUTCOME_HEADER_BYTES, SECRET_BYTES
from sidecar.kernel import compare_and_swap_u64, load_acquire_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.layout import RING_BYTES, STREAM_BYTES, STREAMS_MAX, STREAMS_OFFSET

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment

ROW_FREE: Final = 0
ROW_TAKING: Final = 1
ROW_LIVE: Final = 2
_OUTCOME_START: Final = struct.Struct("<IIQ")
"""Length, kind and shape, number."""


def _word(generation: int, slot: int, state: int) -> int:
    return generation << 32 | slot << 8 | state


class NeverWritten(ValueError):
    """An ACK of an outcome that its client cannot have."""


class ClientRow:
    """One client's row and outcome ring. Written by the client's worker only; not thread-safe.

    Outcomes are numbered from 1 without gaps. One store of the ring's written position publishes outcomes. An ACK
    stores the number before the position, so a reader between the two stores only sees outcomes that are acked
    already.
    """

    def __init__(self, table: ClientTable, index: int, generation: int, area: memoryview) -> None:
        self._table = table
        self.index = index
        self.generation = generation
        self.ring_bytes = RING_BYTES
        self._area = area
        self._ring = area[layout.RING_OFFSET :]
        _, _, client_id, self.pid, secret, name_bytes, name = layout.CLIENT_ROW.unpack_from(area)
        self.client_id: bytes = client_id
        self.secret: bytes = secret
        self.name: str = name[:name_bytes].decode("utf-8", "replace")
        self._streams: dict[int, int] = {}
        """Stream → offset of its entry. The entries have no gap."""
        self._chains: dict[int, int] = {}
        """Stream → id of its chain."""
        for position in range(STREAMS_OFFSET, STREAMS_OFFSET + STREAMS_MAX * STREAM_BYTES, STREAM_BYTES):
            stream, chain = struct.unpack_from("<II", area, position)
            if not chain:
                break
            # The first of two entries counts: see ``end_stream``.
            self._streams.setdefault(stream, position)
            self._chains.setdefault(stream, chain - 1)
        self.acked_number = load_acquire_u64(area, layout.ACKED_NUMBER_OFFSET)
        """Changed only by :meth:`ring_ack`; ``next_number`` only by :meth:`ring_append`."""
        self._written = load_acquire_u64(area, layout.RING_WRITTEN_OFFSET)
        self._read = load_acquire_u64(area, layout.RING_READ_OFFSET)
        self.ring_free_bytes = RING_BYTES - (self._written - self._read)
        # Positions of outcomes in the ring, by number: _first, _first + 1, ...
        self._positions: list[int] = []
        self._first = self.acked_number + 1
        self._find_outcomes()
        self.next_number = self._first + len(self._positions)

    # ---- streams -----------------------------------------------------------------------------------------------

    @property
    def is_blank(self) -> bool:
        """True if no record was ever accepted or released under this row."""
        return not self._streams and self.next_number == 1

    @property
    def chain_ids(self) -> Iterable[int]:
        """Ids of the chains that its streams use."""
        return self._chains.values()

    def streams(self) -> Iterator[tuple[int, int, int]]:
        """Yield (stream, chain id, accepted position) of every stream in the row."""
        for stream, position in self._streams.items():
            yield stream, self._chains[stream], load_acquire_u64(self._area, position + 8)

    def place_stream(self, stream: int, chain_id: int) -> bool:
        """Add a stream to the row, before its first record is accepted. False if all 200 entries are taken."""
        if stream in self._streams:
            return True
        if len(self._streams) >= STREAMS_MAX or not 0 <= stream <= 0xFFFFFFFF:
            return False
        position = STREAMS_OFFSET + len(self._streams) * STREAM_BYTES
        struct.pack_into("<Q", self._area, position + 8, 0)
        store_release_u64(self._area, position, stream | (chain_id + 1) << 32)
        # kill point: stream.placed
        self._streams[stream] = position
        self._chains[stream] = chain_id
        return True

    def end_stream(self, stream: int) -> None:
        """Give the entry of a stream back that its stub has ended. The last stream moves into it, so that the entries
        have no gap. Raises KeyError for a stream without an entry.

        The state after a kill after each store, as the next owner finds it:

        1. The ended stream has the position of the last one. Nobody sends under its number again, and its stub ends
           it once more with the position that WELCOME names.
        2. The last stream has two entries with the same position. Readers take the first, and the next owner empties
           the second (``drop_repeat``).
        3. The entry is free.
        """
        at = self._streams.pop(stream)
        del self._chains[stream]
        last = STREAMS_OFFSET + len(self._streams) * STREAM_BYTES
        if at != last:
            word = load_acquire_u64(self._area, last)
            store_release_u64(self._area, at + 8, load_acquire_u64(self._area, last + 8))
            # kill point: stream.position_moved
            store_release_u64(self._area, at, word)
            # kill point: stream.moved
            self._streams[word & 0xFFFFFFFF] = at
        store_release_u64(self._area, last, 0)
        # kill point: stream.ended

    def drop_repeat(self) -> None:
        """Empty the second entry of a stream that an earlier owner was moving when it died."""
        position = STREAMS_OFFSET + len(self._streams) * STREAM_BYTES
        if len(self._streams) < STREAMS_MAX and load_acquire_u64(self._area, position):
            store_release_u64(self._area, position, 0)

    def store_position(self, stream: int, seq: int) -> None:
        """Store the row's copy of the accepted position, which is needed once the journal's pages are gone. Raises
        KeyError for a stream without an entry.
        """
        store_release_u64(self._area, self._streams[stream] + 8, seq)

    # ---- outcome ring ------------------------------------------------------------------------------------------

    def ring_append(self, outcomes: bytes) -> bool:
        """Publish packed outcomes, numbered from next_number on. False, with nothing written, if there is no room.

        Raises ValueError for malformed bytes, wrong numbers, or more bytes than the outcome ring has.
        """
        size = len(outcomes)
        if size > self.ring_free_bytes:
            if size > RING_BYTES:
                raise ValueError(f"{size} bytes of outcomes do not fit into an outcome ring of {RING_BYTES}")
            return False
        written = self._written
        positions: list[int] = []
        at = 0
        expected = self.next_number
        while at < size:
            if size - at < OUTCOME_HEADER_BYTES:
                raise ValueError(f"an outcome is cut short at byte {at} of {size}")
            length, _, number = _OUTCOME_START.unpack_from(outcomes, at)
            if length < OUTCOME_HEADER_BYTES or length % 8 or at + length > size:
                raise ValueError(f"the outcome at byte {at} claims {length} of {size} bytes")
            if number != expected:
                raise ValueError(f"outcome {number} out of turn: the next is {expected}")
            positions.append(written + at)
            expected += 1
            at += length
        start = written % RING_BYTES
        if start + size <= RING_BYTES:
            self._ring[start : start + size] = outcomes
        else:
            head = RING_BYTES - start
            self._ring[start:RING_BYTES] = outcomes[:head]
            self._ring[: size - head] = outcomes[head:]
        # kill point: tell.entry
        store_release_u64(self._area, layout.RING_WRITTEN_OFFSET, written + size)
        # kill point: tell.head
        self._written = written + size
        self.ring_free_bytes -= size
        self._positions += positions
        self.next_number = expected
        return True

    def ring_slice_from(self, number: int) -> tuple[int, int, bytes] | None:
        """(first number, last number, bytes) of the outcomes from ``number`` on; None if there are none."""
        if number >= self.next_number or not self._positions:
            return None
        first = number if number > self._first else self._first
        position = self._positions[first - self._first]
        start, size = position % RING_BYTES, self._written - position
        if start + size <= RING_BYTES:
            data = bytes(self._ring[start : start + size])
        else:
            data = bytes(self._ring[start:]) + bytes(self._ring[: start + size - RING_BYTES])
        return first, self.next_number - 1, data

    def ring_ack(self, number: int) -> None:
        """Free all outcomes up to ``number``, which the client has. Lower numbers than before are ignored.

        Raises NeverWritten for a number that was never given.
        """
        if number <= self.acked_number:
            return
        if number >= self.next_number:
            raise NeverWritten(f"ACK of outcome {number}, but only {self.next_number - 1} were written")
        index = number - self._first + 1
        read = self._positions[index] if number + 1 < self.next_number else self._written
        store_release_u64(self._area, layout.ACKED_NUMBER_OFFSET, number)
        # kill point: ack.number
        store_release_u64(self._area, layout.RING_READ_OFFSET, read)
        # kill point: ack.read
        del self._positions[:index]
        self._first = number + 1
        self.acked_number = number
        self.ring_free_bytes += read - self._read
        self._read = read

    def release(self) -> None:
        """Release the row. Its generation makes later references to it void. Can be repeated."""
        self._table.release_row(self.index, self.generation)
        # kill point: client.released

    def _find_outcomes(self) -> None:
        """Find the unacknowledged outcomes in a row that an earlier owner wrote."""
        position = self._read
        while position < self._written:
            start = position % RING_BYTES
            head = bytes(self._ring[start : start + 16])
            head += bytes(self._ring[: 16 - len(head)])  # of one at the end of the ring
            length, _, number = _OUTCOME_START.unpack(head)
            if length < OUTCOME_HEADER_BYTES or position + length > self._written:
                break
            if number > self.acked_number:
                if not self._positions:
                    self._first = number
                self._positions.append(position)
            position += length


class ClientTable:
    """All client rows of the segment. Rows are taken by compare-and-swap, because workers share the table."""

    def __init__(self, segment: Segment) -> None:
        areas = segment.layout
        self._segment = segment
        self._words = segment.view[areas.client_words : areas.client_words + 8 * areas.clients_max]
        self.capacity = areas.clients_max

    def take_row(
        self, client_id: bytes, name: str, pid: int, slot: int, secret: bytes, uid: int | None = None
    ) -> ClientRow | None:
        """Take a new row for a client of this slot; None if the table is full. ``pid`` 0, ``uid`` None: not known.

        Raises SegmentError if the row's memory cannot be allocated, ValueError for an id or secret of the wrong size.
        A name is cut at 62 bytes.
        """
        if len(client_id) != CLIENT_ID_BYTES or len(secret) != SECRET_BYTES:
            raise ValueError(f"a client id has {CLIENT_ID_BYTES} bytes and a secret {SECRET_BYTES}")
        for index in self._in_state(ROW_FREE):
            word = load_acquire_u64(self._words, 8 * index)
            if word & 0xFF != ROW_FREE:
                continue
            generation = (word >> 32) + 1 & 0xFFFFFFFF or 1
            if not compare_and_swap_u64(self._words, 8 * index, word, _word(generation, slot, ROW_TAKING)):
                continue
            # kill point: client.taking
            try:
                self._segment.allocate(self._segment.layout.client(index), layout.CLIENT_STRIDE)
            except BaseException:
                store_release_u64(self._words, 8 * index, word)
                raise
            area = self._area(index)
            area[: layout.CLIENT_ROW_BYTES] = bytes(layout.CLIENT_ROW_BYTES)
            text = name.encode()[:62]
            layout.CLIENT_ROW.pack_into(area, 0, generation, slot, client_id, pid, secret, len(text), text)
            if uid is not None:
                store_release_u64(area, layout.CLIENT_USER_OFFSET, uid + 1)
            # kill point: client.row
            store_release_u64(self._words, 8 * index, _word(generation, slot, ROW_LIVE))
            # kill point: client.live
            return self._row(index, generation)
        return None

    def _in_state(self, state: int) -> Iterator[int]:
        """Yield the rows in this state. Others cost no Python code: most of the table is free."""
        states = bytes(self._words)[::8]  # the low byte of each word
        index = states.find(state)
        while index >= 0:
            yield index
            index = states.find(state, index + 1)

    def taken(self) -> int:
        """Number of rows that are not free, of all workers."""
        return self.capacity - bytes(self._words)[::8].count(ROW_FREE)

    def count_by_user(self) -> dict[int, int]:
        """Number of live rows of all workers by uid, without those whose user is not known."""
        found: dict[int, int] = {}
        for index in self._in_state(ROW_LIVE):
            start = self._segment.layout.client(index) + layout.CLIENT_USER_OFFSET
            user = load_acquire_u64(self._segment.view, start)
            if user:
                found[user - 1] = found.get(user - 1, 0) + 1
        return found

    def has_rows(self, slot: int) -> bool:
        """Whether a live client row belongs to the slot."""
        for index in range(self.capacity):
            word = load_acquire_u64(self._words, 8 * index)
            if word & 0xFF == ROW_LIVE and word >> 8 & 0xFF == slot:
                return True
        return False

    def release_half_taken(self, slot: int) -> None:
        """Free the rows that the slot's dead owner had taken and not finished. No client knows of them."""
        for index in range(self.capacity):
            word = load_acquire_u64(self._words, 8 * index)
            if word & 0xFF == ROW_TAKING and word >> 8 & 0xFF == slot:
                self.release_row(index, word >> 32)

    def rows(self, slot: int | None = None) -> Iterator[ClientRow]:
        """Live rows, of one slot or of all."""
        for index in range(self.capacity):
            word = load_acquire_u64(self._words, 8 * index)
            if word & 0xFF == ROW_LIVE and (slot is None or word >> 8 & 0xFF == slot):
                yield self._row(index, word >> 32)

    def release_row(self, index: int, generation: int) -> None:
        """Free a row of this generation. Does nothing for another generation."""
        word = load_acquire_u64(self._words, 8 * index)
        if word & 0xFF != ROW_FREE and word >> 32 == generation:
            compare_and_swap_u64(self._words, 8 * index, word, _word(generation, 0, ROW_FREE))

    def release_slot(self, slot: int) -> int:
        """Free every row of a dead worker's slot, including half-taken ones. Returns their number."""
        freed = 0
        for index in range(self.capacity):
            word = load_acquire_u64(self._words, 8 * index)
            if word & 0xFF != ROW_FREE and word >> 8 & 0xFF == slot:
                self.release_row(index, word >> 32)
                freed += 1
        return freed

    def _area(self, index: int) -> memoryview:
        position = self._segment.layout.client(index)
        return self._segment.view[position : position + layout.CLIENT_STRIDE]

    def _row(self, index: int, generation: int) -> ClientRow:
        return ClientRow(self, index, generation, self._area(index))
