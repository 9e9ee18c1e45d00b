"""The driver's checks before any task, and the way of streams that hand over rows (PySpark 4.0).

The calls are Spark's own; a session is not needed for them, and in one they run in a process of Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from client_stub.contract.run_dir import RUN_DIR_VARIABLE, default_run_dir
from client_stub.spark import columns as columns_module
from client_stub.spark import topic_check, writer
from client_stub.spark.autostart import check_settings
from client_stub.spark.columns import Columns, find_columns
from client_stub.spark.datasource import KafkaSidecarDataSource, RowStreamWriter
from client_stub.spark.options import OF_KAFKA_SOURCE, WINDOW_BATCHES, Options, read_options
from client_stub.spark.producers import ProducerCache
from client_stub.spark.row_parts import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, chunks_of_rows
from client_stub.spark.topic_check import (
    STREAMS_KNOWN_MAX,
    TOPIC_KNOWN_S,
    check_topic,
    check_topic_of_stream,
)
from tests.stub.fake_daemon import FakeDaemon

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def schema(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProducerCache]:
    made = ProducerCache()
    monkeypatch.setattr(writer, "_cache", made)
    yield made
    for producer in made._producers.values():
        producer.close(0)


def test_options_that_are_left_out_have_defaults(tmp_path: Path) -> None:
    found = read_options({"sidecar.run_dir": str(tmp_path)})
    assert found == (None, str(tmp_path), WINDOW_BATCHES, 60_000, "", "", None, "", "", None)


def test_the_run_directory_is_that_of_the_host_where_a_task_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver of a cluster is another host, and often another user."""
    monkeypatch.setenv(RUN_DIR_VARIABLE, "/run/drivers")
    unnamed, named = read_options({}), read_options({"sidecar.run_dir": "/run/named"})
    monkeypatch.setenv(RUN_DIR_VARIABLE, "/run/tasks")
    assert (unnamed.run_dir_here(), named.run_dir_here()) == ("/run/tasks", "/run/named")
    monkeypatch.delenv(RUN_DIR_VARIABLE)
    assert unnamed.run_dir_here() == "/run/drivers"
    assert read_options({}).run_dir_here() == default_run_dir()


def test_a_driver_whose_user_has_no_run_directory_leaves_it_to_the_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in Spark's own images, whose user is 185."""
    monkeypatch.delenv(RUN_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    monkeypatch.setattr("os.geteuid", lambda: 185)
    check_topic(read_options({"topic": "t"}))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("delivery", "twice", "delivery=twice is not known"),
        ("topic", " ", "option topic is empty"),
        ("window", "0", "window=0 must be at least 1"),
        ("max.block.ms", "-1", "max.block.ms=-1 must not be negative"),
        ("window", "many", "window=many must be a whole number"),
        ("max.block.ms", "1s", "max.block.ms=1s must be a whole number"),
        ("kafka.key.serializer", "x", "keys and values are written as string or binary columns"),
        ("kafka.acks", "all", "set acks in the daemon's configuration"),
        ("topics", "orders", "option 'topics' is not known; did you mean 'topic'?"),
        ("max_block_ms", "1", "option 'max_block_ms' is not known; did you mean 'max.block.ms'?"),
        (
            "header",
            "true",
            "option 'header' is not known; options are topic, sidecar.run_dir, sidecar.autostart, delivery, window",
        ),
    ],
)
def test_an_option_that_cannot_be_honoured_is_one_sentence(
    tmp_path: Path, name: str, value: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=r"^kafka_sidecar: [^\n]+$") as raised:
        read_options({"sidecar.run_dir": str(tmp_path), name: value})
    assert sentence in str(raised.value)


