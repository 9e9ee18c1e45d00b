"""A worker on a real segment and the compiled kernel against a broker in memory, without sockets or a loop.

The broker keeps what Kafka 4.1 keeps of a producer id: its epoch, and the last five batches per partition.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial

import msgpack
from kafka.record.memory_records import MemoryRecords

from client_stub.wire import SubmitFlag
from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.errors import Code
from sidecar.common.model import Node
from sidecar.common.tickets import attach_ticket
from sidecar.deadletter.letters import Undelivered
from sidecar.metadata.snapshot import MetadataSnapshot, PartitionState, TopicState
from sidecar.producer.broker_memory import BrokerMemory
from sidecar.producer.config import ProducerConfig
from sidecar.producer.effects import Completed, InitProducerId, Renumbered, SendProduce, Split
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.producer.producer_id import ProducerIds
from sidecar.producer.record_accumulator import RecordAccumulator
from sidecar.producer.request_buffers import RequestBufferPool
from sidecar.producer.request_room import RequestRoom
from sidecar.producer.sender import Sender
from sidecar.producer.topic_settings import TopicRules
from sidecar.protocol.describe_producers import ProducerState
from sidecar.protocol.produce_answer import PartitionResult
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.descriptors import DescriptorTable, LaneRows
from sidecar.shm.in_work import InWork
from sidecar.shm.recovery import take_over_pages
from sidecar.shm.segment import Segment
from sidecar.shm.submission_name import submission_name
from sidecar.worker.adoption import Adoption
from sidecar.worker.inquiry import Verdict, judge, take_acked
from sidecar.worker.placement import Placement
from sidecar.worker.poison import Poison
from sidecar.worker.publication import publish_all
from sidecar.worker.session import ClientSession, StreamState
from sidecar.worker.sessions import Sessions
from sidecar.worker.settlement import Settlement
from sidecar.worker.tellings import Part, Teller
from sidecar.worker.topics import Topics
from tests.configs import producer_config

TOPIC = "t"
PARTITIONS = 2
EPOCH = 77
STAMP_MS = 1_700_000_000_000
"""The wall clock stands still here, and every record was made at that moment."""
KEY = b"k" * 32
CLIENT_ID = b"c" * 20
NODE = Node(1, "broker", 9092)
TOPIC_STATE = TopicState(TOPIC, partitions=tuple(PartitionState(1) for _ in range(PARTITIONS)))
SNAPSHOT = MetadataSnapshot.build(1, "cluster", {1: NODE}, {TOPIC: TOPIC_STATE})


class _Appended:
    """What a broker keeps of one producer id on one partition."""

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
    def is_ready(self, node_id: int) -> bool:
        return True

    def stalled_since_ms(self, node_id: int) -> float | None:
        return None


class SlotStage:
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
        self.now_ms = 1000.0 * incarnation if now_ms is None else now_ms
        self.config = config or producer_config(batch_size=120, linger_ms=0)
        segment.prepare_slot(0)
        slot = segment.slot(0)
        pages = take_over_pages(segment, 0, incarnation)
        self.name_of = partial(submission_name, segment.instance_id, 0)
        poison = Poison(slot, self.name_of)
        slot.claim(incarnation=incarnation)
        self.in_work = InWork(slot)
        self.slot_clock_ms = slot.resume_clock(int(self.now_ms * 1e6))
        self.beats: list[int] = []
        """What the adoption had indexed at each heartbeat: records that wait in batches."""
        self.counters = slot.counters
        self.pool = BufferPool(segment, incarnation=incarnation, workers=1, slot=0)
        self.chain_table = ChainTable(segment, 0, incarnation=incarnation)
        self.descriptors = DescriptorTable(segment, 0)
        self.lane_rows = LaneRows(segment, 0)
        backoff = ExponentialBackoff(1, 1, lambda: 0.5)
        self.ids = ProducerIds(max_in_flight=5, backoff=backoff, memory=BrokerMemory(lambda: STAMP_MS))
        self.accumulator = RecordAccumulator(self.config, self.ids)
        self.buffers = RequestBufferPool(max_request_size=self.config.max_request_size)
        room = RequestRoom(self.buffers, self.descriptors)
        self.sender = Sender(self.config, self.accumulator, self.ids, room=room, backoff=backoff)
        self.sessions = Sessions(
            table=segment.clients,
            slot=0,
            worker_epoch=EPOCH,
            instance_key=KEY,
            counters=self.counters,
        )
        self.teller = Teller(
            session_of=self.sessions.of_row,
            on_ring_written=lambda session: None,
            on_gone=self._bury,
        )
        self.settlement = Settlement(
            config=self.config,
            teller=self.teller,
            descriptors=self.descriptors,
            lane_rows=self.lane_rows,
            slot=slot,
            on_records_settled=self.sessions.records_settled,
        )
        self.topics = Topics(
            config=self.config,
            rules=TopicRules(self.config),
            placement=Placement(self.config, self.accumulator, seed=lambda: 1),
            chain_table=self.chain_table,
            accumulator=self.accumulator,
            in_work=self.in_work,
            on_failed=lambda queue, entry, failures: self.settlement.fail_records(
                queue, entry, failures, self.now_ms
            ),
        )
        adoption = Adoption(
            segment=segment,
            slot=0,
            config=self.config,
            pool=self.pool,
            chain_table=self.chain_table,
            descriptors=self.descriptors,
            lane_rows=self.lane_rows,
            accumulator=self.accumulator,
            topics=self.topics,
            sessions=self.sessions,
            settlement=self.settlement,
            counters=self.counters,
            poison=poison,
            in_work=self.in_work,
            beat=self._beat,
            slot_clock_ms=self.slot_clock_ms,
        )
        self.adopted = adoption.run(pages, self.now_ms)
        self.broker.spool += adoption.set_aside + poison.give_up(
            adoption.poisonous,
            lambda batch, code, text: self.sender.give_up(batch, code, text, self.now_ms),
            self.sessions.row,
        )
        self.verdicts: list[Verdict] = []

    def _beat(self) -> None:
        self.beats.append(sum(batch.count for batch in self.accumulator.incomplete.oldest_first()))

    def _bury(self, parts: list[Part]) -> None:
        for part in parts:
            self.broker.spool += part.undelivered(self.sessions.row(part.row, part.generation), self.name_of)
            part.finish(dead=True)

    def acknowledge(self, session: ClientSession) -> None:
        """The client knows all that it was told."""
        session.row.ring_ack(session.row.next_number - 1)
        self.teller.acked(session, self.now_ms)

    def give_up(self) -> None:
        """The grace of everybody who is not attached is over."""
        for session in self.sessions.reclaim(float("inf")):
            self.teller.abandon(session)

    def ask(self, now_wall_ms: int = 1) -> None:
        """As Inquiry does, with the broker's answer at hand."""
        by_partition: dict[int, list[tuple[ProducerBatch, int]]] = {}
        for batch, published_ms in self.adopted:
            by_partition.setdefault(batch.partition, []).append((batch, published_ms))
        for partition, batches in by_partition.items():
            producers = self.broker.describe(partition)
            take_acked(batches[0][0], producers)
            self.verdicts.append(judge(batches, producers, now_wall_ms))
            for batch, _ in batches:
                self.accumulator.resume(batch, self.now_ms)

    def attach(self, secret: bytes | None = None) -> tuple[ClientSession, bool]:
        ticket = attach_ticket(KEY, CLIENT_ID, "client", EPOCH)
        return self.sessions.attach(b"route", [1, CLIENT_ID, "client", 1, EPOCH, ticket, secret], self.now_ms)

    def accept(self, session: ClientSession, values: list[bytes], partitions: list[int | None]) -> None:
        """One submission, as Intake takes it."""
        queue = self.topics.get(TOPIC)
        assert queue is not None
        chain = queue.chain
        stream = session.streams.get(1)
        if stream is None:
            session.row.place_stream(1, chain.chain_id)
            stream = session.streams[1] = StreamState(session, 1, queue, 0)
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
            stream=1,
            seq=stream.position + 1,
            base_timestamp_ms=STAMP_MS,
            format=1,
            flags=SubmitFlag.WANT_INDEXES,
            accepted_ms=self.now_ms + self.slot_clock_ms,
        )
        session.unsettled_records += len(values)
        stream.position += 1
        session.row.store_position(1, stream.position)
        self.counters.add({"records_accepted_total": len(values), "records_held": len(values)})
        self.topics.on_entry(queue, entry, self.now_ms)

    def turn(self) -> None:
        self.now_ms += 5.0
        for effect in self.sender.poll(SNAPSHOT, _AllReady(), self.now_ms):
            if isinstance(effect, InitProducerId):
                self.broker.next_producer_id += 1
                self.sender.on_producer_id(self.broker.next_producer_id, 0, self.now_ms)
            elif isinstance(effect, Completed):
                for batch in effect.batches:
                    self.settlement.settle_batch(batch, self.now_ms)
            elif isinstance(effect, Split):
                self.settlement.split(effect.parent, effect.pieces)
                self.sender.on_descriptors_changed(effect.parent.queue, self.now_ms)
            elif isinstance(effect, Renumbered):
                for batch in effect.batches:
                    self.settlement.free_descriptor(batch)
                self.sender.on_descriptors_changed(effect.batches[0].queue, self.now_ms)
            elif isinstance(effect, SendProduce):
                request = effect.request
                assert request.buffer is not None
                self.buffers.give(request.buffer)
                if not publish_all(self.descriptors, request.batches, 1):
                    self.sender.on_request_not_sent(request, self.now_ms)
                    continue
                request.begun = True
                results = [self._result(batch) for batch in request.batches]
                self.sender.on_request_sent(request, self.now_ms)
                if not self.broker.is_silent:
                    self.sender.on_produce_response(request, results, 0, self.now_ms)
        for chain in self.settlement.take_finished_chains():
            pages = chain.release_pages()
            if pages:
                self.pool.give(pages)

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
        return PartitionResult(TOPIC, None, batch.partition, code, offset, -1, -1, (), None, -1, -1)

    def know_topic(self) -> None:
        self.topics.on_snapshot(SNAPSHOT, self.now_ms)

    def run(self, turns: int = 60) -> None:
        """Metadata comes; go on until nothing is left."""
        self.know_topic()
        for _ in range(turns):
            self.turn()
            if self.sender.is_idle and not self.topics.waiting_entries:
                self.turn()
                return
        raise AssertionError(f"not idle after {turns} turns: {self.accumulator.incomplete.oldest_first()}")
