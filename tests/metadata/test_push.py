"""UpdateMetadata push: rules U1, U2; a worker in step stays in step, a slow one delays nobody."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from sidecar.common.control import UpdateError, UpdateMetadata, UpdateMetadataReply
from sidecar.common.model import Node, TopicPartition
from sidecar.controller.cluster import update_metadata
from sidecar.controller.cluster.update_metadata import QUEUE_MAX, REPLY_TIMEOUT_S, MetadataPusher
from sidecar.metadata.cache import MetadataCache
from sidecar.metadata.diff import diff_snapshots, partition_updates
from sidecar.metadata.snapshot import (
    LEADER_EXPIRED,
    WHOLE_TOPIC,
    MetadataSnapshot,
    PartitionState,
    TopicState,
)
from tests.patience import PATIENCE_S, TEST_S

from .answers import NODES, topic_id

Worker = tuple[int, list[UpdateMetadata]]


def snapshot(
    version: int, topics: dict[str, list[int]], nodes: tuple[Node, ...] = NODES, id: int = 1
) -> MetadataSnapshot:
    states = {
        name: TopicState(name, topic_id(id), 0, tuple(PartitionState(leader, 0) for leader in leaders))
        for name, leaders in topics.items()
    }
    return MetadataSnapshot.build(version, "k", {node.id: node for node in nodes}, states)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), TEST_S)

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the condition is over state of other tasks
            await asyncio.sleep(0)


def active(controller_epoch: int = 1, *, reply_timeout_s: float = REPLY_TIMEOUT_S) -> MetadataPusher:
    pusher = MetadataPusher(1, reply_timeout_s=reply_timeout_s)
    pusher.became_active(controller_epoch)
    return pusher


class FakeWorkers:
    """Workers that note what they get; all but those in ``mute`` answer at once, and the pipe of ``broken`` is gone."""

    def __init__(self, pusher: MetadataPusher) -> None:
        self.pusher = pusher
        self.got: dict[int, list[UpdateMetadata]] = {}
        self.caches: dict[int, MetadataCache] = {}
        self.mute: set[int] = set()
        self.broken: set[int] = set()

    def join(self, worker_id: int, epoch: int = 1) -> None:
        got = self.got[worker_id] = []
        cache = self.caches[worker_id] = MetadataCache(worker_epoch=epoch)

        def send(request: UpdateMetadata) -> None:
            got.append(request)
            if worker_id in self.broken:
                raise OSError("gone")
            if worker_id in self.mute:
                return
            cache.update_metadata(request)
            self.pusher.replied(worker_id, UpdateMetadataReply(UpdateError.NONE, request.worker_epoch))

        self.pusher.worker_joined(worker_id, epoch, send)

    async def settled(self, *counts: int) -> None:
        await until(lambda: tuple(len(got) for got in self.got.values()) == counts)

    def clear(self) -> None:
        for got in self.got.values():
            got.clear()


@pytest.mark.rule("U1")
def test_a_joining_worker_gets_everything_and_others_the_difference() -> None:
    """A worker joins: everything to it, the brokers to the others; then only what differs."""

    async def test() -> None:
        pusher = active(3)
        workers = FakeWorkers(pusher)
        first = snapshot(1, {"t": [1, 2], "u": [3]})
        pusher.snapshot_changed(MetadataSnapshot(), first)
        workers.join(0)
        await workers.settled(1)
        (request,) = workers.got[0]
        assert request.is_full
        assert {(each.topic, each.partition) for each in request.partitions} == {("t", 0), ("t", 1), ("u", 0)}
        assert (request.controller_id, request.controller_epoch, request.worker_epoch) == (1, 3, 1)

        workers.join(1, epoch=7)
        await workers.settled(2, 1)
        assert not workers.got[0][1].partitions
        assert not workers.got[0][1].is_full
        assert workers.got[1][0].is_full
        assert workers.got[1][0].worker_epoch == 7

        workers.clear()
        moved = snapshot(2, {"t": [1, 3], "u": [3]})
        pusher.snapshot_changed(first, moved)
        await workers.settled(1, 1)
        for got in workers.got.values():
            assert [(each.topic, each.partition, each.leader) for each in got[0].partitions] == [("t", 1, 3)]
            assert not got[0].is_full

        workers.clear()
        fewer = snapshot(3, {"t": [1, 3], "u": [3]}, NODES[:2])
        pusher.snapshot_changed(moved, fewer)
        await workers.settled(1, 1)
        assert not workers.got[0][0].partitions
        assert [broker.id for broker in workers.got[0][0].brokers] == [1, 2]

        workers.clear()
        pusher.snapshot_changed(fewer, snapshot(4, {"t": [1, 3], "u": [3]}, NODES[:2]))
        deleted = snapshot(5, {"u": [3]}, NODES[:2])
        pusher.snapshot_changed(fewer, deleted)
        await workers.settled(1, 1)  # nothing for the version that changed nothing
        assert [(each.topic, each.leader) for each in workers.got[1][0].partitions] == [("t", -2), ("t", -2)]

        pusher.close()

    run(test)


@pytest.mark.rule("U1")
def test_a_new_controller_tells_each_of_its_workers_everything_under_its_epoch() -> None:
    """Its knowledge of the cluster before it was active is part of that; nobody hears an earlier epoch."""

    async def test() -> None:
        pusher = MetadataPusher(1)
        pusher.snapshot_changed(MetadataSnapshot(), snapshot(1, {"t": [1, 2]}))
        pusher.became_active(4)
        workers = FakeWorkers(pusher)
        workers.join(0)
        workers.join(1)
        await workers.settled(2, 1)
        for (request, *_), cache in zip(workers.got.values(), workers.caches.values(), strict=True):
            assert (request.is_full, request.controller_epoch, len(request.partitions)) == (True, 4, 2)
            assert cache.controller_epoch == 4
        assert [request.controller_epoch for request in workers.got[0]] == [4, 4]
        pusher.close()

    run(test)


@pytest.mark.rule("U1")
def test_random_histories_keep_every_worker_in_step() -> None:
    """Whatever happens between two snapshots, and whenever a worker joins, its cache equals the controller's."""

    async def test() -> None:
        for seed in range(60):
            rng = random.Random(seed)
            pusher = active()
            workers = FakeWorkers(pusher)
            workers.join(0)
            now = MetadataSnapshot()
            for step in range(8):
                ids = {name: rng.randint(1, 2) for name in "abc"}
                states = {
                    name: TopicState(
                        name,
                        topic_id(ids[name]),
                        0,
                        tuple(PartitionState(rng.randint(-1, 3), step) for _ in range(rng.randint(1, 4))),
                    )
                    for name in rng.sample("abc", rng.randint(0, 3))
                }
                nodes = {node.id: node for node in rng.sample(NODES, rng.randint(1, 3))}
                new = MetadataSnapshot.build(step + 1, "k", nodes, states)
                pusher.snapshot_changed(now, new)
                now = new
                if rng.random() < 0.3:
                    workers.join(rng.randint(1, 2), epoch=step + 10)
            in_step = (dict(now.topics), dict(now.nodes))
            await until(
                lambda: all(
                    (dict(cache.current.topics), dict(cache.current.nodes)) == in_step  # noqa: B023
                    for cache in workers.caches.values()  # noqa: B023
                )
            )
            pusher.close()

    run(test)


