"""DescriptorTable and LaneRows: under which identity which records were sent, and where each sequence stands.

A descriptor is published before its first byte goes out and never given other content. Its state is one 8-byte
word, stored after everything that it makes true.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from client_stub.wire import Persistence
from sidecar.kernel import load_acquire_u64, store_release_u64
from sidecar.shm import layout

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment


class DescriptorState(IntEnum):
    FREE = 0
    SENT_UNDER = 1
    """Published: its records may be on the wire (fact 2)."""
    SETTLED = 2
    """Code, base offset and append time are known (fact 3)."""
    TOLD = 3
    """Every client's outcome is in its ring: words may become done."""
    PENDING = 4
    """Half of a batch that is being split: it counts once its parent's state is SPLIT."""
    SPLIT = 5
    """Refused as too large; its halves, which have its sequences, stand in its place."""


_CONTENT: Final = struct.Struct("<IHHIIQIIQqii")
_CONTENT_OFFSET: Final = 8
_PUBLISHED: Final = struct.Struct("<IHHIIQIIQqii qqiI QQQQ")
"""All of it at once: content, no result, and what it is counted by."""
_RESULT: Final = struct.Struct("<qqiI")
_RESULT_OFFSET: Final = 64
_SERIAL_OFFSET: Final = 88
_COUNTED_OFFSET: Final = 104
_DEAD_COUNTED_OFFSET: Final = 112
_WORDS: Final = layout.DESCRIPTOR_BYTES // 8
assert _CONTENT_OFFSET + _CONTENT.size == _RESULT_OFFSET
assert _RESULT_OFFSET + _RESULT.size == _SERIAL_OFFSET
assert _CONTENT_OFFSET + _PUBLISHED.size == _DEAD_COUNTED_OFFSET + 8


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One descriptor as a reader sees it. Cursors are (entry ordinal, record index), both ends included."""

    index: int
    state: DescriptorState
    chain_id: int
    lane: int
    partition: int
    count: int
    first_cursor: tuple[int, int]
    last_cursor: tuple[int, int]
    producer_id: int
    epoch: int
    base_sequence: int
    base_offset: int
    append_time_ms: int
    code: int
    persistence: int
    serial: int
    published_ms: int
    """Wall clock of the publication, 0 where it is not known."""
    parent: int
    """Pending: the index of the descriptor it takes half of."""
    counted: int
    """What the slot's counter of delivered (code 0, settled) or failed records (told) is once this batch is in it."""
    dead_counted: int
    """Told, with a code: the same of dead lettered records."""