def options_from_kafka() -> dict[str, str]:
    """Option → what becomes of it, by the table of the page."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
    table = page.partition("## From `format")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    return {name: outcome.strip() for names, outcome in rows for name in re.findall(r"`([^`]+)`", names)}


@pytest.mark.parametrize(("name", "outcome"), options_from_kafka().items())
def test_an_option_of_sparks_own_sink_does_as_the_page_says(name: str, outcome: str) -> None:
    options = {"topic": "t", "sidecar.autostart": "true", "kafka.bootstrap.servers": "one:9092"}
    values = {
        "kafka.ssl.truststore.location": "/etc/t.pem",
        "kafka.compression.type": "zstd",
        "kafka.acks": "all",
    }
    values |= {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
    options[name.lower()] = value = values.get(name, options.get(name, "1000000"))
    if outcome == "refused":
        with pytest.raises(
            ValueError, match=rf"^kafka_sidecar: .*{re.escape(name.removeprefix('kafka.').lower())}"
        ):
            taken = read_options(options).settings
            assert taken is not None
            check_settings(taken)
        return
    taken = read_options(options).settings
    assert taken is not None
    if name.startswith("kafka."):
        assert (name.removeprefix("kafka."), value) in taken
    else:
        assert [each for each, _ in taken] == ["bootstrap.servers"]


def test_the_page_has_each_option_that_is_known_of_sparks_source() -> None:
    table = options_from_kafka()
    assert {name.lower() for name in table if table[name] == "refused"} >= OF_KAFKA_SOURCE
    assert {"topic", "includeHeaders", "checkpointLocation", "queryName"} <= table.keys()


def test_servers_are_for_the_daemon_to_compare(tmp_path: Path) -> None:
    found = read_options({"sidecar.run_dir": str(tmp_path), "kafka.bootstrap.servers": "two:9092"})
    assert found.asked == {"bootstrap.servers": "two:9092"}


@pytest.mark.parametrize("topic", ["t", None])
def test_another_cluster_is_refused_on_the_driver(daemon: FakeDaemon, topic: str | None) -> None:
    """Without a topic too, as rows may name theirs."""
    options = Options(topic, str(daemon.run_dir), 8, 1_000, "other:9092")
    check_topic(options)
    assert [question[:2] for question in daemon.questions] == [
        [[topic] if topic else [], {"bootstrap.servers": "other:9092"}]
    ]
    daemon.topic_refusals = {topic or "": ("OTHER_CLUSTER", "This client asks for another.")}
    with pytest.raises(ValueError, match=r"^kafka_sidecar: kafka\.bootstrap\.servers: This client asks"):
        check_topic(options)


def test_checkpoint_and_name_of_a_stream_are_options_of_sparks_own(tmp_path: Path) -> None:
    read_options({"sidecar.run_dir": str(tmp_path), "checkpointlocation": "/tmp/x", "queryname": "orders"})


def test_columns_are_found_by_name_else_without_regard_to_case() -> None:
    found = find_columns(
        schema(Value=BinaryType(), other=LongType(), key=StringType(), KEY=LongType(), headers=HEADERS), "t"
    )
    assert found == Columns(value=0, key=2, headers=4)
    by_column = find_columns(schema(topic=StringType(), value=StringType(), partition=IntegerType()), None)
    assert by_column == Columns(value=1, topic=0, partition=2)


@pytest.mark.parametrize("kind", [IntegerType(), LongType(), ShortType()])
def test_a_partition_is_any_whole_number(kind: DataType) -> None:
    assert find_columns(schema(value=BinaryType(), partition=kind), "t").partition == 1


@pytest.mark.parametrize("kind", [TimestampType(), LongType()])
def test_a_timestamp_is_a_time_or_milliseconds(kind: DataType) -> None:
    assert find_columns(schema(value=BinaryType(), timestamp=kind), "t").timestamp == 1


@pytest.mark.parametrize("kind", [BinaryType(), StringType()])
def test_headers_may_be_a_map(kind: DataType) -> None:
    assert find_columns(schema(value=BinaryType(), headers=MapType(StringType(), kind)), "t").headers == 1


def test_columns_that_a_user_could_mean_are_named_once_as_ignored(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own Kafka source gives both."""
    monkeypatch.setattr(columns_module, "_named", set())
    frame = schema(value=BinaryType(), offset=LongType(), timestampType=IntegerType(), other=LongType())
    for _ in range(2):
        find_columns(frame, "t")
    assert [record.getMessage() for record in caplog.records] == [
        f"kafka_sidecar: column {name} is ignored: records are made of the columns topic, key, value, headers, "
        "partition, timestamp."
        for name in ("offset", "timestampType")
    ]


@pytest.mark.parametrize(
    ("columns", "topic", "sentence"),
    [
        (schema(value=BinaryType()), None, "topic option required"),
        (schema(key=BinaryType()), "t", "Required attribute 'value' not found"),
        (schema(value=LongType()), "t", "value attribute unsupported type bigint"),
        (schema(value=BinaryType(), topic=BinaryType()), "t", "topic attribute unsupported type binary"),
        (schema(value=BinaryType(), partition=DoubleType()), "t", "partition must be a(n) int, bigint or"),
        (schema(value=BinaryType(), headers=ArrayType(StringType())), "t", "headers attribute unsupported"),
        (schema(value=StructType()), "t", "value must be a(n) string or binary; to_json(value) makes one"),
        (schema(value=DoubleType()), "t", "value must be a(n) string or binary; string(value) makes one"),
        (
            schema(value=BinaryType(), timestamp=DateType()),
            "t",
            "unsupported type date. timestamp must be a(n) timestamp or bigint; cast(timestamp as timestamp) makes one",
        ),
        (schema(VALUE=BinaryType(), Value=BinaryType()), "t", "ambiguous, could be: VALUE, Value"),
    ],
)
def test_a_missing_or_wrong_column_is_named_in_sparks_words(
    columns: StructType, topic: str | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=r"^kafka_sidecar: [^\n]+$") as raised:
        find_columns(columns, topic)
    assert sentence in str(raised.value)


