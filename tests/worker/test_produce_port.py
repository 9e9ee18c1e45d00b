"""ProducePort and RequestEncoder: how long a request's buffer lives, whatever becomes of its connection and batches.

A broker's checksum covers neither topic nor partition, so a buffer that is used again while the kernel still reads it
corrupts silently (KAFKA-19012). The rooms, the links and the sockets are real; only the brokers are scripted.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from kafka.record.memory_records import MemoryRecords

from client_stub.contract.wire import Format, Kind, LocalCode, OutcomeKind
from sidecar.common.clock import MonotonicClock
from sidecar.common.control import PartitionUpdate, UpdateMetadata
from sidecar.common.errors import Code
from sidecar.common.model import Node
from sidecar.net.kafka.cluster_links import ClusterLinks
from sidecar.protocol.connection_states import ConnectionConfig
from sidecar.protocol.messages import ApiKey
from sidecar.worker.brokers import producer_id_port, request_encoder
from tests.configs import config_with, producer_config, security
from tests.net.fake_broker import FakeBroker, Peer, Request, api_versions_body
from tests.net.links import until
from tests.net.test_broker_link import INIT_BODY_V4
from tests.patience import PATIENCE_S

from .harness import Harness
from .manual_worker import EPOCH
from .port_harness import BASE_TIMESTAMP_MS, PortHarness
from .port_harness import Peer as Stub

PRODUCE_VERSION = 8
"""The last one with plain lengths: quick to read and to write by hand."""
DESCRIBED = struct.pack(">qiiqiq", 4711, 3, 0, 0, -1, -1) + b"\0"
"""A partition's producer in DescribeProducers: id, epoch, last sequence and timestamp, coordinator epoch, offset."""
LARGE = 700_000
"""Bytes of a record that does not fit into the sockets' buffers."""


async def speak_produce_8(peer: Peer, request: Request) -> None:
    if request.version:
        await peer.answer(request, struct.pack(">h", 35))
    else:
        versions = api_versions_body((0, 3, PRODUCE_VERSION), (3, 4, 12), (18, 0, 3), (22, 0, 4))
        await peer.answer(request, versions)


class Produced:
    """One Produce request as it arrived: (topic, partition) → the bytes of its batch."""

    def __init__(self, frame: bytes) -> None:
        self._frame, self._at = frame, 8
        self._skip_text()  # client id
        self._skip_text()  # transactional id
        self._at += 6  # acks, timeout
        self.batches: dict[tuple[str, int], bytes] = {}
        for _ in range(self._number(">i", 4)):
            topic = self._frame[self._at + 2 : self._at + 2 + self._peek()].decode()
            self._skip_text()
            for _ in range(self._number(">i", 4)):
                partition, size = self._number(">i", 4), self._number(">i", 4)
                self.batches[topic, partition] = self._frame[self._at : self._at + size]
                self._at += size

    def values(self, topic: str = "t") -> list[bytes]:
        """Of partition 0, from a batch whose checksum holds."""
        (batch,) = list(MemoryRecords(self.batches[topic, 0]))
        assert batch.validate_crc()
        return [bytes(record.value) for record in batch]

    def answer(self, code: int = 0) -> bytes:
        out = struct.pack(">i", len(self.batches))
        for topic, partition in self.batches:
            out += struct.pack(f">h{len(topic)}si", len(topic), topic.encode(), 1)
            out += struct.pack(">ihqqqih", partition, code, -1 if code else 5, -1, -1 if code else 0, 0, -1)
        return out + struct.pack(">i", 0)

    def _peek(self) -> int:
        return int(struct.unpack_from(">h", self._frame, self._at)[0])

    def _skip_text(self) -> None:
        self._at += 2 + max(0, self._peek())

    def _number(self, form: str, size: int) -> int:
        (number,) = struct.unpack_from(form, self._frame, self._at)
        self._at += size
        return int(number)


