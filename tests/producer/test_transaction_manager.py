"""TransactionManager by a manual clock: which request comes next, what the client hears, and when nothing may begin."""

from __future__ import annotations

from math import inf
from typing import Final, TypeVar

import pytest

from client_stub.contract.wire import LocalCode, TxnEffect, TxnPart
from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.errors import Code
from sidecar.common.model import NO_PRODUCER_ID, Node, ProducerIdAndEpoch, TopicPartition
from sidecar.producer.coordinator_requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    CoordinatorAnswer,
    CoordinatorRequest,
    EndTransaction,
    FindCoordinator,
    InitTransactionalId,
)
from sidecar.producer.transaction_manager import TransactionManager, TransactionResult, TransactionTally
from sidecar.producer.transaction_record import (
    TRANSACTION_RECORD_BYTES,
    TransactionRecord,
    unpack_transaction_record,
)
from sidecar.producer.transaction_states import TRANSITIONS, TransactionEvent, TransactionState
from sidecar.protocol.coordinators import CommittedOffset, GroupMember

BROKER: Final = Node(1, "kafka-1", 9092)
OTHER: Final = Node(2, "kafka-2", 9092)
MEMBER: Final = GroupMember("group", 3, "member", None)
OFFSETS: Final = [CommittedOffset("in", 0, 110, 15, "some metadata")]
INVALID_MSG_SIZE: Final = 4
ILLEGAL_GENERATION: Final = 22
GROUP_AUTHORIZATION_FAILED: Final = 30

Request = TypeVar("Request", bound=CoordinatorRequest)