@pytest.mark.rule("U1")
def test_a_topic_nobody_uses_is_not_a_deletion() -> None:
    old, new = snapshot(1, {"t": [1], "u": [2]}), snapshot(2, {"u": [2]})
    (expired,) = diff_snapshots(old, new, frozenset({"t"})).partitions
    assert (expired.topic, expired.partition, expired.leader) == ("t", WHOLE_TOPIC, LEADER_EXPIRED)
    assert [each.leader for each in diff_snapshots(old, new).partitions] == [-2]


@pytest.mark.rule("U1")
def test_a_topic_made_anew_with_fewer_partitions_deletes_the_rest() -> None:
    old, new = snapshot(1, {"t": [1, 2, 3]}, id=1), snapshot(2, {"t": [2]}, id=9)
    cache = MetadataCache(worker_epoch=1)
    cache.update_metadata(UpdateMetadata(1, 1, 1, (), tuple(partition_updates(old)), is_full=True))
    deleted = cache.update_metadata(UpdateMetadata(1, 1, 1, (), diff_snapshots(old, new).partitions))
    assert set(deleted) == {TopicPartition("t", 1), TopicPartition("t", 2)}
    assert dict(cache.current.topics) == dict(new.topics)


@pytest.mark.rule("U2")
def test_events_of_one_turn_reach_every_worker_whole_and_in_order() -> None:
    """Each event is queued when its call returns: the next one, at once, loses nothing and changes nothing of it."""

    async def test() -> None:
        pusher = active()
        workers = FakeWorkers(pusher)
        first, second = snapshot(1, {"t": [1, 2]}), snapshot(2, {"t": [3, 2]})
        third = snapshot(3, {"t": [3, 1]}, NODES[:1])
        workers.join(0)
        pusher.snapshot_changed(MetadataSnapshot(), first)
        workers.join(1)
        pusher.snapshot_changed(first, second)
        pusher.snapshot_changed(second, third)
        await workers.settled(5, 3)
        for got in workers.got.values():
            states = [[(each.partition, each.leader) for each in request.partitions] for request in got]
            assert states[-3:-2] in ([[]], [[(0, 1), (1, 2)]]), "a worker joined: brokers only, or everything"
            assert states[-2:] == [[(0, 3)], [(1, 1)]]
            assert [len(request.brokers) for request in got[-3:]] == [3, 3, 1]
        pusher.close()

    run(test)


