"""Jobs of a test, each a driver: ``python -m tests.spark.cluster_jobs JSON`` prints what the job returned."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    told = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(told["master"]).appName(told["job"])
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


def write(spark: SparkSession, rows: int, tasks: int, options: Mapping[str, str]) -> None:
    """Numbers from 0 as keys and values."""
    _numbers(spark, rows, tasks).write.format("kafka_sidecar").mode("append").options(**options).save()


def write_and_stream(
    spark: SparkSession,
    rows: int,
    folder: str,
    files: int,
    options: Mapping[str, str],
    streamed: Mapping[str, str],
) -> dict[str, Any]:
    """The numbers as a batch, and then as a stream with a file for each micro-batch."""
    write(spark, rows, 8, options)
    _numbers(spark, rows, files).write.mode("overwrite").parquet(f"{folder}/rows")
    source = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    query = (
        source.parquet(f"{folder}/rows")
        .repartition(2)
        .writeStream.format("kafka_sidecar")
        .trigger(availableNow=True)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .options(**streamed)
        .start()
    )
    query.awaitTermination()
    written = sum(each["numInputRows"] > 0 for each in query.recentProgress)
    return {"hosts": _hosts(spark), "batches": written}


def _hosts(spark: SparkSession) -> list[str]:
    """Of the executors that are there now."""
    found = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keys().mkString(" ").split()
    return sorted({each.rpartition(":")[0] for each in found} - {"127.0.0.1"})


JOBS: Final[Mapping[str, Callable[..., Any]]] = {"write": write, "write_and_stream": write_and_stream}

if __name__ == "__main__":
    main()
