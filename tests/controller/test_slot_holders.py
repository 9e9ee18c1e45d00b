"""Goal: nobody of a dead daemon can still write when the next one begins."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.controller.rundir.remains import end_slot_holders

pytestmark = pytest.mark.process

HOLDER = """
import fcntl, os, struct, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, int(sys.argv[2]), 1, 0))
print("held", flush=True)
time.sleep(600)
"""


def hold(path: Path, slot: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(slot)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_holders_are_killed_also_stopped_ones(tmp_path: Path) -> None:
    path = tmp_path / "workers.lock"
    holders = [hold(path, 0), hold(path, 63)]
    holders[1].send_signal(signal.SIGSTOP)
    try:
        assert end_slot_holders(path) == {0: holders[0].pid, 63: holders[1].pid}
        assert [holder.wait(5) for holder in holders] == [-signal.SIGKILL] * 2
        assert end_slot_holders(path) == {}
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()


def test_no_file_no_holders(tmp_path: Path) -> None:
    assert end_slot_holders(tmp_path / "workers.lock") == {}
