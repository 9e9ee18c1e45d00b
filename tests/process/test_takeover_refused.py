"""Goal: what a takeover cannot have is found out while the running daemon can go on; that one's own places are had."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.common.model import ExitStatus
from sidecar.controller.rundir.remains import clear_remains
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.metrics import http_get
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.tcp_access import TcpAccess, free_ports
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def taken() -> socket.socket:
    """A port that another process has."""
    return socket.create_server(("127.0.0.1", 0))


def refuse(daemon: SidecarDaemon, **settings: object) -> str:
    """The log of a takeover with these settings; the running daemon goes on."""
    old, lines = daemon.process, len(daemon.log_path.read_text())
    assert old is not None
    daemon.use(**settings)
    refused = daemon.spawn("--takeover")
    try:
        assert refused.wait(30) == ExitStatus.FAILED, daemon.log_tail()
    finally:
        daemon.process = old
    log = daemon.log_path.read_text()[lines:]
    assert "continues" in log
    assert "Traceback" not in log
    assert "A successor takes over" not in log
    assert daemon.info()["pid"] == old.pid
    assert daemon.command("status").returncode == ExitStatus.OK
    return log


CannotBeHad = Callable[[Path, str], dict[str, object]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (lambda _, port: {"http.listen": port}, "http.listen = "),
        (
            lambda disk, port: {
                "daemon.listen": f"tcp://{port}",
                "daemon.curve_key_file": TcpAccess(disk, ["any"]).daemon_file,
            },
            "daemon.listen = ",
        ),
        (
            lambda _, port: {"pool.sync": "accept", "pool.path": f"/dev/shm/ks-{port}.pool"},
            "pool.sync = accept needs a disk",
        ),
        (
            lambda disk, _: {"pool.path": disk / "nothing" / "pool"},
            "is not a folder that this user may write",
        ),
        (lambda _, __: {"buffer.memory": 1 << 50}, "buffer.memory = "),
        (
            lambda disk, _: {"http.tls.certificate": disk / "none.pem", "http.tls.key": disk / "none.key"},
            "http.tls.certificate",
        ),
    ],
    ids=["http", "tcp", "tmpfs", "folder", "room", "certificate"],
)
def test_a_takeover_without_its_resources_leaves_the_daemon_alone(
    mock_broker: MockBroker,
    start_daemon: StartDaemon,
    tmp_path: Path,
    taken: socket.socket,
    settings: CannotBeHad,
    words: str,
) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers)
    with taken:
        wanted = settings(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}")
        assert words in refuse(daemon, **wanted)
    assert not list(Path("/dev/shm").glob("ks-*.pool"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("localhost:{port}", "localhost:{port}"),
        ("127.0.0.1:{port}", "0.0.0.0:{port}"),
        ("unix:{folder}/http.sock", "unix:{folder}/link/http.sock"),
    ],
    ids=["name", "all addresses", "link"],
)
def test_a_place_of_the_running_daemon_is_had_by_whatever_name(
    mock_broker: MockBroker, short_dir: Path, start_daemon: StartDaemon, first: str, second: str
) -> None:
    """The address was compared as text with the numbers of the running daemon's socket."""
    (short_dir / "link").symlink_to(short_dir)
    port = free_ports(1)
    places = [each.format(port=port, folder=short_dir) for each in (first, second)]
    daemon = start_daemon(mock_broker.bootstrap_servers, settings={"http.listen": places[0]})
    old = daemon.process
    assert old is not None
    daemon.use(**{"http.listen": places[1]})
    daemon.spawn("--takeover")
    daemon.wait_ready()
    assert old.wait(20) == ExitStatus.OK
    if second.startswith("unix:"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(short_dir / "http.sock"))
    else:
        wait_until(lambda: "ok" in http_get(daemon, "/livez").lower(), "the page of the next one")
    assert daemon.stop() == ExitStatus.OK


def test_a_daemon_that_starts_while_systemd_is_waited_for_keeps_its_socket(
    mock_broker: MockBroker, short_dir: Path, start_daemon: StartDaemon
) -> None:
    """systemd may take seconds to read that the main process changes. The running daemon may die meanwhile, and another
    one start.
    """
    daemon = start_daemon(mock_broker.bootstrap_servers)
    old = daemon.process
    assert old is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(short_dir / "notify"))
        systemd.settimeout(30)
        daemon.use_environment(NOTIFY_SOCKET=str(short_dir / "notify"))
        taker = daemon.spawn("--takeover")
        assert systemd.recv(1024).startswith(b"MAINPID=")
        _, barrier, _, _ = socket.recv_fds(systemd, 1024, 1)
        old.kill()
        old.wait()
        another = RunDir(daemon.run_dir)
        another.acquire()
        clear_remains(another)
        with socket.socket(socket.AF_UNIX) as control:
            control.bind(str(another.control_socket))
            before = another.control_socket.stat().st_ino
            os.close(barrier[0])
            assert taker.wait(30) == ExitStatus.FAILED, daemon.log_tail()
            assert another.control_socket.stat().st_ino == before
        another.release(forget_segment=False)
    assert f"another one (pid {os.getpid()}) has started on run dir" in daemon.log_path.read_text()
