"""LaneWorker: one life of a worker on a real segment: its rooms as the product builds them, in simulated time.

Modelled are its loop, its links to brokers, and its endpoint. A death takes the segment as it is after one store; from
that moment on nothing of the worker leaves it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from sidecar.common.clock import MonotonicClock
from sidecar.common.control import ControlMessage, NeedTopics
from sidecar.common.model import Node
from sidecar.config.client_rules import Caller
from sidecar.kernel import set_store_hook
from sidecar.net.kafka.connector import LinkError
from sidecar.net.stubs.peer import Peer
from sidecar.producer.effects import CloseLink, InitProducerId, SendProduce
from sidecar.protocol.messages import ApiKey, RequestMessage
from sidecar.shm import layout
from sidecar.shm.segment import Segment
from tests.configs import producer_config
from tests.worker.manual_worker import ManualWorker, NoLinks
from tests.worker.store_recorder import SHM_FOLDER, pieces

from .lane_cluster import NODES

if TYPE_CHECKING:
    from .lane_world import LaneWorld

VERSIONS: Final = {
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 5,
    ApiKey.TXN_OFFSET_COMMIT: 5,
    ApiKey.DESCRIBE_PRODUCERS: 0,
}
HOUSE_MS: Final = 200.0
RING_BYTES: Final = 64 << 10
"""More than the outcomes of one run."""
SOON_S: Final = 1e-5
"""What a turn of the loop takes: a turn that is asked for again and again sees the time go by."""


def _written(segment: Segment, clients: int) -> list[tuple[int, int]]:
    """(start, end) of what a small world writes: all there is of pages, the first rows of the tables."""
    places = segment.layout
    slot = places.slot(0)
    tables = (
        (0, layout.CHAINS_OFFSET + 24 * layout.CHAIN_ROW_BYTES),
        (layout.DESCRIPTORS_OFFSET, layout.DESCRIPTORS_OFFSET + 64 * layout.DESCRIPTOR_BYTES),
        (layout.LANES_OFFSET, layout.LANES_OFFSET + 8 * layout.LANE_BYTES),
        (layout.LANE_CONTENTS_OFFSET, layout.LANE_CONTENTS_OFFSET + 8 * layout.LANE_CONTENT_BYTES),
    )
    rows = [places.client(row) for row in range(clients)]
    return [
        (0, places.pages + places.page_bytes * places.page_count),
        *((slot + start, slot + end) for start, end in tables),
        *((row, row + layout.CLIENT_ROW_BYTES + RING_BYTES) for row in rows),
    ]


class Image:
    """The segment's bytes as they are now, as far as a worker and its clients write to them."""

    def __init__(self, segment: Segment, clients: int) -> None:
        self._segment = segment
        self.parts = [(start, bytes(segment.view[start:end])) for start, end in _written(segment, clients)]

    def put_back(self) -> None:
        for start, data in self.parts:
            self._segment.view[start : start + len(data)] = data
        self._segment._slots.clear()
        self._segment._clients = None

    def between(self, later: Image, stores: int) -> Image:
        """This one with the first ``stores`` words that differ in the later one: a part of its plain writes."""
        parts = []
        left = stores
        for (start, before), (_, after) in zip(self.parts, later.parts, strict=True):
            data = bytearray(before)
            for at, words in pieces(before, after):
                if left:
                    data[at : at + len(words)] = words
                    left -= 1
            parts.append((start, bytes(data)))
        self.parts = parts
        return self


