"""BrokerDrain: makes requests of what is ready for a broker, as far as its connections, buffers and descriptors reach.

A broker has one connection, and a second one while that is full and more waits than a pause of the broker explains.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from sidecar.common.model import broker_of, second_of
from sidecar.producer.broker_lines import QUICK
from sidecar.producer.effects import Connect, Effect, SendProduce
from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lanes import LANES_FROM

if TYPE_CHECKING:
    from sidecar.producer.batch_fates import SenderCounts
    from sidecar.producer.broker_latency import BrokerLatency
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.in_flight import InFlightRequests
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.record_accumulator import RecordAccumulator
    from sidecar.producer.request_room import RequestRoom


BULK_BESIDE: Final = 2
"""Requests of a backlog that may be unanswered on a broker's only connection while small ones go there."""
BESIDE_MS: Final = 100.0
"""How long after the last small one a broker's connections are still divided for them."""


class LinkView(Protocol):
    """Connections as the core sees them, by the id of their broker or ``second_of`` it. Asked once or twice
    per connection and poll."""

    def is_ready(self, node_id: int) -> bool:
        """Connected and versions negotiated."""

    def stalled_since_ms(self, node_id: int) -> float | None:
        """Since when the kernel has taken no byte of what is queued for this connection; None: nothing is queued."""