class Life:
    """A manager, its clock and a coordinator that the test plays."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.now_ms = 1000.0
        self.tally = TransactionTally()
        self.manager = TransactionManager(
            "orders-1",
            5,
            transaction_version=lambda: self.version,
            backoff=ExponentialBackoff(100, 1000, lambda: 0.5),
            tally=self.tally,
            wall_ms=lambda: 1_700_000_000_000,
        )
        self.manager.client = 3, 9

    def next(self, kind: type[Request], *, is_quiet: bool = True) -> Request:
        """The next request, which must be of that kind."""
        request = self.manager.poll(self.now_ms, is_quiet=is_quiet)
        assert type(request) is kind, request
        return request

    def nothing_next(self, *, is_quiet: bool = True) -> bool:
        return self.manager.poll(self.now_ms, is_quiet=is_quiet) is None

    def answer(self, request: CoordinatorRequest, code: int = 0, text: str = "") -> None:
        """Answer as a broker with this transaction.version does."""
        answer = CoordinatorAnswer(code, text)
        if not code and isinstance(request, FindCoordinator):
            answer = CoordinatorAnswer(0, coordinator=OTHER if request.is_group else BROKER)
        if not code and isinstance(request, InitTransactionalId):
            answer = CoordinatorAnswer(0, identity=self.next_epoch())
        if not code and isinstance(request, EndTransaction) and request.version_max == 5:
            answer = CoordinatorAnswer(0, identity=self.next_epoch())
        self.manager.on_answer(request, answer, self.now_ms)

    def next_epoch(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(4000, self.manager.identity.epoch + 1)

    def do(self, *kinds: type[CoordinatorRequest]) -> None:
        """Requests of these kinds come and succeed, in this order; then nothing more."""
        for kind in kinds:
            self.answer(self.next(kind))
        assert self.nothing_next()

    def wait(self) -> None:
        """Until the next try is due."""
        assert self.nothing_next()
        self.now_ms = self.manager.next_due_ms

    def ready(self) -> Life:
        self.manager.initialize(60_000)
        self.do(FindCoordinator, InitTransactionalId)
        assert self.results() == [(TxnPart.INIT, 0, 0, TxnEffect.NONE)]
        return self

    def in_transaction(self, number: int = 1) -> Life:
        """A transaction with one delivered record."""
        if self.manager.state is TransactionState.UNINITIALIZED:
            self.ready()
        assert self.manager.begin(number)
        if not self.manager.may_send("orders", 0):
            self.do(AddPartitions)
        assert self.manager.may_send("orders", 0)
        self.manager.produced()
        return self

    def results(self) -> list[tuple[int, int, int, int]]:
        return [each[:4] for each in self.manager.take_results()]

    def ends(self, *, commit: bool = True, number: int = 1) -> EndTransaction:
        self.manager.end(number, commit)
        return self.next(EndTransaction)


VERSIONS: Final = pytest.mark.parametrize("version", [0, 1, 2])
ENDS: Final = pytest.mark.parametrize("commit", [True, False])


def ended(number: int = 1) -> list[tuple[int, int, int, int]]:
    return [(TxnPart.END, number, 0, TxnEffect.NONE)]


@VERSIONS
@ENDS
def test_transaction_ends_as_asked(version: int, *, commit: bool) -> None:
    life = Life(version).in_transaction()
    before = life.manager.identity
    request = life.ends(commit=commit)
    assert request == (
        BROKER,
        "orders-1",
        before,
        commit,
        5 if version == 2 else 4,
    )
    life.answer(request)
    assert life.results() == ended()
    assert life.manager.state is TransactionState.READY
    assert (life.manager.identity != before) == (version == 2)


@VERSIONS
def test_version_is_latched_at_begin(version: int) -> None:
    life = Life(version).in_transaction()
    life.version = 2 - version
    assert life.ends().version_max == (5 if version == 2 else 4)


@VERSIONS
@ENDS
def test_empty_transaction_asks_nothing(version: int, *, commit: bool) -> None:
    life = Life(version).ready()
    life.manager.end(1, commit)
    assert life.nothing_next()
    assert life.results() == ended()


@VERSIONS
def test_commit_waits_for_all_batches(version: int) -> None:
    life = Life(version).in_transaction()
    life.manager.end(1, True)
    assert life.nothing_next(is_quiet=False)
    assert life.manager.may_send("orders", 0)
    life.answer(life.next(EndTransaction))
    assert life.results() == ended()


@pytest.mark.parametrize("version", [0, 1])
def test_partitions_are_added_before_their_first_record(version: int) -> None:
    life = Life(version).ready()
    assert life.manager.begin(1)
    assert not life.manager.may_send("orders", 0)
    assert not life.manager.may_send("orders", 1)
    request = life.next(AddPartitions)
    assert request.partitions == (TopicPartition("orders", 0), TopicPartition("orders", 1))
    life.answer(request)
    assert life.manager.may_send("orders", 0)
    assert life.manager.may_send("orders", 1)
    # The next transaction adds them again.
    life.answer(life.ends())
    assert life.manager.begin(2)
    assert not life.manager.may_send("orders", 0)


def test_first_failure_is_the_cause_of_the_abort() -> None:
    life = Life(2).in_transaction()
    life.manager.batch_failed("orders", 0, LocalCode.EXPIRED, "it expired")
    life.manager.batch_failed("orders", 1, Code.MESSAGE_TOO_LARGE, "too large")
    (result,) = life.manager.take_results()
    assert result == TransactionResult(
        TxnPart.STATE, 1, LocalCode.EXPIRED, TxnEffect.ABORTABLE, "orders-0: it expired"
    )
    life.manager.end(1, True)
    assert life.nothing_next(), "a commit is refused without asking the coordinator"
    assert life.results() == [(TxnPart.END, 1, LocalCode.EXPIRED, TxnEffect.ABORTABLE)]
    life.answer(life.ends(commit=False))
    assert life.results() == ended()
    life.in_transaction(2)
    life.answer(life.ends(number=2))
    assert life.results() == ended(2)


@VERSIONS
def test_failure_while_committing_fails_the_commit(version: int) -> None:
    life = Life(version).in_transaction()
    life.manager.end(1, True)
    life.manager.batch_failed("orders", 0, LocalCode.EXPIRED, "it expired")
    assert life.nothing_next()
    assert life.results() == [(TxnPart.END, 1, LocalCode.EXPIRED, TxnEffect.ABORTABLE)]


@pytest.mark.parametrize("version", [0, 1])
def test_lost_sequences_end_with_a_new_epoch_below_version_2(version: int) -> None:
    life = Life(version).in_transaction()
    life.manager.batch_failed("orders", 0, LocalCode.EXPIRED, "it expired")
    before = life.manager.identity
    request = life.ends(commit=False)
    life.manager.take_results()
    life.answer(request)
    assert life.results() == [], "nothing begins before the epoch is there"
    bump = life.next(InitTransactionalId)
    assert bump.current == before
    life.answer(bump)
    assert life.results() == ended()
    assert life.manager.identity.epoch == before.epoch + 1


@pytest.mark.parametrize("version", [0, 1])
def test_epoch_that_is_wanted_between_transactions_comes_with_the_next_end(version: int) -> None:
    life = Life(version).ready()
    before = life.manager.identity
    life.manager.want_epoch()
    assert life.manager.begin(1)
    life.manager.end(1, is_commit=True)
    assert life.nothing_next() and life.results() == ended()
    assert life.manager.identity == before, "a transaction that sent nothing asks its coordinator nothing"
    life.in_transaction(2)
    life.answer(life.ends(number=2))
    life.do(InitTransactionalId)
    assert life.results() == ended(2)
    assert life.manager.identity.epoch == before.epoch + 1
    life.in_transaction(3)
    life.answer(life.ends(number=3))
    assert life.nothing_next() and life.results() == ended(3)
    assert life.manager.identity.epoch == before.epoch + 1


# --- EndTxn: every row of the table of errors ------------------------------------------------------------------


@VERSIONS
@ENDS
@pytest.mark.parametrize(
    ("code", "times"),
    [
        (Code.COORDINATOR_NOT_AVAILABLE, 2),
        (Code.NOT_COORDINATOR, 2),
        (Code.COORDINATOR_LOAD_IN_PROGRESS, 1),
        (Code.CONCURRENT_TRANSACTIONS, 3),
    ],
)
def test_end_is_tried_again(version: int, code: int, times: int, *, commit: bool) -> None:
    life = Life(version).in_transaction()
    first = request = life.ends(commit=commit)
    for _ in range(times):
        life.answer(request, code)
        life.wait()
        if code in (Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR):
            life.answer(life.next(FindCoordinator))
        request = life.next(EndTransaction)
        assert request == first
    life.answer(request)
    assert life.results() == ended()


@VERSIONS
def test_unknown_producer_id_makes_a_commit_abortable_and_an_abort_succeed(version: int) -> None:
    life = Life(version).in_transaction()
    life.answer(life.ends(), Code.UNKNOWN_PRODUCER_ID)
    assert life.results() == [(TxnPart.END, 1, Code.UNKNOWN_PRODUCER_ID, TxnEffect.ABORTABLE)]
    life.answer(life.ends(commit=False), Code.UNKNOWN_PRODUCER_ID)
    request = life.next(InitTransactionalId)
    assert request.current == NO_PRODUCER_ID
    life.answer(request)
    assert life.results() == ended()


@VERSIONS
@ENDS
@pytest.mark.parametrize(
    "code",
    [
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.INVALID_PRODUCER_EPOCH,
        Code.PRODUCER_FENCED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ],
)
def test_end_is_refused_for_good(version: int, code: int, *, commit: bool) -> None:
    life = Life(version).in_transaction()
    life.answer(life.ends(commit=commit), code)
    refused = [(TxnPart.END, 1, code, TxnEffect.FATAL)]
    assert life.results() == refused
    assert life.nothing_next()
    assert not life.manager.begin(2)
    life.manager.end(1, commit)
    assert life.results() == refused
    life.manager.send_offsets(2, 7, MEMBER, OFFSETS)
    assert life.results() == [(TxnPart.OFFSETS, 7, code, TxnEffect.FATAL)]
    life.manager.initialize(60_000)
    assert life.results() == [(TxnPart.INIT, 0, code, TxnEffect.FATAL)]


@VERSIONS
@ENDS
@pytest.mark.parametrize("code", [GROUP_AUTHORIZATION_FAILED, INVALID_MSG_SIZE, Code.UNKNOWN_SERVER_ERROR])
def test_end_that_fails_otherwise_is_abortable(version: int, code: int, *, commit: bool) -> None:
    life = Life(version).in_transaction()
    life.answer(life.ends(commit=commit), code)
    assert life.results() == [(TxnPart.END, 1, code, TxnEffect.ABORTABLE)]
    assert not life.manager.may_send("orders", 0)
    life.answer(life.ends(commit=False))
    if version < 2:
        life.do(InitTransactionalId)
    assert life.results() == ended()


def test_abort_after_a_commit_that_was_carried_out_is_not_reported_as_one() -> None:
    """The commit was answered with an error that says nothing; the abort then learns that it had been carried out."""
    life = Life(2).in_transaction()
    life.answer(life.ends(), Code.UNKNOWN_SERVER_ERROR)
    life.results()
    life.answer(life.ends(commit=False), Code.INVALID_TXN_STATE)
    assert life.results() == [(TxnPart.END, 1, Code.INVALID_TXN_STATE, TxnEffect.FATAL)]


@VERSIONS
@ENDS
def test_end_with_a_lost_answer_is_repeated_as_it_was(version: int, *, commit: bool) -> None:
    """Below version 2 the next transaction has a new epoch, so that a late copy cannot end it."""
    life = Life(version).in_transaction()
    first = life.ends(commit=commit)
    life.answer(first, Code.NETWORK_EXCEPTION)
    life.version = 2 - version
    life.wait()
    life.answer(life.next(FindCoordinator))
    assert not life.manager.begin(2), "nothing begins before the result is known"
    again = life.next(EndTransaction)
    assert again == first
    life.answer(again)
    if version < 2:
        assert not life.manager.begin(2)
        life.do(InitTransactionalId)
    assert life.results() == ended()
    life.in_transaction(2)
    assert life.manager.identity.epoch == first.identity.epoch + 1


@VERSIONS
@ENDS
def test_repeated_end_gets_the_one_result(version: int, *, commit: bool) -> None:
    life = Life(version).in_transaction()
    request = life.ends(commit=commit)
    life.manager.end(1, commit)
    assert life.nothing_next()
    life.answer(request)
    assert life.results() == ended()
    life.manager.end(1, commit)
    assert life.results() == ended()
    assert life.nothing_next()


@ENDS
def test_other_end_while_one_is_under_way_is_a_state_error(*, commit: bool) -> None:
    life = Life(2).in_transaction()
    life.ends(commit=commit)
    life.manager.end(1, not commit)
    assert life.results() == [(TxnPart.END, 1, LocalCode.TXN_WRONG_STATE, TxnEffect.RETRIABLE)]


# --- InitProducerId --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        Code.CONCURRENT_TRANSACTIONS,
        Code.NOT_COORDINATOR,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_init_is_tried_again(code: int) -> None:
    life = Life(2)
    life.manager.initialize(60_000)
    life.answer(life.next(FindCoordinator))
    request = life.next(InitTransactionalId)
    life.answer(request, code)
    life.manager.initialize(60_000)
    life.wait()
    if code in (Code.NOT_COORDINATOR, Code.NETWORK_EXCEPTION):
        life.answer(life.next(FindCoordinator))
    life.answer(life.next(InitTransactionalId))
    assert life.results() == [(TxnPart.INIT, 0, 0, TxnEffect.NONE)]


@pytest.mark.parametrize("code", [Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 50])
def test_refused_init_is_fatal(code: int) -> None:
    life = Life(2)
    life.manager.initialize(60_000)
    life.answer(life.next(FindCoordinator))
    life.answer(life.next(InitTransactionalId), code, "why")
    assert life.manager.take_results() == [TransactionResult(TxnPart.INIT, 0, code, TxnEffect.FATAL, "why")]


def test_lost_epoch_after_an_end_does_not_undo_the_end() -> None:
    life = Life(1).in_transaction()
    life.answer(life.ends(), Code.NETWORK_EXCEPTION)
    life.wait()
    life.answer(life.next(FindCoordinator))
    life.answer(life.next(EndTransaction))
    life.answer(life.next(InitTransactionalId), Code.PRODUCER_FENCED)
    assert life.results() == [*ended(), (TxnPart.STATE, 1, Code.PRODUCER_FENCED, TxnEffect.FATAL)]


# --- adding partitions -----------------------------------------------------------------------------------------


def test_refused_partition_leaves_earlier_ones_to_be_aborted() -> None:
    """The first is acknowledged, the second may not be written: the abort must reach the coordinator."""
    life = Life(1).in_transaction()
    assert not life.manager.may_send("secret", 0)
    refused = CoordinatorAnswer(
        0, partition_codes={TopicPartition("secret", 0): Code.TOPIC_AUTHORIZATION_FAILED}
    )
    life.manager.on_answer(life.next(AddPartitions), refused, life.now_ms)
    assert life.results() == [(TxnPart.STATE, 1, Code.TOPIC_AUTHORIZATION_FAILED, TxnEffect.ABORTABLE)]
    life.answer(life.ends(commit=False))
    life.do()
    assert life.results() == ended()


def test_nothing_added_needs_no_end() -> None:
    life = Life(1).ready()
    assert life.manager.begin(1)
    assert not life.manager.may_send("secret", 0)
    assert not life.manager.may_send("orders", 0)
    codes = {
        TopicPartition("orders", 0): Code.OPERATION_NOT_ATTEMPTED,
        TopicPartition("secret", 0): Code.TOPIC_AUTHORIZATION_FAILED,
    }
    life.manager.on_answer(life.next(AddPartitions), CoordinatorAnswer(0, partition_codes=codes), life.now_ms)
    assert life.results() == [(TxnPart.STATE, 1, Code.TOPIC_AUTHORIZATION_FAILED, TxnEffect.ABORTABLE)]
    life.manager.end(1, False)
    assert life.nothing_next()
    assert life.results() == ended()


def test_lost_answer_of_an_add_must_be_ended() -> None:
    life = Life(1).ready()
    assert life.manager.begin(1)
    assert not life.manager.may_send("orders", 0)
    life.answer(life.next(AddPartitions), Code.NETWORK_EXCEPTION)
    life.manager.end(1, False)
    life.wait()
    life.do(FindCoordinator, EndTransaction, InitTransactionalId)
    assert life.results() == ended()


def test_abort_after_failed_produces_reaches_the_coordinator_with_version_2() -> None:
    life = Life(2).in_transaction()
    life.manager.batch_failed("orders", 0, Code.MESSAGE_TOO_LARGE, "too large")
    life.ends(commit=False)


# --- offsets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_offsets_are_part_of_the_transaction(version: int) -> None:
    life = Life(version).ready()
    life.manager.send_offsets(1, 7, MEMBER, OFFSETS)
    life.manager.end(1, True)
    if version < 2:
        life.answer(life.next(AddOffsets))
    life.answer(life.next(FindCoordinator))
    request = life.next(CommitOffsets)
    assert request == (
        OTHER,
        "orders-1",
        life.manager.identity,
        MEMBER,
        tuple(OFFSETS),
        5 if version == 2 else 4,
    )
    life.answer(request)
    life.answer(life.next(EndTransaction))
    assert life.results() == [(TxnPart.OFFSETS, 7, 0, TxnEffect.NONE), *ended()]


@VERSIONS
def test_stale_member_makes_the_transaction_abortable(version: int) -> None:
    life = Life(version).in_transaction()
    life.manager.send_offsets(1, 7, MEMBER, OFFSETS)
    if version < 2:
        life.answer(life.next(AddOffsets))
    life.answer(life.next(FindCoordinator))
    codes = {TopicPartition("in", 0): ILLEGAL_GENERATION}
    life.manager.on_answer(life.next(CommitOffsets), CoordinatorAnswer(0, partition_codes=codes), life.now_ms)
    assert life.results() == [
        (TxnPart.OFFSETS, 7, ILLEGAL_GENERATION, TxnEffect.ABORTABLE),
        (TxnPart.STATE, 1, ILLEGAL_GENERATION, TxnEffect.ABORTABLE),
    ]


def test_moved_group_coordinator_is_found_again() -> None:
    life = Life(2).ready()
    life.manager.send_offsets(1, 7, MEMBER, OFFSETS)
    life.answer(life.next(FindCoordinator))
    life.answer(life.next(CommitOffsets), Code.NOT_COORDINATOR)
    life.wait()
    found = life.next(FindCoordinator)
    assert found == ("group", True)
    life.answer(found)
    life.answer(life.next(CommitOffsets))
    assert life.results() == [(TxnPart.OFFSETS, 7, 0, TxnEffect.NONE)]


# --- a client that is gone -------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("code", [0, Code.PRODUCER_FENCED])
def test_open_transaction_of_a_dead_client_is_fenced(version: int, code: int) -> None:
    """By InitProducerId of its own epoch, at once: what is on the wire can then join no later transaction."""
    life = Life(version).in_transaction()
    before = life.manager.identity
    life.manager.abandon()
    assert not life.manager.is_over
    request = life.next(InitTransactionalId, is_quiet=False)
    assert request.current == before
    life.answer(request, Code.CONCURRENT_TRANSACTIONS)
    life.wait()
    life.answer(life.next(InitTransactionalId), code)
    assert life.manager.is_over
    assert life.manager.aborted_up_to == 1


@VERSIONS
def test_commit_of_a_dead_client_is_carried_out(version: int) -> None:
    life = Life(version).in_transaction()
    life.manager.end(1, True)
    life.manager.abandon()
    assert life.nothing_next(is_quiet=False)
    assert not life.manager.is_over
    life.do(EndTransaction)
    assert life.manager.is_over


# --- the table and the record ----------------------------------------------------------------------------------


def test_every_state_can_be_reached_and_refused() -> None:
    reached = {follows for steps in TRANSITIONS.values() for follows in steps.values()}
    assert reached | {TransactionState.UNINITIALIZED} == set(TransactionState)
    for steps in TRANSITIONS.values():
        assert steps[TransactionEvent.REFUSE] is TransactionState.FATAL


@VERSIONS
def test_record_has_what_a_successor_needs(version: int) -> None:
    life = Life(version).in_transaction()
    life.answer(life.ends())
    life.in_transaction(2)
    life.manager.end(2, False)
    data = life.manager.record
    record = unpack_transaction_record(data)
    assert len(data) == TRANSACTION_RECORD_BYTES
    assert record is not None
    assert record == (
        TransactionState.ABORTING,
        version,
        True,
        True,
        False,
        False,
        life.manager.identity,
        0,
        2,
        1,
        2,
        1_700_000_060_000,
        60_000,
        3,
        9,
    )
    assert record.pack() == data
    assert unpack_transaction_record(bytes(TRANSACTION_RECORD_BYTES)) is None
    assert unpack_transaction_record(b"\xff" + data[1:]) is None
    assert unpack_transaction_record(data[1:]) is None


# --- another client of the same id at the same daemon ------------------------------------------------------------


@VERSIONS
def test_second_client_fences_what_the_first_left_open(version: int) -> None:
    """Its batches are awaited first, so that none of them meets the new epoch."""
    life = Life(version).in_transaction()
    life.manager.restart(30_000, 4, 1)
    assert life.nothing_next(is_quiet=False)
    request = life.next(InitTransactionalId)
    assert (request.timeout_ms, request.current) == (30_000, NO_PRODUCER_ID)
    life.answer(request)
    assert life.results() == [(TxnPart.INIT, 0, 0, TxnEffect.NONE)]
    life.in_transaction(1)
    life.answer(life.ends())
    assert life.results() == ended()


@VERSIONS
@ENDS
def test_answer_to_the_first_client_means_nothing_to_the_second(version: int, *, commit: bool) -> None:
    life = Life(version).in_transaction()
    request = life.ends(commit=commit)
    life.manager.restart(30_000, 4, 1)
    life.answer(request)
    assert life.results() == []
    life.do(InitTransactionalId)
    assert life.results() == [(TxnPart.INIT, 0, 0, TxnEffect.NONE)]


def test_second_client_begins_where_the_first_was_refused() -> None:
    life = Life(2).in_transaction()
    life.answer(life.ends(), Code.INVALID_PRODUCER_ID_MAPPING)
    life.results()
    life.manager.restart(30_000, 4, 1)
    life.do(InitTransactionalId)
    life.results()
    life.in_transaction()


@ENDS
def test_other_end_after_the_end_is_a_state_error(*, commit: bool) -> None:
    life = Life(2).in_transaction()
    life.answer(life.ends(commit=commit))
    life.results()
    life.manager.end(1, not commit)
    assert life.results() == [(TxnPart.END, 1, LocalCode.TXN_WRONG_STATE, TxnEffect.NONE)]


def test_repeated_init_tells_what_has_failed_meanwhile() -> None:
    life = Life(2).in_transaction()
    life.manager.batch_failed("orders", 0, LocalCode.EXPIRED, "it expired")
    life.results()
    life.manager.initialize(60_000)
    assert life.results() == [
        (TxnPart.INIT, 0, 0, TxnEffect.NONE),
        (TxnPart.STATE, 1, LocalCode.EXPIRED, TxnEffect.ABORTABLE),
    ]


def test_init_that_is_repeated_while_an_epoch_is_fetched_does_not_hide_the_end() -> None:
    life = Life(1).in_transaction()
    life.manager.batch_failed("orders", 0, LocalCode.EXPIRED, "it expired")
    life.answer(life.ends(commit=False))
    life.results()
    life.manager.initialize(60_000)
    life.manager.end(1, False)
    assert life.results() == []
    life.do(InitTransactionalId)
    assert life.results() == [(TxnPart.INIT, 0, 0, TxnEffect.NONE), *ended()]


@pytest.mark.parametrize("version", [0, 1])
def test_successor_ends_what_was_being_added_when_the_worker_died(version: int) -> None:
    """The record is stored before the request leaves, and nothing is stored again before the first batch."""
    life = Life(version).ready()
    assert life.manager.begin(1)
    assert not life.manager.may_send("orders", 0)
    request = life.next(AddPartitions)
    record = unpack_transaction_record(life.manager.record)
    assert record is not None
    life.answer(request)
    life.manager.produced()
    successor = Life(version)
    successor.manager.adopt(record)
    successor.manager.end(1, False)
    successor.do(FindCoordinator, EndTransaction, InitTransactionalId)


def _record_of(life: Life) -> TransactionRecord:
    record = unpack_transaction_record(life.manager.record)
    assert record is not None
    return record


@VERSIONS
def test_topic_made_again_while_the_end_is_under_way_does_not_change_the_end(version: int) -> None:
    """Only the coordinator knows by now whether it is committed."""
    life = Life(version).in_transaction()
    request = life.ends()
    life.manager.batch_failed("orders", -1, LocalCode.TOPIC_DELETED, "it was created again")
    assert life.results() == []
    life.answer(request, Code.COORDINATOR_LOAD_IN_PROGRESS)
    life.manager.batch_failed("orders", -1, LocalCode.TOPIC_DELETED, "it was created again")
    life.wait()
    life.answer(life.next(EndTransaction))
    if version < 2:
        life.do(InitTransactionalId)
    assert life.results() == ended()
    assert life.manager.last_committed


@VERSIONS
def test_successor_of_a_commit_that_was_not_sent_fails_it_with_its_batch(version: int) -> None:
    life = Life(version).in_transaction()
    life.manager.end(1, True)
    assert life.nothing_next(is_quiet=False)
    successor = Life(version)
    successor.manager.adopt(_record_of(life))
    successor.manager.end(1, True)
    successor.manager.batch_failed("orders", 0, LocalCode.EXPIRED, "it expired")
    assert successor.results() == [(TxnPart.END, 1, LocalCode.EXPIRED, TxnEffect.ABORTABLE)]


def test_successor_does_not_report_an_abort_after_a_commit_that_was_carried_out() -> None:
    """The commit was answered with an error that says nothing, then its worker died."""
    life = Life(2).in_transaction()
    life.answer(life.ends(), Code.UNKNOWN_SERVER_ERROR)
    successor = Life(2)
    successor.manager.adopt(_record_of(life))
    successor.manager.end(1, False)
    successor.answer(successor.next(FindCoordinator))
    successor.answer(successor.next(EndTransaction), Code.INVALID_TXN_STATE)
    assert successor.results() == [(TxnPart.END, 1, Code.INVALID_TXN_STATE, TxnEffect.FATAL)]


def test_successor_tells_which_refusal_its_lane_had() -> None:
    life = Life(2).in_transaction()
    life.answer(life.ends(), Code.PRODUCER_FENCED)
    successor = Life(2)
    successor.manager.adopt(_record_of(life))
    successor.manager.initialize(60_000)
    assert successor.results() == [(TxnPart.INIT, 0, Code.PRODUCER_FENCED, TxnEffect.FATAL)]


@pytest.mark.parametrize("version", [0, 1])
def test_nothing_is_due_once_a_request_is_not_repeated_any_more(version: int) -> None:
    life = Life(version).ready()
    assert life.manager.begin(1)
    assert not life.manager.may_send("orders", 0)
    life.answer(life.next(AddPartitions), Code.COORDINATOR_LOAD_IN_PROGRESS)
    life.manager.batch_failed("orders", 0, LocalCode.EXPIRED, "it expired")
    life.wait()
    assert life.nothing_next()
    assert life.manager.next_due_ms == inf


def test_partition_that_is_not_known_yet_is_added_again_whatever_the_order_of_the_answer() -> None:
    life = Life(1).ready()
    assert life.manager.begin(1)
    assert not life.manager.may_send("orders", 0)
    assert not life.manager.may_send("new", 0)
    request = life.next(AddPartitions)
    codes = (Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION)
    answer = CoordinatorAnswer(0, partition_codes=dict(zip(request.partitions, codes, strict=True)))
    life.manager.on_answer(request, answer, life.now_ms)
    life.wait()
    life.do(AddPartitions)
    assert life.manager.may_send("new", 0)
    assert life.results() == []


@VERSIONS
def test_late_answer_to_an_earlier_client_does_not_refuse_the_next_one(version: int) -> None:
    life = Life(version).in_transaction()
    life.manager.restart(30_000, 4, 1)
    life.manager.batch_failed("orders", 0, Code.PRODUCER_FENCED, "fenced")
    life.do(InitTransactionalId)
    assert life.results() == [(TxnPart.INIT, 0, 0, TxnEffect.NONE)]
    life.in_transaction()


@VERSIONS
def test_transaction_of_an_earlier_client_is_ended_though_the_next_one_is_gone_too(version: int) -> None:
    life = Life(version).in_transaction()
    life.manager.restart(30_000, 4, 1)
    life.manager.abandon()
    assert not life.manager.is_over
    successor = Life(version)
    successor.manager.adopt(_record_of(life))
    successor.manager.abandon()
    assert not successor.manager.is_over
    successor.do(FindCoordinator, InitTransactionalId)
    assert successor.manager.is_over


@VERSIONS
@ENDS
def test_result_of_an_end_is_repeated_though_the_id_is_lost_since(version: int, *, commit: bool) -> None:
    life = Life(version).in_transaction()
    life.answer(life.ends(commit=commit))
    life.in_transaction(2)
    life.manager.batch_failed("orders", 0, Code.PRODUCER_FENCED, "fenced")
    life.results()
    life.manager.end(1, commit)
    assert life.results() == ended()
    life.manager.end(2, commit)
    assert life.results() == [(TxnPart.END, 2, Code.PRODUCER_FENCED, TxnEffect.FATAL)]


@pytest.mark.parametrize(
    "code", [Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR, Code.NETWORK_EXCEPTION]
)
def test_partition_that_may_have_been_added_is_ended_by_the_abort(code: int) -> None:
    """A coordinator that cannot replicate the addition in time says so, and may have it all the same."""
    life = Life(1).ready()
    assert life.manager.begin(1)
    assert not life.manager.may_send("orders", 0)
    life.answer(life.next(AddPartitions), code)
    life.manager.end(1, False)
    life.wait()
    life.answer(life.next(FindCoordinator))
    life.next(EndTransaction)


def test_init_of_a_lost_id_tells_a_commit_that_was_carried_out() -> None:
    """Its client was away when the next epoch was refused, so it has not heard the commit's result."""
    life = Life(1).in_transaction()
    life.answer(life.ends(), Code.NETWORK_EXCEPTION)
    life.wait()
    life.answer(life.next(FindCoordinator))
    life.answer(life.next(EndTransaction))
    life.answer(life.next(InitTransactionalId), Code.PRODUCER_FENCED)
    successor = Life(1)
    successor.manager.adopt(_record_of(life))
    successor.manager.initialize(60_000)
    assert successor.results() == [*ended(), (TxnPart.INIT, 0, Code.PRODUCER_FENCED, TxnEffect.FATAL)]


