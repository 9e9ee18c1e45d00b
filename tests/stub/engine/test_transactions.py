"""Goal: calls of transactions do what Kafka's producer does, ask the daemon in the right order, and have one answer
each, also over reconnects.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer
from client_stub.contract.wire import Kind, LocalCode, OutcomeKind, Persistence, TxnEffect, TxnPart
from client_stub.errors import (
    DaemonUnreachable,
    ProducerClosed,
    ProducerFenced,
    RecordTooLarge,
    SidecarError,
    TransactionAborted,
    TransactionError,
    TransactionStateError,
    TransactionTimeout,
)
from client_stub.outbox.bulk_call import BulkCall
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import Client, FakeDaemon, Submit

WAIT_S = 30.0


@pytest.fixture
def producer(daemon: FakeDaemon) -> Iterator[Producer]:
    with Producer(daemon.run_dir, transactional_id="copy-1") as producer:
        yield producer


@pytest.fixture
def ready(producer: Producer) -> Producer:
    producer.init_transactions(WAIT_S)
    return producer


def kinds(daemon: FakeDaemon) -> list[Any]:
    return [Kind(each[0]) for each in daemon.txn_frames]


def state_error(call: Any, *arguments: Any) -> str:
    with pytest.raises(TransactionStateError) as caught:
        call(*arguments)
    assert not (caught.value.retriable or caught.value.abortable)
    return str(caught.value)


def test_records_of_a_transaction_have_its_number_and_commit_names_them(
    ready: Producer, daemon: FakeDaemon
) -> None:
    for number in (1, 2):
        ready.begin_transaction()
        ready.send("orders", b"a")
        ready.send_many("bills", [(None, b"b")] * 3)
        ready.commit_transaction(WAIT_S)
        assert {each.transaction for each in daemon.received[-2:]} == {number}
        kind, txn, commits, ends = daemon.txn_frames[-1]
        assert (kind, txn, commits) == (Kind.TXN_END, number, True)
        assert sorted(ends) == [[1, number], [2, number]]
    assert daemon.txn_frames[0] == [Kind.TXN_INIT, "copy-1", 60_000, False]
    assert daemon.hellos[0][8] == "copy-1"


def test_calls_in_a_wrong_state_do_nothing(producer: Producer, daemon: FakeDaemon) -> None:
    assert "call init_transactions() first" in state_error(producer.begin_transaction)
    assert "begin_transaction() before send()" in state_error(producer.send, "orders", b"x")
    producer.init_transactions(WAIT_S)
    assert "no transaction is open" in state_error(producer.commit_transaction)
    assert "no transaction is open" in state_error(producer.abort_transaction)
    assert "begin_transaction() before send()" in state_error(producer.send_many, "orders", [(None, b"x")])
    producer.begin_transaction()
    assert "a transaction is open" in state_error(producer.begin_transaction)
    producer.send("orders", b"x")
    producer.abort_transaction(WAIT_S)
    assert "begin_transaction() before send()" in state_error(producer.send, "orders", b"x")
    assert kinds(daemon) == [Kind.TXN_INIT, Kind.TXN_END]


def test_producer_without_an_id_names_the_argument(daemon: FakeDaemon) -> None:
    with Producer(daemon.run_dir) as plain:
        for call in (plain.init_transactions, plain.begin_transaction, plain.commit_transaction):
            assert "transactional_id=" in state_error(call)


@pytest.mark.parametrize("wrong", ["", 7, "x" * 161, "\udc80"])
def test_wrong_id_is_refused_at_once(run_dir: Path, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="transactional_id"):
        Producer(run_dir, transactional_id=wrong)


def test_longest_id_is_taken(run_dir: Path) -> None:
    Producer(run_dir, transactional_id="x" * 160).close()


def test_commit_fails_when_a_record_failed_that_nobody_looked_at(ready: Producer, daemon: FakeDaemon) -> None:
    def fail(client: Client, submit: Submit) -> None:
        daemon.outcome(
            client,
            submit,
            kind=OutcomeKind.FAILED,
            code=10,
            persistence=Persistence.NOT_PERSISTED,
            text="Too large.",
        )

    daemon.deliver = fail
    ready.begin_transaction()
    failed = ready.send("orders", b"a")
    assert isinstance(failed.exception(WAIT_S), RecordTooLarge)
    with pytest.raises(
        TransactionError, match=r"must be aborted: Too large\. Call abort_transaction"
    ) as refused:
        ready.send("orders", b"b")
    assert refused.value.abortable
    with pytest.raises(TransactionError) as caught:
        ready.commit_transaction(WAIT_S)
    assert (
        caught.value.abortable
        and not caught.value.fatal
        and isinstance(caught.value.__cause__, RecordTooLarge)
    )
    assert Kind.TXN_END not in kinds(daemon), "no commit was asked for"
    ready.abort_transaction(WAIT_S)
    daemon.deliver = daemon.deliver_all
    ready.begin_transaction()
    ready.send("orders", b"c")
    ready.commit_transaction(WAIT_S)
    assert [each[2] for each in daemon.txn_frames if each[0] == Kind.TXN_END] == [False, True]


def test_record_that_send_refuses_makes_the_transaction_abortable(ready: Producer) -> None:
    ready.begin_transaction()
    with pytest.raises(RecordTooLarge):
        ready.send("orders", b"x" * (2 << 20))
    with pytest.raises(TransactionError) as caught:
        ready.commit_transaction(WAIT_S)
    assert caught.value.abortable
    ready.abort_transaction(WAIT_S)


def test_daemon_says_that_a_transaction_can_only_be_aborted(ready: Producer, daemon: FakeDaemon) -> None:
    ready.begin_transaction()
    ready.send("orders", b"x").result(WAIT_S)
    daemon.do(
        lambda: daemon.tell(
            daemon.only_client,
            [Kind.TXN, TxnPart.STATE, 1, 120, TxnEffect.ABORTABLE, "Topic orders was deleted."],
        )
    )

    def refused() -> SidecarError | None:
        try:
            ready.send("orders", b"y")
        except TransactionError as error:
            return error
        return None

    error = eventually(refused)
    assert "Topic orders was deleted" in str(error) and error.abortable
    ready.abort_transaction(WAIT_S)


def test_unsent_records_of_an_abort_fail_as_aborted(ready: Producer, daemon: FakeDaemon) -> None:
    def hold(client: Client, submit: Submit) -> bool:
        daemon.tell(client, [Kind.HOLD, submit.stream, submit.seq, "no room"])
        return False

    daemon.accept = hold
    ready.begin_transaction()
    first = ready.send("orders", b"a")
    eventually(lambda: daemon.received)
    second = ready.send("bills", b"b")
    ready.abort_transaction(WAIT_S)
    for delivery in (first, second):
        assert isinstance(delivery.exception(WAIT_S), TransactionAborted)
    assert ready.flush(WAIT_S) == 2


def test_timeout_is_retriable_and_the_same_call_gets_the_answer(ready: Producer, daemon: FakeDaemon) -> None:
    kept: list[Any] = []
    daemon.on_txn = lambda client, txn: kept.append(txn)
    ready.begin_transaction()
    ready.send("orders", b"x")
    with pytest.raises(TransactionTimeout) as caught:
        ready.commit_transaction(0.05)
    assert caught.value.retriable and not caught.value.abortable
    assert "commit_transaction() has no answer yet" in state_error(ready.abort_transaction)
    assert "commit_transaction() has no answer yet" in state_error(ready.begin_transaction)
    eventually(lambda: kept)
    daemon.do(lambda: daemon.answer_txn(daemon.only_client, kept[0]))
    ready.commit_transaction(WAIT_S)
    assert len(kept) == 1, "it was asked once"


def test_commit_is_repeated_after_a_reconnect_and_the_id_goes_first(
    ready: Producer, daemon: FakeDaemon
) -> None:
    daemon.on_txn = lambda client, txn: None
    ready.begin_transaction()
    ready.send("orders", b"x").result(WAIT_S)
    with pytest.raises(TransactionTimeout):
        ready.commit_transaction(0.05)
    eventually(lambda: kinds(daemon)[-1] == Kind.TXN_END)
    daemon.on_txn = daemon.answer_txn
    daemon.kill_worker()
    ready.commit_transaction(WAIT_S)
    assert [each[:4] for each in daemon.txn_frames[-2:]] == [
        [Kind.TXN_INIT, "copy-1", 60_000, True],
        [Kind.TXN_END, 1, True, [[1, 1]]],
    ]


def test_no_record_goes_before_the_id_is_known_to_the_next_worker(
    ready: Producer, daemon: FakeDaemon
) -> None:
    kept: list[Any] = []
    ready.begin_transaction()
    ready.send("orders", b"a").result(WAIT_S)
    daemon.on_txn = lambda client, txn: kept.append(txn)
    daemon.kill_worker()
    delivery = ready.send("orders", b"b")
    eventually(lambda: kept)
    daemon.do(lambda: None)  # whatever it had received by then is handled
    assert len(daemon.received) == 1
    daemon.on_txn = daemon.answer_txn
    daemon.do(lambda: daemon.answer_txn(daemon.only_client, kept[0]))
    delivery.result(WAIT_S)
    ready.commit_transaction(WAIT_S)


def test_fenced_producer_can_do_nothing_more(ready: Producer, daemon: FakeDaemon) -> None:
    ready.begin_transaction()
    ready.send("orders", b"x")
    daemon.on_txn = lambda client, txn: daemon.answer_txn(
        client, txn, code=90, effect=TxnEffect.FATAL, text="Another producer has the id copy-1."
    )
    for call in (ready.commit_transaction, ready.abort_transaction, ready.begin_transaction):
        with pytest.raises(ProducerFenced, match="Another producer has the id copy-1") as caught:
            call()
        assert caught.value.fatal and not caught.value.abortable
    with pytest.raises(ProducerFenced):
        ready.send("orders", b"y")


@pytest.mark.parametrize("is_begun", [True, False], ids=["begun before", "sent before"])
def test_no_record_is_sent_once_the_daemon_does_not_know_the_id(
    ready: Producer, daemon: FakeDaemon, is_begun: bool
) -> None:
    """The worker was replaced, and another client of its daemon has the id: a record would be a malformed frame."""
    kept: list[Any] = []
    daemon.on_txn = lambda client, txn: kept.append((client, txn))
    ready.begin_transaction()
    if not is_begun:
        ready.send("orders", b"accepted").result(WAIT_S)
    daemon.kill_worker()
    deliveries = [] if is_begun else [ready.send("orders", b"kept by the stub")]
    eventually(lambda: kept)
    before = len(daemon.received)
    daemon.do(
        lambda: daemon.answer_txn(*kept[0], code=90, effect=TxnEffect.FATAL, text="It is another producer's.")
    )
    session = ready._engine.outbox.io["thread"]._session
    eventually(lambda: session.transactional.fatal)
    try:
        deliveries.append(ready.send("orders", b"late"))
    except TransactionError as error:
        assert "another producer's" in str(error)
    for delivery in deliveries:
        assert isinstance(delivery.exception(WAIT_S), TransactionAborted)
    with pytest.raises(ProducerFenced):
        ready.commit_transaction(WAIT_S)
    assert len(daemon.received) == before


def test_init_that_is_refused_for_now_may_be_called_again(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.on_txn = lambda client, txn: daemon.answer_txn(
        client, txn, code=LocalCode.TXN_TOO_MANY, effect=TxnEffect.RETRIABLE, text="256 transactional ids."
    )
    with pytest.raises(TransactionError, match="256 transactional ids") as caught:
        producer.init_transactions(WAIT_S)
    assert caught.value.retriable
    daemon.on_txn = daemon.answer_txn
    producer.init_transactions(WAIT_S)


def test_daemon_without_transactions_is_named(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 1 << 20})
    try:
        with Producer(run_dir, transactional_id="x") as producer:
            with pytest.raises(TransactionError, match="upgrade it") as caught:
                producer.init_transactions(WAIT_S)
            assert caught.value.fatal
    finally:
        daemon.stop()


def test_offsets_travel_with_their_group(ready: Producer, daemon: FakeDaemon) -> None:
    ready.begin_transaction()
    ready.send_offsets_to_transaction({("in", 0): 17, ("in", 1): 3}, "workers", WAIT_S)
    ready.commit_transaction(WAIT_S)
    sent = next(each for each in daemon.txn_frames if each[0] == Kind.TXN_OFFSETS)
    assert sent[1:7] == [1, 1, "workers", -1, "", None]
    assert sent[7] == [["in", 0, 17, -1, ""], ["in", 1, 3, -1, ""]]


def test_second_thread_gets_a_state_error_and_the_first_completes(
    ready: Producer, daemon: FakeDaemon
) -> None:
    kept: list[Any] = []
    daemon.on_txn = lambda client, txn: kept.append(txn)
    ready.begin_transaction()
    ready.send("orders", b"x")
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(ready.commit_transaction(WAIT_S)))
    thread.start()
    eventually(lambda: kept)
    assert "commit_transaction() runs in another thread" in state_error(ready.abort_transaction)
    daemon.do(lambda: daemon.answer_txn(daemon.only_client, kept[0]))
    thread.join(WAIT_S)
    assert ended == [None]


def test_with_block_commits_or_aborts(producer: Producer, daemon: FakeDaemon) -> None:
    with producer.transaction():
        producer.send("orders", b"a")
    with pytest.raises(KeyError), producer.transaction():
        producer.send("orders", b"b")
        raise KeyError
    assert [each[2] for each in daemon.txn_frames if each[0] == Kind.TXN_END] == [True, False]


def test_close_aborts_an_open_transaction(ready: Producer, daemon: FakeDaemon) -> None:
    ready.begin_transaction()
    ready.send("orders", b"a")
    ready.close()
    assert daemon.txn_frames[-1][:3] == [Kind.TXN_END, 1, False]


def test_no_record_is_sent_outside_when_another_thread_commits_during_a_send(
    ready: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = ready._engine.outbox
    assert isinstance(outbox, TransactionalOutbox)
    check = outbox._check_transaction

    def then_another_thread_commits() -> None:
        check()
        monkeypatch.undo()
        thread = threading.Thread(target=lambda: ready.commit_transaction(WAIT_S))
        thread.start()
        thread.join(WAIT_S)

    ready.begin_transaction()
    monkeypatch.setattr(outbox, "_check_transaction", then_another_thread_commits)
    assert "begin_transaction() before send()" in state_error(ready.send, "orders", b"late")
    assert not daemon.received
    with ready.transaction():
        ready.send("orders", b"next")
    assert [each.transaction for each in daemon.received] == [2]


def test_arrow_rows_join_the_transaction_that_another_thread_has_begun_meanwhile(
    ready: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    outbox = ready._engine.outbox
    publish = outbox.publish
    calls = 0

    def after_the_next_has_begun(*arguments: Any) -> bool:
        nonlocal calls
        calls += 1
        assert calls < 10, "it tries for ever"
        if calls == 1:
            ready.commit_transaction(WAIT_S)
            ready.begin_transaction()
        return publish(*arguments)

    ready.begin_transaction()
    ready.send("orders", b"a").result(WAIT_S)
    monkeypatch.setattr(outbox, "publish", after_the_next_has_begun)
    ready.send_arrow("orders", pa.table({"value": [b"b"]}))
    ready.commit_transaction(WAIT_S)
    assert [each.transaction for each in daemon.received] == [1, 2]


@pytest.mark.parametrize("is_between", [False, True], ids=["before a piece", "between check and piece"])
@pytest.mark.parametrize("is_arrow", [False, True], ids=["rows", "arrow"])
def test_records_of_one_call_are_of_one_transaction(
    ready: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, *, is_arrow: bool, is_between: bool
) -> None:
    """The call queues a submission at a time, and another thread commits and begins after the first one."""
    pa = pytest.importorskip("pyarrow")
    outbox = ready._engine.outbox
    check = BulkCall.check_transaction

    def then_another_thread_begins_the_next(call: BulkCall, transaction: Any) -> None:
        if is_between:
            check(call, transaction)
        if call._queued_parts():
            monkeypatch.undo()
            ready.commit_transaction(WAIT_S)
            ready.begin_transaction()
        if not is_between:
            check(call, outbox.transaction)

    monkeypatch.setattr(BulkCall, "check_transaction", then_another_thread_begins_the_next)
    ready.begin_transaction()
    values = [b"x" * 100_000] * 40
    with pytest.raises(TransactionStateError, match="Another thread has ended the transaction") as caught:
        if is_arrow:
            ready.send_arrow("orders", pa.table({"value": values}))
        else:
            ready.send_many("orders", [(None, value) for value in values])
    assert caught.value.queued is not None
    if is_between:
        with pytest.raises(TransactionError) as refused:
            ready.commit_transaction(WAIT_S)
        assert refused.value.abortable
        ready.abort_transaction(WAIT_S)
    else:
        ready.commit_transaction(WAIT_S)
        assert {each.transaction for each in daemon.received} == {1}


def test_close_ends_a_call_that_waits_in_another_thread(ready: Producer, daemon: FakeDaemon) -> None:
    kept: list[Any] = []
    daemon.on_txn = lambda client, txn: kept.append(txn)
    ready.begin_transaction()
    caught: list[SidecarError] = []

    def offsets() -> None:
        try:
            ready.send_offsets_to_transaction({("in", 0): 1}, "group", WAIT_S * 100)
        except SidecarError as error:
            caught.append(error)

    thread = threading.Thread(target=offsets)
    thread.start()
    eventually(lambda: kept)
    ready.close(0.1)
    thread.join(WAIT_S)
    assert isinstance(caught[0], ProducerClosed)


def test_close_waits_for_the_commit_that_was_asked_for(ready: Producer, daemon: FakeDaemon) -> None:
    kept: list[Any] = []
    daemon.on_txn = lambda client, txn: kept.append(txn)
    ready.begin_transaction()
    with pytest.raises(TransactionTimeout):
        ready.commit_transaction(0.01)
    thread = threading.Thread(target=ready.close)
    thread.start()
    eventually(lambda: kept)
    daemon.do(lambda: None)
    assert not daemon.byes
    daemon.do(lambda: daemon.answer_txn(daemon.only_client, kept[0]))
    thread.join(WAIT_S)
    eventually(lambda: daemon.byes == [False])


def test_result_of_a_commit_that_another_thread_had_first_is_given_to_both(
    ready: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = ready._engine.transactions
    release = transactions.release

    def then_another_thread_goes_on() -> None:
        release()
        monkeypatch.undo()

        def go_on() -> None:
            ready.commit_transaction(WAIT_S)
            ready.begin_transaction()

        thread = threading.Thread(target=go_on)
        thread.start()
        thread.join(WAIT_S)

    ready.begin_transaction()
    monkeypatch.setattr(transactions, "release", then_another_thread_goes_on)
    ready.commit_transaction(WAIT_S)
    ready.commit_transaction(WAIT_S)
    assert [each[1:3] for each in daemon.txn_frames if each[0] == Kind.TXN_END] == [[1, True], [2, True]]


def test_no_daemon_is_named_after_connect_timeout_ms(run_dir: Path) -> None:
    with Producer(run_dir, transactional_id="x", connect_timeout_ms=50) as producer:
        for _ in range(2):
            with pytest.raises(DaemonUnreachable, match=r"waited 0\.05 s") as caught:
                producer.init_transactions(WAIT_S * 100)
            assert caught.value.retriable
        daemon = FakeDaemon(run_dir)
        try:
            eventually(lambda: _is_initialized(producer))
        finally:
            producer.close()
            daemon.stop()


def _is_initialized(producer: Producer) -> bool:
    try:
        producer.init_transactions(WAIT_S)
    except DaemonUnreachable:
        return False
    return True


def test_with_block_initializes_after_an_init_that_found_no_daemon(run_dir: Path) -> None:
    with Producer(run_dir, transactional_id="x", connect_timeout_ms=10) as producer:
        for _ in range(2):
            with pytest.raises(DaemonUnreachable), producer.transaction():
                raise AssertionError("the block does not begin")


def test_second_init_says_that_it_was_done(ready: Producer) -> None:
    assert "is done once" in state_error(ready.init_transactions)
    ready.begin_transaction()
    assert "is done once" in state_error(ready.init_transactions)


def test_calls_of_a_failed_transaction_name_the_first_cause(ready: Producer) -> None:
    for call in (
        ready.begin_transaction,
        ready.commit_transaction,
        lambda: ready.send_offsets_to_transaction({("in", 0): 1}, "group"),
    ):
        ready.begin_transaction()
        with pytest.raises(RecordTooLarge):
            ready.send("orders", b"x" * (2 << 20))
        for _ in range(2):
            with pytest.raises(
                TransactionError, match="must be aborted: The message for topic orders"
            ) as caught:
                call()
            assert caught.value.abortable
        ready.abort_transaction(WAIT_S)


def test_send_before_a_commit_has_its_answer_names_the_commit(ready: Producer, daemon: FakeDaemon) -> None:
    kept: list[Any] = []
    daemon.on_txn = lambda client, txn: kept.append(txn)
    ready.begin_transaction()
    with pytest.raises(TransactionTimeout):
        ready.commit_transaction(0.01)
    assert "commit_transaction() has no answer yet" in state_error(ready.send, "orders", b"x")
    eventually(lambda: kept)
    daemon.do(lambda: daemon.answer_txn(daemon.only_client, kept[0]))
    ready.commit_transaction(WAIT_S)
    assert "begin_transaction() before send()" in state_error(ready.send, "orders", b"x")


@pytest.mark.parametrize("wrong", [float("inf"), 1 << 31, 0.5, 0])
def test_transaction_timeout_that_kafka_cannot_hold_is_refused(run_dir: Path, wrong: float) -> None:
    with pytest.raises(ValueError, match="transaction_timeout_ms must be"):
        Producer(run_dir, transactional_id="x", transaction_timeout_ms=wrong)


@pytest.mark.parametrize("least_or_most", [1, (1 << 31) - 1])
def test_transaction_timeout_at_its_bounds_is_taken(run_dir: Path, least_or_most: int) -> None:
    Producer(run_dir, transactional_id="x", transaction_timeout_ms=least_or_most).close()


def test_forked_child_leaves_the_transaction_to_its_parent(
    ready: Producer, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(daemon.txn_frames)
    with ready.transaction():
        ready.send("orders", b"a").result(WAIT_S)
        claims = ready._engine.transactions._claims
        claims["call"] = ("commit_transaction()", "of another thread")
        child = os.fork()
        if not child:
            says_why = "forked child" in state_error(ready.abort_transaction)
            ready.close()
            os._exit(0 if says_why and "open at close()" not in caplog.text else 1)
        claims.clear()
        assert os.waitpid(child, 0)[1] == 0
    assert [each[:3] for each in daemon.txn_frames[before:]] == [[Kind.TXN_END, 1, True]]


def test_record_that_finds_no_room_because_the_daemon_is_away_makes_the_transaction_abortable(
    run_dir: Path,
) -> None:
    daemon = FakeDaemon(run_dir)
    with Producer(run_dir, transactional_id="x", max_block_ms=50) as producer:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        daemon.stop()
        producer._engine.outbox.buffer_bytes = 0
        eventually(lambda: producer._engine.outbox.waiters.reasons.last_word)
        with pytest.raises(DaemonUnreachable):
            producer.send("orders", b"x")
        with pytest.raises(TransactionError, match="must be aborted") as caught:
            producer.commit_transaction(WAIT_S)
        assert caught.value.abortable
        producer.close(0)


@pytest.mark.parametrize("is_commit", [True, False])
def test_end_that_is_refused_because_the_transaction_has_ended_lets_the_next_one_begin(
    ready: Producer, daemon: FakeDaemon, is_commit: bool
) -> None:
    ended = "aborted" if is_commit else "committed"

    def refuse(client: Client, txn: list[Any]) -> None:
        if txn[2] is is_commit:
            text = f"Transaction {txn[1]} has been {ended}."
            daemon.answer_txn(client, txn, code=LocalCode.TXN_WRONG_STATE, text=text)
        else:
            daemon.answer_txn(client, txn)

    daemon.on_txn = refuse
    ready.begin_transaction()
    with pytest.raises(TransactionStateError, match=f"has been {ended}"):
        ready.commit_transaction(WAIT_S) if is_commit else ready.abort_transaction(WAIT_S)
    if is_commit:
        ready.abort_transaction(WAIT_S)
    daemon.on_txn = daemon.answer_txn
    with ready.transaction():
        ready.send("orders", b"next")
    assert daemon.txn_frames[-1][:3] == [Kind.TXN_END, 2, True]


def test_end_that_is_refused_for_now_may_be_called_again(ready: Producer, daemon: FakeDaemon) -> None:
    daemon.on_txn = lambda client, txn: daemon.answer_txn(
        client, txn, code=LocalCode.TXN_WRONG_STATE, effect=TxnEffect.RETRIABLE, text="A commit is not over."
    )
    ready.begin_transaction()
    with pytest.raises(TransactionStateError, match="not over") as caught:
        ready.abort_transaction(WAIT_S)
    assert caught.value.retriable
    daemon.on_txn = daemon.answer_txn
    ready.abort_transaction(WAIT_S)
    ready.begin_transaction()
    ready.abort_transaction(WAIT_S)
