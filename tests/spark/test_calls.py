"""write() and write_partition() in a real Spark: as the data source, from foreachBatch and foreachPartition."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from client_stub.spark import write, write_partition
from client_stub.spark.calls import Written
from client_stub.spark.row_parts import chunks_of_rows
from tests.spark.test_datasource import rows_of
from tests.stub.fake_daemon import FakeDaemon

pytestmark = pytest.mark.spark

Call = Callable[..., Any]


def by_write(frame: DataFrame, **options: object) -> Any:
    return write(frame, **options)


def by_partition(frame: DataFrame, **options: object) -> Any:
    return frame.foreachPartition(lambda rows: write_partition(rows, **options))  # type: ignore[arg-type, return-value]


BOTH = pytest.mark.parametrize("call", [by_write, by_partition])


def at(daemon: FakeDaemon, **more: object) -> dict[str, object]:
    return {"sidecar.run_dir": str(daemon.run_dir), **more}


@BOTH
@pytest.mark.parametrize(
    "headers", ["map('h', 'x')", "array(named_struct('key', 'h', 'value', cast('x' as binary)))"]
)
@pytest.mark.parametrize("time", ["timestamp_millis(id * 1000)", "id * 1000"])
def test_rows_keep_topic_time_partition_and_headers(
    spark: SparkSession, daemon: FakeDaemon, call: Call, time: str, headers: str
) -> None:
    """Names as they may be: with a dot, twice, in capitals."""
    frame = spark.range(1, 5).selectExpr(
        "if(id % 2 = 0, 'even', 'odd') topic",
        "concat('v', id) Value",
        "id `a.b`",
        "id twice",
        "id twice",
        "string(id) key",
        "id % 3 partition",
        f"{time} timestamp",
        f"{headers} headers",
    )
    call(frame, **at(daemon))
    assert sorted(rows_of(daemon)) == [
        (
            "odd" if number % 2 else "even",
            [
                str(number).encode(),
                f"v{number}".encode(),
                [["h", b"x"]],
                number % 3,
                number * 1_000,
            ],
        )
        for number in (2, 4, 1, 3)
    ]


def test_rows_of_all_tasks_are_counted(spark: SparkSession, daemon: FakeDaemon) -> None:
    frame = spark.range(0, 25_000, 1, 3).selectExpr("string(id) value", "id other")
    written = write(frame, **at(daemon, topic="t"))
    contents = sum(len(str(number)) for number in range(25_000))
    assert written == Written(25_000, written.bytes, 3, 0)
    assert contents < written.bytes < contents + 5 * 25_000, "with the end of each, and no other column"
    assert len(rows_of(daemon)) == 25_000
    assert write(frame.limit(0), **at(daemon, topic="t")).rows == 0


def test_a_worker_keeps_its_modules_out_of_the_collection_after_each_task(
    spark: SparkSession, daemon: FakeDaemon
) -> None:
    """Spark's worker collects all garbage before it takes the next task."""
    options, frozen_here = at(daemon, topic="t"), gc.get_freeze_count()

    def written(rows: Iterator[Row]) -> Iterator[tuple[int, int]]:
        write_partition(rows, **options)
        yield gc.get_freeze_count(), len(gc.get_objects())

    rows = spark.range(0, 4, 1, 2).selectExpr("string(id) value")
    for frozen, collected in rows.rdd.mapPartitions(written).collect():
        assert frozen > 9 * collected
    assert gc.get_freeze_count() <= frozen_here, "the program is no worker"


