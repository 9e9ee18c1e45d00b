"""Goal: bad rows and bad input of pipelines on a real Kafka, judged by a consumer that shares no code with them."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from client_stub.pipeline import run as run_module
from client_stub.pipeline.check import check
from client_stub.pipeline.checkpoint import Checkpoint
from client_stub.pipeline.file import Pipeline, PipelineFaults, read_pipeline
from client_stub.pipeline.plan import sentence
from client_stub.pipeline.run import Run
from sidecar.common.python_child import python_command
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster, free_ports
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.reading import end_offsets, read_topic
from sidecar.tools.testing.waiting import wait_until
from tests.conftest import StartDaemon

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.spark]

ROWS = """\
AA,20,1
,30,1
BB,x,1
CC,40,0
DD,50,99
EE,60,-1
LARGE,70,1
"""
FILE = """\
[pipeline]
name = "rows"
[source]
format = "csv"
path = "{folder}/*.csv"
schema = "carrier STRING, delay STRING, part INT"
[[output]]
topic_expr = "if(carrier IS NOT NULL, '{topic}', NULL)"
key = "int(delay)"
value = "carrier"
[sidecar]
run_dir = "{run_dir}"
"""


@pytest.fixture(scope="module")
def daemon(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(
        kafka.bootstrap_servers, settings={"daemon.workers": 1, "max.block.ms": 5_000}
    ) as started:
        yield started


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(ROWS)
    return tmp_path


def pipeline(
    folder: Path, daemon: SidecarDaemon, topic: str, changes: Mapping[str, str] | None = None
) -> Pipeline:
    text = FILE.format(folder=folder, run_dir=daemon.run_dir, topic=topic)
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    (folder / "rows.toml").write_text(text)
    return read_pipeline(folder / "rows.toml", {}, {})


def faults(spark: SparkSession, made: Pipeline) -> list[str]:
    with pytest.raises(PipelineFaults) as raised:
        check(spark, made)
    return [str(each).rpartition("rows.toml:")[2] for each in raised.value.faults]


def failure(made: Run) -> str:
    """What the command says of a run that ends with an error."""
    with pytest.raises(Exception) as raised:
        made.run()
    return sentence(raised.value)


@pytest.mark.parametrize("trigger", ["once", "available-now"])
def test_every_kind_of_bad_row_has_its_reason_and_its_file(
    spark: SparkSession,
    kafka: KafkaCluster,
    daemon: SidecarDaemon,
    new_topic: NewTopic,
    rows: Path,
    trigger: str,
) -> None:
    topic, apart = new_topic(2), new_topic(1)
    changes = {
        f"topic_expr = \"if(carrier IS NOT NULL, '{topic}', NULL)\"": f'topic = "{topic}"',
        '"int(delay)"': '"string(int(delay))"',
        'value = "carrier"': """\
