"""ST: stages against a simulated cluster: wrong tokens, the share of the pool, rows, and whoever fills a stage.

On real brokers: tests/cluster/test_stages.py. ``committed`` is what a consumer with isolation.level=read_committed
reads.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from typing import Any, Final

import pytest

from client_stub import Producer
from client_stub.contract.wire import LocalCode
from client_stub.errors import ProducerFenced, RecordTooLarge, TransactionError
from sidecar.shm.layout import STAGES_MAX
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until
from tests.forked import in_child

from .harness import FAST, accounts_balance, rows_of

pytestmark = pytest.mark.process

CALL_S: Final = 30.0
GONE_S: Final = 5.0
"""A dead client's stage is dropped within 1 s on a quiet machine."""
POOL_BYTES: Final = 16 << 20
_serial = count(1)


class Bed:
    def __init__(self, kafka: FakeBroker, daemon: SidecarDaemon) -> None:
        self.kafka = kafka
        self.daemon = daemon
        self.topics: list[str] = []

    def topic(self, partitions: int = 1) -> str:
        name = f"st-{next(_serial)}"
        self.kafka.create_topic(name, partitions)
        self.topics.append(name)
        return name

    def drop_all(self) -> None:
        for transactional_id in self.topics:
            with Producer(str(self.daemon.run_dir), transactional_id=transactional_id) as producer:
                producer.drop_stages(up_to=(1 << 64) - 1, timeout=CALL_S)
        wait_until(lambda: self.metric("staged_bytes") == 0, "the pages of the stages")

    def producer(self, transactional_id: str | None = None, **settings: Any) -> Producer:
        producer = Producer(str(self.daemon.run_dir), transactional_id=transactional_id, **settings)
        if transactional_id is not None:
            producer.init_transactions(CALL_S)
        return producer

    def staged(self, topic: str, number: int, *values: bytes, owner: str = "run-a") -> bytes:
        with self.producer() as producer, producer.stage(topic, number, owner) as stage:
            stage.send_many(topic, [(None, value) for value in values])
            return stage.seal(CALL_S)

    def committed(self, topic: str) -> list[bytes | None]:
        return [each.value for each in self.kafka.records(topic, committed=True)]

    def metric(self, name: str) -> float:
        return metric(self.daemon, f"kafka_sidecar_{name}")


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def module_bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    settings = {**FAST, "daemon.workers": 1, "linger.ms": 20, "max.block.ms": 3_000}
    with (
        FakeBroker(nodes=2, transaction_version=int(request.param)) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
    ):
        bed = Bed(kafka, daemon)
        yield bed
        bed.drop_all()
        accounts_balance(daemon)
        assert not kafka.bad_batches


@pytest.fixture
def bed(module_bed: Bed) -> Iterator[Bed]:
    yield module_bed
    module_bed.kafka.clear_rules()


def test_st_01_only_chosen_stages_are_sent(bed: Bed) -> None:
    topic = bed.topic(3)
    bed.drop_all()
    before = len(bed.kafka.requests(Api.PRODUCE))
    tokens = [bed.staged(topic, number, b"%d" % number) for number in range(4)]
    assert len(bed.kafka.requests(Api.PRODUCE)) == before, "nothing of a stage is sent"
    with bed.producer(topic) as producer:
        with producer.transaction():
            inclusion = producer.include(tokens[1:], CALL_S)
        assert inclusion.rows == 3
        assert sorted(bed.committed(topic)) == [b"1", b"2", b"3"]  # type: ignore[type-var]
        assert producer.drop_stages(tokens, timeout=CALL_S) == 1
    assert len(bed.kafka.records(topic)) == 3
    wait_until(lambda: bed.metric("staged_bytes") == 0, "the pages of the dropped stage")


def test_st_02_worker_is_killed_in_the_transaction(bed: Bed) -> None:
    topic = bed.topic(2)
    values = [b"%d" % row for row in range(2_000)]
    with bed.producer(topic) as producer:
        token = bed.staged(topic, 1, *values)
        producer.begin_transaction()
        inclusion = producer.include([token], CALL_S)
        kill_worker(bed.daemon)
        producer.commit_transaction(CALL_S)
        assert inclusion.rows == 2_000
        with pytest.raises(TransactionError, match="was included"), producer.transaction():
            producer.include([token], CALL_S)
    assert sorted(bed.committed(topic)) == sorted(values)  # type: ignore[type-var]


