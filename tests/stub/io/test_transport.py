"""Goal: a connection that cannot be made, or ends at once, is a lost connection like any other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from client_stub import Producer
from client_stub.io import host_lookup
from client_stub.io.daemon_address import keys_for
from client_stub.io.transport import Message, Transport
from client_stub.zmtp.keys import key_file_text
from client_stub.zmtp.mechanism import opening
from tests.patience import PATIENCE_S
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon
from tests.stub.zmtp.ends import CLIENT, DAEMON, as_bytes, pump, server


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
        eventually(lambda: "nobody listens" in producer._engine.outbox.waiters.reasons.last_word)
        daemon = FakeDaemon(run_dir)
        try:
            sent.join(20)
            producer.flush(timeout=20)
        finally:
            daemon.stop()


def test_messages_before_the_end_of_a_connection_are_passed_on_first(
    transport: Transport, listener: socket.socket
) -> None:
    transport.open_control([b"hello"])
    daemon, _ = listener.accept()
    daemon.sendall(opening(b"ROUTER") + b"\x00\x05first" + b"\x01\x03two\x00\x06frames")
    daemon.close()
    found = messages_of(transport, 3)
    assert found[:2] == [("control", [b"first"]), ("control", [b"two", b"frames"])]
    assert found[2] == ("lost", [b"control connection: the daemon closed it"])


def test_another_server_listens(transport: Transport, listener: socket.socket) -> None:
    transport.open_control([b"hello"])
    daemon, _ = listener.accept()
    daemon.sendall(b"HTTP/1.1 400 Bad Request\r\n")
    assert messages_of(transport, 1) == [("lost", [b"control connection: the peer does not speak ZMTP"])]
    daemon.close()


NO_DESCRIPTOR: Final = """
import os, resource, sys
from client_stub import Producer; from client_stub.io import host_lookup

producer = Producer(sys.argv[1])
producer.send("t", b"1").result(10)
mine = producer._engine.io._transport._links["worker"].fd
taken = []
while not taken or taken[-1] < mine:
    taken.append(os.open(os.devnull, os.O_RDONLY))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (mine, hard))  # all below are taken, and this one is not given again
print("full", flush=True)
while "Too many open files" not in producer.stats().why_away:
    assert producer._engine.outbox.fatal is None, producer._engine.outbox.fatal
late = producer.send("t", b"2")
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert late.result(10).offset == 1
"""


def test_a_process_without_a_free_descriptor_connects_again_once_there_is_one(daemon: FakeDaemon) -> None:
    """The application's files are not the producer's end: its records wait."""
    with subprocess.Popen(
        [sys.executable, "-c", NO_DESCRIPTOR, str(daemon.run_dir)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "full\n"
        daemon.kill_worker()
        _, words = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, words


ASKS_WITHOUT_DESCRIPTOR: Final = """
import os, resource, sys, time
from client_stub import Producer; from client_stub.io import slow_topics

slow_topics.SLOW_MS = slow_topics.LOOK_MS = 1.0
producer = Producer(sys.argv[1])
waiting = producer.send("t", b"1")
producer.flush(10, until="accepted")
slow = producer._engine.io._slow_topics
while slow.due_ms < time.monotonic() * 1e3 + 1_000:
    time.sleep(0.01)  # it has asked about the record, and was answered
taken = [os.open(os.devnull, os.O_RDONLY)]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
slow.due_ms = 0.0
try:
    waiting.result(1.0)
except TimeoutError as error:
    assert "the daemon has accepted it" in str(error), error
while slow.due_ms < time.monotonic() * 1e3 + 1_000:
    assert producer._engine.outbox.fatal is None, producer._engine.outbox.fatal
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print("asked", flush=True)
assert waiting.result(10).offset == 0
"""


def test_a_question_without_a_free_descriptor_ends_no_producer(daemon: FakeDaemon) -> None:
    """The question about slow records took the io thread with it, and result() raised an OSError."""
    daemon.deliver = None
    with subprocess.Popen(
        [sys.executable, "-c", ASKS_WITHOUT_DESCRIPTOR, str(daemon.run_dir)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        daemon.do(daemon.deliver_log)
        _, words = process.communicate(timeout=PATIENCE_S)
        assert (said, process.returncode) == ("asked\n", 0), words


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "client.key"
    file.write_text(key_file_text(CLIENT.secret, CLIENT.public, DAEMON.public))
    file.chmod(0o600)
    return file


def test_a_worker_at_an_address_that_is_none_is_a_lost_connection(key_file: Path) -> None:
    """Once it ended the producer's io thread."""
    address = "tcp://127.0.0.1:1"
    transport = Transport(address, keys_for(address, key_file))
    transport.open_worker("/run/worker-0.1.sock", [b"attach"])
    ((kind, (reason,)),) = transport.poll(5_000)
    assert (kind, reason) == (
        "lost",
        b"worker connection: it cannot be made (/run/worker-0.1.sock is not tcp://host:port)",
    )
    transport.close(None)


def test_a_key_file_that_was_replaced_is_noticed_until_the_next_connection(key_file: Path) -> None:
    address = "tcp://127.0.0.1:1"
    transport = Transport(address, keys_for(address, key_file))
    transport.open_control([b"hello"])
    assert not transport.key_is_replaced
    new = key_file.with_suffix(".new")
    new.write_text(key_file_text(DAEMON.secret, DAEMON.public, DAEMON.public))
    new.chmod(0o600)
    new.rename(key_file)
    assert transport.key_is_replaced
    transport.open_control([b"hello"])
    assert not transport.key_is_replaced
    transport.close(None)


