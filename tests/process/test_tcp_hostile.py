"""Goal: what comes over tcp:// costs little, with a key and without, and no other client notices.

Method: as test_fuzz.py and test_greed.py. Each hostile connection comes from a host of its own in loopback's network,
since bounds count by host until a key is proved.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgpack
import pytest

from client_stub import Producer
from client_stub.contract.tcp import KEY_FILE_VARIABLE
from client_stub.contract.wire import Kind
from client_stub.zmtp.curve import Curve, KeyPair
from client_stub.zmtp.keys import key_file_text, read_key_file
from client_stub.zmtp.mechanism import greeting
from sidecar.net.stubs.pending import HANDSHAKE_S, HANDSHAKES_MAX
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.hostile_client import RECORD
from sidecar.tools.testing.hostile_over_tcp import NAME, TcpAttacker, TcpLink, dial, own_host
from sidecar.tools.testing.tcp_access import TcpAccess
from sidecar.tools.testing.waiting import wait_until
from tests.process.test_fuzz import check_order, survives
from tests.process.test_greed import FRAME_BYTES, HALF_SENT, SERVED_S, WORKER_BYTES_MAX
from tests.process.test_hostile_clients import Good, attack, p99, private_bytes

pytestmark = pytest.mark.process

NAMES = ["good-0", "good-1", "newcomer", "billing"]
WORKERS = 2
IDLE = 3_000
SETTINGS = {"daemon.shutdown_timeout_s": 1, "metadata.max.age.ms": 60_000}


class Access(TcpAccess):
    """Besides a key that opens one name, for the hostile ones; this host may use the others' names too."""

    def __init__(self, folder: Path) -> None:
        self.hostile = KeyPair.new()
        self.hostile_file = folder / "hostile.key"
        super().__init__(folder, NAMES, workers=WORKERS, local_uid=os.getuid())
        self.hostile_file.touch(mode=0o600)
        self.hostile_file.write_text(
            key_file_text(self.hostile.secret, self.hostile.public, self.daemon.public)
        )
        with self.config.open("a") as file:
            file.write(f'[clients.{NAME}]\n"curve.public.keys" = ["{self.hostile.public.hex()}"]\n')

    def attacker(self, seed: int, *, has_key: bool = True) -> TcpAttacker:
        file = self.hostile_file if has_key else self.stranger_file
        return TcpAttacker(read_key_file(str(file), is_client=True), self.port, WORKERS, seed)


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({"good": 1, "fuzz": 2}) as broker:
        yield broker


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    access = Access(tmp_path_factory.mktemp("access"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_FILE_VARIABLE, str(access.key_file))
        yield access


@pytest.fixture(scope="module")
def daemon(broker: FakeBroker, access: Access) -> Iterator[SidecarDaemon]:
    """One for all: what a test leaves behind is part of what the next one stands."""
    with started(broker, access) as daemon:
        yield daemon


def started(broker: FakeBroker, access: Access, **settings: object) -> SidecarDaemon:
    return SidecarDaemon(
        broker.bootstrap_servers, settings={**SETTINGS, **access.settings, **settings}, config=access.config
    )


def is_served(place: Path | str) -> float:
    """Seconds until a new client's record is delivered."""
    began_s = time.monotonic()
    with Producer(place, "newcomer", delivery_timeout_ms=SERVED_S * 1000) as producer:
        producer.send("good", value=b"here").result(timeout=SERVED_S)
    return time.monotonic() - began_s


@pytest.mark.parametrize(
    ("seed", "messages"),
    [(1, 4_000), pytest.param(2, 1_000_000, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_random_messages_of_a_peer_with_a_key(
    daemon: SidecarDaemon, broker: FakeBroker, access: Access, seed: int, messages: int
) -> None:
    good = Good(daemon, access.address)
    words = [str(access.hostile_file), str(access.port), str(WORKERS), str(seed), str(messages)]
    survives(daemon, good, ["sidecar.tools.testing.hostile_over_tcp", *words], messages)
    check_order(broker, good)


@pytest.mark.parametrize(
    ("seed", "connections"),
    [(3, 60), pytest.param(4, 20_000, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_spoilt_handshakes_of_a_peer_without_a_key(
    daemon: SidecarDaemon, broker: FakeBroker, access: Access, seed: int, connections: int
) -> None:
    good = Good(daemon, access.address)
    words = [str(access.stranger_file), str(access.port), str(WORKERS), str(seed), str(connections)]
    survives(daemon, good, ["sidecar.tools.testing.hostile_over_tcp", *words], connections)
    check_order(broker, good)


def test_idle_strangers_are_few_end_soon_and_keep_nobody_out(daemon: SidecarDaemon, access: Access) -> None:
    """From three hundred hosts, at the control port and at the workers'."""
    with ExitStack() as stack:
        pids, segment = [int(daemon.info()["pid"]), *daemon.worker_pids()], str(daemon.info()["segment"])
        is_served(access.address)
        before = {pid: private_bytes(pid, segment) for pid in pids}
        idle = []
        for number in range(IDLE):
            with suppress(OSError):
                idle.append(stack.enter_context(dial(access.port + number % 3, own_host(number % 300))))
        by_tcp, by_run_dir = is_served(access.address), is_served(daemon.run_dir)
        print(f"served in {by_tcp:.3f} s over TCP, in {by_run_dir:.3f} s by the run directory")
        for pid in pids:
            assert sockets_of(pid) <= HANDSHAKES_MAX + 100
            assert private_bytes(pid, segment) - before[pid] < WORKER_BYTES_MAX
        wait_until(lambda: all(map(is_ended, idle)), "the strangers to be ended", timeout_s=HANDSHAKE_S + 10)
        assert [int(daemon.info()["pid"]), *daemon.worker_pids()] == pids
    assert "Traceback" not in daemon.log_path.read_text()


def sockets_of(pid: int) -> int:
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found += str(each.readlink()).startswith("socket:")
    return found


def is_ended(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        while peer.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("place", ["before READY", "before ATTACH", "attached"])
def test_half_sent_frames_cost_a_worker_little(daemon: SidecarDaemon, access: Access, place: str) -> None:
    with ExitStack() as stack:
        is_served(access.address)
        pids, segment = daemon.worker_pids(), str(daemon.info()["segment"])
        before, links = {pid: private_bytes(pid, segment) for pid in pids}, list[socket.socket]()
        announced, piece = b"\x02" + FRAME_BYTES.to_bytes(8, "big"), bytes(1 << 20)
        for number in range(HALF_SENT):
            attacker = access.attacker(number)
            if place == "before READY":
                links.append(stack.enter_context(dial(access.port + 1 + number % WORKERS, attacker.host)))
                links[-1].sendall(greeting(Curve.name))
            else:
                link, epoch = attacker.attached() if place == "attached" else (attacker.bare(), 1)
                links.append(stack.enter_context(link.socket))
                assert isinstance(link, TcpLink)
                link.write(link.part(msgpack.packb(attacker.submit(epoch))))
            links[-1].settimeout(0.3)
            with suppress(OSError):
                links[-1].sendall(announced)
        highest = 0
        for peer in links:
            with suppress(OSError):
                for _ in range(FRAME_BYTES * 2 // 3 >> 20):
                    peer.sendall(piece)
            highest = max(highest, *(private_bytes(pid, segment) - before[pid] for pid in pids))
        print(f"highest: {highest >> 20} MiB")
        assert highest <= WORKER_BYTES_MAX
        is_served(access.address)
        assert daemon.worker_pids() == pids


def test_a_client_that_never_reads_keeps_nobody_waiting(daemon: SidecarDaemon, access: Access) -> None:
    """Neither answers to its pings nor outcomes of its records."""
    pids, segment = daemon.worker_pids(), str(daemon.info()["segment"])
    before = {pid: private_bytes(pid, segment) for pid in pids}
    link, epoch = access.attacker(7).attached()
    pings = [msgpack.packb([Kind.PING])] * 1_000
    with suppress(OSError):
        for seq in range(1, 51):
            link.send(access.attacker(7).submit(epoch, seq=seq, topic="fuzz"), RECORD)
            link.write(b"".join(link.encode([ping]) for ping in pings))
    print(f"served in {is_served(access.address):.3f} s")
    assert max(private_bytes(pid, segment) - before[pid] for pid in pids) < WORKER_BYTES_MAX
    assert daemon.worker_pids() == pids
    link.close()


@pytest.mark.long
@pytest.mark.parametrize("has_key", [True, False], ids=["with a key", "without a key"])
def test_random_hostile_peers_do_not_disturb_good_ones(
    daemon: SidecarDaemon, broker: FakeBroker, access: Access, has_key: bool
) -> None:
    key_file = str(access.hostile_file if has_key else access.stranger_file)

    def words(kind: str, seed: int) -> list[str]:
        return [
            "sidecar.tools.testing.hostile_over_tcp",
            key_file,
            str(access.port),
            str(WORKERS),
            str(seed),
            kind,
        ]

    alone, beside = attack(daemon, broker, ["any"] * 6, records=300, place=access.address, words=words)
    print(f"p99 alone {p99(alone) * 1000:.1f} ms, beside six {p99(beside) * 1000:.1f} ms")
    assert p99(beside) < 0.5, (p99(alone), p99(beside))


def test_a_key_that_takes_all_clients_it_can_leaves_places_and_is_named(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from eight hosts; the sentence counts by its key."""
    access = Access(tmp_path)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(access.key_file))
    with started(broker, access, **{"daemon.clients_max": 32}) as daemon, ExitStack() as stack:
        taken, words = 0, ""
        for number in range(40):
            try:
                taken_link, _ = access.attacker(number % 8).attached()
            except OSError as error:
                words = str(error)
                break
            stack.enter_context(taken_link.socket)
            taken += 1
        assert taken == 24
        assert "24 of 32 rows are taken, 24 of them by this key" in words, words
        is_served(access.address)
        is_served(daemon.run_dir)


def test_no_key_gives_orders(daemon: SidecarDaemon, access: Access) -> None:
    link = access.attacker(1).control()
    for verb, names in (("pause", ["good"]), ("drain", []), ("resume", [])):
        link.send([Kind.ORDER, verb, names])
        assert link.receive()[:2] == [Kind.REFUSED, "NOT_ALLOWED"]
    link.close()
    assert daemon.info()["takes_records"]
