"""Lane records: what a slot remembers of its transactional ids."""

from __future__ import annotations

import pytest

from client_stub.contract.wire import TRANSACTIONAL_ID_BYTES_MAX
from sidecar.shm import lane_records, layout
from sidecar.shm.lane_records import LaneRecords, LaneRow
from sidecar.shm.reclaim import reclaim_slot
from sidecar.shm.recovery import has_content
from sidecar.shm.segment import Segment


@pytest.fixture
def records(segment: Segment) -> LaneRecords:
    segment.prepare_slot(0)
    return LaneRecords(segment, 0)


def test_a_row_is_found_until_it_is_given_back(segment: Segment, records: LaneRecords) -> None:
    records.open(7, "billing", b"begun")
    records.store(7, b"ending")
    assert list(LaneRecords(segment, 0)) == [LaneRow(7, "billing", b"ending")]
    records.free(7)
    assert not list(records)
    records.open(7, "b", b"")
    assert list(records) == [LaneRow(7, "b", b"")], "nothing of the row's earlier use is left"


def test_all_rows_with_the_longest_id_and_content(records: LaneRecords) -> None:
    wanted = []
    for row in range(layout.LANES_MAX):
        name = f"{row:03}" + "ü" * ((TRANSACTIONAL_ID_BYTES_MAX - 4) // 2) + "."
        assert len(name.encode()) == TRANSACTIONAL_ID_BYTES_MAX
        records.open(row, name, b"")
        content = bytes([row]) * layout.LANE_CONTENT_BYTES
        records.store(row, content)
        wanted.append(LaneRow(row, name, content))
    assert list(records) == wanted
    for row in range(layout.LANES_MAX):
        records.store(row, b"%d" % row)
    assert [each.content for each in records] == [b"%d" % row for row in range(layout.LANES_MAX)]


def test_one_byte_more_is_refused(records: LaneRecords) -> None:
    records.open(0, "t", b"")
    with pytest.raises(AssertionError):
        records.store(0, bytes(layout.LANE_CONTENT_BYTES + 1))
    with pytest.raises(AssertionError):
        records.open(1, "t" * (TRANSACTIONAL_ID_BYTES_MAX + 1), b"")


def test_before_its_word_is_stored_a_content_is_not_there(
    segment: Segment, records: LaneRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step: a worker that dies before a store leaves the content before."""
    records.open(3, "t", b"first")
    with monkeypatch.context() as patch:
        patch.setattr(lane_records, "store_release_u64", lambda *_: None)
        records.store(3, b"second")
        records.free(3)
        records.open(4, "other", b"")
    assert list(LaneRecords(segment, 0)) == [LaneRow(3, "t", b"first")]
    records.store(3, b"second")
    assert list(records) == [LaneRow(3, "t", b"second")]


def test_rows_of_earlier_versions_are_no_lanes(segment: Segment, records: LaneRecords) -> None:
    """They wrote a row of 16 bytes for each partition there."""
    area = segment.slot(0).area
    size = layout.SLOT_STRIDE - layout.LANES_OFFSET
    area[layout.LANES_OFFSET :] = b"\1" * size
    assert not list(records) and not has_content(segment, 0)
    records.open(0, "t", b"c")
    assert list(records) == [LaneRow(0, "t", b"c")]


def test_a_slot_with_a_lane_is_in_use_until_it_is_reclaimed(segment: Segment, records: LaneRecords) -> None:
    assert not has_content(segment, 0)
    records.open(255, "t", b"c")
    assert has_content(segment, 0)
    reclaim_slot(segment, 0)
    assert not has_content(segment, 0) and not list(records)
    records.open(1, "t", b"c")
    assert list(records) == [LaneRow(1, "t", b"c")]
