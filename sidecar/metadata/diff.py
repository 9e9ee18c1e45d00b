"""Changes between two snapshots, as the partition states of an UpdateMetadata (rule U1).

Sans-IO: MetadataPusher calls it, on the controller's loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sidecar.common.control import PartitionUpdate
from sidecar.metadata.snapshot import (
    LEADER_DURING_DELETE,
    LEADER_EXPIRED,
    NO_LEADER_EPOCH,
    WHOLE_TOPIC,
    MetadataSnapshot,
    PartitionState,
    TopicState,
)


class SnapshotDiff(NamedTuple):
    """Difference of two snapshots. ``partitions``: added, changed, and (with leader -2) deleted ones."""

    brokers_changed: bool
    partitions: tuple[PartitionUpdate, ...]


def partition_updates(snapshot: MetadataSnapshot) -> Iterator[PartitionUpdate]:
    """Every partition state of the snapshot, for a full update."""
    for topic in snapshot.topics.values():
        yield from _all_of(topic)


def diff_snapshots(
    old: MetadataSnapshot,
    new: MetadataSnapshot,
    expired: frozenset[str] = frozenset(),
    gone: frozenset[str] = frozenset(),
) -> SnapshotDiff:
    """Partition updates that bring a worker from ``old`` to ``new``.

    Topics in ``expired`` are missing from ``new`` only because they are unused. They are not deletions: workers that do
    not use them forget them. Topics in ``gone`` are deletions although ``old`` lacks them: they had expired, and
    workers may still know them. A topic with a new id is deleted and added in one update, so that nothing of the old
    one remains.
    """
    updates = [
        PartitionUpdate(name, None, WHOLE_TOPIC, LEADER_DURING_DELETE, NO_LEADER_EPOCH)
        for name in sorted(gone)
    ]
    updates += [
        PartitionUpdate(name, None, WHOLE_TOPIC, LEADER_EXPIRED, NO_LEADER_EPOCH) for name in sorted(expired)
    ]
    for name, topic in old.topics.items():
        after = new.topics.get(name)
        if after is None and name not in expired:
            updates += _deletions(topic, range(len(topic.partitions)))
        elif after is not None and len(after.partitions) < len(topic.partitions):
            updates += _deletions(topic, range(len(after.partitions), len(topic.partitions)))
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is topic:
            continue
        if before is None or before.topic_id != topic.topic_id:
            updates += _all_of(topic)
            continue
        for index, state in enumerate(topic.partitions):
            known = before.partitions[index] if index < len(before.partitions) else None
            if state is not None and state != known:
                updates.append(_update(topic, index, state))
    return SnapshotDiff(old.nodes != new.nodes, tuple(updates))


def _all_of(topic: TopicState) -> Iterator[PartitionUpdate]:
    for index, state in enumerate(topic.partitions):
        if state is not None:
            yield _update(topic, index, state)


def _update(topic: TopicState, index: int, state: PartitionState) -> PartitionUpdate:
    topic_id = None if topic.topic_id is None else topic.topic_id.bytes
    return PartitionUpdate(
        topic.name,
        topic_id,
        index,
        state.leader,
        state.leader_epoch,
        state.isr,
        state.replicas,
        state.offline,
    )


def _deletions(topic: TopicState, indexes: range) -> Iterator[PartitionUpdate]:
    topic_id = None if topic.topic_id is None else topic.topic_id.bytes
    for index in indexes:
        if topic.partitions[index] is not None:
            yield PartitionUpdate(topic.name, topic_id, index, LEADER_DURING_DELETE, NO_LEADER_EPOCH)
