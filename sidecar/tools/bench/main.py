"""The bench: every side on the same broker, with the same records and the same guarantees, in alternating runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sidecar.tools.bench.adoption import measure_adoption
from sidecar.tools.bench.bed import PARTITIONS, TOPIC, Bed, daemon_before, describe_machine
from sidecar.tools.bench.crash_safety import measure_crash_safety
from sidecar.tools.bench.fleet import jmx_options, measure_first_ack, measure_fleet, measure_memory
from sidecar.tools.bench.idle import measure_idle
from sidecar.tools.bench.interference import measure_interference
from sidecar.tools.bench.java_perf import measure_java
from sidecar.tools.bench.kernel_walks import measure_kernel
from sidecar.tools.bench.latency import (
    LOADS,
    MANY_CALLERS,
    compare_open_loop,
    measure_one_by_one,
    measure_open_loop,
)
from sidecar.tools.bench.measurement import Failure, Results
from sidecar.tools.bench.over_tcp import measure_tcp
from sidecar.tools.bench.over_tls import measure_tls
from sidecar.tools.bench.report import print_results, to_markdown, write_json, write_text
from sidecar.tools.bench.scale import measure_scale
from sidecar.tools.bench.scrape import measure_scrape
from sidecar.tools.bench.spark_sinks import measure_spark
from sidecar.tools.bench.throughput import compare_throughput, measure_throughput
from sidecar.tools.bench.transactions import measure_transactions
from sidecar.tools.bench.twins import measure_twins
from sidecar.tools.bench.warm_up import warm_broker
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.kafka_cluster import KafkaCluster, exit_on_sigterm, free_ports

ONE, MANY = "one caller", f"{MANY_CALLERS} callers"
BASE: Final = "the broker and the daemons"
PARTS: Final = (
    "kernel",
    "throughput",
    "tls",
    "tcp",
    "crash-safety",
    "twins",
    "callers",
    "java",
    "spark",
    "sync",
    "transactions",
    "open-loop",
    "interference",
    "fleet",
    "first-ack",
    "memory",
    "idle",
    "adoption",
    "scrape",
    "scale",
)
WITHOUT_KAFKA: Final = ("kernel", "tls", "tcp", "adoption", "scrape", "scale")
OPEN_LOOP_KINDS: Final = ("sidecar-callbacks", "confluent-callbacks")
CALLERS_KINDS: Final = ("sidecar-callbacks", "sidecar-send-many", "confluent-callbacks")


@dataclass(frozen=True)
class Run:
    """One run of the bench. A part that fails is named in the results, and the others still run."""

    steps: Steps
    results: Results
    parts: Sequence[str]

    def part(self, name: str, work: Callable[[], object]) -> None:
        """Run the part if it was requested."""
        if name in self.parts:
            self.attempt(name, work)

    def attempt(self, name: str, work: Callable[[], object]) -> None:
        """Run the part. An error ends only this part, as the parts before may have taken an hour."""
        try:
            work()
        except Exception as error:
            kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
            self.results.failures.append(Failure(name, f"{kind}{error}"))
            self.steps.aloud(f"{name} failed, the rest goes on.")


@dataclass(frozen=True)
class Outputs:
    """The files that results are written to, in addition to the terminal."""

    json_path: Path | None = None
    markdown_path: Path | None = None
    plots_dir: Path | None = None


def run_bench(
    *,
    records: int = 1_000_000,
    rounds: int = 5,
    parts: Sequence[str] = PARTS,
    bootstrap_servers: str | None = None,
    topic: str = TOPIC,
    outputs: Outputs = Outputs(),
) -> Results:
    """Measure ``parts``, print tables, write ``outputs``; on an embedded Kafka unless ``bootstrap_servers`` is given.

    Raises nothing for a part that fails: it is among the results' ``failures``, and printed last. Measurements are
    printed and written also when the run is interrupted. A missed promise is shown, but is not a failure: it may be
    noise of the machine.
    """
    run = Run(Steps(), Results(machine=describe_machine()), parts)
    try:
        with exit_on_sigterm():
            run.part("kernel", lambda: measure_kernel(run.steps, run.results))
            if any(part not in WITHOUT_KAFKA for part in parts):
                run.attempt(BASE, lambda: _on_kafka(run, records, rounds, bootstrap_servers, topic))
            run.part("tls", lambda: measure_tls(run.steps, run.results, records=records, rounds=rounds))
            run.part("tcp", lambda: measure_tcp(run.steps, run.results, records=records, rounds=rounds))
            run.part("adoption", lambda: measure_adoption(run.steps, run.results))
            run.part("scrape", lambda: measure_scrape(run.steps, run.results))
            run.part("scale", lambda: measure_scale(run.steps, run.results, records=records, rounds=rounds))
    finally:
        _report(run, outputs)
    return run.results


def _on_kafka(run: Run, records: int, rounds: int, bootstrap_servers: str | None, topic: str) -> None:
    results = run.results
    with contextlib.ExitStack() as stack:
        jmx_port = None
        with run.steps.step("The broker and the daemons"):
            if bootstrap_servers is None:
                jmx_port = free_ports(1)[0]
                cluster = KafkaCluster(
                    topics={topic: PARTITIONS}, heap_mb=1024, jvm_options=jmx_options(jmx_port)
                )
                site = stack.enter_context(daemon_before(stack.enter_context(cluster).bootstrap_servers))
            else:
                site = stack.enter_context(daemon_before(bootstrap_servers))
        bed = Bed(run.steps, site, topic, records, rounds, is_embedded=bootstrap_servers is None)

        def part(name: str, work: Callable[[], object]) -> None:
            run.part(name, site.explained()(work))

        part("idle", lambda: measure_idle(bed, results))
        if jmx_port is not None:
            run.attempt("warming the broker", site.explained()(lambda: warm_broker(bed)))
        part("throughput", lambda: measure_throughput(bed, results))
        part("crash-safety", lambda: measure_crash_safety(bed, results))
        part("java", lambda: measure_java(bed, results))
        compare_throughput(results)
        part("twins", lambda: measure_twins(bed, results))
        part("callers", lambda: _many_callers(bed, CALLERS_KINDS, results))
        part("spark", lambda: measure_spark(bed, results))
        part("sync", lambda: _one_by_one(bed, results))
        part("transactions", lambda: measure_transactions(bed, results))
        part("open-loop", lambda: _open_loop(bed, results))
        part("interference", lambda: measure_interference(bed, results))
        part("fleet", lambda: measure_fleet(bed, jmx_port, results))
        part("first-ack", lambda: measure_first_ack(bed, results))
        part("memory", lambda: measure_memory(bed, results))


def _many_callers(bed: Bed, kinds: Sequence[str], results: Results) -> None:
    measure_throughput(bed, results, section=MANY, kinds=kinds, callers=MANY_CALLERS)


def _one_by_one(bed: Bed, results: Results) -> None:
    with daemon_before(bed.site.bootstrap_servers, {"linger.ms": 0}) as without_linger:
        measure_one_by_one(bed, {0.0: without_linger, 5.0: bed.site}, results)


def _open_loop(bed: Bed, results: Results) -> None:
    """Measure at shares of the slower side's rate, so that both sides can reach them."""
    once = replace(bed, rounds=1)
    if _slower(results, ONE) is None:
        measure_throughput(once, results, section=ONE, kinds=OPEN_LOOP_KINDS)
    if _slower(results, MANY) is None:
        _many_callers(once, OPEN_LOOP_KINDS, results)
    one, many = _slower(results, ONE), _slower(results, MANY)
    assert one is not None
    assert many is not None
    measure_open_loop(bed, {f"{load:.0%}": one * load for load in LOADS}, 1, results)
    measure_open_loop(bed, {f"{LOADS[-1]:.0%}": many * LOADS[-1]}, MANY_CALLERS, results)
    compare_open_loop(results)