class BrokerDrain:
    """Single-threaded: the worker's loop. Called by the sender once for each broker with something ready."""

    __slots__ = (
        "_accumulator",
        "_config",
        "_counts",
        "_in_flight",
        "_latency",
        "_next_lane",
        "_quick_ms",
        "_request_ids",
        "_room",
        "_was_quick",
    )

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        *,
        in_flight: InFlightRequests,
        room: RequestRoom,
        latency: BrokerLatency,
        counts: SenderCounts,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._in_flight = in_flight
        self._room = room
        self._latency = latency
        self._counts = counts
        self._request_ids = count(1)
        self._next_lane: defaultdict[int, int] = defaultdict(int)
        """By connection: the lanes take turns, also where there is room for one request at a time."""
        self._was_quick: dict[int, bool] = {}
        """By connection: whether its last request beside a backlog had what is quick."""
        self._quick_ms: defaultdict[int, float] = defaultdict(lambda: -inf)
        """By broker: when the last of these was made."""

    def send_to(
        self, node_id: int, links: LinkView, now_ms: float, effects: list[Effect], *, has_decided: bool
    ) -> bool:
        """Append a SendProduce for each request that may go now; True: another poll at once finds more.

        ``has_decided``: effects of this poll are carried out before these, and may free descriptors.
        """
        poll_again = False
        broker = broker_of(node_id)
        in_flight, room = self._in_flight, self._room
        accumulator = self._accumulator
        lines, max_request_size = accumulator.lines.ready(node_id), self._config.max_request_size
        is_crowded = now_ms < self._quick_ms[broker] + BESIDE_MS or (
            any(lines[QUICK:]) and any(lines[:QUICK]) and accumulator.lines.holds(node_id, max_request_size)
        )
        is_apart = broker in accumulator.lines.apart
        if is_crowded is not is_apart and self._divide(broker, is_crowded, links, now_ms, effects):
            is_apart, poll_again = is_crowded, True
        places = in_flight.room(node_id)
        if places <= 0:
            return self._is_full(node_id, links, now_ms, effects) or poll_again
        takes_turns = is_crowded and not is_apart
        lanes_left = list(LANES_FROM[self._next_lane[node_id]])
        while lanes_left and places > 0:
            lane = lanes_left.pop(0)
            if not lines[lane] and not lines[QUICK + lane]:
                continue
            quick = self._turn_of(node_id, lane) if takes_turns else None
            if takes_turns and quick is None:
                poll_again |= self._is_full(node_id, links, now_ms, effects)
                continue
            is_first = places == in_flight.room_at_rest or not in_flight.has_unsent(node_id)
            most_bytes = room.request_bytes(is_first=is_first)
            new_batches = room.new_batches(accumulator.under_way[broker])
            if new_batches <= 0 and self._is_stuck(broker):
                if has_decided:
                    poll_again = True  # these may give halves their descriptors, or free some
                else:
                    new_batches = room.new_batches_of_stuck()
            batches = accumulator.drain(
                node_id,
                lane,
                most_bytes if most_bytes < max_request_size else max_request_size,
                now_ms,
                single_bytes=most_bytes,
                new_batches=new_batches,
                quick=quick,
            )
            if not batches:
                if not lines[lane] and not lines[QUICK + lane]:
                    continue
                if quick is not None and not lines[QUICK * quick + lane]:
                    lanes_left.insert(0, lane)  # none of these was due: it is the others' turn
                    continue
                if new_batches <= 0:
                    room.lacks_descriptors = True
                if is_first and accumulator.held_back_bytes:
                    room.wait(node_id, accumulator.held_back_bytes)
                continue
            lanes_left.append(lane)
            self._next_lane[node_id] = LANES_FROM[lane][1]
            places -= 1
            is_quick = node_id == broker if is_apart else quick
            effects.append(SendProduce(node_id, self._request(node_id, batches, now_ms, is_quick)))
            if not any(lines):
                break
        return poll_again

    def _request(
        self, node_id: int, batches: list[ProducerBatch], now_ms: float, is_quick: bool | None
    ) -> ProduceRequest:
        if self._latency.is_on:
            self._latency.drained(broker_of(node_id))
        timeout_ms = self._config.request_timeout_ms
        request = ProduceRequest(
            next(self._request_ids),
            node_id,
            batches[0].lane,
            batches[0].queue.acks,
            batches,
            now_ms,
            int(timeout_ms),
            now_ms + timeout_ms,
        )
        if is_quick is not None:
            self._was_quick[node_id] = request.is_quick = is_quick
            if is_quick:
                self._quick_ms[broker_of(node_id)] = now_ms
        self._room.take(request)
        self._in_flight.add(request)
        self._counts.requests += 1
        self._counts.batches_sent += len(batches)
        return request

    def _is_full(self, node_id: int, links: LinkView, now_ms: float, effects: list[Effect]) -> bool:
        """The connection takes no more for now; True: another poll finds the second one."""
        self._latency.blocked(broker_of(node_id), now_ms)
        return node_id == broker_of(node_id) and self._widen(node_id, links, effects)

    def _divide(
        self, broker: int, is_crowded: bool, links: LinkView, now_ms: float, effects: list[Effect]
    ) -> bool:
        """Quick batches get the broker's first connection and all others the second, or both are for all again.
        True: partitions have changed their lines. False: there is no second connection yet."""
        lines = self._accumulator.lines
        if is_crowded:
            if broker not in lines.widened and not self._widen(broker, links, effects):
                return False
            self._quick_ms[broker] = now_ms
        lines.set_apart(broker, is_crowded)
        return True

    def _turn_of(self, node_id: int, lane: int) -> bool | None:
        """On a broker's only connection: whether the next request has quick batches, or those of the backlog; None:
        neither may go now.

        Both have places of their own, and where both may go they take turns: neither keeps the other out."""
        ready = self._accumulator.lines.ready(node_id)
        most = self._config.max_in_flight_requests_per_connection
        bulk = self._in_flight.bulk_count(node_id)
        may_quick = bool(ready[QUICK + lane]) and self._in_flight.count(node_id) - bulk < max(
            1, most - BULK_BESIDE
        )
        may_bulk = bool(ready[lane]) and bulk < BULK_BESIDE
        if may_quick and may_bulk:
            return not self._was_quick.get(node_id, False)
        return True if may_quick else False if may_bulk else None

    def _widen(self, node_id: int, links: LinkView, effects: list[Effect]) -> bool:
        """The first connection has no room, or is to be for quick batches. A second one is for more than a broker's
        pause leaves waiting, and takes a share when it stands: nothing waits for it to be made."""
        lines = self._accumulator.lines
        if self._config.connections_per_broker == 1 or node_id in lines.widened:
            return False
        if not lines.holds(node_id, self._config.max_request_size, is_movable=True):
            return False
        if links.is_ready(second_of(node_id)):
            lines.widen(node_id)
            return True
        effects.append(Connect(second_of(node_id)))
        return False

    def narrow(self, now_ms: float) -> None:
        """Brokers with nothing in flight need one connection: through two a trickle would be twice the requests. Not
        while these are divided: they would be again at once."""
        in_flight, lines = self._in_flight, self._accumulator.lines
        for node_id in list(lines.widened):
            if node_id in lines.apart and now_ms < self._quick_ms[node_id] + BESIDE_MS:
                continue
            if not in_flight.count(node_id) and not in_flight.count(second_of(node_id)):
                lines.narrow(node_id)

    def _is_stuck(self, broker: int) -> bool:
        """Nothing of the broker is in flight, and nothing will be before a batch without a descriptor goes."""
        in_flight = self._in_flight.count(broker) + self._in_flight.count(second_of(broker))
        return not in_flight and not self._accumulator.schedule.has_next_with_descriptor(broker)