def kill_worker(daemon: SidecarDaemon) -> None:
    (pid,) = daemon.ready_pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemon.ready_pids() not in ([pid], []), "another worker")


def test_st_04_wrong_tokens_send_nothing(bed: Bed) -> None:
    topic = bed.topic()
    token, dropped = bed.staged(topic, 1, b"a"), bed.staged(topic, 2, b"b")
    others = bed.staged(bed.topic(), 1, b"c")
    with (
        FakeBroker(transaction_version=2) as another_kafka,
        SidecarDaemon(another_kafka.bootstrap_servers, settings=FAST) as another,
    ):
        foreign = Bed(another_kafka, another).staged(topic, 1, b"d")
    with bed.producer(topic) as producer:
        assert producer.drop_stages([dropped], timeout=CALL_S) == 1
        for wrong, words in (
            ([token, token], "named twice"),
            ([token, b"what"], "no token"),
            ([dropped], "dropped by drop_stages"),
            ([token, others], "another transactional id"),
            ([foreign], "another daemon"),
        ):
            producer.begin_transaction()
            with pytest.raises(TransactionError, match=words) as refused:
                producer.include(wrong, CALL_S)
            assert refused.value.code == LocalCode.STAGE_UNKNOWN and refused.value.abortable
            with pytest.raises(TransactionError, match=words):
                producer.commit_transaction(CALL_S)
            producer.abort_transaction(CALL_S)
        assert bed.kafka.records(topic) == []
        with producer.transaction():
            producer.include([token], CALL_S)
        producer.begin_transaction()
        with pytest.raises(TransactionError, match="was included by a transaction already"):
            producer.include([token], CALL_S)
        producer.abort_transaction(CALL_S)
    assert bed.committed(topic) == [b"a"]


def test_aborted_transaction_uses_its_stages_up(bed: Bed) -> None:
    topic = bed.topic()
    token = bed.staged(topic, 1, b"a")
    with bed.producer(topic) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.include([token], CALL_S)
            _ = 1 // 0
        producer.begin_transaction()
        with pytest.raises(TransactionError, match="was included"):
            producer.include([token], CALL_S)
        producer.abort_transaction(CALL_S)
    assert bed.committed(topic) == []


def test_empty_stages_include_nothing(bed: Bed) -> None:
    topic = bed.topic()
    with bed.producer() as stager, bed.producer(topic) as producer:
        token = stager.stage(topic, 1).seal(CALL_S)
        for _ in range(2):
            with producer.transaction():
                assert producer.include([token], CALL_S).rows == 0


# --- the share of the pool ------------------------------------------------------------------------------------


def test_st_05_other_owners_stages_go_first_then_send_fails_at_once() -> None:
    settings = {**FAST, "daemon.workers": 1, "buffer.memory": POOL_BYTES, "pool.staged_share": 0.5}
    with (
        FakeBroker({"st": 1}, transaction_version=2) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
    ):
        bed = Bed(kafka, daemon)
        rows = [bytes(100_000)] * 20  # 2 MB of 8
        old = [bed.staged("st", number, *rows, owner="run-a") for number in (1, 2)]
        new = [bed.staged("st", number, *rows, owner="run-b") for number in (1, 2, 3)]
        wait_until(lambda: bed.metric("stages_evicted_total") >= 1, "the count of evicted ones")
        with bed.producer() as stager, pytest.raises(TransactionError, match=r"pool\.staged_share") as full:
            stage = stager.stage("st", 4, "run-b")
            for _ in range(100):
                stage.send_many("st", [(None, bytes(100_000))] * 10)
            stage.seal(CALL_S)
        assert full.value.name == "STAGED_SHARE_FULL" and full.value.abortable
        assert '"st"' in str(full.value) and "bytes" in str(full.value)
        with bed.producer() as plain:
            assert plain.send("st", b"plain").result(CALL_S).offset == 0, "plain clients keep the rest"
        with bed.producer("st") as producer:
            with producer.transaction():
                assert producer.include(new, CALL_S).rows == 60
            producer.begin_transaction()
            with pytest.raises(TransactionError, match="another owner's stages"):
                producer.include(old, CALL_S)
            producer.abort_transaction(CALL_S)
        wait_until(lambda: bed.metric("staged_bytes") == 0, "their share")


