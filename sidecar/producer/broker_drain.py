"""BrokerDrain: builds requests from the batches that are ready for a broker, within the limits of its connections,
request buffers and descriptors.

A broker has one connection. It gets a second one while more records wait than a short pause of the broker explains,
and the first is full or has quick batches, too.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from sidecar.common.model import broker_of, second_of
from sidecar.producer.batch_drain import Budget
from sidecar.producer.effects import Connect, Effect, SendProduce
from sidecar.producer.lanes import TURNS_FROM
from sidecar.producer.partition_schedule import QUICK

if TYPE_CHECKING:
    from collections.abc import Container

    from sidecar.producer.batch_drain import BatchDrain
    from sidecar.producer.batch_outcomes import SenderCounts
    from sidecar.producer.broker_latency import BrokerLatency
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.in_flight import InFlightRequests, ProduceRequest
    from sidecar.producer.partition_queue import WaitList
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.request_capacity import RequestCapacity


BULK_SHARING: Final = 2
"""Limit of unanswered backlog requests on a broker's only connection while quick batches share it."""
SHARING_MS: Final = 100.0
"""A broker's connections stay divided for this long after the last request with quick batches."""


class LinkView(Protocol):
    """The core's view of connections. ``node_id`` is a broker's id, or ``second_of`` it for the second connection.
    Asked once or twice per connection and poll.
    """

    @property
    def connected(self) -> Container[int]:
        """Ids of the connections that are open, with API versions negotiated."""

    def stalled_since_ms(self, node_id: int) -> float | None:
        """Monotonic ms since which the kernel has taken no byte of the data queued for this connection; None if
        nothing is queued.
        """


