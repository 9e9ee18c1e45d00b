"""Goal: [clients.NAME] decides by the kernel's word who comes, where to and how fast, at both doors and live."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest
import zmq

from client_stub import Producer
from client_stub.contract.wire import PROTOCOL_VERSION, Kind
from sidecar.common.model import ExitStatus
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import RecordId
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.steady_load import SteadyClient, judge
from sidecar.tools.testing.waiting import wait_until
from tests.tools import ROOT_USER, needs

pytestmark = [
    pytest.mark.process,
    needs(ROOT_USER),
]

USER, OTHER, GROUP = 31_001, 31_002, 31_003

_CLIENT = """
import json, os, sys
from client_stub import Producer
uid, groups, run_dir, name, token = json.loads(sys.argv[1])
os.setgroups(groups); os.setgid(0); os.setuid(uid)
producer = Producer(run_dir=run_dir, client_name=name, token=token)
for line in sys.stdin:
    try:
        delivery = producer.send(line.strip(), b"x")
        delivery.result(20)
        print("ok", flush=True)
    except Exception as error:
        print(getattr(error, "name", ""), error, flush=True)
producer.close(0)
"""

_ATTACH = """
import json, os, sys
import msgpack, zmq
uid, endpoint, attach = json.loads(sys.argv[1])
os.setgroups([]); os.setgid(0); os.setuid(uid)
socket = zmq.Context.instance().socket(zmq.DEALER)
socket.setsockopt(zmq.LINGER, 0)
socket.connect(endpoint)
socket.send(bytes.fromhex(attach))
print(socket.poll(10_000) and msgpack.unpackb(socket.recv())[:3])
"""


class Client:
    """A Producer in a process of another user. Its group may use the run dir; ``groups`` are further ones."""

    def __init__(
        self,
        daemon: SidecarDaemon,
        name: str,
        uid: int,
        groups: tuple[int, ...] = (),
        token: str | None = None,
    ) -> None:
        words = json.dumps([uid, groups, str(daemon.run_dir), name, token])
        self.process = subprocess.Popen(
            dying_with_parent([sys.executable, "-c", _CLIENT, words]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, topic: str = "smoke") -> str:
        """Send one record; "ok", or its error's name and text."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{topic}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


StartClient = Callable[..., Client]


