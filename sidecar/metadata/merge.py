"""Merges a new answer about a topic with the known state: within one topic id, leader epochs never go back.

Sans-IO: Metadata calls it, on the controller's loop.
"""

from __future__ import annotations

from sidecar.metadata.answer import PartitionAnswer, TopicAnswer
from sidecar.metadata.snapshot import NO_LEADER, NO_LEADER_EPOCH, PartitionState, TopicState


def merge_topic(heard: TopicAnswer, old: TopicState | None) -> TopicState:
    """Return the topic's state after the answer ``heard``; ``old`` itself if nothing changed.

    Under the same topic id (or if either id is unknown): a partition's answer with a lower leader epoch comes from a
    broker that lags and is ignored. Epoch -1 never replaces a known one. A partition missing from the answer
    stays without a leader, because partitions never go away while a topic exists. Under a new topic id nothing of the
    old state counts. (Kafka: Metadata.updateLatestMetadata.)
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
    # A known id stays if a broker of an older version omits it.
    topic_id = heard.topic_id if heard.topic_id is not None or old is None else old.topic_id
    merged = TopicState(heard.name, topic_id, 0, tuple(states))
    return old if old == merged and old is not None else merged


def _merge_partition(heard: PartitionAnswer, before: PartitionState | None) -> PartitionState:
    state = PartitionState(heard.leader, heard.leader_epoch, heard.isr, heard.replicas, heard.offline)
    if before is None or before.leader_epoch == NO_LEADER_EPOCH:
        return state
    if heard.leader_epoch == NO_LEADER_EPOCH:
        # An error answer says "no leader" without an epoch: accept that, but keep the epoch for later comparisons.
        return before if heard.leader >= 0 else state._replace(leader_epoch=before.leader_epoch)
    return before if heard.leader_epoch < before.leader_epoch else state
