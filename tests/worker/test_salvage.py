"""Goal: what a segment without a daemon holds is told apart and read, and the file is never changed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.contract.wire import LocalCode
from sidecar.deadletter.letters import Letter, parse
from sidecar.deadletter.salvage import (
    Salvage,
    SalvageError,
    SegmentInUse,
    forget_log,
    write_letters,
)
from sidecar.kernel import fail_remaining
from sidecar.shm import layout
from sidecar.shm.accept_log import AcceptLog, accept_log_folder
from sidecar.shm.disk import Folder
from sidecar.shm.segment import Segment

from .slot_harness import CLIENT_ID, MemoryBroker, SlotHarness

CLIENTS = 4


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A segment with 2 records sent and not answered, 3 delivered, 2 failed and not told, 4 not sent."""
    path = tmp_path / "left.segment"
    segment = Segment.create(
        path,
        page_bytes=4096,
        buffer_memory_bytes=256 << 10,
        clients_max=CLIENTS,
        instance_id=b"instance-of-test",
    )
    broker = MemoryBroker()
    harness = SlotHarness(segment, broker, 1)
    session, _ = harness.attach()
    harness.know_topic()
    harness.accept(session, [b"d0", b"d1", b"d2"], [0, 1, 0])
    for _ in range(4):
        harness.turn()
    assert harness.counters.get("records_delivered_total") == 3
    broker.is_silent = True
    harness.accept(session, [b"s0", b"s1"], [0, 0])
    harness.turn()
    queue = harness.topics.get("t")
    assert queue is not None
    harness.topics.on_entry = lambda queue, entry, now_ms: None  # type: ignore[method-assign]  # it dies here
    harness.accept(session, [b"f0", b"f1"], [None, None])
    fail_remaining(queue.chain, list(queue.chain.entries())[-1], LocalCode.METADATA_TIMEOUT)
    harness.accept(session, [b"n0", b"n1", b"n2", b"n3"], [0, 1, None, 1])
    segment.close()
    yield path


def letters(salvage: Salvage, folder: Path) -> list[Letter]:
    file, unreadable = write_letters(salvage, folder)
    assert not unreadable
    return [parse(line) for line in file.read_bytes().splitlines()]


def check(found: list[Letter]) -> None:
    by_value = {letter.value: letter for letter in found}
    assert len(found) == len(by_value) == 8
    assert set(by_value) == {b"s0", b"s1", b"f0", b"f1", b"n0", b"n1", b"n2", b"n3"}
    assert {value for value, letter in by_value.items() if letter.possibly_persisted} == {b"s0", b"s1"}
    assert {letter.error for letter in found} >= {"NOT_DELIVERED"}
    assert "NOT_DELIVERED" not in {by_value[b"f0"].error, by_value[b"f1"].error}
    assert by_value[b"n1"].partition == 1
    assert by_value[b"n2"].partition is None


def test_every_outcome_is_distinguished(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    with Salvage.open(path) as salvage:
        found = letters(salvage, tmp_path / "spool")
        assert (salvage.found.undelivered, salvage.found.failed, salvage.found.possibly_persisted) == (
            6,
            2,
            2,
        )
        assert (salvage.found.damage, salvage.found.topics, salvage.notes) == ([], {"t"}, [])
    check(found)
    assert all((letter.sender or "").startswith(CLIENT_ID.hex()) for letter in found)
    with Salvage.open(path) as again:
        write_letters(again, tmp_path / "spool")
    assert len(list((tmp_path / "spool").iterdir())) == 1, "a second time takes the place of the first"
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        (layout.HEADER_FIELDS_OFFSET, b"\xff" * 8),  # page size
        (layout.HEADER_FIELDS_OFFSET + 48, b"\0" * 100),  # ids and positions
        (layout.HEADER_FIELDS_OFFSET, b"\xa5" * (layout.HEADER_BYTES - layout.HEADER_FIELDS_OFFSET)),
        (0, b"XXXX"),
    ],
)
def test_a_damaged_header(path: Path, tmp_path: Path, damage: tuple[int, bytes]) -> None:
    with path.open("r+b") as file:
        file.seek(damage[0])
        file.write(damage[1])
    with Salvage.open(path, clients_max=CLIENTS) as salvage:
        check(letters(salvage, tmp_path / "spool"))
        assert "header is damaged" in salvage.notes[0]


def test_another_layout_version_is_named_and_left_alone(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(layout.VERSION_OFFSET)
        file.write((7).to_bytes(8, "little"))
    ours = layout.LAYOUT_VERSION
    with pytest.raises(SalvageError, match=rf"layout version 7, .* reads version {ours}.*-X pool.path="):
        Salvage.open(path)


def test_one_in_use_is_its_daemon_s(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(SegmentInUse, match="in use by a running daemon"):
            Salvage.open(path)
    finally:
        os.close(fd)


def test_a_file_that_is_no_segment(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_bytes(b"hello" * 10_000)
    with pytest.raises(SalvageError, match="no layout of this version fits"):
        Salvage.open(other)
    unfinished = tmp_path / "unfinished"
    unfinished.write_bytes(layout.MAGIC + bytes(20_000))
    with pytest.raises(SalvageError, match="never finished"):
        Salvage.open(unfinished)
    with pytest.raises(SalvageError, match="cannot be opened"):
        Salvage.open(tmp_path / "absent")


def test_a_damaged_page_is_said_and_the_rest_is_read(path: Path, tmp_path: Path) -> None:
    with Salvage.open(path) as salvage:
        places = salvage.segment.layout
        page = next(i for i, word in enumerate(salvage.segment.owners.cast("Q")) if word)
    with path.open("r+b") as file:
        file.seek(places.pages + page * places.page_bytes + 64 + 4)
        file.write(b"\xff\xff\xff\xff")  # the first entry's count
    with Salvage.open(path) as salvage:
        write_letters(salvage, tmp_path)
        assert salvage.found.damage
        assert "slot 0, topic t" in salvage.found.damage[0]


def test_one_that_its_log_replaced_is_not_sent_again(path: Path) -> None:
    put_away = path.rename(path.with_name(f"{path.name}.superseded-1766287000000"))
    with pytest.raises(SalvageError, match="restored from its log"):
        Salvage.open(put_away)


def test_after_a_crash_of_the_host_the_log_counts(path: Path, tmp_path: Path) -> None:
    folder = Folder(accept_log_folder(str(path)))
    log = AcceptLog(folder, 0, b"instance-of-test", 1 << 20)
    log.end_base()
    log.close()
    with Salvage.open(path) as salvage:
        check(letters(salvage, tmp_path / "before"))  # while the host lives the segment says everything
    with path.open("r+b") as file:
        file.seek(layout.BOOT_ID_OFFSET)
        file.write(b"another boot....")
    with pytest.raises(SalvageError, match=r"-X pool.sync=accept"):
        Salvage.open(path)
    forget_log(path)
    assert not folder.names()
    with Salvage.open(path) as salvage:
        check(letters(salvage, tmp_path / "spool"))
