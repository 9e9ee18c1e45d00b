"""Goal: a batch of Spark is committed once by a real daemon, whoever is killed or comes twice. Spark itself is in
tests/spark/test_exactly_once.py; here the tasks are stages of this process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyspark")

import pyarrow
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from client_stub import Producer
from client_stub.engine.transaction_calls import TransactionCalls
from client_stub.errors import TransactionTimeout
from client_stub.inner_producer import InnerProducer
from client_stub.spark.calls import _write_task
from client_stub.spark.columns import find_columns
from client_stub.spark.datasource import BatchWriter, StreamWriter
from client_stub.spark.exactly_once.commit import commit_batch, drop_batch
from client_stub.spark.exactly_once.commit_record import CommitRecord, key_of, unpack
from client_stub.spark.exactly_once.decision import Batch
from client_stub.spark.exactly_once.messages import StagedTask, daemon_name
from client_stub.spark.exactly_once.settings import COMMITS_TOPIC, ExactlyOnce
from client_stub.spark.options import Options, read_options
from client_stub.spark.topic_check import check_topic
from sidecar.cli.main import cli
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.tcp_access import TcpAccess

pytestmark = [pytest.mark.process, pytest.mark.unmeasured]

_numbers = itertools.count()
KEY, TOPIC = "", ""
"""Of the test that runs."""


@pytest.fixture(autouse=True)
def own_topic(kafka: FakeBroker) -> None:
    """A key and a topic of its own for each test, as the daemon is shared."""
    global KEY, TOPIC
    number = next(_numbers)
    KEY, TOPIC = f"{number:016x}", f"orders-{number}"
    kafka.create_topic(TOPIC, 3, is_compacted=True)  # so that its batches are kept for txn verify


@pytest.fixture(scope="module")
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def daemon(kafka: FakeBroker) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(kafka.bootstrap_servers, settings={"daemon.workers": 1}) as daemon:
        yield daemon


@pytest.fixture
def options(daemon: SidecarDaemon) -> Options:
    return read_options({"sidecar.run_dir": str(daemon.run_dir), "topic": TOPIC, "delivery": "exactly_once"})


def settings(options: Options) -> ExactlyOnce:
    assert options.exactly_once is not None
    return options.exactly_once


def run_batch(number: int, run: str) -> Batch:
    return Batch(KEY, TOPIC, number, "query", run)


def staged(options: Options, batch: Batch, *tasks: list[bytes]) -> list[StagedTask]:
    """A stage for each task."""
    found = []
    with Producer(options.run_dir) as producer:
        for rows in tasks:
            with producer.stage(settings(options).transactional_id(KEY), batch.number, batch.run) as stage:
                stage.send_many(TOPIC, [(None, row) for row in rows])
                token = stage.seal(30)
            found.append(
                StagedTask(batch, token, len(rows), 10, 0, frozenset({TOPIC}), daemon_name(options.run_dir))
            )
    return found


def visible(kafka: FakeBroker) -> Counter[bytes | None]:
    return Counter(record.value for record in kafka.records(TOPIC, committed=True))


def records(kafka: FakeBroker) -> list[CommitRecord]:
    found = kafka.records(COMMITS_TOPIC, committed=True)
    return [unpack(each.value) for each in found if each.key == KEY.encode() and each.value is not None]


def rows(number: int, count: int = 50) -> list[bytes]:
    return [b"%d-%d" % (number, each) for each in range(count)]


def test_batches_and_replays(kafka: FakeBroker, options: Options) -> None:
    check_topic(options)
    expected: Counter[bytes | None] = Counter()
    for number in range(3):
        for run in ("first", "second"):  # the second run writes each batch again, with another split
            batch = run_batch(number, f"{run}-{number}")
            halves = [rows(number)[:30], rows(number)[30:]] if run == "first" else [rows(number)]
            chosen = staged(options, batch, *halves)
            staged(options, batch, rows(number))  # an attempt that Spark does not choose
            commit_batch(chosen, options, settings(options))
            if run == "first":
                expected.update(rows(number))
            assert visible(kafka) == expected
    assert [(each.batch, each.rows, each.tasks) for each in records(kafka)] == [
        (0, 50, 2), (1, 50, 2), (2, 50, 2)
    ]  # fmt: skip


def test_commit_and_replay_are_a_line_each_in_the_driver_s_log(
    kafka: FakeBroker, options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("a", "b"):
        commit_batch(staged(options, run_batch(0, run), rows(0), rows(1)), options, settings(options))
    committed, replayed = capsys.readouterr().err.splitlines()
    places = rf"({TOPIC}-\d \d+\.\.\d+(, )?)+"  # by partition
    assert re.fullmatch(rf"kafka_sidecar: batch 0 is committed: 100 rows of 2 tasks: {places}\.", committed)
    assert replayed.endswith("batch 0 is in Kafka already, by an earlier run: its 100 rows are dropped.")


def test_second_write_of_a_run_and_an_older_batch_are_refused(kafka: FakeBroker, options: Options) -> None:
    commit_batch(staged(options, run_batch(0, "r"), rows(0)), options, settings(options))
    commit_batch(staged(options, run_batch(1, "r"), rows(1)), options, settings(options))
    for batch, text in (
        (run_batch(1, "r"), "kafka_sidecar: batch 1 was already written with sink.id orders-.* in this run"),
        (run_batch(0, "s"), "kafka_sidecar: batch 0 is older than the last committed batch 1"),
    ):
        with pytest.raises(RuntimeError, match=text):
            commit_batch(staged(options, batch, rows(9)), options, settings(options))
    assert visible(kafka) == Counter(rows(0) + rows(1))


def test_dropped_batch_can_be_written_again(kafka: FakeBroker, options: Options) -> None:
    first = staged(options, run_batch(0, "r"), rows(0), rows(1))
    drop_batch([first[0], None], options, settings(options))
    with pytest.raises(RuntimeError, match="kafka_sidecar: tasks of batch 0 are no longer at the daemon"):
        commit_batch(first, options, settings(options))
    assert visible(kafka) == Counter()
    commit_batch(staged(options, run_batch(0, "s"), rows(0), rows(1)), options, settings(options))
    assert visible(kafka) == Counter(rows(0) + rows(1))


def test_killed_worker_and_restarted_daemon_keep_the_stages(
    kafka: FakeBroker, daemon: SidecarDaemon, options: Options
) -> None:
    first = staged(options, run_batch(0, "r"), rows(0))
    os.kill(daemon.worker_pids()[0], signal.SIGKILL)
    commit_batch(first, options, settings(options))
    second = staged(options, run_batch(1, "r"), rows(1))
    daemon.kill_all()
    daemon.start()
    commit_batch(second, options, settings(options))
    assert visible(kafka) == Counter(rows(0) + rows(1))


def test_commit_whose_answer_is_lost_is_asked_for_again(kafka: FakeBroker, options: Options) -> None:
    lost = kafka.add(on(Api.END_TXN, times=2).cut_answer())  # both are used up by this commit
    commit_batch(staged(options, run_batch(0, "r"), rows(0)), options, settings(options))
    assert lost.hits == 2
    commit_batch(staged(options, run_batch(0, "s"), rows(0)), options, settings(options))
    assert visible(kafka) == Counter(rows(0))


STEPS: dict[str, tuple[str, bool]] = {
    "before the claim": ("init_transactions", False),
    "after the claim": ("init_transactions", True),
    "after the record was read": ("last_committed", True),
    "after the begin": ("begin_transaction", True),
    "after the stages were included": ("include", True),
    "after the record was sent": ("send", True),
    "before the commit is asked for": ("commit_transaction", False),
    "after the commit": ("commit_transaction", True),
    "after the rest was dropped": ("drop_stages", True),
}
"""Where the driver is killed: before or after this call of its producer."""


UNDER_WAY = "while the commit is under way"


def die_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    if step == UNDER_WAY:
        monkeypatch.setattr(InnerProducer, "commit_transaction", ask_and_die)
        return
    call, after = STEPS[step]
    whole = getattr(InnerProducer, call)

    def dying(self: InnerProducer, *arguments: Any, **named: Any) -> Any:
        if after:
            whole(self, *arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(InnerProducer, call, dying)


def ask_and_die(self: InnerProducer, timeout: float | None = None) -> None:
    with contextlib.suppress(TransactionTimeout):
        TransactionCalls.commit_transaction(self, 0)
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(work: Callable[[], None]) -> None:
    """Run ``work`` in a process that it kills."""
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize("step", [*STEPS, UNDER_WAY])
def test_driver_that_is_killed_leaves_a_batch_whole_or_out(
    step: str, kafka: FakeBroker, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows(0) + rows(1)
    commit_batch(staged(options, run_batch(0, "first"), rows(0)), options, settings(options))
    tasks = staged(options, run_batch(1, "first"), rows(1)[:20], rows(1)[20:])
    with monkeypatch.context() as patch:
        die_at(patch, step)
        in_a_child(lambda: commit_batch(tasks, options, settings(options)))
    assert visible(kafka) in (Counter(rows(0)), Counter(expected))
    for number in (1, 2):  # the replay has another split
        batch = run_batch(number, "second")
        commit_batch(staged(options, batch, rows(number)), options, settings(options))
        expected += rows(2) if number == 2 else []
        assert visible(kafka) == Counter(expected)


@pytest.mark.parametrize("victim", ["worker", "daemon"])
@pytest.mark.parametrize("step", [step for step, (_, after) in STEPS.items() if after])
def test_sidecar_that_is_killed_leaves_a_batch_whole_or_out(
    step: str,
    victim: str,
    kafka: FakeBroker,
    daemon: SidecarDaemon,
    options: Options,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = staged(options, run_batch(0, "first"), rows(0)[:20], rows(0)[20:])
    with monkeypatch.context() as patch:
        kill_after(patch, daemon, STEPS[step][0], victim)
        with contextlib.suppress(
            RuntimeError
        ):  # Spark would end the query, and its restart write the batch again
            commit_batch(tasks, options, settings(options))
    assert visible(kafka) in (Counter(), Counter(rows(0)))
    for number in (0, 1):
        batch = run_batch(number, "second")
        commit_batch(staged(options, batch, rows(number)), options, settings(options))
    assert visible(kafka) == Counter(rows(0) + rows(1))


def kill_after(monkeypatch: pytest.MonkeyPatch, daemon: SidecarDaemon, call: str, victim: str) -> None:
    whole = getattr(InnerProducer, call)

    def killing(self: InnerProducer, *arguments: Any, **named: Any) -> Any:
        found = whole(self, *arguments, **named)
        if victim == "worker":
            (pid,) = daemon.ready_pids()
            os.kill(pid, signal.SIGKILL)
        else:
            daemon.kill_all()
            daemon.start()
        return found

    monkeypatch.setattr(InnerProducer, call, killing)


@pytest.mark.parametrize(
    "step", ["after the stages were included", "after the record was sent", UNDER_WAY, "after the commit"]
)
def test_driver_and_daemon_that_die_together_leave_a_batch_whole_or_out(
    step: str, kafka: FakeBroker, daemon: SidecarDaemon, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = staged(options, run_batch(0, "first"), rows(0))
    with monkeypatch.context() as patch:
        die_at(patch, step)
        in_a_child(lambda: commit_batch(tasks, options, settings(options)))
    daemon.kill_all()
    daemon.start()
    assert visible(kafka) in (Counter(), Counter(rows(0)))
    for number in (0, 1):
        batch = run_batch(number, "second")
        commit_batch(staged(options, batch, rows(number)), options, settings(options))
    assert visible(kafka) == Counter(rows(0) + rows(1))


@pytest.mark.parametrize("version", [0, 1])
def test_older_transactions_of_kafka(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        FakeBroker({TOPIC: 3}, transaction_version=version) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings={"daemon.workers": 1}) as daemon,
    ):
        options = read_options(
            {"sidecar.run_dir": str(daemon.run_dir), "topic": TOPIC, "delivery": "exactly_once"}
        )
        for step in ("after the stages were included", UNDER_WAY, "after the commit"):
            number = len(records(kafka)) if COMMITS_TOPIC in kafka.topic_names.values() else 0
            tasks = staged(options, run_batch(number, f"{step} first"), rows(number))
            with monkeypatch.context() as patch:
                die_at(patch, step)
                in_a_child(lambda tasks=tasks: commit_batch(tasks, options, settings(options)))  # type: ignore[misc]
            again = staged(options, run_batch(number, f"{step} second"), rows(number))
            commit_batch(again, options, settings(options))
            assert visible(kafka) == Counter(row for each in range(number + 1) for row in rows(each))


def txn(options: Options, *words: str) -> Result:
    return CliRunner().invoke(cli, ["txn", *words, "--run-dir", options.run_dir])


def test_history_begins_anew_by_command(kafka: FakeBroker, options: Options) -> None:
    with pytest.raises(RuntimeError, match=f"txn restart {KEY} --from 5"):
        commit_batch(staged(options, run_batch(5, "r"), rows(5)), options, settings(options))
    done = txn(options, "restart", KEY, "--from", "5")
    assert (done.exit_code, done.stdout) == (0, f"The history of {KEY} begins anew with batch 5.\n")
    commit_batch(staged(options, run_batch(5, "r"), rows(5)), options, settings(options))
    assert visible(kafka) == Counter(rows(5))
    assert [(each.batch, each.run) for each in records(kafka)] == [(4, "restart"), (5, "r")]


def test_end_of_the_last_batch_is_shown_as_starting_offsets(
    kafka: FakeBroker, options: Options, tmp_path: Path
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"source":{"0":17,"1":4}}\n')
    with_checkpoint = settings(options)._replace(checkpoint=f"file://{tmp_path}")
    commit_batch(staged(options, run_batch(0, "r"), rows(0)), options, with_checkpoint)
    shown = txn(options, "show", KEY, "--offsets")
    assert (shown.exit_code, shown.stdout) == (0, '{"source": {"0": 17, "1": 4}}\n')
    new = Batch(KEY, TOPIC, 0, "another checkpoint", "s")
    with pytest.raises(RuntimeError, match=r"its last batch is 0, which ended at offsets .*\"0\": 17"):
        commit_batch(staged(options, new, rows(0)), options, settings(options))


def test_restart_of_what_is_no_key_is_a_usage_error(options: Options) -> None:
    found = txn(options, "restart", "copy-orders")
    assert found.exit_code == 2 and "copy-orders is no key of a sink: it has 16 hex digits." in found.stderr
    assert "has no commit record with offsets" in txn(options, "show", KEY, "--offsets").stderr


def test_rows_of_a_batch_are_counted_against_its_record(kafka: FakeBroker, options: Options) -> None:
    for number in range(3):
        tasks = staged(options, run_batch(number, "r"), rows(number), rows(number, 7))
        commit_batch(tasks, options, settings(options))
    for words, batch in (((), 2), (("1",), 1)):
        found = txn(options, "verify", KEY, *words, "--json")
        told = json.loads(found.stdout)
        assert (found.exit_code, told["batch"], told["rows"], told["found"]) == (0, batch, 57, 57)
        assert sum(told["partitions"].values()) == 57 and len(told["partitions"]) <= 3
    assert "no commit record of batch 9" in txn(options, "verify", KEY, "9").stderr
    kafka.delete_topic(TOPIC)
    kafka.create_topic(TOPIC, 3, is_compacted=True)
    lost = txn(options, "verify", KEY)
    assert lost.exit_code == 1 and "Batch 2: 57 rows are missing." in lost.stderr


SCHEMA = StructType([StructField("value", BinaryType())])


@contextlib.contextmanager
def task_of(query: str, number: int, run: str) -> Iterator[None]:
    """As in a task of a stream: what Spark hands to its executors."""
    context = TaskContext._getOrCreate()
    context._attemptNumber = context._partitionId = 0
    context._localProperties = {
        "sql.streaming.queryId": query,
        "streaming.sql.batchId": str(number),
        "spark.jobGroup.id": run,
    }
    try:
        yield
    finally:
        TaskContext._taskContext = None


def given_options(options: Options, **more: str) -> dict[str, str]:
    return {"sidecar.run_dir": options.run_dir, "topic": TOPIC, "delivery": "exactly_once", **more}


def arrow(values: list[bytes]) -> Iterator[Any]:
    return iter([pyarrow.record_batch({"value": pyarrow.array(values, pyarrow.binary())})])


def test_writer_of_a_stream_commits_by_spark_s_ids(kafka: FakeBroker, options: Options) -> None:
    given = given_options(options)
    for number, run in ((0, "a"), (1, "a"), (1, "b"), (2, "b")):
        with task_of("query-1", number, run):
            messages = [
                StreamWriter(SCHEMA, given).write(arrow(part))
                for part in (rows(number)[:9], rows(number)[9:])
            ]
        StreamWriter(SCHEMA, given).commit(pickle.loads(pickle.dumps(messages)), number)
    assert visible(kafka) == Counter(rows(0) + rows(1) + rows(2))


def test_writer_of_a_batch_job(kafka: FakeBroker, options: Options) -> None:
    for _ in range(2):  # without a job.id each run is new data
        writer = BatchWriter(SCHEMA, given_options(options))
        in_task: BatchWriter = pickle.loads(pickle.dumps(writer))
        writer.commit([in_task.write(arrow(rows(0))), in_task.write(iter(()))])
    assert visible(kafka) == Counter(rows(0) + rows(0))
    for _ in range(2):
        writer = BatchWriter(SCHEMA, given_options(options, **{"job.id": TOPIC}))
        writer.commit([writer.write(arrow(rows(1)))])
    assert visible(kafka) == Counter(rows(0) + rows(0) + rows(1))


def test_batches_without_rows(kafka: FakeBroker, options: Options) -> None:
    job = BatchWriter(SCHEMA, given_options(options))
    job.commit([job.write(iter(()))])
    given = given_options(options)
    for number in (0, 1, 2):
        with task_of("query-2", number, "a"):
            message = StreamWriter(SCHEMA, given).write(arrow(rows(2)) if number == 2 else iter(()))
        StreamWriter(SCHEMA, given).commit([message], number)
    assert visible(kafka) == Counter(rows(2))
    key = key_of("query-2", TOPIC).encode()
    found = [each.value for each in kafka.records(COMMITS_TOPIC, committed=True) if each.key == key]
    assert [unpack(value).batch for value in found if value is not None] == [0, 2]


def test_writer_that_is_aborted_leaves_nothing(kafka: FakeBroker, options: Options) -> None:
    writer = BatchWriter(SCHEMA, given_options(options))
    messages = [writer.write(arrow(rows(0))), None]
    writer.abort(messages)
    assert visible(kafka) == Counter()
    with pytest.raises(RuntimeError, match="kafka_sidecar: tasks of batch 0 are no longer at the daemon"):
        writer.commit(messages)


def test_what_is_missing_is_said_before_any_task(kafka: FakeBroker, options: Options, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^kafka_sidecar: .*driver and all tasks use one daemon: start it with"
    ):
        BatchWriter(SCHEMA, given_options(options, **{"sidecar.run_dir": str(tmp_path)}))
    kafka.create_topic("forgets", 1)
    with pytest.raises(ValueError, match=r"^kafka_sidecar: Topic forgets has cleanup\.policy=delete"):
        BatchWriter(SCHEMA, given_options(options, **{"commits.topic": "forgets"}))


def test_batch_larger_than_the_staged_share_names_what_helps(kafka: FakeBroker) -> None:
    small = {"daemon.workers": 1, "buffer.memory": 4 << 20, "max.request.size": 1 << 20}
    with SidecarDaemon(kafka.bootstrap_servers, settings=small) as daemon:
        options = read_options(given_options(read_options({"sidecar.run_dir": str(daemon.run_dir)})))
        writer = BatchWriter(SCHEMA, given_options(options))
        with pytest.raises(
            RuntimeError, match=r"^kafka_sidecar: batch 0 does not fit into the share"
        ) as refused:
            writer.write(arrow([b"x" * 500_000] * 20))
    assert "Lower maxOffsetsPerTrigger" in str(refused.value) and "pool.staged_share" in str(refused.value)
    assert visible(kafka) == Counter()


def test_batch_that_is_not_sent_in_time_names_the_option(kafka: FakeBroker, options: Options) -> None:
    slow = kafka.add(on(Api.END_TXN, times=ALWAYS).delay(1_500))
    try:
        short = settings(options)._replace(timeout_ms=700)
        with pytest.raises(
            RuntimeError, match=r"was not sent within transaction\.timeout\.ms=700 and was aborted"
        ):
            commit_batch(staged(options, run_batch(0, "r"), rows(0)), options, short)
    finally:
        slow.remove()
    assert visible(kafka) == Counter()
    commit_batch(staged(options, run_batch(0, "s"), rows(0)), options, settings(options))
    assert visible(kafka) == Counter(rows(0))


def test_older_driver_is_told_that_it_was_superseded(
    kafka: FakeBroker, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [staged(options, run_batch(0, run), rows(0)) for run in ("older", "newer")]
    include = InnerProducer.include

    def late(self: InnerProducer, *arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        commit_batch(tasks[1], options, settings(options))
        return include(self, *arguments, **named)

    monkeypatch.setattr(InnerProducer, "include", late)
    with pytest.raises(RuntimeError, match="this run was superseded by another one of the same query"):
        commit_batch(tasks[0], options, settings(options))
    assert visible(kafka) == Counter(rows(0))


def test_tasks_and_driver_reach_one_daemon_over_tcp(kafka: FakeBroker, tmp_path: Path) -> None:
    access = TcpAccess(tmp_path, ["spark"])
    with SidecarDaemon(kafka.bootstrap_servers, settings=access.settings, config=access.config):
        given = {
            **{"sidecar.run_dir": access.address, "sidecar.curve_key_file": str(access.key_file)},
            **{"topic": TOPIC, "delivery": "exactly_once", "job.id": TOPIC},
        }
        for _ in range(2):
            writer: BatchWriter = pickle.loads(pickle.dumps(BatchWriter(SCHEMA, given)))
            writer.commit([writer.write(arrow(rows(0)[:20])), writer.write(arrow(rows(0)[20:]))])
    assert visible(kafka) == Counter(rows(0))


def test_task_of_write_hands_its_stage_to_the_driver(kafka: FakeBroker, options: Options) -> None:
    columns = find_columns(SCHEMA, TOPIC)
    for run in ("a", "b"):  # as in foreachBatch: the second run writes the batch again
        with task_of("query-3", 0, run):
            told = [
                pickle.loads(row["staged"])
                for part in (rows(0)[:30], rows(0)[30:])
                for batch in _write_task(columns, options, arrow(part))
                for row in batch.to_pylist()
            ]
        commit_batch(told, options, settings(options))
    assert visible(kafka) == Counter(rows(0))