@VERSIONS
@pytest.mark.parametrize("is_end_refused", [False, True])
def test_commit_of_a_dead_client_that_fails_is_aborted(version: int, *, is_end_refused: bool) -> None:
    """Nobody else would abort it: its readers would wait, and its lane would never be closed."""
    life = Life(version).in_transaction()
    life.manager.end(1, True)
    life.manager.abandon()
    if is_end_refused:
        life.answer(life.next(EndTransaction), Code.UNKNOWN_SERVER_ERROR)
    else:
        assert life.nothing_next(is_quiet=False)
        life.manager.batch_failed("orders", 0, LocalCode.EXPIRED, "it expired")
    life.do(InitTransactionalId)
    assert life.manager.is_over


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("is_client_gone", [False, True])
def test_offsets_without_an_answer_are_part_of_a_commit_that_a_successor_continues(
    version: int, *, is_client_gone: bool
) -> None:
    """The call timed out, the commit was asked for, and the worker died. Its client sends both again, in that order."""
    renewal = () if version == 2 else (InitTransactionalId,)
    life = Life(version).in_transaction()
    life.manager.send_offsets(1, 7, MEMBER, OFFSETS)
    life.manager.end(1, True)
    successor = Life(version)
    successor.manager.adopt(_record_of(life))
    successor.do(FindCoordinator)  # and no more: the client may have more of it
    if is_client_gone:
        successor.manager.abandon()
        successor.do(EndTransaction, *renewal)
        assert successor.manager.last_committed
        return
    successor.manager.initialize(60_000)
    successor.manager.send_offsets(1, 7, MEMBER, OFFSETS)
    successor.manager.end(1, True)
    if version < 2:
        successor.answer(successor.next(AddOffsets))
    successor.answer(successor.next(FindCoordinator))
    successor.answer(successor.next(CommitOffsets))
    successor.do(EndTransaction, *renewal)
    assert successor.results() == [
        (TxnPart.INIT, 0, 0, TxnEffect.NONE),
        (TxnPart.OFFSETS, 7, 0, TxnEffect.NONE),
        *ended(),
    ]


