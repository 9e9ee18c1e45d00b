"""Records, alone and in rows: the compiled packer and its twin make the same bytes and refuse the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client_stub.contract.wire import (
    SUBMISSION_BYTES_MAX,
    SUBMISSION_RECORDS_MAX,
)
from client_stub.engine.producer_core import full_record
from client_stub.native import _native, pure
from client_stub.records.packer import LARGE_BYTES, PLAIN_OVERHEAD_BYTES, packed_bound
from tests.stub.records.packed_records import RECORDS_MAX, as_packed, core_of, records, rows_agree


@given(st.lists(records, max_size=8))
@example([full_record(None, None, [("h", None)] * 65_536, None, None)[0]])
def test_both_pack_the_same_bytes(some: list[Any]) -> None:
    packers = _native.RecordPacker(), pure.RecordPacker()
    for packer in packers:
        for record in some:
            packer.pack(record)
    assert bytes(packers[0].view()) == bytes(packers[1].view())
    rows_agree(some, 0, 4 * SUBMISSION_BYTES_MAX)
    unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
    unpacker.feed(bytes(packers[0].view()))
    told = [as_packed(record) for record in some]
    assert list(unpacker) == told


@given(st.lists(records, min_size=1, max_size=RECORDS_MAX), st.data())
def test_rows_fill_the_room_and_no_more(some: list[Any], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(some) - 1))
    room = data.draw(st.integers(0, 4_000))
    rows_agree(some, start, room)


def test_what_is_no_record_is_refused_and_leaves_no_bytes_behind() -> None:
    packer = _native.RecordPacker()
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
        core = core_of(_native, 1_000)
        assert core.append_rows([(b"a", b"b")], 0, None) == 1
        taken = core.room, core.count, bytes(core.packer.view())
        with pytest.raises(TypeError):
            core.append_rows([(b"a", b"b"), record], 0, None)
        assert (core.room, core.count, bytes(core.packer.view())) == taken
    with pytest.raises(OverflowError):
        packer.pack((b"k", b"v", None, None, -1))
    assert bytes(packer.view()) == before


def test_a_buffer_that_is_looked_at_neither_moves_nor_empties(path: ModuleType) -> None:
    packer = path.RecordPacker()
    packer.pack((None, b"v"))
    view = packer.view()
    with pytest.raises(BufferError):
        packer.reset()
    if path is _native:
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
def test_plain_pairs_are_told_from_others(path: ModuleType, rows: list[Any], plain: bool) -> None:
    assert path.plain_pairs(rows) == ([] if plain else None)


def test_plain_pairs_that_are_large_are_named(path: ModuleType) -> None:
    fits = bytes(LARGE_BYTES - PLAIN_OVERHEAD_BYTES)
    rows = [(None, fits), (b"k", fits), (None, None), (fits, b"v"), (fits, None)]
    assert path.plain_pairs(rows) == [1, 3]


@given(st.lists(records, max_size=40), st.integers(0, 4_000))
def test_plain_rows_are_taken_whole_or_not_at_all(some: list[Any], room: int) -> None:
    core, twin = core_of(_native, room + 40), core_of(_native, 1 << 20)
    for each in (core, twin):
        assert each.append_rows([(b"k", b"v")], 0, None) == 1
    before = core.room, core.count, bytes(core.packer.view())
    added = core.append_plain(some, None)
    if added == -1:
        assert (core.room, core.count, bytes(core.packer.view())) == before
        assert pure.plain_pairs(some) is None or sum(map(packed_bound, some)) > before[0]
    else:
        assert added == len(some) == twin.append_rows(some, 0, None)
        assert bytes(core.packer.view()) == bytes(twin.packer.view())
        assert core.count == twin.count and core.room >= 0


def test_plain_rows_join_only_what_gathers_for_the_same_callback() -> None:
    empty, other = core_of(_native, 1_000), core_of(_native, 1_000)
    assert empty.append_plain([(b"k", b"v")], None) == -1  # a first record may have to wake the io thread
    other.append_rows([(b"k", b"v")], 0, print)
    assert other.append_plain([(b"k", b"v")], None) == -1


@pytest.mark.parametrize("path", [_native, pure])
def test_rows_share_a_submission_only_with_the_same_callback(path: ModuleType) -> None:
    core = core_of(path, 1_000)
    assert core.append_rows([(b"a", b"b")] * 3, 1, print) == 2
    assert core.append_rows([(b"a", b"b")], 0, None) == -1
    assert core.append_rows([(b"a", b"b")], 0, print) == 1
    core.append((b"c", None), 20, None, None)  # callbacks differ by record from here on
    assert core.append_rows([(b"a", b"b")], 0, print) == -1
    assert (core.count, core.callbacks) == (4, [print, print, print, None])


@pytest.mark.parametrize("path", [_native, pure])
def test_no_room_holds_more_records_than_a_submission_may_have(path: ModuleType) -> None:
    core = core_of(path, SUBMISSION_BYTES_MAX)
    assert core.append_rows([(None, None)] * 70_000, 0, None) <= SUBMISSION_RECORDS_MAX
