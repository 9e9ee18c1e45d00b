"""Pipelines in a real Spark, against the scripted daemon: plans, faults, counts and bad rows."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from client_stub.contract.run_dir import RUN_DIR_VARIABLE
from client_stub.contract.wire import LocalCode, OutcomeKind
from client_stub.pipeline.check import check
from client_stub.pipeline.file import Pipeline, PipelineFaults, read_with_faults
from client_stub.pipeline.main import main
from client_stub.pipeline.report import Report
from client_stub.pipeline.run import Interrupted, Run
from tests.spark.conftest import FLIGHTS
from tests.spark.test_datasource import rows_of
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

pytestmark = pytest.mark.spark

LATE = """\
[pipeline]
name = "late"
[source]
format = "csv"
path = "{folder}/*.csv"
schema = "carrier STRING, delay INT"
[[step]]
name = "late"
sql = '''
SELECT * FROM source
WHERE delay > :minutes'''
params = {{ minutes = 10 }}
[[output]]
topic = "late"
key = "carrier"
value = "to_json(struct(*))"
timestamp = "delay * 1000L"
[sidecar]
run_dir = "{run_dir}"
"""


def pipeline(
    folder: Path,
    daemon: FakeDaemon,
    changes: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    **settings: str,
) -> Pipeline:
    text = LATE.format(folder=folder, run_dir=daemon.run_dir)
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    (folder / "late.toml").write_text(text)
    return read_with_faults(folder / "late.toml", settings, environment or {})


def run(spark: SparkSession, made: Pipeline) -> Report:
    return Run(spark, made).run()


def faults(spark: SparkSession, made: Pipeline) -> list[str]:
    with pytest.raises(PipelineFaults) as raised:
        check(spark, made)
    folder = made.file.removesuffix("late.toml")
    return [str(each).removeprefix(folder) for each in raised.value.faults]


def bad_ones(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in folder.glob("bad/*.json") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def test_rows_are_selected_and_sent_and_counted(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    report = run(spark, pipeline(folder, daemon, minutes="25"))
    sent = sorted((record[0], json.loads(record[1])["delay"], record[4]) for _, record in rows_of(daemon)[:2])
    assert sent == [(b"BB", 30, 30_000), (b"CC", 99, 99_000)]
    assert [record[0] for _, record in rows_of(daemon)].count(None) == 1
    assert report.ok
    found = report.as_json()
    assert (found["rows_read"], found["steps"]) == (5, [{"name": "late", "rows": 3}])
    assert (found["outputs"][0]["rows"], found["outputs"][0]["bad_rows"]) == (3, 0)
    assert sum(each["rows"] for each in found["outputs"][0]["partitions"].values()) == 3


def test_a_parameter_is_bound_and_never_pasted(spark: SparkSession, daemon: FakeDaemon, folder: Path) -> None:
    changes = {"delay > :minutes": "carrier = :who", "minutes = 10": 'who = "AA"'}
    report = run(spark, pipeline(folder, daemon, changes, who="x' OR 'a' = 'a"))
    assert (report.ok, report.steps, daemon.received) == (True, {"late": 0}, [])


def test_a_variable_of_the_environment_is_bound_and_never_pasted(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    changes = {"delay > :minutes": "carrier = :who", "minutes = 10": 'who = "${WHO}"'}
    hostile, plain = {"WHO": "x' OR 'a' = 'a"}, {"WHO": "CC"}
    assert run(spark, pipeline(folder, daemon, changes, hostile)).steps == {"late": 0}
    assert run(spark, pipeline(folder, daemon, changes, plain)).steps == {"late": 1}


@pytest.mark.parametrize("kind", ["parquet", "json", "orc", "csv", "table", "glob"])
def test_every_kind_of_source_is_read(
    spark: SparkSession, daemon: FakeDaemon, folder: Path, kind: str
) -> None:
    rows = spark.createDataFrame(FLIGHTS, "carrier string, delay int").coalesce(1)
    source = f'format = "{kind}"\npath = "{folder}/rows"'
    if kind == "table":
        rows.createOrReplaceTempView("flights_of_a_test")
        source = 'table = "flights_of_a_test"'
    elif kind == "glob":
        for number in (1, 2):
            rows.write.parquet(f"{folder}/day={number}")
        source = f'format = "parquet"\npath = "{folder}/day=*"'
    elif kind == "csv":
        rows.write.csv(f"{folder}/rows", header=True)
        source += "\noptions = { header = true, inferSchema = true }"
    else:
        rows.write.format(kind).save(f"{folder}/rows")
    plain = f'format = "csv"\npath = "{folder}/*.csv"\nschema = "carrier STRING, delay INT"'
    report = run(spark, pipeline(folder, daemon, {plain: source}, minutes="25"))
    times = 2 if kind == "glob" else 1
    assert (report.ok, report.outputs[0].rows) == (True, 3 * times)
    sent = sorted(json.loads(record[1])["delay"] for _, record in rows_of(daemon))
    assert sent == sorted([30, 99, 50] * times)


def test_without_a_daemon_a_run_says_so_before_spark_starts(
    spark: SparkSession, daemon: FakeDaemon, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline(folder, daemon, {str(daemon.run_dir): "/nowhere"})
    assert main(["run", str(folder / "late.toml"), "--json"]) == 69
    shown = capsys.readouterr()
    assert shown.err == (
        f"{folder}/late.toml:18: no daemon runs on /nowhere, start one with 'kafka-sidecar run', or name its run_dir "
        "in [sidecar]\n"
    )
    found = json.loads(shown.out)
    assert (found["pipeline"], found["outputs"], found["ok"]) == ("late", [], False)


def test_bad_rows_are_kept_with_their_reason_and_their_file(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    """Two fail, one has no value, one is too large; the others are sent."""
    changes = {
        "to_json(struct(*))": "CASE carrier WHEN 'BB' THEN raise_error('no') WHEN 'CC' THEN repeat('x', 1 << 20) "
        "WHEN 'AA' THEN 'v' END",
        '"carrier"': "if(delay = 3, raise_error('no'), carrier)",
        "[sidecar]": f'bad_rows = {{ path = "{folder}/bad" }}\n[sidecar]',
    }
    changes['"carrier"'] = f'"{changes[chr(34) + "carrier" + chr(34)]}"'
    made = pipeline(folder, daemon, changes, minutes="0")
    report = run(spark, made)
    assert report.ok
    assert [record[:2] for _, record in rows_of(daemon)] == [[b"AA", b"v"]]
    assert (report.outputs[0].rows, report.outputs[0].bad_rows) == (1, 4)
    found = {(each["row"].get("carrier"), each["row"]["delay"]): each for each in bad_ones(folder)}
    assert {place: each["reason"][:20] for place, each in found.items()} == {
        ("BB", 30): "value failed",
        ("AA", 3): "key failed",
        ("CC", 99): "too large: 1048675 b",
        (None, 50): "the value is null",
    }
    assert {each["file"].rpartition("/")[2] for each in found.values()} == {"flights.csv"}


def test_bad_rows_may_have_a_topic(spark: SparkSession, daemon: FakeDaemon, folder: Path) -> None:
    changes = {
        'topic = "late"': "topic_expr = \"concat('late-', carrier)\"",
        "[sidecar]": 'bad_rows = { topic = "bad" }\n[sidecar]',
    }
    report = run(spark, pipeline(folder, daemon, changes))
    assert report.ok
    assert sorted(topic for topic, _ in rows_of(daemon)) == ["bad", "late-AA", "late-BB", "late-CC"]
    value, headers = next(record[1:3] for topic, record in rows_of(daemon) if topic == "bad")
    assert json.loads(value) == {"delay": 50}
    assert headers[0] == ["reason", b"the topic is null"]
    assert headers[1][1].endswith(b"flights.csv")
    assert list(report.as_json()["outputs"][0]["partitions"]) == ["late-AA-0", "late-BB-0", "late-CC-0"]


def test_without_a_place_for_it_a_bad_row_ends_the_run(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    made = pipeline(folder, daemon, {"to_json(struct(*))": "if(carrier = 'CC', NULL, 'v')"})
    with pytest.raises(Exception) as raised:
        run(spark, made)
    assert "kafka_sidecar: output late: row 2 of task 0 (file file:" in str(raised.value)
    assert "flights.csv) cannot be sent: the value is null" in str(raised.value)


def test_a_step_may_join_views_of_the_source(spark: SparkSession, daemon: FakeDaemon, folder: Path) -> None:
    """Spark then knows no source file of a row."""
    changes = {
        "SELECT * FROM source\nWHERE delay > :minutes": "SELECT carrier, a.delay FROM source a JOIN (SELECT carrier, "
        "max(delay) AS delay FROM source GROUP BY carrier) b USING (carrier) WHERE a.delay = b.delay",
        "params = { minutes = 10 }\n": "",
        "to_json(struct(*))": "if(carrier = 'CC', NULL, carrier)",
        "[sidecar]": f'bad_rows = {{ path = "{folder}/bad" }}\n[sidecar]',
    }
    report = run(spark, pipeline(folder, daemon, changes))
    assert report.ok
    assert sorted(record[1] for _, record in rows_of(daemon)) == [b"AA", b"BB"]
    assert [(each["row"]["carrier"], each["file"]) for each in bad_ones(folder)] == [("CC", "")]


def test_a_null_value_may_be_meant(spark: SparkSession, daemon: FakeDaemon, folder: Path) -> None:
    changes = {"to_json(struct(*))": "string(NULL)", "[sidecar]": "tombstones = true\n[sidecar]"}
    assert run(spark, pipeline(folder, daemon, changes)).ok
    assert [record[1] for _, record in rows_of(daemon)] == [None] * 4


def test_check_finds_all_faults_at_once_and_sends_nothing(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    daemon.topic_refusals["nowhere"] = ("METADATA_TIMEOUT", "not there")
    changes = {
        "[[output]]": "[[step]]\nname = 'wrong'\nsql = '''\nSELECT *\nFROM late WHERE dely > 3'''\n"
        "[[step]]\nname = 'drops'\nsql = 'DROP TABLE x'\n"
        "[[step]]\nname = 'after'\nsql = 'SELECT * FROM wrong'\n"
        "[[output]]\nfrom = 'late'\ntopic = 'nowhere'\nvalue = 'count(*)'\npartition = 'carrier'\nkey = 'struct(*)'\n"
        "[[output]]\nfrom = 'late'",
    }
    found = faults(spark, pipeline(folder, daemon, changes))
    assert [each.split(":")[1] for each in found] == ["17", "20", "26", "27", "28", "29"]
    for each, text in zip(
        found,
        [
            "step wrong: [UNRESOLVED_COLUMN.WITH_SUGGESTION]",
            "step drops: [PARSE_SYNTAX_ERROR] Syntax error at or near 'DROP'",
            "topic nowhere is not in Kafka",
            "value: [MISSING_GROUP_BY]",
            "partition: unsupported type string. partition must be a(n) int, bigint or smallint",
            "key: unsupported type struct<carrier:string,delay:int>. key must be a(n) string or binary; to_json(key)",
        ],
        strict=True,
    ):
        assert text in each
    assert daemon.received == []


def test_check_continues_after_faults_of_the_file(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    """Without the source the syntax is checked, and the topic."""
    daemon.topic_refusals["late"] = ("METADATA_TIMEOUT", "not there")
    changes = {"path =": "pathh =", "WHERE delay": "WHER delay", '"carrier"': '"carrier +"'}
    assert [each.partition("(line")[0] for each in faults(spark, pipeline(folder, daemon, changes))] == [
        "late.toml:5: key 'pathh' is not known in source, did you mean 'path'?",
        "late.toml:11: step late: [PARSE_SYNTAX_ERROR] Syntax error at or near 'delay'. ",
        "late.toml:14: topic late is not in Kafka (looked for 5 s), create it, or correct its name",
        "late.toml:15: key: [PARSE_SYNTAX_ERROR] Syntax error at or near end of input. ",
    ]
    changes = {"timestamp =": "timestmp =", "to_json(struct(*))": "delay"}
    assert faults(spark, pipeline(folder, daemon, changes)) == [
        "late.toml:14: topic late is not in Kafka (looked for 5 s), create it, or correct its name",
        "late.toml:16: value: unsupported type int. value must be a(n) string or binary; string(value) makes one, "
        "correct the expression",
        "late.toml:17: key 'timestmp' is not known in output, did you mean 'timestamp'?",
    ]


def test_check_says_that_this_user_has_no_run_directory(
    spark: SparkSession, daemon: FakeDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Spark's own images, whose user is 185."""
    made = pipeline(folder, daemon, {f'run_dir = "{daemon.run_dir}"': ""})
    monkeypatch.delenv(RUN_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "none"))
    monkeypatch.setattr("os.geteuid", lambda: 185)
    (found,) = faults(spark, made)
    assert "There is no default run directory for this user" in found


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        (
            "SELECT * FROM STREAM source",
            "    no rows to show: step late: source is not a temp view of streaming logical plan",
        ),
        (
            "SELECT * FROM source ORDER BY delay",
            "late.toml:13: step late is not possible in a stream: Sorting is not supported on streaming DataFrames",
        ),
    ],
)
def test_check_of_sql_that_only_a_stream_or_only_a_batch_allows(
    spark: SparkSession, daemon: FakeDaemon, folder: Path, sql: str, shown: str
) -> None:
    changes = {
        "[source]": f'trigger = "1s"\ncheckpoint = "{folder}/checkpoint"\n[source]',
        "SELECT * FROM source\nWHERE delay > :minutes": sql,
        "params = { minutes = 10 }\n": "",
    }
    made = pipeline(folder, daemon, changes)
    try:
        last = check(spark, made).splitlines()[-1]
    except PipelineFaults as found:
        last = str(found).removeprefix(f"{folder}/")
    assert last.startswith(shown)
    assert "~" not in last, "no plan of Spark's"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"*.csv": "nothing.csv"}, "late.toml:5: the source cannot be read: [PATH_NOT_FOUND]"),
        ({'"csv"': '"cvs"'}, "late.toml:5: the source cannot be read: [DATA_SOURCE_NOT_FOUND]"),
        ({'"csv"': '"kafka"'}, ", name its package: --conf spark.jars.packages=org.apache.spark:spark-sql-kafka"),
    ],
)  # fmt: skip
def test_a_source_that_is_not_there(
    spark: SparkSession, daemon: FakeDaemon, folder: Path, changes: dict[str, str], text: str
) -> None:
    assert text in faults(spark, pipeline(folder, daemon, changes))[0]


