"""Whole saves of the same rows by each side in one Spark session, by turns.

``python -m sidecar.tools.bench.spark_saves BOOTSTRAP RUN_DIR TOPIC TOPICS ROWS ROUNDS JARS PID...`` prints a line of
JSON for each value (see ``spark_session.tell``), and one with the rows that the topic must have got. The first save of
each side is not counted: the JVM compiles. All sides use acks=all and are idempotent (Spark's sink by its client's
default). TOPICS: how many topics ``TOPIC-0`` and so on there are beside it, 0 for none; PID: the daemon's processes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.tools.bench.spark_session import key_and_value, session, spark_cpu_seconds, tell
from sidecar.tools.bench.used_memory import use_memory
from sidecar.tools.testing.process_stats import cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNTER, OURS, WRITE, THEIRS, TUNED = "counter", "sidecar", "write(df)", "spark-sink", "spark-sink-tuned"
TUNING: Final = {"linger.ms": "20", "batch.size": str(256 << 10)}
RATE, ETL = "rows/s", "ETL of parquet to JSON, rows/s"
CPU, DAEMON_CPU = "CPU of JVM and Python, a row", "CPU of the daemon, a row"
MANY_TOPICS: Final = "topics in a column"
ROWS_SENT: Final = "rows sent"
RECORD_BYTES: Final = 130
"""In the broker's log, about."""
ETL_SHARE: Final = 3
"""Of the rows, for the ETL: 1 in so many."""


class Saves:
    """The ways of one session to save a DataFrame."""

    def __init__(self, bootstrap: str, run_dir: str, topic: str, topics: int) -> None:
        self._bootstrap, self._run_dir, self._topic, self._topics = bootstrap, run_dir, topic, topics
        self.has_topics = topics > 0
        self.sent = 0
        """Rows that the topic must have got."""

    def by_counter(self, frame: DataFrame) -> None:
        frame.write.format("row_counter").mode("append").save()

    def by_sidecar(self, frame: DataFrame) -> None:
        options = {"topic": self._topic, "sidecar.run_dir": self._run_dir}
        frame.write.format("kafka_sidecar").options(**options).mode("append").save()

    def by_write(self, frame: DataFrame) -> None:
        from client_stub.spark import write

        write(frame, topic=self._topic, **{"sidecar.run_dir": self._run_dir})

    def by_many_topics(self, frame: DataFrame) -> None:
        name = f"concat('{self._topic}-', crc32(key) % {self._topics}) topic"
        rows = frame.selectExpr("key", "value", name)
        rows.write.format("kafka_sidecar").option("sidecar.run_dir", self._run_dir).mode("append").save()

    def by_spark(self, frame: DataFrame) -> None:
        self._by_spark(frame, {})

    def by_tuned_spark(self, frame: DataFrame) -> None:
        self._by_spark(frame, TUNING)

    def _by_spark(self, frame: DataFrame, more: dict[str, str]) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "acks": "all"} | more
        options = {f"kafka.{name}": value for name, value in settings.items()} | {"topic": self._topic}
        frame.write.format("kafka").options(**options).save()


def etl_rows(spark: SparkSession, rows: int, folder: Path) -> Callable[[], DataFrame]:
    """Orders in parquet; the call is the plan that makes JSON of nine in ten of them."""
    path = str(folder / "orders.parquet")
    spark.range(rows * 10 // 9, numPartitions=2).selectExpr(
        "id",
        "concat('customer-', id % 10007) customer",
        "cast(id % 1000 as double) / 7 price",
        "cast(id % 9 as int) amount",
        "timestamp_seconds(1767225600 + id) at",
    ).write.parquet(path)
    return lambda: (
        spark.read.parquet(path)
        .where("id % 10 < 9")
        .selectExpr("*", "round(price * amount, 2) total")
        .selectExpr("customer key", "to_json(struct(*)) value")
    )


def main() -> int:
    bootstrap, run_dir, topic, topics, rows_text, rounds, jars, *pids = sys.argv[1:]
    rows, daemon = int(rows_text), [int(pid) for pid in pids]
    from client_stub.spark import register
    from sidecar.tools.bench.spark_counter import RowCounter

    spark = session("Kafka sinks side by side", class_path=f"{jars}/*")
    register(spark)
    spark.dataSource.register(RowCounter)
    saves = Saves(bootstrap, run_dir, topic, int(topics))
    with tempfile.TemporaryDirectory() as folder:
        frame = key_and_value(spark, rows, Path(folder))
        etl = etl_rows(spark, rows // ETL_SHARE, Path(folder))
        etl_count = etl().count()

        def measured(what: str, side: str, save: Callable[[DataFrame], None], *, is_counted: bool) -> None:
            given, count = (etl(), etl_count) if what == ETL else (frame, rows)
            if saves.has_topics:  # the broker is of this bench, and so on this machine
                use_memory(count * RECORD_BYTES)
            daemon_s, before, start = cpu_seconds(daemon), spark_cpu_seconds(), time.monotonic()
            save(given)
            seconds, after = time.monotonic() - start, spark_cpu_seconds()
            if save not in (saves.by_counter, saves.by_many_topics):
                saves.sent += count
            if not is_counted:
                return
            tell(what, side, "1/s", count / seconds)
            if what == RATE:
                used = sum(now - before.get(pid, 0.0) for pid, now in after.items())
                tell(CPU, side, "µs", used * 1e6 / count)
                if side in (OURS, WRITE):
                    tell(DAEMON_CPU, side, "µs", (cpu_seconds(daemon) - daemon_s) * 1e6 / count)

        ways: list[tuple[str, str, Callable[[DataFrame], None]]] = [
            (RATE, COUNTER, saves.by_counter),
            (RATE, OURS, saves.by_sidecar),
            (RATE, WRITE, saves.by_write),
            (RATE, THEIRS, saves.by_spark),
            (RATE, TUNED, saves.by_tuned_spark),
            (ETL, OURS, saves.by_sidecar),
            (ETL, TUNED, saves.by_tuned_spark),
        ]
        if saves.has_topics:
            ways.insert(2, (f"{topics} {MANY_TOPICS}, {RATE}", OURS, saves.by_many_topics))
        try:
            for turn in range(int(rounds) + 1):
                # To and fro, as a save leaves garbage, dirty pages and plans to compile to the next one.
                for what, side, save in ways if turn % 2 else reversed(ways):
                    measured(what, side, save, is_counted=turn > 0)
        finally:
            spark.stop()
    tell(ROWS_SENT, OURS, "", saves.sent)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
