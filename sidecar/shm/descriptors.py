"""DescriptorTable: records which journal records were sent under which identity.

A descriptor is published before its first byte is sent, and its content never changes. Its state is one 8-byte word,
stored after all fields that it makes valid.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from client_stub.contract.wire import Persistence
from sidecar.common.state_table import steps_of
from sidecar.kernel import load_acquire_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.descriptor_states import TRANSITIONS, DescriptorEvent, DescriptorState

if TYPE_CHECKING:
    from sidecar.kernel import BatchRecords, Chain
    from sidecar.shm.segment import Segment


_CONTENT: Final = struct.Struct("<IHHIIQIIQqii")
_CONTENT_OFFSET: Final = 8
_PUBLISHED: Final = struct.Struct("<IHHIIQIIQqii qqiI QQQQ")
"""Layout of a whole descriptor: content, empty result, serial and counters."""
_RESULT: Final = struct.Struct("<qqiI")
_U32: Final = struct.Struct("<I")
_RESULT_OFFSET: Final = 64
_PERSISTENCE_OFFSET: Final = 84
_SERIAL_OFFSET: Final = 88
_COUNTED_OFFSET: Final = 104
_DEAD_COUNTED_OFFSET: Final = 112
_WORDS: Final = layout.DESCRIPTOR_BYTES // 8
_PUBLISH: Final = steps_of(TRANSITIONS, DescriptorEvent.PUBLISH)
_PUBLISH_HALF: Final = steps_of(TRANSITIONS, DescriptorEvent.PUBLISH_HALF)
_STORE: Final = steps_of(TRANSITIONS, DescriptorEvent.STORE)
_STEPS: Final = {event: steps_of(TRANSITIONS, event) for event in DescriptorEvent}
_FREE: Final = DescriptorEvent.FREE
WHOLE_IN_DOUBT: Final = 1
"""Bit of a published batch's persistence: the batch is half of one that may be in the log as a whole."""
WAS_IN_DOUBT: Final = 2
"""Bit of a published batch's persistence: an attempt under an earlier number may be in the log."""
WITHDRAWN: Final = 4
"""Bit of a free descriptor's persistence: its batch was in doubt when it lost its number (:meth:`withdraw`)."""
assert _CONTENT_OFFSET + _CONTENT.size == _RESULT_OFFSET
assert _RESULT_OFFSET + _RESULT.size == _PERSISTENCE_OFFSET + 4 == _SERIAL_OFFSET
assert _CONTENT_OFFSET + _PUBLISHED.size == _DEAD_COUNTED_OFFSET + 8


class SentBatch(Protocol):
    """A batch as the table sees it: records with an identity."""

    descriptor: int
    """Index in the table; negative: it has none."""
    chain: Chain | None
    lane: int
    partition: int
    records: BatchRecords
    producer_id: int
    epoch: int
    base_sequence: int

    @property
    def doubtful_parent(self) -> object:
        """Not None: the records are half of a batch that may be in the log as a whole."""

    @property
    def was_in_doubt(self) -> bool:
        """Whether the records may be in the log under an earlier number."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A copy of one descriptor. Cursors are (entry ordinal, record index), both ends included."""

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
    """Persistence of a failure. While SENT_UNDER: WHOLE_IN_DOUBT and WAS_IN_DOUBT. While FREE: WITHDRAWN."""
    serial: int
    published_ms: int
    """Wall-clock ms of the publication, 0 if not known."""
    parent: int
    """Index of the descriptor of which a PENDING one is a half."""
    counted: int
    """The slot's counter with this batch included: of delivered records (SETTLED, code 0) or failed ones
    (COMPLETED).
    """
    dead_counted: int
    """The slot's counter of dead lettered records with this batch included (COMPLETED, with a code)."""