def test_stage_that_nobody_includes_expires_and_its_token_says_so() -> None:
    settings = {**FAST, "daemon.workers": 1, "daemon.stage_timeout_ms": 1_000}
    with (
        FakeBroker({"st": 1}, transaction_version=2) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
    ):
        bed = Bed(kafka, daemon)
        token = bed.staged("st", 1, b"x")
        wait_until(lambda: bed.metric("stages_expired_total") == 1, "its end")
        with bed.producer("st") as producer:
            producer.begin_transaction()
            with pytest.raises(TransactionError, match=r"within daemon\.stage_timeout_ms"):
                producer.include([token], CALL_S)
            producer.abort_transaction(CALL_S)
        assert kafka.records("st") == []
        accounts_balance(daemon)


def test_last_stage_of_a_worker_and_one_more() -> None:
    with (
        FakeBroker({"st": 1}, transaction_version=2) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings={**FAST, "daemon.workers": 1}) as daemon,
    ):
        bed = Bed(kafka, daemon)
        with bed.producer() as stager, bed.producer("st") as producer:

            def staged(number: int) -> bytes:
                with stager.stage("st", number) as stage:
                    stage.send("st", b"%d" % number)
                    return stage.seal(CALL_S)

            tokens = [staged(number) for number in range(STAGES_MAX)]
            with pytest.raises(TransactionError, match=f"has {STAGES_MAX} stages") as refused:
                staged(STAGES_MAX)
            assert refused.value.name == "TOO_MANY_STAGES" and refused.value.abortable
            assert "txn drop" in str(refused.value)
            with producer.transaction():
                assert producer.include(tokens, CALL_S).rows == STAGES_MAX
            assert staged(STAGES_MAX)
        assert sorted(bed.committed("st"), key=lambda value: int(value or 0)) == [
            b"%d" % number for number in range(STAGES_MAX)
        ]


# --- rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [450, pytest.param(10_000, marks=pytest.mark.long)], ids=["450", "10,000"])
def test_st_06_stages_one_after_the_other_leave_no_row(stages: int) -> None:
    topics = [f"t-{number}" for number in range(200)]
    with (
        FakeBroker(dict.fromkeys(topics, 1), transaction_version=2) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings={**FAST, "daemon.workers": 1}) as daemon,
    ):
        bed = Bed(kafka, daemon)
        with bed.producer() as stager, bed.producer("many") as producer:
            tokens: list[bytes] = []
            for number in range(stages):
                with stager.stage("many", number) as stage:
                    stage.send(topics[number % 200], b"x")
                    tokens.append(stage.seal(CALL_S))
                if len(tokens) == 50:
                    with producer.transaction():
                        assert producer.include(tokens, CALL_S).rows == 50
                    tokens.clear()
        committed = sum(len(kafka.records(topic, committed=True)) for topic in topics)
        assert committed == stages - stages % 50
        wait_until(lambda: rows_of(daemon) == (0, 0, 0), "no row, chain or lane is left")


# --- whoever fills a stage ----------------------------------------------------------------------------------


def test_st_03_killed_process_drops_its_open_stage(bed: Bed) -> None:
    topic = bed.topic()
    script = f"""
        import sys
        from client_stub import Producer
        stage = Producer({str(bed.daemon.run_dir)!r}).stage({topic!r}, 1)
        stage.send({topic!r}, b"x")
        stage._engine.flush(30, "accepted")
        print("accepted", flush=True)
        sys.stdin.read()
    """
    bed.drop_all()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "accepted\n"
    wait_until(lambda: bed.metric("stages_open") == 1, "the open stage")
    before = bed.metric("stages_abandoned_total")
    process.kill()
    process.communicate(timeout=CALL_S)
    wait_until(lambda: bed.metric("stages_open") == 0, "its end", timeout_s=GONE_S)
    wait_until(lambda: bed.metric("stages_abandoned_total") == before + 1, "its count")
    wait_until(lambda: bed.metric("staged_bytes") == 0, "its pages")


