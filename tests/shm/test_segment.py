"""The segment file: made whole or not at all, found again, refused when it is not what it says."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from sidecar.config.settings import BY_NAME
from sidecar.shm import layout
from sidecar.shm.client_table import ClientTable
from sidecar.shm.counters import COUNTER_ROWS, ROW_INDEX
from sidecar.shm.segment import Segment, SegmentError
from sidecar.shm.slots import STATE_LIVE, RunningTotals
from tests.shm.conftest import PAGE_BYTES, PAGES

CLIENTS = BY_NAME["daemon.clients_max"]
assert isinstance(CLIENTS.most, int) and isinstance(CLIENTS.least, int)


def test_a_second_process_sees_the_same(segment: Segment, segment_path: Path, slot: int) -> None:
    again = Segment.attach(segment_path)
    assert (again.page_bytes, again.page_count, ClientTable(again).capacity) == (PAGE_BYTES, PAGES, 4)
    assert again.instance_id == segment.instance_id == b"test".ljust(16, b"\0")
    assert len(again.boot_id) == 16
    assert again.prepared_slots() == [slot]
    view = again.slot(slot)
    assert (view.pid, view.incarnation, view.state) == (os.getpid(), 1, STATE_LIVE)
    assert view.start_time == segment.slot(slot).start_time > 0
    segment.slot(slot).store_heartbeat(77)
    assert view.heartbeat == 77
    again.close()


def test_an_inherited_fd_is_enough_and_stays_open(segment: Segment, segment_path: Path) -> None:
    fd = os.open(segment_path, os.O_RDWR)
    Segment.attach(fd).close()
    assert os.fstat(fd).st_size == segment.layout.total
    os.close(fd)


def test_a_slots_clock_stands_while_nobody_works_in_it(segment: Segment, slot: int) -> None:
    view = segment.slot(slot)
    view.store_heartbeat(0)
    second = 10**9
    ahead_ms = view.resume_clock(1_000 * second)
    assert 1_000_000 + ahead_ms == 0, "it begins with the first owner"
    view.store_heartbeat(1_060 * second)
    ahead_ms = view.resume_clock(5_000 * second)  # an hour later
    assert 5_000_000 + ahead_ms == 60_000
    view.store_heartbeat(5_010 * second)
    ahead_ms = view.resume_clock(7 * second)  # another boot, with another clock
    assert 7_000 + ahead_ms == 70_000


def test_a_slots_clock_loses_nothing_to_a_kill_while_it_is_set(segment: Segment, slot: int) -> None:
    view = segment.slot(slot)
    second = 10**9
    view.store_heartbeat(0)
    view.resume_clock(0)
    view.store_heartbeat(50 * second)
    before = bytes(view.area[:128])
    view.resume_clock(900 * second)
    at = (layout.SLOT_CLOCK_STOOD_OFFSET, layout.SLOT_CLOCK_OFFSET, layout.HEARTBEAT_OFFSET)
    stored = [struct.pack("<q", 50 * second), *(bytes(view.area[each : each + 8]) for each in at[1:])]
    for done in range(len(at) + 1):
        view.area[:128] = before
        for place, value in list(zip(at, stored, strict=True))[:done]:
            view.area[place : place + 8] = value
        assert 1_000_000 + view.resume_clock(1_000 * second) == 50_000, f"killed after {done} stores"


def mapped_kb(path: Path) -> int:
    """How much of the mappings of ``path`` is in this process's page tables."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_a_prefaulted_pool_is_mapped_and_takes_no_more_of_the_file(
    segment: Segment, segment_path: Path
) -> None:
    again = Segment.attach(segment_path)
    before, blocks = mapped_kb(segment_path), segment_path.stat().st_blocks
    again.prefault()
    assert mapped_kb(segment_path) - before >= (PAGE_BYTES * PAGES - 8192) // 1024
    assert segment_path.stat().st_blocks == blocks
    again.close()


def test_only_what_is_used_takes_memory(segment: Segment, segment_path: Path) -> None:
    before = segment_path.stat().st_blocks * 512
    assert before <= segment.layout.slots + 65_536
    segment.prepare_slot(5)
    segment.prepare_slot(5)
    after = segment_path.stat().st_blocks * 512
    assert layout.SLOT_STRIDE <= after - before <= layout.SLOT_STRIDE + 65_536
    with pytest.raises(SegmentError, match="never given"):
        segment.slot(6)
    with pytest.raises(SegmentError, match="no slot 64"):
        segment.prepare_slot(64)


