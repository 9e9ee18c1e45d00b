"""Goal: the driver's commit of a batch puts its chosen stages and one record into one transaction, or nothing. On a
fake daemon; real ones are in tests/spark/test_exactly_once.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from client_stub.spark.exactly_once import commit
from client_stub.spark.exactly_once.commit import REPLAYS_KNOWN_MAX, TASKS_MAX, commit_stages
from client_stub.spark.exactly_once.commit_record import CommitRecord, unpack
from client_stub.spark.exactly_once.decision import Batch, BatchRefused
from client_stub.spark.exactly_once.messages import StagedTask, batch_of
from client_stub.spark.exactly_once.settings import COMMITS_TOPIC, ExactlyOnce, read_exactly_once
from client_stub.testing import FakeProducer

KEY = "0123456789abcdef"
SETTINGS: ExactlyOnce = read_exactly_once({})
ID = SETTINGS.transactional_id(KEY)


@pytest.fixture
def producer() -> Iterator[FakeProducer]:
    with FakeProducer(transactional_id=ID) as producer:
        yield producer


def batch(number: int, run: str = "run-1", query: str = "query") -> Batch:
    return Batch(KEY, "orders", number, query, run)


def task(producer: FakeProducer, of: Batch, *values: bytes) -> StagedTask:
    with producer.stage(SETTINGS.transactional_id(of.key), of.number, of.run) as stage:
        for value in values:
            stage.send("orders", value)
        return StagedTask(
            of, stage.seal(), len(values), 10 * len(values), 0, frozenset({"orders"}), "host:/run"
        )


def visible(producer: FakeProducer, topic: str = "orders") -> list[bytes | None]:
    return [each.value for each in producer.committed if each.topic == topic]


def records(producer: FakeProducer) -> list[CommitRecord]:
    return [unpack(value) for value in visible(producer, COMMITS_TOPIC) if value is not None]


def test_rows_of_the_chosen_tasks_and_one_record_are_committed(producer: FakeProducer) -> None:
    of = batch(0)
    tasks = [task(producer, of, b"a", b"b"), task(producer, of, b"c")]
    task(producer, of, b"a", b"b")  # an attempt that Spark did not choose
    commit_stages(producer, tasks, of, SETTINGS)
    assert sorted(visible(producer), key=str) == [b"a", b"b", b"c"]
    assert records(producer) == [CommitRecord(0, "query", "run-1", 3, 2, ("orders",))]
    assert producer.staged == {}


def test_batch_of_an_earlier_run_is_dropped_whole(producer: FakeProducer) -> None:
    commit_stages(producer, [task(producer, batch(0), b"a")], batch(0), SETTINGS)
    again = batch(0, run="run-2")
    with FakeProducer(transactional_id=ID) as other:
        other.committed.extend(producer.committed)
        commit_stages(other, [task(other, again, b"a"), task(other, again, b"other split")], again, SETTINGS)
        assert visible(other) == [b"a"]
        assert other.staged == {}


def test_second_write_of_a_replay_is_refused_as_in_the_first_run(producer: FakeProducer) -> None:
    """Both are of one foreachBatch, whose first run has committed the first of them and ended by this error."""
    commit_stages(producer, [task(producer, batch(0), b"a")], batch(0), SETTINGS)

    def write_again(run: str, *rows: bytes) -> None:
        with FakeProducer(transactional_id=ID) as other:
            other.committed.extend(producer.committed)
            commit_stages(other, [task(other, batch(0, run), *rows)], batch(0, run), SETTINGS)
            assert visible(other) == [b"a"]

    for run in ("run-3", "run-4"):
        write_again(run)  # without rows there is nothing to lose
        write_again(run, b"a")
        with pytest.raises(BatchRefused, match=r"already written with sink\.id orders in this run"):
            write_again(run, b"other rows")


def test_replays_of_sixty_four_sinks_are_known_and_not_of_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_replays", {})

    def write_again(number: int) -> None:
        key = f"{number:016x}"
        of = [Batch(key, "orders", 0, "query", run) for run in ("run-1", "run-2")]
        with FakeProducer(transactional_id=SETTINGS.transactional_id(key)) as first:
            commit_stages(first, [task(first, of[0], b"a")], of[0], SETTINGS)
            with FakeProducer(transactional_id=SETTINGS.transactional_id(key)) as second:
                second.committed.extend(first.committed)
                commit_stages(second, [task(second, of[1], b"a")], of[1], SETTINGS)

    for number in range(REPLAYS_KNOWN_MAX):
        write_again(number)
    with pytest.raises(BatchRefused):
        write_again(0)
    write_again(REPLAYS_KNOWN_MAX)
    write_again(0)


def test_first_batch_has_a_record_without_rows_and_later_ones_have_none(producer: FakeProducer) -> None:
    commit_stages(producer, [task(producer, batch(0))], batch(0), SETTINGS)
    assert [each.batch for each in records(producer)] == [0]


def test_a_batch_has_a_thousand_tasks_and_not_one_more(producer: FakeProducer) -> None:
    of = batch(0)
    tasks = [task(producer, of, b"a")] * (TASKS_MAX + 1)
    with pytest.raises(BatchRefused, match=r"batch 0 has 1001 tasks, and at most 1000.*coalesce"):
        commit_stages(producer, tasks, of, SETTINGS)
    assert visible(producer) == []


def test_tasks_at_two_daemons_are_refused_before_anything_is_sent(producer: FakeProducer) -> None:
    one = task(producer, batch(3), b"a")
    other = StagedTask(batch(3), b"token", 1, 10, 0, frozenset(), "other:/run")
    with pytest.raises(BatchRefused, match=r"tasks of batch 3 wrote to 2 daemons \(host:/run, other:/run\)"):
        batch_of([one, other], "host:/run")


def test_driver_at_another_daemon_than_its_tasks_is_refused(producer: FakeProducer) -> None:
    tasks = [task(producer, batch(3), b"a"), task(producer, batch(3), b"b")]
    assert batch_of(tasks, "host:/run") == batch(3)
    with pytest.raises(
        BatchRefused,
        match=r"tasks of batch 3 wrote to the daemon at host:/run, and the driver uses driver:/run.*tcp://host:port",
    ):
        batch_of(tasks, "driver:/run")


def test_stage_that_is_gone_fails_the_batch(producer: FakeProducer) -> None:
    of = batch(0)
    kept, lost = task(producer, of, b"a"), task(producer, of, b"b")
    with FakeProducer(transactional_id=ID) as other:
        other.init_transactions()
        assert other.drop_stages([lost.token]) == 1
    with pytest.raises(BatchRefused, match="tasks of batch 0 are no longer at the daemon"):
        commit_stages(producer, [kept, lost], of, SETTINGS)
    assert visible(producer) == []
