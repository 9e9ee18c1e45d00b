"""Goal: over tcp:// with CURVE a client has what it has by the run dir, and a stranger gets no further than its key.

Method: a daemon with both endpoints. The same loads, kills, forks and hostile frames as over the Unix socket; the
hostile peers are libzmq's sockets and raw ones.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from zmq.utils import z85

from client_stub import Producer
from client_stub.contract.tcp import KEY_FILE_VARIABLE
from client_stub.contract.wire import PROTOCOL_VERSION, Kind
from client_stub.errors import DaemonRefused, DaemonUnreachable, SidecarError
from client_stub.zmtp.curve import KeyPair
from sidecar.common.model import ExitStatus
from sidecar.net.stubs.endpoint import MALFORMED_MAX
from sidecar.net.stubs.pending import HANDSHAKE_S
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.forked_clients import collect, enter, start_clients
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.steady_load import SteadyLoad
from sidecar.tools.testing.tcp_access import HOST, TcpAccess
from sidecar.tools.testing.waiting import wait_until
from tests.process.test_adoption import run_kills
from tests.process.test_hostile_frames import nonsense

pytestmark = [pytest.mark.process, pytest.mark.unmeasured]

NAMES = ["billing", "parent", *(f"steady-{i}" for i in range(3)), *(f"client-{i}" for i in range(8))]


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TcpAccess:
    access = TcpAccess(tmp_path, NAMES)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(access.key_file))
    return access


@pytest.fixture
def on_kafka(kafka: KafkaCluster, start_daemon: StartDaemon, access: TcpAccess) -> SidecarDaemon:
    return start_daemon(kafka.bootstrap_servers, settings=access.settings, config=access.config)


@pytest.fixture
def on_mock(mock_broker: MockBroker, start_daemon: StartDaemon, access: TcpAccess) -> SidecarDaemon:
    return start_daemon(mock_broker.bootstrap_servers, settings=access.settings, config=access.config)


# --- what clients have -------------------------------------------------------------------------------------


def test_records_topics_and_large_records(on_mock: SidecarDaemon, access: TcpAccess) -> None:
    with Producer(access.address, "billing") as producer:
        assert producer.send("smoke", b"1").result(30).offset >= 0
        assert producer.send("smoke", b"x" * 900_000).result(30).offset >= 0
        assert len(producer.partitions_for("smoke")) == 6
        bulk = producer.send_many("smoke", [(None, b"y" * 100)] * 20_000)
        assert bulk.result(30) == 20_000
    with Producer(on_mock.run_dir, "by the run dir") as producer:
        assert producer.send("smoke", b"1").result(30).offset >= 0


@pytest.mark.kafka
def test_workers_killed_at_random(
    on_kafka: SidecarDaemon, kafka: KafkaCluster, new_topic: NewTopic, access: TcpAccess
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    run_kills(on_kafka, kafka, new_topic(partitions=3), kills=6, seed=seed, place=access.address)


@pytest.mark.kafka
def test_the_whole_daemon_killed_and_started(
    on_kafka: SidecarDaemon, kafka: KafkaCluster, new_topic: NewTopic, access: TcpAccess
) -> None:
    with SteadyLoad(kafka.bootstrap_servers, access.address, new_topic(partitions=3), clients=3) as load:
        for _ in range(2):
            load.wait_more()
            on_kafka.kill_all()
            on_kafka.start()
        load.wait_more()
        load.check()
    assert "Traceback" not in on_kafka.log_path.read_text()


@pytest.mark.kafka
def test_takeover_under_load(
    on_kafka: SidecarDaemon, kafka: KafkaCluster, new_topic: NewTopic, access: TcpAccess
) -> None:
    """The successor opens the same port, once its predecessor has left it."""
    with SteadyLoad(kafka.bootstrap_servers, access.address, new_topic(partitions=3), clients=3) as load:
        load.wait_more()
        assert on_kafka.take_over().returncode == ExitStatus.OK, on_kafka.log_tail()
        load.wait_more()
        load.check()
    assert "Traceback" not in on_kafka.log_path.read_text()


@pytest.mark.kafka
def test_forked_clients_are_clients_of_their_own(
    on_kafka: SidecarDaemon, kafka: KafkaCluster, new_topic: NewTopic, access: TcpAccess
) -> None:
    topic = new_topic(partitions=3)
    ledger = Ledger()
    reports = collect(start_clients(access.address, topic, 8, 300))
    enter(reports, ledger)
    assert len(reports) == 9
    for record in read_topic(kafka.bootstrap_servers, topic):
        ledger.read(RecordId.decode(record.value or b""), record.partition)
    ledger.check()


def test_a_worker_whose_port_another_process_has_takes_it_once_it_is_free(
    mock_broker: MockBroker, start_daemon: StartDaemon, access: TcpAccess
) -> None:
    squatters = [socket.create_server((HOST, access.port + 1 + index)) for index in range(2)]
    try:
        daemon = start_daemon(mock_broker.bootstrap_servers, settings=access.settings, config=access.config)
        wait_until(
            lambda: any("port after daemon.listen is not open" in line for line in daemon.log_lines()),
            "the sentence",
        )
    finally:
        for each in squatters:
            each.close()
    with Producer(access.address, "billing", connect_timeout_ms=30_000) as producer:
        assert producer.send("smoke", b"1").result(30).offset >= 0


# --- who may come ------------------------------------------------------------------------------------------


def refused(error: type[SidecarError], words: str, *arguments: Any, **options: Any) -> None:
    producer = Producer(*arguments, connect_timeout_ms=2_000, **options)
    try:
        with pytest.raises(error, match=words):
            producer.send("smoke", b"1").result(20)
    finally:
        producer.close(0)


def test_keys_and_names_decide(on_mock: SidecarDaemon, access: TcpAccess, tmp_path: Path) -> None:
    refused(DaemonRefused, r"needs a table \[clients.other\] that has this key", access.address, "other")
    refused(
        DaemonRefused,
        "does not know this client's public key",
        access.address,
        "billing",
        curve_key_file=access.stranger_file,
    )
    wrong = tmp_path / "wrong.key"
    wrong.touch(mode=0o600)
    wrong.write_text(
        access.key_file.read_text().replace(access.daemon.public.hex(), KeyPair.new().public.hex())
    )
    refused(
        DaemonUnreachable, "is server-key its public key", access.address, "billing", curve_key_file=wrong
    )
    refused(DaemonRefused, "curve.public.keys only, and neither uids nor gids", on_mock.run_dir, "billing")
    log = on_mock.log_path.read_text()
    words = "which is in no curve.public.keys of [clients.NAME]"
    assert f"with the public key {access.stranger.public.hex()}, {words}" in log
    assert all(keys.secret.hex() not in log for keys in (access.daemon, access.client, access.stranger))


def test_a_key_that_a_reload_takes_away_is_cut(on_mock: SidecarDaemon, access: TcpAccess) -> None:
    with Producer(access.address, "billing", connect_timeout_ms=2_000) as producer:
        assert producer.send("smoke", b"1").result(30).offset >= 0
        access.allow(["parent"])
        assert on_mock.command("reload").returncode == ExitStatus.OK

        def cut() -> bool:
            try:
                producer.send("smoke", b"2").result(0.2)
            except (SidecarError, TimeoutError) as error:
                return "needs a table [clients.billing] that has this key" in str(error)
            return False

        wait_until(cut, "the client to be refused")
        producer.close(0)


@pytest.mark.parametrize("stranger", ["key", "null", "plain bytes"])
def test_strangers_reach_neither_port(on_mock: SidecarDaemon, access: TcpAccess, stranger: str) -> None:
    """No frame of theirs is looked at: nothing of them is counted as malformed, and their connections end."""
    pids = on_mock.worker_pids()
    hello = msgpack.packb([int(Kind.HELLO), PROTOCOL_VERSION, bytes(20), "billing", 1, None])
    for port in range(access.port, access.port + 3):
        if stranger == "plain bytes":
            with socket.create_connection((HOST, port), timeout=10) as raw:
                raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
                while raw.recv(4096):
                    pass
            continue
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.RCVTIMEO, 700)
            if stranger == "key":
                use_keys(dealer, access, access.stranger)
            dealer.connect(f"tcp://{HOST}:{port}")
            dealer.send(hello)
            with pytest.raises(zmq.Again):
                dealer.recv()
    assert metric(on_mock, "kafka_sidecar_malformed_frames_total") == 0
    assert on_mock.worker_pids() == pids
    with Producer(access.address, "billing", connect_timeout_ms=30_000) as producer:
        assert producer.send("smoke", b"1").result(30).offset >= 0


# --- hostile peers -----------------------------------------------------------------------------------------


def use_keys(dealer: zmq.Socket[bytes], access: TcpAccess, keys: KeyPair) -> None:
    dealer.curve_secretkey, dealer.curve_publickey = z85.encode(keys.secret), z85.encode(keys.public)
    dealer.curve_serverkey = z85.encode(access.daemon.public)


def test_nonsense_in_boxes_hurts_nobody(
    on_mock: SidecarDaemon, access: TcpAccess, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    pids = on_mock.worker_pids()
    dealers = []
    for port in range(access.port, access.port + 3):
        frames = nonsense()
        for start in range(0, len(frames), MALFORMED_MAX):
            dealer = context.socket(zmq.DEALER)
            dealers.append(dealer)
            use_keys(dealer, access, access.client)
            dealer.connect(f"tcp://{HOST}:{port}")
            for each in frames[start : start + MALFORMED_MAX]:
                dealer.send_multipart(each)
    wait_until(
        lambda: metric(on_mock, "kafka_sidecar_malformed_frames_total") >= len(nonsense()),
        "the malformed frames to be counted",
        describe=lambda: f"counted: {metric(on_mock, 'kafka_sidecar_malformed_frames_total')}",
    )
    for dealer in dealers:
        dealer.close(linger=0)
    with Producer(access.address, "billing", connect_timeout_ms=30_000) as producer:
        assert producer.send("smoke", b"1").result(30).offset >= 0
    assert on_mock.worker_pids() == pids
    assert "Traceback" not in on_mock.log_path.read_text()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_open(port: int) -> bool:
    with socket.socket() as raw:
        return not raw.connect_ex((HOST, port))


def test_half_open_connections_cost_little_and_end(on_mock: SidecarDaemon, access: TcpAccess) -> None:
    """Half a greeting, half a HELLO, and a frame of 60 MiB that is announced before READY: by hundreds."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    beginnings = [
        b"",
        greeting[:30],
        greeting + b"\x04\xc8\x05HELLO\x01",
        greeting + b"\x06" + (60 << 20).to_bytes(8, "big") + b"\x05HELLO",
    ]
    # The daemon takes records as soon as its first worker does.
    wait_until(
        lambda: all(map(is_open, (access.port + 1, access.port + 2))), "both workers' ports to be open"
    )
    pids = on_mock.worker_pids()
    before = {pid: resident_bytes(pid) for pid in pids}
    opened: list[socket.socket] = []
    try:
        for _ in range(30):
            for data in beginnings:
                for port in (access.port + 1, access.port + 2):
                    raw = socket.create_connection((HOST, port), timeout=10)
                    opened.append(raw)
                    raw.sendall(data)
        # A penalty of this host is time that the next connection waits, not a closed door.
        with Producer(access.address, "billing", connect_timeout_ms=30_000) as producer:
            assert producer.send("smoke", b"1").result(30).offset >= 0
        grown = {pid: resident_bytes(pid) - before[pid] for pid in pids}
        assert max(grown.values()) < 16 << 20, grown
        ends = time.monotonic() + HANDSHAKE_S + 10
        for raw in opened:
            raw.settimeout(max(0.1, ends - time.monotonic()))
            try:
                while raw.recv(4096):
                    pass
            except ConnectionError:
                pass
    finally:
        for raw in opened:
            raw.close()
    assert on_mock.worker_pids() == pids


def test_records_of_a_killed_client_are_delivered(on_mock: SidecarDaemon, access: TcpAccess) -> None:
    """Its accepted records are delivered: the daemon has them, as over the run dir."""
    before = metric(on_mock, "kafka_sidecar_records_delivered_total")
    child = os.fork()
    if not child:
        producer = Producer(access.address, "client-0")
        for _ in range(500):
            producer.send("smoke", b"x" * 100)
        producer.flush(30)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    wait_until(
        lambda: metric(on_mock, "kafka_sidecar_records_delivered_total") >= before + 500, "the records"
    )
