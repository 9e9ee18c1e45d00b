"""Goal: a HELLO finds its client's slot by reading the rows that changed, whoever changed them; counted, not timed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.shm.client_index import ClientIndex
from sidecar.shm.client_table import ClientRow, ClientTable
from sidecar.shm.segment import Segment

from .conftest import PAGE_BYTES, PAGES

ROWS = 96
"""More than one chunk of words."""


@pytest.fixture
def table(segment_path: Path) -> Iterator[ClientTable]:
    segment = Segment.create(
        segment_path,
        page_bytes=PAGE_BYTES,
        buffer_memory_bytes=PAGE_BYTES * PAGES,
        clients_max=ROWS,
        instance_id=b"test",
    )
    yield ClientTable(segment)
    segment.close()


def take(table: ClientTable, number: int, slot: int) -> ClientRow:
    row = table.take_row(id_of(number), f"client-{number}", 1, slot, b"s" * 16)
    assert row is not None
    return row


def id_of(number: int) -> bytes:
    return number.to_bytes(20)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that were read, in order."""
    read: list[int] = []
    plain = ClientIndex._look_at

    def counted(index: ClientIndex, row: int) -> None:
        read.append(row)
        plain(index, row)

    monkeypatch.setattr(ClientIndex, "_look_at", counted)
    return read


def test_each_row_is_read_once_however_many_ask(table: ClientTable, looks: list[int]) -> None:
    index = ClientIndex(table._segment)
    assert index.slot_of(id_of(0)) is None and not looks
    rows = [take(table, number, number % 3) for number in range(ROWS)]
    for _ in range(5):
        assert [index.slot_of(id_of(number)) for number in range(ROWS)] == [n % 3 for n in range(ROWS)]
        assert index.slot_of(b"a stranger" * 2) is None
    assert len(looks) == ROWS
    looks.clear()
    rows[70].release()
    take(table, 1_000, 2)
    assert (index.slot_of(id_of(1_000)), index.slot_of(id_of(70)), index.slot_of(id_of(71))) == (2, None, 2)
    assert looks == [70]


def test_rows_of_a_dead_worker_are_those_of_its_slot_until_they_are_given_back(
    table: ClientTable, looks: list[int]
) -> None:
    """An adopter takes the slot over, so no row moves; a row that it frees is free at the next HELLO."""
    index = ClientIndex(table._segment)
    for number in range(10):
        take(table, number, 4)
    assert index.slot_of(id_of(3)) == 4
    adopted = {row.client_id: row for row in ClientTable(table._segment).rows(4)}
    looks.clear()
    assert index.slot_of(id_of(3)) == 4 and not looks
    adopted[id_of(3)].release()
    assert index.slot_of(id_of(3)) is None and index.slot_of(id_of(4)) == 4
    assert table.release_slot(4) == 9
    assert index.slot_of(id_of(4)) is None
    take(table, 4, 7)
    assert index.slot_of(id_of(4)) == 7
    assert ClientIndex(table._segment).slot_of(id_of(4)) == 7, "also for a controller that comes later"


def test_a_row_that_is_being_taken_is_nobodys(table: ClientTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client changes while it is read: neither the old one nor the new one is found in it before the next look."""
    index = ClientIndex(table._segment)
    row = take(table, 1, 0)
    asked = 0

    def load(words: memoryview, position: int) -> int:
        nonlocal asked
        asked += 1
        if asked == 2:
            row.release()
            take(table, 2, 5)
        return int.from_bytes(words[position : position + 8], "little")

    monkeypatch.setattr("sidecar.shm.client_index.load_acquire_u64", load)
    assert index.slot_of(id_of(1)) is None
    assert index.slot_of(id_of(1)) is None and index.slot_of(id_of(2)) == 5


def test_it_keeps_nothing_of_a_segment_that_is_closed(segment_path: Path) -> None:
    """A view would keep the mapping and its lock, and the next daemon would find the segment in use."""
    segment = Segment.create(
        segment_path,
        page_bytes=PAGE_BYTES,
        buffer_memory_bytes=PAGE_BYTES * PAGES,
        clients_max=4,
        instance_id=b"t",
    )
    index = ClientIndex(segment)
    assert index.slot_of(id_of(1)) is None
    segment.close()
    assert segment._map.closed


def test_an_id_in_two_rows_is_found_as_long_as_there_is_one(table: ClientTable) -> None:
    index = ClientIndex(table._segment)
    first, second = take(table, 1, 2), take(table, 1, 3)
    assert index.slot_of(id_of(1)) == 2
    first.release()
    assert index.slot_of(id_of(1)) == 3
    second.release()
    assert index.slot_of(id_of(1)) is None


def test_any_history_is_answered_as_by_a_walk_through_the_table(table: ClientTable) -> None:
    chance = random.Random(7)
    index = ClientIndex(table._segment)
    held: dict[int, ClientRow] = {}
    for _ in range(600):
        number = chance.randrange(2 * ROWS)
        if number in held:
            held.pop(number).release()
        elif len(held) < ROWS:
            held[number] = take(table, number, chance.randrange(64))
        asked = id_of(chance.randrange(2 * ROWS))
        walked = [word for word in table.rows() if word.client_id == asked]
        assert (index.slot_of(asked) is None) == (not walked)
        for row in walked:
            assert row.index in {each.index for each in table.rows(index.slot_of(asked))}
