"""Goal: libzmq understands us and we it, both ways round, by the oldest and the newest pyzmq that we allow.

Method: a process with that pyzmq at the other end of a real socket. The oldest one is installed by pip, once.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.zmtp.connection import ZmtpConnection
from tests.patience import PATIENCE_S
from tests.stub.zmtp import libzmq_peer
from tests.stub.zmtp.ends import (
    CLIENT,
    DAEMON,
    as_bytes,
    client,
    null_client,
    null_server,
    proved_key,
    pump,
    server,
    take,
)

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session", params=["oldest", "installed"])
def pyzmq(request: pytest.FixtureRequest) -> str:
    """A folder for PYTHONPATH; "" for the pyzmq of this environment."""
    if request.param == "installed":
        return ""
    found = re.search(r'"pyzmq>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert found is not None
    folder = ROOT / ".demo" / f"pyzmq-{found[1]}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as new:
            install = [
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--only-binary=:all:",
                "--target",
                f"{new}/it",
            ]
            made = subprocess.run(
                [sys.executable, *install, f"pyzmq=={found[1]}"],
                capture_output=True,
                check=False,
                timeout=120,
            )
            if made.returncode:
                pytest.skip(f"needs pyzmq {found[1]} (pip: pyzmq=={found[1]})")
            if not folder.exists():
                Path(new, "it").rename(folder)
    return str(folder)


class Peer:
    """The process at the other end."""

    def __init__(self, pyzmq: str, role: str, address: str, keys: list[bytes]) -> None:
        self.role = role
        self.process = subprocess.Popen(
            [sys.executable, libzmq_peer.__file__, role, address, *(key.hex() for key in keys)],
            env={**os.environ, "PYTHONPATH": pyzmq},
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    made: list[Peer] = []
    yield made
    for peer in made:
        peer.end()


@pytest.mark.parametrize("mechanism", ["NULL", "CURVE"])
def test_our_client_speaks_with_libzmqs_router(
    pyzmq: str, mechanism: str, peers: list[Peer], tmp_path: Path
) -> None:
    is_curve = mechanism == "CURVE"
    path = f"{tmp_path}/router.sock"
    peers.append(Peer(pyzmq, "router", f"ipc://{path}", [DAEMON.secret, DAEMON.public] if is_curve else []))
    assert peers[0].line().startswith("bound ")
    ours = client() if is_curve else null_client()
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(PATIENCE_S)
        connected.connect(path)
        connected.sendall(ours.mechanism.opening)
        assert pump(ours, connected, lambda: ours.is_ready) is None
        for message in libzmq_peer.messages():
            connected.sendall(as_bytes(ours, *message))
            assert pump(ours, connected) == message
        hear_pings(ours, connected)
        connected.sendall(as_bytes(ours, b"end"))
        assert peers[0].process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("mechanism", ["NULL", "CURVE"])
def test_libzmqs_dealer_speaks_with_our_server(
    pyzmq: str, mechanism: str, peers: list[Peer], tmp_path: Path
) -> None:
    is_curve = mechanism == "CURVE"
    path = f"{tmp_path}/server.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.settimeout(PATIENCE_S)
        listening.bind(path)
        listening.listen()
        keys = [CLIENT.secret, CLIENT.public, DAEMON.public] if is_curve else []
        peers.append(Peer(pyzmq, "dealer", f"ipc://{path}", keys))
        ours = server() if is_curve else null_server()
        connected, _ = listening.accept()
        with connected:
            connected.settimeout(PATIENCE_S)
            connected.sendall(ours.mechanism.opening)
            for message in libzmq_peer.messages():
                assert pump(ours, connected) == message
                connected.sendall(as_bytes(ours, *message))
            assert pump(ours, connected) == [b"end"]
            assert peers[0].line() == "same"
            if is_curve:
                assert proved_key(ours) == CLIENT.public


def hear_pings(ours: ZmtpConnection, connected: socket.socket) -> None:
    """Answer three heartbeats of libzmq."""
    for _ in range(3):
        while not ours.replies:
            ours.received(connected.recv_into(ours.space()))
            assert ours.next_message() is None
        connected.sendall(take(ours))