@pytest.fixture
def client() -> Iterator[StartClient]:
    started: list[Client] = []

    def start(*arguments: object, **options: object) -> Client:
        started.append(Client(*arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "sidecar.toml"
    found.touch(0o600)
    return found


def started(start_daemon: StartDaemon, broker: MockBroker, file: Path, text: str) -> SidecarDaemon:
    file.write_text(text)
    daemon = start_daemon(broker.bootstrap_servers, config=file)
    daemon.run_dir.chmod(0o750)
    return daemon


def reload(daemon: SidecarDaemon, file: Path, text: str) -> None:
    file.write_text(text)
    done = daemon.command("reload")
    assert done.returncode == ExitStatus.OK, done.stderr


def test_users_groups_and_unlisted_names(
    start_daemon: StartDaemon, mock_broker: MockBroker, file: Path, client: StartClient
) -> None:
    daemon = started(
        start_daemon,
        mock_broker,
        file,
        f"""
        [clients.billing]
        uids = [{USER}]
        [clients.etl]
        gids = [{GROUP}]
        [daemon]
        unlisted_clients = "deny"
        """,
    )
    assert client(daemon, "billing", USER).send() == "ok"
    assert client(daemon, "etl", OTHER, (GROUP,)).send() == "ok"
    for name, uid, words in (
        ("billing", OTHER, f'Client "billing" of uid {OTHER} is not admitted: [clients.billing]'),
        ("etl", USER, f'Client "etl" of uid {USER} is not admitted: [clients.etl]'),
        ("billing", 0, 'Client "billing" of uid 0 is not admitted'),
        ("other", USER, "daemon.unlisted_clients is deny"),
    ):
        answer = client(daemon, name, uid).send()
        assert answer.startswith("NOT_ADMITTED The daemon refused this client:"), answer
        assert words in answer
    assert "Refused: " in daemon.log_path.read_text()


def test_the_workers_door_is_no_way_around(
    start_daemon: StartDaemon, mock_broker: MockBroker, file: Path
) -> None:
    """A user who may not come has the ticket of one who may: the worker sees who it is, too."""
    daemon = started(start_daemon, mock_broker, file, "[clients.ours]\nuids = [0]\n")
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"ipc://{daemon.run_dir}/control.sock")
        client_id = os.urandom(20)
        dealer.send(msgpack.packb([Kind.HELLO, PROTOCOL_VERSION, client_id, "ours", os.getpid(), None]))
        assert dealer.poll(10_000)
        _, endpoint, epoch, ticket = msgpack.unpackb(dealer.recv())[:4]
    finally:
        dealer.close()
        context.term()
    if not endpoint.startswith("ipc:///"):
        endpoint = f"ipc://{daemon.run_dir}/{endpoint.removeprefix('ipc://')}"
    attach = [Kind.ATTACH, PROTOCOL_VERSION, client_id, "ours", os.getpid(), epoch, ticket, None]
    for uid, words in ((USER, "NOT_ALLOWED"), (0, "[11,")):
        arguments = json.dumps([uid, endpoint, msgpack.packb(attach).hex()])
        done = subprocess.run(
            [sys.executable, "-c", _ATTACH, arguments], capture_output=True, text=True, check=True, timeout=60
        )
        assert words in done.stdout, (uid, done.stdout)


def test_tokens_change_over(
    start_daemon: StartDaemon, mock_broker: MockBroker, file: Path, tmp_path: Path, client: StartClient
) -> None:
    """Old and new are accepted for a while; then a client with the old one is asked again, and refused."""
    tokens = tmp_path / "tokens"
    tokens.write_text("old\n")
    text = f'[clients.billing]\ntoken.file = "{tokens}"\n'
    daemon = started(start_daemon, mock_broker, file, text)
    with_old = client(daemon, "billing", USER, token="old")
    assert with_old.send() == "ok"
    tokens.write_text("old\nnew\n")
    reload(daemon, file, text)
    with_new = client(daemon, "billing", USER, token="new")
    assert (with_old.send(), with_new.send()) == ("ok", "ok")
    tokens.write_text("new\n")
    reload(daemon, file, text)
    assert with_new.send() == "ok"
    assert "gave a token that is none of those of [clients.billing]" in with_old.send()
    for secret in ("old", "new"):
        assert not re.search(rf"token\W+{secret}\b", daemon.log_path.read_text())


def test_topics_are_withdrawn_and_given_back_live(
    start_daemon: StartDaemon, mock_broker: MockBroker, file: Path
) -> None:
    daemon = started(start_daemon, mock_broker, file, "")
    with Producer(run_dir=str(daemon.run_dir), client_name="app") as producer:
        producer.send("smoke", b"x").result(20)
        reload(daemon, file, '[clients.app]\ntopics.deny = ["sm*"]\n')
        error = producer.send("smoke", b"x").exception(20)
        assert getattr(error, "name", "") == "TOPIC_AUTHORIZATION_FAILED"
        assert 'topics.deny of [clients.app] has "sm*"' in str(error)
        with Producer(run_dir=str(daemon.run_dir), client_name="free") as other:
            other.send("smoke", b"x").result(20)
        os.kill(daemon.worker_pids()[0], signal.SIGKILL)
        os.kill(daemon.worker_pids()[-1], signal.SIGKILL)
        assert producer.send("smoke", b"x").exception(20) is not None, "also at the workers that come after"
        reload(daemon, file, "")
        producer.send("smoke", b"x").result(20)


def test_discards_are_seen(start_daemon: StartDaemon, mock_broker: MockBroker, file: Path) -> None:
    text = '[clients.app]\nrecords.per.second = 10\nover.limit = "discard"\n'
    daemon = started(start_daemon, mock_broker, file, text)
    with Producer(run_dir=str(daemon.run_dir), client_name="app") as producer:
        deliveries = []
        for _ in range(30):
            deliveries.append(producer.send("smoke", b"x"))
            producer.flush(20)
        errors = [each.exception(20) for each in deliveries]
    names = [getattr(error, "name", "") for error in errors if error is not None]
    assert set(names) == {"THROTTLING_QUOTA_EXCEEDED"}

    def reported() -> int:
        return sum(each["records"] for each in daemon.info()["failures"])

    wait_until(lambda: reported() == len(names), "the worker's reports")
    (shown,) = daemon.info()["failures"]
    assert (shown["topic"], shown["client"]) == ("smoke", "app")
    assert shown["first_ms"] <= shown["last_ms"]
    (row,) = [each for each in daemon.command("status").stdout.splitlines() if "discard" in each]
    assert row.startswith(f"  failed    {len(names)} of topic smoke: THROTTLING_QUOTA_EXCEEDED, last ")
    (line,) = [each for each in daemon.log_path.read_text().splitlines() if "discarded" in each]
    assert (
        "topic smoke failed: THROTTLING_QUOTA_EXCEEDED: The record was discarded: client app is at its"
        in line
    )
    assert line.endswith("raise the rate in [clients.NAME] and run `kafka-sidecar reload`.")


@pytest.mark.kafka
def test_a_client_is_withdrawn_under_load(
    kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, file: Path
) -> None:
    """The others lose and double nothing; of the withdrawn one nothing is doubled, and its accepted records arrive."""
    daemon = start_daemon(kafka.bootstrap_servers, config=file)
    topic = new_topic(partitions=3)
    clients = [SteadyClient(daemon.run_dir, topic, name) for name in ("stays-0", "stays-1", "goes")]
    goes = clients[-1]
    try:
        wait_until(lambda: all(len(each.outcomes) > 200 for each in clients), "records to flow")
        reload(daemon, file, "[clients.goes]\nuids = [4242]\n")
        refused = 'Client "goes" of uid 0 is not admitted'
        wait_until(lambda: refused in goes._producer.stats().why_away, "the refusal")
        before = len(clients[0].outcomes)
        wait_until(lambda: len(clients[0].outcomes) > before + 200, "records to go on")
        assert goes.raised is None, "its records wait, as the reload may be a mistake"
        goes.abandon()
        for each in clients[:2]:
            each.finish()
    finally:
        for each in clients:
            each.abandon()

    def of_the_withdrawn(record: RecordId) -> bool:
        return record.producer == "goes"

    judge(kafka.bootstrap_servers, topic, clients, may_fail=of_the_withdrawn)
    assert daemon.stop() == ExitStatus.OK, daemon.log_tail()
    assert "Traceback" not in daemon.log_path.read_text()
