"""RecordAccumulator: rules A1, A4, A5, A7, A9 and what idle partitions cost."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from sidecar.producer.batch_states import BatchState
from sidecar.producer.effects import NeedMetadata
from sidecar.producer.lanes import IDEMPOTENT_LANE, PLAIN_LANE
from sidecar.producer.partition_queue import PartitionQueue
from sidecar.producer.partition_schedule import PartitionSchedule
from sidecar.producer.producer_batch import NOT_DRAINED, ProducerBatch
from sidecar.producer.topic_settings import TopicRules

from .harness import TOPIC, Core, answer, payloads_of, ready_nodes, snapshot_of, take_batches


@pytest.mark.rule("A1")
def test_records_join_the_last_open_batch_until_the_exact_size_is_reached() -> None:
    core = Core(batch_size=61 + 3 * 100, linger_ms=50)
    core.append("a", "b")
    assert core.poll() == []
    core.append("c")
    assert ready_nodes(core.accumulator.schedule) == [1], "the batch is exactly full: it does not linger"
    core.append("d")
    batches = core.accumulator.incomplete.oldest_first()
    assert [batch.count for batch in batches] == [3, 1]
    assert [batch.state for batch in batches] == [BatchState.QUEUED, BatchState.OPEN]


@pytest.mark.rule("A1")
def test_one_submission_may_fill_several_batches_in_order() -> None:
    core = Core(batch_size=61 + 2 * 100, linger_ms=50)
    core.append(*range(5))
    batches = core.accumulator.incomplete.oldest_first()
    assert [batch.count for batch in batches] == [2, 2, 1]
    assert payloads_of(batches) == [0, 1, 2, 3, 4]
    assert {batch.order for batch in batches} == {NOT_DRAINED}
    core.sender.begin_close(core.now_ms)
    for _ in batches:
        core.poll()
    assert [batch.order for batch in batches] == [1, 3, 5], "they have their places once they are drained"


@pytest.mark.rule("A1")
def test_a_record_larger_than_a_batch_goes_alone_and_a_batch_size_of_zero_works() -> None:
    core = Core(batch_size=0, linger_ms=50)
    core.append("a", "b")
    assert [batch.count for batch in core.accumulator.incomplete.oldest_first()] == [1, 1]
    (first,) = core.poll()[0].batches
    assert first.size_bytes == 161


@pytest.mark.rule("A4")
def test_linger_holds_an_open_batch_and_a_full_one_goes_at_once() -> None:
    core = Core(linger_ms=10, batch_size=900)
    core.append("a")
    assert core.poll() == []
    assert core.sender.next_wakeup_ms == core.now_ms + 10
    core.append("b", "c", record_bytes=400)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["a", "b"]
    (request,) = core.poll(10)
    assert payloads_of(request.batches) == ["c"]


@pytest.mark.rule("A4")
def test_next_check_is_the_earliest_linger_end() -> None:
    """Append for broker 1 at t=0, for broker 2 at t=5: look again after 10, then after 5 more (AC-04)."""
    core = Core(leaders=(1, 2), linger_ms=10)
    core.append("a", partition=0)
    start_ms = core.now_ms
    assert core.poll() == []
    assert core.sender.next_wakeup_ms == start_ms + 10
    core.clock.advance(5)
    core.append("b", partition=1)
    assert core.poll() == []
    assert core.sender.next_wakeup_ms == start_ms + 10
    (request,) = core.poll(5)
    assert (request.node_id, payloads_of(request.batches)) == (1, ["a"])
    assert core.sender.next_wakeup_ms == start_ms + 15


@pytest.mark.rule("A4")
@pytest.mark.rule("S1")
def test_an_idle_core_asks_for_no_wakeup() -> None:
    core = Core(linger_ms=10)
    core.append("a")
    (request,) = core.poll(10)
    core.acknowledge(request)
    core.poll()
    assert core.sender.next_wakeup_ms == float("inf")
    assert core.sender.is_idle


@pytest.mark.rule("A4")
def test_an_exhausted_pool_ends_linger() -> None:
    core = Core(linger_ms=10_000, leaders=(1, 1))
    core.append("a", partition=0)
    assert core.poll() == []
    core.accumulator.schedule.set_exhausted(True, core.now_ms)
    core.append("b", partition=1)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["a", "b"]
    core.accumulator.schedule.set_exhausted(False, core.now_ms)
    core.append("c")
    assert core.poll() == []


@pytest.mark.rule("A4")
def test_topics_without_a_leader_are_named_and_asked_for() -> None:
    core = Core(leaders=(-1, 1))
    core.append("a", partition=0)
    core.append("b", partition=1)
    requests = core.poll()
    assert payloads_of(requests[0].batches) == ["b"], "one without a leader holds nobody else"
    assert core.of(NeedMetadata) == [NeedMetadata(frozenset({TOPIC}))]
    core.poll()
    assert core.of(NeedMetadata) == [], "asked once, not at every poll"
    core.poll(1000)
    assert core.of(NeedMetadata) == [NeedMetadata(frozenset({TOPIC}))], "but again when nothing came of it"
    core.move_leaders((1, 1))
    assert payloads_of(core.poll()[0].batches) == ["a"]


@pytest.mark.rule("A5")
def test_drain_continues_where_it_stopped() -> None:
    """Two brokers with two partitions each, one batch a request: p0,p2 then p1,p3 then p0,p2 (AC-05)."""
    core = Core(leaders=(1, 1, 2, 2), batch_size=100, max_request_size=200, linger_ms=0)
    for _ in range(3):
        for partition in range(4):
            core.append("x", partition=partition)
    core.accumulator.follow(core.snapshot, core.now_ms)
    order = []
    for node in (1, 2) * 3:
        (batch,) = take_batches(core, node, 0, 200, core.now_ms)
        order.append(batch.partition)
    assert order == [0, 2, 1, 3, 0, 2]


@pytest.mark.rule("A5")
def test_a_partition_that_waits_for_its_retry_holds_no_other() -> None:
    core = Core(leaders=(1, 1))
    request = core.send("a", partition=0)
    core.respond(request, answer(0, 7))
    core.append("b", partition=0)
    core.append("c", partition=1)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["c"]
    (request,) = core.poll(100)
    assert payloads_of(request.batches) == ["a"]


@pytest.mark.rule("A5")
def test_a_request_takes_along_what_lingers_for_the_same_broker() -> None:
    """Not what lingers for another broker, nor what waits for its retry; and nothing goes before somebody is due."""
    core = Core(leaders=(1, 1, 1, 2), linger_ms=10)
    core.append("a", partition=0)
    assert core.poll(4) == []
    core.append("b", partition=1)
    core.append("c", partition=3)
    assert core.poll(4) == []
    (request,) = core.poll(2)
    assert sorted(payloads_of(request.batches)) == ["a", "b"]
    assert core.poll(1) == []
    (request,) = core.poll(3)
    assert payloads_of(request.batches) == ["c"]
    assert core.poll(50) == [], "nobody is left behind, nobody goes twice"


@pytest.mark.rule("A5")
def test_a_full_batch_takes_nothing_along() -> None:
    core = Core(leaders=(1, 1), linger_ms=10, batch_size=61 + 2 * 100)
    core.append("a", partition=0)
    core.append("b", "c", partition=1)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["b", "c"]
    (request,) = core.poll(10)
    assert payloads_of(request.batches) == ["a"]


@pytest.mark.rule("A5")
def test_lingering_batches_that_join_fit_the_request() -> None:
    core = Core(leaders=(1, 1, 1), linger_ms=10, max_request_size=61 * 2 + 100 * 4)
    core.append("a", "b", partition=0)
    core.poll(5)
    core.append("c", "d", partition=1)
    core.append("e", "f", partition=2)
    (request,) = core.poll(5)
    assert payloads_of(request.batches) == ["a", "b", "c", "d"]
    (request,) = core.poll(5)
    assert payloads_of(request.batches) == ["e", "f"]


@pytest.mark.rule("A5")
def test_a_retry_that_backs_off_does_not_go_along() -> None:
    core = Core(leaders=(1, 1), linger_ms=10)
    core.append("a", partition=0)
    (request,) = core.poll(10)
    core.respond(request, answer(0, 7))
    core.append("b", partition=1)
    (request,) = core.poll(10)
    assert payloads_of(request.batches) == ["b"]
    (request,) = core.poll(90)
    assert payloads_of(request.batches) == ["a"]


@pytest.mark.rule("A5")
def test_a_topic_that_is_to_linger_longer_stays() -> None:
    core = Core(linger_ms=10, lane=PLAIN_LANE, rules={"patient": {"linger.ms": 1_000}})
    core.snapshot = snapshot_of({TOPIC: (1,), "patient": (1,)}, version=core.snapshot.version + 1)
    core.append("p", topic="patient")
    core.append("a")
    (request,) = core.poll(10)
    assert payloads_of(request.batches) == ["a"]
    core.append("b")
    (request,) = core.poll(990)
    assert payloads_of(request.batches) == ["b", "p"], "both are due"
    core.append("p", topic="patient")
    core.poll(995)
    core.append("c")
    (request,) = core.poll(5)
    assert sorted(payloads_of(request.batches)) == ["c", "p"], (
        "a longer linger that has ended takes shorter ones along"
    )


@pytest.mark.rule("A5")
def test_lingering_partitions_follow_their_leader() -> None:
    core = Core(leaders=(1, 2, -1), linger_ms=10)
    core.append("a", partition=0)
    core.append("z", partition=2)
    assert core.poll(5) == []
    core.append("b", partition=1)
    core.move_leaders((2, 2, -1))
    (request,) = core.poll(5)
    assert (request.node_id, sorted(payloads_of(request.batches))) == (2, ["a", "b"])


@pytest.mark.rule("A5")
def test_a_request_takes_one_batch_a_partition_and_no_more_than_its_size() -> None:
    core = Core(leaders=(1, 1, 1), batch_size=400, max_request_size=1000)
    for partition in range(3):
        core.append(*"abcdef", partition=partition)
    core.accumulator.follow(core.snapshot, core.now_ms)
    batches = take_batches(core, 1, 0, 1000, core.now_ms)
    assert [batch.partition for batch in batches] == [0, 1]
    assert sum(batch.size_bytes for batch in batches) <= 1000
    batches = take_batches(core, 1, 0, 1000, core.now_ms)
    assert [batch.partition for batch in batches] == [2, 0]


@pytest.mark.rule("A5")
def test_a_single_batch_over_the_request_size_still_goes() -> None:
    core = Core(max_request_size=100)
    assert core.send("a", record_bytes=5000).size_bytes == 5061


@pytest.mark.rule("A4")
def test_a_new_leader_takes_what_waited_for_the_old_one() -> None:
    core = Core(leaders=(1,))
    core.links.down.add(1)
    core.append("a")
    assert core.poll() == []
    core.move_leaders((2,))
    (request,) = core.poll()
    assert request.node_id == 2


@pytest.mark.rule("S3")
def test_a_retry_does_not_wait_its_backoff_when_the_leader_has_changed() -> None:
    core = Core(leaders=(1,))
    request = core.send("a")
    core.respond(request, answer(0, 6))
    assert core.poll() == []
    core.move_leaders((2,))
    (request,) = core.poll()
    assert request.node_id == 2
    assert request.batches[0].base_sequence == 0


@pytest.mark.rule("A9")
def test_a_flush_ends_linger_of_what_was_there_only() -> None:
    core = Core(linger_ms=10_000)
    core.append("a")
    core.accumulator.expedite(TOPIC, 0, core.now_ms)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["a"]
    core.append("later")
    core.acknowledge(request)
    assert core.poll() == [], "records accepted after the call linger as usual"


@pytest.mark.rule("A9")
def test_expedite_ends_linger_of_one_topic_only() -> None:
    core = Core(linger_ms=10_000)
    core.snapshot = snapshot_of({TOPIC: (1,), "other": (1,)})
    core.append("a")
    core.append("b", topic="other")
    core.accumulator.expedite(TOPIC, 0, core.now_ms)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["a"]


@pytest.mark.rule("A9")
def test_expedite_checks_partitions_used_since_the_last_one() -> None:
    class Unseen(deque[Any]):
        def __bool__(self) -> bool:
            raise AssertionError("an idle partition was looked at")

        __len__ = __bool__

    core = Core(leaders=(1,) * 20, linger_ms=10_000)
    for partition in range(20):
        core.append("x", partition=partition)
    core.accumulator.expedite(TOPIC, 0, core.now_ms)
    (request,) = core.poll()
    assert len(request.batches) == 20
    core.acknowledge(request)
    for partition in range(1, 20):
        core.accumulator.queue(TOPIC, 0, partition).batches = Unseen()
    core.append("y", partition=0)
    core.accumulator.expedite(TOPIC, 0, core.now_ms)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["y"]


@pytest.mark.rule("A4")
def test_an_idle_partition_costs_nothing_per_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll looks at what is due, not at the partitions that exist."""
    core = Core(leaders=(1,) * 2000, linger_ms=10_000)
    for partition in range(2000):
        core.append("x", partition=partition)
    core.poll()
    looked_at = 0
    real = PartitionSchedule.next_batch

    def counted(schedule: PartitionSchedule, queue: PartitionQueue, now_ms: float) -> ProducerBatch | None:
        nonlocal looked_at
        looked_at += 1
        return real(schedule, queue, now_ms)

    monkeypatch.setattr(PartitionSchedule, "next_batch", counted)
    core.poll(1)
    assert looked_at == 0
    core.append("y")
    core.accumulator.expedite(TOPIC, core.lane, core.now_ms)
    assert looked_at > 0


