"""PartitionSchedule: decides which batch of each partition is next (rule S4), when it is due (rule A4), and where its
queue waits until then.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final

from sidecar.common.model import broker_of, second_of
from sidecar.producer.batch_states import BatchState
from sidecar.producer.lanes import NO_SEQUENCE, TURNS_FROM
from sidecar.producer.partition_queue import PartitionQueue, WaitList
from sidecar.producer.partition_timers import PartitionTimers
from sidecar.producer.producer_batch import NO_DESCRIPTOR, NOT_DRAINED, ProducerBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.lane_queues import LaneQueues
    from sidecar.producer.partition_sequences import PartitionSequences
    from sidecar.producer.transaction_manager import TransactionManager

QUICK: Final = len(TURNS_FROM)
"""Added to a turn, this gives the index of its quick list: partitions that need not wait for a backlog."""
FULL_MS: Final = 1_000.0
"""For this time after a topic's last full batch its small batches wait for the backlog of others."""
BATCHES_REMEMBERED: Final = 5
"""How many batches per producer id and partition a broker can recognise
(ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
"""
_OPEN: Final = BatchState.OPEN
_QUEUED: Final = BatchState.QUEUED
"""Cached: reading an enum member through its class costs as much as a call, and these are compared for each batch."""


class PartitionSchedule:
    """Sans-IO. Single-threaded: the worker's loop. Call :meth:`touch` after each change to a queue's next batch.

    A queue waits in one of these: a timer (it lingers or backs off), a wait list of its leader, the list of queues
    without a leader, or none. In its leader's list it is due, or lingers until a request is sent there anyway. In none
    it has nothing to send. Lists follow the newest snapshot. The cost of a call depends on the due queues, not on
    the number of partitions.

    A broker handles the requests of one connection one after another, and reads none while it works on one
    (``SocketServer`` mutes the channel). So while a broker's connection is full it gets two sets of lists, one for
    each of two connections. A partition changes sets only with nothing in flight, and is in no list until then, so
    its batches arrive in order. During a backlog, the first connection takes quick batches and the second all others.
    With acks=0 nothing shows when a request has arrived, so such partitions stay with the first connection.
    """

    def __init__(self, lanes: Mapping[int, LaneQueues], *, in_flight_max: int) -> None:
        """``lanes``: all lanes by their number. ``in_flight_max``: limit of unanswered requests on one connection."""
        self._lanes = lanes
        self._in_flight_max = in_flight_max
        self.timers = PartitionTimers()
        self.full_ms: dict[str, float] = {}
        """Topic → when it last had a full batch: its small batches soon after that are the rest of its own load."""
        self.is_exhausted = False
        """Whether a client waits for room in the buffer pool."""
        self._backing_off: set[PartitionQueue] = set()
        self._closing = False
        self.snapshot: MetadataSnapshot | None = None
        self._serial = 0
        """Number of the present snapshot. A queue keeps its leader together with the number of the snapshot that named
        it.
        """
        self.ready: dict[int, tuple[WaitList, ...]] = {}
        """By broker: one list per turn, then at QUICK + turn the partitions whose next batch is small and new, or
        express. A broker that never had any is not here.
        """
        self.again: dict[int, tuple[WaitList, ...]] = {}
        """By broker and turn: ready partitions whose next batch has its descriptor. When the descriptor table is full,
        the batches that may still go are found without a walk over all others.
        """
        self.lingering: dict[int, tuple[WaitList, ...]] = {}
        """By broker and turn: partitions whose next batch only waits for more records."""
        self.widened: dict[int, dict[PartitionQueue, int]] = {}
        """Brokers with two connections in use, and for each of their partitions the connection it uses; half use
        either. Nothing is in flight on the second connection of any other broker.
        """
        self.apart: set[int] = set()
        """Brokers in ``widened`` whose first connection is for quick batches and whose second is for all others."""
        self.leaderless: WaitList = OrderedDict()
        """Partitions with something to send and no leader."""

    def touch(self, queue: PartitionQueue, now_ms: float) -> None:
        """Move the partition's queue to where it waits now. Call it after every change of the queue."""
        batch = self.next_batch(queue, now_ms) if queue.batches or queue.express else None
        if batch is None:
            queue.timer_serial = 0
            if queue.wait_list is not None:
                queue.leave_wait_list()
            return
        has_descriptor = batch.descriptor != NO_DESCRIPTOR
        if queue.has_descriptor is not has_descriptor:
            queue.has_descriptor = has_descriptor
            queue.leave_wait_list()
        if batch.full:
            self.full_ms[queue.topic] = now_ms
        is_quick = batch.is_express or (
            not batch.full
            and batch.order == NOT_DRAINED
            and self.full_ms.get(queue.topic, -inf) + FULL_MS <= now_ms
        )
        if queue.is_quick is not is_quick:
            queue.is_quick = is_quick
            queue.leave_wait_list()
        # A batch that a flush waits for needs no check: see due_ms.
        due_ms = batch.retry_at_ms if batch.expedited else self.due_ms(batch)
        if due_ms <= now_ms:
            queue.timer_serial = 0
            if queue.wait_list is None or queue.lingers:
                self._enlist(queue, lingers=False)
            return
        if batch.retry_at_ms > now_ms:
            if queue.wait_list is not None:
                queue.leave_wait_list()
            self._backing_off.add(queue)
        else:
            self._enlist(queue, lingers=True)
        self.timers.set(queue, due_ms)

    def next_batch(self, queue: PartitionQueue, now_ms: float) -> ProducerBatch | None:
        """The next batch of a partition that has some, or None while the partition must wait.

        With sequences, retries go one at a time, oldest first, and no new batch passes them: a failed first batch
        holds those after it. The caller checks whether the batch is due (linger, backoff). The only side effect is to
        note that a producer id is wanted.
        """
        if queue.waits_for is not None or (queue.settings.is_paused and queue.rests):
            return None
        sequences = queue.sequences
        if sequences is None:
            # As Kafka's muted partitions: with one request in flight, order is kept without sequences. The same holds
            # for a queue with a follower: when its records were accepted, max.in.flight may have been 1.
            is_held = queue.wire_count and (self._in_flight_max == 1 or queue.follower is not None)
            return None if is_held else queue.head
        in_flight = sequences.in_flight
        if in_flight:
            first = in_flight[0]
            if first.state is _QUEUED:
                return _doubtful(sequences) if sequences.renumber else first
            if first.attempts:
                return None
        head = queue.head if queue.express else queue.batches[0]
        if sequences.renumber or sequences.unresolved or head is None:
            return None
        ids = self._lanes[queue.lane].ids
        assert ids is not None
        if ids.identity.producer_id < 0:
            ids.is_wanted = True
            return None
        if head.base_sequence != NO_SEQUENCE:
            return None
        if in_flight and (
            len(in_flight) >= self._in_flight_max
            or sequences.next_serial - in_flight[0].serial >= BATCHES_REMEMBERED
            # A broker accepts an id that is new on the partition at any sequence. If it refused the first batch (for
            # instance with NOT_ENOUGH_REPLICAS), it would append the second before it. So the first batch goes alone,
            # the next one after a time without answers goes alone, and so does each batch of old records.
            or now_ms >= sequences.known_until_ms
            or in_flight[-1].goes_alone
            # If the answer of the batch before it were lost, this batch would make the broker forget that one too.
            or ids.may_be_forgotten(head)
        ):
            return None
        if sequences.identity != ids.identity and (in_flight or queue.wire_count):
            return None
        transaction = queue.transaction
        return head if transaction is None or _may_send(queue, sequences, transaction) else None

    def _enlist(self, queue: PartitionQueue, *, lingers: bool) -> None:
        """Put the partition into its leader's list of ready partitions, or of lingering ones, which may fill up a
        request.
        """
        if queue.wait_list is not None:
            if queue.lingers is lingers:
                return
            queue.leave_wait_list()
        queue.lingers = lingers
        if queue.leader_serial != self._serial and self.snapshot is not None:
            leader = self.snapshot.leader(queue.topic, queue.partition)
            queue.leader_id, queue.leader_serial = -1 if leader is None else leader.id, self._serial
        leader_id = queue.leader_id
        if leader_id < 0:
            if lingers:
                return  # its leader is not needed yet
            wait_list = self.leaderless
        else:
            nodes = self.lingering if lingers else self.ready
            index = queue.turn + QUICK if queue.is_quick and not lingers else queue.turn
            link_id = self._link_of(queue, leader_id) if self.widened else leader_id
            if queue.wire_count and queue.link_id != link_id and broker_of(queue.link_id) == leader_id:
                return  # changing to the other connection: enlisted again once its batches in flight are answered
            wait_lists = nodes.get(link_id)
            wait_list = _wait_list(nodes, link_id, index) if wait_lists is None else wait_lists[index]
            if queue.has_descriptor and not lingers:
                queue.again = _wait_list(self.again, link_id, queue.turn)
                queue.again[queue] = None
        wait_list[queue] = None
        queue.wait_list = wait_list

    def due_ms(self, batch: ProducerBatch) -> float:
        """The time in ms at which the batch may be sent: rule A4. Kafka: ``RecordAccumulator.batchReady``."""
        if batch.full or batch.expedited or batch.state is not _OPEN or self.is_exhausted or self._closing:
            return batch.retry_at_ms
        lingered_ms = batch.created_ms + batch.queue.settings.linger_ms
        return lingered_ms if lingered_ms > batch.retry_at_ms else batch.retry_at_ms

    def fire_timers(self, now_ms: float) -> None:
        """Move the queues whose linger or backoff is over."""
        for queue in self.timers.take_due(now_ms):
            self._backing_off.discard(queue)
            self.touch(queue, now_ms)

    def follow(self, snapshot: MetadataSnapshot, now_ms: float) -> None:
        """Move all queues to the lists of their leaders in ``snapshot``."""
        self.snapshot = snapshot
        self._serial += 1
        moved = list(self.leaderless)
        for nodes in (self.ready, self.lingering):
            for wait_lists in nodes.values():
                for wait_list in wait_lists:
                    moved.extend(wait_list)
        for queue in moved:
            queue.leave_wait_list()
        known = snapshot.nodes
        self.ready = {node: lists for node, lists in self.ready.items() if broker_of(node) in known}
        self.lingering = {node: lists for node, lists in self.lingering.items() if broker_of(node) in known}
        self.again = {node: lists for node, lists in self.again.items() if broker_of(node) in known}
        for queue in moved:
            self._enlist(queue, lingers=queue.lingers)
        self._retry_elsewhere(snapshot, now_ms)

    def _retry_elsewhere(self, snapshot: MetadataSnapshot, now_ms: float) -> None:
        """Send retries at once whose leader has changed (KIP-951)."""
        for queue in list(self._backing_off):
            leader = snapshot.leader(queue.topic, queue.partition)
            batch = self.next_batch(queue, now_ms) if queue.batches or queue.express else None
            if batch is None or queue.timer_serial == 0:
                self._backing_off.discard(queue)
            elif batch.retry_at_ms == inf:
                continue  # it waits for its broker's answer
            elif leader is not None and batch.drained_to is not None and leader.id != batch.drained_to:
                batch.retry_at_ms = 0.0
                self._backing_off.discard(queue)
                self.touch(queue, now_ms)

    def forget(self, queues: Iterable[PartitionQueue]) -> None:
        """Forget queues that are gone."""
        for queue in queues:
            self._backing_off.discard(queue)
            for shares in self.widened.values():
                shares.pop(queue, None)

    def has_next_with_descriptor(self, broker: int) -> bool:
        """Whether the next batch of one of the broker's partitions has a descriptor; it is sent now or when its
        backoff ends.
        """
        if any(self.again.get(broker, ())) or any(self.again.get(second_of(broker), ())):
            return True
        assert self.snapshot is not None
        for queue in self._backing_off:
            if queue.has_descriptor and queue.timer_serial:
                leader = self.snapshot.leader(queue.topic, queue.partition)
                if leader is not None and leader.id == broker:
                    return True
        return False

    def set_exhausted(self, exhausted: bool, now_ms: float) -> None:
        """Set whether a client waits for the buffer pool; while one does, nothing lingers (rule A4)."""
        if exhausted and not self.is_exhausted:
            self.is_exhausted = True
            self._touch_lingering(now_ms)
        self.is_exhausted = exhausted

    def begin_close(self, now_ms: float) -> None:
        """Stop lingering from now on; records appended later are sent as well (rule S2)."""
        self._closing = True
        self._touch_lingering(now_ms)

    def _touch_lingering(self, now_ms: float) -> None:
        for queue in self.timers.waiting():
            self.touch(queue, now_ms)

    # --- two connections of a broker ------------------------------------------------------------------------

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
        listed = self._listed(node_id)
        listed.sort(key=lambda queue: not queue.wire_count)
        half = len(listed) // 2
        self.widened[node_id] = dict.fromkeys(listed[:half], node_id)
        self.widened[node_id].update(dict.fromkeys(listed[half:], second_of(node_id)))
        self._enlist_again(listed)

    def narrow(self, node_id: int) -> None:
        """Use one connection again. Nothing may be in flight on the second."""
        if self.widened.pop(node_id, None) is not None:
            self.apart.discard(node_id)
            self._enlist_again(self._listed(second_of(node_id)))

    def set_apart(self, node_id: int, is_apart: bool) -> None:
        """Reserve the broker's first connection for quick batches, or open it to all batches again."""
        if is_apart:
            self.apart.add(node_id)
        else:
            self.apart.discard(node_id)
        self._enlist_again([*self._listed(node_id), *self._listed(second_of(node_id))])

    def _listed(self, link_id: int) -> list[PartitionQueue]:
        wait_lists = (*self.ready.get(link_id, ()), *self.lingering.get(link_id, ()))
        return [queue for wait_list in wait_lists for queue in wait_list]

    def _enlist_again(self, queues: list[PartitionQueue]) -> None:
        for queue in queues:
            queue.leave_wait_list()
            self._enlist(queue, lingers=queue.lingers)

    def holds(self, node_id: int, size_bytes: int, *, is_movable: bool = False) -> bool:
        """True if the ready partitions of this connection, quick ones excluded, hold at least ``size_bytes``, counted
        in whole batches of batch.size. ``is_movable``: count only partitions that may use the second connection.
        """
        for wait_list in self.ready.get(node_id, ())[:QUICK]:
            for queue in wait_list:
                if is_movable and queue.acks == 0:
                    continue
                size_bytes -= queue.load * queue.settings.batch_size
                if size_bytes <= 0:
                    return True
        return False

    def topics_waiting_for(self, node_id: int) -> set[str]:
        """Topics with a batch ready for the broker."""
        return {queue.topic for wait_list in self.ready.get(node_id, ()) for queue in wait_list}


def _may_send(queue: PartitionQueue, sequences: PartitionSequences, transaction: TransactionManager) -> bool:
    """Whether a new batch of a transaction may leave. A question may make the manager ask its coordinator."""
    if sequences.awaits_number and sequences.identity == transaction.identity:
        return False
    return transaction.may_send(queue.topic, queue.partition)


def _doubtful(sequences: PartitionSequences) -> ProducerBatch | None:
    """The first batch in doubt, to be sent again before a renumbering to learn its outcome.

    A recreated topic accepts any first sequence. So refused batches before the one in doubt go there first,
    unchanged and once each; otherwise they would be out of order for good. The old log refuses them again.
    """
    refused: ProducerBatch | None = None
    for batch in sequences.in_flight:
        if batch.state is not _QUEUED:
            return None
        if batch.has_open_doubt:
            return refused or batch
        if refused is None and batch.recreations != sequences.recreations:
            refused = batch
    return None


def _wait_list(nodes: dict[int, tuple[WaitList, ...]], link_id: int, index: int) -> WaitList:
    wait_lists = nodes.get(link_id)
    if wait_lists is None:
        wait_lists = nodes[link_id] = tuple(OrderedDict() for _ in range(2 * QUICK))
    return wait_lists[index]
