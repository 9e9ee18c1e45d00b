"""Goal: the log beside pool.path counts exactly when the segment does not, and neither is ever thrown away unread."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sidecar.controller.rundir import earlier_log
from sidecar.controller.rundir.opening import PoolSize, open_segment
from sidecar.controller.rundir.run_dir import RunDir, RunDirError
from sidecar.controller.rundir.segment_store import SegmentStore
from sidecar.shm.accept_log import AcceptLog, accept_log_folder
from sidecar.shm.accept_log_format import LoggedEntry
from sidecar.shm.client_table import ClientTable
from sidecar.shm.disk import Folder, memory_file_system
from sidecar.shm.layout import BOOT_ID_OFFSET, HEADER_FIELDS_OFFSET
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.restore import lineage

INSTANCE = b"i" * 16


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ks-log-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


def open_store(
    place: Path, *, sync: str = "accept", instance_id: bytes = INSTANCE, pool: str = "pool"
) -> SegmentStore:
    return open_segment(
        RunDir(place),
        PoolSize(4096, 1 << 20, 16),
        workers=1,
        configured_path=str(place / pool),
        instance_id=instance_id,
        sync=sync,
    )


def entry(number: int, topic: str = "orders") -> LoggedEntry:
    payload = b"\x92\xc0\xc4\x01" + bytes([number])
    return LoggedEntry(
        chain_id=0,
        ordinal=10 * number,
        lane=0,
        topic=topic,
        seq=number,
        stream=1,
        client_row=3,
        client_generation=9,
        base_timestamp_ms=1,
        txn_number=0,
        records=1,
        format=1,
        flags=0,
        payload=payload,
    )


def write_log(
    place: Path, slot: int, count: int, instance_id: bytes = INSTANCE, *, pool: str = "pool"
) -> AcceptLog:
    log = AcceptLog(Folder(accept_log_folder(str(place / pool))), slot, instance_id, 1 << 20)
    log.add_to_base([entry(number) for number in range(1, count + 1)])
    log.end_base()
    log.close()
    return log


def die(store: SegmentStore, *, of_another_boot: bool) -> None:
    """The segment stays as it is; a client's row makes it worth keeping."""
    store.prepare(0)
    store.segment.slot(0).claim(incarnation=store.next_incarnation())
    assert ClientTable(store.segment).take_row(b"c" * 20, "billing", 1, 0, b"s" * 16) is not None
    if of_another_boot:
        store.segment.header[BOOT_ID_OFFSET : BOOT_ID_OFFSET + 16] = bytes(16)
    store.segment.close()
    os.close(store.fd)


def records_in(store: SegmentStore) -> list[tuple[int, str, int]]:
    return [(slot, topic, records) for slot, topic, records, _ in describe_undelivered(store.segment)]