class ProduceHarness:
    """One worker's rooms on a loop, brokers 1, 2 ... with the topics t, u ... of one partition each."""

    def __init__(self, inner: Harness, brokers: list[FakeBroker]) -> None:
        self.rooms = inner.rooms
        self.port_harness = PortHarness(inner)
        self.stub: Stub = self.port_harness.client()
        self.seqs: dict[str, int] = {}
        nodes = [Node(id, "127.0.0.1", broker.port) for id, broker in enumerate(brokers, 1)]
        partitions = tuple(PartitionUpdate("tu"[id], None, 0, id + 1) for id in range(len(brokers)))
        self.rooms.driver.on_update_metadata(
            UpdateMetadata(1, 1, EPOCH, tuple(nodes), partitions, version=1, is_full=True)
        )

    @property
    def buffers_taken(self) -> int:
        return self.rooms.core.buffers.taken_count

    def send(self, *values: bytes, topic: str = "t") -> None:
        seq = self.seqs[topic] = self.seqs.get(topic, 0) + 1
        payload = b"".join(msgpack.packb([None, value, None, 0]) for value in values)
        stream = 1 + "tu".index(topic)
        fields = [EPOCH, stream, seq, topic, BASE_TIMESTAMP_MS, Format.MSGPACK, 0, len(values)]
        self.stub.send([Kind.SUBMIT, *fields], payload)
        self.rooms.turns.wake()

    async def outcomes(self, count: int) -> list[tuple[int, int]]:
        """(kind, code) of each record, once there are so many."""
        found: list[tuple[int, int]] = []

        def are_there() -> bool:
            found[:] = [(each.kind, each.code) for each in self.stub.outcomes() for _ in range(each.count)]
            return len(found) >= count

        await until(are_there)
        return found


Body = Callable[[ProduceHarness, list[FakeBroker]], Awaitable[None]]


def run(path: Path, body: Body, *brokers: FakeBroker, **config: Any) -> None:
    """``body`` beside a worker's rooms; in the end every buffer and every descriptor is free."""

    async def live() -> None:
        loop, clock = asyncio.get_running_loop(), MonotonicClock()
        links = ClusterLinks(
            loop, client_id="test", config=config_with(ConnectionConfig), security=security(), clock=clock
        )
        settings = {"linger_ms": 0.0, "enable_idempotence": False, "retry_backoff_ms": 1.0, **config}
        real = {"loop": loop, "clock": clock, "links": links}
        inner = Harness(path / "segment", producer_config(**settings), pool_bytes=16 << 20, **real)
        for broker in brokers:
            await broker.__aenter__()
        try:
            harness = ProduceHarness(inner, list(brokers))
            free = inner.descriptors.free_count
            await body(harness, list(brokers))
            await until(lambda: harness.buffers_taken == 0)
            await until(lambda: inner.descriptors.free_count == free)
            assert not harness.rooms.brokers.produce_port._awaited, "nothing waits for an answer"
        finally:
            links.close_all()
            harness.rooms.brokers.codecs.shutdown()
            for broker in brokers:
                await broker.__aexit__()
            inner.close()

    asyncio.run(live())


def broker(handler: Any = None, **settings: Any) -> FakeBroker:
    return FakeBroker(handler, on_api_versions=speak_produce_8, **settings)


async def answer(peer: Peer, request: Request) -> None:
    await peer.answer(request, Produced(request.frame).answer())


def test_a_buffer_is_lent_until_the_kernel_has_every_byte_of_it(tmp_path: Path) -> None:
    """One broker takes no more bytes; requests to another meanwhile are written elsewhere, and the first request still
    arrives as it was."""
    may_read = asyncio.Event()
    arrived: list[Produced] = []

    async def read_late(peer: Peer, request: Request) -> None:
        await speak_produce_8(peer, request)
        if not request.version:
            await may_read.wait()

    async def note(peer: Peer, request: Request) -> None:
        arrived.append(Produced(request.frame))
        await answer(peer, request)

    async def body(harness: ProduceHarness, brokers: list[FakeBroker]) -> None:
        harness.send(b"a" * LARGE)
        link = harness.rooms.brokers.links
        await until(lambda: link.link(1) is not None and harness.buffers_taken == 1)
        for _ in range(3):
            harness.send(b"b" * LARGE, topic="u")
            await until(lambda: harness.buffers_taken == 1)
        assert not arrived
        await harness.outcomes(3)
        may_read.set()
        await harness.outcomes(4)
        assert [each.values() for each in arrived] == [[b"a" * LARGE]]

    slow = FakeBroker(note, on_api_versions=read_late, receive_buffer_bytes=4096)
    run(tmp_path, body, slow, broker(answer))


