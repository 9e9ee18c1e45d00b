"""Goal: a stage seals with all of its records or not at all, whatever happens to connection, process and threads; and
include() makes a transaction of sealed ones.
"""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_stub import Producer
from client_stub.contract.wire import STAGE_BIT, Kind, LocalCode, StagePart, TxnEffect, TxnPart
from client_stub.engine.staging_clients import IDLE_MAX
from client_stub.errors import (
    BufferExhausted,
    ProducerClosed,
    RecordTooLarge,
    TransactionError,
    TransactionStateError,
    TransactionTimeout,
)
from tests.forked import in_child
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import Client, FakeDaemon, Submit

WAIT_S = 30.0


@pytest.fixture
def daemon(daemon: FakeDaemon) -> FakeDaemon:
    daemon.deliver = None  # staged records have no outcome
    return daemon


@pytest.fixture
def producer(daemon: FakeDaemon) -> Iterator[Producer]:
    with Producer(daemon.run_dir) as producer:
        yield producer


@pytest.fixture
def including(daemon: FakeDaemon) -> Iterator[Producer]:
    with Producer(daemon.run_dir, transactional_id="copy-1") as producer:
        producer.init_transactions(WAIT_S)
        yield producer


def kinds(daemon: FakeDaemon) -> list[Kind]:
    return [Kind(each[0]) for each in daemon.stage_frames]


def test_stage_is_not_pickled(producer: Producer) -> None:
    """As an argument of a task of Celery or Ray: its token is."""
    with pytest.raises(TypeError, match="Stage"):
        pickle.dumps(producer.stage("copy-1", 1))


# --- from the first record to the token ---------------------------------------------------------------------


def test_seal_returns_the_token_once_all_records_are_sent(producer: Producer, daemon: FakeDaemon) -> None:
    with producer.stage("copy-1", number=7, owner="run-a") as stage:
        stage.send("orders", b"a", key=b"k", headers=[("h", b"1")], partition=0, timestamp_ms=5)
        assert stage.send_many("bills", [(None, b"b")] * 3) == 3
        assert stage.seal(WAIT_S) == b"token-1"
        assert stage.seal(WAIT_S) == b"token-1", "the same call again"
    assert daemon.hellos[0][8] == "copy-1"
    opened, sealed = daemon.stage_frames
    assert opened == [Kind.STAGE_OPEN, 1, 7, "run-a", "copy-1"]
    assert sealed[:3] == [Kind.STAGE_SEAL, 1, 4]
    assert sorted(sealed[3]) == [[1, 1], [2, 1]]
    assert {each.transaction for each in daemon.received} == {STAGE_BIT | 1}
    assert daemon.txn_frames == [], "staging is no transaction and fences nobody"


def test_empty_stage_seals(producer: Producer, daemon: FakeDaemon) -> None:
    assert producer.stage("copy-1", 0).seal(WAIT_S) == b"token-1"
    assert kinds(daemon) == [Kind.STAGE_OPEN, Kind.STAGE_SEAL]


def test_stages_one_after_the_other_share_a_client(producer: Producer, daemon: FakeDaemon) -> None:
    for number in range(1, 4):
        with producer.stage("copy-1", number) as stage:
            stage.send("orders", b"x")
            assert stage.seal(WAIT_S) == b"token-%d" % number
    assert len(daemon.hellos) == 1
    assert [each.transaction ^ STAGE_BIT for each in daemon.received] == [1, 2, 3]
    assert [each[2] for each in daemon.stage_frames if each[0] == Kind.STAGE_SEAL] == [1, 1, 1]


def test_stages_open_at_once_have_a_client_each(producer: Producer, daemon: FakeDaemon) -> None:
    first, second = producer.stage("copy-1", 1), producer.stage("copy-1", 2)
    other = producer.stage("copy-2", 1)
    for stage in (first, second, other):
        stage.send("orders", b"x")
    assert len({stage.seal(WAIT_S) for stage in (second, first, other)}) == 3
    assert sorted(each[8] for each in daemon.hellos) == ["copy-1", "copy-1", "copy-2"]
    assert len({each.client_id for each in daemon.received}) == 3


