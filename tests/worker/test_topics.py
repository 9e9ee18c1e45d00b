"""Records that wait for their topic: in order, no longer than max.block.ms, and never in another topic's way."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_stub.contract.wire import LocalCode, SubmitFlag
from sidecar.common.model import Node
from sidecar.kernel import BatchRecords, Entry, index
from sidecar.metadata.snapshot import MetadataSnapshot, PartitionState, TopicState
from sidecar.producer.lanes import IDEMPOTENT_LANE, PLAIN_LANE
from sidecar.shm.segment import Segment
from sidecar.worker.streams.topic_queue import EntryLine, TopicQueue
from sidecar.worker.topics import waiting_entries
from sidecar.worker.topics.waiting_entries import LOOK_UP_MS
from tests.configs import producer_config
from tests.worker.harness import Harness
from tests.worker.manual_worker import ManualWorker


class TopicHarness:
    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        rooms = harness.rooms
        self.accumulator, self.topics = rooms.core.accumulator, rooms.topics
        self.failed: list[tuple[str, int, list[tuple[int, int]]]] = []
        harness.settlement.fail_records = self._failed  # type: ignore[method-assign,assignment]
        self.client = harness.client()
        self.seq = 0

    def _failed(
        self,
        queue: TopicQueue,
        entry: Entry,
        failures: list[tuple[int, int]],
        now_ms: float,
        text: str | None = None,
    ) -> None:
        self.failed.append((queue.topic, entry.seq, failures))

    def queue(self, topic: str) -> TopicQueue:
        queue = self.topics.get(topic)
        assert queue is not None
        return queue

    def entry(
        self,
        topic: str,
        now_ms: float,
        count: int = 2,
        partition: int | None = None,
        *,
        flushes: bool = False,
    ) -> Entry:
        queue = self.queue(topic)
        self.seq += 1
        chain, self.harness.chain = self.harness.chain, queue.chain
        entry = self.harness.accept(self.client, self.seq, count, partition)
        self.harness.chain = chain
        self.topics.on_entry(queue, entry, now_ms, flushes)
        return entry

    def end(self, entry: Entry) -> None:
        """All its records are told and done."""
        (queue,) = (queue for queue in self.topics if queue.chain.chain_id == entry.chain_id)
        block = index(queue.chain, entry, self.harness.partitioner, 1 << 20)
        records = BatchRecords()
        for _, start, stop in block.groups:
            records.try_append(block, start, stop, 1 << 20)
        records.mark_done()

    def batched(self, topic: str) -> int:
        return sum(batch.count for batch in self.accumulator.batches_of(topic, None))


def snapshot(version: int = 1, **topics: int) -> MetadataSnapshot:
    states = {
        name: TopicState(name, None, 0, tuple(PartitionState(1) for _ in range(count)))
        for name, count in topics.items()
    }
    return MetadataSnapshot.build(version, "c", {1: Node(1, "h", 9092)}, states)


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[TopicHarness]:
    harness = Harness(tmp_path / "segment", producer_config(max_block_ms=1000.0))
    yield TopicHarness(harness)
    harness.close()


@pytest.mark.rule("M10")
def test_accepted_records_wait_for_metadata_in_order_and_then_all_go(topics: TopicHarness) -> None:
    topics.entry("a", 0.0)
    topics.entry("a", 1.0)
    assert topics.topics.missing.names == {"a"}
    assert topics.batched("a") == 0
    topics.topics.on_snapshot(snapshot(a=1), 2.0)
    assert topics.batched("a") == 4
    (batch,) = topics.accumulator.batches_of("a", None)
    assert [entry.seq for entry, _ in batch.records.entries()] == [1, 2]
    assert topics.topics.missing.names == set()


@pytest.mark.rule("M10")
def test_only_the_topic_that_waits_too_long_fails(topics: TopicHarness) -> None:
    topics.topics.on_snapshot(snapshot(known=2), 0.0)
    topics.entry("unknown", 0.0, count=3)
    topics.entry("known", 0.0)
    assert topics.topics.waiting.next_due_ms == 1000.0
    topics.topics.waiting.expire(999.9)
    assert topics.failed == []
    topics.entry("unknown", 999.0)
    topics.topics.waiting.expire(1000.0)
    code = int(LocalCode.METADATA_TIMEOUT)
    assert topics.failed == [("unknown", 1, [(0, code), (1, code), (2, code)])]
    assert topics.batched("known") == 2
    assert topics.topics.waiting.entry_count == 1


@pytest.mark.rule("M10")
def test_without_max_block_ms_a_record_that_finds_none_waiting_fails_and_the_next_ones_wait(
    tmp_path: Path,
) -> None:
    """All of a burst failed, as none of them waited for the answer that the first one had asked for."""
    harness = Harness(tmp_path / "segment", producer_config(max_block_ms=0.0))
    topics = TopicHarness(harness)
    waiting = topics.topics.waiting
    for topic in ("comes", "never"):
        topics.entry(topic, 10.0)
        topics.entry(topic, 10.5)
        topics.entry(topic, 100.0)
    waiting.expire(100.0)
    assert waiting.next_due_ms == 10.0 + LOOK_UP_MS
    topics.topics.on_snapshot(snapshot(comes=1), 110.0)
    assert topics.batched("comes") == 5, "only the first of six records has failed"
    waiting.expire(9.0 + LOOK_UP_MS)
    assert [(topic, len(failed)) for topic, _, failed in topics.failed] == [("comes", 1), ("never", 1)]
    waiting.expire(100.0 + LOOK_UP_MS)
    assert waiting.entry_count == 0
    for _ in range(2):  # each sends when it has the outcome of the one before
        topics.entry("never", 101.0 + LOOK_UP_MS, count=1)
        assert waiting.entry_count == 0
        assert waiting.next_due_ms == float("inf")
    assert [len(failed) for topic, _, failed in topics.failed if topic == "never"] == [1, 1, 2, 2, 1, 1]
    assert topics.topics.missing.names == {"never"}, "it is looked for though no record waits"
    harness.close()


@pytest.mark.rule("M10")
def test_a_short_max_block_ms_is_waited_for_to_the_millisecond(tmp_path: Path) -> None:
    """Below a second, records waited for a whole second."""
    harness = Harness(tmp_path / "segment", producer_config(max_block_ms=300.0))
    topics = TopicHarness(harness)
    waiting = topics.topics.waiting
    topics.entry("a", 0.0, count=1)
    topics.entry("a", 1.0, count=1)
    waiting.expire(299.0)
    assert topics.failed == []
    assert waiting.next_due_ms == 300.0
    waiting.expire(300.0)
    assert [seq for _, seq, _ in topics.failed] == [1]
    waiting.expire(301.0)
    assert [seq for _, seq, _ in topics.failed] == [1, 2]
    harness.close()


def test_a_partition_is_looked_for_though_its_records_have_failed_at_once(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "segment", producer_config(max_block_ms=0.0))
    topics = TopicHarness(harness)
    topics.topics.on_snapshot(snapshot(a=1), 0.0)
    topics.entry("a", 1.0, partition=2)
    topics.topics.waiting.expire(1.0)
    assert [each[2][0][1] for each in topics.failed] == [LocalCode.INVALID_PARTITION]
    assert topics.topics.waiting.next_due_ms <= 1.0
    assert topics.topics.waiting.take_stale(1.0) == ("a",)
    assert not topics.topics.waiting.outdated
    topics.topics.on_snapshot(snapshot(2, a=3), 2.0)
    topics.entry("a", 3.0, partition=2)
    assert topics.batched("a") == 2
    harness.close()


@pytest.mark.rule("M9")
def test_a_topic_nobody_may_write_to_fails_at_once_and_alone(topics: TopicHarness) -> None:
    """Whatever is said of others in the same message, also by a code that is newer than this version."""
    topics.entry("secret", 0.0)
    topics.entry("later", 0.0)
    topics.entry("odd", 0.0)
    topics.topics.on_topic_errors({"later": 3, "odd": 9_999, "secret": 29}, 1.0)
    code = int(LocalCode.TOPIC_UNAUTHORIZED)
    assert topics.failed == [("secret", 1, [(0, code), (1, code)])]
    assert topics.topics.waiting.entry_count == 2


@pytest.mark.rule("U5")
def test_a_topic_that_came_before_its_first_record_here_needs_no_push(topics: TopicHarness) -> None:
    topics.topics.on_snapshot(snapshot(a=3), 0.0)
    topics.entry("a", 1.0)
    assert topics.batched("a") == 2
    assert topics.topics.missing.names == set()


@pytest.mark.rule("U5")
def test_after_a_deletion_records_wait_for_the_topic_to_come_again(topics: TopicHarness) -> None:
    """Placed by the old partitions they would wait for one that may never be there again, until their deadline."""
    topics.topics.on_snapshot(snapshot(a=6), 0.0)
    topics.entry("a", 1.0, partition=9)
    topics.topics.on_snapshot(snapshot(2, b=1), 2.0)
    for _ in range(20):
        topics.entry("a", 3.0)
    assert topics.batched("a") == 0
    assert topics.topics.missing.names == {"a"}
    topics.topics.on_snapshot(snapshot(3, a=2), 4.0)
    assert {batch.partition for batch in topics.accumulator.batches_of("a", None)} <= {0, 1}
    assert topics.batched("a") == 40
    topics.topics.on_snapshot(snapshot(4, b=1), 5.0)
    topics.entry("a", 900.0)
    topics.topics.waiting.expire(1_001.0)
    assert [(seq, code) for _, seq, ((_, code), *_) in topics.failed] == [(1, LocalCode.INVALID_PARTITION)]
    topics.topics.waiting.expire(1_900.0)
    assert topics.failed[-1][2][0][1] == LocalCode.METADATA_TIMEOUT


@pytest.mark.rule("M5")
@pytest.mark.rule("M8")
def test_a_partition_not_there_yet_is_waited_for_and_holds_nothing_else(topics: TopicHarness) -> None:
    topics.topics.on_snapshot(snapshot(a=1), 0.0)
    topics.entry("a", 1.0, partition=2)
    topics.entry("a", 2.0, partition=2)
    topics.entry("a", 3.0, partition=0)
    assert topics.failed == []
    assert [batch.partition for batch in topics.accumulator.batches_of("a", None)] == [0]
    assert topics.topics.waiting.take_stale(3.0) == ("a",)
    assert topics.topics.waiting.take_stale(4.0) == ()
    topics.topics.on_snapshot(snapshot(2, a=3), 5.0)
    grown = [batch for batch in topics.accumulator.batches_of("a", None) if batch.partition == 2]
    assert [[entry.seq for entry, _ in batch.records.entries()] for batch in grown] == [[1, 2]]
    assert topics.topics.waiting.entry_count == 0
    assert topics.topics.waiting.next_due_ms == float("inf")


@pytest.mark.rule("M5")
def test_a_client_may_want_a_missing_partition_to_fail_at_once(topics: TopicHarness) -> None:
    """As librdkafka does. The topic is looked up again, so that records behind it find a new partition."""
    topics.harness.flags |= SubmitFlag.FIXED_PARTITIONS
    topics.entry("a", 0.0, partition=2)
    assert topics.failed == []
    topics.topics.on_snapshot(snapshot(a=1), 1.0)
    topics.topics.waiting.go_on(1.0)
    code = int(LocalCode.INVALID_PARTITION)
    assert topics.failed == [("a", 1, [(0, code), (1, code)])]
    topics.entry("a", 2.0, partition=2)
    assert [seq for _, seq, _ in topics.failed] == [1, 2]
    waiting = topics.topics.waiting
    assert not waiting.queues and waiting.entry_count == 0
    assert waiting.next_due_ms <= 3.0 and waiting.take_stale(3.0) == ("a",)
    assert waiting.next_due_ms == float("inf") and waiting.take_stale(4.0) == ()
    topics.entry("a", 5.0, partition=2)
    assert waiting.take_stale(5.0) == (), "once a second"
    assert waiting.take_stale(waiting.next_due_ms) == ("a",)
    topics.topics.on_snapshot(snapshot(2, a=3), 2_000.0)
    topics.entry("a", 2_001.0, partition=2)
    assert [batch.partition for batch in topics.accumulator.batches_of("a", None)] == [2]


@pytest.mark.rule("M5")
def test_a_partition_that_never_appears_fails_alone_after_max_block(topics: TopicHarness) -> None:
    topics.topics.on_snapshot(snapshot(a=1), 0.0)
    topics.entry("a", 1.0, partition=2)
    topics.topics.waiting.expire(1000.9)
    assert topics.failed == []
    topics.topics.waiting.expire(1001.0)
    code = int(LocalCode.INVALID_PARTITION)
    assert topics.failed == [("a", 1, [(0, code), (1, code)])]
    assert topics.topics.waiting.entry_count == 0
    assert topics.topics.waiting.next_due_ms == float("inf")


def test_a_flush_reaches_what_waits_for_metadata(topics: TopicHarness) -> None:
    """Found by a scenario: the flush of a topic's first records came before its metadata and was forgotten, so
    that they lingered in full."""
    topics.entry("a", 0.0)
    topics.topics.flush(topics.queue("a"), 1.0)
    topics.entry("b", 1.0)
    topics.topics.on_snapshot(snapshot(a=1, b=1), 2.0)
    expedited = {
        name: [batch.expedited for batch in topics.accumulator.batches_of(name, None)] for name in "ab"
    }
    assert expedited == {"a": [True], "b": [False]}


def test_a_flush_with_new_records_reaches_earlier_ones_and_those_that_wait(topics: TopicHarness) -> None:
    topics.topics.on_snapshot(snapshot(a=1), 0.0)
    topics.entry("a", 1.0)
    topics.entry("b", 1.0)
    (lingering,) = topics.accumulator.batches_of("a", None)
    assert not lingering.expedited
    for name in "ab":
        topics.entry(name, 2.0, flushes=True)
    assert lingering.expedited
    topics.topics.on_snapshot(snapshot(2, a=1, b=1), 3.0)
    assert [batch.expedited for batch in topics.accumulator.batches_of("b", None)] == [True]


@pytest.mark.rule("M1")
def test_use_is_reported_once_per_request(topics: TopicHarness) -> None:
    topics.topics.on_snapshot(snapshot(a=1), 0.0)
    topics.end(topics.entry("a", 0.0))
    assert topics.topics.take_used() == ["a"]
    assert topics.topics.take_used() == []


@pytest.mark.rule("M2")
def test_a_topic_with_records_here_is_in_use_however_long_they_take(topics: TopicHarness) -> None:
    """Else the controller forgets it, and nobody hears of its new leaders, or of its end."""
    topics.topics.on_snapshot(snapshot(a=1, b=1), 0.0)
    entry = topics.entry("a", 0.0)
    topics.end(topics.entry("b", 0.0))
    assert set(topics.topics.take_used()) == {"a", "b"}
    assert topics.topics.take_used() == ["a"]
    assert topics.topics.in_use() == {"a"}
    topics.end(entry)
    assert topics.topics.take_used() == []


@pytest.mark.rule("M2")
def test_an_awaited_topic_counts_as_used(topics: TopicHarness) -> None:
    """Found with a real broker: a topic awaited longer than metadata.max.idle.ms was forgotten by the
    controller, and its records waited in vain when it was there at last."""
    entry = topics.entry("late", 0.0)
    assert topics.topics.take_used() == ["late"]
    assert topics.topics.take_used() == ["late"]
    topics.topics.on_snapshot(snapshot(late=1), 10.0)
    topics.end(entry)
    assert topics.topics.take_used() == []


@pytest.mark.rule("S2")
def test_a_forced_close_fails_what_still_waits(topics: TopicHarness) -> None:
    topics.entry("a", 0.0)
    topics.topics.waiting.fail_all(LocalCode.ABORTED, 1.0)
    assert [codes for _, _, codes in topics.failed] == [
        [(0, int(LocalCode.ABORTED)), (1, int(LocalCode.ABORTED))]
    ]
    assert topics.topics.waiting.entry_count == 0
    assert topics.topics.waiting.next_due_ms == float("inf")


@pytest.mark.rule("S2")
@pytest.mark.timeout(20)
def test_a_forced_close_fails_records_that_wait_for_their_partition(topics: TopicHarness) -> None:
    """Before max.block.ms is over, too: the drain of a worker looked at such an entry for ever."""
    topics.topics.on_snapshot(snapshot(a=1), 0.0)
    topics.entry("a", 0.0, partition=2)
    topics.topics.waiting.fail_all(LocalCode.ABORTED, 1.0)
    assert [codes for _, _, codes in topics.failed] == [
        [(0, int(LocalCode.ABORTED)), (1, int(LocalCode.ABORTED))]
    ]
    assert topics.topics.waiting.entry_count == 0


def test_keyless_records_leave_a_broker_that_is_late_and_come_back(topics: TopicHarness) -> None:
    states = {"a": TopicState("a", None, 0, (PartitionState(1), PartitionState(2)))}
    nodes = {node: Node(node, "h", 9092) for node in (1, 2)}
    topics.topics.on_snapshot(MetadataSnapshot.build(1, "c", nodes, states), 0.0)
    partitioner = topics.queue("a").partitioner
    assert partitioner is not None
    topics.topics.on_late_brokers(frozenset({1}))
    assert {partitioner.next_partition(20_000) for _ in range(64)} == {1}
    topics.topics.on_late_brokers(frozenset())
    assert {partitioner.next_partition(20_000) for _ in range(64)} == {0, 1}


def test_a_topic_with_acks_1_goes_through_the_plain_lane(segment: Segment) -> None:
    topics = ManualWorker(segment, patterns={"plain-*": {"acks": 1}}).rooms.topics
    lanes = []
    for name in ("plain-a", "other"):
        queue = topics.get(name)
        assert queue is not None
        lanes.append(queue.lane)
    assert lanes == [PLAIN_LANE, IDEMPOTENT_LANE]


def test_waiting_entries_are_partitioned_in_parts_and_in_order(
    topics: TopicHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large backlog takes many turns, and what comes meanwhile stays behind it; other topics do not wait."""
    monkeypatch.setattr(waiting_entries, "RUN_ENTRIES", 3)
    for number in range(8):
        topics.entry("a", float(number), count=1, partition=0)
    topics.entry("b", 0.0, count=1)
    topics.topics.on_snapshot(snapshot(a=1, b=1), 10.0)
    assert (topics.batched("a"), topics.batched("b")) == (3, 1)
    topics.entry("a", 11.0, count=1, partition=0)
    assert topics.batched("a") == 3, "behind those that wait"
    assert topics.topics.waiting.go_on(12.0)
    assert topics.topics.waiting.go_on(13.0) is False
    assert topics.batched("a") == 9
    entries = [
        entry.seq for batch in topics.accumulator.batches_of("a") for entry, _ in batch.records.entries()
    ]
    assert entries == sorted(entries)
    assert topics.topics.waiting.entry_count == 0
    assert topics.topics.waiting.next_due_ms == float("inf")


