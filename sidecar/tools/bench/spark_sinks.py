"""Spark's own Kafka sink and ours: rates, CPU, micro-batches, the first job. Each in a Spark session of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.common.python_child import python_command, safe_environment
from sidecar.tools.bench.bed import PARTITIONS
from sidecar.tools.bench.spark_first_job import FIRST_JOB, RUNNING, STARTED, TASKS
from sidecar.tools.bench.spark_saves import (
    COUNTER,
    CPU,
    ETL,
    MANY_TOPICS,
    OURS,
    RATE,
    ROWS_SENT,
    THEIRS,
    TUNED,
    TUNING,
    WRITE,
)
from sidecar.tools.bench.spark_stream import BATCH, COUNTED

if TYPE_CHECKING:
    from sidecar.tools.bench.bed import Bed
    from sidecar.tools.bench.measurement import Results

SECTION: Final = "Spark"
TOPICS: Final = 50
BATCH_MORE_MS_MAX, FIRST_JOB_MORE_S_MAX = 80.0, 3.0
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
    """Measure whole save() calls, micro-batches and the first job. Raises KafkaUnavailable when the sink's jars are not
    available.
    """
    import pyspark

    jars, sentence = connector_jars(pyspark.__version__)
    tuning = ", ".join(f"{name}={value}" for name, value in TUNING.items())
    results.note(f"{sentence}; {TUNED} has {tuning}, everything else is at its default.")
    bed.steps.say(results.notes[-1])
    _measure_saves(bed, results, str(jars))
    site = (bed.site.bootstrap_servers, str(bed.site.daemon.run_dir), bed.topic)
    with bed.steps.step(f"Spark, {bed.rounds} alternating queries of {COUNTED} micro-batches"):
        _run(bed, results, "spark_stream", *site, str(bed.rounds), str(jars))
    with bed.steps.step(f"Spark, {bed.rounds} alternating first jobs of {TASKS} tasks"):
        _run(bed, results, "spark_first_job", *site, str(bed.rounds))
    _note_difference(results, BATCH, OURS, THEIRS, "ms", BATCH_MORE_MS_MAX)
    _note_difference(results, FIRST_JOB, STARTED, RUNNING, "s", FIRST_JOB_MORE_S_MAX)


def _measure_saves(bed: Bed, results: Results, jars: str) -> None:
    from sidecar.tools.testing.kafka_topics import create_topics
    from sidecar.tools.testing.reading import end_offsets

    bootstrap, run_dir = bed.site.bootstrap_servers, str(bed.site.daemon.run_dir)
    topics = TOPICS if bed.is_embedded else 0
    create_topics(bootstrap, {f"{bed.topic}-{number}": PARTITIONS for number in range(topics)})
    before = sum(end_offsets(bootstrap, bed.topic).values())
    with bed.steps.step(f"Spark, {bed.rounds} alternating saves of {bed.records:,} rows"):
        words = (bootstrap, run_dir, bed.topic, str(topics), str(bed.records), str(bed.rounds), jars)
        sent = _run(bed, results, "spark_saves", *words, *map(str, bed.site.pids))
    written = sum(end_offsets(bootstrap, bed.topic).values()) - before
    if written != sent:
        raise RuntimeError(f"Spark's saves of {sent:,.0f} rows wrote {written:,} records")

    def compare(what: str, ours: tuple[str, str], theirs: tuple[str, str], at_least: float) -> None:
        results.compare(what, (SECTION, *ours), (SECTION, *theirs), at_least=at_least)

    compare("Spark, rows/s of save() against a counting writer", (RATE, OURS), (RATE, COUNTER), 0.65)
    for name, side, plain, tuned in (("save()", OURS, 1.6, 1.2), ("write(df)", WRITE, 1.8, 1.3)):
        compare(f"Spark, rows/s of {name} against {THEIRS}", (RATE, side), (RATE, THEIRS), plain)
        compare(f"Spark, rows/s of {name} against {TUNED}", (RATE, side), (RATE, TUNED), tuned)
    many = f"{TOPICS} {MANY_TOPICS}, {RATE}"
    compare(f"Spark, rows/s of {TOPICS} topics against one", (many, OURS), (RATE, OURS), 0.7)
    compare(f"Spark, ETL of parquet to JSON against {TUNED}", (ETL, OURS), (ETL, TUNED), 1.5)
    for side in (OURS, WRITE):
        results.compare(
            f"Spark, CPU of JVM and Python for a row, {side} against {TUNED}",
            (SECTION, CPU, side),
            (SECTION, CPU, TUNED),
            at_most=0.8,
        )


def _note_difference(results: Results, what: str, ours: str, theirs: str, unit: str, most: float) -> None:
    """A target that is a difference and no ratio, as a sentence."""
    found, other = results.find(SECTION, what, ours), results.find(SECTION, what, theirs)
    if found is None or other is None:
        return
    more = found.median - other.median
    word = "reached" if more <= most else "MISSED"
    results.note(
        f"Spark, {what}: {more:+.3g} {unit} {ours} over {theirs}; promised at most {most:+g}: {word}."
    )


def _run(bed: Bed, results: Results, module: str, *words: str) -> float:
    """Run a module whose lines are measured values. Returns its number of rows sent. Raises RuntimeError with the end
    of its output.
    """
    sent = 0.0
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            python_command(f"sidecar.tools.bench.{module}", *words),
            env=safe_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                what, side, unit, value = json.loads(line)
                if what == ROWS_SENT:
                    sent = value
                    continue
                results.add(SECTION, what, side, unit, [value])
                bed.steps.say(f"{what}, {side}: {value:,.4g} {unit.removeprefix('1/s')}".rstrip())
            process.wait()
        finally:
            process.kill()
            process.communicate()
        if process.returncode != 0:
            errors.seek(0)
            raise RuntimeError(f"{module} failed: {errors.read().strip()[-2000:]}")
    return sent