class DescriptorTable:
    """A slot's descriptors. Written by the slot's owner only; not thread-safe."""

    def __init__(self, segment: Segment, slot: int) -> None:
        start = layout.DESCRIPTORS_OFFSET
        size = layout.DESCRIPTORS_MAX * layout.DESCRIPTOR_BYTES
        self._table = segment.slot(slot).area[start : start + size]
        # The table is read as plain words only while no other process writes: its owner is this process or dead.
        self._words = self._table.cast("Q")
        self._states = self._words[::_WORDS]
        self.free_indexes = [i for i, state in enumerate(self._states.tolist()) if not state]
        self.free_indexes.reverse()
        # Free ones are included, because a serial is never given twice.
        serials = self._words[_SERIAL_OFFSET // 8 :: _WORDS]
        self._serial = max(serials.tolist())
        self.serial: Callable[[int], int] = serials.__getitem__
        """Index → serial of its publication, which no other descriptor of the slot ever has."""

    def __iter__(self) -> Iterator[Descriptor]:
        """Iterate over the descriptors that are not free."""
        for index, state in enumerate(self._states.tolist()):
            if state:
                yield self.read(index)

    @property
    def free_count(self) -> int:
        return len(self.free_indexes)

    @property
    def capacity(self) -> int:
        return layout.DESCRIPTORS_MAX

    def state(self, index: int) -> DescriptorState:
        return DescriptorState(load_acquire_u64(self._table, index * layout.DESCRIPTOR_BYTES))

    def publish(self, batches: Sequence[SentBatch], published_ms: int, pending_on: int | None = None) -> bool:
        """Publish fact 2 for each batch that has no descriptor: from now on its records are sent under this identity
        and no other. A retry keeps its own: same range, same identity.

        False if there are not enough descriptors; then none is taken. A batch that held one while it waits would keep
        it from all others. ``pending_on``: the descriptors become valid only when that one is switched (see
        :meth:`switch`).
        """
        missing = 0
        for batch in batches:
            missing += batch.descriptor < 0
        if missing > len(self.free_indexes):
            return False
        steps = _PUBLISH if pending_on is None else _PUBLISH_HALF
        for batch in batches:
            if batch.descriptor >= 0:
                continue
            index = self.free_indexes.pop()
            follows = steps.get(self._words[index * _WORDS])
            assert follows is not None, self._cannot(index, DescriptorEvent.PUBLISH)
            assert batch.chain is not None
            records = batch.records
            first, first_index = records.first_cursor
            last, last_index = records.last_cursor
            self._serial += 1
            doubt = 0 if batch.doubtful_parent is None else WHOLE_IN_DOUBT
            if batch.was_in_doubt:
                doubt |= WAS_IN_DOUBT
            position = index * layout.DESCRIPTOR_BYTES
            _PUBLISHED.pack_into(
                self._table,
                position + _CONTENT_OFFSET,
                batch.chain.chain_id,
                batch.lane,
                0 if pending_on is None else pending_on + 1,
                batch.partition,
                records.count,
                first,
                first_index,
                last_index,
                last,
                batch.producer_id,
                batch.epoch,
                batch.base_sequence,
                *(-1, -1, 0, doubt),
                *(self._serial, published_ms, 0, 0),
            )
            # kill point: publish.content
            store_release_u64(self._table, position, follows)
            # kill point: split.pending if pending_on is not None
            # kill point: publish.state if pending_on is None
            batch.descriptor = index
        return True

    def switch(self, parent: int, children: Sequence[int]) -> None:
        """Replace a refused batch by its halves, which were published as pending on it, with one store; then
        free it.
        """
        self.step(DescriptorEvent.SWITCH, parent)
        self.step(DescriptorEvent.RAISE, *children)
        self.step(DescriptorEvent.FREE, parent)

    def withdraw(self, index: int) -> None:
        """Free the descriptor of a batch that was in doubt and loses its number. A note of that stays with its range,
        for a successor, until the descriptor is used again; those that have no note are used first.
        """
        position = index * layout.DESCRIPTOR_BYTES + _PERSISTENCE_OFFSET
        (persistence,) = _U32.unpack_from(self._table, position)
        _U32.pack_into(self._table, position, persistence | WITHDRAWN)
        self.step(DescriptorEvent.FREE, index)
        self.free_indexes.insert(0, self.free_indexes.pop())

    def withdrawn(self) -> list[Descriptor]:
        """Copies of the free descriptors that still have the note of :meth:`withdraw`."""
        notes = self._words[_PERSISTENCE_OFFSET // 8 :: _WORDS].tolist()  # code and persistence in one word
        return [self.read(index) for index in self.free_indexes if notes[index] >> 32 & WITHDRAWN]

    def finish_splits(self) -> None:
        """Finish a dead owner's splits: halves of a switched parent become valid, other halves are freed. Can be
        repeated.
        """
        found = list(self)
        switched = {each.index for each in found if each.state == DescriptorState.SPLIT}
        for each in found:
            if each.state == DescriptorState.PENDING:
                is_valid = each.parent in switched
                self.step(DescriptorEvent.RAISE if is_valid else DescriptorEvent.FREE, each.index)
        self.step(DescriptorEvent.FREE, *switched)

    def store_outcome(
        self,
        index: int,
        code: int,
        base_offset: int,
        append_time_ms: int,
        persistence: int = Persistence.PERSISTED,
        counted: int = 0,
    ) -> None:
        """Store fact 3: code, base offset (-1: unknown) and append time become valid together.

        ``counted`` is the slot's counter of delivered records with this batch included. From it an adopter knows
        whether the owner of a stored outcome had counted it. A failure is counted when it is released.
        """
        position = index * layout.DESCRIPTOR_BYTES
        follows = _STORE.get(self._words[index * _WORDS])
        assert follows is not None, self._cannot(index, DescriptorEvent.STORE)
        _RESULT.pack_into(
            self._table, position + _RESULT_OFFSET, base_offset, append_time_ms, code, persistence
        )
        self._words[index * _WORDS + _COUNTED_OFFSET // 8] = counted
        # kill point: done.content
        store_release_u64(self._table, position, follows)
        # kill point: done.state

    def release_failed(self, index: int, failed_counted: int, dead_counted: int) -> None:
        """Release a failed batch: all its outcomes are acknowledged, or its records are dead letters. Can be repeated.

        The arguments are the slot's counters with the batch included; they become valid with the state.
        """
        if self._words[index * _WORDS] == DescriptorState.STORED:
            position = index * layout.DESCRIPTOR_BYTES
            struct.pack_into("<QQ", self._table, position + _COUNTED_OFFSET, failed_counted, dead_counted)
        self.step(DescriptorEvent.RELEASE, index)

    def step(self, event: DescriptorEvent, *indexes: int) -> None:
        """Store the next state of each descriptor. The steps with content have methods of their own.

        - RELEASE: every outcome is in its client's outcome ring, or acknowledged if it is a failure. Can be repeated.
        - FREE: it is released with its words done, or its batch is renumbered or was split.
        - SWITCH, RAISE: see :meth:`switch`.
        """
        steps, words = _STEPS[event], self._words
        for index in indexes:
            state = words[index * _WORDS]
            follows = steps.get(state)
            assert follows is not None, self._cannot(index, event)
            if follows != state:
                store_release_u64(self._table, index * layout.DESCRIPTOR_BYTES, follows)
                # kill point: released.state if event is DescriptorEvent.RELEASE
                # kill point: free.state if event is DescriptorEvent.FREE
                # kill point: split.switched if event is DescriptorEvent.SWITCH
                # kill point: split.raised if event is DescriptorEvent.RAISE
        if event is _FREE:
            self.free_indexes += indexes

    def read(self, index: int) -> Descriptor:
        """All fields of one descriptor. Those that its state does not define yet are of its earlier use."""
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

    def _cannot(self, index: int, event: DescriptorEvent) -> str:
        """Text of the assertion for an event that the state does not have."""
        return f"descriptor {index} is {self.state(index).name}, which has no {event.name}"
