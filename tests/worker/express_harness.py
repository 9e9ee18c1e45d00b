"""A worker with a loud and a quiet client, for tests of express."""

from __future__ import annotations

from pathlib import Path

import msgpack

from client_stub.contract.wire import Format
from sidecar.producer.config import ProducerConfig
from sidecar.shm.segment import Segment
from sidecar.worker.streams.session import ClientSession
from sidecar.worker.stubs.express import (
    BACKLOG_BYTES,
    QUIET_BYTES,
)
from tests.configs import producer_config

from .manual_worker import EPOCH
from .slot_harness import STAMP_MS, TOPIC, MemoryBroker, SlotHarness

LOUD, QUIET = b"l" * 20, b"q" * 20
LARGE = 64 << 10
SMALL = QUIET_BYTES // 4
CONFIG = producer_config(batch_size=100, linger_ms=0, batch_growth_bytes=4 * LARGE)


class ExpressHarness(SlotHarness):
    """A loud and a quiet client at one worker; submissions go the whole way from the frame."""

    def __init__(
        self, segment: Segment, broker: MemoryBroker, incarnation: int, config: ProducerConfig = CONFIG
    ) -> None:
        super().__init__(segment, broker, incarnation, config=config)
        self.intake = self.rooms.stubs.intake
        self.holds, self.express, self.shares = (
            self.rooms.stubs.holds,
            self.rooms.stubs.express,
            self.rooms.stubs.shares,
        )
        self.sessions_of: dict[bytes, ClientSession] = {}

    def join(self, client_id: bytes) -> ClientSession:
        session, _ = self.attach(client_id=client_id)
        self.sessions_of[client_id] = session
        return session

    def submit(self, client_id: bytes, value: bytes, partition: int = 0, topic: str = TOPIC) -> bool:
        """One record; False when its stream is held."""
        session = self.sessions_of[client_id]
        stream = session.streams.get(1)
        seq = 1 if stream is None else stream.position + 1
        payload = msgpack.packb([None, value, None, partition])
        fields = [EPOCH, 1, seq, topic, STAMP_MS, Format.MSGPACK, 0, 1]
        self.intake.submit(session, fields, payload, self.now_ms)
        return session.streams[1].position == seq

    def pile_up(self, client_id: bytes = LOUD) -> int:
        """As many of a client's large records as make a backlog."""
        count = BACKLOG_BYTES // LARGE + 1
        for number in range(count):
            assert self.submit(client_id, b"%d" % number + b" " * LARGE)
        return count

    @property
    def express_values(self) -> list[bytes]:
        """Waiting in express batches of the first partition, in their order."""
        queue = self.accumulator.queue(TOPIC, 0, 0)
        payloads = [records.slice_payload(0) for records in (batch.records for batch in queue.express)]
        return [msgpack.unpackb(payload)[1] for payload in payloads]

    def settle_all(self) -> None:
        for _ in range(200):
            self.turn()
            self.express.check_changing()
            if self.sender.is_idle:
                return
        raise AssertionError("the backlog does not end")

    def is_held(self, client_id: bytes) -> bool:
        return self.sessions_of[client_id].streams[1].held


def log_of(broker: MemoryBroker) -> list[bytes]:
    return [value.strip() for value in broker.log.get(0, [])]


def successor(first: ExpressHarness, segment: Segment) -> ExpressHarness:
    second = ExpressHarness(segment, first.broker, 2)
    second.broker.is_silent = False
    second.ask()
    second.know_topic()
    return second


def finish(harness: SlotHarness) -> list[bytes]:
    for _ in range(300):
        harness.turn()
        if not harness.accumulator.incomplete:
            return log_of(harness.broker)
    raise AssertionError("not everything ends")


def small_segment(folder: Path) -> Segment:
    return Segment.create(
        folder / "segment",
        page_bytes=16 << 10,
        buffer_memory_bytes=64 << 20,
        clients_max=8,
        instance_id=bytes(16),
    )


def quiet_and_loud(segment: Segment) -> ExpressHarness:
    """The first worker, which knows the topic and has both clients."""
    made = ExpressHarness(segment, MemoryBroker(), 1)
    made.know_topic()
    made.join(LOUD)
    made.join(QUIET)
    return made
