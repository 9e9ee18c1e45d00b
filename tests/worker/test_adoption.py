"""Goal: whatever a worker was doing when it died, its successor ends with every accepted record in the log once."""

from __future__ import annotations

import dataclasses

import pytest

from client_stub.contract.wire import OutcomeKind, Persistence
from sidecar.common.errors import Code
from sidecar.producer.effects import Decided, Renumbered, Split
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.shm.client_table import ClientTable
from sidecar.shm.descriptor_states import DescriptorEvent, DescriptorState
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.segment import Segment
from sidecar.worker.adoption import adoption
from sidecar.worker.brokers.inquiry import Verdict
from tests.configs import producer_config
from tests.outcomes import unpack_outcomes
from tests.reading_back import row_of
from tests.worker.adoption_harness import accept, check_end, heir, told_offsets

from .slot_harness import CLIENT_ID, MemoryBroker, SlotHarness


def test_accepted_and_not_yet_partitioned(segment: Segment) -> None:
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, known = first.attach()
    assert not known
    accept(first, session, range(5))
    second = heir(first)
    assert second.topics.waiting.entry_count == 5
    second.run()
    check_end(second, 5)


def test_partitioned_and_not_sent(segment: Segment) -> None:
    first = SlotHarness(segment, MemoryBroker(), 1)
    first.know_topic()
    accept(first, first.attach()[0], range(5))
    second = heir(first)
    assert second.topics.waiting.entry_count == 0, "their words say where they go, metadata or not"
    second.run()
    check_end(second, 5)


def test_a_batch_larger_than_the_successors_request_buffers_goes_again(segment: Segment) -> None:
    """Its max.request.size is lower, and no record of a batch that has been sent is judged again."""
    first = SlotHarness(segment, MemoryBroker(is_silent=True), 1)
    first.know_topic()
    first.accept(first.attach()[0], [b"x" * 5_000, b"value-1"], [0, 0])
    first.turn()
    first.turn()
    config = dataclasses.replace(first.config, max_request_size=1000)
    second = SlotHarness(segment, first.broker, 2, config=config)
    second.buffers.limit_bytes = second.buffers.max_request_size * 2
    second.broker.is_silent = False
    second.ask()
    (batch, _), *_ = second.adopted
    assert batch.size_bytes > second.buffers.limit_bytes
    second.run()
    assert second.broker.log[0] == [b"x" * 5_000, b"value-1"]
    assert set(told_offsets(second)) == {(1, 0), (1, 1)}


def test_sent_and_not_answered_goes_again_as_it_was(segment: Segment) -> None:
    first = SlotHarness(segment, MemoryBroker(is_silent=True), 1)
    first.know_topic()
    accept(first, first.attach()[0], range(8))
    first.turn()
    first.turn()
    sent = list(first.descriptors)
    assert {each.state for each in sent} == {DescriptorState.SENT_UNDER}
    log = {partition: list(values) for partition, values in first.broker.log.items()}
    assert log, "the broker has them"
    second = heir(first)
    assert second.verdicts == [Verdict.SEND_AGAIN] * 2
    assert all(batch.appended for batch, _ in second.adopted)
    second.run()
    assert all(second.broker.log[partition][: len(values)] == values for partition, values in log.items())
    check_end(second, 8)


def test_the_client_comes_back(segment: Segment) -> None:
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    first.know_topic()
    accept(first, session, range(3))
    for _ in range(4):
        first.turn()
    row = session.row
    told = row.next_number
    assert told > 1
    row.ring_ack(1)
    second = heir(first)
    again, known = second.attach(row.secret)
    assert known
    assert again.streams[1].position == 3
    assert again.streams[1].topic_queue.topic == "t"
    news = again.row.ring_slice_from(again.sent_number + 1)
    assert news is not None
    assert news[0] == 2, "what was not acknowledged is told again"
    accept(second, again, range(3, 6))
    second.run()
    assert second.counters.get("records_delivered_total") == 24
    assert again.streams[1].position == 6


def test_a_position_that_only_the_journal_knows(segment: Segment) -> None:
    """The tail was stored and the row not yet."""
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    accept(first, session, range(3))
    session.row.store_position(1, 2)
    first.counters.set("records_accepted_total", 8)
    second = heir(first)
    assert second.attach(session.row.secret)[0].streams[1].position == 3
    second.run()
    check_end(second, 3)


