"""SimShell: what stands around the producer core in a simulated world, as the worker does in a daemon.

It has the clock, the connections to the modelled cluster and the table of descriptors, and carries out effects.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Container
from heapq import heappush
from itertools import count
from uuid import UUID

from producer.fake_kernel import FakeRecords
from producer.harness import TOPIC, descriptor_table, snapshot_of

from sidecar.common.errors import Code
from sidecar.common.model import second_of
from sidecar.metadata.snapshot import MetadataSnapshot
from sidecar.producer.batch_states import BatchState
from sidecar.producer.core import Core
from sidecar.producer.effects import (
    AskBroker,
    CloseLink,
    Connect,
    Decided,
    Effect,
    InitProducerId,
    LeaderHints,
    NeedMetadata,
    Renumbered,
    SendProduce,
    Split,
)
from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lanes import EPOCH_MAX, IDEMPOTENT_LANE, PLAIN_LANE
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.protocol.produce import PartitionResult
from sidecar.worker.brokers.inquiry import Verdict, verdict_on
from sidecar.worker.outcomes.publication import free_descriptor, split
from tests.configs import producer_config

from .broker_model import WireBatch
from .sim_calm import SimCalm
from .sim_cluster import SimCluster
from .sim_ledger import Payload, SimLedger
from .sim_theme import THEMES

START_MS = 10_000_000.0
OLDEST_ID = 1_000
"""Of a topic that was gone before the world began."""
LATE_MS_MAX = 50.0
"""Bytes that a dead connection had delivered are processed within this time: less than the shortest retry backoff."""


class Connection:
    """One TCP connection, by the id of its broker or ``second_of`` it: requests arrive and are answered in order;
    after ``alive`` nothing is answered."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.alive = True
        self.arrival_ms = 0.0
        self.answer_ms = 0.0
        self.taken_ms = 0.0
        """When the kernel last took a byte, or had none to take."""
        self.untaken: dict[int, ProduceRequest] = {}
        self.unprocessed: dict[int, list[WireBatch]] = {}
        """By request, its bytes as they left."""


