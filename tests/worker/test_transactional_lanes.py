"""A worker's transactional lanes, also those of a dead one: what failed in a transaction fails that one, and nothing
becomes a dead letter.
"""

from __future__ import annotations

import pytest

from client_stub.contract.wire import LocalCode
from sidecar.common.model import ProducerIdAndEpoch
from sidecar.producer.transaction_states import TransactionState
from sidecar.protocol.describe_producers import ProducerState
from sidecar.shm.in_work import InWork, batch_word, entry_word
from sidecar.shm.segment import Segment
from sidecar.worker.streams.lane import Lane
from sidecar.worker.streams.session import ClientSession
from sidecar.worker.topics import waiting_entries

from .slot_harness import NODE, MemoryBroker, SlotHarness
from .test_poison import heir


def begun(harness: SlotHarness, session: ClientSession, number: int = 1) -> Lane:
    """A lane of the client, with transaction ``number`` open under transaction.version 2."""
    lane = harness.rooms.lanes.open("orders-1", session)
    assert lane is not None
    session.lane = lane
    manager = lane.manager
    manager._transaction_version = lambda: 2
    manager.state, manager.identity = TransactionState.READY, ProducerIdAndEpoch(900, 5)
    assert manager.begin(number)
    return lane


def lane_of(harness: SlotHarness) -> Lane:
    (lane,) = harness.rooms.lanes
    return lane


def test_poisonous_submission_of_a_transaction_aborts_it_and_is_no_dead_letter(segment: Segment) -> None:
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    begun(first, session)
    first.accept(session, [b"poison", b"too"], [0, 0], transaction=1)
    chain = next(iter(first.chain_table))
    (entry,) = chain.entries()
    harness = first
    for _ in range(3):
        InWork(segment.slot(0)).loop_word[:] = entry_word(chain.chain_id, entry.ordinal).to_bytes(8, "little")
        harness = heir(harness)
    assert harness.broker.spool == []
    manager = lane_of(harness).manager
    assert (manager.state, manager.cause[0]) == (TransactionState.ABORTABLE, LocalCode.POISON_SUBMISSION)


def test_poisonous_batch_of_a_transaction_aborts_it_and_is_no_dead_letter(segment: Segment) -> None:
    first = SlotHarness(segment, MemoryBroker(is_silent=True), 1)
    session, _ = first.attach()
    begun(first, session)
    first.know_topic()
    first.accept(session, [b"poison"], [0], transaction=1)
    first.turn()
    first.turn()
    (bad,) = first.descriptors
    harness = first
    for _ in range(3):
        InWork(segment.slot(0)).loop_word[:] = batch_word(bad.serial).to_bytes(8, "little")
        harness = heir(harness)
    assert harness.broker.spool == []
    manager = lane_of(harness).manager
    assert (manager.state, manager.cause[0]) == (TransactionState.ABORTABLE, LocalCode.POISON_SUBMISSION)


@pytest.mark.parametrize("is_of_open", [True, False])
def test_failure_that_a_dead_worker_told_fails_only_its_own_transaction(
    segment: Segment, is_of_open: bool
) -> None:
    """The client has not acknowledged it, so the successor tells it again."""
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    manager = begun(first, session).manager
    first.know_topic()
    first.accept(session, [b"nowhere"], [77], transaction=1)
    first.topics.waiting.fail_all(LocalCode.INVALID_PARTITION, first.now_ms)
    assert manager.state is TransactionState.ABORTABLE
    if not is_of_open:
        manager.end(1, False)
        assert manager.poll(first.now_ms, is_quiet=True) is None
        assert manager.begin(2)
    first.rooms.lanes.store(lane_of(first))
    successor = lane_of(heir(first)).manager
    expected = TransactionState.ABORTABLE if is_of_open else TransactionState.IN_TRANSACTION
    assert successor.state is expected


def test_late_answer_about_a_transaction_that_has_ended_does_not_fail_the_next_one(segment: Segment) -> None:
    """Its client aborted it before the broker said which sequence is next. By now the broker has the next epoch."""
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    begun(first, session)
    first.rooms.lanes.store(lane_of(first))
    successor = heir(first)
    manager = lane_of(successor).manager
    manager._transaction_version = lambda: 2
    queue = successor.accumulator.queue("t", manager.lane, 0)
    inquiry = successor.rooms.brokers.inquiry
    assert queue in inquiry.unanswered
    manager.end(1, False)
    assert manager.poll(successor.now_ms, is_quiet=True) is None
    manager.identity = ProducerIdAndEpoch(900, 6)
    assert manager.begin(2)
    inquiry._answered(queue, {900: ProducerState(6, -1)})
    assert manager.state is TransactionState.IN_TRANSACTION