def test_a_batch_that_expires_while_it_is_written_leaves_its_buffer_alone(tmp_path: Path) -> None:
    """The caller has its failure; the kernel still has the buffer, until the connection ends."""

    async def body(harness: ProduceHarness, brokers: list[FakeBroker]) -> None:
        harness.send(b"a" * LARGE)
        ((kind, code),) = await harness.outcomes(1)
        assert (kind, code) == (OutcomeKind.FAILED, LocalCode.EXPIRED)
        assert harness.buffers_taken == 1
        harness.stub.send([Kind.ACK, 1])
        harness.rooms.brokers.links.close(1, "the test ends it")
        assert harness.buffers_taken == 0

    deaf = broker(reads=False, receive_buffer_bytes=4096)
    run(tmp_path, body, deaf, delivery_timeout_ms=300.0, request_timeout_ms=20_000.0)


def test_a_connection_closed_in_the_middle_of_a_request_sends_it_again_as_it_was(tmp_path: Path) -> None:
    arrived: list[Produced] = []

    async def note(peer: Peer, request: Request) -> None:
        arrived.append(Produced(request.frame))
        await answer(peer, request)

    async def body(harness: ProduceHarness, brokers: list[FakeBroker]) -> None:
        brokers[0]._reads = False
        harness.send(b"a" * LARGE)
        await until(lambda: harness.buffers_taken == 1 and harness.rooms.brokers.links.link(1) is not None)
        assert not arrived
        brokers[0]._reads = True
        brokers[0].peers[0].close()
        assert await harness.outcomes(1) == [(OutcomeKind.DELIVERED, 0)]
        assert [each.values() for each in arrived] == [[b"a" * LARGE]]

    run(tmp_path, body, broker(note, receive_buffer_bytes=4096))


@pytest.mark.parametrize("fails", ["socket", "encoder"])
def test_a_request_that_fails_in_an_unforeseen_way_gives_its_buffer_back(tmp_path: Path, fails: str) -> None:
    """Only its own connection ends. The record is sent again, long before request.timeout.ms."""

    def fail(*_: object) -> Any:
        raise MemoryError

    async def body(harness: ProduceHarness, brokers: list[FakeBroker]) -> None:
        harness.send(b"first")
        harness.send(b"first", topic="u")
        await harness.outcomes(2)
        port, links = harness.rooms.brokers.produce_port, harness.rooms.brokers.links
        link, other = links.link(1), links.link(2)
        assert link is not None and other is not None
        encode = port._encoder.encode
        if fails == "socket":
            link._give = fail
        else:
            port._encoder.encode = fail  # type: ignore[method-assign]
        harness.send(b"second")
        await until(lambda: link.is_closed)
        port._encoder.encode = encode  # type: ignore[method-assign]
        assert await harness.outcomes(3) == [(OutcomeKind.DELIVERED, 0)] * 3
        assert not other.is_closed

    run(tmp_path, body, broker(answer), broker(answer))


def test_a_question_for_a_producer_id_that_fails_in_an_unforeseen_way_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's handler ends the worker. Otherwise all its records would wait for ever, and nobody would know why."""
    failures: list[str] = []

    def fail(entity: object) -> Any:
        raise RuntimeError("a bug")

    async def body(harness: ProduceHarness, brokers: list[FakeBroker]) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(str(context["exception"]))
        )
        monkeypatch.setattr(producer_id_port, "parse_init_producer_id", fail)
        harness.send(b"a")
        await until(lambda: failures == ["a bug"])

    async def give_id(peer: Peer, request: Request) -> None:
        await peer.answer(request, INIT_BODY_V4, flexible=True)

    run(tmp_path, body, broker(give_id), enable_idempotence=True)


