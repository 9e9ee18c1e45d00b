"""UpdateMetadata push: the controller keeps every worker's MetadataCache in step (rules U1-U3).

ControllerRequestBatch gathers what one event changed and hands it to the workers' queues; MetadataPusher
turns events (became active, a worker joined, the cluster changed) into batches. (Kafka:
ControllerChannelManager, AbstractControllerBrokerRequestBatch, KafkaController.sendUpdateMetadataRequest.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from sidecar.common.control import (
    LiveBroker,
    PartitionUpdate,
    UpdateError,
    UpdateMetadata,
    UpdateMetadataReply,
)
from sidecar.controller.event_wait import happens_within
from sidecar.metadata.diff import diff_snapshots, partition_updates
from sidecar.metadata.snapshot import EMPTY_SNAPSHOT, MetadataSnapshot

log = logging.getLogger(__name__)

QUEUE_MAX = 64
"""Updates that may wait for one worker. A worker this far behind gets one full update in their place."""

REPLY_TIMEOUT_S = 30.0
"""A worker that has not answered by then may have lost the request; the next one tells it everything."""

Send = Callable[[UpdateMetadata], None]


class IllegalState(RuntimeError):
    """A batch was begun before the one before it was sent: part of an update would be lost."""


class _WorkerQueue:
    """One worker's updates, in order, and the task that sends them: the next goes out when the last is
    answered."""

    def __init__(
        self,
        worker_id: int,
        worker_epoch: int,
        send: Send,
        full_update: Callable[[int], UpdateMetadata],
        reply_timeout_s: float,
    ) -> None:
        self.worker_epoch = worker_epoch
        self._worker_id = worker_id
        self._send = send
        self._full_update = full_update
        self._queue: deque[UpdateMetadata] = deque()
        self._wakeup = asyncio.Event()
        self._answered = asyncio.Event()
        self._reply_timeout_s = reply_timeout_s
        self._is_unsure = False
        """An answer is overdue: the worker may have lost that update, so the next tells it everything."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, request: UpdateMetadata) -> None:
        if self._is_unsure:
            self._is_unsure = False
            request = self._full_update(self.worker_epoch)
        if request.is_full:
            self._queue.clear()  # it says everything that those would have said
        self._queue.append(request)
        if len(self._queue) > QUEUE_MAX:
            log.warning("Worker %d is slow to take metadata; it gets one full update.", self._worker_id)
            self._queue.clear()
            self._queue.append(self._full_update(self.worker_epoch))
        self._wakeup.set()

    def replied(self, reply: UpdateMetadataReply) -> None:
        if reply.error != UpdateError.NONE:
            name = UpdateError(reply.error).name if reply.error in set(UpdateError) else str(reply.error)
            log.warning("Worker %d refused an UpdateMetadata: %s.", self._worker_id, name)
        self._answered.set()

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._queue:
                self._answered.clear()
                try:
                    self._send(self._queue.popleft())
                except Exception:
                    log.exception("Sending metadata to worker %d failed.", self._worker_id)
                    continue
                # A worker that is slow to answer delays only itself; its end cancels this task.
                if not await happens_within(self._answered, self._reply_timeout_s):
                    log.warning(
                        "Worker %d did not answer an UpdateMetadata within %g s; it gets the full state next.",
                        self._worker_id,
                        self._reply_timeout_s,
                    )
                    self._is_unsure = True
                    if self._queue:
                        self.put(self._queue[-1])


