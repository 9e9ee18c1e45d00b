"""The latency of one client beside others that send in bulk, or to topics that nobody made, on the same daemon."""

from __future__ import annotations

import contextlib
from typing import Any

from sidecar.bench.bed import Bed, Site, daemon_before
from sidecar.bench.hostile import measure_hostile
from sidecar.bench.latency import SIDES, add_percentiles, behind
from sidecar.bench.measurement import Results
from sidecar.bench.runner import begin, go, outcome, started
from sidecar.bench.workload import Workload

ALONE, BESIDE = "a quiet client alone", "a quiet client beside a bulk client"
BESIDE_FLOODS = "a quiet client beside six that flood topics nobody made"
PROBE_RECORDS_PER_S = 200.0
SECONDS = 8.0
BULK_MB_PER_S = 100.0
BULK_VALUE_BYTES = 1_000
KEY_BYTES = 16
FLOODS = 6
FLOOD_TOPICS = 3
FLOOD_SETTINGS = {"daemon.shutdown_timeout_s": 1}
"""The floods' records cannot be delivered: the daemon need not try for long when it ends."""


def measure_interference(bed: Bed, results: Results) -> None:
    """Latency of a quiet client alone, and beside one that sends 100 MB/s, on either side; rounds alternate."""
    with bed.steps.step(f"A quiet client beside one that sends {BULK_MB_PER_S:g} MB/s, {bed.rounds} rounds"):
        for _ in range(bed.rounds):
            for side in SIDES:
                shown = add_percentiles(results, ALONE, side, _alone(bed, side))
                bed.steps.say(f"{side}, {ALONE}: {shown}")
                latencies_us, bulk_mb_per_s = _beside_bulk(bed, side)
                shown = add_percentiles(results, BESIDE, side, latencies_us)
                results.add(BESIDE, "MB/s that the bulk client sent", side, "MB/s", [bulk_mb_per_s])
                missing = behind(bulk_mb_per_s, BULK_MB_PER_S)
                bed.steps.say(f"{side}, {BESIDE}: {shown}{missing}")
    for side in SIDES:
        results.compare(
            f"p99 of a quiet client beside 100 MB/s, against the same alone: {side}",
            (BESIDE, "p99", side),
            (ALONE, "p99", side),
        )
    results.compare(
        "p99 of a quiet client beside 100 MB/s, against confluent's beside confluent's 100 MB/s",
        (BESIDE, "p99", "sidecar"),
        (BESIDE, "p99", "confluent"),
        at_most=1.0,
    )
    if bed.is_embedded:
        measure_floods(bed, results)
        measure_hostile(bed, results)


def measure_floods(bed: Bed, results: Results) -> None:
    """Latency of a quiet client alone, and while six others fill the pool with what nobody can deliver.

    Each round has a daemon of its own with the defaults. Not on somebody's cluster, which might make those topics.
    """
    alone = f"{ALONE}, two workers"
    with bed.steps.step(f"A quiet client beside {FLOODS} that flood topics nobody made, {bed.rounds} rounds"):
        for _ in range(bed.rounds):
            with daemon_before(bed.site.bootstrap_servers, FLOOD_SETTINGS) as site:
                shown = add_percentiles(results, alone, "sidecar", _quiet(site, bed.topic))
                bed.steps.say(f"alone: {shown}")
                floods = [
                    {
                        "mode": "flood",
                        "target": site.target("sidecar"),
                        "seconds": SECONDS + 1,
                        "topics": [f"nobody-made-{number}-{topic}" for topic in range(FLOOD_TOPICS)],
                    }
                    for number in range(FLOODS)
                ]
                with contextlib.ExitStack() as stack:
                    processes = [stack.enter_context(started(words))[0] for words in floods]
                    begin(processes)
                    found = _quiet(site, bed.topic)
                shown = add_percentiles(results, BESIDE_FLOODS, "sidecar", found)
                results.add(BESIDE_FLOODS, "slowest record", "sidecar", "ms", [max(found) / 1000])
                bed.steps.say(f"beside: {shown}, slowest {max(found) / 1000:.1f} ms")
    results.compare(
        f"p99 of a quiet client beside {FLOODS} that flood topics nobody made, against the same alone",
        (BESIDE_FLOODS, "p99", "sidecar"),
        (alone, "p99", "sidecar"),
        at_most=2.0,
    )


def _quiet(site: Site, topic: str) -> list[float]:
    workload = Workload(topic, 10_000, KEY_BYTES, 100)
    words = site.timed_words(
        "open_loop", "sidecar", workload, records_per_s=PROBE_RECORDS_PER_S, seconds=SECONDS
    )
    with started(words) as probes:
        found: list[float] = go(probes)[0]["latencies_us"]
        return found


def _alone(bed: Bed, side: str) -> list[float]:
    with started(_words(bed, side, 100, PROBE_RECORDS_PER_S, SECONDS)) as probes:
        found: list[float] = go(probes)[0]["latencies_us"]
        return found


def _beside_bulk(bed: Bed, side: str) -> tuple[list[float], float]:
    """The quiet client's latencies, and MB/s of the other, which starts before it and ends after it."""
    record_bytes = BULK_VALUE_BYTES + KEY_BYTES
    rate = BULK_MB_PER_S * 1e6 / record_bytes
    probe = _words(bed, side, 100, PROBE_RECORDS_PER_S, SECONDS)
    bulk = _words(bed, side, BULK_VALUE_BYTES, rate, SECONDS + 1)
    with started(probe) as probes, started(bulk) as bulks:
        begin([*bulks, *probes])
        latencies_us: list[float] = outcome(probes[0])["latencies_us"]
        return latencies_us, outcome(bulks[0])["sent_per_s"] * record_bytes / 1e6


def _words(bed: Bed, side: str, value_bytes: int, rate: float, seconds: float) -> dict[str, Any]:
    workload = Workload(bed.topic, 10_000, KEY_BYTES, value_bytes)
    return bed.site.timed_words("open_loop", side, workload, records_per_s=rate, seconds=seconds)