def test_update_mode_by_foreach_batch(spark: SparkSession, daemon: FakeDaemon, tmp_path: Path) -> None:
    """Spark refuses that mode for a data source in Python."""
    folder = tmp_path / "in"
    folder.mkdir()
    written: list[Written] = []

    def send(frame: DataFrame, _: int) -> None:
        rows = frame.selectExpr("value key", "string(count) value")
        written.append(write(rows, topic="counts", **at(daemon)))

    def run() -> None:
        query = (
            spark.readStream.text(str(folder))
            .groupBy("value")
            .count()
            .writeStream.outputMode("update")
            .foreachBatch(send)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None

    (folder / "one.txt").write_text("a\na\nb\n")
    run()
    (folder / "two.txt").write_text("a\nc\n")
    run()
    records = [(record[0], record[1]) for _, record in rows_of(daemon)]
    assert sorted(records) == [(b"a", b"2"), (b"a", b"3"), (b"b", b"1"), (b"c", b"1")], "b did not change"
    assert sum(each.rows for each in written) == 4


def test_a_stream_is_told_where_to_call_it(spark: SparkSession, daemon: FakeDaemon) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("string(value) value")
    with pytest.raises(
        ValueError, match=r"^kafka_sidecar: write\(\) takes the DataFrame of a batch; call it in"
    ):
        write(stream, topic="t", **at(daemon))


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["'v' value"], {}, "topic option required when no 'topic' attribute is present"),
        (["'k' key"], {"topic": "t"}, "Required attribute 'value' not found"),
        (["id value"], {"topic": "t"}, "value must be a(n) string or binary"),
        (["'v' value"], {"topic": "t", "windw": 8}, "option 'windw' is not known; did you mean 'window'?"),
        (["'v' value"], {"topic": "t", "window": 0}, "window=0 must be at least 1"),
        (["'v' value"], {"topic": "t", "kafka.acks": "all"}, "set acks in the daemon's configuration"),
        (
            ["'v' value", "date(now()) timestamp"],
            {"topic": "t"},
            "timestamp must be a(n) timestamp or bigint",
        ),
    ],
)
@BOTH
def test_faults_are_those_of_the_data_source(
    spark: SparkSession,
    daemon: FakeDaemon,
    call: Call,
    columns: list[str],
    options: dict[str, object],
    text: str,
) -> None:
    with pytest.raises(Exception) as caught:
        call(spark.range(3).selectExpr(*columns), **at(daemon, **options))
    assert text in str(caught.value)
    assert str(caught.value).count("kafka_sidecar: kafka_sidecar: ") == 0
    if call is by_write:
        assert str(caught.value).startswith("kafka_sidecar: "), "on the driver"
    assert daemon.hellos == []


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            ["if(id = 5, repeat('x', 1 << 20), 'v') value"],
            "kafka_sidecar: row 5 of task 0, for topic t: The message for topic t is 10486",
        ),
        (["'v' value", "if(id = 5, 1L << 40, 0) partition"], "kafka_sidecar: row 5 of task 0, for topic t: "),
        (["'v' value", "if(id = 5, -1L, 0) timestamp"], "kafka_sidecar: row 5 of task 0, for topic t: "),
    ],
)
@BOTH
def test_a_row_that_cannot_be_a_record_is_named(
    spark: SparkSession, daemon: FakeDaemon, call: Call, columns: list[str], text: str
) -> None:
    frame = spark.range(0, 10, 1, 1).selectExpr(*columns, "if(id % 2 = 1, 't', 'u') topic")
    with pytest.raises(Exception) as caught:
        call(frame, **at(daemon))
    assert text in str(caught.value)


@BOTH
def test_a_null_topic_names_row_and_task(spark: SparkSession, daemon: FakeDaemon, call: Call) -> None:
    frame = spark.range(0, 4, 1, 1).selectExpr("if(id = 2, null, 't') topic", "'v' value")
    with pytest.raises(Exception) as caught:
        call(frame, **at(daemon))
    assert "kafka_sidecar: null topic in row 2 of task 0 and no topic option is set." in str(caught.value)


@BOTH
def test_without_a_daemon_the_error_says_how_to_start_one(
    spark: SparkSession, run_dir: Path, call: Call
) -> None:
    with pytest.raises(Exception) as caught:
        call(
            spark.range(0, 1, 1, 1).selectExpr("'v' value"),
            **{"topic": "t", "sidecar.run_dir": str(run_dir), "max.block.ms": 100},
        )
    assert f"kafka-sidecar daemon at {run_dir}" in str(caught.value)
    assert "Each executor host needs a daemon; option sidecar.run_dir names" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            ("v",),
            "row 1 of task 0 is of type tuple and names no fields; rows are those of a DataFrame, or Row(",
        ),
        (Row(value=5), "row 1 of task 0, for topic t: value attribute unsupported type int. value must be"),
        (Row(value="v", key=1.5), "row 1 of task 0, for topic t: key attribute unsupported type float."),
        (Row(value="v", timestamp="today"), "timestamp attribute unsupported type str."),
        (Row(value="v", headers=["a"]), "headers attribute unsupported type list."),
        (Row(value="v", headers=[Row(name="h", value=b"")]), "headers attribute unsupported type list."),
        (Row(value="v", headers={"h": 1}), "headers attribute unsupported type int."),
        (Row(key="k"), "Required attribute 'value' not found"),
    ],
)
def test_a_row_of_a_wrong_type_is_named(row: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        list(chunks_of_rows([Row(value="v"), row], "t"))
    assert text in str(raised.value)


def test_fields_are_found_again_where_their_order_changes() -> None:
    (chunk,) = chunks_of_rows([Row(key="k", value="v"), Row(value=bytearray(b"w"), key=b"l")], "t")
    (part,) = chunk.parts
    assert part.records == [(b"k", b"v"), (b"l", b"w")]


@pytest.fixture
def zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    "moment",
    [datetime(2026, 1, 5, 7, 0, 0, 1_999), datetime(2026, 1, 5, 12, 0, 0, 1_000, tzinfo=UTC), 1767614400001],
    ids=["without zone", "with one", "ms"],
)
def test_a_time_without_a_zone_is_of_the_workers(moment: object) -> None:
    """Spark hands a timestamp to Python as a local time without a zone: it was read as UTC in PySpark 4.0's streams."""
    (chunk,) = chunks_of_rows([Row(value=b"v", timestamp=moment)], "t")
    (part,) = chunk.parts
    assert part.records == [(None, b"v", None, None, 1767614400001)]
