"""Goal: whatever a local process throws at the sockets, no worker dies and nobody else notices.

Method: raw ZeroMQ DEALERs send nonsense to the control endpoint and to each worker's endpoint, before and after a
proper handshake. Then an ordinary client must be served by the same processes as before.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgpack
import pytest
import zmq

from client_stub import Producer
from client_stub.contract.wire import PROTOCOL_VERSION, Format, Kind, LocalCode, Outcome, OutcomeKind
from sidecar.net.stubs.endpoint import MALFORMED_MAX
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.waiting import wait_until
from tests.outcomes import unpack_outcomes

pytestmark = [pytest.mark.process, pytest.mark.kafka]

CLIENT_ID = bytes(range(16)) + b"\0\0\0\0"


def nonsense() -> list[list[bytes]]:
    """Frames that no stub sends; the seed is fixed, so a failure repeats."""
    chance = random.Random(4711)
    pack = msgpack.packb
    crafted: list[list[bytes]] = [
        [b""],
        [b"", b""],
        [b"\xc1"],  # never used in msgpack
        [pack([])],
        [pack("HELLO")],
        [pack([None])],
        [pack([255, 1, 2])],
        [pack({1: 2})],
        [b"\xdd\xff\xff\xff\xff"],  # an array of 4 billion elements, none of which is there
        [b"\x91" * 5_000],  # arrays in arrays
        [pack([int(Kind.HELLO)])],
        [pack([int(Kind.HELLO), PROTOCOL_VERSION, b"short", "name", 1, None])],
        [pack([int(Kind.HELLO), "one", CLIENT_ID, 5, "pid", 7])],
        [pack([int(Kind.ATTACH), PROTOCOL_VERSION, CLIENT_ID, "name", 1, 0, b"forged", None])],
        [pack([int(Kind.SUBMIT), 0, 1, 1, "topic", 0, int(Format.MSGPACK), 0, 1]), b"\x92\xc0\xc0"],
        [pack([int(Kind.SUBMIT), -1, -1, -1, "t" * 300, -1, 99, 1 << 40, 1 << 40])],
        [pack([int(Kind.ACK), 1 << 70 >> 7])],
        [pack([int(Kind.ACK), -5])],
        [pack([int(Kind.FLUSH), 1, 1])],
        [pack([int(Kind.BYE), "yes"])],
        [pack([int(Kind.TOPICS), 7])],
        [pack([int(Kind.PING)]), b"x" * 100_000],
        [b"x"] * 50,
    ]
    noise = [
        [chance.randbytes(chance.randrange(64)) for _ in range(chance.randrange(1, 4))] for _ in range(200)
    ]
    return crafted + noise


def endpoints(daemon: SidecarDaemon) -> list[str]:
    workers = [str(worker["endpoint"]) for worker in daemon.info()["workers"]]
    return [f"ipc://{daemon.run_dir}/control.sock", *(_address(daemon.run_dir, each) for each in workers)]


def _address(run_dir: Path, endpoint: str) -> str:
    return endpoint if "://" in endpoint else f"ipc://{run_dir / endpoint}"


def test_nonsense_hurts_nobody(
    daemon: SidecarDaemon,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    topic = new_topic(partitions=2)
    pids = daemon.worker_pids()
    sockets = []  # one that nobody holds is closed with what it has not sent yet
    for endpoint in endpoints(daemon):
        frames = nonsense()
        for start in range(0, len(frames), MALFORMED_MAX):  # with more of them a connection is closed
            socket = context.socket(zmq.DEALER)
            sockets.append(socket)
            socket.connect(endpoint)
            for each in frames[start : start + MALFORMED_MAX]:
                socket.send_multipart(each)
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_malformed_frames_total") >= len(nonsense()),
        "the malformed frames to be counted",
        describe=lambda: f"counted: {metric(daemon, 'kafka_sidecar_malformed_frames_total')}",
    )
    # A process that sends nonsense waits for its next connections, and this one has sent it. With libzmq it would go
    # on connecting, and the good client needs patience until the points are back.
    for socket in sockets:
        socket.close(linger=0)
    with Producer(run_dir=str(daemon.run_dir), client_name="ordinary", connect_timeout_ms=30_000) as producer:
        deliveries = [producer.send(topic, value=b"%d" % i, key=b"k") for i in range(100)]
        for delivery in deliveries:
            delivery.result(timeout=30)
    assert daemon.worker_pids() == pids
    assert [record.value for record in read_topic(kafka.bootstrap_servers, topic)] == [
        b"%d" % i for i in range(100)
    ]


class RawClient:
    """A stub of a few lines: a proper handshake, then whatever the test wants to send."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], run_dir: Path) -> None:
        control = context.socket(zmq.DEALER)
        control.connect(f"ipc://{run_dir}/control.sock")
        control.send(msgpack.packb([int(Kind.HELLO), PROTOCOL_VERSION, CLIENT_ID, "raw", 1, None]))
        kind, endpoint, self.epoch, ticket = self._receive(control)[0]
        assert kind == Kind.ASSIGNED
        self._socket = context.socket(zmq.DEALER)
        self._socket.connect(_address(run_dir, str(endpoint)))
        self.send([int(Kind.ATTACH), PROTOCOL_VERSION, CLIENT_ID, "raw", 1, self.epoch, ticket, None])
        assert self.receive()[0][0] == Kind.WELCOME

    def send(self, message: list[object], *frames: bytes) -> None:
        self._socket.send_multipart([msgpack.packb(message), *frames])

    def receive(self) -> tuple[list[object], list[bytes]]:
        return self._receive(self._socket)

    @staticmethod
    def _receive(socket: zmq.Socket[bytes]) -> tuple[list[object], list[bytes]]:
        assert socket.poll(10_000), "no answer within 10 s"
        first, *rest = socket.recv_multipart()
        return msgpack.unpackb(first), rest

    def submit(self, seq: int, topic: str, count: int, payload: bytes) -> None:
        self.send(
            [int(Kind.SUBMIT), self.epoch, 1, seq, topic, 1_700_000_000_000, int(Format.MSGPACK), 1, count],
            payload,
        )

    def outcomes(self, records: int) -> list[Outcome]:
        """Every outcome until ``records`` records of stream 1 have one."""
        found: list[Outcome] = []
        while sum(outcome.count for outcome in found) < records:
            message, frames = self.receive()
            if message[0] == Kind.OUTCOMES:
                found += unpack_outcomes(frames[0])
                self.send([int(Kind.ACK), message[2]])
        return found


def test_malformed_payload_fails_from_the_first_unreadable_record_on(
    daemon: SidecarDaemon,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    topic = new_topic(partitions=1)
    client = RawClient(context, daemon.run_dir)
    good = [msgpack.packb([b"k", b"good-%d" % i]) for i in range(5)]
    client.submit(1, topic, 5, b"".join([*good[:3], b"\xc1\xc1", good[4]]))
    outcomes = client.outcomes(5)
    delivered = sum(each.count for each in outcomes if each.kind == OutcomeKind.DELIVERED)
    failed = [each for each in outcomes if each.kind == OutcomeKind.FAILED]
    assert delivered == 3
    assert {each.code for each in failed} == {LocalCode.MALFORMED_RECORD}
    assert sum(each.count for each in failed) == 2
    # The sequence number stays used, and the stream goes on.
    client.submit(2, topic, 1, msgpack.packb([b"k", b"after"]))
    assert [each.kind for each in client.outcomes(1)] == [OutcomeKind.DELIVERED]
    values = [record.value for record in read_topic(kafka.bootstrap_servers, topic)]
    assert values == [b"good-0", b"good-1", b"good-2", b"after"]