@pytest.mark.rule("U2")
def test_a_slow_worker_delays_nobody_and_then_gets_one_full_update() -> None:
    async def test() -> None:
        pusher = active()
        workers = FakeWorkers(pusher)
        workers.mute = {0}
        workers.join(0)
        workers.join(1)
        old = MetadataSnapshot()
        for version in range(1, QUEUE_MAX + 10):
            new = snapshot(version, {"t": [version % 3 + 1]})
            pusher.snapshot_changed(old, new)
            old = new
            await until(lambda: workers.caches[1].current.topics == old.topics)  # noqa: B023
        assert len(workers.got[0]) == 1
        workers.mute = set()
        workers.caches[0].update_metadata(workers.got[0][0])
        pusher.replied(
            0, UpdateMetadataReply(UpdateError.NONE, 99)
        )  # of an earlier incarnation: not this one's
        new = snapshot(version + 1, {"t": [1, 2]})
        pusher.snapshot_changed(old, new)
        old = new
        await until(lambda: workers.caches[1].current.topics == old.topics)
        assert len(workers.got[0]) == 1
        pusher.replied(0, UpdateMetadataReply(UpdateError.NONE, 1))
        await until(lambda: workers.caches[0].current.topics == old.topics)
        assert [request.is_full for request in workers.got[0][:3]] == [True, True, False]
        assert len(workers.got[0]) < QUEUE_MAX, "one full update in place of all that waited"
        pusher.close()

    run(test)


@pytest.mark.rule("U2")
def test_an_answer_that_never_comes_does_not_hold_later_updates_for_ever() -> None:
    """The worker may have lost that update (its handler failed, say), so it gets everything, until it answers."""

    async def test() -> None:
        pusher = active(reply_timeout_s=0.05)
        workers = FakeWorkers(pusher)
        first = snapshot(1, {"t": [1, 2]})
        pusher.snapshot_changed(MetadataSnapshot(), first)
        workers.join(0)
        await workers.settled(1)
        workers.mute = {0}
        pusher.snapshot_changed(first, snapshot(2, {"t": [1, 3]}))
        await workers.settled(4)
        assert [request.is_full for request in workers.got[0]] == [True, False, True, True]
        workers.mute = set()
        await until(lambda: workers.caches[0].current.leader("t", 1) == NODES[2])
        pusher.close()

    run(test)


@pytest.mark.rule("U2")
def test_a_worker_misses_nothing_when_a_send_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed update was the only one that named the new leader, so the worker gets everything."""
    monkeypatch.setattr(update_metadata, "SEND_PAUSE_S", 0.0)

    async def test() -> None:
        pusher = active()
        first = snapshot(1, {"t": [1, 2]})
        pusher.snapshot_changed(MetadataSnapshot(), first)
        workers = FakeWorkers(pusher)
        workers.join(0)
        await workers.settled(1)
        workers.broken = {0}
        pusher.snapshot_changed(first, snapshot(2, {"t": [1, 3]}))
        await until(lambda: len(workers.got[0]) >= 3)
        assert [request.is_full for request in workers.got[0]][:3] == [True, False, True]
        workers.broken = set()
        await until(lambda: workers.caches[0].current.leader("t", 1) == NODES[2])
        pusher.close()

    run(test)
