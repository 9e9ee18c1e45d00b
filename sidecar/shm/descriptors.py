"""DescriptorTable: records which journal records were sent under which identity.

A descriptor is published before its first byte is sent, and its content never changes. Its state is one 8-byte word,
stored after all fields that it makes valid.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from client_stub.wire import Persistence
from sidecar.kernel import load_acquire_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.descriptor_states import DescriptorEvent, DescriptorState, steps_of

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment


_CONTENT: Final = struct.Struct("<IHHIIQIIQqii")
_CONTENT_OFFSET: Final = 8
_PUBLISHED: Final = struct.Struct("<IHHIIQIIQqii qqiI QQQQ")
"""Layout of a whole descriptor: content, empty result, serial and counters."""
_RESULT: Final = struct.Struct("<qqiI")
_RESULT_OFFSET: Final = 64
_SERIAL_OFFSET: Final = 88
_COUNTED_OFFSET: Final = 104
_DEAD_COUNTED_OFFSET: Final = 112
_WORDS: Final = layout.DESCRIPTOR_BYTES // 8
_PUBLISH: Final = steps_of(DescriptorEvent.PUBLISH)
_PUBLISH_HALF: Final = steps_of(DescriptorEvent.PUBLISH_HALF)
_SWITCH: Final = steps_of(DescriptorEvent.SWITCH)
_RAISE: Final = steps_of(DescriptorEvent.RAISE)
_SETTLE: Final = steps_of(DescriptorEvent.SETTLE)
_COMPLETE: Final = steps_of(DescriptorEvent.COMPLETE)
_FREE: Final = steps_of(DescriptorEvent.FREE)
assert _CONTENT_OFFSET + _CONTENT.size == _RESULT_OFFSET
assert _RESULT_OFFSET + _RESULT.size == _SERIAL_OFFSET
assert _CONTENT_OFFSET + _PUBLISHED.size == _DEAD_COUNTED_OFFSET + 8


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
    """Persistence of a failure. While SENT_UNDER: POSSIBLY_PERSISTED for half of a batch that may be in the log as a
    whole.
    """
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
        whole_in_doubt: bool = False,
    ) -> None:
        """Publish fact 2: from now on these records are sent under this identity and no other.

        ``pending_on``: the descriptor becomes valid only when that one is switched (see :meth:`switch`).
        ``whole_in_doubt``: the records are half of a batch that may be in the log as a whole.
        """
        position = index * layout.DESCRIPTOR_BYTES
        follows = (_PUBLISH if pending_on is None else _PUBLISH_HALF).get(self._words[index * _WORDS])
        assert follows is not None, self._cannot(index, DescriptorEvent.PUBLISH)
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
            *(-1, -1, 0, Persistence.POSSIBLY_PERSISTED if whole_in_doubt else Persistence.NOT_PERSISTED),
            *(self._serial, published_ms, 0, 0),
        )
        # kill point: publish.content
        store_release_u64(self._table, position, follows)
        # kill point: split.pending if pending_on is not None
        # kill point: publish.state if pending_on is None

    def switch(self, parent: int, children: Sequence[int]) -> None:
        """Replace a refused batch by its halves, which were published as pending on it, with one store; then
        free it.
        """
        self._step(parent, _SWITCH, DescriptorEvent.SWITCH)
        # kill point: split.switched
        for child in children:
            self._step(child, _RAISE, DescriptorEvent.RAISE)
            # kill point: split.raised
        self.free(parent)

    def finish_splits(self) -> None:
        """Finish a dead owner's splits: halves of a switched parent become valid, other halves are freed. Can be
        repeated.
        """
        found = list(self)
        switched = {each.index for each in found if each.state == DescriptorState.SPLIT}
        for each in found:
            if each.state == DescriptorState.PENDING and each.parent in switched:
                self._step(each.index, _RAISE, DescriptorEvent.RAISE)
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
        """Store fact 3: code, base offset (-1: unknown) and append time become valid together.

        ``counted`` is the slot's counter of delivered records with this batch included. From it an adopter knows
        whether the owner of a settled batch had counted it. A failure is counted when it is complete.
        """
        position = index * layout.DESCRIPTOR_BYTES
        follows = _SETTLE.get(self._words[index * _WORDS])
        assert follows is not None, self._cannot(index, DescriptorEvent.SETTLE)
        _RESULT.pack_into(
            self._table, position + _RESULT_OFFSET, base_offset, append_time_ms, code, persistence
        )
        self._words[index * _WORDS + _COUNTED_OFFSET // 8] = counted
        # kill point: done.content
        store_release_u64(self._table, position, follows)
        # kill point: done.state

    def complete(self, *indexes: int, failed_counted: int = 0, dead_counted: int = 0) -> None:
        """Mark descriptors as complete: every outcome is in its client's outcome ring, or acknowledged if it is a
        failure. Can be repeated.

        For a failed batch, the arguments are the slot's counters with the batch included.
        """
        for index in indexes:
            position = index * layout.DESCRIPTOR_BYTES
            state = self._words[index * _WORDS]
            follows = _COMPLETE.get(state)
            assert follows is not None, self._cannot(index, DescriptorEvent.COMPLETE)
            if follows != state:
                if failed_counted or dead_counted:
                    counted = failed_counted, dead_counted
                    struct.pack_into("<QQ", self._table, position + _COUNTED_OFFSET, *counted)
                store_release_u64(self._table, position, follows)
                # kill point: completed.state

    def free(self, *indexes: int) -> None:
        """Free descriptors: they are complete with their words done, or their batch is renumbered or was split."""
        for index in indexes:
            follows = _FREE.get(self._words[index * _WORDS])
            assert follows is not None, self._cannot(index, DescriptorEvent.FREE)
            store_release_u64(self._table, index * layout.DESCRIPTOR_BYTES, follows)
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

    def _step(self, index: int, steps: Mapping[int, DescriptorState], event: DescriptorEvent) -> None:
        follows = steps.get(self._words[index * _WORDS])
        assert follows is not None, self._cannot(index, event)
        store_release_u64(self._table, index * layout.DESCRIPTOR_BYTES, follows)

    def _cannot(self, index: int, event: DescriptorEvent) -> str:
        """Text of the assertion for an event that the state does not have."""
        return f"descriptor {index} is {self.state(index).name}, which has no {event.name}"
