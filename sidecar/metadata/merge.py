"""One topic's new answer merged with what was known: leader epochs never go back within one topic id."""

from __future__ import annotations

from sidecar.metadata.answer import PartitionAnswer, TopicAnswer
from sidecar.metadata.snapshot import NO_LEADER, NO_LEADER_EPOCH, PartitionState, TopicState


def merge_topic(heard: TopicAnswer, old: TopicState | None) -> TopicState:
    """The topic as it is after ``heard``; ``old`` itself when nothing changed.

    Under the same topic id, or when either id is unknown, an answer changes a partition unless its leader epoch is
    lower: that broker lags behind. An epoch of -1 is never adopted over a known one. A partition that the answer
    leaves out stays, without a leader: partitions never go away while a topic lives. Under a new topic id it is
    another topic: nothing of the old one counts. (Kafka: Metadata.updateLatestMetadata.)
    """
    known: tuple[PartitionState | None, ...] = ()
    if old is not None and (None in (old.topic_id, heard.topic_id) or old.topic_id == heard.topic_id):
        known = old.partitions
    count = max(len(known), 1 + max((each.partition for each in heard.partitions), default=-1))
    states: list[PartitionState | None] = [None] * count
    for index, state in enumerate(known):
        if state is not None:
            states[index] = state._replace(leader=NO_LEADER)
    for each in heard.partitions:
        before = known[each.partition] if each.partition < len(known) else None
        states[each.partition] = _merge_partition(each, before)
    # An id once known stays when a broker of an older version leaves it out.
    topic_id = heard.topic_id if heard.topic_id is not None or old is None else old.topic_id
    merged = TopicState(heard.name, topic_id, 0, tuple(states))
    return old if old == merged and old is not None else merged


def _merge_partition(heard: PartitionAnswer, before: PartitionState | None) -> PartitionState:
    state = PartitionState(heard.leader, heard.leader_epoch, heard.isr, heard.replicas, heard.offline)
    if before is None or before.leader_epoch == NO_LEADER_EPOCH:
        return state
    if heard.leader_epoch == NO_LEADER_EPOCH:
        # An error answer says "no leader" without an epoch: believe that, but keep the epoch to compare with.
        return before if heard.leader >= 0 else state._replace(leader_epoch=before.leader_epoch)
    return before if heard.leader_epoch < before.leader_epoch else state
