"""Goal: whatever becomes of its run dir, a daemon goes on or ends with a sentence, and harms no other daemon."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.common.model import ExitStatus
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.waiting import wait_until
from tests.process.failure_scenarios import privately
from tests.tools import ROOT_USER, needs

pytestmark = pytest.mark.process
HTTP = {"http.listen": "unix:http.sock"}


@pytest.fixture
def second(mock_broker: MockBroker, short_dir: Path) -> Iterator[SidecarDaemon]:
    """A daemon that is not started yet, at the same path as another one, with a log of its own."""
    daemon = SidecarDaemon(mock_broker.bootstrap_servers, run_dir=short_dir / "run", settings=HTTP)
    daemon.log_path = short_dir / "second.log"
    yield daemon
    daemon.remove()


def test_the_end_of_a_daemon_without_its_run_dir_leaves_the_next_one_alone(
    mock_broker: MockBroker, second: SidecarDaemon, start_daemon: StartDaemon, short_dir: Path
) -> None:
    """systemd-logind removes /run/user/UID at the last logout, and makes it again at the next login."""
    first = start_daemon(mock_broker.bootstrap_servers, run_dir=short_dir / "run", settings=HTTP)
    with Producer(first.run_dir) as producer:
        producer.send("smoke", b"1").result(20)
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)  # otherwise it makes its run dir again
        first.run_dir.rename(short_dir / "gone")
        second.start()
        first.process.send_signal(signal.SIGCONT)
        assert second.process is not None
        # Its workers change, so it has something to publish.
        os.kill(first_worker(short_dir / "gone"), signal.SIGKILL)
        wait_until(
            lambda: "was removed under this daemon" in first.log_path.read_text(), "a word of the loss"
        )
        assert second.info()["pid"] == second.process.pid
    assert first.stop() == ExitStatus.OK, first.log_tail()
    log = first.log_path.read_text()
    assert "Traceback" not in log
    assert log.count("was removed under this daemon") == 1
    assert second.info()["pid"] == second.process.pid
    assert {each.name.split("-")[0] for each in second.run_dir.glob("*.sock")} == {
        "control.sock",
        "http.sock",
        "worker",
    }
    with Producer(second.run_dir) as producer:
        producer.send("smoke", b"2").result(20)
    assert second.stop() == ExitStatus.OK


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_run_dir_that_was_removed_is_made_again(
    short_dir: Path, start_daemon: StartDaemon, how: str
) -> None:
    """A worker that died then was never replaced, and the next daemon did not find the records."""
    with FakeBroker({"orders": 1, "later": 1}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, run_dir=short_dir / "run", settings=HTTP)
        with Producer(daemon.run_dir, client_name="old") as old:
            old.send("orders", b"1").result(20)
            assert daemon.command("pause", "later").returncode == 0
            old.send("later", b"kept")
            old.flush(20, until="accepted")
            before = daemon.info()
            if how == "removed":
                # At once: the daemon makes it again while its files are being removed.
                shutil.rmtree(daemon.run_dir.rename(short_dir / "gone"))
            else:
                for each in daemon.run_dir.iterdir():
                    each.unlink(missing_ok=True)
            wait_until((daemon.run_dir / "http.sock").exists, "the sockets", describe=daemon.log_tail)
            assert old.send("orders", b"2").result(20).offset == 1, "its connection has lasted"
            with Producer(daemon.run_dir, client_name="new") as new:
                assert new.send("orders", b"3").result(20).offset == 2
            assert b" 200 OK" in answer_of(daemon.run_dir / "http.sock")
            for pid in daemon.worker_pids():
                os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda: len(set(daemon.ready_pids()) - {each["pid"] for each in before["workers"]}) == 2,
                "both replacements",
                describe=daemon.log_tail,
            )
            assert old.send("orders", b"4").result(20).offset == 3
            assert daemon.status()["pauses"]["topics"].keys() == {"later"}
            daemon.kill_all()
            daemon.start()
            assert daemon.info()["segment"] == before["segment"], "the next daemon finds the records"
            assert daemon.command("resume").returncode == 0
            wait_until(lambda: len(kafka.records("later")) == 1, "the record", describe=daemon.log_tail)
            assert daemon.stop() == ExitStatus.OK
        log = daemon.log_path.read_text()
        assert "Traceback" not in log
        assert (log.count("was removed under this daemon"), log.count("is made again")) == (1, 1)


def answer_of(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(10)
        asking.connect(str(path))
        asking.sendall(b"GET /livez HTTP/1.1\r\nHost: daemon\r\n\r\n")
        return asking.recv(4096)


def first_worker(run_dir: Path) -> int:
    daemon = SidecarDaemon(None, run_dir=run_dir)
    return daemon.worker_pids()[0]


def test_a_socket_that_cannot_be_removed_does_not_hold_up_a_replacement(
    mock_broker: MockBroker, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers)
    wait_until(lambda: len(daemon.ready_pids()) == 2, "both workers, with their sockets")
    victim = daemon.info()["workers"][0]
    path = Path(victim["endpoint"].removeprefix("ipc://"))
    path.unlink()
    path.mkdir()
    os.kill(victim["pid"], signal.SIGKILL)
    wait_until(
        lambda: len(set(daemon.ready_pids()) - {victim["pid"]}) == 2,
        "a replacement",
        describe=daemon.log_tail,
    )
    assert f"{path} of a dead worker cannot be removed" in daemon.log_path.read_text()
    assert daemon.stop() == ExitStatus.OK
    assert f"{daemon.run_dir} cannot be cleared" in daemon.log_path.read_text()
    assert "Traceback" not in daemon.log_path.read_text()


@needs(ROOT_USER)
@pytest.mark.parametrize("size", ["4k", "8k"])
def test_a_full_disk_of_the_run_dir_leaves_no_segment(
    short_dir: Path, start_daemon: StartDaemon, size: str
) -> None:
    """Of 4 KiB nothing is left behind the lock, of 8 KiB the place of segment.json."""
    run_dir = short_dir / "run"
    run_dir.mkdir()
    daemon = start_daemon(
        "127.0.0.1:1",
        wait=False,
        run_dir=run_dir,
        prefix=privately(f"mount -t tmpfs -o size={size},mode=700 tmpfs {run_dir}"),
    )
    assert daemon.process is not None
    if size == "4k":
        assert daemon.process.wait(20) == ExitStatus.FAILED
        assert f"Run dir {run_dir} cannot be written (No space left on device)" in daemon.log_tail()
    else:
        wait_until(
            lambda: "cannot be written: [Errno 28]" in daemon.log_path.read_text(), "a word of the full disk"
        )
        assert daemon.stop() == ExitStatus.OK
    assert "Traceback" not in daemon.log_path.read_text()
    usual = RunDir(run_dir).default_segment_path("*")
    assert not list(usual.parent.glob(usual.name))
