"""Goal: what was in work at a death is counted once a death, and known as poison after three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.shm import layout
from sidecar.shm.in_work import InWork, Suspects, batch_word, entry_word, name_of
from sidecar.shm.segment import Segment
from sidecar.shm.slots import SlotView


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[SlotView]:
    segment = Segment.create(
        tmp_path / "segment",
        page_bytes=16_384,
        buffer_memory_bytes=1 << 20,
        clients_max=16,
        instance_id=b"test",
    )
    segment.prepare_slot(0)
    slot = segment.slot(0)
    slot.claim(incarnation=1)
    yield slot
    segment.close()


def begin(work: InWork, word: int) -> None:
    """As the kernel's walks do."""
    work.loop_word[:] = word.to_bytes(8, "little")


def die_and_adopt(slot: SlotView) -> dict[int, int]:
    counted = Suspects(slot).count_deaths()
    slot.claim(incarnation=slot.incarnation + 1)
    return counted


def test_three_deaths_make_poison_whatever_was_between(slot: SlotView) -> None:
    bad, good = entry_word(3, 1 << 40), entry_word(3, 7)
    for deaths in (1, 2, 3):
        assert Suspects(slot).poison() == set()
        work = InWork(slot)
        begin(work, good)
        begin(work, bad)
        assert die_and_adopt(slot) == {bad: deaths}
        assert die_and_adopt(slot) == {}, "a death with nothing in work counts for nothing"
    assert Suspects(slot).poison() == {bad}
    Suspects(slot).forget(bad)
    assert Suspects(slot).poison() == set()


def test_finished_work_is_not_blamed(slot: SlotView) -> None:
    work = InWork(slot)
    begin(work, batch_word(9))
    work.words[0] = 0
    work.end_thread(work.begin_thread(batch_word(10)))
    assert die_and_adopt(slot) == {}


def test_a_counting_cut_short_counts_once(slot: SlotView) -> None:
    begin(InWork(slot), batch_word(9))
    slot_words = bytes(slot.area[layout.IN_WORK_OFFSET : layout.IN_WORK_OFFSET + 8])
    Suspects(slot).count_deaths()
    slot.area[layout.IN_WORK_OFFSET : layout.IN_WORK_OFFSET + 8] = (
        slot_words  # the adopter died before it cleared
    )
    assert Suspects(slot).count_deaths() == {batch_word(9): 1}


def test_a_death_that_its_controller_willed_is_nobodys(slot: SlotView) -> None:
    """Silence, stop, takeover: what was in work then did not kill its worker, however often it happens."""
    innocent = entry_word(3, 7)
    for _ in range(4):
        begin(InWork(slot), innocent)
        slot.spared = slot.incarnation
        assert die_and_adopt(slot) == {}
        assert InWork(slot).words.tolist() == [0] * layout.IN_WORK_WORDS
    begin(InWork(slot), innocent)
    slot.spared = slot.incarnation - 1  # one of before was ended; this one died by itself
    assert die_and_adopt(slot) == {innocent: 1}


def test_threads_have_their_own_words_and_more_than_there_are_go_unnoted(slot: SlotView) -> None:
    work = InWork(slot)
    begin(work, entry_word(1, 1))
    places = [work.begin_thread(batch_word(i + 1)) for i in range(layout.IN_WORK_WORDS)]
    assert places[-1] == 0
    counted = die_and_adopt(slot)
    assert len(counted) == layout.IN_WORK_WORDS
    assert set(counted.values()) == {1}


def test_the_table_keeps_the_worst(slot: SlotView) -> None:
    for _ in range(2):
        begin(InWork(slot), batch_word(1))
        die_and_adopt(slot)
    for serial in range(2, 2 + 2 * layout.SUSPECTS_MAX):
        begin(InWork(slot), batch_word(serial))
        die_and_adopt(slot)
    begin(InWork(slot), batch_word(1))
    assert die_and_adopt(slot) == {batch_word(1): 3}


def test_names_for_the_log() -> None:
    assert name_of(entry_word(1023, 12)) == "entry 12 of chain 1023"
    assert name_of(batch_word(5)) == "batch 5"
