"""Goal: a takeover that cannot be is refused before anything of the running daemon is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.controller.rundir.predecessor import Predecessor
from sidecar.controller.rundir.run_dir import TAKERS_LOCK_FILE, RunDir, RunDirError
from tests.controller.run_dir_holder import hold

pytestmark = pytest.mark.process


def test_a_lock_that_cannot_be_made_is_a_sentence(short_dir: Path) -> None:
    """As on a disk that is full or has become read-only."""
    with hold(short_dir):
        (short_dir / TAKERS_LOCK_FILE).mkdir()
        with pytest.raises(RunDirError, match=rf"{TAKERS_LOCK_FILE} cannot be opened \(Is a directory\)"):
            Predecessor.find(RunDir(short_dir))


def test_another_daemon_that_has_started_meanwhile_is_left_alone(short_dir: Path) -> None:
    """Preparing takes seconds. The predecessor may die, and whoever watches it may start the next one."""
    with hold(short_dir) as first:
        found = Predecessor.find(RunDir(short_dir))
        assert found is not None
        found.check()
        first.kill()
    found.check()  # gone: its place is free
    with hold(short_dir) as second, pytest.raises(RunDirError, match=f"pid {second.pid}"):
        found.check()
    found.close()
