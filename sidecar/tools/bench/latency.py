"""The time from due to acknowledged: one record at a time, and under open load."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.tools.bench.bed import Bed, Site
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.runner import go, started
from sidecar.tools.bench.workload import Workload

ONE_BY_ONE = "one record at a time"
OPEN_LOOP = "open loop"
SIDES = ("sidecar", "confluent")
LOADS = (0.01, 0.10, 0.50)
"""Shares of the rate that the slower side reached with one caller, so that both sides can reach them."""
MANY_CALLERS = 8
SYNC_RECORDS = 500
SECONDS = 6.0
PERCENTILES = (50.0, 99.0, 99.9)
SENT = "records/s that were sent"
RATE_KEPT = 0.98


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value that ``share`` percent of all values do not exceed (nearest rank)."""
    rank = max(1, -(-len(sorted_values) * share // 100))
    return sorted_values[min(len(sorted_values), int(rank)) - 1]


def measure_one_by_one(bed: Bed, sites: dict[float, Site], results: Results) -> None:
    """``sites``: linger → the daemon that has it. flush() ends linger on both sides."""
    with bed.steps.step(f"{SYNC_RECORDS} records one at a time, {bed.rounds} alternating rounds"):
        for _ in range(bed.rounds):
            for linger_ms, site in sites.items():
                for side in SIDES:
                    words = site.timed_words(
                        "one_by_one", side, Workload(bed.topic, SYNC_RECORDS), linger_ms=linger_ms
                    )
                    with started(words) as processes:
                        (found,) = go(processes)
                    section = f"{ONE_BY_ONE}, linger {linger_ms:g}"
                    shown = add_percentiles(results, section, side, found["latencies_us"])
                    bed.steps.say(f"{side}, linger {linger_ms:g}: {shown}")
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
            for _ in range(bed.rounds):
                for side in SIDES:
                    words = bed.site.timed_words(
                        "open_loop",
                        side,
                        Workload(bed.topic, 10_000),
                        records_per_s=rate / callers,
                        seconds=SECONDS,
                    )
                    with started(words, callers) as processes:
                        found = go(processes)
                    latencies_us = [value for each in found for value in each["latencies_us"]]
                    shown = add_percentiles(results, section, side, latencies_us)
                    reached = sum(each["sent_per_s"] for each in found)
                    results.add(section, SENT, side, "1/s", [reached])
                    bed.steps.say(f"{side}: {shown}{behind(reached, rate)}")


def behind(reached: float, asked: float) -> str:
    """A remark if a side did not send as many records per second as requested."""
    return f", only {reached / asked:.0%} of the rate" if reached < asked * RATE_KEPT else ""


def compare_open_loop(results: Results) -> None:
    section = f"{OPEN_LOOP}, {MANY_CALLERS} callers, {LOADS[-1]:.0%}"
    results.compare(
        "p99 at 50 % load, 8 client processes against 8 confluent processes",
        (section, "p99", "sidecar"),
        (section, "p99", "confluent"),
        at_most=1.0,
    )


def add_percentiles(results: Results, section: str, side: str, latencies_us: Sequence[float]) -> str:
    """Add one run's percentiles in ms; returns them as text."""
    ordered = sorted(latencies_us)
    shown = []
    for share in PERCENTILES:
        value_ms = round(percentile(ordered, share) / 1000, 4)
        results.add(section, f"p{share:g}", side, "ms", [value_ms])
        shown.append(f"p{share:g} {value_ms:.2f}")
    return f"{', '.join(shown)} ms"
