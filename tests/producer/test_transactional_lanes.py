"""Transactional lanes in the core: what leaves when, and that nothing is repaired which only an abort can."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.errors import Code
from sidecar.common.model import Node, ProducerIdAndEpoch, TopicPartition
from sidecar.producer.coordinator_requests import (
    CoordinatorAnswer,
    CoordinatorRequest,
    EndTransaction,
    FindCoordinator,
    InitTransactionalId,
)
from sidecar.producer.in_flight import ProduceRequest
from sidecar.producer.lanes import IDEMPOTENT_LANE, TRANSACTIONAL
from sidecar.producer.partition_queue import PartitionQueue
from sidecar.producer.transaction_manager import TransactionManager, TransactionTally
from sidecar.producer.transaction_states import TransactionState

from .fake_kernel import FakeBlock
from .harness import TOPIC, Core, answer, snapshot_of

FIRST, SECOND = TRANSACTIONAL, TRANSACTIONAL + 1


class Lanes:
    """A core with transactional lanes whose transactions have begun."""

    def __init__(self, *numbers: int, version: int = 2, **settings: Any) -> None:
        self.core = Core(leaders=(1, 1, 1), **settings)
        self.managers = {number: self._manager(number, version) for number in numbers or (FIRST,)}
        self.manager = next(iter(self.managers.values()))

    def _manager(self, number: int, version: int) -> TransactionManager:
        manager = TransactionManager(
            f"id-{number}",
            number,
            transaction_version=lambda: version,
            tally=TransactionTally(),
            backoff=ExponentialBackoff(100, 1000, lambda: 0.5),
        )
        manager.state = TransactionState.READY
        manager.identity = ProducerIdAndEpoch(900 + number, 5)
        self.core.accumulator.open_lane(manager)
        assert manager.begin(1)
        return manager

    def append(self, *payloads: int, lane: int = FIRST, partition: int = 0, topic: str = TOPIC) -> None:
        stamp_ms = self.core.clock.timestamp_ms()
        block: Any = FakeBlock([(partition, payload) for payload in payloads], 100, stamp_ms)
        self.core.accumulator.append(topic, lane, block, self.core.now_ms)

    def send(self, *payloads: int, lane: int = FIRST, partition: int = 0) -> ProduceRequest:
        self.append(*payloads, lane=lane, partition=partition)
        (request,) = self.core.poll()
        return request

    @property
    def ended(self) -> list[tuple[int, int]]:
        """(records, code) of each batch that has its outcome."""
        self.core.poll()
        found = [(batch.count, batch.code) for batch in self.core.decided]
        self.core.decided.clear()
        return found


def test_a_request_has_one_lane_and_lanes_take_turns() -> None:
    lanes = Lanes(FIRST, SECOND)
    for partition in range(3):
        lanes.append(1, lane=FIRST, partition=partition)
        lanes.append(2, lane=SECOND, partition=partition)
        lanes.core.append(3, partition=partition)
    requests = lanes.core.poll()
    while more := [each for request in requests[-2:] for each in _acknowledged(lanes, request)]:
        requests += more
    assert sorted(request.lane for request in requests) == [IDEMPOTENT_LANE, FIRST, SECOND]
    for request in requests:
        manager = lanes.managers.get(request.lane)
        assert request.transaction is manager
        assert {batch.lane for batch in request.batches} == {request.lane} and len(request.batches) == 3
        if manager is not None:
            assert {(each.producer_id, each.epoch) for each in request.batches} == {tuple(manager.identity)}


def test_request_costs_the_same_however_many_lanes_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the partitions of its own lane, and not at those of all others that wait."""
    looks: dict[int, float] = {}
    for count in (8, 64):
        numbers = range(FIRST, FIRST + count)
        lanes = Lanes(*numbers)
        schedule = lanes.core.accumulator.schedule
        following = type(schedule).next_batch
        calls: list[PartitionQueue] = []

        def next_batch(
            self: Any,
            queue: PartitionQueue,
            now_ms: float,
            calls: list[PartitionQueue] = calls,
            following: Any = following,
        ) -> Any:
            calls.append(queue)
            return following(self, queue, now_ms)

        for number in numbers:
            lanes.append(1, lane=number, partition=number % 3)
        with monkeypatch.context() as patch:
            patch.setattr(type(schedule), "next_batch", next_batch)
            requests = lanes.core.poll()
            ended = 0
            while ended < len(requests):
                requests += _acknowledged(lanes, requests[ended])
                ended += 1
        assert sorted(each.lane for each in requests) == list(numbers)
        looks[count] = len(calls) / count
    assert looks[64] <= looks[8] + 1, looks


def _acknowledged(lanes: Lanes, request: ProduceRequest) -> list[ProduceRequest]:
    if not request.ended:
        lanes.core.acknowledge(request)
    return lanes.core.poll()


def test_sequences_begin_at_0_with_each_epoch() -> None:
    lanes = Lanes()
    for epoch in (5, 6):
        lanes.manager.identity = ProducerIdAndEpoch(900, epoch)
        for base in (0, 2):
            request = lanes.send(1, 2)
            assert [(each.epoch, each.base_sequence) for each in request.batches] == [(epoch, base)]
            lanes.core.acknowledge(request)


