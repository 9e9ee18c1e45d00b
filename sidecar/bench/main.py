"""The bench: every side on the same broker, with the same records and the same guarantees, in alternating runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sidecar.bench.bed import PARTITIONS, TOPIC, Bed, daemon_before, describe_machine
from sidecar.bench.crash_safety import measure_crash_safety
from sidecar.bench.fleet import jmx_options, measure_first_ack, measure_fleet, measure_memory
from sidecar.bench.idle import measure_idle
from sidecar.bench.interference import measure_interference
from sidecar.bench.java_perf import measure_java
from sidecar.bench.kernel_walks import measure_kernel
from sidecar.bench.latency import (
    LOADS,
    MANY_CALLERS,
    compare_open_loop,
    measure_one_by_one,
    measure_open_loop,
)
from sidecar.bench.measurement import Results
from sidecar.bench.report import print_results, to_markdown, write_json
from sidecar.bench.scale import measure_scale
from sidecar.bench.spark_sinks import measure_spark
from sidecar.bench.throughput import compare_throughput, measure_throughput
from sidecar.demo.steps import Steps
from sidecar.testing.kafka_cluster import KafkaCluster, exit_on_sigterm, free_ports

ONE, MANY = "one caller", "8 callers"
PARTS: Final = (
    "kernel",
    "throughput",
    "crash-safety",
    "callers",
    "java",
    "spark",
    "sync",
    "open-loop",
    "interference",
    "fleet",
    "first-ack",
    "memory",
    "idle",
    "scale",
)
CALLERS_KINDS: Final = ("sidecar-callbacks", "sidecar-send-many", "confluent-callbacks")


def run_bench(
    *,
    records: int = 1_000_000,
    rounds: int = 5,
    parts: Sequence[str] = PARTS,
    bootstrap_servers: str | None = None,
    topic: str = TOPIC,
    json_path: Path | None = None,
    markdown_path: Path | None = None,
    plots_dir: Path | None = None,
) -> Results:
    """Measure ``parts`` and print tables; on an embedded Kafka unless ``bootstrap_servers`` names a cluster.

    A missed promise is shown and is no error: a machine's mood is no regression. Raises RuntimeError when a run
    fails, KafkaUnavailable (one sentence) when Java or Maven are needed and missing.
    """
    steps = Steps()
    results = Results(machine=describe_machine())
    with exit_on_sigterm(), contextlib.ExitStack() as stack:
        if "kernel" in parts:
            measure_kernel(steps, results)
        if any(part not in ("kernel", "scale") for part in parts):
            jmx_port = None
            with steps.step("The broker and the daemons"):
                if bootstrap_servers is None:
                    jmx_port = free_ports(1)[0]
                    cluster = KafkaCluster(
                        topics={topic: PARTITIONS}, heap_mb=1024, jvm_options=jmx_options(jmx_port)
                    )
                    bootstrap_servers = stack.enter_context(cluster).bootstrap_servers
                site = stack.enter_context(daemon_before(bootstrap_servers))
            bed = Bed(steps, site, topic, records, rounds)
            if "idle" in parts:
                measure_idle(bed, results)
            if "throughput" in parts:
                measure_throughput(bed, results)
            if "crash-safety" in parts:
                measure_crash_safety(bed, results)
            if "java" in parts:
                measure_java(bed, results)
            compare_throughput(results)
            if "callers" in parts or "open-loop" in parts:
                measure_throughput(bed, results, section=MANY, kinds=CALLERS_KINDS, callers=MANY_CALLERS)
            if "spark" in parts:
                measure_spark(bed, results)
            if "sync" in parts:
                with daemon_before(bootstrap_servers, {"linger.ms": 0}) as without_linger:
                    measure_one_by_one(bed, {0.0: without_linger, 5.0: site}, results)
            if "open-loop" in parts:
                _open_loop(bed, results)
            if "interference" in parts:
                measure_interference(bed, results)
            if "fleet" in parts:
                measure_fleet(bed, jmx_port, results)
            if "first-ack" in parts:
                measure_first_ack(bed, results)
            if "memory" in parts:
                measure_memory(bed, results)
    if "scale" in parts:
        measure_scale(steps, results, records=records, rounds=rounds)
    print_results(steps.console, results)
    if json_path is not None:
        write_json(json_path, results)
    if markdown_path is not None:
        markdown_path.write_text(to_markdown(results))
    if plots_dir is not None:
        _plots(results, plots_dir)
    return results


def _open_loop(bed: Bed, results: Results) -> None:
    """At shares of what the slower side reached: both are asked for a rate that both can do."""
    if results.find(ONE, "acked records/s", "confluent-callbacks") is None:
        measure_throughput(
            replace(bed, rounds=1), results, section=ONE, kinds=("sidecar-callbacks", "confluent-callbacks")
        )
    slower = min(_rate(results, ONE, kind) for kind in ("sidecar-callbacks", "confluent-callbacks"))
    measure_open_loop(bed, {f"{load:.0%}": slower * load for load in LOADS}, 1, results)
    slower = min(_rate(results, MANY, kind) for kind in ("sidecar-callbacks", "confluent-callbacks"))
    measure_open_loop(bed, {f"{LOADS[-1]:.0%}": slower * LOADS[-1]}, MANY_CALLERS, results)
    compare_open_loop(results)


def _rate(results: Results, section: str, kind: str) -> float:
    found = results.find(section, "acked records/s", kind)
    assert found is not None
    return found.median


def _plots(results: Results, folder: Path) -> None:
    from sidecar.bench import plots

    folder.mkdir(parents=True, exist_ok=True)
    sections = {each.section for each in results.measurements}
    if ONE in sections:
        plots.plot_comparison(results, folder / "throughput.png")
    if any(section.startswith("open loop") for section in sections):
        plots.plot_latency(results, folder / "latency.png")
    if any(section.startswith("scale by") for section in sections):
        plots.plot_scale(results, folder / "scale.png")
