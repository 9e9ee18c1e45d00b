"""Goal: a connection that cannot be made, or ends at once, is a lost connection like any other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.transport import Message, Transport
from client_stub.zmtp import opening
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon


@pytest.fixture
def transport(run_dir: Path) -> Iterator[Transport]:
    made = Transport(str(run_dir / "control.sock"))
    yield made
    made.close(None)


@pytest.fixture
def listener(run_dir: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(run_dir / "control.sock"))
        made.listen(8)
        yield made


def messages_of(transport: Transport, count: int) -> list[Message]:
    found: list[Message] = []

    def enough() -> bool:
        found.extend(transport.poll(1_000))
        return len(found) >= count

    eventually(enough)
    return found


@pytest.mark.parametrize("which", ["control", "worker"])
def test_nobody_listens(run_dir: Path, transport: Transport, which: str) -> None:
    if which == "control":
        transport.open_control([b"hello"])
    else:
        transport.open_worker(str(run_dir / "worker.sock"), [b"attach"])
    assert transport.poll(5_000) == [("lost", [f"{which} connection: nobody listens there".encode()])]
    assert transport.poll(0) == []  # told once


def test_the_producer_outlives_it(run_dir: Path) -> None:
    """It asks again, and finds the daemon once there is one."""
    with Producer(run_dir, "early", connect_timeout_ms=20_000) as producer:
        sent = threading.Thread(target=lambda: producer.send("topic", b"value"))
        sent.start()
        eventually(lambda: "nobody listens" in producer._outbox.last_word)
        daemon = FakeDaemon(run_dir)
        try:
            sent.join(20)
            producer.flush(timeout=20)
        finally:
            daemon.stop()


def test_what_came_before_the_end_is_handed_over_first(transport: Transport, listener: socket.socket) -> None:
    transport.open_control([b"hello"])
    daemon, _ = listener.accept()
    daemon.sendall(opening(b"ROUTER") + b"\x00\x05first" + b"\x01\x03two\x00\x06frames")
    daemon.close()
    found = messages_of(transport, 3)
    assert found[:2] == [("control", [b"first"]), ("control", [b"two", b"frames"])]
    assert found[2] == ("lost", [b"control connection: the daemon closed it"])


def test_somebody_else_listens(transport: Transport, listener: socket.socket) -> None:
    transport.open_control([b"hello"])
    daemon, _ = listener.accept()
    daemon.sendall(b"HTTP/1.1 400 Bad Request\r\n")
    assert messages_of(transport, 1) == [("lost", [b"control connection: the peer does not speak ZMTP"])]
    daemon.close()
