"""UpdateMetadata push: the controller keeps every worker's MetadataCache up to date (rules U1, U2).

The Cluster owns it, on the controller's loop.

MetadataPusher turns an event (a worker joined, the cluster changed) into updates, and each worker's MetadataPush sends
its own, one at a time. (Kafka: ControllerChannelManager, KafkaController.sendUpdateMetadataRequest. Kafka collects the
changes of an event in a batch object over many calls. Here an event is one call, so nothing can be left unsent.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from sidecar.common.control import PartitionUpdate, UpdateError, UpdateMetadata, UpdateMetadataReply
from sidecar.controller.event_wait import happens_within
from sidecar.metadata.diff import diff_snapshots, partition_updates
from sidecar.metadata.snapshot import EMPTY_SNAPSHOT, MetadataSnapshot

log = logging.getLogger(__name__)

QUEUE_MAX = 64
"""How many updates may wait for one worker. A worker this far behind gets one full update instead."""

REPLY_TIMEOUT_S = 30.0
"""A worker that has not answered within this time may have lost the update, so it gets a full one."""

SEND_PAUSE_S = 1.0
"""How long to wait after a failed send, so that one that always fails does not fill the log."""

Send = Callable[[UpdateMetadata], None]


class MetadataPush:
    """One worker's updates in order, and the task that sends them: the next is sent when the last is answered."""

    def __init__(
        self,
        worker_id: int,
        worker_epoch: int,
        send: Send,
        full_update: Callable[[], UpdateMetadata],
        *,
        reply_timeout_s: float,
    ) -> None:
        """``full_update`` makes one of the state at that time."""
        self.worker_epoch = worker_epoch
        self._worker_id = worker_id
        self._send = send
        self._full_update = full_update
        self._reply_timeout_s = reply_timeout_s
        self._queue: deque[UpdateMetadata] = deque()
        self._queued = asyncio.Event()
        self._answered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send. The first update is a full one."""
        self.put_all()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, update: UpdateMetadata) -> None:
        """Queue an update. Never waits."""
        if len(self._queue) >= QUEUE_MAX:
            log.warning("Worker %d is slow to take metadata; it gets one full update.", self._worker_id)
            self.put_all()
            return
        self._queue.append(update)
        self._queued.set()

    def put_all(self) -> None:
        """Queue a full update, which replaces all that wait."""
        self._queue.clear()
        self._queue.append(self._full_update())
        self._queued.set()

    def replied(self, reply: UpdateMetadataReply) -> None:
        if reply.error != UpdateError.NONE:
            name = UpdateError(reply.error).name if reply.error in set(UpdateError) else str(reply.error)
            log.warning("Worker %d refused an UpdateMetadata: %s.", self._worker_id, name)
        self._answered.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            while not self._queue:
                self._queued.clear()
                await self._queued.wait()
            self._answered.clear()
            try:
                self._send(self._queue.popleft())
            except Exception:
                log.exception(
                    "Sending metadata to worker %d failed; it gets the full state.", self._worker_id
                )
                await asyncio.sleep(SEND_PAUSE_S)
                self.put_all()
                continue
            # A worker that is slow to answer delays only itself; its end cancels this task.
            if not await happens_within(self._answered, self._reply_timeout_s):
                log.warning(
                    "Worker %d did not answer an UpdateMetadata within %g s; it gets the full state.",
                    self._worker_id,
                    self._reply_timeout_s,
                )
                self.put_all()


class MetadataPusher:
    """Every worker's push, and the state from which updates are made. Belongs to the thread of the loop; nothing here
    waits.
    """

    def __init__(self, controller_id: int, *, reply_timeout_s: float = REPLY_TIMEOUT_S) -> None:
        self._reply_timeout_s = reply_timeout_s
        self._controller_id = controller_id
        self._controller_epoch = 0
        self._snapshot = EMPTY_SNAPSHOT
        self._pushes: dict[int, MetadataPush] = {}

    def became_active(self, controller_epoch: int) -> None:
        """Become active under ``controller_epoch``. Workers join from now on, each with the full state.

        No worker can be there yet, as workers end with their controller, so none needs to be notified.
        """
        assert not self._pushes, "a worker joined before its controller was active"
        self._controller_epoch = controller_epoch

    def worker_joined(self, worker_id: int, worker_epoch: int, send: Send) -> None:
        """Add a worker that is ready: send everything to it, and the brokers to all others."""
        self.worker_left(worker_id)
        self._put_in_all(())
        push = self._pushes[worker_id] = MetadataPush(
            worker_id,
            worker_epoch,
            send,
            lambda: self._update(worker_epoch, tuple(partition_updates(self._snapshot)), is_full=True),
            reply_timeout_s=self._reply_timeout_s,
        )
        push.start()

    def worker_left(self, worker_id: int) -> None:
        push = self._pushes.pop(worker_id, None)
        if push is not None:
            push.close()

    def replied(self, worker_id: int, reply: UpdateMetadataReply) -> None:
        """Take a worker's answer; one of an earlier incarnation is ignored."""
        push = self._pushes.get(worker_id)
        if push is not None and reply.worker_epoch == push.worker_epoch:
            push.replied(reply)

    def snapshot_changed(
        self,
        old: MetadataSnapshot,
        new: MetadataSnapshot,
        expired: frozenset[str] = frozenset(),
        gone: frozenset[str] = frozenset(),
    ) -> None:
        """Send the differences to the workers, if there are any.

        ``expired`` topics were dropped from the controller's list because they are not used. Workers forget them too,
        unless one of their clients has named the topic.
        ``gone`` topics had expired and are deleted now.
        """
        self._snapshot = new
        difference = diff_snapshots(old, new, expired, gone)
        if difference.brokers_changed or difference.partitions:
            self._put_in_all(difference.partitions)

    def close(self) -> None:
        """Stop the sending task of every worker."""
        for worker_id in list(self._pushes):
            self.worker_left(worker_id)

    def _put_in_all(self, partitions: tuple[PartitionUpdate, ...]) -> None:
        """Queue these partition states for every worker; with none, only the brokers have changed."""
        for push in self._pushes.values():
            push.put(self._update(push.worker_epoch, partitions))

    def _update(
        self, worker_epoch: int, partitions: tuple[PartitionUpdate, ...], *, is_full: bool = False
    ) -> UpdateMetadata:
        """An update with the brokers that are alive now (rule U3)."""
        return UpdateMetadata(
            controller_id=self._controller_id,
            controller_epoch=self._controller_epoch,
            worker_epoch=worker_epoch,
            brokers=tuple(self._snapshot.nodes.values()),
            partitions=partitions,
            is_full=is_full,
            cluster_id=self._snapshot.cluster_id,
            version=self._snapshot.version,
        )
