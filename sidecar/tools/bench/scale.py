"""Measures how a record's cost grows with workers, clients, partitions and its size, with a broker that costs
nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.tools.bench.bed import Site, daemon_before, null_broker
from sidecar.tools.bench.measurement import Failure, Results
from sidecar.tools.bench.runner import Throughput, run_throughput
from sidecar.tools.bench.scale_model import add_model, measure_stages
from sidecar.tools.bench.workload import DISTINCT_MAX, Workload
from sidecar.tools.demo.steps import Steps

KIND: Final = "sidecar-send-many"
TOPIC: Final = "bench"
WORKERS: Final = (1, 2, 3, 4)
CALLERS_OF_WORKERS: Final = 4
CLIENTS: Final = (1, 5, 25, 100, 250, 500)
CLIENT_PROCESSES_MAX: Final = 5
PARTITIONS: Final = (1, 10, 100, 500, 2_000, 20_000)
"""The last is five times the number of a worker's batch descriptors."""
KEYS_OF_PARTITION: Final = 2
RECORD_BYTES: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
KEY_BYTES: Final = 16
BYTES_MAX: Final = 400_000_000
"""The limit of bytes per run, so there are fewer large records."""
WARM_UP_RECORDS_MAX: Final = 400_000
BUDGET_S: Final = 600.0
"""No round begins that would end after this time."""


@dataclass(frozen=True)
class Axis:
    """``run`` measures one of ``points``; the section is named after the axis."""

    name: str
    points: Sequence[int]
    run: Callable[[Site, int], Throughput]


def measure_scale(steps: Steps, results: Results, *, records: int, rounds: int) -> None:
    """Measure four curves and a model. ``records`` of 116 bytes per run, fewer if they are larger; at most ten
    minutes.
    """
    topics = {f"scale-{partitions}": partitions for partitions in PARTITIONS} | {TOPIC: 6}
    try:
        with null_broker(topics) as address:
            _rounds(steps, results, address, records, rounds)
    finally:
        add_model(results)


def _rounds(steps: Steps, results: Results, address: str, records: int, rounds: int) -> None:
    start, longest_s = time.monotonic(), 0.0
    for number in range(1, rounds + 1):
        begun = time.monotonic()
        if begun - start + longest_s > BUDGET_S:
            results.note(
                f"Scale: {number - 1} of {rounds} rounds; another would have gone beyond {BUDGET_S:.0f} s."
            )
            steps.say(results.notes[-1])
            break
        with steps.step(f"Scale, round {number} of {rounds}, within {BUDGET_S / 60:.0f} minutes for all"):
            _round(steps, results, address, records)
        longest_s = max(longest_s, time.monotonic() - begun)
        if number == 1:
            can = min(rounds, max(1, int(BUDGET_S / longest_s)))
            steps.say(
                f"A round takes {longest_s:.0f} s: {can} of {rounds} will take {can * longest_s:.0f} s."
            )


@contextlib.contextmanager
def _warm_daemon(address: str, workers: int, records: int) -> Iterator[Site]:
    """A daemon whose workers have all sent records, so that metadata, producer ids and first touches are not
    measured.
    """
    with daemon_before(address, {"daemon.workers": workers}) as site:
        workload = Workload(TOPIC, min(records, WARM_UP_RECORDS_MAX) // CALLERS_OF_WORKERS)
        run_throughput(KIND, site.target(KIND), workload, callers=CALLERS_OF_WORKERS)
        yield site


def _round(steps: Steps, results: Results, address: str, records: int) -> None:
    for workers in WORKERS:
        with _warm_daemon(address, workers, records) as site:
            if workers == 1:
                measure_stages(site, KIND, Workload(TOPIC, records), results)
            _curve(steps, results, site, Axis("workers", [workers], _by_workers(records)))
    with _warm_daemon(address, 2, records) as site:
        for axis in (
            Axis("clients", CLIENTS, _by_clients(records)),
            Axis("partitions", PARTITIONS, _by_partitions(records)),
            Axis("record bytes", RECORD_BYTES, _by_size(records)),
        ):
            _curve(steps, results, site, axis)


def _by_workers(records: int) -> Callable[[Site, int], Throughput]:
    def run(site: Site, _workers: int) -> Throughput:
        workload = Workload(TOPIC, records // CALLERS_OF_WORKERS)
        return run_throughput(
            KIND, site.target(KIND), workload, callers=CALLERS_OF_WORKERS, daemon_pids=site.pids
        )

    return run


def _by_clients(records: int) -> Callable[[Site, int], Throughput]:
    def run(site: Site, clients: int) -> Throughput:
        processes = min(clients, CLIENT_PROCESSES_MAX)
        workload = Workload(TOPIC, records // processes)
        return run_throughput(
            KIND,
            site.target(KIND),
            workload,
            callers=processes,
            producers=clients // processes,
            daemon_pids=site.pids,
        )

    return run


def _by_partitions(records: int) -> Callable[[Site, int], Throughput]:
    def run(site: Site, partitions: int) -> Throughput:
        keys = max(DISTINCT_MAX, KEYS_OF_PARTITION * partitions)
        workload = Workload(f"scale-{partitions}", records, distinct=keys)
        return run_throughput(KIND, site.target(KIND), workload, daemon_pids=site.pids)

    return run


def _by_size(records: int) -> Callable[[Site, int], Throughput]:
    def run(site: Site, size: int) -> Throughput:
        key_bytes = min(KEY_BYTES, size // 2)
        # Kafka's default max.request.size is 1 MiB with the batch's own header and framing.
        workload = Workload(TOPIC, max(20, min(records, BYTES_MAX // size)), key_bytes, size - key_bytes)
        return run_throughput(KIND, site.target(KIND), workload, daemon_pids=site.pids)

    return run


def _curve(steps: Steps, results: Results, site: Site, axis: Axis) -> None:
    """Measure all points of an axis. A failed point ends the axis for this round, but not the others."""
    for point in axis.points:
        try:
            with site.explained():
                found = axis.run(site, point)
        except RuntimeError as error:
            results.failures.append(Failure(f"scale, {point:,} {axis.name}", str(error)))
            steps.aloud(f"scale, {point:,} {axis.name} failed, the rest goes on.")
            return
        daemon_us = found.total_cpu_us - found.caller_cpu_us
        for what, unit, value in (
            ("acked records/s", "1/s", found.records_per_s),
            ("MB/s", "MB/s", found.mb_per_s),
            ("daemon CPU a record", "µs", daemon_us),
            ("caller CPU a record", "µs", found.caller_cpu_us),
        ):
            results.add(f"scale by {axis.name}", f"{what} at {point:,}", KIND, unit, [value], at=point)
        steps.say(
            f"{point:,} {axis.name}: {found.records_per_s:,.0f}/s, {found.mb_per_s:,.0f} MB/s, "
            f"daemon {daemon_us:.2f} µs, caller {found.caller_cpu_us:.2f} µs"
        )
