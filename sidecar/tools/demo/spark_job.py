"""The main use as a user would write it: PySpark reads the flights and writes them through the sidecar.

``python -m sidecar.tools.demo.spark_job CSV RUN_DIR TOPIC``; the demo runs it as a separate process, so that the JVM
and its Python workers end with it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# An explicit schema: inferring it would read the file twice.
SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT, "
    "sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, "
    "dest STRING, air_time DOUBLE, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)


def session(name: str = "flights through the sidecar", class_path: str = "") -> SparkSession:
    """A local session of two tasks whose Python workers use this interpreter; ``class_path``: further jars."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if class_path:
        builder = builder.config("spark.driver.extraClassPath", class_path)
    spark: SparkSession = builder.getOrCreate()
    return spark


def flights(spark: SparkSession, path: str) -> DataFrame:
    """Key = carrier; value = the row as JSON with its event time and a number that shows its order."""
    from pyspark.sql import functions as f

    return (
        spark.read.csv(path, header=True, schema=SCHEMA)
        .withColumn("row", f.monotonically_increasing_id())
        .withColumn("event_time", f.col("time_hour"))
        .select(f.col("carrier").alias("key"), f.to_json(f.struct("*")).alias("value"))
    )


def main() -> int:
    path, run_dir, topic = sys.argv[1:]
    from client_stub.spark import register

    spark = session()
    try:
        register(spark)
        print("session", flush=True)  # the demo shows how long that took
        (
            flights(spark, path)
            .write.format("kafka_sidecar")
            .option("topic", topic)
            .option("sidecar.run_dir", run_dir)
            .mode("append")
            .save()
        )
        print("written", flush=True)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