def import_part(run_dir: str, topic: str, number: int) -> bytes:
    """In a process of a pool. The producer lives as long as its process, as one of a Celery worker does."""
    global _pools_producer
    if _pools_producer is None:
        _pools_producer = Producer(run_dir)
    with _pools_producer.stage(topic, number) as stage:
        stage.send_many(topic, [(None, b"%d-%d" % (number, row)) for row in range(100)])
        return stage.seal(CALL_S)


_pools_producer: Producer | None = None


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes_fill_one_transaction(bed: Bed, method: str) -> None:
    topic, run_dir = bed.topic(), str(bed.daemon.run_dir)
    with bed.producer(topic) as producer:
        context = multiprocessing.get_context(method)
        with producer.transaction(), ProcessPoolExecutor(2, mp_context=context) as pool:
            work = [pool.submit(import_part, run_dir, topic, number) for number in range(6)]
            assert producer.include([each.result(CALL_S) for each in work], CALL_S).rows == 600
    assert sorted(bed.committed(topic)) == sorted(  # type: ignore[type-var]
        b"%d-%d" % (number, row) for number in range(6) for row in range(100)
    )


def test_inherited_producer_stages_in_forked_children(bed: Bed) -> None:
    """A parent that has staged forks: parent and child fill stages of their own, with copies of one client."""
    topic = bed.topic()
    with bed.producer() as stager, bed.producer(topic) as producer:
        tokens = [_stage_one(stager, topic, 0)]
        for number in (1, 2):
            tokens.append(bytes.fromhex(in_child(lambda: _stage_one(stager, topic, number).hex())))  # noqa: B023
            tokens.append(_stage_one(stager, topic, 10 + number))
        with producer.transaction():
            assert producer.include(tokens, CALL_S).rows == 5
    assert sorted(bed.committed(topic)) == [b"0", b"1", b"11", b"12", b"2"]  # type: ignore[type-var]


def _stage_one(stager: Producer, topic: str, number: int) -> bytes:
    with stager.stage(topic, number) as stage:
        stage.send(topic, b"%d" % number)
        return stage.seal(CALL_S)