class ControllerRequestBatch:
    """Gathers one event's changes for each worker, then enqueues them all (rule U2). Belongs to the
    loop's thread."""

    def __init__(self, controller_id: int, *, reply_timeout_s: float = REPLY_TIMEOUT_S) -> None:
        self._controller_id = controller_id
        self._reply_timeout_s = reply_timeout_s
        self._queues: dict[int, _WorkerQueue] = {}
        self._snapshot = EMPTY_SNAPSHOT
        self._listener = "PLAINTEXT"
        self._controller_epoch = 0
        self._pending: dict[int, tuple[dict[tuple[str, int], PartitionUpdate], bool]] = {}
        self._brokers: tuple[LiveBroker, ...] = ()

    # The workers

    @property
    def workers(self) -> list[int]:
        return list(self._queues)

    def add_worker(self, worker_id: int, worker_epoch: int, send: Send) -> None:
        """From now on ``send`` gets this worker's requests, one at a time, from a task of its own."""
        self.remove_worker(worker_id)
        self._queues[worker_id] = _WorkerQueue(
            worker_id, worker_epoch, send, self._full_update, self._reply_timeout_s
        )

    def remove_worker(self, worker_id: int) -> None:
        self._pending.pop(worker_id, None)
        queue = self._queues.pop(worker_id, None)
        if queue is not None:
            queue.close()

    def replied(self, worker_id: int, reply: UpdateMetadataReply) -> None:
        """The worker's answer; one of an earlier incarnation is ignored."""
        queue = self._queues.get(worker_id)
        if queue is not None and reply.worker_epoch == queue.worker_epoch:
            queue.replied(reply)

    def queued(self, worker_id: int) -> int:
        """Requests that wait behind the one under way."""
        queue = self._queues.get(worker_id)
        return 0 if queue is None else len(queue)

    # One batch

    def new_batch(self, snapshot: MetadataSnapshot, listener: str = "PLAINTEXT") -> None:
        """Begin; ``snapshot`` is what full updates and the list of brokers are made of.

        Raises IllegalState, naming what is pending, when an earlier batch was not sent.
        """
        if self._pending:
            pending = {worker: sorted(updates) for worker, (updates, _) in self._pending.items()}
            raise IllegalState(
                "The controller's UpdateMetadata batch is not empty when a new one begins. "
                f"Some state changes would be lost: {pending}"
            )
        self._snapshot = snapshot
        self._listener = listener
        self._brokers = tuple(LiveBroker.of(node, listener) for node in snapshot.nodes.values())

    def add_brokers(self, workers: Iterable[int]) -> None:
        """These workers learn the live brokers (every request carries them anyway) and keep their
        partitions."""
        for worker_id in workers:
            self._pending.setdefault(worker_id, ({}, False))

    def add_partitions(
        self, workers: Iterable[int], updates: Iterable[PartitionUpdate], *, is_full: bool = False
    ) -> None:
        """These workers learn these partition states; a later state of the same partition replaces an
        earlier."""
        updates = list(updates)
        for worker_id in workers:
            known, was_full = self._pending.get(worker_id, ({}, False))
            for update in updates:
                key = (update.topic, update.partition)
                known.pop(key, None)  # re-inserted behind, so that the order stays that of the calls
                known[key] = update
            self._pending[worker_id] = (known, was_full or is_full)

    def send(self, controller_epoch: int) -> None:
        """Copy what was gathered into each worker's queue, then clear; never waits."""
        self._controller_epoch = controller_epoch
        pending, self._pending = self._pending, {}
        for worker_id, (updates, is_full) in pending.items():
            queue = self._queues.get(worker_id)
            if queue is not None:
                queue.put(self._request(queue.worker_epoch, tuple(updates.values()), is_full))

    def _request(
        self, worker_epoch: int, updates: tuple[PartitionUpdate, ...], is_full: bool
    ) -> UpdateMetadata:
        return UpdateMetadata(
            controller_id=self._controller_id,
            controller_epoch=self._controller_epoch,
            worker_epoch=worker_epoch,
            brokers=self._brokers,
            partitions=updates,
            is_full=is_full,
            cluster_id=self._snapshot.cluster_id,
            version=self._snapshot.version,
        )

    def _full_update(self, worker_epoch: int) -> UpdateMetadata:
        return self._request(worker_epoch, tuple(partition_updates(self._snapshot)), True)


class MetadataPusher:
    """When to send what (rule U1). Call it from the loop's thread; nothing here waits."""

    def __init__(self, *, controller_id: int, controller_epoch: int, listener: str = "PLAINTEXT") -> None:
        self.controller_epoch = controller_epoch
        self._listener = listener
        self._batch = ControllerRequestBatch(controller_id)
        self._snapshot = EMPTY_SNAPSHOT

    def became_active(self, controller_epoch: int) -> None:
        """This controller rules under a new epoch: full state to all workers."""
        self.controller_epoch = controller_epoch
        self._begin()
        self._batch.add_partitions(self._batch.workers, partition_updates(self._snapshot), is_full=True)
        self._batch.send(self.controller_epoch)

    def worker_joined(self, worker_id: int, worker_epoch: int, send: Send) -> None:
        """A worker is ready: everything to it, the brokers to the others."""
        others = [known for known in self._batch.workers if known != worker_id]
        self._batch.add_worker(worker_id, worker_epoch, send)
        self._begin()
        self._batch.add_brokers(others)
        self._batch.add_partitions([worker_id], partition_updates(self._snapshot), is_full=True)
        self._batch.send(self.controller_epoch)

    def worker_left(self, worker_id: int) -> None:
        self._batch.remove_worker(worker_id)

    def replied(self, worker_id: int, reply: UpdateMetadataReply) -> None:
        """A worker's UpdateMetadataReply."""
        self._batch.replied(worker_id, reply)

    def queued(self, worker_id: int) -> int:
        """Updates that wait for this worker behind the one under way."""
        return self._batch.queued(worker_id)

    def snapshot_changed(
        self,
        old: MetadataSnapshot,
        new: MetadataSnapshot,
        expired: frozenset[str] = frozenset(),
        gone: frozenset[str] = frozenset(),
    ) -> None:
        """The cluster changed: only what differs goes out, and nothing when nothing does.

        ``expired`` topics left the controller's list because nobody uses them; workers keep what they know. ``gone``
        ones had expired and are deleted now.
        """
        difference = diff_snapshots(old, new, expired, gone)
        self._snapshot = new
        if not difference.brokers_changed and not difference.partitions:
            return
        self._begin()
        if difference.brokers_changed:
            self._batch.add_brokers(self._batch.workers)
        if difference.partitions:
            self._batch.add_partitions(self._batch.workers, difference.partitions)
        self._batch.send(self.controller_epoch)

    def close(self) -> None:
        """Stop every worker's sending task."""
        for worker_id in self._batch.workers:
            self._batch.remove_worker(worker_id)

    def _begin(self) -> None:
        self._batch.new_batch(self._snapshot, self._listener)