value = "CASE carrier WHEN 'CC' THEN string(1 / part) WHEN 'LARGE' THEN repeat('x', 1 << 20) ELSE carrier END"
"""
        f'partition = "part"\nbad_rows = {{ topic = "{apart}" }}',
    }
    if trigger != "once":
        changes['name = "rows"'] = f'name = "rows"\ntrigger = "{trigger}"\ncheckpoint = "{rows}/checkpoint"'
    report = Run(spark, pipeline(rows, daemon, topic, changes)).run()
    assert report.ok, report.as_text()
    assert [(record.partition, record.value) for record in read_topic(kafka.bootstrap_servers, topic)] == [
        (1, b"AA")
    ]
    bad = read_topic(kafka.bootstrap_servers, apart)
    found: dict[Any, str] = {}
    for record in bad:
        headers = {name: (value or b"").decode() for name, value in record.headers}
        assert headers["file"].endswith("/rows.csv")
        found[json.loads(record.value or b"").get("carrier")] = headers["reason"]
    assert found == {
        None: "the value is null",
        "BB": "key failed",
        "CC": "value failed",
        "DD": f"partition 99 is not one of 0 to 1 of topic {topic}",
        "EE": f"partition -1 is not one of 0 to 1 of topic {topic}",
        "LARGE": "too large: 1048675 bytes, 1048576 may be sent",
    }
    assert (report.outputs[0].rows, report.outputs[0].bad_rows, report.outputs[0].bad_rows_kept) == (1, 6, 6)


@pytest.mark.parametrize("trigger", ["once", "available-now"])
def test_a_partition_that_the_topic_of_its_row_has_not_is_a_bad_row(
    spark: SparkSession,
    kafka: KafkaCluster,
    daemon: SidecarDaemon,
    new_topic: NewTopic,
    tmp_path: Path,
    trigger: str,
) -> None:
    small, large = new_topic(1), new_topic(3)
    (tmp_path / "rows.csv").write_text("AA,small,0\nBB,small,1\nCC,large,2\nDD,large,3\nEE,large,\n")
    changes = {
        "if(carrier IS NOT NULL, '": f"if(delay = 'small', '{small}', '",
        ", NULL)": ")",
        '"int(delay)"': '"delay"',
        'value = "carrier"': f'value = "carrier"\npartition = "part"\nbad_rows = {{ path = "{tmp_path}/bad" }}',
    }
    if trigger != "once":
        changes['name = "rows"'] = (
            f'name = "rows"\ntrigger = "{trigger}"\ncheckpoint = "{tmp_path}/checkpoint"'
        )
    report = Run(spark, pipeline(tmp_path, daemon, large, changes)).run()
    assert report.ok, report.as_text()
    assert report.rows_read == 5
    sent = {record.value for topic in (small, large) for record in read_topic(kafka.bootstrap_servers, topic)}
    assert sent == {b"AA", b"CC", b"EE"}
    bad = [json.loads(line) for path in tmp_path.glob("bad/*.json") for line in path.open()]
    assert {each["row"]["carrier"]: each["reason"] for each in bad} == {
        "BB": f"partition 1 is not one of 0 to 0 of topic {small}",
        "DD": f"partition 3 is not one of 0 to 2 of topic {large}",
    }


def test_a_run_while_kafka_is_away_ends_with_75(
    start_daemon: StartDaemon, new_topic: NewTopic, rows: Path
) -> None:
    daemon = start_daemon(f"127.0.0.1:{free_ports(1)[0]}", wait=False, settings={"daemon.workers": 1})
    daemon.wait_published()
    topic = new_topic(1)
    expression = f"topic_expr = \"if(carrier IS NOT NULL, '{topic}', NULL)\""
    pipeline(rows, daemon, topic, {'"int(delay)"': '"delay"', expression: f'topic = "{topic}"'})
    words = ("run", "rows.toml", "--quiet", "--conf", "spark.ui.enabled=false")
    done = subprocess.run(
        python_command("client_stub.pipeline", *words),
        cwd=rows,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (75, "")
    assert re.fullmatch(
        rf"rows\.toml:8: topic {topic} cannot be looked up: .*Connection refused.*, bring Kafka back\n",
        done.stderr,
    )


def test_a_null_topic_ends_the_run_with_its_row_and_its_file(
    spark: SparkSession, daemon: SidecarDaemon, new_topic: NewTopic, rows: Path
) -> None:
    made = Run(spark, pipeline(rows, daemon, new_topic(1), {'"int(delay)"': '"delay"'}))
    said = failure(made)
    assert "row 1 of task 0 (file file:" in said
    assert said.endswith("rows.csv) cannot be sent: the topic is null")


def test_check_names_topics_cluster_and_types_at_once(
    spark: SparkSession, daemon: SidecarDaemon, new_topic: NewTopic, rows: Path
) -> None:
    """The key is an int, the second topic is missing, and so is that of the bad rows."""
    more = '[[output]]\ntopic = "none-1"\nvalue = "carrier"\nbad_rows = { topic = "none-2" }\n[sidecar]'
    assert faults(spark, pipeline(rows, daemon, new_topic(1), {"[sidecar]": more})) == [
        "9: key: unsupported type int. key must be a(n) string or binary; string(key) makes one, correct the "
        "expression",
        "12: topic none-1 is not in Kafka (looked for 5 s), create it, or correct its name",
        "14: topic none-2 is not in Kafka (looked for 5 s), create it, or correct its name",
    ]


def test_a_daemon_of_another_cluster_is_refused(
    spark: SparkSession, daemon: SidecarDaemon, new_topic: NewTopic, rows: Path
) -> None:
    topic = new_topic(1)
    changes = {
        '"int(delay)"': '"delay"',
        f"topic_expr = \"if(carrier IS NOT NULL, '{topic}', NULL)\"": f'topic = "{topic}"',
        "[sidecar]": '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[sidecar]',
    }
    (fault,) = faults(spark, pipeline(rows, daemon, topic, changes))
    assert fault.startswith("11: ")
    assert "127.0.0.1:1" in fault
    assert fault.endswith(", correct [kafka], or name the run_dir of another daemon")


def test_a_source_that_vanishes_ends_the_run_with_its_file(
    spark: SparkSession,
    daemon: SidecarDaemon,
    new_topic: NewTopic,
    rows: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right after the plan was made, which has listed the files."""
    made = Run(spark, pipeline(rows, daemon, new_topic(1), {'"int(delay)"': '"delay"'}))
    monkeypatch.setattr(run_module, "register", lambda _: (rows / "rows.csv").unlink())
    said = failure(made)
    assert "[FAILED_READ_FILE.FILE_NOT_EXIST]" in said
    assert "rows.csv" in said
    assert made.in_kafka() == "0 rows are in Kafka."


