"""Goal: one daemon a run dir; remains of a dead one are cleared away; files of a live one are never touched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from client_stub.contract.wire import IPC_PATH_BYTES_MAX, LONGEST_SOCKET
from sidecar.common.processes import process_start_time
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.remains import clear_remains
from sidecar.controller.rundir.run_dir import RunDir, RunDirError
from sidecar.tools.testing.waiting import wait_until
from tests.controller.run_dir_holder import hold
from tests.patience import PATIENCE_S


@pytest.mark.process
def test_a_held_run_dir_names_its_holder(short_dir: Path) -> None:
    with hold(short_dir) as child:
        assert RunDir(short_dir).holder() == child.pid
        with pytest.raises(RunDirError, match=f"pid {child.pid}") as taken:
            RunDir(short_dir).acquire()
        assert str(short_dir) in str(taken.value)
        assert "stopped" not in str(taken.value)
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: "T" in Path(f"/proc/{child.pid}/stat").read_text(), "the stop")
        with pytest.raises(RunDirError, match="which is stopped"):
            RunDir(short_dir).acquire()
        child.kill()
    assert RunDir(short_dir).holder() is None
    RunDir(short_dir).acquire()


def test_a_long_path_is_refused_by_name(tmp_path: Path) -> None:
    room = IPC_PATH_BYTES_MAX - len(LONGEST_SOCKET) - 1 - len(str(tmp_path)) - 1
    RunDir(tmp_path / ("d" * room)).check_length()
    with pytest.raises(RunDirError, match=r"1 bytes too long.*--run-dir"):
        RunDir(tmp_path / ("d" * (room + 1))).acquire()


def test_an_unusable_path_is_refused(short_dir: Path) -> None:
    (short_dir / "file").write_text("")
    with pytest.raises(RunDirError, match="cannot be used"):
        RunDir(short_dir / "file" / "run").acquire()


@pytest.mark.process
def test_leftovers_of_a_dead_daemon_are_cleared(short_dir: Path) -> None:
    """Sockets go, its worker is killed; a stranger that got the pid of a worker is left alone."""
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger,
    ):
        run_dir = RunDir(short_dir)
        start_time = process_start_time(worker.pid)
        assert start_time is not None
        run_dir.files.publish(
            {
                "workers": [
                    {"index": 0, "pid": worker.pid, "start_time": start_time},
                    {"index": 1, "pid": stranger.pid, "start_time": 1},
                    {"index": 2, "pid": "nonsense", "start_time": 1},
                ]
            }
        )
        for name in ("control.sock", "worker-0.17.sock"):
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(short_dir / name))
        run_dir.acquire()
        done = clear_remains(run_dir)
        assert worker.wait(PATIENCE_S) == -signal.SIGKILL
        assert stranger.poll() is None
        stranger.kill()
    assert not list(short_dir.glob("*.sock"))
    assert len(done) == 2
    assert "2 stale sockets" in done[1]


def test_a_run_dir_with_records_of_another_daemon_is_not_taken_back(short_dir: Path) -> None:
    """Their segment was written over in segment.json, so that no later daemon found them."""
    first, second = RunDir(short_dir / "run"), RunDir(short_dir / "run")
    first.acquire()
    first.path.rename(short_dir / "gone")
    second.acquire()
    second.files.publish_segment(Path("/dev/shm/second"))
    assert first.is_lost and not first.make_again(Path("/dev/shm/first")), "it is held"
    second.release(forget_segment=False)
    assert not first.make_again(Path("/dev/shm/first")) and first.is_lost
    assert read_json(second.files.segment_json) == {"path": "/dev/shm/second"}
    second.acquire()
    second.release(forget_segment=True)
    assert first.make_again(Path("/dev/shm/first")) and not first.is_lost
    first.release(forget_segment=True)


def test_publish_is_whole_and_release_forgets(short_dir: Path) -> None:
    run_dir = RunDir(short_dir)
    run_dir.acquire()
    run_dir.files.publish({"pid": 5})
    run_dir.files.publish_segment(Path("/dev/shm/x"))
    run_dir.files.store_epoch(77)
    assert read_json(run_dir.files.daemon_json) == {"pid": 5}
    assert run_dir.files.last_epoch() == 77
    run_dir.release(forget_segment=False)
    assert read_json(run_dir.files.daemon_json) is None
    assert read_json(run_dir.files.segment_json) == {"path": "/dev/shm/x"}
    assert run_dir.files.last_epoch() == 77, "epochs go on over restarts"
    assert run_dir.holder() is None


def test_a_takeover_that_asks_again_and_again_names_a_loose_folder_once(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short_dir.chmod(0o777)
    holder, taker = RunDir(short_dir / "run"), RunDir(short_dir / "run")
    holder.acquire()
    caplog.clear()
    assert not any(taker.try_acquire() for _ in range(3))
    holder.release(forget_segment=True, handed_over=True)
    assert taker.try_acquire()
    assert caplog.text.count("may put another folder in the place of run dir") == 1
    taker.release(forget_segment=True)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00\xff"])
def test_broken_json_is_as_none(short_dir: Path, content: str) -> None:
    (short_dir / "daemon.json").write_text(content, encoding="latin-1")
    assert read_json(short_dir / "daemon.json") is None