@pytest.mark.rule("S4")
def test_plain_lane_with_one_request_in_flight_mutes_the_partition() -> None:
    """Order without sequences: the next batch waits for the answer, even when the first has expired
    (SN-03)."""
    core = Core(
        lane=PLAIN_LANE,
        enable_idempotence=False,
        acks=1,
        max_in_flight_requests_per_connection=1,
        delivery_timeout_ms=1500,
        leaders=(1, 2),
    )
    first = core.send("a")
    core.append("b")
    core.move_leaders((2, 2))
    assert core.poll() == []
    assert core.poll(1600) == [], "expired, but its bytes may still be read by the old leader"
    assert payloads_of(core.decided) == ["a", "b"]
    core.append("c")
    core.sender.on_disconnect(1, core.now_ms)
    (second,) = core.poll()
    assert payloads_of(second.batches) == ["c"]
    assert first.batches[0].is_decided


@pytest.mark.parametrize(
    "core", [Core(), Core(lane=PLAIN_LANE, enable_idempotence=False, acks=1)], ids=["idempotent", "plain"]
)
def test_a_paused_topic_sends_nothing_and_another_continues(core: Core) -> None:
    core.snapshot = snapshot_of({TOPIC: (1,), "other": (1,)})
    core.accumulator.use_rules(TopicRules(core.config, paused=[TOPIC]), core.now_ms)
    core.append("waits")
    core.append("goes", topic="other")
    requests = core.poll(10)
    assert [payloads_of(request.batches) for request in requests] == [["goes"]]
    core.accumulator.use_rules(TopicRules(core.config), core.now_ms)
    (request,) = core.poll(10)
    assert payloads_of(request.batches) == ["waits"]