def _slower(results: Results, section: str) -> float | None:
    """The records per second of the slower side, if both were measured."""
    found = [results.find(section, "acked records/s", kind) for kind in OPEN_LOOP_KINDS]
    rates = [each.median for each in found if each is not None]
    return min(rates) if len(rates) == len(found) else None


def _report(run: Run, outputs: Outputs) -> None:
    """Write the files first, so that a file that cannot be written is named with the other failures."""
    results = run.results
    writers: list[tuple[Path | None, Callable[[Path], object]]] = [
        (outputs.plots_dir, functools.partial(_plots, results)),
        (outputs.markdown_path, lambda path: write_text(path, to_markdown(results))),
        (outputs.json_path, lambda path: write_json(path, results)),
    ]
    for path, write in writers:
        if path is not None:
            run.attempt(f"writing {path}", functools.partial(write, path))
    print_results(run.steps.console, results)


def _plots(results: Results, folder: Path) -> None:
    from sidecar.tools.bench import plots

    folder.mkdir(parents=True, exist_ok=True)
    sections = {each.section for each in results.measurements}
    if ONE in sections:
        plots.plot_comparison(results, folder / "throughput.png")
    if any(section.startswith("open loop") for section in sections):
        plots.plot_latency(results, folder / "latency.png")
    if any(section.startswith("scale by") for section in sections):
        plots.plot_scale(results, folder / "scale.png")
