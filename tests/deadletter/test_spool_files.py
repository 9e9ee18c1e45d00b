"""Goal: files of dead writers are closed whoever they were, those of living ones are left alone."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.deadletter.replay import Replay
from sidecar.deadletter.spool import SpoolWriter
from sidecar.deadletter.spool_files import (
    DEAD_AFTER_S,
    OPEN_SUFFIX,
    SUFFIX,
    close_dead_files,
    close_leftovers,
    drop_file,
    replace_file,
    spool_files,
    writer_of,
    writers_of,
)
from tests.deadletter.groups import group
from tests.deadletter.test_replay import Topic
from tests.reading_back import read_letters
from tests.tools import ROOT_USER, lacks

NOBODY = 65_534


def age(path: Path, seconds: float = DEAD_AFTER_S + 1) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def left_open(folder: Path, writer: str, value: bytes = b"a") -> Path:
    """Remains of a writer that was killed."""
    one = SpoolWriter(folder, writer, max_bytes=1 << 20, drop_oldest=False)
    one.append([group([[None, value]])])
    one._forget()  # the kernel closes its file
    (path,) = folder.glob(f"{writer}-*{OPEN_SUFFIX}")
    return path


def test_a_dead_writers_file_is_closed_whoever_it_was_and_replayed_away(tmp_path: Path) -> None:
    """Its slot has no worker any more, or its run dir is gone: nobody has its name."""
    path = left_open(tmp_path, "0a1b2c3d-slot3")
    topic = Topic()
    Replay(tmp_path).run(topic)
    assert spool_files(tmp_path) == [path], "a writer of before holds no lock: it may live"
    age(path)
    assert Replay(tmp_path).run(topic).doubles == 1
    assert topic.taken == [b"a"]
    assert spool_files(tmp_path) == []


def test_a_living_writers_file_is_left_however_long_it_was_silent(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "w", max_bytes=1 << 20, drop_oldest=False)
    writer.append([group([[None, b"a"]])])
    (path,) = spool_files(tmp_path)
    age(path, 10 * DEAD_AFTER_S)
    assert close_dead_files(tmp_path) == 0
    writer.append([group([[None, b"b"]], seq=2)])
    assert spool_files(tmp_path) == [path]
    writer.close()
    assert spool_files(tmp_path) == [path.with_suffix("")]


def test_a_run_dir_has_one_name_however_it_is_written(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    assert writer_of(link, 3) == writer_of(real, 3) == writer_of(tmp_path / "real" / ".." / "link", 3)


def test_a_successor_closes_the_files_of_its_own_run_dir_only(tmp_path: Path) -> None:
    run_dir, spool = tmp_path / "run", tmp_path / "spool"
    three, thirty = (left_open(spool, writer_of(run_dir, slot)) for slot in (3, 30))
    other = left_open(spool, writer_of(tmp_path / "other", 3))
    living = SpoolWriter(spool, writer_of(run_dir, 4), max_bytes=1 << 20, drop_oldest=False)
    living.append([group([[None, b"living"]], seq=2)])
    assert close_leftovers(spool, f"{writer_of(run_dir, 3)}-") == 1
    (held,) = spool.glob(f"{writer_of(run_dir, 4)}-*")
    assert {path for path in spool_files(spool) if path.suffix == OPEN_SUFFIX} == {thirty, other, held}
    assert close_leftovers(spool, writers_of(run_dir)) == 1, "of all slots"
    assert {path for path in spool_files(spool) if path.suffix == OPEN_SUFFIX} == {other, held}
    assert three.with_suffix("").exists()


def test_a_file_that_was_dropped_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / f"w-1{SUFFIX}"
    path.write_bytes(b"one\ntwo\n")

    def lines() -> list[bytes]:
        assert drop_file(path) == 2
        return [b"one\n"]

    replace_file(path, (line for _ in range(1) for line in lines()))
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_half_made_files_of_a_killed_replay_are_removed(tmp_path: Path) -> None:
    (tmp_path / f".w-1{SUFFIX}.new").write_bytes(b"half")
    (tmp_path / ".recovered-1.new").write_bytes(b"somebody else is writing this")
    Replay(tmp_path).run(Topic())
    assert sorted(path.name for path in tmp_path.glob(".*.new")) == [".recovered-1.new"]


def test_root_may_replay_what_another_users_daemon_writes(tmp_path: Path) -> None:
    """Nothing that it leaves stops the daemon from making room, or its user from the next replay."""
    if os.geteuid() != 0:
        pytest.skip(lacks(ROOT_USER))
    for parent in tmp_path.parents:
        parent.chmod(parent.stat().st_mode | 0o011)
    os.chown(tmp_path, NOBODY, NOBODY)
    as_nobody(lambda: write(tmp_path, "w1", [b"1", b"2"]))
    Replay(tmp_path).run(Topic(b"2"))
    assert [letter.value for _, letter in read_letters(spool_files(tmp_path)[0])] == [b"2"]

    def go_on() -> None:
        topic = Topic(b"2")
        assert Replay(tmp_path).run(topic).total("failed") == 1
        one = SpoolWriter(tmp_path, "w2", max_bytes=1_000, drop_oldest=True)
        one.append([group([[None, bytes(300)]], seq=9)])
        assert [records for _, records in one.dropped] == [1]

    as_nobody(go_on)


def write(folder: Path, name: str, values: list[bytes]) -> None:
    writer = SpoolWriter(folder, name, max_bytes=1 << 20, drop_oldest=False)
    writer.append([group([[None, value] for value in values])])
    writer.close()


def as_nobody(work: Callable[[], None]) -> None:
    """In a child of another user; its traceback is on stderr."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