class BrokerDrain:
    """Builds the requests of one broker at a time. Single-threaded: the worker's loop. The sender calls it once per
    poll for each broker that has something ready.
    """

    __slots__ = (
        "_batches",
        "_capacity",
        "_config",
        "_counts",
        "_in_flight",
        "_latency",
        "_next_turn",
        "_quick_ms",
        "_schedule",
        "_under_way",
        "_was_quick",
    )

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        batches: BatchDrain,
        *,
        in_flight: InFlightRequests,
        capacity: RequestCapacity,
        latency: BrokerLatency,
        counts: SenderCounts,
    ) -> None:
        self._config = config
        self._schedule = accumulator.schedule
        self._under_way = accumulator.incomplete.under_way
        self._batches = batches
        self._in_flight = in_flight
        self._capacity = capacity
        self._latency = latency
        self._counts = counts
        self._next_turn: defaultdict[int, int] = defaultdict(int)
        """The turn that is first, by connection. Lanes take turns, even where only one request fits at a time."""
        self._was_quick: dict[int, bool] = {}
        """By connection: whether its last request during a backlog held quick batches."""
        self._quick_ms: defaultdict[int, float] = defaultdict(lambda: -inf)
        """By broker: when its last request with quick batches was made, monotonic ms."""

    def send_to(
        self, node_id: int, links: LinkView, now_ms: float, effects: list[Effect], *, has_decided: bool
    ) -> bool:
        """Append a SendProduce to ``effects`` for each request that may go now. True: polling again at once finds
        more.

        ``has_decided``: this poll has earlier effects, which run before these requests and may free descriptors.
        """
        poll_again = False
        broker, schedule, in_flight = broker_of(node_id), self._schedule, self._in_flight
        is_crowded, is_apart = self._is_crowded(node_id, broker, now_ms), broker in schedule.apart
        if is_crowded is not is_apart and self._divide(broker, is_crowded, links, now_ms, effects):
            is_apart, poll_again = is_crowded, True
        requests_left = in_flight.capacity(node_id)
        if requests_left <= 0:
            return self._is_full(node_id, links, now_ms, effects) or poll_again
        wait_lists = schedule.ready[node_id]
        # Lanes take turns, each with one request at a time.
        turns_left = list(TURNS_FROM[self._next_turn[node_id]])
        while turns_left and requests_left > 0:
            turn = turns_left.pop(0)
            if not wait_lists[turn] and not wait_lists[QUICK + turn]:
                continue
            quick = None
            if is_crowded and not is_apart:
                quick = self._kind_of(node_id, turn)
                if quick is None:
                    poll_again |= self._is_full(node_id, links, now_ms, effects)
                    continue
            is_first = requests_left == in_flight.capacity_at_rest or not in_flight.has_unsent(node_id)
            budget = self._budget(broker, is_first=is_first)
            if budget.new_batches <= 0 and self._is_stuck(broker):
                if has_decided:
                    poll_again = True  # the earlier effects may give descriptors to halves, or free some
                else:
                    budget.new_batches = self._capacity.new_batches_of_stuck()
            batches = self._batches.take(node_id, turn, budget, now_ms, quick)
            if batches:
                request = self._request(node_id, turn, batches, now_ms)
                effects.append(SendProduce(node_id, request))
                requests_left -= 1
                turns_left.append(turn)
                if is_crowded or is_apart:
                    self._note_quick(request, node_id == broker if is_apart else quick)
                if not any(wait_lists):
                    break
            elif self._is_other_kind_due(wait_lists, turn, quick):
                turns_left.insert(0, turn)
            elif wait_lists[turn] or wait_lists[QUICK + turn]:
                self._note_lack(node_id, budget, is_first=is_first)
        return poll_again

    def _is_crowded(self, node_id: int, broker: int, now_ms: float) -> bool:
        """Whether quick batches and a backlog are ready. Then they take turns, or use one connection each."""
        if now_ms < self._quick_ms[broker] + SHARING_MS:
            return True
        wait_lists = self._schedule.ready[node_id]
        if not (any(wait_lists[QUICK:]) and any(wait_lists[:QUICK])):
            return False
        return self._schedule.holds(node_id, self._config.max_request_size)

    def _budget(self, broker: int, *, is_first: bool) -> Budget:
        """What the broker's next request may take of request buffers and descriptors."""
        buffer_bytes, new_batches = self._capacity.limits(self._under_way[broker], is_first=is_first)
        request_bytes = self._config.max_request_size
        return Budget(
            buffer_bytes if buffer_bytes < request_bytes else request_bytes, buffer_bytes, new_batches
        )

    def _request(
        self, node_id: int, turn: int, batches: list[ProducerBatch], now_ms: float
    ) -> ProduceRequest:
        """Make the request of these batches, with its buffer. It counts as in flight."""
        queue = batches[0].queue
        request = self._in_flight.begin(node_id, queue.lane, queue.acks, batches, now_ms)
        request.transaction = queue.transaction
        request.buffer = self._capacity.buffers.take(request.size_bytes)
        self._capacity.promised += request.new_batches
        self._next_turn[node_id] = TURNS_FROM[turn][1]
        if self._latency.is_on:
            self._latency.drained(broker_of(node_id))
        self._counts.requests += 1
        self._counts.batches_sent += len(batches)
        return request

    @staticmethod
    def _is_other_kind_due(wait_lists: tuple[WaitList, ...], turn: int, quick: bool | None) -> bool:
        """Whether none of the kind was due whose turn it was, but some of the other kind."""
        if quick is None or wait_lists[QUICK * quick + turn]:
            return False
        return bool(wait_lists[QUICK * (not quick) + turn])

    def _note_lack(self, node_id: int, budget: Budget, *, is_first: bool) -> None:
        """Note what was missing for a request that took nothing."""
        if budget.new_batches <= 0:
            self._capacity.lack_descriptors()
        if is_first and budget.held_back_bytes:
            self._capacity.wait(node_id, budget.held_back_bytes)

    def _note_quick(self, request: ProduceRequest, is_quick: bool | None) -> None:
        """Note which kind of batches a request has while a broker has both; None: either."""
        if is_quick is not None:
            self._was_quick[request.node_id] = request.is_quick = is_quick
            if is_quick:
                self._quick_ms[broker_of(request.node_id)] = request.created_ms

    def _is_full(self, node_id: int, links: LinkView, now_ms: float, effects: list[Effect]) -> bool:
        """The connection has no capacity for another request now. True: polling again finds the second connection."""
        self._latency.blocked(broker_of(node_id), now_ms)
        return node_id == broker_of(node_id) and self._widen(node_id, links, effects)

    def _divide(
        self, broker: int, is_crowded: bool, links: LinkView, now_ms: float, effects: list[Effect]
    ) -> bool:
        """Reserve the broker's first connection for quick batches and the second for all others, or undo that.

        True: partitions have changed lists. False: there is no second connection yet.
        """
        schedule = self._schedule
        if is_crowded:
            if broker not in schedule.widened and not self._widen(broker, links, effects):
                return False
            self._quick_ms[broker] = now_ms
        schedule.set_apart(broker, is_crowded)
        return True

    def _kind_of(self, node_id: int, turn: int) -> bool | None:
        """Whether the next request on a broker's only connection takes quick batches (True) or the backlog (False);
        None if neither may go now.

        Each kind has request slots of its own. Where both may go they take turns, so neither starves the other.
        """
        ready = self._schedule.ready[node_id]
        most = self._config.max_in_flight_requests_per_connection
        bulk = self._in_flight.bulk_count(node_id)
        may_quick = bool(ready[QUICK + turn]) and self._in_flight.count(node_id) - bulk < max(
            1, most - BULK_SHARING
        )
        may_bulk = bool(ready[turn]) and bulk < BULK_SHARING
        if may_quick and may_bulk:
            return not self._was_quick.get(node_id, False)
        return True if may_quick else False if may_bulk else None

    def _widen(self, node_id: int, links: LinkView, effects: list[Effect]) -> bool:
        """Start using a second connection, because the first is full or is reserved for quick batches. True: it is in
        use now.

        Only for more waiting records than a pause of the broker explains. Until the connection is made,
        everything goes by the first one.
        """
        schedule = self._schedule
        if self._config.connections_per_broker == 1 or node_id in schedule.widened:
            return False
        if not schedule.holds(node_id, self._config.max_request_size, is_movable=True):
            return False
        if second_of(node_id) in links.connected:
            schedule.widen(node_id)
            return True
        effects.append(Connect(second_of(node_id)))
        return False

    def narrow(self, now_ms: float) -> None:
        """Stop using the second connection of brokers with nothing in flight: spread over two, a trickle of records
        would take twice the requests. A recently divided broker keeps both, because it would be divided again at once.
        """
        in_flight, schedule = self._in_flight, self._schedule
        for node_id in list(schedule.widened):
            if node_id in schedule.apart and now_ms < self._quick_ms[node_id] + SHARING_MS:
                continue
            if not in_flight.count(node_id) and not in_flight.count(second_of(node_id)):
                schedule.narrow(node_id)

    def _is_stuck(self, broker: int) -> bool:
        """Nothing for the broker is in flight, and nothing can be sent before a batch that has no descriptor."""
        in_flight = self._in_flight.count(broker) + self._in_flight.count(second_of(broker))
        return not in_flight and not self._schedule.has_next_with_descriptor(broker)