def test_offsets_after_the_commit_was_sent_are_refused() -> None:
    life = Life(2).in_transaction()
    life.ends()
    life.manager.send_offsets(1, 7, MEMBER, OFFSETS)
    assert life.results() == [(TxnPart.OFFSETS, 7, LocalCode.TXN_WRONG_STATE, TxnEffect.NONE)]


@VERSIONS
def test_offsets_at_a_daemon_that_stops_say_what_to_do(version: int) -> None:
    """Of the transaction that it has aborted: begin another one. Of the next one: the same call again."""
    life = Life(version).in_transaction()
    life.manager.stop("The daemon stops.")
    life.do(InitTransactionalId)
    life.results()
    life.manager.send_offsets(1, 7, MEMBER, OFFSETS)
    life.manager.send_offsets(2, 8, MEMBER, OFFSETS)
    assert life.results() == [
        (TxnPart.OFFSETS, 7, LocalCode.TXN_ABORTED, TxnEffect.ABORTABLE),
        (TxnPart.OFFSETS, 8, LocalCode.TXN_WRONG_STATE, TxnEffect.RETRIABLE),
    ]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("lost", [AddPartitions, AddOffsets, CommitOffsets])
def test_late_copy_of_a_request_cannot_join_the_next_transaction(
    version: int, lost: type[CoordinatorRequest]
) -> None:
    """Its connection ended, and it was sent again. The first copy may lie in a socket until the transaction has ended:
    it would begin one at the coordinator, or put its offsets in place of later ones.
    """
    life = Life(version).ready()
    assert life.manager.begin(1)
    assert not life.manager.may_send("orders", 0)
    life.manager.send_offsets(1, 7, MEMBER, OFFSETS)
    for kind in (AddPartitions, AddOffsets, FindCoordinator, CommitOffsets):
        if kind is lost:
            life.answer(life.next(kind), Code.NETWORK_EXCEPTION)
            life.wait()
            life.answer(life.next(FindCoordinator))
        life.answer(life.next(kind))
    life.manager.end(1, True)
    life.do(EndTransaction, InitTransactionalId)
    assert life.results() == [(TxnPart.OFFSETS, 7, 0, TxnEffect.NONE), *ended()]


@VERSIONS
def test_next_transaction_after_a_death_begins_with_a_new_epoch(version: int) -> None:
    """A request of the dead worker may still be on its way."""
    life = Life(version).in_transaction()
    successor = Life(version)
    successor.manager.adopt(_record_of(life))
    successor.manager.end(1, True)
    successor.do(FindCoordinator, EndTransaction, *(() if version == 2 else (InitTransactionalId,)))
    assert successor.results() == ended()
