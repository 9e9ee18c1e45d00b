"""Records, alone and in rows: the packer writes msgpack's bytes, and refuses what is no record."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client_stub.contract.wire import (
    SUBMISSION_BYTES_MAX,
    SUBMISSION_RECORDS_MAX,
)
from client_stub.native.hot import RecordPacker, plain_pairs
from client_stub.records.packer import LARGE_BYTES, PLAIN_OVERHEAD_BYTES, packed_bound
from client_stub.records.record_fields import full_record
from tests.stub.records.packed_records import RECORDS_MAX, check_rows, core_of, packed_by_msgpack, records


@given(st.lists(records, max_size=8))
@example([full_record(None, None, [("h", None)] * 65_536, None, None)[0]])
def test_records_have_the_bytes_of_msgpack(some: list[Any]) -> None:
    packer = RecordPacker()
    for record in some:
        packer.pack(record)
    assert bytes(packer.view()) == packed_by_msgpack(some)
    check_rows(some, 0, 4 * SUBMISSION_BYTES_MAX)


@given(st.lists(records, min_size=1, max_size=RECORDS_MAX), st.data())
def test_rows_fill_the_room_and_no_more(some: list[Any], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(some) - 1))
    room = data.draw(st.integers(0, 4_000))
    check_rows(some, start, room)


def test_a_wrong_record_is_refused_and_leaves_no_bytes() -> None:
    packer = RecordPacker()
    packer.pack((b"k", b"v"))
    before = bytes(packer.view())
    bad: list[Any] = [
        [b"k", b"v"], (b"k",), (b"k", "v"), (5, b"v"), (b"k", b"v", "h", None, None),
        (b"k", b"v", [("h",)], None, None), (b"k", b"v", [(b"h", b"")], None, None),
        (b"k", b"v", [("h", "")], None, None), (b"k", b"v", None, "1", None),
    ]  # fmt: skip
    for record in bad:
        with pytest.raises(TypeError):
            packer.pack(record)
        assert bytes(packer.view()) == before
        core = core_of(1_000)
        assert core.append_rows([(b"a", b"b")], 0, None) == 1
        taken = core.free_bytes, core.count, bytes(core.packer.view())
        with pytest.raises(TypeError):
            core.append_rows([(b"a", b"b"), record], 0, None)
        assert (core.free_bytes, core.count, bytes(core.packer.view())) == taken
    with pytest.raises(OverflowError):
        packer.pack((b"k", b"v", None, None, -1))
    assert bytes(packer.view()) == before


def test_a_buffer_with_a_view_neither_moves_nor_empties() -> None:
    packer = RecordPacker()
    packer.pack((None, b"v"))
    view = packer.view()
    with pytest.raises(BufferError):
        packer.reset()
    with pytest.raises(BufferError):
        packer.pack((None, bytes(1 << 20)))
    assert bytes(view) == msgpack.packb([None, b"v"])
    view.release()
    packer.reset()
    assert len(packer) == 0 and bytes(packer.view()) == b""


@pytest.mark.parametrize(
    ("rows", "plain"),
    [
        ([(b"k", b"v"), (None, None)], True),
        ([], False),
        ([(b"k", b"v"), [b"k", b"v"]], False),
        ([(b"k", b"v", None)], False),
        ([(b"k", "v")], False),
        ([(bytearray(b"k"), b"v")], False),
    ],
)
def test_plain_pairs_are_found(rows: list[Any], plain: bool) -> None:
    assert plain_pairs(rows) == ([] if plain else None)


def test_plain_pairs_that_are_large_are_named() -> None:
    fits = bytes(LARGE_BYTES - PLAIN_OVERHEAD_BYTES)
    rows = [(None, fits), (b"k", fits), (None, None), (fits, b"v"), (fits, None)]
    assert plain_pairs(rows) == [1, 3]


@given(st.lists(records, max_size=40), st.integers(0, 4_000))
def test_plain_rows_are_taken_whole_or_not_at_all(some: list[Any], room: int) -> None:
    core, twin = core_of(room + 40), core_of(1 << 20)
    for each in (core, twin):
        assert each.append_rows([(b"k", b"v")], 0, None) == 1
    before = core.free_bytes, core.count, bytes(core.packer.view())
    added = core.append_plain(some, None)
    if added == -1:
        assert (core.free_bytes, core.count, bytes(core.packer.view())) == before
        is_plain = bool(some) and all(len(record) == 2 for record in some)
        assert not is_plain or sum(map(packed_bound, some)) > before[0]
    else:
        assert added == len(some) == twin.append_rows(some, 0, None)
        assert bytes(core.packer.view()) == bytes(twin.packer.view())
        assert core.count == twin.count and core.free_bytes >= 0


def test_plain_rows_share_a_submission_only_with_the_same_callback() -> None:
    empty, other = core_of(1_000), core_of(1_000)
    assert empty.append_plain([(b"k", b"v")], None) == -1  # a first record may have to wake the io thread
    other.append_rows([(b"k", b"v")], 0, print)
    assert other.append_plain([(b"k", b"v")], None) == -1


def test_rows_share_a_submission_only_with_the_same_callback() -> None:
    core = core_of(1_000)
    assert core.append_rows([(b"a", b"b")] * 3, 1, print) == 2
    assert core.append_rows([(b"a", b"b")], 0, None) == -1
    assert core.append_rows([(b"a", b"b")], 0, print) == 1
    core.append((b"c", None), 20, None, None)  # callbacks differ by record from here on
    assert core.append_rows([(b"a", b"b")], 0, print) == -1
    assert (core.count, core.callbacks) == (4, [print, print, print, None])


def test_no_room_holds_more_records_than_a_submission_may_have() -> None:
    core = core_of(SUBMISSION_BYTES_MAX)
    assert core.append_rows([(None, None)] * 70_000, 0, None) <= SUBMISSION_RECORDS_MAX