def test_too_little_room_is_a_sentence_and_leaves_no_file(segment_path: Path) -> None:
    with pytest.raises(SegmentError, match=r"cannot be allocated: .*--shm-size"):
        Segment.create(
            segment_path, page_bytes=16_384, clients_max=16, buffer_memory_bytes=1 << 46, instance_id=b"x"
        )
    assert not segment_path.exists()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"page_bytes": 1000, "buffer_memory_bytes": 1 << 20}, "pool.page_bytes is 1000"),
        ({"buffer_memory_bytes": 100}, "holds no page"),
        ({"buffer_memory_bytes": 1 << 20, "clients_max": 0}, "daemon.clients_max is 0"),
        ({"buffer_memory_bytes": 1 << 20, "clients_max": CLIENTS.most + 1}, "daemon.clients_max is 65536"),
    ],
)
def test_sizes_that_cannot_be(segment_path: Path, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(SegmentError, match=message):
        Segment.create(segment_path, instance_id=b"x", **{"page_bytes": 16_384, "clients_max": 16, **sizes})
    assert not segment_path.exists()


@pytest.mark.parametrize("clients_max", [CLIENTS.least, CLIENTS.most])
def test_the_least_and_most_clients_of_the_setting_can_be(tmp_path: Path, clients_max: int) -> None:
    path = tmp_path / "segment"
    Segment.create(
        path, page_bytes=16_384, buffer_memory_bytes=1 << 20, clients_max=clients_max, instance_id=b"x"
    ).close()
    again = Segment.attach(path)
    assert ClientTable(again).capacity == clients_max
    again.close()


def test_an_existing_file_is_not_overwritten(segment: Segment, segment_path: Path) -> None:
    with pytest.raises(SegmentError, match="exists already"):
        Segment.create(
            segment_path, page_bytes=16_384, clients_max=16, buffer_memory_bytes=1 << 20, instance_id=b"x"
        )


def test_a_file_without_its_version_was_never_finished(segment: Segment, segment_path: Path) -> None:
    assert not Segment.is_unfinished(segment.fd)
    with segment_path.open("r+b") as file:
        file.seek(layout.VERSION_OFFSET)
        file.write(bytes(8))
    assert Segment.is_unfinished(segment.fd)
    with pytest.raises(SegmentError, match="never finished"):
        Segment.attach(segment_path)


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (0, b"something", "does not begin as a segment"),
        (layout.VERSION_OFFSET, struct.pack("<Q", 99), "layout version 99"),
        (layout.HEADER_FIELDS_OFFSET + 8, struct.pack("<Q", PAGES * 2), "do not add up"),
        (layout.HEADER_FIELDS_OFFSET + 16, struct.pack("<I", 63), "do not add up"),
    ],
)
def test_a_file_that_is_no_segment_of_ours(
    segment: Segment, segment_path: Path, offset: int, data: bytes, message: str
) -> None:
    with segment_path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    assert not Segment.is_unfinished(segment.fd)
    with pytest.raises(SegmentError, match=message):
        Segment.attach(segment_path)


def test_a_cut_or_missing_file(segment: Segment, segment_path: Path) -> None:
    os.truncate(segment_path, segment.layout.total - 4096)
    with pytest.raises(SegmentError, match="do not add up"):
        Segment.attach(segment_path)
    os.truncate(segment_path, 100)
    with pytest.raises(SegmentError, match="less than a header"):
        Segment.attach(segment_path)
    with pytest.raises(SegmentError, match="cannot be opened"):
        Segment.attach(segment_path.with_name("nobody"))


def test_areas_do_not_overlap() -> None:
    for page_count in (1, 7, 8192):
        for clients_max in (1, 513, 1024):
            places = layout.Layout.of(page_bytes=16_384, page_count=page_count, clients_max=clients_max)
            assert places.client_words >= layout.HEADER_BYTES
            assert places.owners >= places.client_words + 8 * clients_max
            assert places.pages >= places.owners + 8 * page_count
            assert places.slots >= places.pages + page_count * 16_384
            assert places.clients == places.slot(layout.SLOT_COUNT)
            assert places.total == places.client(clients_max)
            assert not any(place % 4096 for place in places[3:])


def test_counters(segment: Segment, slot: int) -> None:
    counters = segment.slot(slot).counters
    counters.inc("records_accepted_total", 5)
    counters.inc("records_accepted_total")
    counters.set("buffer_pages_taken", 9)
    found = counters.read()
    assert list(found) == [row.name for row in COUNTER_ROWS]
    assert (found["records_accepted_total"], found["buffer_pages_taken"]) == (6, 9)
    assert counters.get("records_accepted_total") == 6
    with pytest.raises(KeyError):
        counters.inc("no_such_row")


