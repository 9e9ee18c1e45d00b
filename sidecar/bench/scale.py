"""How a record's cost grows with workers, clients, partitions and its size, before a broker that costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sidecar.bench.bed import Site, daemon_before, null_broker
from sidecar.bench.measurement import Results
from sidecar.bench.runner import Throughput, run_throughput
from sidecar.bench.workload import Workload
from sidecar.demo.steps import Steps

KIND = "sidecar-send-many"
WORKERS = (1, 2, 3, 4)
CALLERS_OF_WORKERS = 4
CLIENTS = (1, 5, 25, 100, 250, 500)
CLIENT_PROCESSES_MAX = 5
PARTITIONS = (1, 10, 100, 500, 2_000)
RECORD_BYTES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
BYTES_MAX = 400_000_000


def measure_scale(steps: Steps, results: Results, *, records: int, rounds: int) -> None:
    """Four curves. ``records`` of 116 bytes a run; fewer where records are larger."""
    topics = {f"scale-{partitions}": partitions for partitions in PARTITIONS} | {"bench": 6}
    with null_broker(topics) as address:
        for workers in WORKERS:
            with daemon_before(address, {"daemon.workers": workers}) as site:
                _curve(steps, results, "workers", [workers], rounds, site, _by_workers(records))
        with daemon_before(address, {"daemon.workers": 2}) as site:
            _curve(steps, results, "clients", CLIENTS, rounds, site, _by_clients(records))
            _curve(steps, results, "partitions", PARTITIONS, rounds, site, _by_partitions(records))
            _curve(steps, results, "record bytes", RECORD_BYTES, rounds, site, _by_size(records))


def _by_workers(records: int) -> Callable[[Site, int], Throughput]:
    def run(site: Site, _workers: int) -> Throughput:
        workload = Workload("bench", records // CALLERS_OF_WORKERS)
        return run_throughput(
            KIND, site.target(KIND), workload, callers=CALLERS_OF_WORKERS, daemon_pids=site.pids
        )

    return run


def _by_clients(records: int) -> Callable[[Site, int], Throughput]:
    def run(site: Site, clients: int) -> Throughput:
        processes = min(clients, CLIENT_PROCESSES_MAX)
        workload = Workload("bench", records // processes)
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
        workload = Workload(f"scale-{partitions}", records)
        return run_throughput(KIND, site.target(KIND), workload, daemon_pids=site.pids)

    return run


def _by_size(records: int) -> Callable[[Site, int], Throughput]:
    def run(site: Site, size: int) -> Throughput:
        # Kafka's default max.request.size is 1 MiB with the batch's own header and framing.
        workload = Workload("bench", max(20, min(records, BYTES_MAX // size)), value_bytes=max(0, size - 16))
        return run_throughput(KIND, site.target(KIND), workload, daemon_pids=site.pids)

    return run


def _curve(
    steps: Steps,
    results: Results,
    axis: str,
    points: Sequence[int],
    rounds: int,
    site: Site,
    run: Callable[[Site, int], Throughput],
) -> None:
    for point in points:
        with steps.step(f"Scale: {point:,} {axis}"):
            found = [run(site, point) for _ in range(rounds)]
        section, what = f"scale by {axis}", f"{point:,}"
        results.add(
            section, f"acked records/s at {what}", KIND, "1/s", [e.records_per_s for e in found], at=point
        )
        results.add(section, f"MB/s at {what}", KIND, "MB/s", [e.mb_per_s for e in found], at=point)
        daemon = [each.total_cpu_us - each.caller_cpu_us for each in found]
        results.add(section, f"daemon CPU a record at {what}", KIND, "µs", daemon, at=point)
        caller = [each.caller_cpu_us for each in found]
        results.add(section, f"caller CPU a record at {what}", KIND, "µs", caller, at=point)
        steps.say(f"{found[-1].records_per_s:,.0f}/s, daemon {daemon[-1]:.2f} µs, caller {caller[-1]:.2f} µs")