def test_threads_fill_one_stage_and_stages_of_their_own(bed: Bed) -> None:
    topic = bed.topic()
    tokens: list[bytes] = []
    with bed.producer() as stager, bed.producer(topic) as producer:
        shared = stager.stage(topic, 0)

        def fill(number: int) -> None:
            with stager.stage(topic, number) as own:
                for row in range(200):
                    own.send(topic, b"%d-%d" % (number, row))
                    shared.send(topic, b"shared-%d-%d" % (number, row))
                tokens.append(own.seal(CALL_S))

        threads = [threading.Thread(target=fill, args=(number,)) for number in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(CALL_S)
        tokens.append(shared.seal(CALL_S))
        with producer.transaction():
            assert producer.include(tokens, CALL_S).rows == 1_200
    found = bed.committed(topic)
    for number in (1, 2, 3):
        own = [value for value in found if value.startswith(b"%d-" % number)]  # type: ignore[union-attr]
        assert own == [b"%d-%d" % (number, row) for row in range(200)], "in order"


def test_ctrl_c_in_seal_leaves_the_stage_to_its_program(bed: Bed) -> None:
    """The first seal() ends by KeyboardInterrupt, the second one returns the token."""
    topic = bed.topic()
    script = f"""
        import signal
        from client_stub import Producer
        def interrupt(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        producer = Producer({str(bed.daemon.run_dir)!r})
        stage = producer.stage({topic!r}, 1)
        for row in range(20_000):
            stage.send({topic!r}, b"%d" % row)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            stage.seal(30)
        except KeyboardInterrupt:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(stage.seal(30).hex())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=CALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with bed.producer(topic) as producer, producer.transaction():
        assert producer.include([bytes.fromhex(done.stdout.strip())], CALL_S).rows == 20_000
    assert bed.committed(topic) == [b"%d" % row for row in range(20_000)]


def test_ctrl_c_in_the_block_drops_the_stage(bed: Bed) -> None:
    topic = bed.topic()
    before = bed.metric("stages_dropped_total")
    with pytest.raises(KeyboardInterrupt), bed.producer() as stager, stager.stage(topic, 1) as stage:
        stage.send(topic, b"x")
        stage._engine.flush(CALL_S, "accepted")
        raise KeyboardInterrupt
    wait_until(lambda: bed.metric("stages_dropped_total") == before + 1, "the drop")
    assert bed.metric("stages_open") == 0


# --- records that cannot be sent ------------------------------------------------------------------------------


def commit_fails(producer: Producer, tokens: list[bytes], words: str) -> None:
    producer.begin_transaction()
    producer.include(tokens, CALL_S)
    with pytest.raises(TransactionError, match=words) as failed:
        producer.commit_transaction(CALL_S)
    assert failed.value.abortable
    producer.abort_transaction(CALL_S)


def test_st_08_topic_that_does_not_exist_fails_the_commit(bed: Bed) -> None:
    topic, missing = bed.topic(), f"missing-{next(_serial)}"
    with bed.producer() as stager, bed.producer(topic) as producer:
        with stager.stage(topic, 1) as stage:
            stage.send(topic, b"good")
            stage.send(missing, b"bad")
            token = stage.seal(CALL_S)
        commit_fails(producer, [token], missing)
        with producer.transaction():
            producer.send(topic, b"next")
    assert bed.committed(topic) == [b"next"]


def test_st_08_topic_that_is_deleted_and_made_again(bed: Bed) -> None:
    topic, other = bed.topic(), bed.topic(2)
    token = bed.staged(topic, 1, b"old")
    with bed.producer() as stager, stager.stage(topic, 2) as stage:
        stage.send(other, b"staged", partition=1)
        second = stage.seal(CALL_S)
    bed.kafka.delete_topic(other)
    bed.kafka.create_topic(other, 1)
    with bed.producer(topic) as producer:
        producer.begin_transaction()
        producer.include([token, second], CALL_S)
        with pytest.raises(TransactionError, match=other):
            producer.commit_transaction(CALL_S)
        producer.abort_transaction(CALL_S)
        with producer.transaction():
            producer.send(topic, b"next")
    assert bed.committed(topic) == [b"next"]


def test_st_08_record_too_large_for_the_daemon_is_refused_by_the_call(bed: Bed) -> None:
    topic = bed.topic()
    with bed.producer() as stager, bed.producer(topic) as producer:
        with stager.stage(topic, 1) as stage:
            stage.send(topic, b"good")
            with pytest.raises(RecordTooLarge):
                stage.send(topic, bytes(4 << 20))
            with pytest.raises(TransactionError, match=r"Stage 1 of .* is lost: .*max\.request\.size"):
                stage.seal(CALL_S)
        with producer.transaction():
            producer.send(topic, b"next")
    assert bed.committed(topic) == [b"next"]


def test_st_07_second_producer_fences_the_one_that_has_included(bed: Bed) -> None:
    topic = bed.topic()
    token = bed.staged(topic, 1, *[b"%d" % row for row in range(500)])
    first = bed.producer(topic)
    first.begin_transaction()
    first.include([token], CALL_S)
    with bed.producer(topic) as second:
        with pytest.raises(ProducerFenced):
            first.commit_transaction(CALL_S)
        second.begin_transaction()
        with pytest.raises(TransactionError, match="was included"):
            second.include([token], CALL_S)
        second.abort_transaction(CALL_S)
        with second.transaction():
            second.send(topic, b"second")
    first.close(0)
    assert bed.committed(topic) == [b"second"]


def test_sealed_stage_survives_a_producer_that_is_closed_by_force(bed: Bed) -> None:
    """Its client leaves with ``cancel``, as another thread was in a send() when it was sealed."""
    topic = bed.topic()
    stager = bed.producer()
    stage = stager.stage(topic, 1)
    stage.send(topic, b"x")
    stage._enter()
    token = stage.seal(CALL_S)
    stager.close(0)
    with bed.producer(topic) as producer, producer.transaction():
        assert producer.include([token], CALL_S).rows == 1
    assert bed.committed(topic) == [b"x"]