class Death:
    """Counts the moments of a worker at which it may have stored something, and takes the segment at one of them."""

    def __init__(
        self, segment: Segment, clients: int, moment: int, stores: int, on_taken: Callable[[], None]
    ) -> None:
        """``moment``: which one, from 1. ``stores``: how many of its words are there; all if fewer changed, or 0."""
        self._segment, self._clients = segment, clients
        self._on_taken = on_taken
        self._moment, self._stores = moment, stores
        self.seen = 0
        self._before: Image | None = None
        self.image: Image | None = None

    def passed(self) -> None:
        self.seen += 1
        if self.seen == self._moment - 1:
            self._before = Image(self._segment, self._clients)
        elif self.seen == self._moment:
            self.image = Image(self._segment, self._clients)
            if self._before is not None and self._stores:
                self.image = self._before.between(self.image, self._stores)
            self._on_taken()

    def __enter__(self) -> Death:
        set_store_hook(lambda point: self.passed())
        self._tracer_before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(self._tracer_before)
        set_store_hook(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._trace_line if frame.f_code.co_filename.startswith(SHM_FOLDER) else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.image is None:
            self.passed()
        return self._trace_line


class Stores(Death):
    """The moments at which something was stored, and how many words at each."""

    def __init__(self, segment: Segment, clients: int) -> None:
        super().__init__(segment, clients, 0, 0, lambda: None)
        self._last = Image(segment, clients)
        self.found: list[tuple[int, int]] = []

    def passed(self) -> None:
        self.seen += 1
        now = Image(self._segment, self._clients)
        if now.parts != self._last.parts:
            words = sum(
                sum(1 for _ in pieces(before, after))
                for (_, before), (_, after) in zip(self._last.parts, now.parts, strict=True)
            )
            self.found.append((self.seen, words))
            self._last = now


class Answer:
    """As much of a future as a request to a broker needs."""

    def __init__(self) -> None:
        self._entity: Any = None
        self._error: Exception | None = None
        self._is_done = False
        self._callbacks: list[Callable[[Answer], None]] = []

    def add_done_callback(self, call: Callable[[Answer], None]) -> None:
        self._callbacks.append(call)

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._entity

    def end(self, entity: Any = None, error: Exception | None = None) -> None:
        if self._is_done:
            return
        self._is_done = True
        self._entity, self._error = entity, error
        for call in self._callbacks:
            call(self)

    def __await__(self) -> Any:
        if not self._is_done:
            yield self
        return self.result()


class Task:
    """A coroutine that waits for answers only."""

    def __init__(self, coroutine: Any) -> None:
        self._coroutine = coroutine
        self._ended: list[Callable[[Task], None]] = []
        self._is_done = False

    def __del__(self) -> None:
        self._coroutine.close()  # its worker died before it began, or while it waited

    def step(self, _: object = None) -> None:
        try:
            self._coroutine.send(None).add_done_callback(self.step)
        except StopIteration:
            self._is_done = True
            for call in self._ended:
                call(self)

    def add_done_callback(self, call: Callable[[Task], None]) -> None:
        self._ended.append(call)
        if self._is_done:
            call(self)


class WorldLoop:
    """The part of an event loop that the rooms use. Its calls end with the life that made them."""

    def __init__(self, worker: LaneWorker) -> None:
        self._worker = worker

    def call_soon(self, call: Callable[..., None], *args: Any) -> Any:
        return self.call_later(SOON_S, call, *args)

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> Any:
        return self._worker.after(1000 * delay_s, lambda: call(*args))

    def create_task(self, coroutine: Any) -> Task:
        task = Task(coroutine)
        self.call_soon(task.step)
        return task

    def add_reader(self, *_: object) -> None: ...

    def remove_reader(self, *_: object) -> None: ...


class LaneLink:
    """A connection to one broker. Requests arrive in their order; answers come in that order too."""

    in_flight_count = 0

    def __init__(self, worker: LaneWorker, node: Node) -> None:
        self.worker, self.node = worker, node
        self.is_open = True
        self.arrives_ms = self.answers_ms = 0.0
        self.unanswered: list[Answer] = []
        self.produced: list[Any] = []

    def version(self, api: ApiKey) -> int:
        return VERSIONS[api]

    def request(self, message: RequestMessage) -> Answer:
        answer = Answer()
        self.unanswered.append(answer)
        world, cluster = self.worker.world, self.worker.world.cluster

        def arrive() -> Callable[[], None]:
            entity = cluster.answer(self.node.id, message)
            return lambda: answer.end(entity)

        world.travel(self, arrive, int(message.__api_key__))
        return answer


class LaneLinks(NoLinks):
    """All links of a worker. One that is lost is there again after a while."""

    def __init__(self, worker: LaneWorker, transaction_version: int) -> None:
        self._worker = worker
        self.transaction_version = transaction_version
        self.connected: dict[int, LaneLink] = {}  # type: ignore[assignment]
        for node in NODES.values():
            self.open(node.id)

    def open(self, node_id: int) -> None:
        self.connected[node_id] = LaneLink(self._worker, NODES[node_id])

    @property
    def ready_links(self) -> list[LaneLink]:  # type: ignore[override]
        return list(self.connected.values())

    def is_ready(self, node_id: int) -> bool:
        return node_id in self.connected

    def ready(self, node: Any) -> LaneLink | None:  # type: ignore[override]
        return self.connected.get(node.id)

    def link(self, node_id: int) -> LaneLink | None:  # type: ignore[override]
        return self.connected.get(node_id)

    def is_refused(self, node_id: int) -> bool:
        return False

    def next_attempt_delay_ms(self, node_id: int, now_ms: float) -> float:
        return 20.0

    def lose(self, node_id: int, reason: str) -> None:
        """The connection ends, with everything in flight on it."""
        link = self.connected.pop(node_id, None)
        if link is None:
            return
        link.is_open = False
        for answer in link.unanswered:
            answer.end(error=LinkError(reason))
        rooms = self._worker.rooms
        rooms.core.sender.on_disconnect(node_id, self._worker.world.now_ms, reason=reason)
        rooms.turns.wake()
        self._worker.after(self._worker.world.draw_ms(5.0, 50.0), lambda: self._reopen(node_id))

    def _reopen(self, node_id: int) -> None:
        self.open(node_id)
        rooms = self._worker.rooms
        rooms.core.sender.lost_links.found(node_id)
        rooms.turns.wake()


class WorldClock(MonotonicClock):
    def __init__(self, world: LaneWorld) -> None:
        self._world = world

    def now_ms(self) -> float:
        return self._world.now_ms

    def timestamp_ms(self) -> int:
        return int(1_700_000_000_000 + self._world.now_ms)


class LaneWorker:
    """It lives until ``is_dead``: from then on nobody hears of it."""

    def __init__(self, world: LaneWorld, incarnation: int) -> None:
        self.world = world
        self.incarnation = incarnation
        self.links = LaneLinks(self, world.cluster.coordinator.transaction_version)
        self.manual = ManualWorker(
            world.segment,
            incarnation=incarnation,
            clock=WorldClock(world),
            loop=WorldLoop(self),
            config=producer_config(
                batch_size=400, linger_ms=world.linger_ms, retry_backoff_ms=5, retry_backoff_max_ms=40
            ),
            links=self.links,
            spool=Path("/nowhere"),
        )
        self.rooms = rooms = self.manual.rooms
        self.manual.host.send_control = self._on_control  # type: ignore[method-assign]
        rooms.dead_letters.put = self._bury  # type: ignore[method-assign]
        handlers = rooms.driver._handlers
        handlers[SendProduce] = self._produce
        handlers[CloseLink] = lambda effect, now_ms: self.links.lose(effect.node_id, effect.reason)
        handlers[InitProducerId] = lambda effect, now_ms: None  # nobody sends outside of a transaction
        rooms.stubs.port.endpoint = self  # type: ignore[assignment]

    @property
    def is_dead(self) -> bool:
        return self.world.worker is not self or self.world.is_frozen

    def begin(self) -> None:
        """As Worker.adopt and run do."""
        rooms, now_ms = self.rooms, self.world.now_ms
        sent = rooms.adoption.run(now_ms)
        rooms.stubs.shares.begin(now_ms)
        rooms.brokers.inquiry.begin(sent)
        rooms.lanes.adopted(now_ms)
        assert not rooms.adoption.give_up_poison(rooms.core.sender, now_ms)
        rooms.turns.wake()
        self.after(HOUSE_MS, self._house)

    def after(self, ms: float, call: Callable[[], None]) -> Any:
        """A call of this life."""
        return self.world.at(self.world.now_ms + ms, lambda: None if self.is_dead else call(), of=self)

    def _house(self) -> None:
        self.rooms.housekeeping.round()
        self.after(HOUSE_MS, self._house)

    def _on_control(self, message: ControlMessage) -> None:
        if isinstance(message, NeedTopics) and not self.is_dead:
            self.world.push_later(self)

    @staticmethod
    def _bury(outcomes: Any) -> None:
        raise AssertionError("records of a transaction are no dead letters")

    def _produce(self, effect: Any, now_ms: float) -> None:
        """As ProducePort.send: published, encoded, sent. What leaves is bytes."""
        request = effect.request
        rooms = self.rooms
        assert request.buffer is not None and request.transaction is not None
        rooms.core.buffers.give(request.buffer)
        link = self.links.connected.get(request.node_id)
        if (
            request.ended
            or link is None
            or not rooms.memory.descriptors.publish(request.batches, int(now_ms))
        ):
            rooms.core.sender.on_request_not_sent(request, now_ms)
            return
        request.begun = True
        name, version = request.transaction.transactional_id, request.transaction.produce_version
        batches = []
        for batch in request.batches:
            out = bytearray(batch.records.size_bytes)
            batch.records.encode_into(
                out, batch.producer_id, batch.epoch, batch.base_sequence, attributes=0x10
            )
            topic_id = self.world.known_id(self, batch.topic)
            batches.append((batch.topic, topic_id, batch.partition, bytes(out)))
        rooms.core.sender.on_request_sent(request, now_ms)
        self.world.produce(link, request, batches, name, version)

    # --- the endpoint ----------------------------------------------------------------------------------------

    def send(self, routing_id: bytes, frames: list[bytes]) -> bool | None:
        if self.is_dead:
            return True
        return self.world.to_client(self, routing_id, [bytes(frame) for frame in frames])

    def has(self, routing_id: bytes) -> bool:
        return self.world.has_route(routing_id)

    def has_attached(self, routing_id: bytes) -> None: ...

    def has_detached(self, routing_id: bytes) -> None: ...

    def sent_nonsense(self, routing_id: bytes) -> None: ...

    def sent_useless(self, routing_id: bytes) -> None: ...

    def caller(self, routing_id: bytes) -> Caller:
        return Caller(0)

    def peer(self, routing_id: bytes) -> Peer:
        return Peer(0, 0, 0)
