"""BrokerLatency: finds brokers that take nothing although batches are ready for them (KIP-794's availability timeout).

Sans-IO: the Sender asks it, on the worker's loop.

Kafka (``RecordAccumulator.NodeLatencyStats``) measures from a broker's last drain, even if nothing was ready for it
meanwhile. Here the time runs from the first batch that could not be sent.
"""

from __future__ import annotations

from math import inf


class BrokerLatency:
    """Times since which brokers have been late, in monotonic ms. A ``timeout_ms`` of 0 switches it off. No clock
    inside.
    """

    __slots__ = ("_blocked_since_ms", "_timeout_ms", "is_on")

    def __init__(self, timeout_ms: float) -> None:
        self._timeout_ms = timeout_ms
        self.is_on = timeout_ms > 0
        self._blocked_since_ms: dict[int, float] = {}

    def drained(self, node_id: int) -> None:
        """A request for the broker was made: it is not late."""
        self._blocked_since_ms.pop(node_id, None)

    def blocked(self, node_id: int, now_ms: float) -> None:
        """A batch is ready for the broker, but it has no link or too many requests in flight."""
        if self.is_on:
            self._blocked_since_ms.setdefault(node_id, now_ms)

    def keep(self, late: set[int]) -> None:
        """Forget all brokers but those in ``late``: nothing waits for the others any more."""
        for node_id in self._blocked_since_ms.keys() - late:
            del self._blocked_since_ms[node_id]

    def late(self, now_ms: float) -> frozenset[int]:
        """Brokers that have been late for at least the timeout."""
        if not self._blocked_since_ms:
            return frozenset()
        return frozenset(
            node_id
            for node_id, since_ms in self._blocked_since_ms.items()
            if now_ms - since_ms >= self._timeout_ms
        )

    def next_change_ms(self, now_ms: float) -> float:
        """When the next broker becomes late, monotonic ms; infinity if none will by the passing of time alone."""
        dues = [since_ms + self._timeout_ms for since_ms in self._blocked_since_ms.values()]
        return min((due_ms for due_ms in dues if due_ms > now_ms), default=inf)
