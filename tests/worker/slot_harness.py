"""A worker on a real segment and the compiled kernel against a broker in memory, without sockets or a loop.

The broker keeps as much of a producer id as Kafka 4.1: its epoch, and the last five batches per partition.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgpack
from kafka.record.memory_records import MemoryRecords

from client_stub.contract.wire import SubmitFlag
from sidecar.common.errors import Code
from sidecar.common.model import Node
from sidecar.common.tickets import attach_ticket
from sidecar.deadletter.letters import Undelivered
from sidecar.metadata.snapshot import MetadataSnapshot, PartitionState, TopicState
from sidecar.producer.config import ProducerConfig
from sidecar.producer.effects import Decided, Effect, InitProducerId, Renumbered, SendProduce, Split
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.protocol.describe_producers import ProducerState
from sidecar.protocol.produce import PartitionResult
from sidecar.shm.segment import Segment
from sidecar.worker.brokers.inquiry import Verdict, take_acked, verdict_on
from sidecar.worker.outcomes.publication import free_descriptor, split
from sidecar.worker.streams.client_outcomes import ClientOutcomes
from sidecar.worker.streams.session import ClientSession, StreamState
from tests.configs import producer_config
from tests.manual_clock import ManualClock

from .manual_worker import EPOCH, KEY, ManualWorker

TOPIC = "t"
PARTITIONS = 2
STAMP_MS = 1_700_000_000_000
"""The wall clock stands still here, and every record was made at that moment."""
CLIENT_ID = b"c" * 20
NODE = Node(1, "broker", 9092)
TOPIC_STATE = TopicState(TOPIC, partitions=tuple(PartitionState(1) for _ in range(PARTITIONS)))
OTHER_TOPIC = "u"
SNAPSHOT = MetadataSnapshot.build(
    1,
    "cluster",
    {1: NODE},
    {TOPIC: TOPIC_STATE, OTHER_TOPIC: dataclasses.replace(TOPIC_STATE, name=OTHER_TOPIC)},
)


class _Appended:
    """A broker's memory of one producer id on one partition."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[tuple[int, int, int]] = []
        """(base sequence, count, base offset), the last five."""


@dataclass
class MemoryBroker:
    """De-duplicates as docs/broker-facts.md says that Kafka does. ``refuse_once``: codes by partition."""

    log: dict[int, list[bytes]] = field(default_factory=dict)
    producers: dict[tuple[int, int], _Appended] = field(default_factory=dict)
    refuse_once: dict[int, int] = field(default_factory=dict)
    refuse_value: bytes | None = None
    """A batch with this value in it is refused for good."""
    invalid_value: bytes | None = None
    """A record of this value is refused, by its place in its batch (INVALID_RECORD)."""
    next_producer_id: int = 4000
    spool: list[Undelivered] = field(default_factory=list)
    """Dead letters: they stand outside of the segment, too."""
    is_silent: bool = False
    """Appends and does not answer."""
    records_max: int = 1_000_000
    """A batch of more records is too large (looked at before duplicates are, as in Kafka's UnifiedLog)."""
    appends: int = 0

    @property
    def version(self) -> object:
        """Changes with everything that a successor could see."""
        return self.appends, self.next_producer_id, self.is_silent, self.records_max, tuple(self.refuse_once)

    def copy(self) -> MemoryBroker:
        return copy.deepcopy(self)

    def append(self, batch: ProducerBatch) -> tuple[int, int]:
        """(code, base offset)."""
        self.appends += 1
        if batch.count > self.records_max:
            return Code.MESSAGE_TOO_LARGE, -1
        code = self.refuse_once.pop(batch.partition, 0)
        if code:
            return code, -1
        if self.invalid_records(batch):
            return Code.INVALID_RECORD, -1
        if self.refuse_value is not None and self.refuse_value in _values(batch):
            return Code.TOPIC_AUTHORIZATION_FAILED, -1
        values = _values(batch)
        if batch.producer_id < 0:
            log = self.log.setdefault(batch.partition, [])
            log += values
            return 0, len(log) - len(values)
        key = (batch.producer_id, batch.partition)
        known = self.producers.get(key)
        if known is not None and batch.epoch < known.epoch:
            return Code.INVALID_PRODUCER_EPOCH, -1
        if known is None:
            known = self.producers[key] = _Appended(batch.epoch)
        elif batch.epoch > known.epoch:
            if batch.base_sequence:
                return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            known = self.producers[key] = _Appended(batch.epoch)
        else:
            for base, count, offset in known.batches:
                if (base, count) == (batch.base_sequence, batch.count):
                    return 0, offset
            last = known.batches[-1]
            if batch.base_sequence != last[0] + last[1]:
                return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        log = self.log.setdefault(batch.partition, [])
        offset = len(log)
        log += values
        known.batches = [*known.batches, (batch.base_sequence, batch.count, offset)][-5:]
        return 0, offset

    def invalid_records(self, batch: ProducerBatch) -> tuple[tuple[int, str | None], ...]:
        if self.invalid_value is None:
            return ()
        return tuple(
            (index, None) for index, value in enumerate(_values(batch)) if value == self.invalid_value
        )

    def describe(self, partition: int) -> dict[int, ProducerState]:
        return {
            producer_id: ProducerState(known.epoch, known.batches[-1][0] + known.batches[-1][1] - 1)
            for (producer_id, at), known in self.producers.items()
            if at == partition
        }


