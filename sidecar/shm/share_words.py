"""ShareWords: each worker's usage of the pool by topic, in words that all workers read (shares).

Each word has one writer, its worker. The words outlive the worker because its pages do: a dead worker's words count as
usage until its successor has adopted the slot and stores them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.kernel import fetch_add_u64, load_acquire_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.buffer_pool import DEAD_AFTER_MS

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment


class _Slot:
    """A copy of another worker's chain table, which finds the word of each topic."""

    __slots__ = ("_names_seen", "_number_words", "_numbers", "_offsets", "_topics", "area")

    def __init__(self, area: memoryview) -> None:
        self.area = area
        table = area[layout.CHAINS_OFFSET :][: layout.CHAINS_MAX * layout.CHAIN_ROW_BYTES].cast("Q")
        self._number_words = table[layout.CHAIN_NUMBER_OFFSET // 8 :: layout.CHAIN_ROW_BYTES // 8]
        self._names_seen = -1
        self._numbers = [-1] * layout.CHAINS_MAX
        self._topics = [""] * layout.CHAINS_MAX
        self._offsets: dict[str, list[int]] = {}

    def held_bytes(self, topic: str) -> int:
        names = load_acquire_u64(self.area, layout.CHAIN_NAMES_OFFSET)
        if names != self._names_seen:
            self._follow_names()
            self._names_seen = names
        return sum(load_acquire_u64(self.area, offset) for offset in self._offsets.get(topic, ()))

    def _follow_names(self) -> None:
        """Update the rows whose number has changed: they have another topic. All numbers are read at once, because
        names may change all the time.
        """
        numbers = self._number_words.tolist()
        for chain_id, (before, now) in enumerate(zip(self._numbers, numbers, strict=True)):
            if before != now:
                self._follow(chain_id)
        self._numbers = numbers

    def _follow(self, chain_id: int) -> None:
        row = layout.CHAINS_OFFSET + chain_id * layout.CHAIN_ROW_BYTES
        offset = row + layout.CHAIN_HELD_OFFSET
        before = self._topics[chain_id]
        if before:
            offsets = self._offsets[before]
            offsets.remove(offset)
            if not offsets:
                del self._offsets[before]
        used = load_acquire_u64(self.area, row + 8)
        name = bytes(self.area[row + layout.CHAIN_ROW.size :][: used >> 48])
        self._topics[chain_id] = topic = name.decode("utf-8", "replace")
        if topic:
            self._offsets.setdefault(topic, []).append(offset)


class ShareWords:
    """One worker's words, and its view of the others' words. Not thread-safe: belongs to the worker's loop."""

    def __init__(self, segment: Segment, slot: int) -> None:
        self._segment = segment
        self._slot = slot
        self._header = segment.header
        self._stalled_at = layout.SLOT_STALLED_OFFSET + 8 * slot
        table = 8 * layout.SLOT_COUNT
        self._stalled_words = segment.header[layout.SLOT_STALLED_OFFSET :][:table].cast("Q")
        self._taken_words = segment.header[layout.SLOT_TAKEN_OFFSET :][:table].cast("Q")
        self._prepared = 0
        self._area = segment.slot(slot).area
        self._others: list[tuple[int, _Slot]] = []

    # ---- what is ours

    def store_topic(self, chain_id: int, held_bytes: int) -> None:
        store_release_u64(self._area, _held_at(chain_id), held_bytes)

    def store_stalled(self, held_bytes: int) -> None:
        store_release_u64(self._header, self._stalled_at, held_bytes)

    def store_staged(self, held_bytes: int) -> None:
        store_release_u64(self._area, layout.STAGED_BYTES_OFFSET, held_bytes)

    def claim(self, chain_id: int, needed_bytes: int, *, is_stalled: bool) -> None:
        """Add to this worker's usage before the others' words are read: if two claim at once, each sees the other."""
        fetch_add_u64(self._area, _held_at(chain_id), needed_bytes)
        if is_stalled:
            fetch_add_u64(self._header, self._stalled_at, needed_bytes)

    def store_waits(self, waits: bool) -> None:
        """Publish whether streams are held by a share here: a worker that gives much back wakes this one."""
        store_release_u64(self._area, layout.SHARE_WAITS_OFFSET, int(waits))

    def forget_topics(self) -> None:
        """Set all chains of the slot to zero, until :meth:`store_topic`."""
        for chain_id in range(layout.CHAINS_MAX):
            row = layout.CHAINS_OFFSET + chain_id * layout.CHAIN_ROW_BYTES
            if not load_acquire_u64(self._area, row + 8) & 0xFFFFFFFF:
                return
            self.store_topic(chain_id, 0)

    # ---- what is the others'

    def topic_elsewhere(self, topic: str) -> int:
        """Bytes of the topic in all other slots."""
        return sum(slot.held_bytes(topic) for _, slot in self._other_slots())

    def stalled_elsewhere(self, now_ms: float) -> int:
        """Bytes of stalled topics in all other slots; for a worker without a heartbeat, all its pages."""
        words = self._stalled_words.tolist()
        stalled = 0
        for slot, _ in self._other_slots():
            held = words[slot]
            if now_ms - self._segment.slot(slot).heartbeat / 1e6 > DEAD_AFTER_MS:
                held = max(held, self._taken_words[slot] * self._segment.page_bytes)
            stalled += held
        return stalled

    def staged_elsewhere(self) -> int:
        """Bytes of stages in all other slots."""
        return sum(load_acquire_u64(slot.area, layout.STAGED_BYTES_OFFSET) for _, slot in self._other_slots())

    def others_wait(self) -> bool:
        return any(load_acquire_u64(slot.area, layout.SHARE_WAITS_OFFSET) for _, slot in self._other_slots())

    def _other_slots(self) -> list[tuple[int, _Slot]]:
        prepared = load_acquire_u64(self._header, layout.PREPARED_SLOTS_OFFSET)
        if prepared != self._prepared:
            self._prepared = prepared
            known = dict(self._others)
            self._others = [
                (slot, known.get(slot) or _Slot(self._segment.slot(slot).area))
                for slot in self._segment.prepared_slots()
                if slot != self._slot
            ]
        return self._others


def _held_at(chain_id: int) -> int:
    return layout.CHAINS_OFFSET + chain_id * layout.CHAIN_ROW_BYTES + layout.CHAIN_HELD_OFFSET
