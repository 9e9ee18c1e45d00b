"""Run the bench on an embedded Kafka and compare with what the project promises.

Runs alternate (ours, theirs, ours, theirs), because one machine is shared by caller, daemon and broker and
its mood changes; the median of each side counts.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sidecar.bench.caller import CallerResult
from sidecar.bench.process_stats import cpu_seconds, private_rss_mb
from sidecar.demo.short_lived import run_short_lived
from sidecar.demo.steps import Steps, rows_table
from sidecar.testing.daemon import SidecarDaemon
from sidecar.testing.kafka_cluster import KafkaCluster, exit_on_sigterm

TOPIC = "bench"
PARTITIONS = 6
IDLE_S = 5.0
RATIO_TARGET = 1.5
RSS_TARGET_MB = 80.0
IDLE_CPU_TARGET = 0.01
LATENCY_RECORDS = 300
FIRST_ACK_RUNS = 5
TUNED_BATCH_BYTES = 262_144
"""batch.size of the compared daemon. librdkafka's default is 1,000,000; Kafka's own default of 16,384 makes
the broker the bottleneck, which the runs named default show."""
THROUGHPUT_KINDS = (
    "sidecar-send-many",
    "sidecar-send",
    "sidecar-callbacks",
    "sidecar-default-send-many",
    "sidecar-default-callbacks",
    "confluent-callbacks",
)


@dataclass(frozen=True)
class Line:
    """One measured number, and its target if the project promises one."""

    what: str
    value: str
    target: str = ""
    reached: bool | None = None


@dataclass(frozen=True)
class Bed:
    """What the measurements run against; ``pids`` are the controller, then the workers."""

    steps: Steps
    bootstrap_servers: str
    run_dirs: dict[str, str]
    """Prefix of a kind → run dir, longest prefix first."""
    pids: list[int]
    default_pids: list[int]

    def target(self, kind: str) -> str:
        return next(
            (run_dir for prefix, run_dir in self.run_dirs.items() if kind.startswith(prefix)),
            self.bootstrap_servers,
        )


def daemon_pids(daemon: SidecarDaemon) -> list[int]:
    return [int(daemon.info()["pid"]), *daemon.worker_pids()]


def call(kind: str, target: str, topic: str, records: int) -> str:
    """Run one calling process and return its line of JSON; raises RuntimeError with its last words."""
    done = subprocess.run(
        [sys.executable, "-m", "sidecar.bench.caller", kind, target, topic, str(records)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the bench caller {kind} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def run_bench(*, records: int = 1_000_000, rounds: int = 3, json_path: Path | None = None) -> int:
    """Measure everything, print one table, optionally write JSON. Returns 0; a missed target is shown, not
    an error: this machine's mood is not a regression."""
    steps = Steps()
    lines: list[Line] = []
    with exit_on_sigterm(), contextlib.ExitStack() as stack:
        with steps.step("The kernel, nanoseconds a record"):
            lines += kernel_lines(steps)
        with steps.step("Apache Kafka and the daemon"):
            kafka = stack.enter_context(KafkaCluster(topics={TOPIC: PARTITIONS}, heap_mb=1024))
            memory = {"buffer.memory": 128 << 20}
            default = stack.enter_context(SidecarDaemon(kafka.bootstrap_servers, settings=memory))
            tuned = stack.enter_context(
                SidecarDaemon(kafka.bootstrap_servers, settings={**memory, "batch.size": TUNED_BATCH_BYTES})
            )
        bed = Bed(
            steps,
            kafka.bootstrap_servers,
            {"sidecar-default": str(default.run_dir), "sidecar": str(tuned.run_dir)},
            daemon_pids(tuned),
            daemon_pids(default),
        )
        lines += idle_lines(bed)
        lines += throughput_lines(bed, records, rounds)
        lines += latency_lines(bed)
        lines += first_ack_lines(bed)
        lines += memory_lines(bed.pids)
    shown = [
        (line.what, line.value + (f"  ({_word(line.reached)} {line.target})" if line.target else ""))
        for line in lines
    ]
    steps.console.print(rows_table("Bench", shown))
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    return 0


