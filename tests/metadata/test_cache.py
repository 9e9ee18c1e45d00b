"""MetadataCache: rules U3 and U4; a worker's view is always one whole snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from sidecar.common.control import PartitionUpdate, UpdateError, UpdateMetadata
from sidecar.common.model import Node, TopicPartition
from sidecar.metadata.cache import MetadataCache, StaleUpdate
from sidecar.metadata.snapshot import (
    EMPTY_SNAPSHOT,
    LEADER_DURING_DELETE,
    LEADER_EXPIRED,
    WHOLE_TOPIC,
    LeaderHint,
)

from .answers import topic_id

A, B, C = (Node(index, name, 9092, f"rack-{name}") for index, name in ((1, "a"), (2, "b"), (3, "c")))


def state(topic: str, partition: int, leader: int = 1, epoch: int = 0, id: int | None = 1) -> PartitionUpdate:
    raw = None if id is None else topic_id(id).bytes
    return PartitionUpdate(topic, raw, partition, leader, epoch, (1,), (1, 2), (2,))


def request(
    *partitions: PartitionUpdate,
    brokers: Iterable[Node] = (A, B, C),
    epoch: int = 1,
    worker: int = 5,
    **more: Any,
) -> UpdateMetadata:
    return UpdateMetadata(100, epoch, worker, tuple(brokers), partitions, **more)


@pytest.fixture
def cache() -> MetadataCache:
    cache = MetadataCache(worker_epoch=5)
    assert cache.current is EMPTY_SNAPSHOT
    cache.update_metadata(
        request(state("t", 0), state("t", 1, 2), state("u", 0, 3, id=2), is_full=True, cluster_id="k")
    )
    return cache


@pytest.mark.rule("U3")
@pytest.mark.parametrize(
    ("epoch", "worker", "code"),
    [
        (0, 5, UpdateError.STALE_CONTROLLER_EPOCH),
        (1, 4, UpdateError.STALE_WORKER_EPOCH),
        (9, 6, UpdateError.STALE_WORKER_EPOCH),
    ],
)
def test_stale_requests_change_nothing(
    cache: MetadataCache, epoch: int, worker: int, code: UpdateError
) -> None:
    before = cache.current
    with pytest.raises(StaleUpdate) as caught:
        cache.update_metadata(request(state("t", 0, 3), epoch=epoch, worker=worker, brokers=(A,)))
    assert caught.value.code == code
    assert cache.current is before
    assert cache.controller_epoch == 1
    cache.update_metadata(request(state("t", 0, 3), epoch=2))
    assert cache.controller_epoch == 2
    with pytest.raises(StaleUpdate):
        cache.update_metadata(request(epoch=1))
    assert cache.controller_epoch == 2


@pytest.mark.rule("U3")
def test_everything_a_request_carries_is_there(cache: MetadataCache) -> None:
    snapshot = cache.current
    assert snapshot.cluster_id == "k"
    assert snapshot.nodes[1] == Node(1, "a", 9092, "rack-a")
    partition = snapshot.partition("t", 1)
    assert partition is not None
    assert (partition.leader, partition.isr, partition.replicas, partition.offline) == (2, (1,), (1, 2), (2,))
    assert snapshot.topic_id("u") == topic_id(2)
    with pytest.raises(StaleUpdate, match="controller 100 has epoch 0"):
        cache.update_metadata(request(epoch=0))


@pytest.mark.rule("U4")
def test_no_partition_states_means_same_partitions_new_brokers(cache: MetadataCache) -> None:
    before = cache.current
    assert cache.update_metadata(request(brokers=(A, B))) == ()
    assert cache.current.topics == before.topics
    assert set(cache.current.nodes) == {1, 2}
    assert cache.current.leader("u", 0) is None, "its leader is no longer alive"
    assert cache.current.available_partitions("u") == ()
    assert cache.current.available_partitions("t") == (0, 1)


@pytest.mark.rule("U4")
def test_partitions_are_added_replaced_and_deleted(cache: MetadataCache) -> None:
    deleted = cache.update_metadata(
        request(state("t", 0, 3, 4), state("t", 2, 1), state("u", 0, -2, -1, id=2))
    )
    assert deleted == (TopicPartition("u", 0),)
    assert cache.current.partition_count("t") == 3
    assert cache.current.leader("t", 0) == Node(3, "c", 9092, "rack-c")
    assert cache.current.leader("t", 1) == Node(2, "b", 9092, "rack-b"), "not named, not touched"
    assert "u" not in cache.current.topics


@pytest.mark.rule("U4")
def test_a_deletion_of_what_is_unknown_reports_nothing(cache: MetadataCache) -> None:
    assert cache.update_metadata(request(state("other", 0, -2), state("t", 9, -2))) == ()
    assert cache.current.partition_count("t") == 2


@pytest.mark.rule("U4")
def test_a_full_update_deletes_what_it_does_not_name(cache: MetadataCache) -> None:
    deleted = cache.update_metadata(request(state("t", 0, 2), is_full=True))
    assert set(deleted) == {TopicPartition("u", 0), TopicPartition("t", 1)}
    assert set(cache.current.topics) == {"t"}
    assert cache.current.partition_count("t") == 1


@pytest.mark.rule("U4")
def test_a_topic_under_a_new_id_replaces_the_old_whole(cache: MetadataCache) -> None:
    deleted = cache.update_metadata(request(state("t", 0, 2, 0, id=77)))
    assert deleted == (TopicPartition("t", 1),)
    assert cache.current.partition_count("t") == 1
    assert cache.current.topic_id("t") == topic_id(77)


@pytest.mark.rule("U4")
def test_a_reader_keeps_the_snapshot_it_took(cache: MetadataCache) -> None:
    taken = cache.current
    cache.update_metadata(request(state("t", 0, -2), state("t", 1, -2), brokers=(B,)))
    assert taken.partition_count("t") == 2
    assert taken.leader("t", 0) == Node(1, "a", 9092, "rack-a")
    assert cache.current is not taken
    assert cache.current.version == taken.version + 1
    with pytest.raises(TypeError):
        taken.topics["t"] = taken.topics["u"]  # type: ignore[index]
    with pytest.raises(TypeError):
        taken.nodes[1] = taken.nodes[2]  # type: ignore[index]


def leader_epoch(cache: MetadataCache, topic: str) -> int:
    state = cache.current.partition(topic, 0)
    assert state is not None
    return state.leader_epoch


def test_leader_hints_hold_until_the_next_update(cache: MetadataCache) -> None:
    before = cache.current
    assert not cache.apply_leader_hints([LeaderHint("t", 0, 2, 0)]), "not a newer epoch"
    assert not cache.apply_leader_hints([LeaderHint("t", 0, 9, 3)]), "nobody knows where node 9 is"
    assert not cache.apply_leader_hints([LeaderHint("none", 0, 2, 3), LeaderHint("t", 8, 2, 3)])
    assert cache.current is before
    assert cache.apply_leader_hints([LeaderHint("t", 0, 9, 3)], [Node(9, "z", 1)])
    assert cache.current.leader("t", 0) == Node(9, "z", 1)
    assert leader_epoch(cache, "t") == 3
    assert cache.current.version == before.version
    assert before.leader("t", 0) == Node(1, "a", 9092, "rack-a")
    cache.update_metadata(request(state("t", 0, 1, 2), brokers=(A, B, Node(9, "z", 1))))
    assert cache.current.leader("t", 0) == Node(9, "z", 1), "a push that was under way knows less"
    cache.update_metadata(request(state("t", 0, 2, 4)))
    assert cache.current.leader("t", 0) == Node(2, "b", 9092, "rack-b")
    cache.update_metadata(request(state("t", 0, 1, 0, id=50)))
    assert leader_epoch(cache, "t") == 0, "another topic counts from 0"
    cache.update_metadata(request(state("u", 0, 1, 9, id=2)))
    cache.update_metadata(request(state("u", 0, -2, id=2)))
    cache.update_metadata(request(state("u", 0, 1, 0, id=2)))
    assert leader_epoch(cache, "u") == 0


@pytest.mark.rule("U4")
def test_a_full_update_takes_nothing_away_that_is_in_use(cache: MetadataCache) -> None:
    """The controller may only have forgotten it: nobody else used it."""
    before = cache.current.topics["t"]
    deleted = cache.update_metadata(request(state("v", 0), is_full=True), in_use={"t", "never known"})
    assert deleted == (TopicPartition("u", 0),)
    assert set(cache.current.topics) == {"t", "v"}
    assert cache.current.topics["t"] is before


@pytest.mark.rule("U4")
def test_the_deletion_of_a_whole_topic_needs_no_knowledge_of_its_partitions(cache: MetadataCache) -> None:
    gone = [PartitionUpdate(name, None, WHOLE_TOPIC, LEADER_DURING_DELETE, -1) for name in ("t", "unknown")]
    deleted = cache.update_metadata(request(*gone, state("t", 1)))
    assert set(deleted) == {
        TopicPartition("t", WHOLE_TOPIC),
        TopicPartition("t", 0),
        TopicPartition("unknown", WHOLE_TOPIC),
    }
    assert [each is not None for each in cache.current.topics["t"].partitions] == [False, True], (
        "what follows in the same update is of the topic that came again"
    )
    assert set(cache.current.topics) == {"t", "u"}


@pytest.mark.rule("U4")
def test_an_expired_topic_is_dropped_without_being_deleted_once_no_client_names_it(
    cache: MetadataCache,
) -> None:
    expired = request(state("t", WHOLE_TOPIC, LEADER_EXPIRED), state("u", WHOLE_TOPIC, LEADER_EXPIRED))
    assert cache.update_metadata(expired, named={"u"}) == ()
    assert set(cache.current.topics) == {"u"}
    assert cache.update_metadata(request(), named={"u"}) == ()
    assert set(cache.current.topics) == {"u"}
    assert cache.update_metadata(request()) == ()
    assert not cache.current.topics


@pytest.mark.rule("U4")
def test_a_topic_that_is_followed_again_has_not_expired(cache: MetadataCache) -> None:
    cache.update_metadata(request(state("t", WHOLE_TOPIC, LEADER_EXPIRED)), named={"t"})
    cache.update_metadata(request(state("t", 0, 3, epoch=1)), named={"t"})
    cache.update_metadata(request())
    assert cache.current.partition_count("t") == 2
    cache.update_metadata(request(state("t", WHOLE_TOPIC, LEADER_EXPIRED)), named={"t"})
    cache.update_metadata(request(state("t", 0), is_full=True))
    cache.update_metadata(request())
    assert cache.current.partition_count("t") == 1