def test_only_some_clients_are_kept_for_later_stages(producer: Producer, daemon: FakeDaemon) -> None:
    for _ in range(2):
        stages = [producer.stage("copy-1", number) for number in range(IDLE_MAX + 1)]
        assert len({stage.seal(WAIT_S) for stage in stages}) == IDLE_MAX + 1
    eventually(lambda: len(daemon.byes) == 2)
    assert len(daemon.hellos) == IDLE_MAX + 2


def test_clients_of_many_transactional_ids_share_the_limit(producer: Producer, daemon: FakeDaemon) -> None:
    """An id for each job leaves no thread and connection for each."""
    for number in range(IDLE_MAX + 3):
        producer.stage(f"job-{number}", 1).seal(WAIT_S)
    eventually(lambda: len(daemon.byes) == 3)
    producer.stage("job-3", 2).seal(WAIT_S)
    assert len(daemon.hellos) == IDLE_MAX + 3, "the ones that were used last are kept"
    producer.stage("job-2", 2).seal(WAIT_S)
    assert len(daemon.hellos) == IDLE_MAX + 4


def test_plain_records_of_the_producer_join_no_stage(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.deliver = lambda client, submit: None if submit.transaction else daemon.deliver_all(client, submit)
    with producer.stage("copy-1", 1) as stage:
        stage.send("orders", b"staged")
        assert producer.send("orders", b"plain").result(WAIT_S).offset == 0
        stage.seal(WAIT_S)
    found = {submit.transaction: [value for _, value in submit.records] for submit in daemon.received}
    assert found == {0: [b"plain"], STAGE_BIT | 1: [b"staged"]}


def test_serializers_are_the_producers(daemon: FakeDaemon) -> None:
    with Producer(daemon.run_dir, value_serializer=str.encode) as producer:
        stage = producer.stage("copy-1", 1)
        stage.send("orders", "a")
        stage.send_many("orders", [(None, "b")])
        stage.seal(WAIT_S)
    assert [value for each in daemon.received for _, value in each.records] == [b"a", b"b"]


# --- what a stage refuses -----------------------------------------------------------------------------------


def test_send_after_seal_is_refused(producer: Producer, daemon: FakeDaemon) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    stage.seal(WAIT_S)
    other = producer.stage("copy-1", 4)  # it has the same client
    other.send("orders", b"y")
    for send in (lambda: stage.send("orders", b"z"), lambda: stage.send_many("orders", [(None, b"z")])):
        with pytest.raises(TransactionStateError, match=r"send.. of stage 3 of copy-1 .* it is sealed"):
            send()
    other.seal(WAIT_S)
    assert [value for each in daemon.received for _, value in each.records] == [b"x", b"y"]


def test_dropped_stage_takes_nothing(producer: Producer, daemon: FakeDaemon) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    stage.drop(WAIT_S)
    stage.drop(WAIT_S)
    with pytest.raises(TransactionStateError, match="it was dropped"):
        stage.send("orders", b"x")
    with pytest.raises(TransactionStateError, match="it was dropped"):
        stage.seal(WAIT_S)
    assert kinds(daemon).count(Kind.STAGE_DROP) == 1
    assert producer.stage("copy-1", 4).seal(WAIT_S), "its client is used again"
    assert len(daemon.hellos) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((7, 1), TypeError, "transactional_id must be str"),
        (("", 1), ValueError, "transactional_id is empty"),
        (("x" * 161, 1), ValueError, "more than 160 bytes"),
        (("a", "1"), TypeError, "number must be int"),
        (("a", True), TypeError, "number must be int"),
        (("a", -1), ValueError, "number must be from 0"),
        (("a", 1 << 64), ValueError, "number must be from 0"),
        (("a", 1, None), TypeError, "owner must be str"),
        (("a", 1, "o" * 65), ValueError, "more than 64 bytes"),
    ],
)
def test_wrong_arguments_of_a_stage(
    producer: Producer, arguments: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        producer.stage(*arguments)


def test_longest_arguments_of_a_stage(producer: Producer, daemon: FakeDaemon) -> None:
    producer.stage("x" * 160, (1 << 64) - 1, "o" * 64).seal(WAIT_S)
    assert daemon.stage_frames[0][2:] == [(1 << 64) - 1, "o" * 64, "x" * 160]


def test_record_that_the_call_refused_loses_the_stage(producer: Producer, daemon: FakeDaemon) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    with pytest.raises(RecordTooLarge):
        stage.send("orders", bytes(2 << 20))
    for call in (lambda: stage.send("orders", b"y"), lambda: stage.seal(WAIT_S)):
        with pytest.raises(
            TransactionError, match=r"Stage 3 of copy-1 is lost: .*max\.request\.size"
        ) as caught:
            call()
        assert caught.value.abortable
    stage.drop(WAIT_S)
    assert Kind.STAGE_SEAL not in kinds(daemon)


def test_daemons_refusal_reaches_send_and_seal_by_name(producer: Producer, daemon: FakeDaemon) -> None:
    def full(client: Client, submit: Submit) -> None:
        text = 'Stage 3 of "copy-1" has no more space (pool.staged_share).'
        daemon.tell(
            client, [Kind.STAGE, StagePart.STATE, 1, LocalCode.STAGE_FULL, TxnEffect.ABORTABLE, text, None]
        )

    daemon.deliver = full
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    eventually(lambda: stage._life.stage.cause is not None)
    for call in (lambda: stage.send("orders", b"y"), lambda: stage.seal(WAIT_S)):
        with pytest.raises(TransactionError, match=r"pool\.staged_share") as caught:
            call()
        assert caught.value.name == "STAGED_SHARE_FULL" and caught.value.abortable
        assert str(caught.value).count("Stage 3 of") == 1, "the daemon's sentence names it"
    stage.drop(WAIT_S)
    daemon.deliver = None
    again = producer.stage("copy-1", 3)
    again.send("orders", b"x")
    assert again.seal(WAIT_S) == b"token-2"


@pytest.mark.parametrize("effect", [TxnEffect.NONE, TxnEffect.ABORTABLE])
def test_refused_seal_loses_the_stage(producer: Producer, daemon: FakeDaemon, effect: TxnEffect) -> None:
    daemon.on_stage = lambda client, stage: (
        daemon.answer_stage(
            client, stage, code=LocalCode.STAGE_UNKNOWN, effect=effect, text="A record is missing."
        )
        if stage[0] == Kind.STAGE_SEAL
        else daemon.answer_stage(client, stage)
    )
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    for call in (lambda: stage.seal(WAIT_S), lambda: stage.seal(WAIT_S), lambda: stage.send("orders", b"y")):
        with pytest.raises(TransactionError, match="A record is missing"):
            call()
    stage.drop(WAIT_S)


def test_record_that_the_worker_gave_back_is_not_awaited_by_the_next_seal(
    producer: Producer, daemon: FakeDaemon
) -> None:
    """The stage of the first record got no lane at its worker."""

    def refuses(client: Client, stage: list[Any]) -> None:
        if stage[0] == Kind.STAGE_DROP:
            daemon.answer_stage(client, stage)
            return
        what = StagePart.STATE if stage[0] == Kind.STAGE_OPEN else StagePart.SEAL
        daemon.tell(client, [Kind.STAGE, what, stage[1], code, TxnEffect.RETRIABLE, "Full.", None])

    def gives_back(client: Client, submit: Submit) -> bool:
        daemon.tell(client, [Kind.REFUSED, "TOPIC_TABLE_FULL", "No lane.", submit.stream])
        return False

    code = LocalCode.TXN_TOO_MANY
    daemon.on_stage, daemon.accept = refuses, gives_back
    stage = producer.stage("copy-1", 1)
    stage.send("orders", b"x")
    eventually(lambda: stage._life.stage.cause is not None and daemon.received)
    with pytest.raises(TransactionError, match="Full"):
        stage.seal(WAIT_S)
    stage.drop(WAIT_S)
    daemon.on_stage, daemon.accept = daemon.answer_stage, lambda client, submit: True
    following = producer.stage("copy-1", 2)
    following.send("bills", b"y")
    following.seal(WAIT_S)
    assert len(daemon.hellos) == 1
    assert daemon.stage_frames[-1][2:] == [1, [[2, 1]]]


def test_seal_that_may_succeed_later_is_asked_again(producer: Producer, daemon: FakeDaemon) -> None:
    def busy(client: Client, stage: list[Any]) -> None:
        if stage[0] == Kind.STAGE_SEAL:
            daemon.on_stage = daemon.answer_stage
            code, effect = LocalCode.TXN_TOO_MANY, TxnEffect.RETRIABLE
            daemon.answer_stage(client, stage, code=code, effect=effect, text="Busy.")

    daemon.on_stage = busy
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    with pytest.raises(TransactionError, match="Busy") as caught:
        stage.seal(WAIT_S)
    assert caught.value.retriable
    assert stage.seal(WAIT_S) == b"token-1"


def test_refusal_wakes_a_send_that_waits_for_room(daemon: FakeDaemon) -> None:
    daemon.accept = lambda client, submit: False
    with Producer(daemon.run_dir, max_block_ms=60_000) as producer:
        stage = producer.stage("copy-1", 3)
        failed: list[Exception] = []

        def fill() -> None:
            try:
                while True:
                    stage.send_many("orders", [(None, bytes(100_000))] * 10)
            except TransactionError as error:
                failed.append(error)

        thread = threading.Thread(target=fill)
        thread.start()
        eventually(lambda: stage._engine.outbox.buffered_bytes >= stage._engine.outbox.buffer_bytes)
        refusal = [Kind.STAGE, StagePart.STATE, 1, LocalCode.STAGE_FULL, TxnEffect.ABORTABLE, "full", None]
        daemon.do(lambda: daemon.tell(daemon.only_client, refusal))
        thread.join(WAIT_S)
        assert not thread.is_alive() and failed
        assert stage._engine.outbox.buffered_bytes < stage._engine.outbox.buffer_bytes


def test_old_daemon_is_named(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 1 << 20, "transactions": 1})
    try:
        with Producer(run_dir) as producer, pytest.raises(TransactionError, match="older than stages"):
            producer.stage("copy-1", 1).seal(WAIT_S)
        with Producer(run_dir, transactional_id="copy-1") as producer:
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
            with pytest.raises(TransactionError, match="older than stages"):
                producer.include([b"t"], WAIT_S)
            producer.abort_transaction(WAIT_S)
            with pytest.raises(TransactionError, match="older than stages"):
                producer.drop_stages([b"t"], timeout=WAIT_S)
    finally:
        daemon.stop()


