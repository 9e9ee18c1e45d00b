"""Goal: a letter counts only when it is on disk; the folder keeps its bound; nothing in it is lost silently."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.deadletter import spool
from sidecar.deadletter.letters import Letter
from sidecar.deadletter.spool import SpoolFull, SpoolWriter, close_leftovers, read_letters, spool_files
from tests.deadletter.groups import group


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
    folder = tmp_path / "made" / "when needed"
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


def test_a_really_full_file_system(tmp_path: Path) -> None:
    """/dev/full says ENOSPC to every write."""
    one = writer(tmp_path)
    one.append([group([[None, b"a"]])])
    (path,) = spool_files(tmp_path)
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space|Invalid"):
        one.append([group([[None, b"b"]])])


def test_what_a_dead_writer_left_open_is_closed_by_its_successor_alone(tmp_path: Path) -> None:
    writer(tmp_path, "mine").append([group([[None, b"a"]])])
    writer(tmp_path, "other").append([group([[None, b"b"]])])
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
