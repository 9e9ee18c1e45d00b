"""The data source in a real Spark, against the scripted daemon: rows, columns, and the sentences of errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from client_stub.contract.run_dir import RUN_DIR_VARIABLE
from client_stub.contract.wire import Format, LocalCode, OutcomeKind
from client_stub.spark import register
from tests.spark.conftest import ROOT
from tests.stub.fake_daemon import FakeDaemon
from tests.stub.records.column_reader import read_columns

STREAMS = 200

pytestmark = pytest.mark.spark


def rows_of(daemon: FakeDaemon) -> list[tuple[str, list[Any]]]:
    """Every record that arrived, as (topic, [key, value, headers, partition, timestamp])."""
    rows = []
    for submit in daemon.received:
        if submit.format == Format.ARROW:
            records: list[Any] = read_columns(submit.payload)
        else:
            records = [[*each, *[None] * (5 - len(each))] for each in submit.records]
        rows += [(submit.topic, record) for record in records]
    return rows


def save(frame: DataFrame, run_dir: Path, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("kafka_sidecar").mode(mode).option("sidecar.run_dir", str(run_dir))
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save()


def failure(frame: DataFrame, run_dir: Path, mode: str = "append", **options: str) -> str:
    with pytest.raises(Exception) as caught:
        save(frame, run_dir, mode, **options)
    return str(caught.value)


def test_whole_arrow_batches_arrive_as_columns(spark: SparkSession, daemon: FakeDaemon) -> None:
    """Found without registration: Spark discovers the package by its name."""
    frame = spark.range(30_000).select(
        f.col("id").cast("string").alias("key"), f.concat(f.lit("v"), f.col("id")).alias("value")
    )
    save(frame, daemon.run_dir, topic="t")
    assert {submit.format for submit in daemon.received} == {Format.ARROW}
    rows = rows_of(daemon)
    assert sorted(int(record[0]) for _, record in rows) == list(range(30_000))
    assert all(topic == "t" and record[1] == b"v" + record[0] for topic, record in rows)


def test_topic_partition_headers_and_nulls_are_taken_from_columns(
    spark: SparkSession, daemon: FakeDaemon
) -> None:
    frame = spark.range(10).select(
        f.when(f.col("id") % 2 == 0, "even").otherwise("odd").alias("topic"),
        f.when(f.col("id") > 3, f.col("id").cast("string")).alias("Value"),
        f.expr("array(named_struct('key','h','value',cast('x' as binary)), "
               "named_struct('key','h','value',cast(null as binary)))").alias("headers"),
        f.lit(1).alias("partition"),
        f.lit(True).alias("ignored"),
    )  # fmt: skip
    save(frame, daemon.run_dir)
    rows = rows_of(daemon)
    assert len(rows) == 10
    for topic, record in rows:
        key, value, headers, partition = record[:4]
        assert key is None
        assert headers == [["h", b"x"], ["h", None]]
        assert partition == 1
        if value is not None:
            assert topic == ("even" if int(value) % 2 == 0 else "odd")
    assert sum(record[1] is None for _, record in rows) == 4


@pytest.mark.parametrize(
    "headers", ["map('h', 'x')", "map('h', cast('x' as binary))"], ids=["map of texts", "map of bytes"]
)
@pytest.mark.parametrize(
    "time", ["timestamp_millis(id * 1000)", "id * 1000"], ids=["timestamp", "milliseconds"]
)
def test_a_record_keeps_its_time_its_partition_and_its_headers(
    spark: SparkSession, daemon: FakeDaemon, time: str, headers: str
) -> None:
    """The columns of Spark's Kafka source, as a replay of a topic has them."""
    frame = spark.range(1, 5).selectExpr(
        "'v' value", "id % 3 partition", f"{time} timestamp", f"{headers} headers", "id offset"
    )
    save(frame, daemon.run_dir, topic="t")
    assert sorted(record[2:] for _, record in rows_of(daemon)) == sorted(
        [[["h", b"x"]], number % 3, number * 1000] for number in range(1, 5)
    )


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            ["if(id = 5, repeat('x', 1 << 20), 'v') value"],
            "kafka_sidecar: row 5 of task 0, for topic t: The message for topic t is 10486",
        ),
        (["'v' value", "if(id = 5, 1L << 40, 0) partition"], "kafka_sidecar: row 5 of task 0, for topic t: "),
    ],
)
@pytest.mark.parametrize("topic", [{"topic": "t"}, {}], ids=["option", "column"])
def test_a_row_that_cannot_be_a_record_is_named(
    spark: SparkSession, daemon: FakeDaemon, columns: list[str], text: str, topic: dict[str, str]
) -> None:
    frame = spark.range(0, 10, 1, 1).selectExpr(*columns, "if(id % 2 = 1, 't', 'u') topic")
    assert text in failure(frame, daemon.run_dir, **topic)


