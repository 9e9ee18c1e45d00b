"""The cost of a daemon that has nothing to do."""

from __future__ import annotations

import time

from sidecar.tools.bench.bed import Bed
from sidecar.tools.bench.measurement import Results
from sidecar.tools.testing.process_stats import cpu_seconds, private_rss_mb

SECTION = "idle daemon"
WINDOW_S = 5.0


def measure_idle(bed: Bed, results: Results) -> None:
    """Measure the CPU of all its processes together, and the memory of each in addition to the pool."""
    pids = bed.site.pids
    with bed.steps.step(f"An idle daemon, {WINDOW_S:g} s"):
        before, start = cpu_seconds(pids), time.monotonic()
        time.sleep(WINDOW_S)  # a measurement window, not a wait for something
        share = (cpu_seconds(pids) - before) / (time.monotonic() - start)
    results.add(SECTION, "CPU of all processes", "sidecar", "%", [share * 100])
    for name, pid in zip(["controller", *(f"worker {i}" for i in range(len(pids) - 1))], pids, strict=True):
        results.add(SECTION, f"memory of {name} beyond the pool", "sidecar", "MB", [private_rss_mb(pid)])
