"""ShareWords: how much of the pool each worker's topics hold, in words that all workers read (shares).

One writer a word, its worker; the words outlive it, because its pages do: a dead worker's words count as held
until its successor has adopted the slot and stores them again.
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

    __slots__ = ("_names_seen", "_number_words", "_numbers", "_places", "_topics", "area")

    def __init__(self, area: memoryview) -> None:
        self.area = area
        table = area[layout.CHAINS_OFFSET :][: layout.CHAINS_MAX * layout.CHAIN_ROW_BYTES].cast("Q")
        self._number_words = table[layout.CHAIN_NUMBER_OFFSET // 8 :: layout.CHAIN_ROW_BYTES // 8]
        self._names_seen = -1
        self._numbers = [-1] * layout.CHAINS_MAX
        self._topics = [""] * layout.CHAINS_MAX
        self._places: dict[str, list[int]] = {}

    def held_bytes(self, topic: str) -> int:
        names = load_acquire_u64(self.area, layout.CHAIN_NAMES_OFFSET)
        if names != self._names_seen:
            self._follow_names()
            self._names_seen = names
        return sum(load_acquire_u64(self.area, place) for place in self._places.get(topic, ()))

    def _follow_names(self) -> None:
        """Rows whose number is another have another topic. All numbers at once: somebody may rename all the time."""
        numbers = self._number_words.tolist()
        for chain_id, (before, now) in enumerate(zip(self._numbers, numbers, strict=True)):
            if before != now:
                self._follow(chain_id)
        self._numbers = numbers

    def _follow(self, chain_id: int) -> None:
        row = layout.CHAINS_OFFSET + chain_id * layout.CHAIN_ROW_BYTES
        place = row + layout.CHAIN_HELD_OFFSET
        before = self._topics[chain_id]
        if before:
            places = self._places[before]
            places.remove(place)
            if not places:
                del self._places[before]
        used = load_acquire_u64(self.area, row + 8)
        name = bytes(self.area[row + layout.CHAIN_ROW.size :][: used >> 48])
        self._topics[chain_id] = topic = name.decode("utf-8", "replace")
        if topic:
            self._places.setdefault(topic, []).append(place)


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
        """Streams of ours are held by a share: a worker that gives much back wakes us."""
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