def test_a_topic_that_is_deleted_during_the_run_ends_it(
    spark: SparkSession, kafka: KafkaCluster, daemon: SidecarDaemon, new_topic: NewTopic, rows: Path
) -> None:
    topic = new_topic(1)
    changes = {
        'name = "rows"': f'name = "rows"\ntrigger = "100ms"\ncheckpoint = "{rows}/checkpoint"',
        f'format = "csv"\npath = "{rows}/*.csv"\nschema = "carrier STRING, delay STRING, part INT"': 'format = "rate"',
        f"topic_expr = \"if(carrier IS NOT NULL, '{topic}', NULL)\"": f'topic = "{topic}"',
        'key = "int(delay)"\n': "",
        '"carrier"': '"string(value)"',
    }
    made = Run(spark, pipeline(rows, daemon, topic, changes))
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(failure(made)))
    thread.start()
    wait_until(
        lambda: end_offsets(kafka.bootstrap_servers, topic)[0] > 0, "rows of the stream", timeout_s=120
    )
    kafka.admin().delete_topic(topic)
    thread.join(120)
    assert f"records for topic {topic} failed in task" in said[0]
    assert "TOPIC_DELETED" in said[0] or f"Topic {topic} not present in metadata" in said[0], said


def test_two_runs_of_one_stream_are_told_of_each_other(
    spark: SparkSession, daemon: SidecarDaemon, new_topic: NewTopic, rows: Path
) -> None:
    changes = {
        'name = "rows"': f'name = "rows"\ntrigger = "available-now"\ncheckpoint = "{rows}/checkpoint"',
        '"int(delay)"': '"delay"',
        "if(carrier IS NOT NULL, ": "if(true, ",
        'value = "carrier"': "value = \"coalesce(carrier, 'none')\"",
    }
    made = pipeline(rows, daemon, new_topic(1), changes)
    checkpoint = Checkpoint(spark, str(made.checkpoint))
    with (
        checkpoint.leased(made, "first", lambda: None),
        pytest.raises(
            PipelineFaults, match=r"rows\.toml:4: run first of process \d+ on host \S+ runs this str"
        ),
    ):
        Run(spark, made).run()
    report = Run(spark, made).run()
    assert (report.ok, report.outputs[0].rows) == (True, 7)
