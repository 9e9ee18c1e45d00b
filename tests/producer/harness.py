"""Core: accumulator, ids and sender under a manual clock, with every effect in plain sight."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any
from uuid import UUID

from sidecar.common.model import Node
from sidecar.metadata.snapshot import MetadataSnapshot, PartitionState, TopicState
from sidecar.producer.batch_drain import BatchDrain, Budget
from sidecar.producer.core import Core as ProducerCore
from sidecar.producer.effects import CloseLink, Decided, Effect, Renumbered, SendProduce, Split
from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lanes import IDEMPOTENT_LANE, PLAIN_LANE
from sidecar.producer.partition_schedule import PartitionSchedule
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.producer.request_capacity import DESCRIPTORS_RESERVED
from sidecar.producer.topic_settings import TopicRules
from sidecar.protocol.produce import PartitionResult
from sidecar.shm import layout
from sidecar.shm.descriptors import DescriptorTable
from sidecar.worker.outcomes.publication import free_descriptor, split
from tests.configs import producer_config
from tests.manual_clock import ManualClock

from .fake_kernel import FakeBlock, FakeRecords

TOPIC = "orders"
PRODUCER_ID = 7000


class FakeLinks:
    """Every link is ready and takes bytes, unless a test says otherwise."""

    def __init__(self) -> None:
        self.down: set[int] = set()
        self.stalled_since: dict[int, float] = {}

    @property
    def connected(self) -> Container[int]:
        return self

    def __contains__(self, node_id: object) -> bool:
        return node_id not in self.down

    def stalled_since_ms(self, node_id: int) -> float | None:
        return self.stalled_since.get(node_id)


class _Slot:
    def __init__(self) -> None:
        self.area = memoryview(
            bytearray(layout.DESCRIPTORS_OFFSET + layout.DESCRIPTORS_MAX * layout.DESCRIPTOR_BYTES)
        )


class _Segment:
    def __init__(self) -> None:
        self._slot = _Slot()

    def slot(self, index: int) -> _Slot:
        return self._slot


def descriptor_table(size: int | None = None) -> DescriptorTable:
    """A worker's own table on plain memory. ``size``: so many of its descriptors can be had, beside those that new
    batches leave free."""
    table = DescriptorTable(_Segment(), 0)  # type: ignore[arg-type]
    while size is not None and table.free_count > size + DESCRIPTORS_RESERVED:
        table.free_indexes.pop()
    return table


def snapshot_of(
    leaders: Mapping[str, Sequence[int]], *, version: int = 1, topic_id: UUID | None = None
) -> MetadataSnapshot:
    """A cluster in which ``leaders[topic][partition]`` is the leader's id, -1 for none."""
    ids = sorted({leader for each in leaders.values() for leader in each if leader >= 0})
    nodes = {node: Node(node, f"broker-{node}", 9092) for node in ids}
    topics = {
        topic: TopicState(topic, topic_id, 0, tuple(PartitionState(leader, version) for leader in each))
        for topic, each in leaders.items()
    }
    return MetadataSnapshot.build(version, "cluster", nodes, topics)


def answer(partition: int = 0, code: int = 0, **fields: Any) -> PartitionResult:
    """One partition of a Produce response for the harness's topic."""
    values: dict[str, Any] = {
        "topic": TOPIC,
        "topic_id": None,
        "base_offset": 0 if code == 0 else -1,
        "append_time_ms": -1,
        "log_start_offset": 0 if code == 0 else -1,
        "record_errors": (),
        "error_message": None,
        "current_leader_id": -1,
        "current_leader_epoch": -1,
    }
    return PartitionResult(partition=partition, error_code=code, **{**values, **fields})