def test_below_version_2_nothing_leaves_before_its_partition_was_added() -> None:
    lanes = Lanes(version=1)
    lanes.append(1)
    assert lanes.core.poll() == []
    lanes.manager._added.update(lanes.manager._to_add)  # its coordinator has answered
    lanes.core.sender.lane_changed(FIRST, lanes.core.now_ms)
    (request,) = lanes.core.poll()
    assert request.transaction is not None and request.transaction.produce_version == 11


def test_nothing_leaves_outside_of_a_transaction() -> None:
    lanes = Lanes()
    lanes.manager.state = TransactionState.ABORTING
    lanes.append(1)
    assert lanes.core.poll() == []


@pytest.mark.parametrize(
    "code", [Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID, Code.TOPIC_AUTHORIZATION_FAILED]
)
def test_a_refused_batch_makes_its_transaction_abortable(code: Code) -> None:
    """The idempotent lane would send the first two again under other numbers."""
    lanes = Lanes()
    lanes.core.respond(lanes.send(1, 2), answer(code=code, log_start_offset=0))
    assert lanes.ended == [(2, code)]
    assert lanes.manager.state is TransactionState.ABORTABLE and lanes.manager.cause[0] == code
    assert lanes.core.ids.epoch_bumps == 0


def test_no_record_of_a_transaction_is_set_apart() -> None:
    lanes = Lanes()
    request = lanes.send(1, 2, 3)
    lanes.core.respond(request, answer(code=Code.INVALID_RECORD, record_errors=((1, "no key"),)))
    assert lanes.ended == [(3, Code.INVALID_RECORD)]
    assert lanes.manager.cause == (Code.INVALID_RECORD, f"{TOPIC}-0: no key")