def _values(batch: ProducerBatch) -> list[bytes]:
    out = bytearray(batch.records.size_bytes)
    batch.records.encode_into(out, batch.producer_id, batch.epoch, batch.base_sequence)
    (kafka_batch,) = list(MemoryRecords(bytes(out)))
    return [bytes(record.value) for record in kafka_batch]


class _AllReady:
    connected = range(1 << 33)

    def stalled_since_ms(self, node_id: int) -> float | None:
        return None


class SlotHarness:
    """One worker's life on slot 0: ``start`` claims and adopts, :meth:`turn` does what the driver does."""

    def __init__(
        self,
        segment: Segment,
        broker: MemoryBroker,
        incarnation: int,
        *,
        config: ProducerConfig | None = None,
        now_ms: float | None = None,
    ) -> None:
        self.segment, self.broker = segment, broker
        clock = ManualClock(1000.0 * incarnation if now_ms is None else now_ms, STAMP_MS)
        self.config = config or producer_config(batch_size=120, linger_ms=0)
        self.config = dataclasses.replace(self.config, retry_backoff_ms=1, retry_backoff_max_ms=1)
        self.worker = ManualWorker(segment, incarnation=incarnation, clock=clock, config=self.config)
        self.rooms = rooms = self.worker.rooms
        memory = rooms.memory
        self.beats: list[int] = []
        """Records that the adoption had indexed at each heartbeat: they wait in batches."""
        memory.beat = self._beat  # type: ignore[method-assign]
        self.name_of, self.in_work, self.counters = memory.name_of, memory.in_work, memory.counters
        self.pool, self.chain_table = memory.pool, memory.chain_table
        self.descriptors = memory.descriptors
        self.ids, self.accumulator, self.buffers, self.sender = rooms.core
        self.sessions, self.topics = rooms.stubs.sessions, rooms.topics
        self.acker, self.settlement = rooms.acker, rooms.settlement
        # Dead letters stand in the broker's spool, at once.
        rooms.dead_letters.put = self._bury  # type: ignore[method-assign]
        self.adopted = rooms.adoption.run(self.now_ms)
        self.broker.spool += rooms.adoption.give_up_poison(self.sender, self.now_ms)
        self.verdicts: list[Verdict] = []

    @property
    def now_ms(self) -> float:
        return self.worker.clock.now_ms()

    @now_ms.setter
    def now_ms(self, now_ms: float) -> None:
        # The wall clock stands still here.
        self.worker.clock._now_ms = now_ms

    def _beat(self) -> None:
        self.beats.append(sum(batch.count for batch in self.accumulator.incomplete.oldest_first()))

    def _bury(self, outcomes: Sequence[ClientOutcomes]) -> None:
        for each in outcomes:
            self.broker.spool += each.undelivered(self.sessions.row(each.row, each.generation), self.name_of)
            each.release(dead=True)

    def acknowledge(self, session: ClientSession) -> None:
        """The client knows all that it was told."""
        session.row.ring_ack(session.row.next_number - 1)
        self.acker.acked(session, self.now_ms)

    def give_up(self) -> None:
        """The grace of everybody who is not attached is over."""
        for session in self.sessions.reclaim(float("inf")):
            self.acker.abandon(session)

    def ask(self, now_wall_ms: int = 1, *, may_ask: bool = True) -> None:
        """As Inquiry does, with the broker's answer at hand, or without the right to ask."""
        by_partition: dict[int, list[tuple[ProducerBatch, int]]] = {}
        for batch, published_ms in self.adopted:
            by_partition.setdefault(batch.partition, []).append((batch, published_ms))
        for partition, batches in by_partition.items():
            producers = self.broker.describe(partition) if may_ask else None
            take_acked(batches[0][0], producers)
            self.verdicts.append(verdict_on(batches, producers, now_wall_ms))
            for batch, _ in batches:
                self.accumulator.resume(batch, self.now_ms)

    def attach(self, secret: bytes | None = None, client_id: bytes = CLIENT_ID) -> tuple[ClientSession, bool]:
        ticket = attach_ticket(KEY, client_id, "client", EPOCH)
        fields = [1, client_id, "client", 1, EPOCH, ticket, secret]
        return self.sessions.attach(b"route " + client_id, fields, self.now_ms)

    def accept(
        self,
        session: ClientSession,
        values: list[bytes],
        partitions: list[int | None],
        topic: str = TOPIC,
        *,
        is_express: bool = False,
        transaction: int = 0,
    ) -> None:
        """One submission, as Intake takes it. ``transaction``: its number, of a client with a lane."""
        manager = None if session.lane is None else session.lane.manager
        queue = self.topics.get(topic, manager)
        assert queue is not None
        if is_express:
            queue = self.topics.express_of(queue)
            assert queue is not None
        chain = queue.chain
        number = 1 if topic == TOPIC else 2
        stream = session.streams.get(number)
        if stream is None:
            bulk = self.topics.get(topic, manager)
            assert bulk is not None
            session.row.place_stream(number, bulk.chain.chain_id)
            stream = session.streams[number] = StreamState(session, number, bulk, 0)
        payload = b"".join(
            msgpack.packb([None, value, None, partition])
            for value, partition in zip(values, partitions, strict=True)
        )
        needed = chain.pages_needed(len(values), len(payload))
        if needed:
            pages = self.pool.take(needed)
            assert pages is not None
            chain.link_pages(pages)
        entry = chain.append(
            payload,
            count=len(values),
            client_row=session.row.index,
            client_generation=session.row.generation,
            stream=number,
            seq=stream.position + 1,
            base_timestamp_ms=STAMP_MS,
            format=1,
            flags=SubmitFlag.WANT_INDEXES,
            accepted_ms=self.now_ms + self.rooms.memory.clock_ahead_ms,
            txn_number=transaction,
        )
        session.unsettled_records += len(values)
        stream.position += 1
        session.row.store_position(number, stream.position)
        self.counters.add({"records_accepted_total": len(values), "records_held": len(values)})
        self.topics.on_entry(queue, entry, self.now_ms)

    def turn(self, stop_after: type[Effect] | None = None) -> None:
        """``stop_after``: the worker dies behind the first effect of that kind."""
        self.now_ms += 5.0
        for effect in self.sender.poll(SNAPSHOT, _AllReady(), self.now_ms):
            if isinstance(effect, InitProducerId):
                self.broker.next_producer_id += 1
                self.sender.on_producer_id(self.broker.next_producer_id, 0, self.now_ms)
            elif isinstance(effect, Decided):
                self.settlement.settle(effect, self.now_ms)
            elif isinstance(effect, Split):
                split(self.descriptors, effect.parent, effect.pieces)
                self.sender.on_descriptors_changed(effect.parent.queue, self.now_ms)
            elif isinstance(effect, Renumbered):
                for batch in effect.batches:
                    free_descriptor(self.descriptors, batch)
                self.sender.on_descriptors_changed(effect.batches[0].queue, self.now_ms)
            elif isinstance(effect, SendProduce):
                request = effect.request
                assert request.buffer is not None
                self.buffers.give(request.buffer)
                if not self.descriptors.publish(request.batches, 1):
                    self.sender.on_request_not_sent(request, self.now_ms)
                    continue
                request.begun = True
                results = [self._result(batch) for batch in request.batches]
                self.sender.on_request_sent(request, self.now_ms)
                if not self.broker.is_silent:
                    self.sender.on_produce_response(request, results, 0, self.now_ms)
            if stop_after is not None and isinstance(effect, stop_after):
                return
        self.rooms.pages.give_back(self.now_ms)

    def cut(self) -> None:
        """The connection is lost with everything in flight on it."""
        self.sender.on_disconnect(NODE.id, self.now_ms, reason="cut")

    def release_idle(self) -> None:
        for chain in list(self.chain_table):
            pages = chain.release_idle()
            if pages:
                self.pool.give(pages)

    def _result(self, batch: ProducerBatch) -> PartitionResult:
        code, offset = self.broker.append(batch)
        errors = self.broker.invalid_records(batch) if code == Code.INVALID_RECORD else ()
        return PartitionResult(TOPIC, None, batch.partition, code, offset, -1, -1, errors, None, -1, -1)

    def know_topic(self) -> None:
        self.topics.on_snapshot(SNAPSHOT, self.now_ms)

    def run(self, turns: int = 60) -> None:
        """Metadata comes; go on until nothing is left."""
        self.know_topic()
        for _ in range(turns):
            self.turn()
            if self.sender.is_idle and not self.topics.waiting.entry_count:
                self.turn()
                return
        raise AssertionError(f"not idle after {turns} turns: {self.accumulator.incomplete.oldest_first()}")
