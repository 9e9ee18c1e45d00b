"""BrokerLines: which partitions wait for which broker, those that may go and those that may go along."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from sidecar.producer.lanes import LANES

if TYPE_CHECKING:
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.partition_queue import PartitionQueue, Ring


class BrokerLines:
    """A partition stands in the line of its leader (ready, or lingering), in the line of those without one, or
    nowhere. Follows the newest snapshot it was given.
    """

    __slots__ = ("_lingering", "_ready", "leaderless", "snapshot")

    def __init__(self) -> None:
        self.snapshot: MetadataSnapshot | None = None
        self._ready: dict[int, tuple[Ring, ...]] = {}
        self._lingering: dict[int, tuple[Ring, ...]] = {}
        """By broker and lane, partitions whose next batch waits for nothing but more records."""
        self.leaderless: Ring = OrderedDict()
        """Partitions with something to send and nobody to send it to."""

    def place(self, queue: PartitionQueue, *, lingers: bool) -> None:
        """Into the line of its leader, that of what may go or that of what may go along."""
        if queue.ring is not None:
            if queue.lingers is lingers:
                return
            queue.leave_ring()
        queue.lingers = lingers
        leader = self.snapshot.leader(queue.topic, queue.partition) if self.snapshot is not None else None
        if leader is None:
            if lingers:
                return  # nobody need look for its leader yet
            ring = self.leaderless
        else:
            nodes = self._lingering if lingers else self._ready
            rings = nodes.get(leader.id)
            if rings is None:
                rings = nodes[leader.id] = tuple(OrderedDict() for _ in LANES)
            ring = rings[queue.lane]
        ring[queue] = None
        queue.ring = ring

    def follow(self, snapshot: MetadataSnapshot) -> None:
        """Partitions go over to the lines of their new leaders."""
        self.snapshot = snapshot
        moved = list(self.leaderless)
        for nodes in (self._ready, self._lingering):
            for rings in nodes.values():
                for ring in rings:
                    moved.extend(ring)
        for queue in moved:
            queue.leave_ring()
        self._ready = {node: rings for node, rings in self._ready.items() if node in snapshot.nodes}
        self._lingering = {node: rings for node, rings in self._lingering.items() if node in snapshot.nodes}
        for queue in moved:
            self.place(queue, lingers=queue.lingers)

    def ready_nodes(self) -> list[int]:
        """Brokers with something that may go."""
        ready: list[int] = []
        for node, rings in self._ready.items():
            for ring in rings:
                if ring:
                    ready.append(node)
                    break
        return ready

    def ready(self, node_id: int) -> tuple[Ring, ...]:
        """By lane, the partitions with something that may go to a broker; empty for one that never had any."""
        return self._ready.get(node_id, ())

    def lingering(self, node_id: int) -> tuple[Ring, ...]:
        """By lane, the partitions with something that may go along; empty for a broker that never had any."""
        return self._lingering.get(node_id, ())

    def topics_waiting_for(self, node_id: int) -> set[str]:
        """Topics with something ready for a broker."""
        return {queue.topic for ring in self.ready(node_id) for queue in ring}
