"""Fifty short-lived processes send 100 records each: once through the sidecar, once by confluent-kafka.

It runs as a separate program (``python -m sidecar.tools.demo.short_lived``), because it forks and the demo has
threads. The library is imported before the fork in both cases, so only the producer's own start is compared: sockets,
metadata, first acknowledgement. The result is one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from sidecar.common.python_child import python_command
from sidecar.tools.testing.forking import fork_and_collect

PROCESSES = 50
RECORDS = 100
VALUE = b"v" * 100

Send = Callable[[str, str, int], tuple[float, int]]
"""(target, topic, number of the process) → (seconds to the first ack, records acked)."""


class ShortLived(NamedTuple):
    """Seconds: to the first acknowledgement in a process (median and slowest), and for all processes."""

    first_ack_median_s: float
    first_ack_max_s: float
    total_s: float
    acked: int


def run_short_lived(kind: str, target: str, topic: str, processes: int = PROCESSES) -> ShortLived:
    """Run one side (``sidecar`` with a run dir, ``confluent`` with bootstrap servers) in a new process.

    Raises RuntimeError with the child's output when a process failed.
    """
    done = subprocess.run(
        python_command("sidecar.tools.demo.short_lived", kind, target, topic, str(processes)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the short-lived processes ({kind}) failed: {done.stderr.strip()}")
    return ShortLived(*json.loads(done.stdout))


def send_by_sidecar(run_dir: str, topic: str, number: int) -> tuple[float, int]:
    """Send the records of one process. Returns (seconds to the first ack, records acked)."""
    from client_stub import Producer

    start = time.monotonic()
    with Producer(run_dir=run_dir, client_name=f"short-lived-{number}") as producer:
        deliveries = [producer.send(topic, value=VALUE, key=b"%d-%d" % (number, i)) for i in range(RECORDS)]
        deliveries[0].result(timeout=60)
        first = time.monotonic() - start
        for delivery in deliveries:
            delivery.result(timeout=60)
    return first, len(deliveries)


def send_by_confluent(bootstrap_servers: str, topic: str, number: int) -> tuple[float, int]:
    """The same by confluent-kafka, idempotent as the sidecar is, polled until each record is acknowledged."""
    from confluent_kafka import Producer

    from sidecar.tools.testing.kafka_topics import quiet_config

    start = time.monotonic()
    first = 0.0
    acked = 0

    def on_delivery(error: object, _message: object) -> None:
        nonlocal first, acked
        if error is not None:
            raise RuntimeError(str(error))
        first = first or time.monotonic() - start
        acked += 1

    producer = Producer(quiet_config(bootstrap_servers, {"enable.idempotence": "true", "linger.ms": 5}))
    for i in range(RECORDS):
        producer.produce(topic, value=VALUE, key=b"%d-%d" % (number, i), on_delivery=on_delivery)
    producer.flush(60)
    return first, acked


def fork_all(send: Send, target: str, topic: str, processes: int) -> ShortLived:
    """Fork ``processes`` children at once, wait for all, and sum up; raises RuntimeError if one failed."""
    start = time.monotonic()
    results = fork_and_collect(processes, lambda number: send(target, topic, number))
    total_s = time.monotonic() - start
    if failed := results.count(None):
        raise RuntimeError(f"{failed} of {processes} processes failed")
    firsts = [first for first, _ in results]
    return ShortLived(statistics.median(firsts), max(firsts), total_s, sum(acked for _, acked in results))


def main() -> int:
    kind, target, topic, processes = sys.argv[1:]
    if kind == "sidecar":
        # Imported before the fork, as a pre-forking server does.
        import client_stub  # noqa: F401

        send: Send = send_by_sidecar
    else:
        import confluent_kafka  # noqa: F401

        import sidecar.tools.testing.kafka_topics  # noqa: F401

        send = send_by_confluent
    print(json.dumps(fork_all(send, target, topic, int(processes))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