def test_failures_by_word_are_reported_and_counted_once(segment: Segment) -> None:
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    first.know_topic()
    queue = first.topics.get("t")
    assert queue is not None
    first.settlement.fail_records = lambda *_: None  # type: ignore[method-assign]  # it dies before the ring is written
    first.accept(session, [b"a", b"b", b"c"], [0, 77, 1])
    first.topics.waiting.expire(first.now_ms + 60_000.0)
    second = heir(first)
    counters = second.counters.read()
    assert (counters["records_accepted_total"], counters["records_held"]) == (3, 3)
    second.run()
    counters = second.counters.read()
    assert (counters["records_failed_total"], counters["records_held"]) == (0, 1), (
        "nobody has heard of it yet"
    )
    again, _ = second.attach(session.row.secret)
    news = again.row.ring_slice_from(1)
    assert news is not None
    second.acknowledge(again)
    counters = second.counters.read()
    assert (counters["records_delivered_total"], counters["records_failed_total"]) == (2, 1)
    failed = [o for o in unpack_outcomes(news[2]) if o.kind == OutcomeKind.FAILED]
    assert [(o.seq, o.first_index, o.count) for o in failed] == [(1, 1, 1)]
    assert describe_undelivered(segment) == []


def test_a_gap_before_what_was_sent(segment: Segment) -> None:
    """The first of three batches lost its identity (refused, freed); the later ones go under a new one after it."""
    broker = MemoryBroker(is_silent=True)
    first = SlotHarness(segment, broker, 1)
    first.know_topic()
    session, _ = first.attach()
    accept(first, session, range(2))
    broker.is_silent = False
    first.turn()
    first.turn()
    first.turn()
    broker.is_silent = True
    broker.refuse_once = {0: Code.NOT_ENOUGH_REPLICAS}
    for number in range(2, 8):
        accept(first, session, range(number, number + 1))
        first.turn()
    sent = [each for each in first.descriptors if each.partition == 0]
    assert len(sent) >= 2
    oldest = min(sent, key=lambda each: each.first_cursor)
    first.descriptors.step(DescriptorEvent.FREE, oldest.index)
    second = heir(first)
    second.run()
    check_end(second, 8)


def test_the_broker_forgot_the_producer(segment: Segment) -> None:
    broker = MemoryBroker()
    first = SlotHarness(segment, broker, 1)
    first.know_topic()
    session, _ = first.attach()
    accept(first, session, range(2))
    for _ in range(3):
        first.turn()
    broker.is_silent = True
    accept(first, session, range(2, 3))
    first.turn()
    broker.producers.clear()
    second = SlotHarness(segment, broker, 2)
    second.ask()
    assert set(second.verdicts) == {Verdict.UNKNOWN}


@pytest.mark.parametrize("state", [DescriptorState.STORED, DescriptorState.RELEASED])
@pytest.mark.parametrize("done", ["none", "half", "all"])
def test_decided_and_not_finished(segment: Segment, state: DescriptorState, done: str) -> None:
    """Settled: told again. Told: nothing more is told, the words become done, whatever part of them was."""
    first = SlotHarness(segment, MemoryBroker(), 1)
    first.know_topic()
    session, _ = first.attach()
    accept(first, session, range(1))
    settled: list[ProducerBatch] = []
    first.settlement._hand_over = lambda outcomes, now_ms: None  # type: ignore[method-assign]
    settle = first.settlement.settle

    def settle_and_note(effect: Decided, now_ms: float) -> None:
        settle(effect, now_ms)
        settled.extend(effect.batches)

    first.settlement.settle = settle_and_note  # type: ignore[method-assign]
    for _ in range(4):
        first.turn()
    assert len(settled) == 2
    for batch in settled:
        if state == DescriptorState.RELEASED:
            first.descriptors.step(DescriptorEvent.RELEASE, batch.descriptor)
            if done != "none":
                (batch.records if done == "all" else batch.records.split()[0]).mark_done()
    first.counters.set("records_delivered_total", 0)  # it died before it counted
    second = heir(first)
    assert list(second.descriptors) == []
    second.run()
    told = told_offsets(second)
    assert len(told) == (4 if state == DescriptorState.STORED else 0)
    assert second.counters.get("records_delivered_total") == 4
    assert second.counters.get("records_accepted_total") == 4
    assert describe_undelivered(segment) == []


