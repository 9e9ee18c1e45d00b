"""RecordAccumulator: collects accepted records into batches, and drains batches to brokers (rules A1, A5–A9).

It is an index over the journal in the worker's own memory: it holds references to records, never their bytes.
PartitionSchedule (partition_schedule.py) decides which queue may send next, and when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from sidecar.common.errors import Code
from sidecar.common.model import broker_of
from sidecar.producer.batch_states import CLOSED, DRAINED, BatchEvent, BatchState
from sidecar.producer.incomplete_batches import IncompleteBatches
from sidecar.producer.lanes import IDEMPOTENT_LANE, LANES, NO_SEQUENCE, SEQUENCE_MASK
from sidecar.producer.partition_queue import Line, PartitionQueue
from sidecar.producer.partition_schedule import QUICK, PartitionSchedule
from sidecar.producer.partition_sequences import forget_recreated
from sidecar.producer.producer_batch import NO_DESCRIPTOR, NOT_DRAINED, ProducerBatch
from sidecar.producer.topic_settings import TopicRules

if TYPE_CHECKING:
    from sidecar.kernel import BatchRecords, RecordBlock, StickyPartitioner
    from sidecar.metadata.snapshot import MetadataSnapshot
    from sidecar.producer.config import ProducerConfig
    from sidecar.producer.producer_id import ProducerIds
_OPEN: Final = BatchState.OPEN
"""Cached: reading an enum member through its class costs as much as a call, and this one is used for each batch."""


class RecordAccumulator:
    """Queues of ProducerBatch by (lane, topic, partition). Single-threaded: the worker's loop.

    ``rules`` gives the settings of each topic. ``records_factory`` makes the kernel's empty BatchRecords; tests may
    pass their own.
    """

    def __init__(
        self,
        config: ProducerConfig,
        ids: ProducerIds,
        *,
        rules: TopicRules | None = None,
        records_factory: Callable[[], BatchRecords] | None = None,
    ) -> None:
        if records_factory is None:
            from sidecar.kernel import BatchRecords

            records_factory = BatchRecords
        self._config = config
        self._ids = ids
        self.schedule = PartitionSchedule(ids, in_flight_max=config.max_in_flight_requests_per_connection)
        self._new_records = records_factory
        self._rules = rules or TopicRules(config)
        self._growth_bytes = min(config.batch_growth_bytes, config.max_request_size)
        self._growth_by_topic: dict[str, int] = {}
        """Topic → the size in bytes up to which its batches may grow, after its broker refused a grown batch as too
        large.
        """
        self._topics: tuple[dict[str, dict[int, PartitionQueue]], ...] = tuple({} for _ in LANES)
        self.opened: tuple[dict[str, dict[PartitionQueue, None]], ...] = tuple({} for _ in LANES)
        """By topic, the partitions in which a lingering batch was opened since the topic's last flush."""
        self.incomplete = IncompleteBatches()
        self.under_way: defaultdict[int, int] = defaultdict(int)
        """Broker → the number of batches last drained for it that hold a descriptor and have no outcome yet."""
        self._partitioners: dict[tuple[int, str], StickyPartitioner] = {}
        self.held_back_bytes = 0
        """The size in bytes of the batch at the head of the line that was too large for the last drain; 0 if
        none was.
        """
        self._small_first: dict[int, bool] = {}
        """By connection: whether its last drain of both kinds began with small batches."""

    # --- in -------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        lane: int,
        block: RecordBlock,
        now_ms: float,
        groups: Sequence[tuple[int, int, int]] | None = None,
        *,
        expedited: bool = False,
        express: bool = False,
        since_ms: float | None = None,
        accepted_ms: Callable[[int], float] | None = None,
    ) -> None:
        """Append the partitioned records of one submission (kernel ``index`` made ``block``) to open batches.

        A batch of batch.size is full: it may be sent. Until it is drained it still takes records, up to
        batch_growth_bytes. An open batch costs no memory here, and under a backlog one large batch is faster than many
        that wait for their turn.

        - ``groups``: a part of the block's own groups
        - ``expedited``: the records are about to be flushed, so a batch that they open does not linger
        - ``express``: the records pass a line of batches; their batch does not linger either, as that line would wait
          for it
        - ``accepted_ms``: when a reference of the block was accepted, if not now; a batch is as old as its first
          record
        - ``since_ms``: the same time for histograms
        """
        since_ms = now_ms if since_ms is None else since_ms
        expedited = expedited or express
        queues = self._topics[lane].get(topic) or {}
        incomplete = self.incomplete
        growth = self._growth_bytes
        if topic in self._growth_by_topic:
            growth = self._growth_by_topic[topic]
        for partition, start, stop in block.groups if groups is None else groups:
            queue = queues.get(partition) or self.queue(topic, lane, partition)
            settings = queue.settings
            limit = settings.batch_size
            growth = growth if growth > limit else limit
            batches = queue.express if express else queue.batches
            batch = batches[-1] if batches else None
            position = start
            changed = False
            while True:
                if accepted_ms is not None:
                    since_ms = accepted_ms(position)
                if batch is None or batch.state is not _OPEN:
                    born_ms = now_ms if accepted_ms is None else since_ms
                    records, deadline_ms = self._new_records(), born_ms + settings.delivery_timeout_ms
                    # Positional arguments: keywords would cost a dictionary for each batch.
                    batch = ProducerBatch(
                        queue, records, block.chain, born_ms, deadline_ms, NOT_DRAINED, express
                    )
                    batch.expedited = expedited
                    if not expedited:
                        self.opened[lane].setdefault(topic, {})[queue] = None
                    batches.append(batch)
                    incomplete.lines[batch.lifetime_ms][batch] = None  # as IncompleteBatches.add
                    incomplete.next_expiry_ms = min(incomplete.next_expiry_ms, deadline_ms)
                    changed = True
                taken = batch.records.try_append(block, position, stop, growth, since_ms)
                position += taken
                size = batch.records.size_bytes
                load = -(-size // limit)
                if load != batch.load:
                    queue.load += load - batch.load
                    batch.load = load
                    if queue.partitioner is not None:
                        queue.partitioner.set_queue_length(partition, queue.load)
                if position < stop or size >= limit:
                    if not batch.full:
                        batch.full = changed = True
                    if position < stop or size >= growth:
                        batch.state = CLOSED.get(batch.state) or batch.refuse(BatchEvent.CLOSE)
                if position >= stop:
                    break
            if changed:
                self.schedule.touch(queue, now_ms)

    def adopt(self, batch: ProducerBatch, count: int) -> None:
        """Take over a batch that a dead worker sent without getting an answer; its order gives its place in the queue.

        It keeps its identity and is sent again, oldest first, after :meth:`resume`. Its ``count`` records are still
        being added to it. Records of its chain without a number before it come from a refused batch. The broker lacks
        those, and has this batch only if it had forgotten the producer id.
        """
        queue = batch.queue
        follows_a_gap = queue.place_behind_a_gap(batch)
        batch.retry_at_ms = inf
        queue.has_adopted = True
        queue.insert(batch)
        queue.next_order = max(queue.next_order, batch.order + count)
        self.incomplete.add(batch)
        if queue.sequences is not None:
            self._ids.adopt(queue.sequences, batch, count)
            if follows_a_gap:
                self._ids.request_renumbering(batch)

    def withdraw(self, batch: ProducerBatch, now_ms: float) -> None:
        """Remove an adopted batch that is not complete, as if it had never been here. Records accepted for its
        partition are sent under a new identity, once the other adopted batches are settled.
        """
        self.forget(batch)
        if batch.queue.sequences is not None:
            self._ids.failed(batch, Code.UNKNOWN_SERVER_ERROR)
            renumbered = self._ids.resolve(batch.queue)
            assert not renumbered, "a batch that a dead worker sent is in doubt, and keeps its identity"
        self.schedule.touch(batch.queue, now_ms)
        if batch.queue.follower is not None:
            self.let_follower_go(batch.queue, now_ms)

    def resume(self, batch: ProducerBatch, now_ms: float) -> None:
        """Allow a batch to be sent that waited for its broker's answer."""
        batch.retry_at_ms = 0.0
        self.schedule.touch(batch.queue, now_ms)

    def put_behind(self, queue: PartitionQueue, first: PartitionQueue) -> None:
        """Send nothing of ``queue`` before everything in ``first`` has ended: the same partition in another lane."""
        queue.behind = first
        first.follower = queue

    def let_follower_go(self, first: PartitionQueue, now_ms: float) -> None:
        """Release the other lane's queue that waits for ``first``, if everything in that one has ended."""
        follower = first.follower
        if follower is not None and first.head is None and not first.wire_count:
            first.follower = follower.behind = None
            self.schedule.touch(follower, now_ms)

    def limit_growth(self, topic: str, size_bytes: int) -> None:
        """Limit the growth of the topic's later batches, as its broker refused one of this size."""
        known = self._growth_by_topic.get(topic, self._growth_bytes)
        self._growth_by_topic[topic] = min(known, size_bytes)

    def queue(self, topic: str, lane: int, partition: int) -> PartitionQueue:
        """The queue of a partition, created if needed."""
        queues = self._topics[lane].setdefault(topic, {})
        queue = queues.get(partition)
        if queue is None:
            queue = queues[partition] = PartitionQueue(topic, partition, lane, self._rules.of(topic))
            queue.partitioner = self._partitioners.get((lane, topic))
        return queue

    def use_rules(self, rules: TopicRules, now_ms: float) -> None:
        """Use these rules for all topics from now on, also for the present partitions and open batches.

        A batch keeps the deadline that it was made with. A pause holds only batches that were never in a request: a
        batch that waits to be sent again has a descriptor, which only its answer frees.
        """
        self._rules = rules
        for topics in self._topics:
            for topic, queues in topics.items():
                settings = rules.of(topic)
                for queue in queues.values():
                    queue.settings = settings
                    self.schedule.touch(queue, now_ms)

    def follow_loads(self, topic: str, lane: int, partitioner: StickyPartitioner) -> None:
        """Report each change of a partition's load to the topic's partitioner from now on.

        (KIP-794. Kafka counts all queues in each ``ready()``: ``updatePartitionLoadInfo``.)
        """
        self._partitioners[lane, topic] = partitioner
        for queue in self._topics[lane].get(topic, {}).values():
            queue.partitioner = partitioner
            partitioner.set_queue_length(queue.partition, queue.load)

    def forget_topic(self, topic: str, lane: int) -> None:
        """Forget a topic without records here, whose partitioner is gone. The sequence numbers of its partitions are
        kept longer.
        """
        self.schedule.full_ms.pop(topic, None)
        self._growth_by_topic.pop(topic, None)
        self.opened[lane].pop(topic, None)
        if self._partitioners.pop((lane, topic), None) is not None:
            for queue in self._topics[lane].get(topic, {}).values():
                queue.partitioner = None

    # --- metadata -------------------------------------------------------------------------------------------

    def follow(self, snapshot: MetadataSnapshot, now_ms: float) -> None:
        """Move partitions to their new leaders."""
        before = self.schedule.snapshot
        if before is not None:
            forget_recreated(self._topics[IDEMPOTENT_LANE], before, snapshot)
        self.schedule.follow(snapshot, now_ms)

    # --- out ------------------------------------------------------------------------------------------------

    def drain(
        self,
        node_id: int,
        lane: int,
        max_bytes: float,
        now_ms: float,
        *,
        single_bytes: float = inf,
        new_batches: float = inf,
        quick: bool | None = None,
    ) -> list[ProducerBatch]:
        """Drain at most one batch per partition and ``max_bytes`` in all, beginning where the last drain stopped (rule
        A5). All are of topics with the same acks, as a request has only one. The batches count as on the wire from
        here on.

        A request also takes batches for the same broker that only linger, as Kafka's ``drainBatchesForOneNode`` does.
        Otherwise each partition would send its own request when its linger ends. It does not take them when a batch is
        sent because it is full: under such load the others soon fill up, and are sent as large ones. Topics that
        linger longer than any due one stay.

        - ``single_bytes``: a single batch may exceed ``max_bytes`` up to this; a larger one is held back, and
          :attr:`held_back_bytes` is its size
        - ``new_batches``: how many of them may have no descriptor yet; batches with a descriptor are sent even at 0,
          as only their answers free one
        - ``quick``: True for only quick partitions, False for only the others
        """
        self.held_back_bytes = 0
        batches: list[ProducerBatch] = []
        limits = (max_bytes, single_bytes)
        size = 0
        schedule = self.schedule
        ready = schedule.ready.get(node_id)
        if ready is None:
            return batches
        kinds: tuple[Line, ...] = (ready[lane], ready[QUICK + lane])
        if quick is not None:
            kinds = (kinds[quick],)
        elif all(kinds):
            # They take turns to be first: topics with other acks wait for the next request.
            is_small_first = self._small_first[node_id] = not self._small_first.get(node_id, True)
            kinds = kinds[::-1] if is_small_first else kinds
        for line in kinds:
            if line and not self.held_back_bytes:
                size, new_batches = self._take(line, batches, size, limits, new_batches, now_ms)
        if new_batches <= 0:
            again = schedule.again.get(node_id)
            if again is not None and again[lane]:
                size, new_batches = self._take(again[lane], batches, size, limits, new_batches, now_ms)
        if not batches:
            return batches
        along = schedule.lingering.get(node_id)
        if (
            along is not None
            and along[lane]
            and size < max_bytes
            and not any(batch.full for batch in batches)
        ):
            longest_ms = max(batch.queue.settings.linger_ms for batch in batches)
            self._take(along[lane], batches, size, limits, new_batches, now_ms, longest_ms)
        broker = broker_of(node_id)
        under_way, ids = self.under_way, self._ids
        producer_id, epoch = identity = ids.identity
        young_from_ms = ids.memory.young_from_ms() if lane == IDEMPOTENT_LANE else -inf
        for batch in batches:
            queue, sequences = batch.queue, batch.queue.sequences
            # Number it if it goes for the first time. The schedule has just chosen it by the rules of producer_id.py.
            if sequences is not None:
                batch.recreations = sequences.recreations
                if batch.base_sequence == NO_SEQUENCE:
                    if sequences.identity != identity:
                        sequences.restart(identity)
                    batch.producer_id, batch.epoch = producer_id, epoch
                    batch.base_sequence = sequence = sequences.next_sequence
                    batch.goes_alone = (
                        not sequences.is_stamped_by_broker and batch.records.max_timestamp_ms < young_from_ms
                    )
                    sequences.next_sequence = (sequence + batch.records.count) & SEQUENCE_MASK
                    batch.serial = sequences.next_serial
                    sequences.next_serial += 1
                    sequences.in_flight.append(batch)
            # Count it as under way to this broker.
            if batch.failed_node != broker:
                if batch.failed_node is not None:
                    under_way[batch.failed_node] -= 1
                under_way[broker] += 1
                batch.failed_node = broker
            queue.link_id = node_id
            if queue.batches or queue.express:
                self.schedule.touch(queue, now_ms)  # the rest of the partition goes to the end of the line
        return batches

    def _take(
        self,
        line: Line,
        batches: list[ProducerBatch],
        size: int,
        limits: tuple[float, float],
        new_batches: float,
        now_ms: float,
        longest_linger_ms: float | None = None,
    ) -> tuple[int, float]:
        """Move batches that may be sent from the head of ``line`` to ``batches``. Returns (the bytes of all of these,
        how many ``new_batches`` are left). ``limits``: bytes of all, and of a single batch.

        ``longest_linger_ms``: the partitions linger, and those whose topics linger longer stay; None: the partitions
        are due.
        """
        schedule = self.schedule
        max_bytes, single_bytes = limits
        for _ in range(len(line)):
            queue = next(iter(line))
            batch = schedule.next_batch(queue, now_ms) if queue.batches or queue.express else None
            goes_at_ms = inf
            if batch is not None:
                if batch.expedited or longest_linger_ms is not None:
                    goes_at_ms = batch.retry_at_ms
                else:
                    goes_at_ms = schedule.due_ms(batch)
            if batch is None or goes_at_ms > now_ms:
                schedule.touch(queue, now_ms)
                continue
            if (batches and queue.settings.acks != batches[0].queue.settings.acks) or (
                longest_linger_ms is not None and queue.settings.linger_ms > longest_linger_ms
            ):
                line.move_to_end(queue)
                continue
            batch_bytes = batch.records.size_bytes
            is_new = batch.descriptor == NO_DESCRIPTOR
            if is_new and new_batches <= 0:
                break
            if size + batch_bytes > max_bytes and (batches or batch_bytes > single_bytes):
                if not batches:
                    self.held_back_bytes = batch_bytes
                break
            # Take the batch out of its deque for the request,
            batch.state = DRAINED.get(batch.state) or batch.refuse(BatchEvent.DRAIN)
            is_first_time = batch.order == NOT_DRAINED
            waiting = queue.express if is_first_time and batch.is_express else queue.batches
            if waiting[0] is batch:
                waiting.popleft()
            else:
                waiting.remove(batch)
            if is_first_time:
                batch.order = queue.next_order
                queue.next_order += batch.records.count
                if batch.is_express or queue.passes:
                    queue.note_pass(batch)
            queue.load -= batch.load
            if queue.partitioner is not None:
                queue.partitioner.set_queue_length(queue.partition, queue.load)
            # and its partition out of the line.
            queue.wire_count += 1
            queue.timer_serial = 0
            if queue.again is not None:
                queue.leave_line()
            elif queue.line is not None:
                del queue.line[queue]
                queue.line = None
            new_batches -= is_new
            size += batch_bytes
            batches.append(batch)
        return size, new_batches

    def reenqueue(self, batch: ProducerBatch, *, retry_at_ms: float, now_ms: float) -> None:
        """Put a batch back into its place, to be sent again at ``retry_at_ms`` or later."""
        batch.retry_at_ms = retry_at_ms
        batch.queue.insert(batch)
        self.schedule.touch(batch.queue, now_ms)

    def replace(self, batch: ProducerBatch, pieces: Iterable[ProducerBatch], now_ms: float) -> None:
        """Put the pieces of a split batch in its place (Kafka: ``splitAndReenqueue``)."""
        self.forget(batch)
        for piece in pieces:
            self.incomplete.add_piece(piece)
            batch.queue.insert(piece)
        self.schedule.touch(batch.queue, now_ms)

    # --- the end of a batch ---------------------------------------------------------------------------------

    def back_to_start(self, batch: ProducerBatch) -> None:
        """Note that a batch needs a descriptor again, or none any more, so it is no longer under way to a broker."""
        if batch.failed_node is not None:
            self.under_way[batch.failed_node] -= 1
            batch.failed_node = None

    def forget(self, batch: ProducerBatch) -> bool:
        """Remove a batch from the incomplete ones: its outcome is known, or its pieces replace it. False if it was
        removed before.
        """
        incomplete = self.incomplete
        line = incomplete.lines[batch.lifetime_ms]
        if batch not in line:
            return False
        del line[batch]
        if not line and not any(incomplete.lines.values()):
            incomplete.next_expiry_ms = inf
        if batch.failed_node is not None:
            self.under_way[batch.failed_node] -= 1  # as back_to_start
            batch.failed_node = None
        return True

    # --- flush, exhaustion, close ---------------------------------------------------------------------------

    def expedite(self, topic: str, lane: int, now_ms: float) -> None:
        """End linger for the present records of one topic (a FLUSH of one stream). The cost grows with the partitions
        used since the last flush.
        """
        for queue in self.opened[lane].pop(topic, ()):
            if not queue.batches:
                continue
            batch = queue.batches[-1]
            if batch.state is _OPEN and not batch.expedited:
                batch.expedited = True
                self.schedule.touch(queue, now_ms)

    def touch_all(self, lane: int, now_ms: float) -> None:
        """Touch all partitions of a lane, as something they wait for has changed (a producer id has come)."""
        for queues in self._topics[lane].values():
            for queue in queues.values():
                if queue.batches or queue.express:
                    self.schedule.touch(queue, now_ms)

    def batches_of(self, topic: str, partitions: Iterable[int] | None = None) -> list[ProducerBatch]:
        """Batches that wait in the queues of a topic, in all lanes, without those on the wire."""
        found: list[ProducerBatch] = []
        for topics in self._topics:
            queues = topics.get(topic, {})
            for partition in queues.keys() if partitions is None else partitions:
                if partition in queues:
                    found.extend(queues[partition].batches)
                    found.extend(queues[partition].express)
        return found