class SimShell:
    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.now_ms = START_MS
        self.ledger = SimLedger()
        self.accepted: dict[Payload, tuple[float, int]] = {}
        """When each record was, and its timestamp."""
        self.happened: Counter[str] = Counter()
        """How often each kind of fault struck."""
        self.theme = theme = THEMES[seed % len(THEMES)]
        self.idempotent = rng.choice(theme.idempotent)
        self.lane = IDEMPOTENT_LANE if self.idempotent else PLAIN_LANE
        self.cluster = SimCluster(rng, self.happened, theme)
        self.cluster.may_check = self.may_check
        self.asked: dict[ProducerBatch, int] = {}
        """Batches that were asked about and are sent again, with the attempts they had."""
        self.asked_late = 0
        """Requests with such batches that are still to arrive from dead connections."""
        self.when_unknown = rng.choice(theme.when_unknown)
        self.fault_rate = self.cluster.fault_rate
        self.bad_rate = rng.choice(theme.bad_rates)
        self.keyless_rate = rng.choice(theme.keyless_rates)
        self.old_rate = rng.choice(theme.old_rates)
        self.config = producer_config(
            linger_ms=rng.choice(theme.lingers_ms),
            batch_size=rng.choice(theme.batch_sizes),
            max_request_size=rng.choice((400, 2000)),
            enable_idempotence=self.idempotent,
            acks=-1 if self.idempotent else rng.choice((-1, 1)),
            retries=rng.choice((2**31 - 1, 2**31 - 1, 3)),
            max_in_flight_requests_per_connection=rng.choice(theme.in_flight),
            connections_per_broker=rng.choice((1, 2)),
            request_timeout_ms=rng.choice((500.0, 500.0, 2_000.0)),
            delivery_timeout_ms=rng.choice(theme.delivery_ms),
        )
        # Few enough to run out: a request waits for a descriptor, or for another's buffer.
        self.descriptors = descriptor_table(rng.choice((1, 2, 4, 4000)))
        limit_bytes = rng.choice((2, 3, 100)) * self.config.max_request_size
        self.ids, self.accumulator, self.buffers, self.sender = Core.build(
            self.config,
            self.descriptors,
            random=rng.random,
            timestamp_ms=lambda: int(self.now_ms),
            request_buffers_bytes=limit_bytes,
            records_factory=FakeRecords,  # type: ignore[arg-type]
        )
        self.descriptors_free = self.descriptors.free_count
        self.codec_ms = rng.choice(theme.codecs_ms)
        """How long a request is compressed, at most; those of one connection leave in order all the same."""
        self.prepared_ms: dict[int, float] = {}
        self.connections: dict[int, Connection] = {}
        self.down_until_ms = dict.fromkeys([*self.cluster.nodes, *map(second_of, self.cluster.nodes)], 0.0)
        self.calm = SimCalm()
        self.forgets, self.lags = random.Random(f"forgets {seed}"), random.Random(f"lags {seed}")
        """Draws of their own: a world whose partitions rest, or whose brokers lag behind, is the same in all else."""
        self.lag_rate = 0.2 if seed % 2 and self.cluster.has_topic_ids else 0.0
        self.version = 0
        self.snapshot = self.describe()
        self.metadata_asked = False
        self.rests_in_pauses = seed % 2 == 0
        """In a long pause between submissions faults end, and begin again with the next one."""
        self.published: dict[ProducerBatch, tuple[object, ...]] = {}
        """Descriptors: what a batch is and under which identity, from its first send to its end."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self.producer_ids_used = 0
        self.clients = random.Random(f"clients {seed}")
        """Of its own, so that the rest of a seed's parameters are those of a world with one client."""
        self.client_count, self.quiet_rate = (
            self.clients.choice((1, 2, 3, 5)),
            self.clients.choice((0.3, 0.7, 1.0)),
        )
        """How many there are, and how often one goes express when it may."""
        self._numbers = [count() for _ in range(self.cluster.partitions)]

    # --- LinkView -------------------------------------------------------------------------------------------

    @property
    def connected(self) -> Container[int]:
        return self.connections

    def stalled_since_ms(self, node_id: int) -> float | None:
        connection = self.connections.get(node_id)
        return connection.taken_ms if connection is not None and connection.untaken else None

    # --- time and metadata ----------------------------------------------------------------------------------

    def at(self, when_ms: float, event: Callable[[], None]) -> None:
        heappush(self._events, (when_ms, next(self._serial), event))

    def after(self, delay_ms: float, event: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, event)

    @property
    def faulty(self) -> bool:
        return not self.calm.is_calm

    def close(self, node: int) -> None:
        rng = self.random
        connection = self.connections.pop(node, None)
        if connection is None:
            self.sender.on_disconnect(node, self.now_ms)
            return
        connection.alive = False
        self.down_until_ms[node] = self.now_ms + rng.uniform(1.0, 200.0)
        for request in connection.untaken.values():
            # Of what has arrived some bytes had left, whatever is stuck now.
            request.begun = request.id not in connection.unprocessed or rng.random() < 0.5
            self.give_buffer(request)
        # Of what had left, a first part is still processed, a little later; the rest never arrives.
        unsent = {request.id for request in connection.untaken.values() if not request.begun}
        left = [copies for request_id, copies in connection.unprocessed.items() if request_id not in unsent]
        is_asked = not self.may_check()
        delay_ms = 0.0
        for copies in left[: rng.randint(0, len(left))]:
            delay_ms = rng.uniform(delay_ms, LATE_MS_MAX)
            self.asked_late += is_asked
            self.after(delay_ms, lambda copies=copies: self.arrive_late(node, copies, is_asked))  # type: ignore[misc]
        self.sender.on_disconnect(node, self.now_ms)

    def refresh_metadata(self) -> None:
        self.metadata_asked = False
        self.version += 1
        self.snapshot = self.describe()

    def describe(self) -> MetadataSnapshot:
        cluster = self.cluster
        topic_id = UUID(int=cluster.generation) if cluster.has_topic_ids else None
        if self.version and self.faulty and self.lags.random() < self.lag_rate:
            # A broker that lags behind names an earlier topic: one that was heard of, or one from before.
            self.happened["metadata of an earlier topic"] += 1
            topic_id = UUID(int=self.lags.choice((cluster.generation - 1 or OLDEST_ID, OLDEST_ID)))
            self.after(self.lags.uniform(5.0, 60.0), self.refresh_metadata)
        return snapshot_of({TOPIC: list(cluster.leaders)}, version=self.version, topic_id=topic_id)

    # --- effects --------------------------------------------------------------------------------------------

    def carry_out(self, effect: Effect) -> None:
        rng = self.random
        match effect:
            case Connect(node):
                delay_ms = max(0.0, self.down_until_ms[node] - self.now_ms) + rng.uniform(0.1, 5.0)
                self.after(delay_ms, lambda: self.connect(node))
            case CloseLink(node):
                self.close(node)
            case NeedMetadata():
                if not self.metadata_asked:
                    self.metadata_asked = True
                    self.after(rng.uniform(5.0, 100.0), self.refresh_metadata)
            case LeaderHints():
                pass
            case AskBroker(batch, at_ms):
                self.at(at_ms + rng.uniform(1.0, 20.0), lambda: self.ask(batch))
            case InitProducerId():
                self.after(rng.uniform(1.0, 50.0), self.answer_init)
            case Split(parent, pieces):
                self.happened["batch split"] += 1
                self.published.pop(parent, None)
                split(self.descriptors, parent, pieces)
                for piece in pieces:
                    if piece.has_sequence:
                        self.publish(piece)
                self.sender.on_descriptors_changed(parent.queue, self.now_ms)
            case Renumbered(batches):
                self.happened["batches renumbered"] += 1
                # Their orders may be others already: what a dead worker sent in bulk stands behind express ones again.
                numbers = [self.published[b][2] for b in batches if b in self.published]
                assert numbers == sorted(numbers, reverse=True), "freed newest first"
                for batch in batches:
                    self.published.pop(batch, None)
                    free_descriptor(self.descriptors, batch)
                self.sender.on_descriptors_changed(batches[0].queue, self.now_ms)
            case Decided(batches):
                for batch in batches:
                    self.published.pop(batch, None)
                    free_descriptor(self.descriptors, batch)
                    self.calm.check(batch)
                    self.ledger.told(batch, self.cluster.generation)
            case SendProduce(_, request):
                self.send(request)

    def ask(self, batch: ProducerBatch) -> None:
        """As Inquiry does, with the broker's answer at hand."""
        if batch.is_decided:
            return
        producers = self.cluster.describe_producers(batch.partition, self.now_ms)
        verdict = verdict_on([(batch, 0)], producers, int(self.now_ms))
        self.happened[f"asked about an old batch: {verdict.name.lower()}"] += 1
        if verdict is Verdict.UNKNOWN and self.when_unknown == "fail":
            self.sender.give_up(batch, Code.UNKNOWN_PRODUCER_ID, "forgotten", self.now_ms)
            return
        self.asked[batch] = batch.attempts
        self.accumulator.resume(batch, self.now_ms)
        self.sender.wake()

    def may_check(self) -> bool:
        """Between the question about a batch and the arrival of its copy no time passes that would matter. The copy
        arrives, too, when the batch was given up after its request was made."""
        self.asked = {
            batch: attempts
            for batch, attempts in self.asked.items()
            if self.is_under_way(batch) and batch.attempts == attempts
        }
        return not self.asked and not self.asked_late

    def is_under_way(self, batch: ProducerBatch) -> bool:
        """A copy of it, or of a batch that it was split into, is to be sent or to arrive."""
        if batch.children:
            return any(self.is_under_way(child) for child in batch.children)
        return batch.state is not BatchState.DECIDED

    def connect(self, node: int) -> None:
        if self.down_until_ms[node] <= self.now_ms:
            self.connections.setdefault(node, Connection(node))

    def answer_init(self) -> None:
        fault = self.random.random() if self.faulty else 1.0
        if fault < self.fault_rate:
            self.happened["producer id refused"] += 1
        if fault < self.fault_rate / 2:
            self.sender.on_producer_id_error(self.random.choice((14, 13)), self.now_ms)
        elif fault < self.fault_rate:
            self.sender.on_producer_id(-1, -1, self.now_ms)
        else:
            epoch = self.random.choice((0, 0, EPOCH_MAX - 1, EPOCH_MAX))
            self.producer_ids_used += 1
            self.sender.on_producer_id(100 + self.producer_ids_used, epoch, self.now_ms)

    def identity_of(self, batch: ProducerBatch) -> tuple[object, ...]:
        payloads = tuple(batch.records.payloads)  # type: ignore[attr-defined]
        return batch.producer_id, batch.epoch, batch.base_sequence, payloads

    def publish(self, batch: ProducerBatch) -> None:
        identity = self.identity_of(batch)
        assert self.published.setdefault(batch, identity) == identity, (
            f"{batch} was changed after it was sent"
        )

    def on_wire_copy(self, batch: ProducerBatch) -> WireBatch:
        topic_id = self.snapshot.topic_id(TOPIC)
        return WireBatch(
            batch.partition,
            list(batch.records.payloads),  # type: ignore[attr-defined]
            batch.producer_id,
            batch.epoch,
            batch.base_sequence,
            batch.records.max_timestamp_ms,
            None if topic_id is None else topic_id.int,
        )

    def give_buffer(self, request: ProduceRequest) -> None:
        assert request.buffer is not None
        self.buffers.give(request.buffer)

    def send(self, request: ProduceRequest) -> None:
        """As the worker's port does: publish, compress, put on the connection that there is by then."""
        rng = self.random
        node_id = request.node_id
        is_faulty = self.faulty and rng.random() < 0.02
        if request.ended or is_faulty or not self.descriptors.publish(request.batches, 1):
            self.happened["request not sent"] += 1
            self.give_buffer(request)
            self.sender.on_request_not_sent(request, self.now_ms)
            return
        for batch in request.batches:
            if self.idempotent:
                assert batch.has_sequence
                self.publish(batch)
        if not self.codec_ms:
            self.put(request)
            return
        ready_ms = max(self.prepared_ms.get(node_id, 0.0), self.now_ms + rng.uniform(0.0, self.codec_ms))
        self.prepared_ms[node_id] = ready_ms
        self.at(ready_ms, lambda: self.put(request))

    def put(self, request: ProduceRequest) -> None:
        rng = self.random
        connection = self.connections.get(request.node_id)
        if request.ended or connection is None:
            self.give_buffer(request)
            self.sender.on_request_not_sent(request, self.now_ms)
            return
        request.begun = True
        assert (
            self.sender._in_flight.count(request.node_id) <= self.config.max_in_flight_requests_per_connection
        )
        assert len({(batch.topic, batch.partition) for batch in request.batches}) == len(request.batches)
        if not connection.untaken:
            connection.taken_ms = self.now_ms
        connection.untaken[request.id] = request
        copies = connection.unprocessed[request.id] = [self.on_wire_copy(batch) for batch in request.batches]
        is_stuck = self.faulty and rng.random() < self.fault_rate * 0.05 and not self.theme.is_only_short
        self.happened["kernel takes no byte"] += is_stuck
        taken_ms = 10_000.0 if is_stuck else rng.choice((0.0, 0.5, 3.0))
        self.after(taken_ms, lambda: self.taken(connection, request))
        connection.arrival_ms = max(connection.arrival_ms, self.now_ms + rng.uniform(3.0, 8.0))
        self.at(connection.arrival_ms, lambda: self.arrive(connection, request, copies))

    def taken(self, connection: Connection, request: ProduceRequest) -> None:
        if connection.alive and connection.untaken.pop(request.id, None) is not None:
            connection.taken_ms = self.now_ms
            self.give_buffer(request)
            self.sender.on_request_sent(request, self.now_ms)

    def arrive(self, connection: Connection, request: ProduceRequest, copies: list[WireBatch]) -> None:
        if not connection.alive:
            return
        rng = self.random
        del connection.unprocessed[request.id]
        results = self.cluster.process(connection.node, copies, self.now_ms, faulty=self.faulty)
        fault = rng.random() if self.faulty else 1.0
        stalled = fault < self.fault_rate * self.theme.stall_rate and not self.theme.is_only_short
        connection.answer_ms = max(connection.answer_ms, self.now_ms + rng.uniform(0.5, 20.0))
        if stalled:
            self.happened["answer stalled"] += 1
            connection.answer_ms += 600.0
        if self.fault_rate and rng.random() < 0.05:
            rng.shuffle(results)
        throttle_ms = rng.choice((30, 400)) if fault > 1.0 - self.fault_rate * 0.2 and self.faulty else 0
        if throttle_ms:
            self.happened["throttled"] += 1
        self.at(connection.answer_ms, lambda: self.answered(connection, request, results, throttle_ms))

    def answered(
        self,
        connection: Connection,
        request: ProduceRequest,
        results: list[PartitionResult],
        throttle_ms: int,
    ) -> None:
        if connection.alive:
            self.sender.on_produce_response(request, results, throttle_ms, self.now_ms)

    def arrive_late(self, node: int, copies: list[WireBatch], is_asked: bool) -> None:
        """From a dead connection; nobody hears the answer."""
        self.happened["late copy processed"] += 1
        self.cluster.process(node, copies, self.now_ms, faulty=self.faulty)
        self.asked_late -= is_asked