def test_a_writer_is_made_for_each_mode_but_overwrite(tmp_path: Path) -> None:
    source = KafkaSidecarDataSource({"topic": "t", "sidecar.run_dir": str(tmp_path)})
    assert source.name() == "kafka_sidecar"
    columns = schema(value=BinaryType())
    assert source.writer(columns, overwrite=False)
    assert source.streamWriter(columns, overwrite=True), "complete mode"
    with pytest.raises(ValueError, match="Overwrite not allowed"):
        source.writer(columns, overwrite=True)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "METADATA_TIMEOUT",
            "kafka_sidecar: topic t is not in Kafka (looked for 0.2 s); create it, or correct the option topic.",
        ),
        ("TOPIC_AUTHORIZATION_FAILED", "kafka_sidecar: topic t: TOPIC_AUTHORIZATION_FAILED: not yours"),
    ],
)
def test_a_topic_that_no_record_can_go_to_is_one_error_on_the_driver(
    daemon: FakeDaemon, code: str, sentence: str
) -> None:
    daemon.topic_refusals["t"] = (code, "not yours")
    options = {"topic": "t", "sidecar.run_dir": str(daemon.run_dir), "max.block.ms": "200"}
    source = KafkaSidecarDataSource(options)
    for make in (source.writer, source.streamWriter):
        with pytest.raises(ValueError) as raised:
            make(schema(value=BinaryType()), overwrite=False)
        assert str(raised.value) == sentence
    source.options["topic"] = "other"
    assert source.writer(schema(value=BinaryType()), overwrite=False)


def test_a_stream_takes_the_answer_of_its_last_micro_batches(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr(topic_check, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(topic_check, "_checked_s", {})
    first = Options("t", str(daemon.run_dir), 8, 1_000)
    for passed_s, asked in ((0.0, 1), (TOPIC_KNOWN_S - 1, 1), (TOPIC_KNOWN_S, 2)):
        now_s[0] = 1_000.0 + passed_s
        check_topic_of_stream(first)
        assert len(daemon.questions) == asked
    for number in range(STREAMS_KNOWN_MAX):
        check_topic_of_stream(first._replace(topic=f"t{number}"))
        assert len(topic_check._checked_s) <= STREAMS_KNOWN_MAX
    check_topic_of_stream(first)
    assert len(daemon.questions) == 2 + STREAMS_KNOWN_MAX + 1, "one beyond the bound: all are forgotten"


def test_the_driver_leaves_to_the_tasks_what_it_cannot_know(daemon: FakeDaemon, tmp_path: Path) -> None:
    """Kafka is away, the topic is a column, or executors have daemons where the driver has none."""
    columns = schema(value=BinaryType(), topic=StringType())
    daemon.topic_refusals["t"] = ("KAFKA_UNREACHABLE", "no broker answers")
    for options in (
        {"topic": "t", "sidecar.run_dir": str(daemon.run_dir), "max.block.ms": "200"},
        {"sidecar.run_dir": str(daemon.run_dir)},
        {"topic": "t", "sidecar.run_dir": str(tmp_path)},
    ):
        assert KafkaSidecarDataSource(options).writer(columns, overwrite=False)


def test_rows_of_a_stream_are_gathered_into_chunks(daemon: FakeDaemon, cache: ProducerCache) -> None:
    """PySpark 4.0 has no Arrow writer for streams."""
    sink = RowStreamWriter(
        schema(value=BinaryType(), n=LongType()), {"topic": "t", "sidecar.run_dir": str(daemon.run_dir)}
    )
    message = sink.write(iter([Row(value=b"v%d" % number, n=number) for number in range(5)]))
    assert message.rows == 5  # type: ignore[attr-defined]
    sent = [record[1] for submit in daemon.received for record in submit.records]
    assert sent == [b"v%d" % number for number in range(5)]


@pytest.mark.parametrize(
    ("size_bytes", "rows"),
    [(1, CHUNK_ROWS_MAX), (CHUNK_BYTES_MAX, 1), (CHUNK_BYTES_MAX - 1, 2), (CHUNK_BYTES_MAX // 4, 4)],
)
def test_a_chunk_of_rows_has_a_bound(size_bytes: int, rows: int) -> None:
    """At the bound, and with one row more."""
    value = bytes(size_bytes)
    for count in (rows, rows + 1):
        found = [chunk.rows for chunk in chunks_of_rows(iter([Row(value=value)] * count), "t")]
        assert found == ([rows] if count == rows else [rows, 1])