class DescriptorTable:
    """A slot's descriptors. Written by the slot's owner only; not thread-safe."""

    def __init__(self, segment: Segment, slot: int) -> None:
        start = layout.DESCRIPTORS_OFFSET
        size = layout.DESCRIPTORS_MAX * layout.DESCRIPTOR_BYTES
        self._table = segment.slot(slot).area[start : start + size]
        # Nobody writes while the table is read by words: its owner, or the next one after its death.
        self._words = self._table.cast("Q")
        self._states = self._words[::_WORDS]
        self.free_indexes = [i for i, state in enumerate(self._states.tolist()) if not state]
        self.free_indexes.reverse()
        # What a dead owner left in use is the next owner's to free.
        self._taken: set[int] = set(range(layout.DESCRIPTORS_MAX)) - set(self.free_indexes)
        # Also of free ones: a serial is never given twice.
        serials = self._words[_SERIAL_OFFSET // 8 :: _WORDS]
        self._serial = max(serials.tolist())

    def __iter__(self) -> Iterator[Descriptor]:
        """Every descriptor that is not free."""
        for index, state in enumerate(self._states.tolist()):
            if state:
                yield self.read(index)

    @property
    def free_count(self) -> int:
        """How many :meth:`take` would give."""
        return len(self.free_indexes)

    @property
    def capacity(self) -> int:
        return layout.DESCRIPTORS_MAX

    def state(self, index: int) -> DescriptorState:
        return DescriptorState(load_acquire_u64(self._table, index * layout.DESCRIPTOR_BYTES))

    def serial(self, index: int) -> int:
        """The number of its publication: one that no other descriptor of the slot ever had."""
        return self._words[index * _WORDS + _SERIAL_OFFSET // 8]

    def take(self) -> int | None:
        """A free descriptor's index, None when all are in use. Its state stays free until it is published."""
        if not self.free_indexes:
            return None
        index = self.free_indexes.pop()
        self._taken.add(index)
        return index

    def publish(
        self,
        index: int,
        *,
        chain_id: int,
        lane: int,
        partition: int,
        first_cursor: tuple[int, int],
        last_cursor: tuple[int, int],
        count: int,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        published_ms: int = 0,
        pending_on: int | None = None,
    ) -> None:
        """Fact 2: from here on these records go out under this identity and no other.

        ``pending_on``: not before the descriptor of that index is switched (see :meth:`switch`).
        """
        position = index * layout.DESCRIPTOR_BYTES
        assert self._words[index * _WORDS] == DescriptorState.FREE, self._is(index, DescriptorState.FREE)
        self._serial += 1
        _PUBLISHED.pack_into(
            self._table,
            position + _CONTENT_OFFSET,
            chain_id,
            lane,
            0 if pending_on is None else pending_on + 1,
            partition,
            count,
            first_cursor[0],
            first_cursor[1],
            last_cursor[1],
            last_cursor[0],
            producer_id,
            epoch,
            base_sequence,
            *(-1, -1, 0, 0),
            *(self._serial, published_ms, 0, 0),
        )
        # kill point: publish.content
        if pending_on is not None:
            store_release_u64(self._table, position, DescriptorState.PENDING)
            # kill point: split.pending
            return
        store_release_u64(self._table, position, DescriptorState.SENT_UNDER)
        # kill point: publish.state

    def switch(self, parent: int, children: Sequence[int]) -> None:
        """The halves of a refused batch, published pending on it, take its place by one store; it is free then."""
        store_release_u64(self._table, parent * layout.DESCRIPTOR_BYTES, DescriptorState.SPLIT)
        # kill point: split.switched
        for child in children:
            store_release_u64(self._table, child * layout.DESCRIPTOR_BYTES, DescriptorState.SENT_UNDER)
            # kill point: split.raised
        self.free(parent)

    def finish_splits(self) -> None:
        """What a dead owner left of splits: halves of a switched parent go live, of another one they go. Repeatable."""
        found = list(self)
        switched = {each.index for each in found if each.state == DescriptorState.SPLIT}
        for each in found:
            if each.state == DescriptorState.PENDING and each.parent in switched:
                position = each.index * layout.DESCRIPTOR_BYTES
                store_release_u64(self._table, position, DescriptorState.SENT_UNDER)
            elif each.state == DescriptorState.PENDING:
                self.free(each.index)
        for index in switched:
            self.free(index)

    def settle(
        self,
        index: int,
        code: int,
        base_offset: int,
        append_time_ms: int,
        persistence: int = Persistence.PERSISTED,
        counted: int = 0,
    ) -> None:
        """Fact 3: code, base offset (-1 unknown) and append time become true together.

        ``counted`` is what the slot's counter of delivered records is to be with this batch in it: who finds the
        batch settled knows whether its owner came to count it. A failure is counted when it was told.
        """
        position = index * layout.DESCRIPTOR_BYTES
        assert self._words[index * _WORDS] == DescriptorState.SENT_UNDER, self._is(
            index, DescriptorState.SENT_UNDER
        )
        _RESULT.pack_into(
            self._table, position + _RESULT_OFFSET, base_offset, append_time_ms, code, persistence
        )
        self._words[index * _WORDS + _COUNTED_OFFSET // 8] = counted
        # kill point: done.content
        store_release_u64(self._table, position, DescriptorState.SETTLED)
        # kill point: done.state

    def told(self, index: int, *, failed_counted: int = 0, dead_counted: int = 0) -> None:
        """Every outcome of it is in its client's ring, or acknowledged if it is a failure; repeatable.

        A failed batch brings what the slot's counters are to be with it in them.
        """
        position = index * layout.DESCRIPTOR_BYTES
        state = self._words[index * _WORDS]
        if state != DescriptorState.TOLD:
            assert state == DescriptorState.SETTLED, self._is(index, DescriptorState.SETTLED)
            if failed_counted or dead_counted:
                struct.pack_into("<QQ", self._table, position + _COUNTED_OFFSET, failed_counted, dead_counted)
            store_release_u64(self._table, position, DescriptorState.TOLD)
            # kill point: told.state

    def free(self, index: int) -> None:
        """Give it back: after told and words done, or when the batch is renumbered or was split."""
        assert index in self._taken, f"descriptor {index} is given back twice"
        self._taken.remove(index)
        store_release_u64(self._table, index * layout.DESCRIPTOR_BYTES, DescriptorState.FREE)
        # kill point: free.state
        self.free_indexes.append(index)

    def read(self, index: int) -> Descriptor:
        position = index * layout.DESCRIPTOR_BYTES
        state = self.state(index)
        (
            chain_id,
            lane,
            parent,
            partition,
            count,
            first,
            first_index,
            last_index,
            last,
            producer_id,
            epoch,
            base_sequence,
        ) = _CONTENT.unpack_from(self._table, position + _CONTENT_OFFSET)
        base_offset, append_time_ms, code, persistence = _RESULT.unpack_from(
            self._table, position + _RESULT_OFFSET
        )
        serial, published_ms, counted, dead_counted = struct.unpack_from(
            "<QQQQ", self._table, position + _SERIAL_OFFSET
        )
        return Descriptor(
            index=index,
            state=state,
            chain_id=chain_id,
            lane=lane,
            partition=partition,
            count=count,
            first_cursor=(first, first_index),
            last_cursor=(last, last_index),
            producer_id=producer_id,
            epoch=epoch,
            base_sequence=base_sequence,
            base_offset=base_offset,
            append_time_ms=append_time_ms,
            code=code,
            persistence=persistence,
            serial=serial,
            published_ms=published_ms,
            parent=parent - 1,
            counted=counted,
            dead_counted=dead_counted,
        )

    def _is(self, index: int, wanted: DescriptorState) -> str:
        """For an assertion that found another state."""
        return f"descriptor {index} is {self.state(index).name}, not {wanted.name}"


_NO_CHAIN: Final = 0xFFFFFFFF
"""Where a lane row names its chain + 1: the row is free again."""


class LaneRows:
    """Per (chain, partition) one word {epoch, next sequence}, stored before the descriptor it comes from is freed.

    Written by the slot's owner only; not thread-safe. A table that is full takes no row for a partition that has
    none (counted in ``lane_rows_full_total``). Nothing is lost by that: an adopter goes on under a fresh producer id
    and asks the broker about what is in doubt; a row is what a person finds of a sequence without a broker.
    """

    def __init__(self, segment: Segment, slot: int) -> None:
        start = layout.LANE_ROWS_OFFSET
        view = segment.slot(slot)
        self._table = view.area[start : start + layout.LANE_ROWS_MAX * layout.LANE_ROW_BYTES]
        self._counters = view.counters
        self._places: dict[tuple[int, int], int] = {}
        self._vacant: list[int] = []
        self._end = 0
        for position in range(0, len(self._table), layout.LANE_ROW_BYTES):
            chain, partition = struct.unpack_from("<II", self._table, position)
            if not chain:
                break
            self._end = position + layout.LANE_ROW_BYTES
            if chain == _NO_CHAIN:
                self._vacant.append(position)
            else:
                self._places[chain - 1, partition] = position

    def __len__(self) -> int:
        return len(self._places)

    def store(self, chain: int, partition: int, epoch: int, next_sequence: int) -> None:
        """Publish where the sequence stands."""
        position = self._places.get((chain, partition))
        if position is None:
            if self._vacant:
                position = self._vacant.pop()
            elif self._end < len(self._table):
                position = self._end
                self._end += layout.LANE_ROW_BYTES
            else:
                self._counters.inc("lane_rows_full_total")
                return
            struct.pack_into("<Q", self._table, position + 8, 0)
            store_release_u64(self._table, position, (chain + 1) | partition << 32)
            self._places[chain, partition] = position
            # kill point: row.place
        store_release_u64(self._table, position + 8, (epoch & 0xFFFFFFFF) << 32 | next_sequence)
        # kill point: row.stored

    def vacate(self, chain: int) -> None:
        """The chain's number is about to get another name: rows of it would say something of another topic."""
        for key in [key for key in self._places if key[0] == chain]:
            position = self._places.pop(key)
            store_release_u64(self._table, position, _NO_CHAIN)
            self._vacant.append(position)
