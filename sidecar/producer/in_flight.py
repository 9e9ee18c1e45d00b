"""In-flight requests per connection (``node_id`` names one), with their batches and deadlines. A prepared request
counts from the start.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from sidecar.producer.producer_batch import NO_DESCRIPTOR

if TYPE_CHECKING:
    from uuid import UUID

    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.request_buffers import RequestBuffer

UNSENT_PER_NODE_MAX = 2
"""One request partly written and one prepared behind it; more would only hold request buffers."""


class ProduceRequest:
    """One Produce request: batches of one lane for one broker.

    ``node_id`` is the broker's, or that of the second connection to it (``second_of``). ``timeout_ms`` goes
    to the broker, ``deadline_ms`` (monotonic) when the connection is given up.
    ``buffer`` is taken when the request is made, and the driver gives it back when the kernel has taken the request, or
    nothing of it will be sent any more. ``topic_names`` is for the driver: with Produce v13 answers name topics by id,
    and it puts the ids it sent here. Make it by place: names of arguments would be a dictionary for each request.
    """

    __slots__ = (
        "acks",
        "batches",
        "begun",
        "buffer",
        "created_ms",
        "deadline_ms",
        "ended",
        "id",
        "is_quick",
        "lane",
        "new_batches",
        "node_id",
        "sent",
        "size_bytes",
        "timeout_ms",
        "topic_names",
    )

    def __init__(
        self,
        id: int,
        node_id: int,
        lane: int,
        acks: int,
        batches: list[ProducerBatch],
        created_ms: float,
        timeout_ms: int,
        deadline_ms: float,
    ) -> None:
        self.id = id
        self.node_id = node_id
        self.lane = lane
        self.acks = acks
        self.batches = batches
        self.created_ms = created_ms
        self.timeout_ms = timeout_ms
        self.deadline_ms = deadline_ms
        self.size_bytes = 0
        """Exact bytes of all batches uncompressed: what a request buffer must hold."""
        self.new_batches = 0
        """Batches that have no descriptor yet."""
        for batch in batches:
            self.size_bytes += batch.records.size_bytes
            self.new_batches += batch.descriptor == NO_DESCRIPTOR
        self.is_quick = False
        """It has nothing of a backlog, beside one."""
        self.buffer: RequestBuffer | None = None
        self.begun = False
        """Its bytes were given to a connection, and some may have left. Set by the driver, and taken back when the
        connection ended before the kernel had taken one."""
        self.ended = False
        """Answered, timed out, or back in the queues with its connection gone: nothing of it may be sent any more."""
        self.sent = False
        """The kernel has taken all of its bytes."""
        self.topic_names: dict[UUID, str] = {}

    def __repr__(self) -> str:
        return f"<ProduceRequest {self.id} node={self.node_id} acks={self.acks} batches={len(self.batches)}>"


class InFlightRequests:
    """Per broker, oldest first. Ended requests are unknown here, so that late answers are seen to be late."""

    __slots__ = ("_by_node", "_max_per_node", "next_deadline_ms", "room_at_rest")

    def __init__(self, max_per_node: int) -> None:
        self._max_per_node = max_per_node
        self.room_at_rest = min(UNSENT_PER_NODE_MAX, max_per_node)
        """:meth:`room` of a broker with nothing in flight; no other has as much unless all of it is sent."""
        self._by_node: dict[int, dict[int, ProduceRequest]] = {}
        self.next_deadline_ms = inf
        """No deadline is earlier. It may be that of a request that has ended: :meth:`timed_out` finds the next."""

    def room(self, node_id: int) -> int:
        """How many more requests the broker may be sent now: as many as may be unanswered, and never more than
        ``UNSENT_PER_NODE_MAX`` prepared whose bytes the kernel has not all taken."""
        requests = self._by_node.get(node_id)
        if requests is None:
            return self.room_at_rest
        unsent = 0
        for request in requests.values():
            unsent += not request.sent
        return min(UNSENT_PER_NODE_MAX - unsent, self._max_per_node - len(requests))

    def add(self, request: ProduceRequest) -> None:
        next_ms, deadline_ms = self.next_deadline_ms, request.deadline_ms
        self.next_deadline_ms = deadline_ms if deadline_ms < next_ms else next_ms
        self._by_node.setdefault(request.node_id, {})[request.id] = request

    def end(self, request: ProduceRequest) -> bool:
        """True exactly once per request; False for one that has ended already (timed out, disconnected)."""
        requests = self._by_node.get(request.node_id)
        if requests is None or requests.pop(request.id, None) is None:
            return False
        request.ended = True
        if not requests:
            del self._by_node[request.node_id]
            if not self._by_node:
                self.next_deadline_ms = inf
        return True

    def end_all(self, node_id: int) -> list[ProduceRequest]:
        requests = list(self._by_node.pop(node_id, {}).values())
        for request in requests:
            request.ended = True
        if not self._by_node:
            self.next_deadline_ms = inf
        return requests

    def timed_out(self, now_ms: float) -> list[int]:
        """Connections whose oldest request has passed its deadline: they are to be closed, and are named once."""
        late: list[int] = []
        self.next_deadline_ms = inf
        for node, requests in self._by_node.items():
            deadline_ms = next(iter(requests.values())).deadline_ms
            if deadline_ms <= now_ms:
                late.append(node)
            else:
                self.next_deadline_ms = min(self.next_deadline_ms, deadline_ms)
        return late

    def unsent_nodes(self) -> list[int]:
        """Connections with a request whose bytes the kernel has not all taken: each of these holds a buffer."""
        return [node for node in self._by_node if self.has_unsent(node)]

    def has_unsent(self, node_id: int) -> bool:
        """A request to it holds a buffer."""
        requests = self._by_node.get(node_id)
        if requests is not None:
            for request in requests.values():
                if not request.sent:
                    return True
        return False

    def bulk_count(self, node_id: int) -> int:
        """Those that are not quick."""
        requests = self._by_node.get(node_id)
        return sum(not request.is_quick for request in requests.values()) if requests else 0

    def count(self, node_id: int) -> int:
        return len(self._by_node.get(node_id, ()))

    def oldest_ms(self, node_id: int) -> float:
        """When the oldest request without an answer was made; infinity when there is none."""
        requests = self._by_node.get(node_id)
        return next(iter(requests.values())).created_ms if requests else inf

    def full_nodes(self) -> list[int]:
        """Brokers that may be sent nothing more until they answer."""
        return [node for node, requests in self._by_node.items() if len(requests) >= self._max_per_node]

    def __len__(self) -> int:
        return sum(len(requests) for requests in self._by_node.values())
