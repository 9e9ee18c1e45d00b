"""The first job of a query that starts its daemon, whose 32 tasks ask at once, and the same job over a running daemon.

``python -m sidecar.tools.bench.spark_first_job BOOTSTRAP RUN_DIR TOPIC ROUNDS`` prints a line of JSON for each job.
Spark has its Python workers before the clock runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Final

from client_stub.spark.autostart import HOME_VARIABLE
from sidecar.tools.bench.spark_session import session, tell

TASKS: Final = 32
FIRST_JOB: Final = f"first job, {TASKS} tasks at once"
STARTED, RUNNING = "with autostart", "over a running daemon"


def main() -> int:
    bootstrap, run_dir, topic, rounds = sys.argv[1:]
    from client_stub.spark import register

    # Its path is short, as those of the sockets in it are limited.
    with tempfile.TemporaryDirectory(prefix="ks-", dir="/tmp", ignore_cleanup_errors=True) as home:
        os.environ[HOME_VARIABLE] = home
        spark = session("The first job", class_path="", master=f"local[{TASKS}]")
        register(spark)
        rows = spark.range(TASKS * 100, numPartitions=TASKS).selectExpr("string(id) value")

        def seconds_of(options: dict[str, str]) -> float:
            start = time.monotonic()
            rows.write.format("kafka_sidecar").options(topic=topic, **options).mode("append").save()
            return time.monotonic() - start

        try:
            seconds_of({"sidecar.run_dir": run_dir})
            for turn in range(int(rounds)):
                tell(FIRST_JOB, RUNNING, "s", seconds_of({"sidecar.run_dir": run_dir}))
                # Other settings are another daemon; the one of the turn before is ending.
                options = {
                    "sidecar.autostart": "true",
                    "kafka.bootstrap.servers": bootstrap,
                    "kafka.client.id": f"first-job-{turn}",
                    "sidecar.daemon.idle_timeout_s": "1",
                }
                tell(FIRST_JOB, STARTED, "s", seconds_of(options))
        finally:
            spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