def test_a_task_with_more_topics_than_streams_and_the_next_of_its_process(
    spark: SparkSession, daemon: FakeDaemon
) -> None:
    """A task of 250 topics failed four times, and 200 topics got their rows each time."""
    daemon.limits["streams"] = STREAMS
    names = [f"t{number}" for number in range(STREAMS + 50)]
    for some in (names, names[-50:], [f"new-{number}" for number in range(50)]):
        daemon.do(daemon.received.clear)
        rows = [(topic, f"{topic}-{number}") for number in range(3) for topic in some]
        save(spark.createDataFrame(rows, "topic string, value string").coalesce(1), daemon.run_dir)
        arrived = [(topic, record[1].decode()) for topic, record in rows_of(daemon)]
        assert sorted(arrived) == sorted(rows)
    assert daemon.ended


def test_the_topic_option_wins_over_the_column(spark: SparkSession, daemon: FakeDaemon) -> None:
    frame = spark.range(3).select(f.lit("foo").alias("topic"), f.lit("v").alias("value"))
    save(frame, daemon.run_dir, topic="bar")
    assert {topic for topic, _ in rows_of(daemon)} == {"bar"}


def test_a_stream_in_append_mode(spark: SparkSession, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(1, 6):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
    query = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(tmp_path / "in"))
        .writeStream.queryName("orders")
        .format("kafka_sidecar")
        .option("topic", "s")
        .option("sidecar.run_dir", str(daemon.run_dir))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert query.exception() is None
    progress = [(each["name"], each["sink"]["numOutputRows"]) for each in query.recentProgress]
    assert progress.count(("orders", 1)) == 5
    assert len(daemon.questions) <= 5, "the topic was looked up twice for each micro-batch"
    assert sorted(record[1] for _, record in rows_of(daemon)) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["cast(id as string) value"], {}, "topic option required when no 'topic' attribute is present."),
        (["id key"], {"topic": "t"}, "key attribute unsupported type bigint. key must be a(n) string or binary"),
        (["'k' key"], {"topic": "t"}, "Required attribute 'value' not found"),
        (["id value"], {"topic": "t"}, "value attribute unsupported type bigint. value must be a(n) string or binary"),
        (["id topic", "'v' value"], {}, "topic attribute unsupported type bigint. topic must be a(n) string"),
        (["'v' value", "'1' partition"], {"topic": "t"},
         "partition attribute unsupported type string. partition must be a(n) int"),
        (["'v' value", "array('a') headers"], {"topic": "t"},
         "headers attribute unsupported type array<string>. "
         "headers must be a(n) array<struct<key:string,value:binary>>"),
        (["struct(*) value"], {"topic": "t"}, "value must be a(n) string or binary; to_json(value) makes one"),
        (["'v' value"], {"topic": "t", "delivery": "twice"}, "use at_least_once or exactly_once"),
        (["'v' value"], {"topic": "t", "kafka__key__serializer": "x"}, "'kafka.key.serializer' is not supported"),
        (["'v' value"], {"topic": "t", "kafka__linger__ms": "5"}, "set linger.ms in the daemon's configuration"),
        (["'v' value"], {"topic": "t", "window": "many"}, "option window=many must be a whole number"),
    ],
)  # fmt: skip
def test_faults_are_raised_before_any_task(
    spark: SparkSession, daemon: FakeDaemon, columns: list[str], options: dict[str, str], text: str
) -> None:
    assert text in failure(spark.range(3).selectExpr(*columns), daemon.run_dir, **options)
    assert daemon.hellos == []


def test_overwrite_is_refused(spark: SparkSession, daemon: FakeDaemon) -> None:
    frame = spark.range(3).selectExpr("'v' value")
    text = failure(frame, daemon.run_dir, mode="overwrite", topic="t")
    assert 'kafka_sidecar: save mode Overwrite not allowed; use mode("append").' in text


def test_a_null_topic_names_row_and_task(spark: SparkSession, daemon: FakeDaemon) -> None:
    frame = spark.range(0, 4, 1, 1).selectExpr("if(id = 2, null, 't') topic", "'v' value")
    text = failure(frame, daemon.run_dir)
    assert "kafka_sidecar: null topic in row 2 of task 0 and no topic option is set." in text


def test_no_sidecar_says_where_and_how_to_start_one(spark: SparkSession, run_dir: Path) -> None:
    text = failure(spark.range(1).selectExpr("'v' value"), run_dir, topic="t")
    assert f"kafka-sidecar daemon at {run_dir}" in text
    assert "Each executor host needs a daemon; option sidecar.run_dir names" in text


def test_a_record_that_fails_fails_the_job(spark: SparkSession, daemon: FakeDaemon) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(
        client,
        submit,
        kind=OutcomeKind.FAILED,
        code=LocalCode.INVALID_PARTITION,
        text="partition 99 does not exist in topic t (6 partitions).",
    )
    frame = spark.range(1).selectExpr("'v' value", "99 partition")
    text = failure(frame, daemon.run_dir, topic="t")
    assert "kafka_sidecar: 1 of 1 records for topic t failed in task " in text
    assert "INVALID_PARTITION: partition 99 does not exist in topic t (6 partitions)." in text