def test_check_shows_columns_types_and_rows(spark: SparkSession, daemon: FakeDaemon, folder: Path) -> None:
    assert check(spark, pipeline(folder, daemon)).splitlines() == [
        "Pipeline late: a batch",
        "source: carrier string, delay int",
        "step late: carrier string, delay int",
        "output late: key string, value string, timestamp bigint",
        '    key=AA, value={"carrier":"AA","delay":20}, timestamp=20000',
        '    key=BB, value={"carrier":"BB","delay":30}, timestamp=30000',
        '    key=CC, value={"carrier":"CC","delay":99}, timestamp=99000',
    ]


def test_counting_keeps_no_filter_from_the_source(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    """A count of the source would read all days of a table; the step after the filter is counted."""
    spark.range(1000).selectExpr("id % 10 AS day", "id").write.partitionBy("day").parquet(f"{folder}/days")
    changes = {
        '"csv"': '"parquet"',
        f"{folder}/*.csv": f"{folder}/days",
        "delay > :minutes": "day = :minutes",
        'schema = "carrier STRING, delay INT"\n': "",
        'key = "carrier"\n': "",
        "delay * 1000L": "id",
    }
    report = run(spark, pipeline(folder, daemon, changes, minutes="3"))
    assert (report.rows_read, report.steps, report.ok) == (100, {"late": 100}, True)


def test_a_write_leaves_its_sums_and_the_rows_of_each_task(folder: Path) -> None:
    from client_stub.spark.write_report import TaskWritten, write_commit

    first = TaskWritten(7, task=0, stage=3, offsets={"late": {0: (0, 6, 7)}})
    second = TaskWritten(5, task=1, stage=3, offsets={"late": {0: (7, 20, 5)}})
    write_commit(str(folder), [first, second, None])
    assert json.loads((folder / "commit.json").read_text()) == {
        "rows": 12,
        "tasks": {"0": 7, "1": 5},
        "stage": 3,
        "topics": {"late": {"0": [0, 20, 12]}},
    }


def test_a_record_that_fails_is_named_with_what_is_in_kafka(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    daemon.deliver = lambda client, submit: daemon.outcome(
        client, submit, kind=OutcomeKind.FAILED, code=LocalCode.EXPIRED
    )
    made = Run(spark, pipeline(folder, daemon))
    with pytest.raises(Exception, match="4 of 4 records for topic late failed"):
        made.run()
    assert made.in_kafka() == "0 rows are in Kafka, and up to 4 more, which a daemon had taken."


def test_a_stream_continues_from_its_checkpoint(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    changes = {
        "[source]": f'trigger = "available-now"\ncheckpoint = "{folder}/checkpoint"\n[source]',
        "[sidecar]": f"bad_rows = {{ path = '{folder}/bad' }}\n[[output]]\nfrom = 'source'\ntopic = 'all'\n"
        "value = 'string(delay)'\n[sidecar]",
        "to_json(struct(*))": "if(carrier = 'CC', NULL, carrier)",
    }
    made = pipeline(folder, daemon, changes)
    first = run(spark, made)
    assert (first.rows_read, first.steps, first.ok) == (5, {"late": 4}, True)
    assert [(output.rows, output.bad_rows, output.duplicates) for output in first.outputs] == [
        (2, 2, 0),
        (5, 0, 0),
    ]
    assert {each["row"].get("carrier") for each in bad_ones(folder)} == {"CC", None}
    (folder / "more.csv").write_text("DD,40\nEE,1\n")
    second = run(spark, made)
    assert (second.rows_read, second.steps, second.ok) == (2, {"late": 1}, True)
    assert [output.rows for output in second.outputs] == [1, 2]
    made.name = "other"
    with pytest.raises(
        PipelineFaults, match=r"late\.toml:4: this is the checkpoint of pipeline late, give each"
    ):
        run(spark, made)


@pytest.mark.skipif(pyspark.__version__ < "4.3", reason="needs SQL with WATERMARK (pip: pyspark>=4.3)")
def test_a_stream_sends_what_its_watermark_has_made_final(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    (folder / "flights.csv").write_text(
        "AA,2026-11-01 05:10:00\nBB,2026-11-01 05:20:00\nCC,2026-11-01 12:00:00\n"
    )
    changes = {
        "[source]": f'trigger = "available-now"\ncheckpoint = "{folder}/checkpoint"\n[source]',
        "delay INT": "at TIMESTAMP",
        "SELECT * FROM source\nWHERE delay > :minutes": "SELECT count(*) AS flights FROM source WATERMARK at DELAY OF "
        "INTERVAL 1 HOUR GROUP BY window(at, '1 hour')",
        "params = { minutes = 10 }\n": "",
        'key = "carrier"\n': "",
        'timestamp = "delay * 1000L"\n': "",
    }
    report = run(spark, pipeline(folder, daemon, changes))
    assert [record[1] for _, record in rows_of(daemon)] == [b'{"flights":2}']
    assert (report.rows_read, report.steps, report.ok) == (3, {"late": 1}, True)


def test_ctrl_c_ends_a_batch_and_says_what_is_in_kafka(
    spark: SparkSession, daemon: FakeDaemon, folder: Path
) -> None:
    daemon.deliver = None
    made = Run(spark, pipeline(folder, daemon))
    presser = threading.Thread(
        target=lambda: (eventually(lambda: daemon.received, 120), os.kill(os.getpid(), signal.SIGINT))
    )
    presser.start()
    with pytest.raises(
        Interrupted,
        match=r"^Stopped by Ctrl-C\. 0 rows are in Kafka, and up to 4 more, which a daemon had taken\. The next run "
        r"begins with the first row again\.$",
    ) as raised:
        made.run()
    presser.join()
    assert made.report.verdict() == made.report.as_json()["error"] == str(raised.value)
    assert made.report.ending is not None
    assert made.report.ending.status == 130
    assert spark.range(3).count() == 3, "the session is whole"
