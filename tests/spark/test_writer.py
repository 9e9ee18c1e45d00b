"""The tasks of one Spark Python worker share producers; the end of one of them is the misfortune of one task.

Spark itself is not needed here: this is what it calls in its Python workers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from client_stub.contract.wire import LocalCode, OutcomeKind
from client_stub.spark import parts, writer
from client_stub.spark.columns import Columns
from client_stub.spark.options import Options
from client_stub.spark.parts import PART_ROWS, chunks_of_batches, parts_of_batch
from client_stub.spark.producers import PRODUCERS_KEPT_MAX, ProducerCache
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

COLUMNS = Columns(value=0)
ROWS = pa.record_batch({"value": pa.array([b"1", b"2"])})


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProducerCache]:
    made = ProducerCache()
    monkeypatch.setattr(writer, "_cache", made)
    yield made
    for producer in made._producers.values():
        producer.close(0)


def write(daemon: FakeDaemon, topic: str = "t", max_block_ms: float = 10_000) -> int:
    options = Options(topic, str(daemon.run_dir), 8, max_block_ms)
    return writer.write_batches(iter([ROWS]), COLUMNS, options).rows


def test_a_client_that_was_turned_away_ends_one_task_and_no_other(daemon: FakeDaemon) -> None:
    """The second task of the process comes as a client of its own."""
    assert write(daemon) == 2
    daemon.refuse_hello = ("MALFORMED_FRAME", "what this client sent cannot be read")
    daemon.kill_worker()
    with pytest.raises(RuntimeError, match=r"kafka_sidecar: .*what this client sent cannot be read"):
        eventually(lambda: write(daemon) and None)
    daemon.refuse_hello = None
    assert write(daemon) == 2
    assert write(daemon) == 2, "and it stays"
    assert len({attach[2] for attach in daemon.attaches}) == 2, "two clients in all"


def test_a_task_without_a_daemon_says_how_long_it_waited(run_dir: Path) -> None:
    options = Options("t", str(run_dir), 8, 150.0)
    with pytest.raises(RuntimeError, match=r"kafka_sidecar: .* \(waited 0\.15 s\).*\. Each executor host"):
        writer.write_batches(iter([ROWS]), COLUMNS, options)


def test_a_refused_topic_is_asked_for_again_by_the_next_task(daemon: FakeDaemon) -> None:
    from client_stub.contract.wire import Kind

    def refuse(client: Any, submit: Any) -> bool:
        daemon.tell(client, [Kind.REFUSED, "INVALID_TOPIC", "that is no name", submit.stream])
        return False

    daemon.accept = refuse
    with pytest.raises(RuntimeError, match="that is no name"):
        write(daemon)
    daemon.accept = lambda client, submit: True
    assert write(daemon) == 2


def test_records_left_by_one_task_fail_no_other_task(daemon: FakeDaemon, cache: ProducerCache) -> None:
    """A call that was broken off has records under way; that they fail, or take long, is that call's misfortune."""
    producer = cache.producer_for(Options("t", str(daemon.run_dir), 8, 10_000))
    producer.send_many("left", [(None, b"1")])
    eventually(lambda: daemon.received)
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, kind=OutcomeKind.FAILED, code=LocalCode.EXPIRED
    )
    producer.send_many("left", [(None, b"2")])
    eventually(lambda: producer.stats().failed)
    daemon.deliver = None
    producer.send_many("left", [(None, b"3")])
    eventually(lambda: len(daemon.received) == 3)
    daemon.deliver = daemon.deliver_all
    assert write(daemon) == 2
    assert producer.stats().waiting == 1


def test_the_second_query_of_a_process_has_its_own_max_block_ms(run_dir: Path, cache: ProducerCache) -> None:
    made = {limit: cache.producer_for(Options("t", str(run_dir), 8, limit)) for limit in (100.0, 200.0)}
    assert {limit: producer._engine.outbox.max_block_ms for limit, producer in made.items()} == {
        100: 100,
        200: 200,
    }
    assert cache.producer_for(Options("other", str(run_dir), 1, 100.0)) is made[100.0]