@pytest.mark.rule("S4")
def test_plain_lane_with_more_in_flight_does_not_wait() -> None:
    core = Core(lane=PLAIN_LANE, enable_idempotence=False, acks=1)
    core.send("a")
    assert payloads_of(core.send("b").batches) == ["b"]


@pytest.mark.rule("A1")
@pytest.mark.rule("A4")
def test_a_full_batch_is_sendable_at_once_and_grows_until_it_has_its_turn() -> None:
    core = Core(batch_size=61 + 2 * 100, batch_growth_bytes=61 + 5 * 100, linger_ms=50)
    core.append("a", "b")
    core.append("c")
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["a", "b", "c"]
    core.append(*range(7))
    batches = [
        batch for batch in core.accumulator.incomplete.oldest_first() if batch.state is not BatchState.ON_WIRE
    ]
    assert [batch.count for batch in batches] == [5, 2]
    assert [batch.full for batch in batches] == [True, True]


@pytest.mark.rule("A7")
def test_a_topic_that_refuses_a_grown_batch_is_sent_smaller_ones_from_then_on() -> None:
    core = Core(batch_size=61 + 2 * 100, batch_growth_bytes=61 + 8 * 100, linger_ms=0)
    core.append(*range(8))
    (request,) = core.poll()
    core.respond(request, answer(code=10))
    core.append(*range(100, 108))
    newest = core.accumulator.incomplete.oldest_first()[-3:]
    assert max(batch.count for batch in newest) <= 4


def test_another_lanes_queue_waits_for_the_last_batch_on_the_wire() -> None:
    """The first batch has its answer, and the second may still have to go again."""
    core = Core()
    first, second = core.send("a"), core.send("b")
    accumulator = core.accumulator
    before = accumulator.queue(TOPIC, IDEMPOTENT_LANE, 0)
    accumulator.send_after(accumulator.queue(TOPIC, PLAIN_LANE, 0), before)
    core.lane = PLAIN_LANE
    core.append("c")
    core.acknowledge(first)
    assert core.poll() == []
    core.acknowledge(second)
    (request,) = core.poll()
    assert payloads_of(request.batches) == ["c"]
