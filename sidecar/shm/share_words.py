"""ShareWords: how much of the pool each worker's topics hold, in words that all workers read (shares).

One writer a word, its worker; the words outlive it, because its pages do: what a dead worker's words say is held
until its successor has adopted the slot and stores them anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.kernel import fetch_add_u64, load_acquire_u64, store_release_u64
from sidecar.shm import layout
from sidecar.shm.buffer_pool import DEAD_AFTER_MS

if TYPE_CHECKING:
    from sidecar.shm.segment import Segment


class _Slot:
    """The chain table of another worker as this one knows it: where the word of each topic is."""

    __slots__ = ("area", "names_seen", "places")

    def __init__(self, area: memoryview) -> None:
        self.area = area
        self.names_seen = -1
        self.places: dict[str, list[int]] = {}

    def held_bytes(self, topic: str) -> int:
        names = load_acquire_u64(self.area, layout.CHAIN_NAMES_OFFSET)
        if names != self.names_seen:
            self._read_names()
            self.names_seen = names
        return sum(load_acquire_u64(self.area, place) for place in self.places.get(topic, ()))

    def _read_names(self) -> None:
        self.places.clear()
        for chain_id in range(layout.CHAINS_MAX):
            row = layout.CHAINS_OFFSET + chain_id * layout.CHAIN_ROW_BYTES
            used = load_acquire_u64(self.area, row + 8)
            if not used & 0xFFFFFFFF:
                return
            name = row + layout.CHAIN_ROW.size
            topic = bytes(self.area[name : name + (used >> 48)]).decode("utf-8", "replace")
            self.places.setdefault(topic, []).append(row + layout.CHAIN_HELD_OFFSET)


class ShareWords:
    """One worker's words, and its view of the others'. Not thread-safe: the worker's loop."""

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

    def claim(self, chain_id: int, needed_bytes: int, *, is_stalled: bool) -> None:
        """So much more, stored before the others' words are read: of two who claim at once both see both."""
        fetch_add_u64(self._area, _held_at(chain_id), needed_bytes)
        if is_stalled:
            fetch_add_u64(self._header, self._stalled_at, needed_bytes)

    def store_waits(self, waits: bool) -> None:
        """Streams of ours are held by a share: who gives much back rings us."""
        store_release_u64(self._area, layout.SHARE_WAITS_OFFSET, int(waits))

    def forget_topics(self) -> None:
        """All chains of the slot hold nothing, until :meth:`store_topic` says otherwise."""
        for chain_id in range(layout.CHAINS_MAX):
            row = layout.CHAINS_OFFSET + chain_id * layout.CHAIN_ROW_BYTES
            if not load_acquire_u64(self._area, row + 8) & 0xFFFFFFFF:
                return
            self.store_topic(chain_id, 0)

    # ---- what is the others'

    def topic_elsewhere(self, topic: str) -> int:
        """Bytes that the topic holds in all other slots."""
        return sum(slot.held_bytes(topic) for _, slot in self._other_slots())

    def stalled_elsewhere(self, now_ms: float) -> int:
        """Bytes of topics that do not move, in all other slots; all pages of a worker that does not beat."""
        words = self._stalled_words.tolist()
        stalled = 0
        for slot, _ in self._other_slots():
            held = words[slot]
            if now_ms - self._segment.slot(slot).heartbeat / 1e6 > DEAD_AFTER_MS:
                held = max(held, self._taken_words[slot] * self._segment.page_bytes)
            stalled += held
        return stalled

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