@pytest.mark.rule("M5")
def test_a_backlog_gives_up_in_parts_by_time_and_by_refusal(
    topics: TopicHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_entries, "EXPIRED_ENTRIES", 3)
    for _ in range(7):
        topics.entry("late", 0.0, count=1)
        topics.entry("secret", 900.0, count=1)
    topics.topics.waiting.expire(1000.0)
    assert len(topics.failed) == 3
    assert topics.topics.waiting.next_due_ms <= 1000.0, "the rest is due, for the next turns"
    topics.topics.waiting.expire(1000.0)
    topics.topics.waiting.expire(1000.0)
    assert [topic for topic, _, _ in topics.failed] == ["late"] * 7
    topics.topics.on_topic_errors({"secret": 29}, 1000.0)
    assert len(topics.failed) == 10
    topics.entry("secret", 1001.0, count=1)  # it comes after the refusal: Kafka is asked anew for it
    assert topics.topics.waiting.go_on(1001.0)
    topics.topics.waiting.go_on(1001.0)
    assert len(topics.failed) == 14
    assert topics.topics.waiting.entry_count == 1


def test_a_line_of_entries_is_first_in_first_out_whatever_was_dropped() -> None:
    line = EntryLine()
    for number in range(10):
        line.append(number, number / 2)
    assert line.popleft() == (0, 0.0)
    assert (len(line), line.first_ms, line.since_ms(3)) == (9, 0.5, 2.0)
    line.drop(5)
    line.append(77, 77.0)
    assert [int.from_bytes(line.first(9)[at : at + 8], sys.byteorder) for at in range(0, 40, 8)] == [
        6,
        7,
        8,
        9,
        77,
    ]
    line.drop(5)
    assert not line
    with pytest.raises(IndexError):
        _ = line.first_ms


