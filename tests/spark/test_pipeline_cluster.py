"""Goal: a pipeline by spark-submit on a cluster of two hosts: no row is lost, and no more are twice than it reports."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from client_stub.pipeline import main as submitted
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.reading import end_offsets, iterate_topic
from sidecar.tools.testing.waiting import wait_until
from tests.spark.spark_cluster import CONF, SparkCluster, driver_environment

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SUBMIT = Path(pyspark.__file__).parent / "bin/spark-submit"
ROWS, TASKS = 1_600, 8
RUN_S = 250.0
FILE = """\
[pipeline]
name = "numbers"
[source]
format = "parquet"
path = "{folder}/numbers"
[[step]]
name = "slow"
# A task sends its rows by and by, and the first one takes longest.
sql = "SELECT id, java_method('java.lang.Thread', 'sleep', if(id < 200, 60L, 10L)) AS slept FROM source"
[[output]]
topic = "{topic}"
value = "string(id)"
headers = "map('slept', slept)"
"""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.2",
}


@pytest.fixture(scope="module")
def cluster(kafka: KafkaCluster) -> Iterator[SparkCluster]:
    settings = {"daemon.workers": 1, "buffer.memory": 32 << 20}
    with (
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as first,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as second,
        SparkCluster.with_run_dirs([first.run_dir, second.run_dir]) as started,
    ):
        yield started


def numbers(folder: Path) -> None:
    """A file for each task, written without Spark."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "numbers").mkdir()
    for task in range(TASKS):
        ids = pa.array(range(task * ROWS // TASKS, (task + 1) * ROWS // TASKS), pa.int64())
        pq.write_table(pa.table({"id": ids}), folder / f"numbers/{task}.parquet")


def submit(cluster: SparkCluster, file: Path, conf: Mapping[str, str]) -> subprocess.Popen[str]:
    settings = {
        **CONF,
        # A task for each file, and a message for each 20 rows.
        "spark.sql.files.maxPartitionBytes": "1000",
        "spark.sql.files.openCostInBytes": "1000",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        **conf,
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return subprocess.Popen(
        dying_with_parent(
            [
                str(SUBMIT),
                "--master",
                cluster.master,
                *words,
                str(submitted.__file__),
                "run",
                str(file),
                "--json",
            ]
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=driver_environment(),
        cwd=file.parent,
    )


@pytest.mark.parametrize("fault", ["killed executor", "speculation"])
def test_possible_duplicates_are_no_fewer_than_the_real_ones(
    cluster: SparkCluster, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path, fault: str
) -> None:
    topic = new_topic(2)
    numbers(tmp_path)
    file = tmp_path / "numbers.toml"
    file.write_text(FILE.format(folder=tmp_path, topic=topic))
    run = submit(cluster, file, SPECULATION if fault == "speculation" else {})
    if fault == "killed executor":
        wait_until(
            lambda: run.poll() is not None or sum(end_offsets(kafka.bootstrap_servers, topic).values()) > 0,
            "the first rows",
            timeout_s=RUN_S,
        )
        # Of both hosts: the rows are of a task on one of them, and the other one may not have any yet.
        for executor in [each for host in cluster.hosts for each in host.executors()]:
            executor.kill()
    out, errors = run.communicate(timeout=RUN_S)
    assert run.returncode == 0, errors[-3000:]
    report: dict[str, Any] = json.loads(out)
    (output,) = report["outputs"]
    found = Counter(int(record.value or b"") for record in iterate_topic(kafka.bootstrap_servers, topic))
    assert sorted(found) == list(range(ROWS))
    assert (report["ok"], report["rows_read"], output["rows"]) == (True, ROWS, ROWS)
    assert output["retried_tasks"] > 0
    assert output["duplicates"] >= found.total() - ROWS