def test_broker_is_not_asked_about_a_transaction_that_has_ended(segment: Segment) -> None:
    """Its topic may have been deleted: nobody would ever answer."""
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    begun(first, session)
    first.rooms.lanes.store(lane_of(first))
    successor = heir(first)
    manager = lane_of(successor).manager
    queue = successor.accumulator.queue("t", manager.lane, 0)
    inquiry = successor.rooms.brokers.inquiry
    inquiry.step(successor.now_ms)
    assert len(inquiry.unanswered) == 1
    manager.identity = ProducerIdAndEpoch(900, 6)
    inquiry.step(successor.now_ms + 60_000)
    assert not inquiry.unanswered
    inquiry._answered(queue, {900: ProducerState(5, 3)})  # it had been asked before that


def test_broker_is_not_asked_about_a_lane_whose_client_is_gone(segment: Segment) -> None:
    """With transaction.version 0 and 1 the epoch outlasts the transaction, and another producer may have ended it."""
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    begun(first, session)
    first.rooms.lanes.store(lane_of(first))
    successor = heir(first)
    manager = lane_of(successor).manager
    successor.accumulator.queue("t", manager.lane, 0)
    inquiry = successor.rooms.brokers.inquiry
    assert len(inquiry.unanswered) == 1
    manager.abandon()
    manager.state = TransactionState.READY
    inquiry.step(successor.now_ms)
    assert not inquiry.unanswered


def test_refusal_of_a_topic_ends_with_the_transaction_whose_records_it_failed(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More records wait than fail in one turn. The next transaction's are looked up again."""
    monkeypatch.setattr(waiting_entries, "EXPIRED_ENTRIES", 2)
    harness = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = harness.attach()
    lane = begun(harness, session)
    for _ in range(5):
        harness.accept(session, [b"refused"], [0], transaction=1)
    waiting = harness.topics.waiting
    (queue,) = waiting.queues
    waiting.refuse(queue, LocalCode.TOPIC_UNAUTHORIZED, harness.now_ms)
    assert len(queue.waiting) == 3
    harness.rooms.lanes.abort(lane, harness.now_ms)
    assert not queue.waiting
    lane.manager.state = TransactionState.READY
    harness.accept(session, [b"next"], [0], transaction=2)
    waiting.go_on(harness.now_ms)
    assert len(queue.waiting) == 1


def test_record_that_was_given_up_before_its_worker_died_fails_the_open_transaction(segment: Segment) -> None:
    """It must not be committed without that record, whatever the lane's record has by then."""
    first = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = first.attach()
    lane = begun(first, session)
    first.accept(session, [b"given up"], [0], transaction=1)
    first.rooms.lanes.store(lane)
    first.rooms.lanes.abort(lane, first.now_ms)
    assert lane_of(heir(first)).manager.state is TransactionState.ABORTABLE


def test_topic_of_an_open_transaction_is_in_use_until_the_end(segment: Segment) -> None:
    """Metadata of a topic that nothing uses expires: nobody would notice that it was made again."""
    harness = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = harness.attach()
    manager = begun(harness, session).manager
    harness.know_topic()
    harness.accept(session, [b"delivered"], [0], transaction=1)
    for _ in range(3):
        harness.turn()
    assert not any(chain.live_entries for chain in harness.chain_table)
    assert harness.topics.in_use() == {"t"}
    manager.state = TransactionState.READY
    assert harness.topics.in_use() == set()


def test_sent_batch_that_cannot_be_read_back_fails_its_transaction(segment: Segment) -> None:
    first = SlotHarness(segment, MemoryBroker(is_silent=True), 1)
    session, _ = first.attach()
    begun(first, session)
    first.know_topic()
    first.accept(session, [b"lost", b"found"], [0, 0], transaction=1)
    first.turn()
    first.turn()
    (batch,) = first.accumulator.incomplete.oldest_first()
    batch.leave_wire()
    batch.split()[0].records.mark_done()  # as damage would have it
    manager = lane_of(heir(first)).manager
    assert (manager.state, manager.cause[0]) == (TransactionState.ABORTABLE, LocalCode.ENCODE_MISMATCH)


def test_abort_is_told_after_the_outcomes_of_its_records(segment: Segment) -> None:
    harness = SlotHarness(segment, MemoryBroker(), 1)
    session, _ = harness.attach()
    lane = begun(harness, session)
    lane.manager._coordinator = NODE
    harness.know_topic()
    harness.accept(session, [b"not sent"], [0], transaction=1)
    lane.manager.end(1, False)
    transactions = harness.rooms.brokers.transactions
    transactions.step(harness.now_ms)
    assert not session.after_outcomes, "the record's outcome is not in the ring yet"
    harness.turn()
    assert session.row.next_number == 2
    transactions.step(harness.now_ms)
    assert len(session.after_outcomes) == 1
