"""Goal: keys of both ends change while records flow, connections are cut, workers die, and the ledger balances.

Method: relays stand before the ports of a daemon that listens on another address of loopback; they cut connections,
and hear what clients say.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.contract.tcp import KEY_FILE_VARIABLE
from client_stub.zmtp.curve import KeyPair
from client_stub.zmtp.keys import key_file_text
from sidecar.common.model import ExitStatus
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.forked_clients import collect, start_clients
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.steady_load import SteadyLoad
from sidecar.tools.testing.tcp_access import TcpAccess
from sidecar.tools.testing.tcp_relay import TcpRelay
from sidecar.tools.testing.waiting import wait_until
from tests.process.test_adoption import kill, ready_workers, replaced

pytestmark = [pytest.mark.process, pytest.mark.unmeasured]

WORKERS = 2
DAEMON_HOST = "127.0.0.2"
NAMES = ["billing", "parent", *(f"steady-{i}" for i in range(3)), *(f"client-{i}" for i in range(4))]


class Relayed(TcpAccess):
    """The daemon's ports behind relays; ``heard``: what each connection's client has said."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NAMES, workers=WORKERS, daemon_host=DAEMON_HOST)
        self.heard: list[list[bytes]] = []
        self.relays = [
            TcpRelay(port, target_host=DAEMON_HOST, port=port, tap=self.heard)
            for port in range(self.port, self.port + 1 + WORKERS)
        ]

    def write_daemon(self, *keys: KeyPair) -> None:
        replace(self.daemon_file, "".join(key_file_text(each.secret, each.public) for each in keys))

    def write_client(self, keys: KeyPair, server: KeyPair) -> None:
        replace(self.key_file, key_file_text(keys.secret, keys.public, server.public))


def replace(path: Path, text: str) -> None:
    """As an administrator does it: never half a file."""
    beside = path.with_suffix(".new")
    beside.touch(0o600)
    beside.write_text(text)
    beside.rename(path)


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relayed]:
    access = Relayed(tmp_path)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(access.key_file))
    with ExitStack() as stack:
        for relay in access.relays:
            relay.start()
            stack.callback(relay.stop)
        yield access


