"""Kafka's own ProducerPerformance as a measure of the Java producer: in a JVM that has just started, and in a warm
one.
"""

from __future__ import annotations

import re
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Final

from sidecar.tools.bench.bed import Bed
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.workload import Workload
from sidecar.tools.testing.kafka_jars import java_command, resolve_jars
from sidecar.tools.testing.process_stats import cpu_seconds

SECTION: Final = "one caller"
COLD, WARM = "java-perf-cold", "java-perf"
COLD_RECORDS_MAX: Final = 1_000_000
ENDLESS: Final = 1_000_000_000
WARM_UP_WINDOWS: Final = 2
"""Windows that are not counted; the JVM has compiled its code after the first. A window is 5 s, as in the tool."""
WINDOW_BYTES: Final = 640 << 20
"""The bytes of log for about a million records per second. Memory for the windows' records is used before the first
window, as no window may be stopped.
"""
_LINE: Final = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec")


def java_words(bootstrap_servers: str, topic: str, records: int, record_bytes: int) -> list[str]:
    """The command. The tool makes values only, so keys count as value bytes."""
    return [
        java_command(),
        "-Xmx512m",
        "-cp",
        f"{resolve_jars()}/*",
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        str(records),
        "--record-size",
        str(record_bytes),
        "--throughput",
        "-1",
        "--producer-props",
        f"bootstrap.servers={bootstrap_servers}",
        "acks=all",
        "enable.idempotence=true",
        "linger.ms=5",
    ]


def run_cold(bootstrap_servers: str, workload: Workload) -> tuple[float, float]:
    """(records per second, CPU µs per record of the whole JVM) of a JVM that has only just started.

    The rate is what the tool prints: from its first send to its last acknowledgement, without the JVM's start. Raises
    RuntimeError with the end of the tool's output.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        java_words(bootstrap_servers, workload.topic, workload.records, workload.record_bytes),
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    matches = [_LINE.match(line) for line in done.stdout.splitlines()]
    totals = [match for match in matches if match is not None and int(match.group(1)) == workload.records]
    if done.returncode != 0 or not totals:
        raise RuntimeError(f"ProducerPerformance failed: {(done.stdout + done.stderr).strip()[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(totals[-1].group(2)), cpu_s * 1e6 / workload.records


def run_warm(bootstrap_servers: str, workload: Workload, windows: int) -> Iterator[tuple[float, float]]:
    """The same for ``windows`` windows of 5 s of one JVM, after the first two. Raises RuntimeError as above.

    The tool would not stop, so it is killed after the last window.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            java_words(bootstrap_servers, workload.topic, ENDLESS, workload.record_bytes),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert process.stdout is not None
            cpu_s, seen = 0.0, 0
            while seen < WARM_UP_WINDOWS + windows:
                line = process.stdout.readline()
                if not line:
                    errors.seek(0)
                    raise RuntimeError(f"ProducerPerformance failed: {errors.read().strip()[-2000:]}")
                window = _LINE.match(line)
                if window is None:
                    continue
                seen += 1
                before_s, cpu_s = cpu_s, cpu_seconds([process.pid])
                if seen > WARM_UP_WINDOWS:
                    yield float(window.group(2)), (cpu_s - before_s) * 1e6 / int(window.group(1))
        finally:
            process.kill()
            process.communicate()


def measure_java(bed: Bed, results: Results) -> None:
    """Measure both. The promises are about the warm one."""
    servers = bed.site.bootstrap_servers
    workload = Workload(bed.topic, min(bed.records, COLD_RECORDS_MAX))
    with bed.steps.step(
        f"Java's ProducerPerformance, {bed.rounds} runs that have just started, and a long one"
    ):
        for _ in range(bed.rounds):
            bed.before_run(workload.records * workload.record_bytes)
            _add(bed, results, COLD, *run_cold(servers, workload))
        bed.before_run(WINDOW_BYTES * (WARM_UP_WINDOWS + bed.rounds))
        for rate, cost in run_warm(servers, workload, bed.rounds):
            _add(bed, results, WARM, rate, cost)
    results.note(
        f"{WARM}: windows of 5 s of one JVM, after {5 * WARM_UP_WINDOWS} s that are not counted; {COLD}: "
        f"{workload.records:,} records from a JVM that has just started, its compiler included."
    )


def _add(bed: Bed, results: Results, side: str, rate: float, cost: float) -> None:
    results.add(SECTION, "acked records/s", side, "1/s", [rate])
    results.add(SECTION, "caller CPU a record", side, "µs", [cost])
    bed.steps.say(f"{side}: {rate:,.0f}/s, JVM {cost:.2f} µs")
