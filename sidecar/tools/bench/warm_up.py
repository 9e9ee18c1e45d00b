"""Warms a broker up: one that has just started runs interpreted, and the first side would pay for its compiler."""

from __future__ import annotations

from sidecar.tools.bench.bed import Bed
from sidecar.tools.bench.latency import SIDES
from sidecar.tools.bench.runner import go, run_throughput, started
from sidecar.tools.bench.workload import Workload

RECORDS_MAX = 300_000
REQUESTS_PER_S = 1_000.0
SECONDS = 5.0


def warm_broker(bed: Bed) -> None:
    """Send large requests from either side, then many small ones; nothing is counted. About ten seconds."""
    with bed.steps.step("Warming the broker, not counted"):
        for side in SIDES:
            kind = f"{side}-callbacks"
            workload = Workload(bed.topic, min(bed.records, RECORDS_MAX))
            run = run_throughput(kind, bed.site.target(kind), workload)
            bed.steps.say(f"{kind}: {run.records_per_s:,.0f}/s")
        words = bed.site.timed_words(
            "open_loop",
            "confluent",
            Workload(bed.topic, 1_000),
            linger_ms=0.0,
            records_per_s=REQUESTS_PER_S,
            seconds=SECONDS,
        )
        with started(words) as processes:
            go(processes)