def test_a_missing_topic_is_an_error_before_any_task(spark: SparkSession, daemon: FakeDaemon) -> None:
    daemon.topic_refusals["nowhere"] = ("METADATA_TIMEOUT", "not there")
    frame = spark.range(3).selectExpr("'v' value")
    text = failure(frame, daemon.run_dir, topic="nowhere", max__block__ms="300")
    assert "kafka_sidecar: topic nowhere is not in Kafka (looked for 0.3 s)" in text
    assert daemon.hellos == []


def test_register_says_what_to_set_when_the_workers_have_another_python(
    spark: SparkSession, daemon: FakeDaemon, tmp_path: Path
) -> None:
    """The interpreter below is the same one, without the packages of this environment."""
    register(spark)
    bare = tmp_path / "python"
    bare.write_text(
        "#!/bin/sh\n"
        f"PYTHONPATH=$(echo \"$PYTHONPATH\" | tr : '\\n' | grep -vx '{ROOT}' | paste -sd:) "
        f'exec {sys.base_prefix}/bin/python3 -S "$@"\n'
    )
    bare.chmod(0o755)
    context = spark.sparkContext
    usual = context.pythonExec
    context.pythonExec = str(bare)
    try:
        with pytest.raises(RuntimeError) as raised:
            register(spark)
        register(spark, check=False)
    finally:
        context.pythonExec = usual
    assert re.fullmatch(
        rf"kafka_sidecar: the Python of Spark's workers \({bare}\) cannot write: .*No module named '\w+'\. "
        rf"Set PYSPARK_PYTHON={sys.executable} before the session starts, or install 'kafka-sidecar\[spark\]' there\.",
        str(raised.value),
    )
    register(spark)
    save(spark.range(3).selectExpr("'v' value"), daemon.run_dir, topic="t")
    assert len(rows_of(daemon)) == 3


def test_the_programs_of_the_pages_run(
    spark: SparkSession, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block of Python that needs a session, as it stands there."""
    found = []
    for page in ("README.md", "docs/spark.md"):
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
        # Those that start a daemon of their own need Kafka: test_autostart.py has them.
        blocks = [block for block in blocks if "sidecar.autostart" not in block]
        found += [(page, block) for block in blocks if "spark" in block or "df." in block]
    assert len(found) >= 5
    frame = spark.range(3).selectExpr("'v' value")
    # Spark's planner has its environment already: only an option can name the daemon of this test there.
    frame_on_page = SimpleNamespace(write=frame.write.option("sidecar.run_dir", str(daemon.run_dir)))
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(daemon.run_dir))
    monkeypatch.setitem(spark.sparkContext.environment, RUN_DIR_VARIABLE, str(daemon.run_dir))
    for page, block in found:
        exec(compile(block, page, "exec"), {"spark": spark, "df": frame_on_page})
    assert {topic for topic, _ in rows_of(daemon)} == {"orders"}
    assert len(rows_of(daemon)) >= 2 * 3 + 10 + 100


def test_sql_inserts_into_a_table_and_a_view(spark: SparkSession, daemon: FakeDaemon, tmp_path: Path) -> None:
    """Spark hands the OPTIONS of a temporary view to the format, and of a table only its columns."""
    options = f"'sidecar.run_dir' '{daemon.run_dir}', topic 't'"
    spark.sql(f"CREATE TEMPORARY VIEW to_kafka (value STRING) USING kafka_sidecar OPTIONS ({options})")
    spark.sql(f"CREATE TABLE in_kafka (value STRING) USING kafka_sidecar OPTIONS ({options})")
    try:
        spark.sql("INSERT INTO to_kafka VALUES ('a')")
        spark.sql(
            f"INSERT INTO in_kafka WITH ('topic' = 'u', 'sidecar.run_dir' = '{daemon.run_dir}') VALUES ('b')"
        )
        with pytest.raises(
            Exception, match=r"INSERT INTO name WITH \('topic' = '\.\.\.'\), as Spark does not"
        ):
            spark.sql("INSERT INTO in_kafka VALUES ('c')")
        with pytest.raises(Exception, match=r"the format only writes; read with format\('kafka'\)"):
            spark.table("to_kafka").collect()
        with pytest.raises(Exception, match="save mode Overwrite not allowed"):
            spark.sql("INSERT OVERWRITE to_kafka VALUES ('d')")
    finally:
        spark.sql("DROP VIEW to_kafka")
        spark.sql("DROP TABLE in_kafka")
    assert sorted((topic, record[1]) for topic, record in rows_of(daemon)) == [("t", b"a"), ("u", b"b")]


@pytest.mark.parametrize(
    "ask",
    [
        lambda spark: spark.sql("CREATE TABLE columnless USING kafka_sidecar"),
        lambda spark: spark.read.format("kafka_sidecar").load(),
        lambda spark: spark.readStream.format("kafka_sidecar").load(),
    ],
    ids=["table", "read", "stream"],
)
def test_a_read_and_a_table_without_columns_are_one_sentence(
    spark: SparkSession, ask: Callable[[SparkSession], object]
) -> None:
    with pytest.raises(
        Exception, match=r"the format only writes; read with format\('kafka'\)\. A table .* names its"
    ):
        ask(spark)