def calls_of(work: Callable[[], object]) -> int:
    """Python functions that ``work`` calls, itself included. No finalizer of an earlier test is one of them."""
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_a_turn_costs_the_same_however_many_topics_wait_to_be_known(topics: TopicHarness) -> None:
    """Six clients that flooded unknown topics made each turn of the worker look at hundreds of queues, thrice."""

    def turn() -> None:
        assert not topics.topics.waiting.go_on(2.0)
        assert topics.topics.waiting.take_stale(2.0) == ()
        assert topics.topics.waiting.next_due_ms == 1000.0

    topics.entry("waits-0", 0.0)
    one = calls_of(turn)
    for number in range(1, 60):
        topics.entry(f"waits-{number}", 1.0, count=1)
    assert topics.topics.waiting.topic_count == 60
    assert calls_of(turn) == one


def test_a_topic_that_waited_in_vain_is_not_remembered_as_waiting(topics: TopicHarness) -> None:
    """Each name of a flood stayed in the tables of what waits, though its row had gone to another name."""
    topics.entry("nobody", 0.0)
    topics.topics.flush(topics.queue("nobody"), 0.0)
    topics.topics.waiting.expire(1000.0)
    assert topics.topics.waiting.queues == {}
    assert topics.topics.waiting.next_due_ms == float("inf")


def test_partitioning_stops_while_a_topic_is_gone_and_continues_when_it_is_back(
    topics: TopicHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_entries, "RUN_ENTRIES", 1)
    for seq in range(3):
        topics.entry("a", float(seq))
    topics.topics.on_snapshot(snapshot(a=1), 3.0)
    assert topics.batched("a") == 2
    topics.topics.on_snapshot(snapshot(2), 4.0)
    assert not topics.topics.waiting.go_on(4.0), "nothing to do, so no turn follows for it"
    assert topics.batched("a") == 2
    topics.topics.on_snapshot(snapshot(3, a=1), 5.0)
    while topics.topics.waiting.go_on(5.0):
        pass
    assert topics.batched("a") == 6
    assert topics.topics.waiting.queues == {}
