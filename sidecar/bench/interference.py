"""What a client that sends in bulk does to the latency of another one on the same daemon."""

from __future__ import annotations

from typing import Any

from sidecar.bench.bed import Bed
from sidecar.bench.latency import SIDES, percentile
from sidecar.bench.measurement import Results
from sidecar.bench.runner import begin, outcome, started
from sidecar.bench.workload import Workload

SECTION = "beside a bulk client"
PROBE_RECORDS_PER_S = 200.0
SECONDS = 8.0
BULK_MB_PER_S = 100.0
BULK_VALUE_BYTES = 1_000


def measure_interference(bed: Bed, results: Results) -> None:
    """p99 of a quiet client alone, and beside one that sends 100 MB/s, on either side."""
    with bed.steps.step(f"A quiet client beside one that sends {BULK_MB_PER_S:g} MB/s, {bed.rounds} rounds"):
        for name, bulk in (("alone", False), ("with bulk", True)):
            found: dict[str, list[list[float]]] = {side: [] for side in SIDES}
            for _ in range(bed.rounds):
                for side in SIDES:
                    found[side].append(_probe(bed, side, bulk=bulk))
            for side, runs in found.items():
                for share in (50.0, 99.0):
                    values = [percentile(run, share) / 1000 for run in runs]
                    results.add(SECTION, f"p{share:g}, {name}", side, "ms", values)
                bed.steps.say(f"{side}, {name}: p99 {percentile(runs[-1], 99) / 1000:.2f} ms")
    results.compare(
        "p99 of a quiet client beside 100 MB/s, against confluent's",
        (SECTION, "p99, with bulk", "sidecar"),
        (SECTION, "p99, with bulk", "confluent"),
        at_most=1.0,
    )


def _probe(bed: Bed, side: str, *, bulk: bool) -> list[float]:
    probe = _words(bed, side, 100, PROBE_RECORDS_PER_S, SECONDS)
    rate = BULK_MB_PER_S * 1e6 / (BULK_VALUE_BYTES + 16)
    with started(probe) as probes:
        if not bulk:
            begin(probes)
            return sorted(outcome(probes[0])["latencies_us"])
        with started(_words(bed, side, BULK_VALUE_BYTES, rate, SECONDS)) as bulks:
            begin([*bulks, *probes])
            found = sorted(outcome(probes[0])["latencies_us"])
            outcome(bulks[0])
            return found


def _words(bed: Bed, side: str, value_bytes: int, rate: float, seconds: float) -> dict[str, Any]:
    return {
        "mode": "open_loop",
        "kind": side,
        "target": bed.site.target(side),
        "workload": Workload(bed.topic, 10_000, value_bytes=value_bytes).to_dict(),
        "linger_ms": 5.0,
        "records_per_s": rate,
        "seconds": seconds,
    }
