"""Goal: a file for one user is that user's alone whatever the umask, and nothing that somebody planted is used."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.shm.private_files import (
    close_folder_to_others,
    create_private,
    make_folder,
    open_private,
    replacing,
)
from tests.tools import ROOT_USER, needs

SOMEBODY = 12_345
only_root = needs(ROOT_USER)


@pytest.fixture(params=[0o000, 0o007, 0o022, 0o077, 0o177], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


@pytest.mark.usefixtures("umask")
def test_whatever_the_umask_files_and_folders_have_their_modes(tmp_path: Path) -> None:
    os.close(create_private(tmp_path / "new"))
    os.close(create_private(tmp_path / "shared", mode=0o640))
    os.close(open_private(tmp_path / "made", os.O_RDWR, make=True))
    os.close(replacing(tmp_path / "x", tmp_path / ".x.new"))
    assert make_folder(tmp_path / "above" / "folder")
    assert make_folder(tmp_path / "run", 0o750)
    found = {each.name: mode(each) for each in (*tmp_path.iterdir(), tmp_path / "above" / "folder")}
    assert found == {
        **{"new": 0o600, "shared": 0o640, "made": 0o600, ".x.new": 0o600},
        **{"above": 0o755, "folder": 0o700, "run": 0o750},
    }
    assert not make_folder(tmp_path / "above")


@pytest.mark.parametrize("make", [False, True])
def test_a_link_a_pipe_a_folder_and_a_second_name_are_not_opened(tmp_path: Path, make: bool) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    precious.chmod(0o644)
    (tmp_path / "link").symlink_to(precious)
    (tmp_path / "dangling").symlink_to(tmp_path / "made through a link")
    (tmp_path / "second name").hardlink_to(precious)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "second name", "folder", "pipe"):
        with pytest.raises(OSError) as refused:
            os.close(open_private(tmp_path / name, os.O_RDWR | os.O_APPEND, make=make))
        assert refused.value.errno in {errno.ELOOP, errno.EPERM, errno.EISDIR}, name
    assert precious.read_text() == "mine" and mode(precious) == 0o644
    assert not (tmp_path / "made through a link").exists()
    with pytest.raises(FileExistsError):
        create_private(tmp_path / "dangling")


def test_a_link_left_by_an_earlier_process_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / ".x.new").symlink_to(precious)
    with os.fdopen(replacing(tmp_path / "x", tmp_path / ".x.new"), "wb") as out:
        out.write(b"theirs")
    assert precious.read_text() == "mine"


@only_root
def test_a_file_of_another_user_is_used_only_where_that_user_is_named(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.touch()
    os.chown(path, SOMEBODY, -1)
    with pytest.raises(PermissionError, match=f"belongs to uid {SOMEBODY}.*move it away"):
        open_private(path, os.O_RDWR)
    os.close(open_private(path, os.O_RDWR, owners=[SOMEBODY]))


def test_files_open_to_others_are_closed_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    folder.mkdir(mode=0o750)
    outside = tmp_path / "outside"
    for path, old in ((folder / "a", 0o640), (folder / "b", 0o600), (outside, 0o644)):
        path.touch()
        path.chmod(old)
    (folder / "link").symlink_to(outside)
    assert close_folder_to_others(folder) == ["letters (0750)", "a (0640)"]
    assert close_folder_to_others(folder) == []
    assert [mode(each) for each in (folder, folder / "a", outside)] == [0o700, 0o600, 0o644]
    assert close_folder_to_others(tmp_path / "absent") == []
