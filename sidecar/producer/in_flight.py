"""In-flight requests per connection, with their batches and deadlines. A prepared request counts from the
start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from sidecar.producer.producer_batch import ProducerBatch

INFINITY = float("inf")


class ProduceRequest:
    """One Produce request: batches of one lane for one broker.

    ``timeout_ms`` is what the broker is told, ``deadline_ms`` (monotonic) when the connection is given up.
    ``topic_names`` is for the driver: with Produce v13 answers name topics by id, and it puts the ids it sent
    here.
    """

    __slots__ = (
        "acks",
        "batches",
        "created_ms",
        "deadline_ms",
        "id",
        "lane",
        "node_id",
        "sent",
        "size_bytes",
        "timeout_ms",
        "topic_names",
    )

    def __init__(
        self,
        *,
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
        self.size_bytes = sum(batch.records.size_bytes for batch in batches)
        """Exact bytes of all batches uncompressed: what a request buffer must hold."""
        self.sent = False
        """The kernel has taken all of its bytes."""
        self.topic_names: dict[UUID, str] = {}

    def __repr__(self) -> str:
        return f"<ProduceRequest {self.id} node={self.node_id} acks={self.acks} batches={len(self.batches)}>"


class InFlightRequests:
    """Per broker, oldest first. Ended requests are unknown here, so that late answers are seen to be late."""

    __slots__ = ("_by_node", "_max_per_node")

    def __init__(self, max_per_node: int) -> None:
        self._max_per_node = max_per_node
        self._by_node: dict[int, dict[int, ProduceRequest]] = {}

    def can_send(self, node_id: int) -> bool:
        requests = self._by_node.get(node_id)
        return requests is None or len(requests) < self._max_per_node

    def add(self, request: ProduceRequest) -> None:
        self._by_node.setdefault(request.node_id, {})[request.id] = request

    def end(self, request: ProduceRequest) -> bool:
        """True exactly once per request; False for one that has ended already (timed out, disconnected)."""
        requests = self._by_node.get(request.node_id)
        if requests is None or requests.pop(request.id, None) is None:
            return False
        if not requests:
            del self._by_node[request.node_id]
        return True

    def end_all(self, node_id: int) -> list[ProduceRequest]:
        return list(self._by_node.pop(node_id, {}).values())

    def unsent(self, node_id: int) -> int:
        """Prepared requests whose bytes the kernel has not all taken."""
        return sum(not request.sent for request in self._by_node.get(node_id, {}).values())

    def timed_out(self, now_ms: float) -> list[int]:
        """Brokers whose oldest request has passed its deadline."""
        return [
            node
            for node, requests in self._by_node.items()
            if next(iter(requests.values())).deadline_ms <= now_ms
        ]

    @property
    def next_deadline_ms(self) -> float:
        return min((next(iter(r.values())).deadline_ms for r in self._by_node.values()), default=INFINITY)

    def count(self, node_id: int) -> int:
        return len(self._by_node.get(node_id, ()))

    def full_nodes(self) -> list[int]:
        """Brokers that may be sent nothing more until they answer."""
        return [node for node, requests in self._by_node.items() if len(requests) >= self._max_per_node]

    def nodes(self) -> list[int]:
        return list(self._by_node)

    def __len__(self) -> int:
        return sum(len(requests) for requests in self._by_node.values())
