"""Goal: clients may reach the run dir by another path than the daemon's: a volume that is mounted elsewhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import zmq

from client_stub import Producer
from client_stub.contract.run_dir import LOCK_FILE
from client_stub.contract.wire import (
    CLIENT_ID_BYTES,
    IPC_PATH_BYTES_MAX,
    PROTOCOL_VERSION,
    RELATIVE_ENDPOINTS,
    Kind,
)
from client_stub.io.daemon_address import hello_flags, worker_path
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.mock_broker import MockBroker

pytestmark = [pytest.mark.process]


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ks-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def elsewhere(home: Path, start_daemon: StartDaemon, mock_broker: MockBroker) -> SidecarDaemon:
    """A daemon whose sockets no client finds by the daemon's own path, as in another mount namespace.

    At that path the daemon still sees its lock file. Without it, it would make its run dir again there within a second,
    and listen to nobody here.
    """
    real, link = home / "real", home / "daemons"
    real.mkdir(mode=0o750)
    link.symlink_to(real)
    daemon = start_daemon(mock_broker.bootstrap_servers, run_dir=link)
    link.unlink()
    link.mkdir()
    (link / LOCK_FILE).hardlink_to(real / LOCK_FILE)
    daemon.run_dir = real
    return daemon


def test_a_client_gets_in_by_another_path(elsewhere: SidecarDaemon) -> None:
    with Producer(run_dir=str(elsewhere.run_dir)) as producer:
        assert producer.send("smoke", b"1").result(timeout=30).offset >= 0


@pytest.mark.parametrize(("more", "is_relative"), [([], False), ([RELATIVE_ENDPOINTS], True)])
def test_a_stub_of_an_earlier_version_still_gets_the_daemons_own_path(
    elsewhere: SidecarDaemon, more: list[int], is_relative: bool
) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as control:
        control.setsockopt(zmq.LINGER, 0)
        control.setsockopt(zmq.RCVTIMEO, 10_000)
        control.connect(f"ipc://{elsewhere.run_dir}/control.sock")
        hello = [int(Kind.HELLO), PROTOCOL_VERSION, bytes(CLIENT_ID_BYTES), "old", os.getpid(), None, *more]
        control.send(msgpack.packb(hello))
        kind, endpoint, epoch, _ = msgpack.unpackb(control.recv())
    assert kind == Kind.ASSIGNED
    parent = "" if is_relative else f"ipc://{elsewhere.run_dir.parent}/daemons/"
    assert endpoint in {f"{parent}worker-{index}.{epoch}.sock" for index in range(2)}


def test_an_endpoint_of_an_earlier_daemon_is_used_as_it_is() -> None:
    assert worker_path("/here/control.sock", "ipc:///there/worker-0.5.sock") == "/there/worker-0.5.sock"
    assert worker_path("/here/control.sock", "worker-0.5.sock") == "/here/worker-0.5.sock"


def test_a_path_without_room_for_a_workers_socket_asks_for_the_daemons_own() -> None:
    """control.sock fits there, and by a short link the daemon's path does, too: that has worked before."""
    long = "/" + "x" * (IPC_PATH_BYTES_MAX - len("/control.sock") - 1)
    assert hello_flags(f"{long}/control.sock") == 0
    assert hello_flags("/run/kafka-sidecar/control.sock") == RELATIVE_ENDPOINTS
