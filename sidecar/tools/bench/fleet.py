"""Many small processes: the cost of each for its host, and of all of them for the broker."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator

from sidecar.common.python_child import python_command
from sidecar.tools.bench.bed import Bed
from sidecar.tools.bench.latency import SENT, SIDES
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.runner import begin, outcome, started
from sidecar.tools.bench.workload import Workload
from sidecar.tools.demo.short_lived import run_short_lived
from sidecar.tools.testing.kafka_jars import java_command, resolve_jars
from sidecar.tools.testing.process_stats import connections_to

SECTION = "50 processes"
FIRST_ACK = "first ack in a new process"
PROCESSES = 50
RECORDS_PER_S = 5_000.0
"""The records per second of all processes together: as a fleet of web workers sends, far from any limit."""
SECONDS = 10.0
SETTLE_S = 4.0
"""The time from the start until connections are counted; all processes are working by then."""
_PRODUCE_REQUESTS = "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,*"


def jmx_options(port: int) -> tuple[str, ...]:
    """Options of the broker's JVM, so that its request counters can be read."""
    prefix = "-Dcom.sun.management.jmxremote"
    return (
        prefix,
        f"{prefix}.port={port}",
        f"{prefix}.rmi.port={port}",
        f"{prefix}.authenticate=false",
        f"{prefix}.ssl=false",
        "-Djava.rmi.server.hostname=127.0.0.1",
    )


def produce_requests(jmx_port: int) -> float:
    """The Produce requests that the broker has had so far, by its own counter (Kafka's JmxTool)."""
    done = subprocess.run(
        [
            java_command(),
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{resolve_jars()}/*",
            "org.apache.kafka.tools.JmxTool",
            "--jmx-url",
            f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{jmx_port}/jmxrmi",
            "--object-name",
            _PRODUCE_REQUESTS,
            "--attributes",
            "Count",
            "--one-time",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    counts = [line for line in done.stdout.splitlines() if line and line[0].isdigit()]
    if done.returncode != 0 or not counts:
        raise RuntimeError(f"the broker's counters cannot be read: {(done.stdout + done.stderr)[-1000:]}")
    # time, then one count for each version of the request
    return sum(float(value) for value in counts[-1].split(",")[1:])


def measure_fleet(bed: Bed, jmx_port: int | None, results: Results) -> None:
    """Measure connections, Produce requests per second and memory, at the same total rate on both sides."""
    port = int(bed.site.bootstrap_servers.rpartition(":")[2])
    with bed.steps.step(f"{PROCESSES} processes that send {RECORDS_PER_S:,.0f} records/s together"):
        for _ in range(bed.rounds):
            for side in SIDES:
                for what, unit, value in _one_fleet(bed, side, port, jmx_port):
                    results.add(SECTION, what, side, unit, [value])
                    bed.steps.say(f"{side}: {what} {value:,.1f} {unit}")
    for what, most in (("connections at the broker", 0.1), ("Produce requests/s at the broker", 0.1)):
        results.compare(
            f"{what}, 50 client processes against 50 confluent processes",
            (SECTION, what, "sidecar"),
            (SECTION, what, "confluent"),
            at_most=most,
        )


def _one_fleet(bed: Bed, side: str, port: int, jmx_port: int | None) -> Iterator[tuple[str, str, float]]:
    words = bed.site.timed_words(
        "open_loop",
        side,
        Workload(bed.topic, 1_000),
        records_per_s=RECORDS_PER_S / PROCESSES,
        seconds=SECONDS,
    )
    others = connections_to(port) if side == "confluent" else 0  # the daemon's own stay open
    with started(words, PROCESSES) as processes:
        requests, start = produce_requests(jmx_port) if jmx_port else 0.0, time.monotonic()
        begin(processes)
        time.sleep(SETTLE_S)  # a measurement window, not a wait for something
        yield "connections at the broker", "", float(connections_to(port) - others)
        found = [outcome(process) for process in processes]
        seconds = time.monotonic() - start
        if jmx_port:
            rate = (produce_requests(jmx_port) - requests) / seconds
            yield "Produce requests/s at the broker", "1/s", rate
    yield SENT, "1/s", sum(each["sent_per_s"] for each in found)
    yield "memory of a client process", "MB", statistics.median(each["rss_mb"] for each in found)


def measure_first_ack(bed: Bed, results: Results) -> None:
    """Measure the time from the fork of a process, with the library imported, to its first acknowledgement."""
    with bed.steps.step(f"The first ack in a new process, {bed.rounds} times"):
        for side in SIDES:
            seconds = [
                run_short_lived(side, bed.site.target(side), bed.topic, processes=1).first_ack_median_s
                for _ in range(bed.rounds)
            ]
            results.add(FIRST_ACK, "time", side, "ms", [each * 1e3 for each in seconds])
    results.compare(
        "first ack in a fresh process against confluent",
        (FIRST_ACK, "time", "sidecar"),
        (FIRST_ACK, "time", "confluent"),
        at_most=0.1,
    )


def measure_memory(bed: Bed, results: Results) -> None:
    """Measure the memory of a new process that has sent 100 records: in all, and in addition to a bare Python."""
    with bed.steps.step(f"Memory of a small client, {bed.rounds} times"):
        bare = [_small_client("none", "") for _ in range(bed.rounds)]
        for side in SIDES:
            sizes = [_small_client(side, bed.site.target(side), bed.topic) for _ in range(bed.rounds)]
            results.add("small client", "memory", side, "MB", sizes)
            results.add(
                "small client",
                "memory over bare Python",
                side,
                "MB",
                [each - statistics.median(bare) for each in sizes],
            )
    results.compare(
        "memory of a client process over bare Python, against confluent",
        ("small client", "memory over bare Python", "sidecar"),
        ("small client", "memory over bare Python", "confluent"),
        at_most=0.4,
    )


def _small_client(side: str, target: str, topic: str = "") -> float:
    done = subprocess.run(
        python_command("sidecar.tools.bench.small_client", side, target, topic),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the small client ({side}) failed: {done.stderr.strip()[-2000:]}")
    return float(done.stdout)
