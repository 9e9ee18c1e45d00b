"""Client rows: places for streams, and the ring of outcomes that waits for a stub to come back."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_stub.contract.wire import Outcome, pack_outcome
from sidecar.kernel import store_release_u64
from sidecar.shm import client_table, layout
from sidecar.shm.client_table import ClientRow, ClientTable
from sidecar.shm.segment import Segment
from tests.outcomes import unpack_outcomes
from tests.reading_back import row_of, stream_position

ID, SECRET = b"c" * 20, b"s" * 16


def outcome(number: int, index_bytes: int = 0) -> bytes:
    return pack_outcome(Outcome(1, 2, 0, number, 1, 0, 5, 0, 0, 1, 9, -1, b"i" * index_bytes, ""))


@pytest.fixture
def row(segment: Segment) -> ClientRow:
    taken = ClientTable(segment).take_row(ID, "billing", 42, 3, SECRET)
    assert taken is not None
    return taken


def test_a_row_is_found_again(segment: Segment, row: ClientRow) -> None:
    found = row_of(ClientTable(segment), ID)
    assert found is not None
    assert (found.index, found.generation, found.secret, found.name, found.pid) == (
        0,
        1,
        SECRET,
        "billing",
        42,
    )
    assert [each.index for each in ClientTable(segment).rows(3)] == [0]
    assert list(ClientTable(segment).rows(4)) == []
    assert row_of(ClientTable(segment), b"d" * 20) is None


def test_a_full_table_and_generations(segment: Segment, row: ClientRow) -> None:
    others = [ClientTable(segment).take_row(bytes([i]) * 20, "x" * 100, 1, 0, SECRET) for i in range(3)]
    assert all(others) and others[0] is not None and others[0].name == "x" * 62
    assert ClientTable(segment).take_row(b"z" * 20, "", 1, 0, SECRET) is None
    row.place_stream(1, 0)
    row.ring_append(outcome(1))
    row.release()
    row.release()
    fresh = ClientTable(segment).take_row(b"z" * 20, "", 1, 0, SECRET)
    assert fresh is not None
    assert (fresh.index, fresh.generation, fresh.next_number, stream_position(fresh, 1)) == (0, 2, 1, None)
    row.release()
    assert row_of(ClientTable(segment), b"z" * 20) is not None, (
        "a late release of the first owner changes nothing"
    )
    with pytest.raises(ValueError, match="20 bytes"):
        ClientTable(segment).take_row(b"short", "", 1, 0, SECRET)


def test_streams(segment: Segment, row: ClientRow) -> None:
    assert stream_position(row, 0) is None
    assert row.place_stream(0, 7) and row.place_stream(9, 8) and row.place_stream(0, 7)
    row.store_position(9, 1 << 40)
    found = row_of(ClientTable(segment), ID)
    assert found is not None
    assert list(found.streams()) == [(0, 7, 0), (9, 8, 1 << 40)]
    for stream in range(100, 100 + layout.STREAMS_MAX - 2):
        assert row.place_stream(stream, 1)
    assert not row.place_stream(999, 1)
    with pytest.raises(KeyError):
        row.store_position(999, 1)


def test_an_ended_stream_gives_its_place_to_another(segment: Segment, row: ClientRow) -> None:
    for stream in range(layout.STREAMS_MAX):
        assert row.place_stream(stream, stream % 7)
        row.store_position(stream, 1_000 + stream)
    for stream in (0, 100, layout.STREAMS_MAX - 1):  # the first, one in the middle, and the last
        row.end_stream(stream)
    with pytest.raises(KeyError):
        row.end_stream(100)
    expected = {
        stream: (stream % 7, 1_000 + stream)
        for stream in range(layout.STREAMS_MAX)
        if stream not in {0, 100, layout.STREAMS_MAX - 1}
    }
    for stream in (501, 502, 503):
        assert row.place_stream(stream, 9)
        expected[stream] = 9, 0
    assert not row.place_stream(504, 9)
    found = row_of(ClientTable(segment), ID)
    assert found is not None
    for each in (row, found):
        assert {stream: (chain, at) for stream, chain, at in each.streams()} == expected
    assert set(row.chain_ids) == {0, 1, 2, 3, 4, 5, 6, 9}


@pytest.mark.parametrize("ended", [1, 2, 3], ids=["the first", "one between", "the last"])
@pytest.mark.parametrize("stores", range(4))
def test_a_kill_after_each_store_of_an_end_leaves_the_other_streams(
    segment: Segment, row: ClientRow, monkeypatch: pytest.MonkeyPatch, ended: int, stores: int
) -> None:
    for stream in (1, 2, 3):
        row.place_stream(stream, stream)
        row.store_position(stream, 10 * stream)

    class Killed(Exception):
        pass

    left = iter(range(stores))

    def store(area: memoryview, position: int, value: int) -> None:
        if next(left, None) is None:
            raise Killed
        store_release_u64(area, position, value)

    with monkeypatch.context() as patch:
        patch.setattr(client_table, "store_release_u64", store)
        with contextlib.suppress(Killed):
            row.end_stream(ended)
    found = row_of(ClientTable(segment), ID)
    assert found is not None
    found.drop_repeat()
    positions = {stream: (chain, at) for stream, chain, at in found.streams()}
    others = {stream: (stream, 10 * stream) for stream in (1, 2, 3) if stream != ended}
    assert {stream: positions[stream] for stream in others} == others
    # The stub ends it once more if it is still there, and each place is used again.
    if ended in positions:
        found.end_stream(ended)
    for stream in range(10, 10 + layout.STREAMS_MAX - 2):
        assert found.place_stream(stream, 5)
    assert not found.place_stream(999, 5)
    read = row_of(ClientTable(segment), ID)
    assert read is not None
    assert dict.fromkeys(range(10, 10 + layout.STREAMS_MAX - 2), (5, 0)) | others == {
        stream: (chain, at) for stream, chain, at in read.streams()
    }


def test_outcomes_wait_until_they_are_acked(segment: Segment, row: ClientRow) -> None:
    assert row.ring_slice_from(1) is None
    for number in range(1, 6):
        assert row.next_number == number
        assert row.ring_append(outcome(number))
    first = row.ring_slice_from(2)
    assert first is not None and first[:2] == (2, 5)
    assert [each.number for each in unpack_outcomes(first[2])] == [2, 3, 4, 5]
    row.ring_ack(3)
    row.ring_ack(2)
    assert row.acked_number == 3
    found = row_of(ClientTable(segment), ID)
    assert found is not None
    assert (found.acked_number, found.next_number) == (3, 6)
    rest = found.ring_slice_from(1)
    assert rest is not None and rest[:2] == (4, 5)
    found.ring_ack(5)
    assert (found.ring_slice_from(1), found.next_number, found.ring_free_bytes) == (
        None,
        6,
        layout.RING_BYTES,
    )
    emptied = row_of(ClientTable(segment), ID)
    assert emptied is not None and emptied.next_number == 6, "numbers go on over an empty ring"


def test_an_ack_between_its_two_stores(segment: Segment, row: ClientRow) -> None:
    for number in range(1, 4):
        row.ring_append(outcome(number))
    read = bytes(row._area[layout.RING_READ_OFFSET : layout.RING_READ_OFFSET + 8])
    row.ring_ack(2)
    row._area[layout.RING_READ_OFFSET : layout.RING_READ_OFFSET + 8] = read
    found = row_of(ClientTable(segment), ID)
    assert found is not None
    rest = found.ring_slice_from(1)
    assert rest is not None and rest[:2] == (3, 3)
    assert found.next_number == 4


def test_a_wrong_outcome_is_not_appended_to_a_ring(row: ClientRow) -> None:
    with pytest.raises(ValueError, match="out of turn"):
        row.ring_append(outcome(2))
    with pytest.raises(ValueError, match="cut short"):
        row.ring_append(outcome(1)[:40])
    with pytest.raises(ValueError, match="claims"):
        row.ring_append(outcome(1, 50)[:80])
    with pytest.raises(ValueError, match="only 0 were written"):
        row.ring_ack(1)
    with pytest.raises(ValueError, match="do not fit into an outcome ring"):
        row.ring_append(bytes(layout.RING_BYTES + 8))
    assert (row.next_number, row.ring_free_bytes) == (1, layout.RING_BYTES)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 3)), max_size=80), st.randoms())
def test_a_ring_that_turns_around(steps: list[tuple[int, int]], rng: object) -> None:
    """A model ring of numbers and bytes; ours is re-read as after a crash every few steps."""
    area = memoryview(bytearray(layout.CLIENT_STRIDE))
    row = ClientRow(None, 0, 1, area)  # type: ignore[arg-type]
    model: list[tuple[int, bytes]] = []
    number = 1
    for i, (size, wanted) in enumerate(steps * 4):
        acks = wanted
        data = outcome(number, size)
        if row.ring_append(data):
            model.append((number, data))
            number += 1
        else:
            assert sum(len(each) for _, each in model) + len(data) > layout.RING_BYTES
            acks += len(model) // 2
        if acks and model:
            upto = model[min(acks, len(model)) - 1][0]
            row.ring_ack(upto)
            model = [each for each in model if each[0] > upto]
        if i % 7 == 0:
            row = ClientRow(None, 0, 1, area)  # type: ignore[arg-type]
        assert row.next_number == number
        found = row.ring_slice_from(0)
        assert (found[2] if found else b"") == b"".join(data for _, data in model)
