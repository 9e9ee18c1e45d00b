"""Kafka's own ProducerPerformance, the measure of the Java producer."""

from __future__ import annotations

import re
import resource
import subprocess

from sidecar.bench.bed import Bed
from sidecar.bench.measurement import Results
from sidecar.bench.workload import Workload
from sidecar.testing.kafka_jars import java_command, resolve_jars

SECTION = "one caller"
SIDE = "java-perf"
_RESULT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec")


def run_java_perf(bootstrap_servers: str, workload: Workload) -> tuple[float, float]:
    """(records a second, CPU µs a record of the whole JVM). It makes values only, so keys count as value bytes.

    Its rate is what the tool itself prints: from its first send to its last acknowledgement, without the JVM's
    start. Raises RuntimeError with the tool's last words.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [
            java_command(),
            "-Xmx512m",
            "-cp",
            f"{resolve_jars()}/*",
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic",
            workload.topic,
            "--num-records",
            str(workload.records),
            "--record-size",
            str(workload.record_bytes),
            "--throughput",
            "-1",
            "--producer-props",
            f"bootstrap.servers={bootstrap_servers}",
            "acks=all",
            "enable.idempotence=true",
            "linger.ms=5",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    matches = [_RESULT.match(line) for line in done.stdout.splitlines()]
    totals = [match for match in matches if match is not None and int(match.group(1)) == workload.records]
    if done.returncode != 0 or not totals:
        raise RuntimeError(f"ProducerPerformance failed: {(done.stdout + done.stderr).strip()[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(totals[-1].group(2)), cpu_s * 1e6 / workload.records


def measure_java(bed: Bed, results: Results) -> None:
    rates, costs = [], []
    with bed.steps.step(f"Java's ProducerPerformance, {bed.rounds} runs"):
        for _ in range(bed.rounds):
            rate, cost = run_java_perf(bed.site.bootstrap_servers, Workload(bed.topic, bed.records))
            bed.steps.say(f"{SIDE}: {rate:,.0f}/s, JVM {cost:.2f} µs")
            rates.append(rate)
            costs.append(cost)
    results.add(SECTION, "acked records/s", SIDE, "1/s", rates)
    results.add(SECTION, "caller CPU a record", SIDE, "µs", costs)
