"""Goal: a path in segment.json moves no file of ours, and a daemon adopts nothing that somebody else had a hand in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.controller.rundir.pool_check import topics_of
from sidecar.controller.rundir.run_dir import RunDir, RunDirError
from sidecar.deadletter.salvage import Salvage
from tests.controller.test_earlier_segment import leave, open_store
from tests.tools import ROOT_USER, needs

SOMEBODY = 12_345
only_root = needs(ROOT_USER)


@pytest.mark.parametrize("content", [b"precious" * 1000, b"", bytes(4096)], ids=["text", "empty", "zeros"])
def test_a_file_of_ours_that_segment_json_names_stays_as_it_is(
    short_dir: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    precious = short_dir / "precious"
    precious.write_bytes(content)
    precious.chmod(0o600)
    run_dir = RunDir(short_dir)
    run_dir.files.publish_segment(precious)
    open_store(run_dir, short_dir / "a").close()
    assert precious.read_bytes() == content
    assert sorted(path.name for path in short_dir.iterdir()) == ["precious", "segment.json"]
    assert "It may be any file, so it stays as it is" in caplog.text


@pytest.mark.parametrize("by_takeover", [False, True])
@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "folder"])
def test_a_link_a_second_name_and_a_pipe_are_not_adopted(
    short_dir: Path, kind: str, by_takeover: bool
) -> None:
    run_dir = RunDir(short_dir)
    leave(open_store(run_dir, short_dir / "a"))
    named = short_dir / "named"
    match kind:
        case "link":
            named.symlink_to(short_dir / "a")
        case "second name":
            named.hardlink_to(short_dir / "a")
        case "pipe":
            os.mkfifo(named, 0o600)
        case _:
            named.mkdir(mode=0o700)
    run_dir.files.publish_segment(named)
    words = {
        "link": "symbolic link",
        "second name": "2 names",
        "pipe": "not a regular file",
        "folder": "irectory",
    }
    with pytest.raises(RunDirError, match=words[kind]):
        topics_of(named) if by_takeover else open_store(run_dir, short_dir / "b")
    assert os.path.lexists(named) and (short_dir / "a").exists()


@only_root
def test_a_segment_that_somebody_else_made_is_not_adopted(short_dir: Path) -> None:
    run_dir = RunDir(short_dir)
    leave(open_store(run_dir, short_dir / "a"))
    os.chown(short_dir / "a", SOMEBODY, -1)
    for look in (lambda: open_store(run_dir, short_dir / "a"), lambda: topics_of(short_dir / "a")):
        with pytest.raises(RunDirError, match=f"belongs to uid {SOMEBODY}.*cannot be trusted"):
            look()


def test_one_that_others_could_read_is_adopted_and_closed(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = RunDir(short_dir)
    leave(open_store(run_dir, short_dir / "a"))
    (short_dir / "a").chmod(0o644)
    store = open_store(run_dir, short_dir / "a")
    assert (short_dir / "a").stat().st_mode & 0o777 == 0o600
    assert "could be read by others" in caplog.text
    store.close()


def test_a_file_that_took_the_name_while_it_was_judged_is_not_removed(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of pool.path is another user's to change: the file under the name is not the one that was opened."""
    from sidecar.controller.rundir import earlier_segment

    run_dir = RunDir(short_dir)
    store = open_store(run_dir, short_dir / "a")
    store.segment.close()
    os.close(store.fd)

    lock = earlier_segment._lock

    def replaced(fd: int, path: Path) -> None:
        lock(fd, path)
        path.rename(short_dir / "moved")
        path.write_text("precious")

    monkeypatch.setattr(earlier_segment, "_lock", replaced)
    with pytest.raises(RunDirError, match=r"was replaced while.*pool\.path a folder that only this user"):
        open_store(run_dir, short_dir / "a")
    assert (short_dir / "a").read_text() == "precious"


def test_the_log_of_a_pool_is_no_link_and_nobody_else_may_write_it(short_dir: Path) -> None:
    (short_dir / "elsewhere").mkdir()
    log = short_dir / "a.log"
    log.symlink_to(short_dir / "elsewhere")
    with pytest.raises(RunDirError, match="its records cannot be trusted"):
        open_store(RunDir(short_dir), short_dir / "a")
    log.unlink()
    log.mkdir()
    log.chmod(0o770)
    with pytest.raises(RunDirError, match=r"with mode 0770.*its records cannot be trusted"):
        open_store(RunDir(short_dir), short_dir / "a")
    log.chmod(0o755)
    store = open_store(RunDir(short_dir), short_dir / "a")
    assert not log.exists() or log.stat().st_mode & 0o777 == 0o700
    store.close()


def test_recover_reads_the_file_that_it_has_opened_and_locked(short_dir: Path) -> None:
    leave(open_store(RunDir(short_dir), short_dir / "a"))
    with Salvage.open(short_dir / "a") as salvage:
        assert not salvage.notes