# --- reconnects, timeouts, threads --------------------------------------------------------------------------


def test_open_stage_is_said_again_after_a_reconnect(producer: Producer, daemon: FakeDaemon) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    eventually(lambda: daemon.received)
    daemon.kill_worker()
    eventually(lambda: kinds(daemon) == [Kind.STAGE_OPEN] * 2)
    stage.send("orders", b"y")
    assert stage.seal(WAIT_S) == b"token-1"
    assert daemon.stage_frames[-1][:3] == [Kind.STAGE_SEAL, 1, 2]


def test_seal_is_asked_again_after_a_reconnect(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.on_stage = lambda client, stage: None
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    with pytest.raises(TransactionTimeout) as caught:
        stage.seal(0.05)
    assert caught.value.retriable
    eventually(lambda: Kind.STAGE_SEAL in kinds(daemon))
    daemon.on_stage = daemon.answer_stage
    daemon.kill_worker()
    assert stage.seal(WAIT_S) == b"token-1"
    assert kinds(daemon) == [Kind.STAGE_OPEN, Kind.STAGE_SEAL] * 2


def test_sealed_stage_is_not_said_again(producer: Producer, daemon: FakeDaemon) -> None:
    producer.stage("copy-1", 3).seal(WAIT_S)
    daemon.kill_worker()
    producer.stage("copy-1", 4).seal(WAIT_S)
    assert [each[1] for each in daemon.stage_frames] == [1, 1, 2, 2]


def test_forgotten_client_says_how_many_records_its_stage_had(producer: Producer, daemon: FakeDaemon) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    eventually(lambda: daemon.received and not stage._engine.outbox.pending)
    daemon.kill_worker(forget=True)
    eventually(lambda: len(daemon.attaches) == 2)
    stage.send("orders", b"y")
    stage.seal(WAIT_S)
    assert daemon.stage_frames[-1][2] == 2, "one more than this daemon has: it can refuse the seal"


def test_seal_of_two_threads_returns_one_token(producer: Producer, daemon: FakeDaemon) -> None:
    held: list[tuple[Client, list[Any]]] = []
    daemon.on_stage = lambda client, stage: held.append((client, stage))
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    tokens: list[bytes] = []
    threads = [threading.Thread(target=lambda: tokens.append(stage.seal(WAIT_S))) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(held) == 2)  # STAGE_OPEN and one STAGE_SEAL
    daemon.do(lambda: daemon.answer_stage(*held[1]))
    for thread in threads:
        thread.join(WAIT_S)
    assert tokens == [b"token-1"] * 2
    assert kinds(daemon).count(Kind.STAGE_SEAL) == 1


def test_threads_share_a_stage(producer: Producer, daemon: FakeDaemon) -> None:
    stage = producer.stage("copy-1", 3)
    threads = [
        threading.Thread(target=lambda: [stage.send("orders", b"x") for _ in range(500)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    stage.seal(WAIT_S)
    assert daemon.stage_frames[-1][2] == 2_000 == sum(each.count for each in daemon.received)


def test_client_in_use_by_another_thread_is_not_used_again(producer: Producer, daemon: FakeDaemon) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    stage._enter()  # a thread that has seen the open stage, and has not queued its record yet
    stage.seal(WAIT_S)
    producer.stage("copy-1", 4).seal(WAIT_S)
    assert len(daemon.hellos) == 2


def test_drop_takes_the_place_of_a_seal_without_an_answer(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.on_stage = lambda client, stage: (
        daemon.answer_stage(client, stage) if stage[0] == Kind.STAGE_DROP else None
    )
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    with pytest.raises(TransactionTimeout):
        stage.seal(0.05)
    stage.drop(WAIT_S)
    assert kinds(daemon)[-1] == Kind.STAGE_DROP


def test_drop_that_crosses_the_answer_to_the_seal_ends(producer: Producer, daemon: FakeDaemon) -> None:
    asked: list[tuple[Client, list[Any]]] = []

    def on_stage(client: Client, stage: list[Any]) -> None:
        if stage[0] == Kind.STAGE_SEAL:
            asked.append((client, stage))
        elif stage[0] == Kind.STAGE_DROP:
            daemon.answer_stage(*asked[0])  # it was sent before the worker has read of the drop
            daemon.answer_stage(client, stage)

    daemon.on_stage = on_stage
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    with pytest.raises(TransactionTimeout):
        stage.seal(0.05)
    stage.drop(WAIT_S)
    daemon.on_stage = daemon.answer_stage
    assert producer.stage("copy-1", 4).seal(WAIT_S) == b"token-2"
    assert len(daemon.hellos) == 1, "its client is used again"


def test_seal_that_is_interrupted_at_its_first_step_takes_no_more_records(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")

    def ctrl_c(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage._life._outbox, "leave", ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            stage.seal(WAIT_S)
    stage.send("orders", b"y")
    assert stage.seal(WAIT_S) == b"token-1"
    assert stage._life._outbox.transaction is None
    assert daemon.stage_frames[-1][2] == 2


def test_interrupted_seal_is_made_again(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")

    def ctrl_c(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage._life._outbox.waiters, "wait_until", ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            stage.seal(WAIT_S)
    assert stage.seal(WAIT_S) == b"token-1"
    assert kinds(daemon).count(Kind.STAGE_SEAL) == 1


# --- the end of a stage that was not sealed -----------------------------------------------------------------


def test_exception_in_the_block_drops_the_stage(producer: Producer, daemon: FakeDaemon) -> None:
    with pytest.raises(ZeroDivisionError), producer.stage("copy-1", 3) as stage:
        stage.send("orders", b"x")
        eventually(lambda: daemon.received)
        _ = 1 // 0
    assert kinds(daemon) == [Kind.STAGE_OPEN, Kind.STAGE_DROP]


def test_block_without_a_seal_drops_the_stage(producer: Producer, daemon: FakeDaemon) -> None:
    with producer.stage("copy-1", 3) as stage:
        stage.send("orders", b"x")
    assert kinds(daemon)[-1] == Kind.STAGE_DROP


def test_exception_after_the_seal_drops_it_by_its_token(producer: Producer, daemon: FakeDaemon) -> None:
    with pytest.raises(ZeroDivisionError), producer.stage("copy-1", 3) as stage:
        stage.send("orders", b"x")
        stage.seal(WAIT_S)
        _ = 1 // 0
    assert daemon.stage_frames[-1] == [Kind.STAGES_DROP, 1, "copy-1", None, [b"token-1"]]


def test_drop_of_a_sealed_stage_leaves_the_next_one_of_its_client_alone(
    producer: Producer, daemon: FakeDaemon
) -> None:
    first = producer.stage("copy-1", 1)
    first.send("orders", b"x")
    first.seal(WAIT_S)
    with producer.stage("copy-1", 2) as second:
        second.send("orders", b"y")
        first.drop(WAIT_S)
        second.send("orders", b"z")
        assert second.seal(WAIT_S) == b"token-2"
    assert len(daemon.hellos) == 1
    assert daemon.stage_frames[-1][2] == 2


def test_close_drops_open_stages_and_leaves_sealed_ones(daemon: FakeDaemon) -> None:
    producer = Producer(daemon.run_dir)
    producer.stage("copy-1", 2).seal(WAIT_S)
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    idle = producer.stage("copy-2", 1)
    idle.seal(WAIT_S)
    producer.close()
    assert sorted(eventually(lambda: len(daemon.byes) == 2 and daemon.byes)) == [False, True]
    for call in (lambda: stage.send("orders", b"x"), lambda: stage.seal(WAIT_S)):
        with pytest.raises(ProducerClosed):
            call()
    with pytest.raises(ProducerClosed):
        producer.stage("copy-1", 4)
    assert idle.seal(WAIT_S) == b"token-3", "its token is known"


def test_stage_that_nobody_holds_leaves(producer: Producer, daemon: FakeDaemon) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    eventually(lambda: daemon.received)
    del stage
    gc.collect()
    eventually(lambda: daemon.byes)
    assert kinds(daemon) == [Kind.STAGE_OPEN]


def test_process_that_ends_with_an_open_stage(daemon: FakeDaemon) -> None:
    script = f"""
        from client_stub import Producer
        stage = Producer({str(daemon.run_dir)!r}).stage("copy-1", 3)
        stage.send("orders", b"x")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert done.stderr == ""
    assert kinds(daemon) == [Kind.STAGE_OPEN], "it was not sealed by accident"
    assert len(daemon.byes) == 1


# --- forked children ------------------------------------------------------------------------------------------


def test_forked_child_cannot_touch_its_parents_stage(producer: Producer, daemon: FakeDaemon) -> None:
    stage = producer.stage("copy-1", 3)
    stage.send("orders", b"x")
    assert "the stage is its parent's" in in_child(lambda: stage.send("orders", b"y") or "sent")
    assert "the stage is its parent's" in in_child(lambda: str(stage.seal(WAIT_S)))

    def leaves_the_block() -> str:
        with stage:
            pass
        return "left"

    assert in_child(leaves_the_block) == "left"
    assert stage.seal(WAIT_S) == b"token-1"
    assert daemon.stage_frames[-1][2] == 1
    assert Kind.STAGE_DROP not in kinds(daemon)


def test_forked_child_opens_stages_of_its_own(producer: Producer, daemon: FakeDaemon) -> None:
    producer.stage("copy-1", 1).seal(WAIT_S)  # its client is free, and the child has a copy

    def stages() -> str:
        with producer.stage("copy-1", 2) as mine:
            mine.send("orders", b"y")
            return mine.seal(WAIT_S).decode()

    assert in_child(stages) == "token-2"
    assert producer.stage("copy-1", 3).seal(WAIT_S) == b"token-2"
    assert len(daemon.clients) == 2


# --- include and drop_stages ----------------------------------------------------------------------------------


def test_include_names_the_tokens_and_the_commit_tells_the_offsets(
    including: Producer, daemon: FakeDaemon
) -> None:
    daemon.on_txn = lambda client, txn: daemon.answer_txn(
        client, txn, value=[["orders", 0, 5, 30, 20]] if txn[0] == Kind.TXN_END else None
    )
    including.begin_transaction()
    inclusion = including.include([b"a", b"b"], WAIT_S)
    assert (inclusion.rows, inclusion.bytes, inclusion.partitions) == (20, 200, {})
    including.commit_transaction(WAIT_S)
    assert inclusion.partitions == {("orders", 0): (5, 30, 20)}
    assert daemon.txn_frames[1] == [Kind.TXN_INCLUDE, 1, 1, [b"a", b"b"]]


def test_offsets_that_the_daemon_does_not_know(including: Producer, daemon: FakeDaemon) -> None:
    including.begin_transaction()
    inclusion = including.include([b"a"], WAIT_S)
    including.commit_transaction(WAIT_S)
    assert inclusion.partitions == {}


def test_include_of_nothing(including: Producer, daemon: FakeDaemon) -> None:
    with including.transaction():
        assert including.include([], WAIT_S).rows == 0
    assert Kind.TXN_INCLUDE not in {each[0] for each in daemon.txn_frames}


def test_include_outside_of_a_transaction(including: Producer) -> None:
    with pytest.raises(TransactionStateError, match="no transaction is open"):
        including.include([b"a"], WAIT_S)


@pytest.mark.parametrize("tokens", [[b"a"], [b"b"]])
def test_second_include_in_a_transaction(
    including: Producer, daemon: FakeDaemon, tokens: list[bytes]
) -> None:
    including.begin_transaction()
    including.include([b"a"], WAIT_S)
    with pytest.raises(TransactionStateError, match="A transaction has one include"):
        including.include(tokens, WAIT_S)
    including.commit_transaction(WAIT_S)
    including.begin_transaction()
    including.include([b"b"], WAIT_S)


def test_refused_include_lets_the_transaction_only_be_aborted(
    including: Producer, daemon: FakeDaemon
) -> None:
    def refuse(client: Client, txn: list[Any]) -> None:
        if txn[0] == Kind.TXN_INCLUDE:
            text = "Token 2 of 2 was used by transaction 4."
            daemon.answer_txn(client, txn, code=LocalCode.STAGE_UNKNOWN, effect=TxnEffect.NONE, text=text)
        else:
            daemon.answer_txn(client, txn)

    daemon.on_txn = refuse
    including.begin_transaction()
    with pytest.raises(TransactionError, match="Token 2 of 2 was used") as caught:
        including.include([b"a", b"b"], WAIT_S)
    assert caught.value.abortable and caught.value.name == "UNKNOWN_STAGE"
    with pytest.raises(TransactionError, match="Token 2 of 2 was used"):
        including.commit_transaction(WAIT_S)
    including.abort_transaction(WAIT_S)
    daemon.on_txn = daemon.answer_txn
    with including.transaction():
        including.include([b"a"], WAIT_S)


def test_include_without_an_answer_is_made_again(including: Producer, daemon: FakeDaemon) -> None:
    held: list[tuple[Client, list[Any]]] = []
    daemon.on_txn = lambda client, txn: held.append((client, txn))
    including.begin_transaction()
    with pytest.raises(TransactionTimeout):
        including.include([b"a"], 0.05)
    with pytest.raises(TransactionStateError, match="one include"):
        including.include([b"b"], WAIT_S)
    with pytest.raises(TransactionStateError, match=r"include\(\) has no answer yet"):
        including.commit_transaction(WAIT_S)
    eventually(lambda: held)
    daemon.do(lambda: daemon.answer_txn(*held[0]))
    daemon.on_txn = daemon.answer_txn
    assert including.include([b"a"], WAIT_S).rows == 10
    assert [each[0] for each in daemon.txn_frames].count(Kind.TXN_INCLUDE) == 1


def test_include_is_repeated_after_a_reconnect(including: Producer, daemon: FakeDaemon) -> None:
    def answer_all_but_include(client: Client, txn: list[Any]) -> None:
        if txn[0] != Kind.TXN_INCLUDE:
            daemon.answer_txn(client, txn)

    daemon.on_txn = answer_all_but_include
    including.begin_transaction()
    with pytest.raises(TransactionTimeout):
        including.include([b"a"], 0.05)
    eventually(lambda: daemon.txn_frames[-1][0] == Kind.TXN_INCLUDE)
    daemon.on_txn = daemon.answer_txn
    daemon.kill_worker()
    assert including.include([b"a"], WAIT_S).rows == 10
    assert daemon.txn_frames[-1] == daemon.txn_frames[-3] == [Kind.TXN_INCLUDE, 1, 1, [b"a"]]


def test_abort_takes_the_place_of_an_include(including: Producer, daemon: FakeDaemon) -> None:
    daemon.on_txn = lambda client, txn: daemon.answer_txn(client, txn) if txn[0] == Kind.TXN_END else None
    including.begin_transaction()
    with pytest.raises(TransactionTimeout):
        including.include([b"a"], 0.05)
    including.abort_transaction(WAIT_S)


def test_drop_stages_by_token_and_up_to_a_number(including: Producer, daemon: FakeDaemon) -> None:
    assert including.drop_stages([b"a", b"b"], timeout=WAIT_S) == 2
    assert including.drop_stages(up_to=7, timeout=WAIT_S) == 0
    assert daemon.stage_frames == [
        [Kind.STAGES_DROP, 1, "copy-1", None, [b"a", b"b"]],
        [Kind.STAGES_DROP, 2, "copy-1", 7, []],
    ]
    including.begin_transaction()
    assert including.drop_stages([b"c"], timeout=WAIT_S) == 1
    including.commit_transaction(WAIT_S)


def test_answer_to_a_drop_ends_no_other_call(including: Producer, daemon: FakeDaemon) -> None:
    """DROPPED has the number of OFFSETS among the parts, and both count requests."""
    daemon.on_stage = lambda client, stage: daemon.tell(
        client, [Kind.TXN, TxnPart.OFFSETS, stage[1], 0, 0, ""]
    )
    with pytest.raises(TransactionTimeout):
        including.drop_stages([b"a"], timeout=0.1)


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        (b"a", TypeError, r"write \[token\]"),
        ("a", TypeError, r"write \[token\]"),
        (7, TypeError, "a list of what seal"),
        (["a"], TypeError, r"tokens\[0\] is str"),
        ([b""], ValueError, r"tokens\[0\] has 0 bytes"),
        ([b"a", b"x" * 65], ValueError, r"tokens\[1\] has 65 bytes"),
        ([b"a"] * 1_025, ValueError, r"1025 tokens: .* 1024"),
    ],
)
def test_wrong_tokens(including: Producer, tokens: Any, error: type[Exception], text: str) -> None:
    including.begin_transaction()
    with pytest.raises(error, match=text):
        including.include(tokens, WAIT_S)
    with pytest.raises(error, match=text):
        including.drop_stages(tokens)
    including.include([b"x" * 64] * 1_024, WAIT_S)


@pytest.mark.parametrize(("up_to", "error"), [("7", TypeError), (-1, ValueError), (1 << 64, ValueError)])
def test_wrong_number_up_to_which_stages_are_dropped(
    including: Producer, up_to: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="up_to must be"):
        including.drop_stages(up_to=up_to)


def test_producer_without_an_id_cannot_include(producer: Producer) -> None:
    for call in (lambda: producer.include([b"a"]), lambda: producer.drop_stages([b"a"])):
        with pytest.raises(TransactionStateError, match="transactional_id="):
            call()


def test_send_without_room_loses_the_stage(daemon: FakeDaemon) -> None:
    daemon.accept = lambda client, submit: False
    with Producer(daemon.run_dir, max_block_ms=50) as producer:
        stage = producer.stage("copy-1", 3)
        with pytest.raises(BufferExhausted):
            while True:
                stage.send_many("orders", [(None, bytes(100_000))] * 10)
        with pytest.raises(TransactionError, match="Stage 3 of copy-1 is lost"):
            stage.seal(WAIT_S)
