"""Jobs of Spark that write with delivery=exactly_once, each a driver in a process of its own, which a test may kill."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from sidecar.common.python_child import safe_environment
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.reading import read_topic

SESSION: Final = """\
import json, os, signal, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as f
from client_stub.spark import write

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master(os.environ.get("MASTER", "local[2,4]"))
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.log.level", "OFF")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    .getOrCreate()
)
"""
BATCH: Final = (
    SESSION
    + """
run_dir, rows, topic, *options = sys.argv[1:]

@f.udf("string")
def fails_once(number):
    context = TaskContext.get()
    if number == int(rows) - 1 and context.attemptNumber() == 0:
        raise ValueError("the first attempt of the last task")
    return str(number)

numbers = spark.range(0, int(rows), 1, 3).select(fails_once("id").alias("value"))
options = dict(each.split("=", 1) for each in options)
options |= {"sidecar.run_dir": run_dir, "topic": topic, "delivery": "exactly_once"}
numbers.write.format("kafka_sidecar").mode("append").options(**options).save()
"""
)
STREAM: Final = (
    SESSION
    + """
# Files of lines, two of them a batch, each a task of its own.
run_dir, source, checkpoint, topic, way = sys.argv[1:]
options = {"sidecar.run_dir": run_dir, "topic": topic, "delivery": "exactly_once"}

@f.udf("string")
def flaky(line):
    # Once in a while the first attempt of a task fails in its middle.
    if TaskContext.get().attemptNumber() == 0 and line.endswith("-150") and int(line.split("-")[0]) % 5 == 2:
        raise ValueError("the first attempt of a task")
    return line

lines = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(source)
lines = lines.select(flaky("value").alias("value"), f.col("value").alias("key"))
if way == "sink":
    writer = lines.writeStream.format("kafka_sidecar").options(**options)
else:
    def both(batch, batch_id):
        write(batch, **options)
    writer = lines.writeStream.foreachBatch(both)
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
"""
)


def start(folder: Path, job: str, *arguments: str, master: str = "local[2,4]") -> subprocess.Popen[bytes]:
    """A driver, with its output in ``folder``; it is a session of its own."""
    script = folder / "job.py"
    script.write_text(job)
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(
            dying_with_parent([sys.executable, "-P", str(script), *arguments]),
            env=safe_environment() | {"MASTER": master},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def finish(driver: subprocess.Popen[bytes], folder: Path, timeout_s: float) -> None:
    assert driver.wait(timeout_s) == 0, (folder / "driver.log").read_text()[-4000:]


def committed(servers: str, topic: str) -> Counter[bytes]:
    """The values that a reader with read_committed sees."""
    return Counter(record.value for record in read_topic(servers, topic))
