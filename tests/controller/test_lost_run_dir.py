"""Goal: a run dir that was removed is made again with its rights, and filled; another user holds nobody up."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.contract.run_dir import LOCK_FILE
from sidecar.controller.lost_run_dir import LostRunDir
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir

SEGMENT = Path("/dev/shm/kafka-sidecar-own.segment")


@pytest.fixture
def held(short_dir: Path) -> Iterator[RunDir]:
    run_dir = RunDir(short_dir / "run")
    run_dir.path.mkdir(mode=0o700)
    run_dir.acquire()
    yield run_dir
    run_dir.release(forget_segment=True)


def test_the_folder_is_made_again_with_its_earlier_rights(held: RunDir) -> None:
    shutil.rmtree(held.path)
    assert held.make_again(SEGMENT)
    assert stat.S_IMODE(held.path.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", [LOCK_FILE, "segment.json"])
def test_a_folder_that_others_may_write_is_not_looked_into(held: RunDir, name: str) -> None:
    """A pipe that another user puts there would hold up the daemon that opens it."""
    shutil.rmtree(held.path)
    held.path.mkdir()
    held.path.chmod(0o777)
    os.mkfifo(held.path / name)
    assert not held.make_again(SEGMENT)
    assert held.is_lost
    held.path.chmod(0o700)
    (held.path / name).unlink()
    assert held.make_again(SEGMENT)


def test_a_copy_of_the_folder_is_taken(held: RunDir, short_dir: Path) -> None:
    """The copied lock file has the daemon's own name, and nobody holds it."""
    shutil.copytree(held.path, short_dir / "copy")
    shutil.rmtree(held.path)
    (short_dir / "copy").rename(held.path)
    assert (held.path / LOCK_FILE).exists()
    assert held.is_lost
    assert held.make_again(SEGMENT)


def test_a_folder_that_could_not_be_filled_is_filled_later(
    held: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    """After a full disk no client found the daemon again: the folder was there, so it counted as whole."""
    faults = [OSError(errno.ENOSPC, "No space left on device")] * 2

    def publish() -> None:
        if faults:
            raise faults.pop()
        held.files.publish_segment(SEGMENT)

    lost = LostRunDir(held, SEGMENT, publish)

    def look() -> None:
        lost.tick(control=None, exporter=None, workers=[])

    look()
    assert not caplog.text
    shutil.rmtree(held.path)
    look()
    look()
    assert read_json(held.files.segment_json) is None
    assert caplog.text.count("cannot be filled again yet") == 1
    assert "is made again" not in caplog.text
    look()
    look()
    assert read_json(held.files.segment_json) == {"path": str(SEGMENT)}
    assert caplog.text.count("is made again") == 1