def test_counters_of_a_writer_that_died_inside_a_write(segment: Segment, slot: int) -> None:
    counters = segment.slot(slot).counters
    counters.inc("records_accepted_total", 5)
    counters._words[0] += 1
    assert counters.read()["records_accepted_total"] == 5
    segment.slot(slot).claim(incarnation=2)
    counters.inc("records_accepted_total")
    assert counters._words[0] % 2 == 0


def test_running_totals_continue_where_the_predecessor_stopped(segment: Segment, slot: int) -> None:
    """A successor's own count begins at 0; a scraper must not see the slot's counter fall."""
    counters = segment.slot(slot).counters
    first = RunningTotals(counters)
    first.publish({"requests_total": 5, "bytes_sent_total": 700})
    first.publish({"requests_total": 7, "bytes_sent_total": 700})
    segment.slot(slot).claim(incarnation=2)
    successor = RunningTotals(counters)
    successor.publish({"requests_total": 0, "bytes_sent_total": 0})
    assert (counters.get("requests_total"), counters.get("bytes_sent_total")) == (7, 700)
    successor.publish({"requests_total": 2, "bytes_sent_total": 30})
    assert (counters.get("requests_total"), counters.get("bytes_sent_total")) == (9, 730)


def test_counter_rows_keep_their_places(segment: Segment, slot: int) -> None:
    """A segment outlives the version that made it: rows are appended, and a dropped one leaves its place empty."""
    assert len(ROW_INDEX) == len(set(ROW_INDEX.values())) == len(COUNTER_ROWS)
    assert [ROW_INDEX[name] for name in ("records_accepted_total", "sender_exceptions_total")] == [0, 21]
    assert [ROW_INDEX[name] for name in ("clients_cut_total", "client_connections_closed_total")] == [24, 50]
    counters = segment.slot(slot).counters
    for number, name in enumerate(ROW_INDEX):
        counters.set(name, number)
    assert list(counters.read().values()) == list(range(len(ROW_INDEX)))


def test_slot_notes(segment: Segment, slot: int) -> None:
    view = segment.slot(slot)
    view.store_producer(1 << 40, 3)
    assert struct.unpack_from("<qi", view.area, layout.PRODUCER_ID_OFFSET) == (1 << 40, 3)


def test_the_drawing_in_the_docs_is_this_layout() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "segment.md").read_text()
    kib = 1024
    for drawn in (
        f"64 x {layout.SLOT_STRIDE // kib} KiB",
        f"clients_max x {layout.CLIENT_STRIDE // kib} KiB",
        f"{layout.CHAINS_OFFSET // kib} KiB    chain table: {layout.CHAINS_MAX} x {layout.CHAIN_ROW_BYTES} B",
        f"{layout.DESCRIPTORS_OFFSET // kib} KiB  descriptors: {layout.DESCRIPTORS_MAX} x {layout.DESCRIPTOR_BYTES} B",
        f"{layout.LANES_OFFSET // kib} KiB  lanes: {layout.LANES_MAX} x {layout.LANE_BYTES} B",
        f"{layout.STAGES_OFFSET // kib} KiB  stages: {layout.STAGES_MAX} x {layout.STAGE_BYTES} B",
        f"{layout.LANE_CONTENTS_OFFSET // kib} KiB  lanes again: {layout.LANES_MAX} x {layout.LANE_CONTENT_BYTES} B",
        f"| {layout.PREPARED_SLOTS_OFFSET} | 8 |",
        f"| {layout.TICKET_OFFSET} | 8 |",
        f"| {layout.SLOT_TICKETS_OFFSET} | 512 |",
        f"| {layout.SLOT_BORROWED_OFFSET} | 512 |",
        f"| {layout.SLOT_TAKEN_OFFSET} | 512 |",
        f"{layout.ACKED_NUMBER_OFFSET} u64 acked outcome number   {layout.RING_WRITTEN_OFFSET} u64 ring written   "
        f"{layout.RING_READ_OFFSET} u64 ring read",
        f"{layout.STREAMS_OFFSET} streams: {layout.STREAMS_MAX} x {layout.STREAM_BYTES} B",
        f"outcome ring, {layout.RING_BYTES // kib} KiB",
    ):
        assert drawn in text, drawn


def test_a_segment_is_in_no_core_dump(segment: Segment, segment_path: Path) -> None:
    """``dd`` among the flags of its mapping: records are not for those who collect cores."""
    again = Segment.attach(segment_path)
    flags: list[list[str]] = []
    is_its = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            is_its = line.endswith(str(segment_path))
        elif is_its and line.startswith("VmFlags:"):
            flags.append(line.split()[1:])
    assert len(flags) >= 2 and all("dd" in each for each in flags)
    again.close()