def test_the_error_of_a_broker_that_does_not_say_what_it_has_is_shown(tmp_path: Path) -> None:
    """Its records wait, as long as it takes. Neither log nor status said why."""
    has_failed = asyncio.Event()
    produced: list[Request] = []

    async def versions(peer: Peer, request: Request) -> None:
        if request.version:
            await peer.answer(request, struct.pack(">h", 35))
        else:
            rows = ((0, 3, PRODUCE_VERSION), (3, 4, 12), (18, 0, 3), (22, 0, 4), (61, 0, 0))
            await peer.answer(request, api_versions_body(*rows))

    async def handle(peer: Peer, request: Request) -> None:
        if request.api_key == ApiKey.INIT_PRODUCER_ID:
            await peer.answer(request, INIT_BODY_V4, flexible=True)
        elif request.api_key == ApiKey.DESCRIBE_PRODUCERS:
            code, producers = (0, b"\x02" + DESCRIBED) if has_failed.is_set() else (-1, b"\x01")
            partition = struct.pack(">ih", 0, code) + b"\0" + producers + b"\0"
            body = struct.pack(">i", 0) + b"\x02\x02t\x02" + partition + b"\0\0"
            await peer.answer(request, body, flexible=True)
        else:
            produced.append(request)
            if len(produced) == 1:
                peer.close()  # what it has of this is to be asked, as the records are years old
            else:
                await answer(peer, request)

    async def body(harness: ProduceHarness, brokers: list[FakeBroker]) -> None:
        harness.send(b"a")
        batches = harness.rooms.core.accumulator.batches_of
        await until(lambda: [each.last_error for each in batches("t")] == ["UNKNOWN_SERVER_ERROR"])
        has_failed.set()
        assert await harness.outcomes(1) == [(OutcomeKind.DELIVERED, 0)]

    run(tmp_path, body, FakeBroker(handle, on_api_versions=versions), enable_idempotence=True)


def test_an_answer_of_a_connection_that_was_closed_is_nobodys(tmp_path: Path) -> None:
    """The first connection's answer is written after it was given up; the second one's counts, once."""
    held: list[tuple[Peer, Request]] = []

    async def hold_first(peer: Peer, request: Request) -> None:
        held.append((peer, request))
        if len(held) > 1:
            await answer(peer, request)

    async def body(harness: ProduceHarness, brokers: list[FakeBroker]) -> None:
        harness.send(b"a")
        await until(lambda: len(held) == 1)
        harness.rooms.driver._links.close(1, "too slow")
        peer, request = held[0]
        await asyncio.gather(answer(peer, request), return_exceptions=True)
        assert await harness.outcomes(1) == [(OutcomeKind.DELIVERED, 0)]
        assert [Produced(each.frame).values() for _, each in held] == [[b"a"], [b"a"]]

    run(tmp_path, body, broker(hold_first))


def test_a_batch_that_is_too_large_goes_in_pieces_from_buffers_of_their_own(tmp_path: Path) -> None:
    arrived: list[list[bytes]] = []

    async def refuse_many(peer: Peer, request: Request) -> None:
        produced = Produced(request.frame)
        arrived.append(produced.values())
        await peer.answer(request, produced.answer(Code.MESSAGE_TOO_LARGE if len(arrived[-1]) > 2 else 0))

    async def body(harness: ProduceHarness, brokers: list[FakeBroker]) -> None:
        values = [b"%d" % number * 1_000 for number in range(8)]
        harness.send(*values)
        assert await harness.outcomes(8) == [(OutcomeKind.DELIVERED, 0)] * 8
        assert [value for each in arrived if len(each) <= 2 for value in each] == values

    run(tmp_path, body, broker(refuse_many))


@pytest.mark.parametrize("cut", [False, True], ids=["in order", "connection lost"])
def test_a_buffer_that_a_codec_writes_to_is_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """Requests leave in the order in which they were drained, also when a later one is ready sooner. When the
    connection ends meanwhile, the buffer goes back once the codec has ended, and both requests are sent again."""
    may_end = threading.Event()
    compress = request_encoder.compress
    arrived: list[str] = []

    def slow(codec: str, data: bytes, level: int | None) -> bytes | None:
        assert may_end.wait(PATIENCE_S)
        return compress(codec, data, level)

    async def note(peer: Peer, request: Request) -> None:
        produced = Produced(request.frame)
        arrived.extend(topic for topic, _ in produced.batches)
        assert produced.values("".join(topic for topic, _ in produced.batches))
        await answer(peer, request)

    async def body(harness: ProduceHarness, brokers: list[FakeBroker]) -> None:
        monkeypatch.setattr(request_encoder, "compress", slow)
        harness.send(b"a" * 10_000)
        await until(lambda: harness.buffers_taken == 1)
        if cut:
            harness.rooms.brokers.links.close(1, "the test ends it")
            await asyncio.sleep(0)
            assert harness.buffers_taken >= 1, "the codec still writes"
        may_end.set()
        assert await harness.outcomes(1) == [(OutcomeKind.DELIVERED, 0)]
        assert arrived == ["t"]

    run(tmp_path, body, broker(note), compression_type="gzip")
