"""Spark's own Kafka sink and ours, in one Spark session, on the same rows.

``python -m sidecar.bench.spark_sinks BOOTSTRAP RUN_DIR TOPIC ROWS ROUNDS JARS`` prints one line of JSON: side →
seconds of each save(). Both sides are at their defaults but for acks=all; Spark's sink sends every retried task again,
ours here is at-least-once as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sidecar.bench.bed import Bed
    from sidecar.bench.measurement import Results

SECTION = "Spark"
PARTITIONS = 2


def measure_spark(bed: Bed, results: Results) -> None:
    """Rows a second of whole save() calls. Raises KafkaUnavailable when the sink's jars cannot be had."""
    import pyspark

    from sidecar.testing.kafka_jars import fetch_jars

    version = pyspark.__version__
    pom = resources.files("sidecar.bench").joinpath("spark_kafka_pom.xml").read_text()
    jars = fetch_jars(f"spark-kafka-{version}", pom, {"spark.version": version}, "Spark's Kafka sink")
    with bed.steps.step(f"Spark, {bed.rounds} alternating saves of {bed.records:,} rows"):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "sidecar.bench.spark_sinks",
                bed.site.bootstrap_servers,
                str(bed.site.daemon.run_dir),
                bed.topic,
                str(bed.records),
                str(bed.rounds),
                str(jars),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the Spark comparison failed: {done.stderr.strip()[-2000:]}")
        seconds: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
        for side, taken in seconds.items():
            results.add(SECTION, "rows/s", side, "1/s", [bed.records / each for each in taken])
            bed.steps.say(f"{side}: {bed.records / min(taken):,.0f} rows/s at best")


def _session(jars: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session: SparkSession = (
        SparkSession.builder.master(f"local[{PARTITIONS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.extraClassPath", f"{jars}/*")
        .getOrCreate()
    )
    return session


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    """16-byte keys, 100-byte values, kept in memory so that making them is not measured."""
    frame = spark.range(rows, numPartitions=PARTITIONS).selectExpr(
        "cast(lpad(cast(id as string), 16, '0') as binary) as key",
        "cast(rpad(concat('value-', id), 100, 'x') as binary) as value",
    )
    frame = frame.cache()
    frame.count()
    return frame


def main() -> int:
    bootstrap, run_dir, topic, rows, rounds, jars = sys.argv[1:]
    from client_stub.spark import register

    spark = _session(jars)
    register(spark)

    def save_by_spark(frame: DataFrame) -> None:
        (
            frame.write.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("kafka.acks", "all")
            .option("topic", topic)
            .save()
        )

    def save_by_sidecar(frame: DataFrame) -> None:
        (
            frame.write.format("kafka_sidecar")
            .option("topic", topic)
            .option("sidecar.run_dir", run_dir)
            .mode("append")
            .save()
        )

    ways = {"sidecar": save_by_sidecar, "spark-kafka-sink": save_by_spark}
    found: dict[str, list[float]] = {side: [] for side in ways}
    try:
        frame = _rows(spark, int(rows))
        warm = _rows(spark, 10_000)
        for save in ways.values():
            save(warm)
        for _ in range(int(rounds)):
            for side, save in ways.items():
                start = time.monotonic()
                save(frame)
                found[side].append(time.monotonic() - start)
    finally:
        spark.stop()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
