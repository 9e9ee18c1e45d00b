"""Time from due to acknowledged: one at a time, and under open load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sidecar.bench.bed import Bed, Site
from sidecar.bench.measurement import Results
from sidecar.bench.runner import go, started
from sidecar.bench.workload import Workload

ONE_BY_ONE = "one record at a time"
OPEN_LOOP = "open loop"
SIDES = ("sidecar", "confluent")
LOADS = (0.01, 0.10, 0.50)
"""Shares of what the slower side reached with one caller, so that both are asked for what both can do."""
MANY_CALLERS = 8
SYNC_RECORDS = 500
SECONDS = 6.0
PERCENTILES = (50.0, 99.0, 99.9)


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value that ``share`` percent of all are not above (nearest rank)."""
    rank = max(1, -(-len(sorted_values) * share // 100))
    return sorted_values[min(len(sorted_values), int(rank)) - 1]


def measure_one_by_one(bed: Bed, sites: dict[float, Site], results: Results) -> None:
    """``sites``: linger → the daemon that has it. flush() ends linger on both sides."""
    with bed.steps.step(f"{SYNC_RECORDS} records one at a time, {bed.rounds} alternating rounds"):
        found: dict[tuple[str, float], list[list[float]]] = {}
        for _ in range(bed.rounds):
            for linger_ms, site in sites.items():
                for side in SIDES:
                    words = _words("one_by_one", side, site, Workload(bed.topic, SYNC_RECORDS), linger_ms)
                    found.setdefault((side, linger_ms), []).append(_run(words, 1))
        for (side, linger_ms), runs in found.items():
            _add(results, f"{ONE_BY_ONE}, linger {linger_ms:g}", side, runs)
            bed.steps.say(f"{side}, linger {linger_ms:g}: p50 {percentile(runs[-1], 50) / 1000:.2f} ms")
    for linger_ms in sites:
        section = f"{ONE_BY_ONE}, linger {linger_ms:g}"
        for name, most in (("p50", 1.5), ("p99", 1.0)):
            results.compare(
                f"{section}: {name} against confluent's produce and flush",
                (section, name, "sidecar"),
                (section, name, "confluent"),
                at_most=most,
            )


def measure_open_loop(bed: Bed, rates: dict[str, float], callers: int, results: Results) -> None:
    """``rates``: name of the load → records/s of all ``callers`` together; the same for both sides."""
    for name, rate in rates.items():
        section = f"{OPEN_LOOP}, {callers} caller{'s' if callers > 1 else ''}, {name}"
        with bed.steps.step(f"{section}: {rate:,.0f} records/s, {bed.rounds} alternating rounds"):
            found: dict[str, list[list[float]]] = {side: [] for side in SIDES}
            for _ in range(bed.rounds):
                for side in SIDES:
                    words = _words("open_loop", side, bed.site, Workload(bed.topic, 10_000), 5.0)
                    words |= {"records_per_s": rate / callers, "seconds": SECONDS}
                    found[side].append(_run(words, callers))
            for side, runs in found.items():
                _add(results, section, side, runs)
                last = runs[-1]
                bed.steps.say(
                    f"{side}: p50 {percentile(last, 50) / 1000:.2f}, p99 {percentile(last, 99) / 1000:.2f}, "
                    f"p99.9 {percentile(last, 99.9) / 1000:.2f} ms"
                )


def compare_open_loop(results: Results) -> None:
    section = f"{OPEN_LOOP}, {MANY_CALLERS} callers, {LOADS[-1]:.0%}"
    results.compare(
        "p99 at 50 % load, 8 client processes against 8 confluent processes",
        (section, "p99", "sidecar"),
        (section, "p99", "confluent"),
        at_most=1.0,
    )


def _words(mode: str, side: str, site: Site, workload: Workload, linger_ms: float) -> dict[str, Any]:
    return {
        "mode": mode,
        "kind": side,
        "target": site.target(side),
        "workload": workload.to_dict(),
        "linger_ms": linger_ms,
    }


def _run(words: dict[str, Any], callers: int) -> list[float]:
    with started(words, callers) as processes:
        return sorted(value for each in go(processes) for value in each["latencies_us"])


def _add(results: Results, section: str, side: str, runs: list[list[float]]) -> None:
    for share in PERCENTILES:
        results.add(
            section, f"p{share:g}", side, "ms", [round(percentile(run, share) / 1000, 4) for run in runs]
        )
