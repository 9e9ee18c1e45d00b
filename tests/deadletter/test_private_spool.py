"""Goal: dead letters are their daemon's alone, and root that works in its folder is led nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.deadletter.progress import Progress
from sidecar.deadletter.replay import Replay
from sidecar.deadletter.spool import SpoolWriter
from sidecar.deadletter.spool_files import AnothersLetters, replace_file, spool_files
from tests.deadletter.groups import group
from tests.deadletter.test_replay import Topic
from tests.tools import ROOT_USER, needs

NOBODY = 65_534
only_root = needs(ROOT_USER)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("umask", [0o000, 0o007, 0o022, 0o077])
def test_folder_letters_notes_and_lock_are_for_one_user(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = tmp_path / "letters"
        writer = SpoolWriter(folder, "w", max_bytes=1 << 20, drop_oldest=False)
        writer.append([group([[None, b"1"], [None, b"2"]])])
        writer.close()
        Replay(folder).run(Topic(b"2"))  # one stays: the file is written again, with notes beside it
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    names = {path.name: mode(path) for path in folder.iterdir()}
    assert len(names) == 3 and set(names.values()) == {0o600}, names


def test_links_pipes_and_folders_under_a_letters_name_are_passed_over(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"{}\n")
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "w-1.jsonl").symlink_to(outside)
    (folder / "w-2.jsonl").mkdir()
    os.mkfifo(folder / "w-3.jsonl")
    os.mkfifo(folder / "w-4.jsonl.open")
    assert spool_files(folder) == []
    assert Replay(folder).run(Topic()).files == 0


@only_root
@pytest.mark.parametrize("kind", ["a link", "a second name"])
def test_root_that_replays_writes_and_gives_away_nothing_outside(tmp_path: Path, kind: str) -> None:
    """The folder is another user's, who may put any name there: `.replayed` of a letter, and the lock."""
    precious = tmp_path / "precious"
    precious.write_text("root's")
    folder = tmp_path / "letters"
    folder.mkdir()
    writer = SpoolWriter(folder, "w", max_bytes=1 << 20, drop_oldest=False)
    writer.append([group([[None, b"1"]])])
    writer.close()
    (path,) = spool_files(folder)
    os.chown(folder, NOBODY, NOBODY)
    os.chown(path, NOBODY, NOBODY)
    for planted in (folder / f"{path.name}.replayed", folder / ".replay.lock"):
        planted.unlink(missing_ok=True)
        planted.symlink_to(precious) if kind == "a link" else planted.hardlink_to(precious)
        with pytest.raises(OSError):
            Replay(folder).run(Topic())
        if planted.suffix == ".replayed":
            with pytest.raises(OSError):
                Progress(path)
        planted.unlink()
        assert precious.read_text() == "root's"
        assert precious.stat().st_uid == 0


@only_root
def test_a_file_that_is_written_again_is_not_led_away_by_a_planted_link(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "w-1.jsonl"
    precious.write_text("root's")
    path.write_bytes(b"one\n")
    (tmp_path / ".w-1.jsonl.new").symlink_to(precious)
    replace_file(path, [b"two\n"])
    assert precious.read_text() == "root's" and path.read_bytes() == b"two\n"


@only_root
def test_another_user_hears_whose_letters_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    folder.mkdir(mode=0o755)
    for parent in tmp_path.parents:
        parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    child = os.fork()
    if child == 0:
        said = 0
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            for work in (Replay(folder).count, lambda: Replay(folder).run(Topic())):
                try:
                    work()
                except AnothersLetters as refusal:
                    said += f"belong to uid 0, and this is uid {NOBODY}" in str(refusal)
        finally:  # or the child would run all other tests, as nobody
            os._exit(0 if said == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