def test_of_another_boot_the_log_counts(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    die(open_store(place), of_another_boot=True)
    write_log(place, 0, 3)
    write_log(place, 5, 2)
    store = open_store(place)
    assert records_in(store) == [(0, "orders", 3), (5, "orders", 2)]
    assert store.worker_slots(1) == [0, 5], "a slot moves whole"
    assert store.slot_of(b"c" * 20) is None, "its client died with the host"
    assert store.total("records_resent_unknown_total") == 5
    assert "5 accepted records" in caplog.text
    assert len(Folder(accept_log_folder(str(place / "pool"))).names()) == 4, "kept until it is logged anew"
    assert store.segment.instance_id != INSTANCE, "its entries have places of their own"
    assert lineage(store.segment.instance_id) == lineage(INSTANCE)
    die(store, of_another_boot=False)
    again = open_store(place, instance_id=b"j" * 16)
    assert records_in(again) == [(0, "orders", 3), (5, "orders", 2)], (
        "the restored segment counts from now on"
    )
    again.close()


def test_of_this_boot_the_segment_counts(place: Path) -> None:
    die(open_store(place), of_another_boot=False)
    write_log(place, 0, 3)
    write_log(place, 5, 2)
    store = open_store(place)
    assert records_in(store) == []
    assert {name.split(".")[0] for name in Folder(place / "pool.log").names()} == {"slot-0"}
    assert store.close() == ""
    assert not (place / "pool.log").exists()


@pytest.mark.parametrize("sync", ["accept", "none"])
def test_a_log_next_to_an_earlier_pool_path_is_not_delivered_later(place: Path, sync: str) -> None:
    """The segment goes on under its old name, and its log would count as soon as that name is free."""
    die(open_store(place), of_another_boot=False)
    write_log(place, 0, 3)
    moved = open_store(place, pool="other", sync=sync)
    assert moved.path == place / "pool"
    assert moved.log_folder is not None and moved.log_folder.path == place / "other.log"
    assert not (place / "pool.log").exists()
    assert moved.close() == ""
    back = open_store(place, instance_id=b"j" * 16)
    assert records_in(back) == [], "they were delivered long ago"
    back.close()


@pytest.mark.parametrize("sync", ["accept", "none"])
def test_after_a_crash_the_log_counts_also_where_pool_path_was_changed(place: Path, sync: str) -> None:
    die(open_store(place), of_another_boot=True)
    write_log(place, 0, 3)
    store = open_store(place, pool="other", sync=sync)
    assert store.path == place / "other"
    assert records_in(store) == [(0, "orders", 3)]
    assert not (place / "pool.log").exists() and not (place / "pool").exists()
    die(store, of_another_boot=False)
    again = open_store(place, pool="other", sync=sync, instance_id=b"j" * 16)
    assert records_in(again) == [(0, "orders", 3)]
    again.close()


def test_the_log_at_the_pool_path_of_today_is_the_later_one(place: Path) -> None:
    """A daemon went on with the old segment and logged beside the new path; then the host crashed."""
    die(open_store(place), of_another_boot=True)
    write_log(place, 0, 3)
    write_log(place, 0, 2, pool="other")
    store = open_store(place, pool="other")
    assert records_in(store) == [(0, "orders", 2)]
    assert not (place / "pool.log").exists()
    store.close()


def test_without_a_segment_the_log_counts_and_the_pool_grows_for_it(place: Path) -> None:
    folder = Folder(place / "pool.log")
    log = AcceptLog(folder, 1, INSTANCE, 1 << 20)
    big = [
        entry(number)._replace(payload=b"\x92\xc0\xc6\0\x01\x86\xa0" + bytes(100_000))
        for number in range(1, 21)
    ]
    log.add_to_base(big)
    log.end_base()
    log.close()
    store = open_store(place, instance_id=b"j" * 16)
    assert records_in(store) == [(1, "orders", 20)]
    assert store.buffer_memory_bytes > 1 << 20
    store.segment.close()
    os.close(store.fd)


def test_a_damaged_segment_that_the_log_replaces_is_not_there_to_be_recovered(place: Path) -> None:
    die(open_store(place), of_another_boot=False)
    with (place / "pool").open("r+b") as file:
        file.seek(HEADER_FIELDS_OFFSET)
        file.write(b"\xff" * 32)
    write_log(place, 0, 3)
    store = open_store(place)
    assert records_in(store) == [(0, "orders", 3)]
    (kept,) = place.glob("pool.*-*")
    assert ".superseded-" in kept.name
    store.close()


def test_an_unreadable_log_is_kept(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = AcceptLog(Folder(place / "pool.log"), 0, INSTANCE, 1 << 20)
    log.end_base()
    for number in (1, 2, 3):
        log.commit([entry(number).pack()])
    log.close()
    (path,) = (
        path for path in (place / "pool.log").iterdir() if bytes(entry(2).payload) in path.read_bytes()
    )
    data = path.read_bytes()
    path.write_bytes(data.replace(bytes(entry(2).payload), b"?????", 1))
    store = open_store(place)
    assert records_in(store) == [(0, "orders", 2)]
    assert "ALARM" in caplog.text
    (aside,) = place.glob("pool.log.set-aside-*")
    assert (aside / path.name).stat().st_size == len(data)
    store.segment.close()
    os.close(store.fd)


def test_a_log_of_another_pool_is_refused(place: Path) -> None:
    die(open_store(place), of_another_boot=False)
    write_log(place, 0, 1, instance_id=b"x" * 16)
    with pytest.raises(RunDirError, match="of another pool"):
        open_store(place)
    assert (place / "pool").exists() and (place / "pool.log").exists()


def test_with_sync_none_it_is_taken_over_and_forgotten(place: Path) -> None:
    write_log(place, 0, 3)
    store = open_store(place, sync="none")
    assert records_in(store) == [(0, "orders", 3)]
    assert not (place / "pool.log").exists()
    store.segment.close()
    os.close(store.fd)


def test_a_place_without_room_or_disk_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_file_system(Path("/dev/shm/x/y")) == "tmpfs"
    assert memory_file_system(place) == ""
    full = SimpleNamespace(f_bavail=10, f_frsize=4096)
    monkeypatch.setattr(earlier_log.os, "statvfs", lambda path: full)
    with pytest.raises(RunDirError, match=r"0 MiB free.*begins with 2 MiB: make room"):
        open_store(place)
    assert not (place / "pool").exists()
