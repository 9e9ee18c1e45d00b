"""BrokerLines: for each broker, the partitions ready to send and the partitions that may fill up a request."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from sidecar.common.model import broker_of, second_of
from sidecar.producer.lanes import LANES

if TYPE_CHECKING:
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.partition_queue import Line, PartitionQueue

QUICK: Final = len(LANES)
"""Added to a lane, this gives the index of its quick line: partitions that need not wait behind a backlog."""


class BrokerLines:
    """Lines of partitions. A partition stands in a line of its leader (ready or lingering), in the line of partitions
    without a leader, or in none. Lines follow the newest snapshot.

    A broker handles the requests of one connection one after another, and reads none while it works on one
    (``SocketServer`` mutes the channel). So while a broker's connection is full it gets two sets of lines, one for
    each of two connections. A partition changes sets only with nothing in flight, and stands in no line until then, so
    its batches arrive in order. Beside a backlog, the first connection takes quick batches and the second all others.
    With acks=0 nothing shows when a request has arrived, so such partitions stay with the first connection.
    """

    __slots__ = ("_serial", "again", "apart", "leaderless", "lingering", "ready", "snapshot", "widened")

    def __init__(self) -> None:
        self.snapshot: MetadataSnapshot | None = None
        self._serial = 0
        """Number of the present snapshot. A queue keeps its leader together with the number of the snapshot that named
        it.
        """
        self.ready: dict[int, tuple[Line, ...]] = {}
        """By broker: one line per lane, then at QUICK + lane the partitions whose next batch is small and new, or
        express. A broker that never had any is not here.
        """
        self.again: dict[int, tuple[Line, ...]] = {}
        """By broker and lane: ready partitions whose next batch has its descriptor. When the descriptor table is full,
        the batches that may still go are found without a walk over all others.
        """
        self.lingering: dict[int, tuple[Line, ...]] = {}
        """By broker and lane: partitions whose next batch only waits for more records."""
        self.widened: dict[int, dict[PartitionQueue, int]] = {}
        """Brokers with two connections in use, and for each of their partitions the connection it uses; half use
        either. Nothing is in flight on the second connection of any other broker.
        """
        self.apart: set[int] = set()
        """Brokers in ``widened`` whose first connection is for quick batches and whose second is for all others."""
        self.leaderless: Line = OrderedDict()
        """Partitions with something to send and no leader."""

    def place(self, queue: PartitionQueue, *, lingers: bool) -> None:
        """Put the partition into its leader's line of ready partitions, or of lingering ones, which may fill up a
        request.
        """
        if queue.line is not None:
            if queue.lingers is lingers:
                return
            queue.leave_line()
        queue.lingers = lingers
        if queue.leader_serial != self._serial and self.snapshot is not None:
            leader = self.snapshot.leader(queue.topic, queue.partition)
            queue.leader_id, queue.leader_serial = -1 if leader is None else leader.id, self._serial
        leader_id = queue.leader_id
        if leader_id < 0:
            if lingers:
                return  # its leader is not needed yet
            line = self.leaderless
        else:
            nodes = self.lingering if lingers else self.ready
            place = queue.lane + QUICK if queue.is_quick and not lingers else queue.lane
            link_id = self._link_of(queue, leader_id) if self.widened else leader_id
            if queue.wire_count and queue.link_id != link_id and broker_of(queue.link_id) == leader_id:
                return  # changing to the other connection: placed again once its batches in flight are answered
            lines = nodes.get(link_id)
            line = _line(nodes, link_id, place) if lines is None else lines[place]
            if queue.has_descriptor and not lingers:
                queue.again = _line(self.again, link_id, queue.lane)
                queue.again[queue] = None
        line[queue] = None
        queue.line = line

    def _link_of(self, queue: PartitionQueue, node_id: int) -> int:
        shares = self.widened.get(node_id)
        if shares is None or queue.acks == 0:
            return node_id
        if node_id in self.apart:
            return node_id if queue.is_quick else second_of(node_id)
        link_id = shares.get(queue)
        if link_id is None:
            link_id = shares[queue] = second_of(node_id) if len(shares) % 2 else node_id
        return link_id

    def widen(self, node_id: int) -> None:
        """Share the broker's partitions between its two connections. Partitions with nothing in flight change over
        first.
        """
        standing = self._standing(node_id)
        standing.sort(key=lambda queue: not queue.wire_count)
        half = len(standing) // 2
        self.widened[node_id] = dict.fromkeys(standing[:half], node_id)
        self.widened[node_id].update(dict.fromkeys(standing[half:], second_of(node_id)))
        self._place_again(standing)

    def narrow(self, node_id: int) -> None:
        """Use one connection again. Nothing may be in flight on the second."""
        if self.widened.pop(node_id, None) is not None:
            self.apart.discard(node_id)
            self._place_again(self._standing(second_of(node_id)))

    def set_apart(self, node_id: int, is_apart: bool) -> None:
        """Reserve the broker's first connection for quick batches, or open it to all batches again."""
        if is_apart:
            self.apart.add(node_id)
        else:
            self.apart.discard(node_id)
        self._place_again([*self._standing(node_id), *self._standing(second_of(node_id))])

    def _standing(self, link_id: int) -> list[PartitionQueue]:
        lines = (*self.ready.get(link_id, ()), *self.lingering.get(link_id, ()))
        return [queue for line in lines for queue in line]

    def _place_again(self, queues: list[PartitionQueue]) -> None:
        for queue in queues:
            queue.leave_line()
            self.place(queue, lingers=queue.lingers)

    def follow(self, snapshot: MetadataSnapshot) -> None:
        """Move partitions to the lines of their new leaders."""
        self.snapshot = snapshot
        self._serial += 1
        moved = list(self.leaderless)
        for nodes in (self.ready, self.lingering):
            for lines in nodes.values():
                for line in lines:
                    moved.extend(line)
        for queue in moved:
            queue.leave_line()
        known = snapshot.nodes
        self.ready = {node: lines for node, lines in self.ready.items() if broker_of(node) in known}
        self.lingering = {node: lines for node, lines in self.lingering.items() if broker_of(node) in known}
        self.again = {node: lines for node, lines in self.again.items() if broker_of(node) in known}
        for queue in moved:
            self.place(queue, lingers=queue.lingers)

    def holds(self, node_id: int, size_bytes: int, *, is_movable: bool = False) -> bool:
        """True if the ready partitions of this connection, quick ones excluded, hold at least ``size_bytes``, counted
        in whole batches of batch.size. ``is_movable``: count only partitions that may use the second connection.
        """
        for line in self.ready.get(node_id, ())[:QUICK]:
            for queue in line:
                if is_movable and queue.acks == 0:
                    continue
                size_bytes -= queue.load * queue.settings.batch_size
                if size_bytes <= 0:
                    return True
        return False

    def topics_waiting_for(self, node_id: int) -> set[str]:
        """Topics with a batch ready for the broker."""
        return {queue.topic for line in self.ready.get(node_id, ()) for queue in line}


def _line(nodes: dict[int, tuple[Line, ...]], link_id: int, place: int) -> Line:
    lines = nodes.get(link_id)
    if lines is None:
        lines = nodes[link_id] = tuple(OrderedDict() for _ in (*LANES, *LANES))
    return lines[place]
