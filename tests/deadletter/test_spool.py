"""Goal: a letter counts only when it is on disk; the folder keeps its bound; nothing in it is lost silently."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.deadletter import letters, spool
from sidecar.deadletter.letters import Letter, lines
from sidecar.deadletter.spool import LetterTooLarge, SpoolFull, SpoolWriter
from sidecar.deadletter.spool_files import close_leftovers, spool_files
from tests.deadletter.groups import group
from tests.reading_back import read_letters


def writer(folder: Path, name: str = "w", **arguments: Any) -> SpoolWriter:
    return SpoolWriter(folder, name, **({"max_bytes": 1 << 20, "drop_oldest": False} | arguments))


def values(folder: Path) -> list[bytes | None]:
    return [
        letter.value
        for path in spool_files(folder)
        for _, letter in read_letters(path)
        if isinstance(letter, Letter)
    ]


def test_letters_of_several_writers_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "made when needed"
    one, two = writer(folder, "one"), writer(folder, "two")
    assert one.append([group([[None, b"a"], [None, b"b"]])]) == 2
    assert two.append([group([[None, b"c"]], seq=2)]) == 1
    assert one.append([]) == 0
    assert sorted(map(bytes, filter(None, values(folder)))) == [b"a", b"b", b"c"]
    assert {path.suffix for path in spool_files(folder)} == {".open"}
    one.close()
    two.close()
    assert {path.suffix for path in spool_files(folder)} == {".jsonl"}
    assert all(path.stat().st_mode & 0o007 == 0 for path in spool_files(folder)), (
        "payloads are not for everybody"
    )


def test_a_file_is_closed_when_it_is_large_enough_and_the_next_one_is_another(tmp_path: Path) -> None:
    one = writer(tmp_path, file_bytes_max=2000)
    for number in range(20):
        one.append([group([[None, b"%d" % number]], seq=number)])
    files = spool_files(tmp_path)
    assert len(files) > 2
    assert all(path.stat().st_size < 3000 for path in files)
    assert values(tmp_path) == [b"%d" % number for number in range(20)], "oldest file first"


def test_full_is_said_and_nothing_is_half_written(tmp_path: Path) -> None:
    one = writer(tmp_path, max_bytes=2000)
    with pytest.raises(SpoolFull, match=r"2,000 at most \(dead_letters.max_bytes\)"):
        for number in range(20):
            one.append([group([[None, b"%d" % number]], seq=number)])
    kept = values(tmp_path)
    assert 2 < len(kept) < 20
    assert sum(path.stat().st_size for path in spool_files(tmp_path)) <= 2000
    spool_files(tmp_path)[0].unlink()  # somebody makes room
    assert one.append([group([[None, b"again"]])]) == 1


def test_the_oldest_go_when_that_is_asked_for_and_are_counted(tmp_path: Path) -> None:
    one = writer(tmp_path, max_bytes=4000, drop_oldest=True)
    for number in range(40):
        one.append([group([[None, b"%d" % number]], seq=number)])
    kept = values(tmp_path)
    assert kept == [b"%d" % number for number in range(40 - len(kept), 40)]
    assert sum(records for _, records in one.dropped) == 40 - len(kept)
    assert sum(path.stat().st_size for path in spool_files(tmp_path)) <= 4000
    with pytest.raises(SpoolFull):
        one.append([group([[None, b"x" * 5000]])])
    assert values(tmp_path) == kept, "nothing goes for what can never fit"


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = writer(tmp_path)
    one.append([group([[None, b"before"]])])
    write = os.write

    def full(fd: int, data: memoryview) -> int:
        if len(data) < 200:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:200])

    monkeypatch.setattr(spool.os, "write", full)
    with pytest.raises(OSError, match="No space"):
        one.append([group([[None, b"lost?"]], seq=2)])
    monkeypatch.undo()
    assert values(tmp_path) == [b"before"]
    one.append([group([[None, b"lost?"]], seq=2)])
    assert values(tmp_path) == [b"before", b"lost?"]


def test_a_write_that_the_kernel_refuses_leaves_no_half_line(tmp_path: Path) -> None:
    """A file may grow no further: a real error of a real file, after half of the bytes."""
    one = writer(tmp_path)
    one.append([group([[None, b"a"]])])
    (path,) = spool_files(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            one.append([group([[None, b"b"]], seq=2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (values(tmp_path), one.written) == ([b"a"], 0)
    one.append([group([[None, b"b"]], seq=2)])
    assert values(tmp_path) == [b"a", b"b"]


def test_the_open_file_of_a_dead_writer_is_closed_by_its_successor_alone(tmp_path: Path) -> None:
    for name, value in (("mine", b"a"), ("other", b"b")):
        one = writer(tmp_path, name)
        one.append([group([[None, value]])])
        one._forget()  # killed
    (mine,) = tmp_path.glob("mine-*")
    with mine.open("ab") as file:
        file.write(b'{"v":1,"id":"cut short')
    assert close_leftovers(tmp_path, "mine") == 1
    assert sorted(path.suffix for path in spool_files(tmp_path)) == [".jsonl", ".open"]
    assert sorted(map(bytes, filter(None, values(tmp_path)))) == [b"a", b"b"], "half a line is none"
    assert close_leftovers(tmp_path / "absent", "mine") == 0


def test_somebody_removes_the_file_under_the_writer(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.append([group([[None, b"a"]])])
    spool_files(tmp_path)[0].unlink()
    one.append([group([[None, b"b"]])])
    assert values(tmp_path) == [b"b"]
    spool_files(tmp_path)[0].unlink()
    one.close()


def test_a_spool_smaller_than_what_there_is_takes_what_fits_and_no_letter_twice(tmp_path: Path) -> None:
    """The smallest bound that can be set, and four times as much at once, in submissions of many records."""
    max_bytes = 64 << 10
    one = writer(tmp_path, max_bytes=max_bytes)
    groups = [group([[None, b"%d/%d" % (seq, i)] for i in range(100)], seq=seq) for seq in range(8)]
    on_disk, taken = 0, set[bytes | None]()
    while on_disk < 800:
        try:
            one.append(groups, skip=on_disk)
        except SpoolFull:
            used = sum(path.stat().st_size for path in spool_files(tmp_path))
            assert max_bytes // 2 < used <= max_bytes
        assert one.written > on_disk, "something fits whenever it is empty"
        on_disk = one.written
        found = values(tmp_path)
        assert len(found) == len(set(found)) and not taken & set(found)
        taken |= set(found)
        for path in spool_files(tmp_path):
            path.unlink()  # somebody replays
    assert len(taken) == 800


def test_a_letter_that_never_fits_is_said_and_what_is_before_it_is_written(tmp_path: Path) -> None:
    one = writer(tmp_path, max_bytes=64 << 10)
    with pytest.raises(LetterTooLarge, match=r"may hold, 65,536 bytes \(dead_letters.max_bytes\)"):
        one.append([group([[None, b"small"]]), group([[None, bytes(64 << 10)]], seq=2)])
    assert (one.written, values(tmp_path)) == (1, [b"small"])
    spool_files(tmp_path)[0].unlink()
    (empty,) = lines([group([[None, b""]], seq=3)], time.time_ns() // 1_000_000)
    room = ((64 << 10) - len(empty)) // 4 * 3
    assert one.append([group([[None, bytes(room)]], seq=3)]) == 1, "one that fills it is taken"
    assert values(tmp_path) == [bytes(room)]
    assert spool_files(tmp_path)[0].stat().st_size > (64 << 10) - 4


def test_room_is_never_made_at_the_cost_of_another_living_writer(tmp_path: Path) -> None:
    """Letters added at this moment would be gone and counted as written."""
    living, dead = writer(tmp_path, "living", max_bytes=4000), writer(tmp_path, "dead", max_bytes=4000)
    living.append([group([[None, b"living"]])])
    dead.append([group([[None, b"dead"]], seq=2)])
    dead.close()
    one = writer(tmp_path, "one", max_bytes=4000, drop_oldest=True)
    for number in range(40):
        one.append([group([[None, b"%d" % number]], seq=number + 3)])
    kept = values(tmp_path)
    assert b"living" in kept and b"dead" not in kept


def test_a_writer_does_not_make_the_run_directory_again(tmp_path: Path) -> None:
    """It was made with mode 0755, and the daemon, which knows the operator's mode, found it there and left it so."""
    run_dir = tmp_path / "run"
    run_dir.mkdir(0o700)
    one = writer(run_dir / "dead-letters")
    letter = [group([[None, b"a"]])]
    one.append(letter)
    shutil.rmtree(run_dir)
    with pytest.raises(FileNotFoundError):
        one.append(letter)
    assert not run_dir.exists()
    run_dir.mkdir(0o700)
    assert one.append(letter) == 1
    assert (run_dir / "dead-letters").stat().st_mode & 0o777 == 0o700


def test_a_file_removed_in_the_middle_of_a_write_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = writer(tmp_path)
    one.append([group([[None, b"before"]])])
    sync, removed = os.fsync, []

    def remove_once(fd: int) -> None:
        sync(fd)
        if not removed:
            removed.append(spool_files(tmp_path)[0])
            removed[0].unlink()

    monkeypatch.setattr(spool.os, "fsync", remove_once)
    assert one.append([group([[None, b"after"]], seq=2)]) == 1
    assert values(tmp_path) == [b"after"]


def test_a_payload_is_read_once_for_all_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A salvaged submission of 3,000 records over 300 partitions: 3,000 records are read, not 900,000."""
    whole = group([[None, b"%d" % number] for number in range(3_000)])
    parts = [whole._replace(partition=n, indexes=list(range(n, 3_000, 300))) for n in range(300)]
    read: list[object] = []
    record = letters._record
    monkeypatch.setattr(letters, "_record", lambda fields: read.append(fields) or record(fields))  # type: ignore[func-returns-value]
    assert sum(1 for _ in lines(parts, 1)) == 3_000
    assert len(read) == 3_000
