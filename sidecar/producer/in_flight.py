"""In-flight requests per connection, with their batches and deadlines. ``node_id`` names a connection. A request
counts from the moment it is prepared.

Sans-IO: the Sender owns it, on the worker's loop.
"""

from __future__ import annotations

from itertools import count
from math import inf
from typing import TYPE_CHECKING

from sidecar.producer.producer_batch import NO_DESCRIPTOR

if TYPE_CHECKING:
    from uuid import UUID

    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.request_capacity import RequestBuffer
    from sidecar.producer.transaction_manager import TransactionManager

UNSENT_PER_NODE_MAX = 2
"""One request partly written and one prepared after it. More would only hold request buffers."""


class ProduceRequest:
    """One Produce request: batches of one lane for one broker.

    ``node_id`` is a broker's id, or ``second_of`` it for the second connection. ``timeout_ms`` is sent to the broker;
    at ``deadline_ms`` (monotonic) the connection is given up. ``buffer`` is taken when the request is made. The driver
    gives it back when the kernel has taken the request, or when nothing of it will be sent any more. ``topic_names``
    is filled by the driver: answers to Produce v13 name topics by id.

    Build it with positional arguments: keyword arguments would cost a dictionary per request.
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
        "transaction",
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
        """Uncompressed size of all batches, exactly: the request buffer must hold as much."""
        self.new_batches = 0
        """Number of batches that have no descriptor yet."""
        for batch in batches:
            self.size_bytes += batch.records.size_bytes
            self.new_batches += batch.descriptor == NO_DESCRIPTOR
        self.is_quick = False
        """True if it holds only quick batches, during a backlog of the same broker."""
        self.buffer: RequestBuffer | None = None
        self.begun = False
        """Its bytes were given to a connection, so some may have left. The driver sets it, and resets it if the
        connection ended before the kernel had taken a byte.
        """
        self.ended = False
        """Answered, timed out, or returned to the queues because its connection is gone. Nothing of it may be sent any
        more.
        """
        self.sent = False
        """The kernel has taken all of its bytes."""
        self.topic_names: dict[UUID, str] = {}
        self.transaction: TransactionManager | None = None
        """Of a transactional lane."""

    def __repr__(self) -> str:
        return f"<ProduceRequest {self.id} node={self.node_id} acks={self.acks} batches={len(self.batches)}>"


class InFlightRequests:
    """Requests by connection, oldest first. An ended request is removed, which is how late answers are recognised."""

    __slots__ = ("_ids", "_max_per_node", "_timeout_ms", "by_node", "capacity_at_rest", "next_deadline_ms")

    def __init__(self, max_per_node: int, *, timeout_ms: float) -> None:
        self._max_per_node = max_per_node
        self._timeout_ms = timeout_ms
        self._ids = count(1)
        self.capacity_at_rest = min(UNSENT_PER_NODE_MAX, max_per_node)
        """:meth:`capacity` of a connection with nothing in flight. Others reach it only if all requests are sent."""
        self.by_node: dict[int, dict[int, ProduceRequest]] = {}
        """By connection and id. A connection with nothing in flight is not here."""
        self.next_deadline_ms = inf
        """Lower bound of all deadlines. It may belong to a request that has ended: :meth:`timed_out` finds the next
        one.
        """

    def capacity(self, node_id: int) -> int:
        """Number of further requests the connection may be given now. Limits: max.in.flight.requests unanswered ones,
        and ``UNSENT_PER_NODE_MAX`` requests that the kernel has not taken completely.
        """
        requests = self.by_node.get(node_id)
        if requests is None:
            return self.capacity_at_rest
        unsent = 0
        for request in requests.values():
            unsent += not request.sent
        return min(UNSENT_PER_NODE_MAX - unsent, self._max_per_node - len(requests))

    def begin(
        self, node_id: int, lane: int, acks: int, batches: list[ProducerBatch], now_ms: float
    ) -> ProduceRequest:
        """Make the request of these drained batches."""
        timeout_ms = self._timeout_ms
        deadline_ms = now_ms + timeout_ms
        request = ProduceRequest(
            next(self._ids), node_id, lane, acks, batches, now_ms, int(timeout_ms), deadline_ms
        )
        self.next_deadline_ms = min(self.next_deadline_ms, deadline_ms)
        self.by_node.setdefault(node_id, {})[request.id] = request
        return request

    def end(self, request: ProduceRequest) -> bool:
        """Remove a request that has ended with any result, and release its batches. True exactly once per request, and
        False if it had ended already (timed out, disconnected).
        """
        requests = self.by_node.get(request.node_id)
        if requests is None or requests.pop(request.id, None) is None:
            return False
        request.ended = True
        for batch in request.batches:
            batch.leave_wire()
        if not requests:
            del self.by_node[request.node_id]
            if not self.by_node:
                self.next_deadline_ms = inf
        return True

    def batches_of(self, lane: int) -> list[ProducerBatch]:
        """The batches of a lane that are on the wire."""
        requests = (request for each in self.by_node.values() for request in each.values())
        return [batch for request in requests if request.lane == lane for batch in request.batches]

    def requests(self, node_id: int) -> list[ProduceRequest]:
        """The requests of a connection, oldest first."""
        return list(self.by_node.get(node_id, {}).values())

    def timed_out(self, now_ms: float) -> list[int]:
        """Connections whose oldest request has passed its deadline, to be closed."""
        late: list[int] = []
        self.next_deadline_ms = inf
        for node, requests in self.by_node.items():
            deadline_ms = next(iter(requests.values())).deadline_ms
            if deadline_ms <= now_ms:
                late.append(node)
            else:
                self.next_deadline_ms = min(self.next_deadline_ms, deadline_ms)
        return late

    def unsent_nodes(self) -> list[int]:
        """Connections with a request that the kernel has not taken completely. Each of them holds a request buffer."""
        return [node for node in self.by_node if self.has_unsent(node)]

    def has_unsent(self, node_id: int) -> bool:
        """True if a request for this connection holds a buffer."""
        requests = self.by_node.get(node_id)
        if requests is not None:
            for request in requests.values():
                if not request.sent:
                    return True
        return False

    def bulk_count(self, node_id: int) -> int:
        """Number of its requests that hold a backlog's batches."""
        requests = self.by_node.get(node_id)
        return sum(not request.is_quick for request in requests.values()) if requests else 0

    def count(self, node_id: int) -> int:
        return len(self.by_node.get(node_id, ()))

    def oldest_ms(self, node_id: int) -> float:
        """When the oldest unanswered request was made, monotonic ms; infinity if there is none."""
        requests = self.by_node.get(node_id)
        return next(iter(requests.values())).created_ms if requests else inf

    def full_nodes(self) -> list[int]:
        """Connections that take no further request before one is answered."""
        return [node for node, requests in self.by_node.items() if len(requests) >= self._max_per_node]

    def __len__(self) -> int:
        return sum(len(requests) for requests in self.by_node.values())