class Core:
    """The producer core of one worker. ``settings`` under Kafka's names with underscores."""

    def __init__(
        self,
        *,
        leaders: Sequence[int] = (1,),
        producer_id: bool = True,
        known: bool = True,
        lane: int = IDEMPOTENT_LANE,
        records_factory: Any = FakeRecords,
        rules: Mapping[str, Mapping[str, Any]] | None = None,
        descriptors: int | None = None,
        request_buffers_bytes: int = 64 << 20,
        **settings: Any,
    ) -> None:
        settings.setdefault("linger_ms", 0.0)
        self.config = producer_config(**settings)
        self.clock = ManualClock()
        self.links = FakeLinks()
        self.lane = lane
        self.snapshot = snapshot_of({TOPIC: leaders})
        self.rules = TopicRules(self.config, rules)
        self.descriptors = descriptor_table(descriptors)
        self.ids, self.accumulator, self.buffers, self.sender = ProducerCore.build(
            self.config,
            self.descriptors,
            random=lambda: 0.5,
            timestamp_ms=self.clock.timestamp_ms,
            rules=self.rules,
            request_buffers_bytes=request_buffers_bytes,
            records_factory=records_factory,
        )
        self.decided: list[ProducerBatch] = []
        self.effects: list[Effect] = []
        """All effects of the last poll."""
        self._stuck: dict[int, list[ProduceRequest]] = {}
        """By connection, requests of which the kernel takes no byte."""
        if producer_id and self.config.enable_idempotence:
            self.poll()
            self.sender.on_producer_id(PRODUCER_ID, 0, self.now_ms)
            if known:
                for partition in range(len(leaders)):
                    self.make_known(partition)

    def make_known(self, partition: int) -> None:
        """The broker has acknowledged under the present id before, forgets it never, and the next sequence happens to
        be 0."""
        queue = self.accumulator.queue(TOPIC, IDEMPOTENT_LANE, partition)
        assert queue.sequences is not None
        queue.sequences.restart(self.ids.identity)
        queue.sequences.acked_order = 0
        queue.sequences.known_until_ms = inf
        queue.next_order = 1

    @property
    def now_ms(self) -> float:
        return self.clock.now_ms()

    def append(
        self,
        *payloads: Any,
        partition: int = 0,
        topic: str = TOPIC,
        record_bytes: int = 100,
        age_ms: int = 0,
    ) -> None:
        stamp_ms = self.clock.timestamp_ms() - age_ms
        block = FakeBlock([(partition, payload) for payload in payloads], record_bytes, stamp_ms)
        self.accumulator.append(topic, self.lane, block, self.now_ms)  # type: ignore[arg-type]

    def poll(self, advance_ms: float = 0.0) -> list[ProduceRequest]:
        """Move time, poll once, carry out what the core asked for; returns the requests that left."""
        requests: list[ProduceRequest] = []
        self.clock.advance(advance_ms)
        self.effects = self.sender.poll(self.snapshot, self.links, self.now_ms)
        for effect in self.effects:
            if isinstance(effect, Decided):
                self.decided.extend(effect.batches)
                for batch in effect.batches:
                    free_descriptor(self.descriptors, batch)
            elif isinstance(effect, Split):
                split(self.descriptors, effect.parent, effect.pieces)
                self.sender.on_descriptors_changed(effect.parent.queue, self.now_ms)
            elif isinstance(effect, Renumbered):
                for batch in effect.batches:
                    free_descriptor(self.descriptors, batch)
                self.sender.on_descriptors_changed(effect.batches[0].queue, self.now_ms)
            elif isinstance(effect, CloseLink):
                for request in self._stuck.pop(effect.node_id, ()):
                    self._give_buffer(request)
                self.sender.on_disconnect(effect.node_id, self.now_ms, reason=effect.reason)
            elif isinstance(effect, SendProduce) and self._prepare(effect.request):
                requests.append(effect.request)
        for request in requests:
            if request.node_id in self.links.stalled_since:
                self._stuck.setdefault(request.node_id, []).append(request)
            else:
                self._give_buffer(request)
                self.sender.on_request_sent(request, self.now_ms)
        self.sender.check_descriptors()
        return requests

    def _prepare(self, request: ProduceRequest) -> bool:
        if request.ended or not self.descriptors.publish(request.batches, 1):
            self._give_buffer(request)
            self.sender.on_request_not_sent(request, self.now_ms)
            return False
        request.begun = True
        return True

    def _give_buffer(self, request: ProduceRequest) -> None:
        assert request.buffer is not None
        self.buffers.give(request.buffer)

    def take_bytes(self, node_id: int) -> None:
        """The kernel takes all that waits for a connection that stalls."""
        for request in self._stuck.pop(node_id, ()):
            self._give_buffer(request)
            self.sender.on_request_sent(request, self.now_ms)

    def turns(self) -> Iterator[list[ProduceRequest]]:
        """Poll while there is something to poll for; the requests of each turn."""
        while (requests := self.poll()) or self.sender.next_wakeup_ms <= self.now_ms:
            yield requests

    def send(self, *payloads: Any, partition: int = 0, **arguments: Any) -> ProduceRequest:
        """Append a submission and expect exactly one request to come of it."""
        self.append(*payloads, partition=partition, **arguments)
        (request,) = self.poll()
        return request

    def respond(self, request: ProduceRequest, *results: PartitionResult, throttle_ms: int = 0) -> None:
        self.sender.on_produce_response(request, results, throttle_ms, self.now_ms)

    def acknowledge(self, request: ProduceRequest, base_offset: int = 0) -> None:
        """Success for every batch of the request."""
        self.respond(
            request,
            *(
                answer(batch.partition, topic=batch.topic, base_offset=base_offset)
                for batch in request.batches
            ),
        )

    def of(self, kind: type[Effect]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def move_leaders(self, leaders: Sequence[int]) -> None:
        self.snapshot = snapshot_of({TOPIC: leaders}, version=self.snapshot.version + 1)


def take_batches(core: Any, node_id: int, lane: int, max_bytes: float, now_ms: float) -> list[ProducerBatch]:
    """The batches of one request to the broker."""
    drain = BatchDrain(core.accumulator.lanes, core.accumulator.schedule, core.accumulator.incomplete)
    return drain.take(node_id, lane, Budget(max_bytes), now_ms)


def ready_nodes(schedule: PartitionSchedule) -> list[int]:
    """Connections with something ready."""
    return [node_id for node_id, its in schedule.ready.items() if any(its)]


def payloads_of(batches: Iterable[ProducerBatch]) -> list[Any]:
    """The payloads of the batches' records, end to end."""
    return [payload for batch in batches for payload in batch.records.payloads]  # type: ignore[attr-defined]


def plain_core(**settings: Any) -> Core:
    """Acks 1: halves of a batch get descriptors when they are sent."""
    return Core(lane=PLAIN_LANE, **{"enable_idempotence": False, "acks": 1, **settings})


def everywhere(core: Core, payload: str, partitions: int) -> None:
    for partition in range(partitions):
        core.append(f"{payload}{partition}", partition=partition)


def count(requests: list[ProduceRequest]) -> int:
    """Their batches."""
    return sum(len(request.batches) for request in requests)
