"""Spark's own Kafka sink and ours, in one Spark session, on the same rows.

``python -m sidecar.tools.bench.spark_sinks BOOTSTRAP RUN_DIR TOPIC ROWS ROUNDS JARS`` prints a line of JSON for each
save(): the side and its seconds, null for the first of each side, which is not counted: the JVM compiles. All sides
use acks=all and are idempotent (Spark's sink by its client's default). A retried task sends its rows again on either
side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.common.python_child import python_command, safe_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from sidecar.tools.bench.bed import Bed
    from sidecar.tools.bench.measurement import Results

SECTION: Final = "Spark"
PARTITIONS: Final = 2
OURS, THEIRS, TUNED = "sidecar", "spark-kafka-sink", "spark-kafka-sink-tuned"
TUNING: Final = {"linger.ms": "20", "batch.size": str(256 << 10)}
KNOWN_CONNECTORS: Final = (("4.2.0", "4.2.0"), ("4.2.0", "4.0.0"))
"""Versions of the connector and of its token provider that work in Spark 4.3, best first; taken when Maven Central has
not the connector of the installed Spark. Some token providers are not there, and it is not used without Kerberos."""


def connector_jars(spark_version: str) -> tuple[Path, str]:
    """(the jars of Spark's Kafka connector, a sentence that names its version).

    Raises KafkaUnavailable with the reason of the first version tried.
    """
    from sidecar.tools.testing.kafka_jars import KafkaUnavailable, cache_dir, fetch_jars

    def folder(versions: tuple[str, str]) -> str:
        return "spark-kafka-{}-{}".format(*versions)

    # What was fetched before comes first: Maven takes 20 s to say that it has not the best one.
    wanted = ((spark_version, spark_version), *KNOWN_CONNECTORS)
    pom = resources.files("sidecar.tools.bench").joinpath("spark_kafka_pom.xml").read_text()
    reasons: list[KafkaUnavailable] = []
    for connector, token in sorted(wanted, key=lambda each: not (cache_dir() / folder(each)).is_dir()):
        try:
            jars = fetch_jars(
                folder((connector, token)),
                pom,
                {"connector.version": connector, "token.version": token},
                f"Spark's Kafka sink {connector}",
            )
        except KafkaUnavailable as error:
            reasons.append(error)
            continue
        client = next((each.stem for each in jars.glob("kafka-clients-*.jar")), "no kafka-clients")
        sentence = f"Spark {spark_version} with its Kafka sink of version {connector} ({client})"
        if connector != spark_version:
            sentence += f", since Maven Central has no {spark_version} of it"
        return jars, sentence
    raise reasons[0]


def measure_spark(bed: Bed, results: Results) -> None:
    """Measure the rows per second of whole save() calls. Raises KafkaUnavailable when the sink's jars are not
    available.
    """
    import pyspark

    from sidecar.tools.testing.reading import end_offsets

    jars, sentence = connector_jars(pyspark.__version__)
    tuning = ", ".join(f"{name}={value}" for name, value in TUNING.items())
    results.note(f"{sentence}; {TUNED} has {tuning}, everything else is at its default.")
    before = sum(end_offsets(bed.site.bootstrap_servers, bed.topic).values())
    with (
        bed.steps.step(f"Spark, {bed.rounds} alternating saves of {bed.records:,} rows"),
        tempfile.TemporaryFile("w+") as errors,
    ):
        bed.steps.say(results.notes[-1])
        process = subprocess.Popen(
            python_command(
                "sidecar.tools.bench.spark_sinks",
                bed.site.bootstrap_servers,
                str(bed.site.daemon.run_dir),
                bed.topic,
                str(bed.records),
                str(bed.rounds),
                str(jars),
            ),
            env=safe_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        saves = 0
        try:
            assert process.stdout is not None
            for line in process.stdout:
                side, seconds = json.loads(line)
                saves += 1
                if seconds is not None:
                    results.add(SECTION, "rows/s", side, "1/s", [bed.records / seconds])
                    bed.steps.say(f"{side}: {bed.records / seconds:,.0f} rows/s")
            process.wait()
        finally:
            process.kill()
            process.communicate()
        if process.returncode != 0:
            errors.seek(0)
            raise RuntimeError(f"the Spark comparison failed: {errors.read().strip()[-2000:]}")
    written = sum(end_offsets(bed.site.bootstrap_servers, bed.topic).values()) - before
    if written != saves * bed.records:
        raise RuntimeError(f"Spark's {saves} saves of {bed.records:,} rows wrote {written:,} records")
    for other in (THEIRS, TUNED):
        results.compare(
            f"Spark, rows/s of save() against {other}",
            (SECTION, "rows/s", OURS),
            (SECTION, "rows/s", other),
        )


def session(name: str, class_path: str) -> SparkSession:
    """A local session of two tasks whose Python workers use this interpreter; ``class_path``: further jars."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraClassPath", class_path)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    """16-byte keys, 100-byte values, kept in memory so that making them is not measured."""
    frame = spark.range(rows, numPartitions=PARTITIONS).selectExpr(
        "cast(lpad(cast(id as string), 16, '0') as binary) as key",
        "cast(rpad(concat('value-', id), 100, 'x') as binary) as value",
    )
    frame = frame.cache()
    frame.count()
    return frame


def _ways(bootstrap: str, run_dir: str, topic: str) -> dict[str, Callable[[DataFrame], None]]:
    def save_by_spark(frame: DataFrame, **more: str) -> None:
        options = {"kafka.bootstrap.servers": bootstrap, "kafka.acks": "all", "topic": topic} | more
        frame.write.format("kafka").options(**options).save()

    def save_tuned(frame: DataFrame) -> None:
        save_by_spark(frame, **{f"kafka.{name}": value for name, value in TUNING.items()})

    def save_by_sidecar(frame: DataFrame) -> None:
        options = {"topic": topic, "sidecar.run_dir": run_dir}
        frame.write.format("kafka_sidecar").options(**options).mode("append").save()

    return {OURS: save_by_sidecar, THEIRS: save_by_spark, TUNED: save_tuned}


def main() -> int:
    bootstrap, run_dir, topic, rows, rounds, jars = sys.argv[1:]
    from client_stub.spark import register

    spark = session("Kafka sinks side by side", class_path=f"{jars}/*")
    register(spark)
    ways = _ways(bootstrap, run_dir, topic)
    try:
        frame = _rows(spark, int(rows))
        for side, save in ways.items():
            save(frame)
            print(json.dumps([side, None]), flush=True)
        for _ in range(int(rounds)):
            for side, save in ways.items():
                start = time.monotonic()
                save(frame)
                print(json.dumps([side, time.monotonic() - start]), flush=True)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