@pytest.mark.kafka
def test_connections_cut_and_workers_killed(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, access: Relayed
) -> None:
    """Six times by chance: a cut of all connections of a port, or of all ports, a killed worker, both."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    daemon = start_daemon(kafka.bootstrap_servers, settings=access.settings, config=access.config)
    with SteadyLoad(kafka.bootstrap_servers, access.address, new_topic(partitions=3), clients=3) as load:
        load.wait_more()
        for turn in range(6):
            cut = access.relays if turn % 3 == 2 else [chance.choice(access.relays[1:])]
            for relay in cut:
                relay.cut()
            if turn % 2:
                kill(chance.choice(ready_workers(daemon)))
                wait_until(lambda: len(ready_workers(daemon)) == WORKERS, "two workers to be ready")
            load.wait_more(200)
        load.check()
    assert "Traceback" not in daemon.log_path.read_text()


@pytest.mark.kafka
def test_both_ends_keys_change_under_load(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, access: Relayed
) -> None:
    """The daemon's, with both known meanwhile; then the client's; connections are cut between, and a worker dies, whose
    successor reads the file. At the end the old keys open nothing."""
    daemon = start_daemon(kafka.bootstrap_servers, settings=access.settings, config=access.config)
    new_daemon, new_client = KeyPair.new(), KeyPair.new()

    def cut() -> None:
        for relay in access.relays:
            relay.cut()
        load.wait_more(200)

    with SteadyLoad(kafka.bootstrap_servers, access.address, new_topic(partitions=3), clients=3) as load:
        load.wait_more()
        access.write_daemon(new_daemon, access.daemon)
        cut()
        access.write_client(access.client, new_daemon)
        cut()
        access.write_daemon(new_daemon)
        victim = ready_workers(daemon)[0]
        kill(victim)
        replaced(daemon, victim, WORKERS)
        cut()
        access.allow(NAMES, access.client, new_client)
        assert daemon.command("reload").returncode == ExitStatus.OK
        # One that is between two connections may have read the old key, and would come again with the new one.
        since_s = time.monotonic()
        wait_until(
            lambda: all(each.last_delivered_s > since_s for each in load.clients), "each client to be back"
        )
        access.write_client(new_client, new_daemon)
        access.allow(NAMES, new_client)
        before = load.delivered
        assert daemon.command("reload").returncode == ExitStatus.OK
        wait_until(lambda: load.delivered > before + 500, "records by the new key")
        load.check()
    log = daemon.log_path.read_text()
    assert "Traceback" not in log
    assert f"New connections over TCP find the public key {new_daemon.public.hex()}." in log
    assert all(
        each.secret.hex() not in log for each in (access.daemon, new_daemon, access.client, new_client)
    )
    shown = daemon.command("status").stdout
    assert f"public key {new_daemon.public.hex()}" in shown, shown


def test_another_address_is_refused_and_both_are_shown(
    mock_broker: MockBroker, start_daemon: StartDaemon, access: Relayed
) -> None:
    """By the names of the settings; and the public key is in status and doctor."""
    clients = access.config.read_text()
    settings = access.settings
    text = '[daemon]\nlisten = "{}"\ncurve_key_file = "{}"\n' + clients
    own, other = (
        str(settings["daemon.listen"]),
        str(settings["daemon.listen"]).replace("127.0.0.2", "127.0.0.3"),
    )
    key_file = str(settings["daemon.curve_key_file"])
    access.config.write_text(text.format(own, key_file))
    daemon = start_daemon(mock_broker.bootstrap_servers, config=access.config)
    elsewhere = access.daemon_file.with_name("other.key")
    elsewhere.touch(0o600)
    elsewhere.write_text(access.daemon_file.read_text())
    for changed, name in (
        ((other, key_file), "daemon.listen"),
        ((own, str(elsewhere)), "daemon.curve_key_file"),
    ):
        access.config.write_text(text.format(*changed))
        refused = daemon.command("reload")
        assert refused.returncode == ExitStatus.NEEDS_TAKEOVER
        assert (
            f"{name} " in refused.stderr and "needs a restart: kafka-sidecar run --takeover" in refused.stderr
        )
    access.config.write_text(text.format(own, key_file))
    key = access.daemon.public.hex()
    assert f"  tcp       {own}, public key {key}\n" in daemon.command("status").stdout
    assert f"Clients over TCP: {own} and the 2 ports after it; the daemon's public key is {key}." in (
        daemon.command("doctor").stdout
    )
    with Producer(access.address, "billing") as producer:
        assert producer.send("smoke", b"1").result(30).offset >= 0


# --- what is on the wire -----------------------------------------------------------------------------------


def nonces_of(said: bytes) -> list[tuple[bytes, int]]:
    """(the connection's own key, nonce) of HELLO, INITIATE and each MESSAGE of a client, as far as they came."""
    found: list[tuple[bytes, int]] = []
    at, key = 64, b""
    while at < len(said):
        head = 9 if said[at] & 2 else 2
        if at + head > len(said):
            break
        size = struct.unpack_from(">Q", said, at + 1)[0] if said[at] & 2 else said[at + 1]
        body = said[at + head : at + head + size]
        name = body[1 : 1 + body[0]]
        place = {b"HELLO": 112, b"INITIATE": 105, b"MESSAGE": 8}[name]
        if name == b"HELLO":
            key = body[80:112]
        if len(body) >= place + 8:
            found.append((key, struct.unpack_from(">Q", body, place)[0]))
        at += head + size
    return found


def test_no_nonce_is_used_twice_over_reconnects_and_forks(start_daemon: StartDaemon, access: Relayed) -> None:
    """Forked children send by the producer object that they inherit; connections are cut meanwhile."""
    with FakeBroker({"smoke": 1}) as broker:
        start_daemon(broker.bootstrap_servers, settings=access.settings, config=access.config)
        clients = start_clients(access.address, "smoke", 4, 200)
        with Producer(access.address, "billing") as producer:
            for _ in range(5):
                producer.send("smoke", b"1").result(30)
                for relay in access.relays:
                    relay.cut()
            producer.send("smoke", b"1").result(30)
        assert len(collect(clients)) == 5
    spoken = [nonces_of(b"".join(pieces)) for pieces in access.heard]
    keys = [{key for key, _ in each} for each in spoken if each]
    assert len(keys) >= 20 and all(len(each) == 1 for each in keys)
    assert len(set().union(*keys)) == len(keys), "a key for each connection"
    for each in spoken:
        numbers = [number for _, number in each]
        assert numbers == sorted(set(numbers)), "each is larger than the one before"
    assert max(map(len, spoken)) > 3, "messages behind HELLO and INITIATE"
