"""A model of more cores, computed from the measured cost of each stage of a record."""

from __future__ import annotations

from typing import Final

from sidecar.tools.bench.bed import Site
from sidecar.tools.bench.kernel_bench import measure
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.runner import run_throughput
from sidecar.tools.bench.workload import Workload
from sidecar.tools.testing.process_stats import cpu_seconds, main_thread_cpu_seconds

STAGES: Final = "stages of a record, one caller and one worker"
MODEL: Final = "a model, no measurement: by N workers"
CALLER: Final = "the caller's process"
OTHER_THREADS: Final = "worker, its other threads"
LOOP: Final = "worker, its loop"
CONTROLLER: Final = "controller"
WORKERS: Final = (1, 2, 4, 8, 16, 32)
SIDE: Final = "sidecar"


def measure_stages(site: Site, kind: str, workload: Workload, results: Results) -> None:
    """Measure the CPU µs per record of each thread that handles it, and of the loop's walks alone. ``site`` is warm
    and has one worker.
    """
    controller, worker = site.pids
    before = main_thread_cpu_seconds(worker), cpu_seconds([worker]), cpu_seconds([controller])
    found = run_throughput(kind, site.target(kind), workload)
    after = main_thread_cpu_seconds(worker), cpu_seconds([worker]), cpu_seconds([controller])
    loop, whole, other = (
        (now - then) * 1e6 / workload.records for now, then in zip(after, before, strict=True)
    )
    walks = measure(rounds=3)
    accept, pack = (walks["copy"] + walks["index"]) / 1e3, (walks["batch"] + walks["encode"]) / 1e3
    for what, value in (
        (CALLER, found.caller_cpu_us),
        (OTHER_THREADS, whole - loop),
        (LOOP, loop),
        ("of the loop: copy and index, run alone", accept),
        ("of the loop: batch and encode, run alone", pack),
        ("of the loop: the rest, sending above all", loop - accept - pack),
        (CONTROLLER, other),
    ):
        results.add(STAGES, what, SIDE, "µs", [value])


def add_model(results: Results) -> None:
    """Add the rate of N workers and the cores that it needs, if the stages were measured."""
    stages = {name: results.find(STAGES, name, SIDE) for name in (CALLER, OTHER_THREADS, LOOP, CONTROLLER)}
    costs_us = {name: each.median for name, each in stages.items() if each is not None}
    if len(costs_us) < len(stages):
        return
    for workers in WORKERS:
        rate, cores = model(costs_us, workers)
        for what, unit, value in (
            ("records/s at most", "1/s", rate),
            ("cores that are busy, callers' included", "", cores),
        ):
            results.add(MODEL, f"{what} at {workers}", SIDE, unit, [value], at=workers)
    results.note(
        "The table by N workers is a model, not a measurement: every worker's loop has a core of its own and callers "
        "enough, and a record costs each stage what it cost here with one caller and one worker (its median above). It "
        "leaves out the broker and the network, memory bandwidth, caches that workers share, and the scheduler."
    )


def model(costs_us: dict[str, float], workers: int) -> tuple[float, float]:
    """(records per second, busy cores): the loop of a worker is the stage that cannot use two cores."""
    rate = workers * 1e6 / costs_us[LOOP]
    return rate, rate * sum(costs_us.values()) / 1e6