def test_a_batch_out_of_order_waits_for_the_one_before_it() -> None:
    lanes = Lanes(max_in_flight_requests_per_connection=5)
    lanes.core.acknowledge(lanes.send(0))
    first, second = lanes.send(1), lanes.send(2)
    lanes.core.respond(first, answer(code=Code.NOT_LEADER_OR_FOLLOWER))
    lanes.core.respond(second, answer(code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    for base in (1, 2):
        (request,) = lanes.core.poll(1_000)
        assert [each.base_sequence for each in request.batches] == [base]
        lanes.core.acknowledge(request)
    assert lanes.manager.state is TransactionState.IN_TRANSACTION


def test_an_abort_ends_what_was_not_sent_and_awaits_the_rest() -> None:
    lanes = Lanes()
    on_wire = lanes.send(1)
    lanes.append(2, partition=1)
    lanes.append(3)
    lanes.core.sender.abort_lane(FIRST, "aborted", lanes.core.now_ms)
    assert not lanes.core.accumulator.is_quiet(FIRST)
    lanes.core.respond(on_wire, answer(code=Code.NOT_LEADER_OR_FOLLOWER))
    assert sorted(lanes.ended) == [(1, LocalCode.TXN_ABORTED)] * 3
    assert lanes.core.accumulator.is_quiet(FIRST)
    assert lanes.core.poll(10_000) == [], "nothing is sent again"
    assert lanes.manager.state is TransactionState.IN_TRANSACTION, "its end is its manager's"


def test_an_aborted_batch_without_an_answer_may_be_in_the_log() -> None:
    lanes = Lanes()
    request = lanes.send(1)
    lanes.core.sender.abort_lane(FIRST, "aborted", lanes.core.now_ms)
    lanes.core.sender.on_disconnect(request.node_id, lanes.core.now_ms, reason="gone")
    lanes.core.poll()
    (batch,) = lanes.core.decided
    assert (batch.code, batch.persistence) == (LocalCode.TXN_ABORTED, Persistence.POSSIBLY_PERSISTED)


@pytest.mark.parametrize("is_sent", [True, False])
def test_an_abort_that_gives_up_a_numbered_batch_begins_an_epoch_below_version_2(is_sent: bool) -> None:
    """Its broker may lack the batch, or get it late: under the same epoch it would join the next transaction."""
    lanes = Lanes(version=1)
    lanes.manager._added.update(TopicPartition(TOPIC, each) for each in range(2))
    lanes.core.acknowledge(lanes.send(1))
    if is_sent:
        request = lanes.send(2, partition=1)
        lanes.core.sender.on_disconnect(request.node_id, lanes.core.now_ms, reason="gone")
    else:
        lanes.append(2, partition=1)
    lanes.manager.end(1, False)
    lanes.core.sender.abort_lane(FIRST, "aborted", lanes.core.now_ms)
    lanes.core.poll()
    asked: list[type[CoordinatorRequest]] = []
    while (request_now := lanes.manager.poll(lanes.core.now_ms, is_quiet=True)) is not None:
        asked.append(type(request_now))
        coordinator = Node(1, "kafka-1", 9092)
        answered = CoordinatorAnswer(0, coordinator=coordinator, identity=ProducerIdAndEpoch(900, 6))
        if isinstance(request_now, EndTransaction):
            answered = CoordinatorAnswer(0)
        lanes.manager.on_answer(request_now, answered, lanes.core.now_ms)
    assert asked == [FindCoordinator, EndTransaction, *([InitTransactionalId] if is_sent else [])]
    assert lanes.manager.state is TransactionState.READY


def test_a_commit_ends_the_linger_of_all_topics() -> None:
    lanes = Lanes(linger_ms=5_000.0)
    lanes.append(1)
    lanes.append(2, partition=2)
    assert lanes.core.poll() == []
    lanes.core.accumulator.expedite_lane(FIRST, lanes.core.now_ms)
    (request,) = lanes.core.poll()
    assert len(request.batches) == 2


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_topic_made_again_aborts_the_transaction_though_its_queues_are_forgotten(
    is_made_again: bool,
) -> None:
    """Its client has all outcomes and has ended the stream; the topic's name was given away. A topic that is missing
    then may be one that nothing asks for.
    """
    lanes = Lanes()
    lanes.core.acknowledge(lanes.send(1))
    lanes.core.poll()
    lanes.core.accumulator.forget_topic(TOPIC, FIRST)
    assert not lanes.core.accumulator.lanes[FIRST].of(TOPIC)
    leaders = {TOPIC: (1, 1, 1)} if is_made_again else {}
    lanes.core.snapshot = snapshot_of(leaders, version=2, topic_id=UUID(int=2))
    lanes.core.poll()
    expected = TransactionState.ABORTABLE if is_made_again else TransactionState.IN_TRANSACTION
    assert lanes.manager.state is expected


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_topic_made_again_aborts_the_transactions_that_sent_to_it(is_sent: bool) -> None:
    """Its acknowledged records are gone."""
    lanes = Lanes()
    if is_sent:
        lanes.core.acknowledge(lanes.send(1))
    else:
        lanes.core.accumulator.queue(TOPIC, FIRST, 0)
    lanes.core.snapshot = snapshot_of({}, version=2)
    lanes.core.poll()
    expected = TransactionState.ABORTABLE if is_sent else TransactionState.IN_TRANSACTION
    assert lanes.manager.state is expected


def test_a_continued_transaction_asks_for_each_partition_which_sequence_is_next() -> None:
    """Its worker died: what the broker has of partitions without an open batch is not known here."""
    lanes = Lanes()
    asked: list[PartitionQueue] = []
    lanes.core.accumulator.lanes[FIRST].continue_transaction(asked.append)
    lanes.append(1)
    assert lanes.core.poll() == []
    (queue,) = asked
    assert queue.sequences is not None
    queue.sequences.continue_at(7)
    lanes.core.sender.lane_changed(FIRST, lanes.core.now_ms)
    (request,) = lanes.core.poll()
    assert [each.base_sequence for each in request.batches] == [7]
    lanes.core.acknowledge(request)
    lanes.manager.identity = ProducerIdAndEpoch(900, 6)
    request = lanes.send(2, partition=1)
    assert [each.base_sequence for each in request.batches] == [0], "nothing is asked under a new epoch"
    assert len(asked) == 1


def test_a_closed_lane_is_forgotten() -> None:
    lanes = Lanes()
    lanes.core.acknowledge(lanes.send(1))
    lanes.core.poll()
    lanes.core.accumulator.close_lane(FIRST)
    assert FIRST not in lanes.core.accumulator.lanes


def test_a_late_word_about_a_closed_lane_changes_nothing() -> None:
    """A broker says which sequence is next, or a batch that was given up is answered, after its lane was closed."""
    lanes = Lanes()
    queue = lanes.core.accumulator.queue(TOPIC, FIRST, 0)
    lanes.core.accumulator.answered_forgotten.append(queue)
    lanes.core.accumulator.close_lane(FIRST)
    lanes.core.sender.lane_changed(FIRST, lanes.core.now_ms)
    assert lanes.core.poll() == []


def test_below_version_2_the_numbers_of_resting_partitions_are_forgotten_with_a_new_epoch() -> None:
    """Its epoch lasts from transaction to transaction, so each partition that it had ever sent to kept a number."""
    lanes = Lanes(version=1)
    lane = lanes.core.accumulator.lanes[FIRST]
    lane.resting_max = 2
    asked: list[int] = []
    for partition in range(3):
        lanes.manager._added.add(TopicPartition(TOPIC, partition))
        lanes.core.acknowledge(lanes.send(1, partition=partition))
        lanes.core.poll()
        lanes.core.accumulator.forget_topic(TOPIC, FIRST)
        asked.append(lanes.manager._needs_epoch)
    assert asked == [False, False, True]
    assert len(lane._resting) == 3, "until then they are needed"
    lanes.manager.identity = ProducerIdAndEpoch(900 + FIRST, 6)
    request = lanes.send(1, 2)
    assert [(each.epoch, each.base_sequence) for each in request.batches] == [(6, 0)]
    lanes.core.acknowledge(request)
    lanes.core.poll()
    lanes.core.accumulator.forget_topic(TOPIC, FIRST)
    assert len(lane._resting) == 1