def test_the_heartbeat_moves_with_the_adoption(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is in the slot, its controller sees after each part of it that the adoption gets on."""
    monkeypatch.setattr(adoption, "RUN_ENTRIES", 4)
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    first.know_topic()
    accept(first, session, range(20))
    second = SlotHarness(segment, first.broker, 2)
    steps = [after - before for before, after in zip(second.beats, second.beats[1:], strict=False)]
    assert sum(steps) >= 16 * 4, "all but the last part"
    assert max(steps) <= 4 * 4, "no more than so many submissions without one"
    second.run()
    check_end(second, 20)


@pytest.mark.parametrize("acks", ["all to 1", "1 to all"])
def test_a_partition_keeps_its_order_when_acks_is_changed_with_a_backlog(segment: Segment, acks: str) -> None:
    """Batches sent in the earlier lane have their end before anything goes out in the other one."""
    configs = [
        producer_config(batch_size=120, linger_ms=0),
        producer_config(batch_size=120, linger_ms=0, acks=1, enable_idempotence=False),
    ]
    before, after = configs if acks == "all to 1" else reversed(configs)
    broker = MemoryBroker(is_silent=True)
    first = SlotHarness(segment, broker, 1, config=before)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"1"], [0])
    first.turn()
    first.turn()
    assert len(list(first.descriptors)) == 1
    broker.log.clear()  # it died before it sent a byte
    broker.producers.clear()
    first.accept(session, [b"2"], [0])
    first.accept(session, [b"other"], [1])
    second = SlotHarness(segment, broker, 2, config=after)
    second.broker.is_silent = False
    second.know_topic()
    for _ in range(4):
        second.turn()
    assert second.broker.log == {1: [b"other"]}, (
        "it waits for the outcome of what was sent, its partition alone"
    )
    second.ask()
    second.run()
    assert second.broker.log == {0: [b"1", b"2"], 1: [b"other"]}
    assert describe_undelivered(segment) == []


@pytest.mark.parametrize("may_ask", [True, False])
@pytest.mark.parametrize("table", ["with room", "full"])
def test_half_of_a_batch_that_is_there_whole_is_not_doubled_by_a_successor(
    segment: Segment, may_ask: bool, table: str
) -> None:
    """The whole was appended and its answer lost, then the topic took smaller batches only, then the worker died. A
    broker refuses the halves as out of order, whether it has the whole or lacks what is before them."""
    config = producer_config(batch_size=1_000, linger_ms=0)
    broker = MemoryBroker(is_silent=True)
    first = SlotHarness(segment, broker, 1, config=config)
    session, _ = first.attach()
    first.know_topic()
    values = [b"%d" % number for number in range(4)]
    first.accept(session, values, [0] * 4)
    first.turn()
    first.turn()
    assert broker.log == {0: values}
    broker.records_max, broker.is_silent = 2, False
    if table == "full":
        first.descriptors.free_indexes = first.descriptors.free_indexes[:1]
    first.cut()
    first.turn()
    broker.is_silent = True
    first.turn()
    second = SlotHarness(segment, broker, 2, config=config)
    assert {batch.count for batch, _ in second.adopted} == {4 if table == "full" else 2}
    broker.is_silent = False
    second.ask(may_ask=may_ask)
    second.run()
    assert broker.log == {0: values}


@pytest.mark.parametrize("refused", ["too large with a full table", "invalid"])
def test_a_half_that_never_left_does_not_pass_what_is_before_it_at_a_successor(
    segment: Segment, refused: str
) -> None:
    """A successor sends batches with a descriptor first, and a broker that does not know the producer id takes any
    sequence."""
    config = producer_config(batch_size=1_000, linger_ms=0)
    values = [b"%d" % number for number in range(4)]
    is_invalid = refused == "invalid"
    broker = MemoryBroker(records_max=2 if is_invalid else 1, invalid_value=values[0] if is_invalid else None)
    first = SlotHarness(segment, broker, 1, config=config)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, values, [0] * 4)
    while len(list(first.descriptors)) != 2:
        first.turn()
    if not is_invalid:
        first.descriptors.free_indexes = first.descriptors.free_indexes[:1]
    first.turn(stop_after=Split)
    assert not broker.log and not first.sender.is_idle
    second = heir(first)
    second.run()
    assert second.broker.log == {0: values[1:] if refused == "invalid" else values}


def test_records_left_by_a_refused_batch_do_not_follow_a_later_one_at_a_successor(segment: Segment) -> None:
    """A batch with invalid records was set apart, a later one is in doubt, and the worker died. The broker takes the
    later one: it has forgotten the producer id."""
    config = producer_config(batch_size=1, linger_ms=0)
    first = SlotHarness(segment, MemoryBroker(), 1, config=config)
    session, _ = first.attach()
    first.know_topic()
    for value in (b"left", b"in doubt", b"new"):
        first.accept(session, [value], [0])
    _, later, _ = first.accumulator.incomplete.oldest_first()
    later.identify(4000, 0, 7)
    assert first.descriptors.publish([later], 1)
    second = SlotHarness(segment, first.broker, 2, config=config)
    second.ask(may_ask=False)
    second.run()
    assert second.broker.log == {0: [b"in doubt", b"new"]}
    assert second.counters.get("records_failed_total") == 0, "not told before its client asks"


def whose_doubt_is_refuted(segment: Segment, broker: MemoryBroker) -> SlotHarness:
    """A worker whose broker has appended a batch of two records, and says at the second try that it lacks them."""
    first = SlotHarness(segment, broker, 1)
    session, _ = first.attach()
    first.know_topic()
    first.accept(session, [b"known"], [0])
    while broker.log != {0: [b"known"]}:
        first.turn()
    broker.is_silent = True
    first.accept(session, [b"a", b"b"], [0, 0])
    first.turn()
    assert broker.log == {0: [b"known", b"a", b"b"]}
    broker.is_silent, broker.refuse_once = False, {0: Code.OUT_OF_ORDER_SEQUENCE_NUMBER}
    first.cut()
    return first


def test_a_refuted_doubt_outlives_the_worker(segment: Segment) -> None:
    """The broker had the batch and said that it lacked it, so it went out under another number and was lost. A
    successor's broker lacks that number and refuses the halves: a copy may be there anyway."""
    broker = MemoryBroker()
    first = whose_doubt_is_refuted(segment, broker)
    while broker.refuse_once:
        first.turn()
    broker.is_silent, broker.refuse_once = True, {0: Code.REQUEST_TIMED_OUT}
    while broker.refuse_once:
        first.turn()
    (sent,) = first.descriptors
    assert (sent.epoch, sent.base_sequence) == (1, 0), "it has another number"
    broker.is_silent, broker.records_max = False, 0
    second = heir(first)
    second.run()
    assert persistences(second, 2) == {(Code.MESSAGE_TOO_LARGE, Persistence.POSSIBLY_PERSISTED)}


def test_a_refuted_doubt_outlives_the_worker_before_the_batch_is_sent_again(segment: Segment) -> None:
    """Its descriptor is free by then. The next successor knows it too; records behind it were in no doubt."""
    broker = MemoryBroker()
    first = whose_doubt_is_refuted(segment, broker)
    while list(first.descriptors):
        first.turn(stop_after=Renumbered)
    broker.records_max = 0
    third = heir(heir(first))
    third.run()
    assert persistences(third, 2) == {(Code.MESSAGE_TOO_LARGE, Persistence.POSSIBLY_PERSISTED)}
    row = row_of(ClientTable(segment), CLIENT_ID)
    assert row is not None
    number = row.next_number
    session, _ = third.attach(row.secret)
    third.acknowledge(session)
    third.accept(session, [b"c"], [0])
    fourth = heir(third)
    fourth.run()
    assert persistences(fourth, number) == {(Code.MESSAGE_TOO_LARGE, Persistence.NOT_PERSISTED)}


def persistences(harness: SlotHarness, number: int) -> set[tuple[int, int]]:
    """(code, persistence) of the failures that its client was told from this outcome on."""
    row = row_of(ClientTable(harness.segment), CLIENT_ID)
    assert row is not None
    outcomes = row.ring_slice_from(number)
    assert outcomes is not None
    return {(each.code, each.persistence) for each in unpack_outcomes(outcomes[2])}