def test_each_address_behind_a_hosts_name_gets_its_turn(
    monkeypatch: pytest.MonkeyPatch, key_file: Path
) -> None:
    """As ::1 before 127.0.0.1 for localhost. One that answers is asked first the next time."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_server(("127.0.0.1", 0)) as closed:
        door.settimeout(PATIENCE_S)
        places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each.getsockname()) for each in (closed, door)]
        closed.close()
        monkeypatch.setattr(host_lookup, "getaddrinfo", lambda *_, **__: places)
        transport = Transport("tcp://daemon:1", keys_for("tcp://daemon:1", key_file))
        transport.open_control([b"hello"])
        assert messages_of(transport, 1)[0][0] == "lost"
        for _ in range(2):
            transport.open_control([b"hello"])
            door.accept()[0].close()
            transport.open_worker("tcp://:2", [b"attach"])
            transport.close_sockets()
        transport.close(None)


def test_a_name_server_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, key_file: Path) -> None:
    """Neither the io thread nor an event loop that asks for partitions. However often, it is asked once at a time."""
    answers, asked = threading.Event(), []
    resolve = socket.getaddrinfo

    def hang(host: str, port: int, **more: int) -> object:
        if not more["flags"]:
            asked.append(host)
            assert answers.wait(30)
            host = "127.0.0.1"
        return resolve(host, port, **more)

    monkeypatch.setattr(host_lookup, "getaddrinfo", hang)
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(PATIENCE_S)
        address = f"tcp://daemon.example:{door.getsockname()[1]}"
        one, other = (Transport(address, keys_for(address, key_file)) for _ in range(2))
        one.open_control([b"hello"])
        other.open_control([b"hello"])
        assert (one.poll(0), one.poll(20)) == ([], []), "it waits no longer than it may"
        assert one.control_fileno() is not None, "what an event loop watches"
        monkeypatch.setattr("client_stub.io.transport.LOOKUP_S", 0.01)
        one.open_control([b"hello"])
        lost = [("lost", [b"control connection: its host was not found within 0.01 s"])]
        eventually(lambda: one.poll(0) == lost)
        one.open_control([b"hello"])
        one.close_sockets()
        answers.set()
        other.poll(10_000)
        other.poll(0)
        door.accept()[0].close()
        assert asked == ["daemon.example"]
        for each in (one, other):
            each.close(None)


def test_nothing_after_a_box_that_does_not_open_is_read(key_file: Path) -> None:
    """An attacker who changes bytes on the way could else leave messages out, and those behind them would count."""

    def serve(door: socket.socket) -> None:
        connected, _ = door.accept()
        with connected:
            end = server()
            connected.sendall(end.mechanism.opening)
            assert pump(end, connected) == [b"hello"]
            changed = bytearray(as_bytes(end, b"left out"))
            changed[-1] ^= 1
            behind = b"".join(as_bytes(end, b"behind it") for _ in range(20_000))
            with contextlib.suppress(ConnectionError):
                connected.sendall(bytes(changed) + behind)

    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"tcp://127.0.0.1:{door.getsockname()[1]}"
        serving = threading.Thread(target=serve, args=(door,))
        serving.start()
        transport = Transport(address, keys_for(address, key_file))
        transport.open_control([b"hello"])
        ((kind, (reason,)),) = messages_of(transport, 1)
        assert kind == "lost" and b"does not open" in reason
        transport.close(None)
        serving.join(10)


def test_the_rest_of_a_message_that_is_taken_late_counts_as_moving(key_file: Path) -> None:
    """The pings behind it were dropped, so their silence says nothing. A daemon that had stopped for a while was given
    up in the moment in which it went on.
    """
    goes_on = threading.Event()

    def serve(door: socket.socket) -> None:
        connected, _ = door.accept()
        with connected:
            end = server(message_bytes_max=64 << 20)
            connected.sendall(end.mechanism.opening)
            assert pump(end, connected) == [b"attach"]
            assert goes_on.wait(30)
            while connected.recv(1 << 20):
                pass

    def untaken_bytes() -> int:
        link = transport._links["worker"]
        found: int = struct.unpack("=I", fcntl.ioctl(link.fd, termios.TIOCOUTQ, bytes(4)))[0]
        return found

    def is_taken() -> bool:
        transport.poll(10)
        return not transport._links["worker"].unsent and not untaken_bytes()

    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"tcp://127.0.0.1:{door.getsockname()[1]}"
        serving = threading.Thread(target=serve, args=(door,))
        serving.start()
        transport = Transport(address, keys_for(address, key_file))
        transport.open_worker(address, [b"attach"])
        eventually(lambda: transport.poll(10) == [] and transport._links["worker"].zmtp.is_ready)
        while transport.send([b"submit", bytes(8 << 20)]):
            pass
        eventually(lambda: not transport.is_moving())
        assert not transport.is_moving(), "nothing is taken"
        goes_on.set()
        eventually(is_taken)
        assert transport.is_moving()
        assert not transport.is_moving(), "all is taken, as a proxy would, and a ping can be answered"
        transport.close(None)
        serving.join(10)
