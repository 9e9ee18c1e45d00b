"""Looking at a run dir never disturbs who starts there, and tells of daemons of every version."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sidecar.common.processes import process_start_time
from sidecar.controller.rundir.lock import (
    LOCK_RETRY_S,
    Holder,
    lock_holder,
    release_lock,
    take_lock,
)
from sidecar.controller.rundir.run_dir import RunDir, RunDirError

LOOKERS = 3
STARTS = 300
AS_BEFORE = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o640)
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
start = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
os.ftruncate(fd, 0)
os.pwrite(fd, f"{os.getpid()} {start}\\n".encode(), 0)
print("held", flush=True)
sys.stdin.read()
"""
"""How a daemon of an older version holds its run dir."""


@pytest.fixture
def lock(short_dir: Path) -> Path:
    return short_dir / "daemon.lock"


def me() -> Holder:
    start_time = process_start_time(os.getpid())
    assert start_time is not None
    return Holder(os.getpid(), start_time)


def test_the_holder_is_named_until_it_lets_go(lock: Path) -> None:
    assert lock_holder(lock) is None
    fd = take_lock(lock)
    assert fd is not None
    assert lock_holder(lock) == me()
    assert take_lock(lock) is None
    release_lock(fd)
    assert lock_holder(lock) is None, "also while the process that had it lives on"
    again = take_lock(lock)
    assert again is not None
    os.close(again)
    assert lock.exists()


def test_looking_never_makes_a_start_refuse(short_dir: Path) -> None:
    """With a shared lock to look by, one in twelve starts was refused."""
    is_over = threading.Event()
    seen: set[int | None] = set()

    def look() -> None:
        run_dir = RunDir(short_dir)
        while not is_over.is_set():
            seen.add(run_dir.holder())

    lookers = [threading.Thread(target=look) for _ in range(LOOKERS)]
    for each in lookers:
        each.start()
    try:
        for _ in range(STARTS):
            run_dir = RunDir(short_dir)
            assert run_dir.try_acquire()
            run_dir.release(forget_segment=False)
    finally:
        is_over.set()
        for each in lookers:
            each.join()
    assert seen <= {None, os.getpid(), -1}


@pytest.mark.parametrize("text", [b"", b"\n", b"12", b"12 ", b"x y", b"-", b"\xff\xfe 7", b"1 2 3"])
def test_a_lock_file_half_written_is_no_error(
    lock: Path, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.controller.rundir.lock.LOCK_RETRY_S", 0.0)
    fd = take_lock(lock)
    assert fd is not None
    os.ftruncate(fd, 0)
    os.pwrite(fd, text, 0)
    found = lock_holder(lock)
    assert found is not None and found.pid in {-1, 1}, "somebody holds it"
    with pytest.raises(RunDirError, match="held by"):
        RunDir(lock.parent).acquire()
    os.close(fd)
    assert lock_holder(lock) is None


@pytest.mark.parametrize("left", [b"", b"999999999 1\n"], ids=["a new file", "the name of a dead daemon"])
def test_the_holder_is_named_though_it_has_only_just_taken_the_lock(
    lock: Path, left: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two daemons that start at once, one took the lock and has not written its name when the other looks."""
    fd = take_lock(lock)
    assert fd is not None
    named = os.pread(fd, 100, 0)
    os.ftruncate(fd, 0)
    os.pwrite(fd, left, 0)
    monkeypatch.setattr(time, "sleep", lambda _: os.pwrite(fd, named, 0))
    with pytest.raises(RunDirError, match=f"held by a daemon with pid {os.getpid()}"):
        RunDir(lock.parent).acquire()
    os.close(fd)


@pytest.mark.process
def test_a_daemon_of_before_is_seen_and_respected(lock: Path) -> None:
    """It holds the flock alone. A zombie and a process that got its number later are not it."""
    with subprocess.Popen(
        [sys.executable, "-c", AS_BEFORE, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"held\n"
        found = lock_holder(lock)
        assert found is not None and found.pid == daemon.pid
        assert take_lock(lock) is None
        with pytest.raises(RunDirError, match=f"held by a daemon with pid {daemon.pid}"):
            RunDir(lock.parent).acquire()
        daemon.kill()
        os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOWAIT)
        assert lock_holder(lock) is None, "not reaped, and dead all the same"
    lock.write_text(f"{os.getpid()} 1\n")
    assert lock_holder(lock) is None


def test_a_shared_lock_of_an_older_status_is_waited_for(lock: Path) -> None:
    """A `status` of an older version takes a shared lock: the start waits a moment for its end."""
    lock.touch()
    with lock.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        end = threading.Timer(LOCK_RETRY_S / 10, fcntl.flock, (looking, fcntl.LOCK_UN))
        end.start()
        fd = take_lock(lock)
        end.join()
    assert fd is not None
    os.close(fd)
