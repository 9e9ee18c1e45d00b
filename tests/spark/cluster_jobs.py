"""Jobs of a test, each a driver: ``python -m tests.spark.cluster_jobs JSON`` prints what the job returned."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from client_stub.spark import register

CONNECT: Final = "connect"
"""In place of a master: a server of Spark Connect, which the session starts, and which is a local Spark."""


def main() -> None:
    told = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName(told["job"])
    builder = builder.remote("local[2]") if told["master"] == CONNECT else builder.master(told["master"])
    for name, value in told["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        found = JOBS[told["job"]](spark, **told["arguments"])
    finally:
        spark.stop()
    print(json.dumps(found))


def _numbers(spark: SparkSession, rows: int, tasks: int) -> DataFrame:
    return spark.range(0, rows, 1, tasks).selectExpr("string(id) AS key", "string(id) AS value")


def write(
    spark: SparkSession, rows: int, tasks: int, options: Mapping[str, str], artifact: str | None = None
) -> None:
    """Numbers from 0 as keys and values. ``artifact``: an archive that the session gives its executors."""
    if artifact is not None:
        spark.addArtifacts(artifact, archive=True)
    _numbers(spark, rows, tasks).write.format("kafka_sidecar").mode("append").options(**options).save()


def stream(spark: SparkSession, rows: int, folder: str, files: int, options: Mapping[str, str]) -> int:
    """The numbers by a stream with a file for each micro-batch; how many micro-batches had rows."""
    _numbers(spark, rows, files).write.mode("overwrite").parquet(f"{folder}/rows")
    source = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    query = (
        source.parquet(f"{folder}/rows")
        .repartition(2)
        .writeStream.format("kafka_sidecar")
        .trigger(availableNow=True)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .options(**options)
        .start()
    )
    query.awaitTermination()
    progress = [json.loads(each.json) for each in query.recentProgress]
    return sum(each["sources"][0]["numInputRows"] > 0 for each in progress)


def write_and_stream(
    spark: SparkSession,
    rows: int,
    folder: str,
    files: int,
    options: Mapping[str, str],
    streamed: Mapping[str, str],
) -> dict[str, Any]:
    """The numbers as a batch and as a stream."""
    write(spark, rows, 8, options)
    return {"batches": stream(spark, rows, folder, files, streamed), "hosts": _hosts(spark)}


def write_by_connect(
    spark: SparkSession, rows: int, folder: str, options: Mapping[str, str], streamed: Mapping[str, str]
) -> dict[str, Any]:
    """The numbers as a batch, found by Spark and registered, and as a stream; and what an error says to the client."""
    write(spark, rows, 2, options)
    register(spark)
    write(spark, rows, 2, options)
    batches = stream(spark, rows, folder, 3, streamed)
    try:
        write(spark, 1, 1, {**options, "windw": "1"})
    except Exception as error:
        return {"session": type(spark).__module__, "batches": batches, "refused": str(error)}
    raise AssertionError("a misspelt option was taken")


PACED: Final = "value || replace(reflect('java.lang.Thread', 'sleep', 1L), 'null', '') AS value"
"""The value, a millisecond later: so that a kill meets rows on their way."""


def paced_stream(spark: SparkSession, folder: str, source: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The files of ``source``, each a micro-batch of two tasks, from where the checkpoint is to the end."""
    files = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    query = (
        files.parquet(source)
        .repartition(2)
        .selectExpr("key", PACED)
        .writeStream.format("kafka_sidecar")
        .trigger(availableNow=True)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .options(**options)
        .start()
    )
    query.awaitTermination()
    return {}


def write_with_straggler(spark: SparkSession, rows: int, tasks: int, options: Mapping[str, str]) -> None:
    """The first try of task 0 stops in its middle, for longer than the job may take."""
    stalls_at = rows // tasks // 2

    @f.udf("string")
    def straggle(value: str) -> str:
        context = TaskContext.get()
        assert context is not None
        if int(value) == stalls_at and context.attemptNumber() == 0:
            time.sleep(600)
        return value

    frame = _numbers(spark, rows, tasks).withColumn("value", straggle("value"))
    frame.write.format("kafka_sidecar").mode("append").options(**options).save()


def write_twice(spark: SparkSession, rows: int, tasks: int, options: Mapping[str, str]) -> dict[str, Any]:
    """The numbers, and once more after all executors have gone."""
    write(spark, rows, tasks, options)
    while _hosts(spark):
        time.sleep(0.1)
    write(spark, rows, tasks, options)
    return {"hosts": _hosts(spark)}


def _hosts(spark: SparkSession) -> list[str]:
    """Of the executors that are there now."""
    found = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keys().mkString(" ").split()
    return sorted({each.rpartition(":")[0] for each in found} - {"127.0.0.1"})


JOBS: Final[Mapping[str, Callable[..., Any]]] = {
    each.__name__: each
    for each in (write, write_and_stream, write_by_connect, paced_stream, write_with_straggler, write_twice)
}

if __name__ == "__main__":
    main()
