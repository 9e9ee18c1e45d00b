"""StubPort, Intake and Topics on a real segment; only the sockets are a list of what was sent."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import msgpack

from client_stub.contract.wire import Format, Kind, Outcome
from sidecar.common.tickets import attach_ticket
from sidecar.config.client_rules import Caller
from sidecar.net.stubs import peer as credentials
from tests.outcomes import unpack_outcomes
from tests.worker.harness import Harness
from tests.worker.manual_worker import EPOCH, KEY

BASE_TIMESTAMP_MS = 1_700_000_000_000
RECORD = msgpack.packb([b"k", b"v"])


class ListedEndpoint:
    """Takes every message; ``processes`` and ``users``: pids and uids by routing id."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, list[Any], list[bytes]]] = []
        self.attached: set[bytes] = set()
        self.nonsense: Counter[bytes] = Counter()
        self.useless: Counter[bytes] = Counter()
        self.processes: dict[bytes, int] = {}
        self.users: dict[bytes, int] = {}

    def send(self, routing_id: bytes, frames: list[bytes]) -> bool:
        self.sent.append((routing_id, msgpack.unpackb(frames[0]), frames[1:]))
        return True

    def has_attached(self, routing_id: bytes) -> None:
        self.attached.add(routing_id)

    def has_detached(self, routing_id: bytes) -> None:
        self.attached.discard(routing_id)

    def sent_nonsense(self, routing_id: bytes) -> None:
        self.nonsense[routing_id] += 1

    def sent_useless(self, routing_id: bytes) -> None:
        self.useless[routing_id] += 1

    def caller(self, routing_id: bytes) -> Caller:
        return Caller(self.users.get(routing_id, 0))

    def peer(self, routing_id: bytes) -> credentials.Peer:
        return credentials.Peer(self.processes.get(routing_id, 0), self.users.get(routing_id, 0), 0)


class Peer:
    """A stub of a few lines at the other end."""

    def __init__(
        self, port_harness: PortHarness, routing_id: bytes, name: str, client_id: bytes, pid: int
    ) -> None:
        self.port_harness = port_harness
        self.routing_id = routing_id
        self.name = name
        self.client_id = client_id
        self.pid = pid
        self.secret: bytes | None = None
        self.token_digest = b""
        port_harness.endpoint.processes[routing_id] = pid

    def send(self, message: list[Any], *frames: bytes, skipped_bytes: int = 0) -> None:
        port_harness = self.port_harness
        port_harness.port.on_message(
            self.routing_id, [memoryview(msgpack.packb(message)), *map(memoryview, frames)], skipped_bytes
        )
        port_harness.port.end_turn(port_harness.clock.now_ms())

    def attach(self) -> list[Any]:
        """ATTACH; the answer."""
        ticket = attach_ticket(KEY, self.client_id, self.name, EPOCH, self.token_digest)
        self.send([Kind.ATTACH, 1, self.client_id, self.name, self.pid, EPOCH, ticket, self.secret])
        (answer,) = self.heard(Kind.WELCOME, Kind.REFUSED)
        if answer[0] == Kind.WELCOME:
            self.secret = answer[2]
        return answer

    def again(self, routing_id: bytes) -> Peer:
        """The same client on another connection."""
        peer = Peer(self.port_harness, routing_id, self.name, self.client_id, self.pid)
        peer.secret = self.secret
        return peer

    def submit(
        self,
        seq: int = 1,
        *,
        stream: int = 1,
        topic: str = "t",
        payload: bytes = RECORD,
        count: int = 1,
        skipped_bytes: int = 0,
        flags: int = 0,
    ) -> None:
        fields = [EPOCH, stream, seq, topic, BASE_TIMESTAMP_MS, Format.MSGPACK, flags, count]
        self.send([Kind.SUBMIT, *fields], payload, skipped_bytes=skipped_bytes)

    def heard(self, *kinds: Kind) -> list[list[Any]]:
        """Messages since the last call, of these kinds; the others are dropped."""
        port_harness = self.port_harness
        mine = [
            message for routing_id, message, _ in port_harness.endpoint.sent if routing_id == self.routing_id
        ]
        port_harness.endpoint.sent = [
            each for each in port_harness.endpoint.sent if each[0] != self.routing_id
        ]
        return [message for message in mine if message[0] in kinds]

    def outcomes(self) -> list[Outcome]:
        found = []
        for routing_id, message, frames in self.port_harness.endpoint.sent:
            if routing_id == self.routing_id and message[0] == Kind.OUTCOMES:
                found += unpack_outcomes(frames[0])
        return found


class PortHarness:
    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.clock = harness.worker.clock
        self.rooms = rooms = harness.rooms
        self.topics, self.shares, self.intake = rooms.topics, rooms.stubs.shares, rooms.stubs.intake
        self.openings, self.holds = rooms.stubs.openings, rooms.stubs.holds
        self.given_up = harness.worker.host.given_up
        self.limit = rooms.stubs.submission_bytes_max
        self.port = rooms.stubs.port
        self.endpoint = ListedEndpoint()
        self.port.endpoint = self.endpoint  # type: ignore[assignment]

    def connect(self, name: str = "client", pid: int = 0) -> Peer:
        return Peer(self, secrets.token_bytes(8), name, secrets.token_bytes(20), pid)

    def client(self, name: str = "client", pid: int = 0) -> Peer:
        peer = self.connect(name, pid)
        assert peer.attach()[0] == Kind.WELCOME
        return peer

    def counted(self, name: str) -> int:
        return self.harness.counters.get(name)
