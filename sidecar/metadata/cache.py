"""MetadataCache: a worker's copy of the metadata, updated by UpdateMetadata (rules U3, U4).

One writer (the worker's loop) and any number of readers: each reads ``cache.current`` once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from sidecar.common.control import PartitionUpdate, UpdateError, UpdateMetadata
from sidecar.common.model import Node, TopicPartition
from sidecar.metadata.snapshot import (
    EMPTY_SNAPSHOT,
    LEADER_DURING_DELETE,
    LEADER_EXPIRED,
    WHOLE_TOPIC,
    LeaderHint,
    MetadataSnapshot,
    PartitionState,
    TopicState,
)


class StaleUpdate(Exception):
    """An UpdateMetadata from an earlier controller, or for an earlier incarnation of this worker.

    ``code`` is the UpdateError to answer with. Nothing was changed.
    """

    def __init__(self, code: UpdateError, text: str) -> None:
        super().__init__(text)
        self.code = code


class MetadataCache:
    """Holds one immutable snapshot and replaces it as a whole. Only one thread may call ``update_metadata``."""

    def __init__(self, worker_epoch: int) -> None:
        self.current: MetadataSnapshot = EMPTY_SNAPSHOT
        self.worker_epoch = worker_epoch
        self.controller_epoch = -1
        self._expired: set[str] = set()
        """Topics here that the controller follows no longer."""

    def update_metadata(
        self, request: UpdateMetadata, in_use: Collection[str] = (), named: Collection[str] = ()
    ) -> tuple[TopicPartition, ...]:
        """Apply one update. Returns the partitions that it deleted; WHOLE_TOPIC means all of a topic.

        A topic that a full update does not contain may be deleted, or expired at the controller because other workers
        do not use it. Topics ``in_use`` here are kept, and the caller must ask for them. A topic that the controller
        follows no longer is dropped as soon as it is not ``named`` here, without counting as deleted.

        Raises StaleUpdate, and counts it in ``stale_updates_refused``, if the controller epoch is lower than one seen
        before, or the worker epoch is another worker's. Then nothing changes. (Kafka: ZkMetadataCache.updateMetadata,
        KafkaApis.handleUpdateMetadataRequest.)
        """
        self._check_epochs(request)
        previous = self.current
        deleted: list[TopicPartition] = []
        topics: dict[str, TopicState] = dict(previous.topics)
        if request.is_full or request.partitions:
            deleted = _apply(topics, request, in_use, self._expired)
        for name in self._expired.difference(named):
            topics.pop(name, None)
            self._expired.discard(name)
        self.controller_epoch = request.controller_epoch
        cluster_id = request.cluster_id if request.cluster_id is not None else previous.cluster_id
        nodes = {node.id: node for node in request.brokers}
        self.current = MetadataSnapshot.build(
            previous.version + 1, cluster_id, nodes, topics, previous=previous
        )
        return tuple(deleted)

    def apply_leader_hints(self, hints: Iterable[LeaderHint], endpoints: Iterable[Node] = ()) -> bool:
        """Overlay newer leaders from Produce responses (KIP-951) until the next update. True if any hint was newer."""
        newer = self.current.with_leaders(hints, endpoints)
        if newer is self.current:
            return False
        self.current = newer
        return True

    def _check_epochs(self, request: UpdateMetadata) -> None:
        if request.worker_epoch != self.worker_epoch:
            raise StaleUpdate(
                UpdateError.STALE_WORKER_EPOCH,
                f"UpdateMetadata is for worker epoch {request.worker_epoch}, ours is {self.worker_epoch}.",
            )
        if request.controller_epoch < self.controller_epoch:
            raise StaleUpdate(
                UpdateError.STALE_CONTROLLER_EPOCH,
                f"UpdateMetadata of controller {request.controller_id} has epoch {request.controller_epoch}, "
                f"epoch {self.controller_epoch} was seen already.",
            )


def _apply(
    topics: dict[str, TopicState],
    request: UpdateMetadata,
    in_use: Collection[str],
    expired: set[str],
) -> list[TopicPartition]:
    """Apply the request's partition states to ``topics`` (a private copy), and note which topics have ``expired``.
    Returns the deleted partitions.
    """
    if request.is_full:
        expired.clear()
    by_topic: dict[str, list[PartitionUpdate]] = {}
    for update in request.partitions:
        if update.leader == LEADER_EXPIRED:
            expired.add(update.topic)
        else:
            expired.discard(update.topic)
            by_topic.setdefault(update.topic, []).append(update)
    deleted: list[TopicPartition] = []
    if request.is_full:
        for name in [name for name in topics if name not in by_topic and name not in in_use]:
            deleted += _partitions_of(topics.pop(name))
    for name, updates in by_topic.items():
        old = topics.get(name)
        states: dict[int, PartitionState] = {}
        topic_id = _topic_id(updates, old)
        # A recreated topic has another id: discard everything about the old one.
        is_recreated = old is not None and None not in (topic_id, old.topic_id) and topic_id != old.topic_id
        if old is not None and not request.is_full and not is_recreated:
            states = {index: state for index, state in enumerate(old.partitions) if state is not None}
        known = old.partitions if old is not None and not is_recreated else ()
        for update in updates:
            if update.partition == WHOLE_TOPIC:
                deleted.append(TopicPartition(name, WHOLE_TOPIC))
                states, known = {}, ()
                continue
            before = known[update.partition] if update.partition < len(known) else None
            if update.leader == LEADER_DURING_DELETE:
                states.pop(update.partition, None)
                known = ()  # the rest of this request is about a recreated topic
            elif before is not None and 0 <= update.leader_epoch < before.leader_epoch:
                # The former leader named a newer one (KIP-951), which the controller has yet to learn.
                states[update.partition] = before
            else:
                states[update.partition] = PartitionState(
                    update.leader, update.leader_epoch, update.isr, update.replicas, update.offline
                )
        if old is not None:
            deleted += [gone for gone in _partitions_of(old) if gone.partition not in states]
        if states:
            partitions = tuple(states.get(index) for index in range(max(states) + 1))
            topics[name] = TopicState(name, topic_id, 0, partitions)
        else:
            topics.pop(name, None)
    return deleted


def _topic_id(updates: list[PartitionUpdate], old: TopicState | None) -> UUID | None:
    # The last id counts: one request may first delete the old topic and then add the new one.
    for update in reversed(updates):
        if update.topic_id is not None:
            return UUID(bytes=update.topic_id)
    return None if old is None else old.topic_id


def _partitions_of(topic: TopicState) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, index) for index, state in enumerate(topic.partitions) if state is not None
    ]