def kernel_lines(steps: Steps) -> list[Line]:
    """Show the table of ``python -m sidecar.kernel.bench``; its warm row becomes a line of ours."""
    done = subprocess.run(
        [sys.executable, "-m", "sidecar.kernel.bench"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the kernel's bench failed: {done.stderr.strip()[-2000:]}")
    steps.console.print(done.stdout, highlight=False, soft_wrap=True)
    header, *rows = done.stdout.splitlines()
    walks = header.split()[3:]
    lines = []
    for row in rows:
        name, numbers = row.partition("  ")[0], row.split()[-len(walks) :]
        if name.startswith(("warm", "cold")):
            lines.append(Line(f"kernel, {name}, ns: {' / '.join(walks[:4])}", " / ".join(numbers[:4])))
    return lines


def idle_lines(bed: Bed) -> list[Line]:
    all_pids = bed.pids
    with bed.steps.step(f"An idle daemon for {IDLE_S:g} s"):
        time.sleep(1.0)  # its start is not idle
        before, start = cpu_seconds(all_pids), time.monotonic()
        time.sleep(IDLE_S)
        share = (cpu_seconds(all_pids) - before) / (time.monotonic() - start)
    return [Line("idle daemon, CPU", f"{share:.2%}", f"< {IDLE_CPU_TARGET:.0%}", share < IDLE_CPU_TARGET)]


def throughput_lines(bed: Bed, records: int, rounds: int) -> list[Line]:
    """Acked records/s and CPU of one caller, sides alternating."""
    all_pids = [*bed.pids, *bed.default_pids]
    found: dict[str, list[CallerResult]] = {kind: [] for kind in THROUGHPUT_KINDS}
    daemon_cpu: dict[str, list[float]] = {kind: [] for kind in THROUGHPUT_KINDS}
    with bed.steps.step(f"{rounds} alternating rounds of {records:,} records from one caller"):
        for _ in range(rounds):
            for kind in THROUGHPUT_KINDS:
                before = cpu_seconds(all_pids)
                result = CallerResult(
                    *json.loads(call(kind.replace("-default", ""), bed.target(kind), TOPIC, records))
                )
                daemon_cpu[kind].append((cpu_seconds(all_pids) - before) * 1e6 / records)
                found[kind].append(result)
                bed.steps.say(
                    f"{kind}: {result.records_per_s:,.0f}/s, caller {result.cpu_us_per_record:.2f} µs"
                )
                if result.acked < result.records:
                    raise RuntimeError(f"{kind}: only {result.acked:,} of {result.records:,} acked")
    theirs = statistics.median(each.records_per_s for each in found["confluent-callbacks"])
    lines = []
    for kind, results in found.items():
        rate = statistics.median(each.records_per_s for each in results)
        caller_cpu = statistics.median(each.cpu_us_per_record for each in results)
        text = f"{rate:,.0f}/s, caller {caller_cpu:.2f} µs"
        if kind == "confluent-callbacks":
            lines.append(Line(kind, text))
            continue
        text += f", daemon {statistics.median(daemon_cpu[kind]):.2f} µs, {rate / theirs:.2f} × confluent"
        is_compared = "default" not in kind
        target = f"≥ {RATIO_TARGET} ×" if is_compared else ""
        lines.append(Line(kind, text, target, rate / theirs >= RATIO_TARGET if is_compared else None))
    return lines


def latency_lines(bed: Bed) -> list[Line]:
    lines = []
    with bed.steps.step(f"{LATENCY_RECORDS} records one at a time"):
        for kind in ("sidecar-latency", "confluent-latency"):
            seconds = sorted(json.loads(call(kind, bed.target(kind), TOPIC, LATENCY_RECORDS)))
            middle, high = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
            lines.append(Line(f"{kind}, p50 / p99", f"{middle * 1e3:.2f} / {high * 1e3:.2f} ms"))
    return lines


def first_ack_lines(bed: Bed) -> list[Line]:
    lines = []
    with bed.steps.step(f"The first ack in a new process, {FIRST_ACK_RUNS} times"):
        for kind in ("sidecar", "confluent"):
            seconds = [
                run_short_lived(kind, bed.target(kind), TOPIC, processes=1).first_ack_median_s
                for _ in range(FIRST_ACK_RUNS)
            ]
            lines.append(
                Line(f"first ack in a new process, {kind}", f"{statistics.median(seconds) * 1e3:.0f} ms")
            )
    return lines


def memory_lines(pids: list[int]) -> list[Line]:
    """After all the work above, so what grew has grown."""
    lines = []
    for name, pid in zip(["controller", *(f"worker {i}" for i in range(len(pids) - 1))], pids, strict=True):
        size = private_rss_mb(pid)
        lines.append(
            Line(
                f"{name}, memory beyond the pool",
                f"{size:.0f} MB",
                f"≤ {RSS_TARGET_MB:.0f} MB",
                size <= RSS_TARGET_MB,
            )
        )
    return lines


def _word(reached: bool | None) -> str:
    return "reaches" if reached else "MISSES"
