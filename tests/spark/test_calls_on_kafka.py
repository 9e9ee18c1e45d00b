"""Goal: write() and write_partition() leave every row in Kafka when a task fails or is killed and is tried again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sidecar.common.python_child import safe_environment
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.reading import read_topic

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.spark]

ROWS = 3_000
TIMEOUT_S = 250.0
JOB = """\
import json, os, signal, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as f
from client_stub.spark import write, write_partition

run_dir, rows, *topics = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.log.level", "OFF")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    .getOrCreate()
)

@f.udf("string")
def fails_once(number):
    context = TaskContext.get()
    if number == int(rows) - 1 and context.attemptNumber() == 0:
        raise ValueError("the first attempt of the last task")
    return str(number)

def killed_once(found):
    for row in found:
        if row.value == str(int(rows) - 1) and TaskContext.get().attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield row

options = {"sidecar.run_dir": run_dir}
numbers = spark.range(0, int(rows), 1, 2)
written = write(numbers.select(fails_once("id").alias("value")), topic=topics[0], **options)
numbers.selectExpr("string(id) value").foreachPartition(
    lambda found: write_partition(killed_once(found), topic=topics[1], **options)
)
print(json.dumps(written._asdict()))
"""


def test_every_row_is_in_kafka_when_tasks_are_tried_again(
    kafka: KafkaCluster, new_topic: NewTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon(kafka.bootstrap_servers)
    topics = [new_topic(), new_topic()]
    job = tmp_path / "job.py"
    job.write_text(JOB)
    done = subprocess.run(
        dying_with_parent([sys.executable, "-P", str(job), str(daemon.run_dir), str(ROWS), *topics]),
        env=safe_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    written = json.loads(done.stdout.splitlines()[-1])
    assert (written["rows"], written["tasks"], written["retried_tasks"]) == (ROWS, 2, 1)
    for topic in topics:
        found = Counter(int(record.value or b"") for record in read_topic(kafka.bootstrap_servers, topic))
        assert set(found) == set(range(ROWS)), "nothing is lost"
        twice = {value for value, count in found.items() if count > 1}
        assert min(twice, default=ROWS) >= ROWS // 2, "of the second task alone, if it had sent any"
