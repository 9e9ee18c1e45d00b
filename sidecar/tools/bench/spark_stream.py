"""Micro-batches of four tasks by Spark's own sink, ours, and a writer that only counts, in one Spark session, by turns.

``python -m sidecar.tools.bench.spark_stream BOOTSTRAP RUN_DIR TOPIC ROUNDS JARS`` prints a line of JSON for each query:
the median of its micro-batches. The first ones of a query are not counted.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Final

from sidecar.tools.bench.spark_session import session, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS: Final = 4
ROWS: Final = 1_000
"""Of a micro-batch."""
WARM, COUNTED = 5, 20
BATCH: Final = f"micro-batch of {TASKS} tasks and {ROWS:,} rows"
OURS, THEIRS, COUNTER = "sidecar", "spark-sink", "counter"


def median_ms(spark: SparkSession, format_name: str, options: dict[str, str]) -> float:
    """The median duration of the micro-batches of one query, from trigger to end."""
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", TASKS)
        .load()
        .selectExpr("string(value) key", "rpad(string(value), 100, 'x') value")
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        query = (
            rows.writeStream.format(format_name)
            .options(**options)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        try:
            while (last := query.lastProgress) is None or last["batchId"] < WARM + COUNTED:
                failure = query.exception()
                if failure is not None:
                    raise failure
                time.sleep(0.1)
            progress = query.recentProgress
        finally:
            query.stop()
    durations = [each["durationMs"]["triggerExecution"] for each in progress if each["batchId"] >= WARM]
    return float(statistics.median(durations[:COUNTED]))


def main() -> int:
    bootstrap, run_dir, topic, rounds, jars = sys.argv[1:]
    from client_stub.spark import register
    from sidecar.tools.bench.spark_counter import RowCounter

    spark = session("Micro-batches side by side", class_path=f"{jars}/*")
    register(spark)
    spark.dataSource.register(RowCounter)
    ours = {"topic": topic, "sidecar.run_dir": run_dir}
    theirs = {"topic": topic, "kafka.bootstrap.servers": bootstrap, "kafka.acks": "all"}
    # The counter runs in the workers of the sink, which has frozen their modules: it shows what else is Spark's own.
    ways: tuple[tuple[str, str, dict[str, str]], ...] = (
        (COUNTER, "row_counter", {}),
        (OURS, "kafka_sidecar", ours),
        (THEIRS, "kafka", theirs),
    )
    try:
        for turn in range(int(rounds) + 1):
            for side, name, options in ways:
                found = median_ms(spark, name, options)
                if turn > 0:
                    tell(BATCH, side, "ms", found)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