def test_a_process_keeps_few_producers_and_closes_the_longest_unused(
    daemon: FakeDaemon, cache: ProducerCache
) -> None:
    before = threading.active_count()
    for number in range(PRODUCERS_KEPT_MAX + 3):
        write(daemon, max_block_ms=10_000 + number)
    assert threading.active_count() - before == PRODUCERS_KEPT_MAX
    assert [place[3] for place in cache._producers] == [
        10_003 + number for number in range(PRODUCERS_KEPT_MAX)
    ]


def test_rows_of_a_topic_column_keep_their_order_in_each_topic() -> None:
    """One sort for all topics of a batch, however many there are."""
    names = [f"t{number * 7919 % 50}" for number in range(2_000)]
    batch = pa.record_batch(
        {"topic": pa.array(names), "value": pa.array([str(i).encode() for i in range(2_000)])}
    )
    found = list(parts_of_batch(batch, Columns(value=1, topic=0), None, 0))
    assert len(found) == 50
    for part in found:
        rows = [number for number, name in enumerate(names) if name == part.topic]
        assert [int(value) for value in part.records["value"].to_pylist()] == rows
        assert [part.row_of(record) for record in range(len(rows))] == rows, "which an error names"


def test_a_batch_of_one_topic_is_not_copied() -> None:
    batch = pa.record_batch({"topic": pa.array(["t", "t"]), "value": pa.array([b"1", b"2"])})
    (part,) = parts_of_batch(batch, Columns(value=1, topic=0), None, 7)
    assert (part.topic, part.row_of(1)) == ("t", 8)
    assert part.records["value"].chunk(0).buffers()[2].address == batch["value"].buffers()[2].address


def topic_batches(count: int, rows: int, topics: int) -> list[pa.RecordBatch]:
    """Batches whose values are the numbers of their rows in the task."""
    return [
        pa.record_batch(
            {
                "topic": pa.array([f"t{row % topics}" for row in range(first, first + rows)]),
                "value": pa.array([str(row).encode() for row in range(first, first + rows)]),
            }
        )
        for first in range(0, count * rows, rows)
    ]


def test_batches_of_many_topics_are_divided_together() -> None:
    batches = topic_batches(count=5, rows=PART_ROWS, topics=3)
    chunks = list(chunks_of_batches(iter(batches), Columns(value=1, topic=0), None))
    assert [chunk.batches for chunk in chunks] == [1, 3, 1], "the first one tells how many topics there are"
    assert [chunk.rows for chunk in chunks] == [PART_ROWS, 3 * PART_ROWS, PART_ROWS]
    for chunk in chunks:
        for part in chunk.parts:
            values = [int(value) for value in part.records["value"].to_pylist()]
            assert values == [part.row_of(record) for record in range(len(values))]
            assert values == sorted(values)
            assert {f"t{value % 3}" for value in values} == {part.topic}


def test_a_null_topic_in_joined_batches_is_named_by_its_row() -> None:
    batches = topic_batches(count=3, rows=100, topics=2)
    topics = batches[2]["topic"].to_pylist()
    topics[7] = None
    batches[2] = pa.record_batch({"topic": pa.array(topics, pa.string()), "value": batches[2]["value"]})
    chunks = chunks_of_batches(iter(batches), Columns(value=1, topic=0), None)
    assert len(list(next(chunks).parts)) == 2
    with pytest.raises(ValueError, match="null topic in row 207 of task 0"):
        list(next(chunks).parts)


@pytest.mark.parametrize(("more_bytes", "batches"), [(0, [1, 2, 1]), (-1, [1, 1, 1, 1])])
def test_batches_divided_together_have_a_bound(
    monkeypatch: pytest.MonkeyPatch, more_bytes: int, batches: list[int]
) -> None:
    made = topic_batches(count=4, rows=10, topics=2)
    monkeypatch.setattr(parts, "GATHERED_BYTES_MAX", made[1].nbytes + made[2].nbytes + more_bytes)
    chunks = chunks_of_batches(iter(made), Columns(value=1, topic=0), None)
    assert [chunk.batches for chunk in chunks] == batches


@pytest.mark.parametrize("topic", [None, "option"])
def test_batches_of_one_topic_are_not_joined(topic: str | None) -> None:
    batches = topic_batches(count=3, rows=PART_ROWS, topics=1)
    chunks = chunks_of_batches(iter(batches), Columns(value=1, topic=0), topic)
    assert [chunk.batches for chunk in chunks] == [1, 1, 1]
