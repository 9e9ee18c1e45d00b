"""LaneWorld: clients with transactional ids, a worker on a real segment, two brokers, in simulated time.

Real: the stub's session and calls, the worker's rooms from its endpoint's messages to its requests, the segment, the
adoption. Modelled: processes, sockets, the loop, the controller's part, the brokers (``lane_cluster``).

The judge is a reader of committed records. Each transaction is there whole and once, or not at all, as its client was
told; each offset is that of a committed transaction; nothing waits for ever, and nothing is left anywhere.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgpack

from client_stub.contract.wire import Kind
from client_stub.session.effects import CloseSockets, OpenControl, OpenWorker
from sidecar.common.control import PartitionUpdate, UpdateMetadata
from sidecar.common.tickets import attach_ticket
from sidecar.protocol.produce import PartitionResult
from sidecar.shm.client_table import ClientTable
from sidecar.shm.lane_records import LaneRecords
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from sidecar.tools.testing.kafka_frames import Api
from tests.worker.manual_worker import EPOCH, KEY

from .lane_client import LaneClient, Plan, Told
from .lane_cluster import NODES, LaneCluster
from .lane_worker import Death, Image, LaneLink, LaneWorker

CLIENTS_MAX: Final = 3
END_MS: Final = 400_000.0
"""By then every client must have had its answers."""
EMPTY_MS: Final = 1_000_000.0
"""More than daemon.client_grace_s: a client that gave up its row may come again for so long."""
PRODUCE_WITH_IDS: Final = 13
SPIN_STEPS: Final = 2_000
"""So many steps at one moment are turns without end."""


class Handle:
    def __init__(self, call: Callable[[], None], of: LaneWorker | None) -> None:
        self.call, self.of = call, of
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class LaneWorld:
    """Nothing goes wrong unless ``rates`` says so, by the fault's name."""

    def __init__(
        self,
        segment: Segment,
        *,
        version: int,
        seed: object = 0,
        topics: dict[str, int] | None = None,
        linger_ms: float = 2.0,
    ) -> None:
        self.segment = segment
        self.now_ms = 1_000.0
        self.random = random.Random(f"lanes {seed}")
        random.seed(f"stub {seed}")  # from it the stub draws the jitter of its pauses
        self.linger_ms = linger_ms
        self.topics = topics or {"a": 2, "b": 1}
        self.cluster = LaneCluster(version, self.topics, lambda: self.now_ms)
        self.happened: Counter[str] = self.cluster.happened
        self.rates: Counter[str] = Counter()
        """Chances of faults: lose_request, lose_answer, late_request, refuse_end, refuse_batch."""
        self.clients: list[LaneClient] = []
        self.worker: LaneWorker | None = None
        self.is_frozen = False
        """The worker has died; the loop has yet to notice."""
        self.death: Death | None = None
        self.absent_ms_max = 30.0
        """How long it takes at most until the next worker begins."""
        self.dooms: list[tuple[int, int]] = []
        """(moment, stores) of the deaths of those who come after the next one that dies."""
        self.is_over_faults = False
        self._heap: list[tuple[float, int, Handle]] = []
        self._serial = itertools.count()
        self._offsets = itertools.count(1)
        self._routes: dict[bytes, LaneClient] = {}
        self._killed: list[bytes] = []
        """Client ids of processes that were killed."""
        self._known_ids: dict[LaneWorker, dict[str, int]] = {}
        self._versions = itertools.count(1)

    # --- time ----------------------------------------------------------------------------------------------

    def at(self, at_ms: float, call: Callable[[], None], of: LaneWorker | None = None) -> Handle:
        handle = Handle(call, of)
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), next(self._serial), handle))
        return handle

    def after(self, ms: float, call: Callable[[], None]) -> Handle:
        return self.at(self.now_ms + ms, call)

    def draw_ms(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)

    def strikes(self, fault: str) -> bool:
        """Whether a fault happens now."""
        if self.is_over_faults or not self.rates[fault] or self.random.random() >= self.rates[fault]:
            return False
        self.happened[fault] += 1
        return True

    def run(self, until: Callable[[], bool], end_ms: float = END_MS) -> None:
        steps, since_ms = 0, self.now_ms
        while not until():
            steps, since_ms = (steps + 1, since_ms) if since_ms == self.now_ms else (0, self.now_ms)
            if steps > SPIN_STEPS:
                raise AssertionError(f"turns without end: {self.describe()}")
            if not self._heap:
                raise AssertionError("nothing will happen any more")
            at_ms, _, handle = heapq.heappop(self._heap)
            if handle.is_cancelled or (handle.of is not None and handle.of is not self.worker):
                continue
            self.now_ms = max(self.now_ms, at_ms)
            if self.now_ms > end_ms:
                raise AssertionError(f"not over after {end_ms:.0f} ms: {self.describe()}")
            self._do(handle.call)

    def _do(self, call: Callable[[], None]) -> None:
        """One step of the world, in which the worker may die."""
        death = self.death
        if death is None:
            call()
        else:
            with death:
                call()
            if death.image is not None:
                self._die(death.image)
                return
        self._serve_clients()

    def describe(self) -> str:
        states = [
            (
                client.label,
                client.session.attachment.state.name,
                client.calls.state.name,
                str(client.lost or ""),
            )
            for client in self.clients
            if not client.is_over and not client.is_dead
        ]
        managers = (
            []
            if self.worker is None
            else [
                (
                    each.manager.transactional_id,
                    each.manager.state.value,
                    each.manager._in_flight,
                    each.manager.number,
                )
                for each in self.worker.rooms.lanes
            ]
        )
        return f"clients {states}, lanes {managers}"

    # --- workers -------------------------------------------------------------------------------------------

    def begin_worker(self) -> None:
        incarnation = self.segment.slot(0).incarnation + 1 if self.segment.is_slot_prepared(0) else 1
        worker = self.worker = LaneWorker(self, incarnation)
        worker.begin()
        self._end_killed(worker)
        self.push_later(worker, 1.0)

    def doom(self, moment: int, stores: int) -> None:
        """Let the worker, or the next one, die at that moment from now on, with so many of its words stored."""
        self.death = Death(self.segment, CLIENTS_MAX, moment, stores, self._freeze)

    def _freeze(self) -> None:
        self.is_frozen = True

    def _die(self, image: Image) -> None:
        self.happened["worker died"] += 1
        self.death, self.is_frozen = None, False
        dead, self.worker = self.worker, None
        if dead is not None:
            for link in dead.links.connected.values():
                link.is_open = False
        self._routes.clear()
        image.put_back()
        for client in self.clients:
            if not client.is_dead and not client.is_over:
                client.session.lost("the worker died", self.now_ms)
        if self.dooms:
            self.doom(*self.dooms.pop(0))
        self.at(self.now_ms + self.draw_ms(1.0, self.absent_ms_max), self.begin_worker)

    def push_later(self, worker: LaneWorker, ms: float | None = None) -> None:
        worker.after(self.draw_ms(1.0, 20.0) if ms is None else ms, lambda: self._push(worker))

    def _push(self, worker: LaneWorker) -> None:
        """All metadata."""
        self._known_ids[worker] = dict(self.cluster.ids)
        partitions = tuple(
            PartitionUpdate(
                topic, UUID(int=self.cluster.ids[topic]).bytes, index, self.cluster.leader(index), 0
            )
            for topic, logs in self.cluster.topics.items()
            for index in range(len(logs))
        )
        version = next(self._versions)
        update = UpdateMetadata(1, 1, EPOCH, tuple(NODES.values()), partitions, True, "cluster", version)
        worker.rooms.driver.on_update_metadata(update)

    def known_id(self, worker: LaneWorker, topic: str) -> int:
        return self._known_ids[worker][topic]

    def make_topic_anew(self, topic: str) -> None:
        """The controller hears of it a while later. Until the worker does, a commit may be of what is gone."""
        for client in self.clients:
            for told in client.told[-1:]:
                told.is_excused = told.result == "open"
        self.cluster.make_anew(topic)
        self.after(self.draw_ms(1.0, 60.0), self._hear_of_topics)

    def _hear_of_topics(self) -> None:
        if self.worker is not None:
            self.push_later(self.worker, 0.0)

    def move_coordinator(self) -> None:
        self.cluster.coordinator_id = 3 - self.cluster.coordinator_id

    # --- requests on their way -----------------------------------------------------------------------------

    def travel(self, link: LaneLink, arrive: Callable[[], Callable[[], None]], api: int) -> None:
        """A request leaves; ``arrive`` is what the broker does, and returns what its answer does."""
        if link.worker.is_dead:
            return
        link.arrives_ms = max(link.arrives_ms, self.now_ms) + self.draw_ms(0.1, 3.0)
        if self.strikes("lose_request"):
            self._lose_later(link, link.arrives_ms)
            return
        if self.strikes("late_request"):
            # It lies in a dead connection's socket: the broker reads it when the client has given it up.
            self._lose_later(link, link.arrives_ms)
            self.at(link.arrives_ms + self.draw_ms(20.0, 400.0), lambda: self._arrive_unheard(arrive))
            return

        def arrived() -> None:
            answer = arrive()
            if not link.is_open or link.worker is not self.worker:
                return
            link.answers_ms = max(link.answers_ms, self.now_ms) + self.draw_ms(0.1, 3.0)
            if self.strikes("lose_answer"):
                self._lose_later(link, link.answers_ms)
                return
            link.worker.after(link.answers_ms - self.now_ms, lambda: answer() if link.is_open else None)

        self.at(link.arrives_ms, arrived)

    def _arrive_unheard(self, arrive: Callable[[], Any]) -> None:
        arrive()

    def _lose_later(self, link: LaneLink, at_ms: float) -> None:
        link.worker.after(
            at_ms - self.now_ms,
            lambda: link.worker.links.lose(link.node.id, "cut") if link.is_open else None,
        )

    def produce(
        self,
        link: LaneLink,
        request: Any,
        batches: list[tuple[str, int, int, bytes]],
        name: str,
        version: int,
    ) -> None:
        worker = link.worker
        sender = worker.rooms.core.sender

        def arrive() -> Callable[[], None]:
            results = []
            for topic, topic_id, partition, data in batches:
                seen_id = topic_id if version >= PRODUCE_WITH_IDS else self.cluster.ids[topic]
                if self.strikes("refuse_batch"):
                    code, offset = self.random.choice((7, 19, 10)), -1
                else:
                    code, offset = self.cluster.append(
                        link.node.id, topic, seen_id, partition, data, name, version
                    )
                results.append(
                    PartitionResult(topic, None, partition, code, offset, -1, -1, (), None, -1, -1)
                )

            def answered() -> None:
                if not request.ended:
                    sender.on_produce_response(request, results, 0, self.now_ms)
                    worker.rooms.turns.wake()

            return answered

        self.travel(link, arrive, Api.PRODUCE)

    # --- clients -------------------------------------------------------------------------------------------

    def add_client(
        self,
        label: str,
        name: str,
        plans: list[Plan],
        *,
        timeout_ms: int = 60_000,
        delivery_timeout_ms: float = 600_000.0,
    ) -> LaneClient:
        client = LaneClient(
            label,
            name,
            plans,
            topics=self.topics,
            timeout_ms=timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            now_ms=lambda: self.now_ms,
            next_offset=lambda: next(self._offsets),
        )
        self.clients.append(client)
        client.session.wake(self.now_ms)
        return client

    def kill_client(self, client: LaneClient) -> None:
        """Its process ends; the worker sees that."""
        if client.is_over or client.is_dead:
            return
        self.happened["client died"] += 1
        client.is_dead = True
        self._routes = {route: each for route, each in self._routes.items() if each is not client}
        self._killed.append(client.session.attachment._identity._client_id)
        if self.worker is not None and not self.worker.is_dead:
            self._end_killed(self.worker)

    def _end_killed(self, worker: LaneWorker) -> None:
        """A worker watches the processes of its clients, also of those that it has adopted."""
        stubs = worker.rooms.stubs
        for session in [*stubs.sessions, *stubs.sessions.absent()]:
            if session.row.client_id in self._killed:
                stubs.port.end(session, self.now_ms, for_good=True)

    def _serve_clients(self) -> None:
        for client in self.clients:
            if client.is_dead:
                continue
            while True:
                moved = client.step(self.now_ms)
                if client.is_over:
                    self._leave(client)
                    break
                client.session.tick(self.now_ms)
                self._act(client)
                messages = client.messages()
                for frames in messages:
                    self._to_worker(client, frames)
                if not (moved or messages):
                    break
            if not client.is_over:
                self._wake_at(client)

    def _wake_at(self, client: LaneClient) -> None:
        due_ms = client.session.due_ms
        if client.waits_for is None:
            due_ms = min(due_ms, client.wakes_ms)
        if due_ms > self.now_ms and due_ms != float("inf") and client.timer_ms != due_ms:
            client.timer_ms = due_ms
            self.at(due_ms, lambda: None)

    def _leave(self, client: LaneClient) -> None:
        if client.is_dead:
            return
        client.is_dead = True
        frames = client.session.bye()
        if frames is not None:
            self._to_worker(client, [bytes(each) for each in frames])

    def _act(self, client: LaneClient) -> None:
        session = client.session
        for effect in session.attachment.take_effects():
            match effect:
                case OpenControl(frames):
                    self.after(1.0, partial(self._assign, client, msgpack.unpackb(frames[0])))
                case OpenWorker(_, frames):
                    route = b"route %d" % next(self._serial)
                    self._routes[route] = client
                    client.route = route
                    self._to_worker(client, [bytes(each) for each in frames])
                case CloseSockets():
                    self._routes = {route: each for route, each in self._routes.items() if each is not client}

    def _assign(self, client: LaneClient, hello: list[Any]) -> None:
        if client.is_dead:
            return
        if self.worker is None:
            client.session.lost("no worker", self.now_ms)
            return
        assert hello[0] == Kind.HELLO
        ticket = attach_ticket(KEY, hello[2], hello[3], EPOCH)
        answer = [Kind.ASSIGNED, "ipc://worker", EPOCH, ticket]
        client.session.receive_control([msgpack.packb(answer)], self.now_ms)

    def _to_worker(self, client: LaneClient, frames: list[bytes]) -> None:
        worker, route = self.worker, client.route
        if worker is None:
            return

        def arrived() -> None:
            worker.rooms.stubs.port.on_message(route, [memoryview(each) for each in frames])
            worker.rooms.turns.run_now()

        # In their order: each takes the same time.
        worker.after(0.5, arrived)

    def has_route(self, route: bytes) -> bool:
        return route in self._routes

    def to_client(self, worker: LaneWorker, route: bytes, frames: list[bytes]) -> bool | None:
        client = self._routes.get(route)
        if client is None:
            return None

        def arrived() -> None:
            if self._routes.get(route) is client and not client.is_dead:
                client.session.receive_worker(frames, self.now_ms)

        self.at(self.now_ms + 0.5, arrived)
        return True

    # --- the end -------------------------------------------------------------------------------------------

    @property
    def are_clients_over(self) -> bool:
        return self.worker is not None and all(client.is_dead for client in self.clients)

    def finish(self) -> None:
        """All clients get their answers; what they left open is aborted; nothing is left."""
        self.run(lambda: self.are_clients_over, self.now_ms + END_MS)
        self.is_over_faults = True
        self.run(self._is_empty, self.now_ms + EMPTY_MS)

    def _is_empty(self) -> bool:
        worker = self.worker
        if worker is None:
            return False
        return len(worker.rooms.lanes) == 0 and not ClientTable(self.segment).taken()

    def check(self) -> None:
        self.cluster.coordinator.expire()
        told = [each for client in self.clients for each in client.told]
        found = self.cluster.committed()
        for each in told:
            there = [value for value in each.values if found[value]]
            what = f"{each} ({each.why}): there are {there}"
            assert all(found[value] == 1 for value in there), f"twice: {what}"
            if each.is_excused:
                pass
            elif each.must_be_there:
                assert len(there) == len(each.values), f"committed and not there: {what}"
            elif there:
                assert each.may_be_there, f"not committed and there: {what}"
                assert len(there) == len(each.values), f"there in part: {what}"
            for value in there:
                del found[value]
        assert not found, f"of no transaction: {found}"
        for name in {client.name for client in self.clients}:
            self._check_offsets(
                name, [each for each in told if each.name == name and each.offset is not None]
            )
        self._check_counters()

    def _check_offsets(self, name: str, told: list[Told]) -> None:
        must = [each.offset or 0 for each in told if each.must_be_there]
        may = {each.offset for each in told if each.may_be_there}
        found = self.cluster.offset(name)
        assert found is None or found in may, f"offset {found} of {name} is of no committed transaction"
        assert (found or 0) >= max(must, default=0), f"offset {found} of {name}, committed are {must}"

    def _check_counters(self) -> None:
        assert self.worker is not None
        counters = self.worker.rooms.memory.counters.read()
        names = ("accepted_total", "delivered_total", "failed_total", "dead_lettered_total", "aborted_total")
        accepted, delivered, failed, dead, aborted = (counters[f"records_{name}"] for name in names)
        assert (dead, counters["records_held"]) == (0, 0)
        assert accepted == delivered + failed + aborted, (accepted, delivered, failed, aborted)
        assert describe_undelivered(self.segment) == []
        assert list(LaneRecords(self.segment, 0)) == []
        assert list(self.worker.rooms.memory.descriptors) == []
        for chain in self.worker.rooms.memory.chain_table:
            pages = chain.release_idle()
            if pages:
                self.worker.rooms.memory.pool.give(pages)
        assert not any(self.segment.owners.cast("Q").tolist()), "every page is back"
        for name in ("malformed_frames_total", "sender_exceptions_total", "accept_errors_total"):
            assert counters[name] == 0, name


def new_segment(path: Any) -> Segment:
    return Segment.create(
        path, page_bytes=4096, buffer_memory_bytes=128 << 10, clients_max=CLIENTS_MAX, instance_id=b"test"
    )
