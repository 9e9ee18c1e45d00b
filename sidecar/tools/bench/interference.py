"""The latency of one client beside others on the same daemon that send in bulk, or to topics that do not exist."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from sidecar.tools.bench.bed import PARTITIONS, Bed, Site, daemon_before
from sidecar.tools.bench.caller import FLOOD_VALUE_BYTES
from sidecar.tools.bench.hostile import measure_hostile
from sidecar.tools.bench.latency import SIDES, add_percentiles, behind
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.runner import begin, go, outcome, started
from sidecar.tools.bench.workload import Workload
from sidecar.tools.testing.kafka_topics import create_topics

ALONE, BESIDE = "a quiet client alone", "a quiet client beside a bulk client"
BESIDE_FLOODS = "a quiet client beside six that flood topics nobody made"
PROBE_RECORDS_PER_S = 200.0
SECONDS = 8.0
BULK_MB_PER_S = 100.0
BULK_VALUE_BYTES = 1_000
KEY_BYTES = 16
RUNAWAY = "a quiet client beside a runaway one at the same worker"
OTHER_TOPIC = "bench-runaway"
FLOODS = 6
FLOOD_TOPICS = 3
FLOOD_SETTINGS = {"daemon.shutdown_timeout_s": 1}
"""The floods' records cannot be delivered, so the daemon need not try for long when it ends."""


def measure_interference(bed: Bed, results: Results) -> None:
    """Measure the latency of a quiet client alone, and beside one that sends 100 MB/s, on either side; rounds
    alternate.
    """
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
        measure_runaway(bed, results)
        measure_floods(bed, results)
        measure_hostile(bed, results)


def measure_runaway(bed: Bed, results: Results) -> None:
    """Measure the latency of a quiet client alone, and beside one whose ``send_many()`` has no limit, to its topic and
    to another.

    There is one worker, so that both clients use the same. A confluent-kafka client as the quiet one shows the latency
    of the brokers and the cores alone under that load.
    """
    create_topics(bed.site.bootstrap_servers, {OTHER_TOPIC: PARTITIONS})
    with bed.steps.step(f"{RUNAWAY.capitalize()}, {bed.rounds} rounds"):
        for _ in range(bed.rounds):
            with daemon_before(bed.site.bootstrap_servers, {"daemon.workers": 1}) as site:
                for side in SIDES:
                    beside = replace(bed, site=site)
                    shown = add_percentiles(results, f"{RUNAWAY}: alone", side, _alone(beside, side))
                    bed.steps.say(f"{side}, alone: {shown}")
                    for name, topic in (("its topic", bed.topic), ("another topic", OTHER_TOPIC)):
                        shown = _beside_runaway(beside, results, side, name, topic)
                        bed.steps.say(f"{side}, the runaway one sends to {name}: {shown}")
    for name in ("its topic", "another topic"):
        for other, baseline in (("alone", "sidecar"), (name, "confluent")):
            results.compare(
                f"p99 of a quiet client beside a runaway one that sends to {name}, against {baseline}'s: {other}",
                (f"{RUNAWAY}: {name}", "p99", "sidecar"),
                (f"{RUNAWAY}: {other}", "p99", baseline),
                at_most=2.0,
            )


def _beside_runaway(bed: Bed, results: Results, side: str, name: str, topic: str) -> str:
    words = {
        "mode": "flood",
        "target": bed.site.target("sidecar"),
        "seconds": SECONDS + 1,
        "topics": [topic],
    }
    probe = _words(bed, side, 100, PROBE_RECORDS_PER_S, SECONDS)
    with started(probe) as probes, started(words) as runaways:
        begin([*runaways, *probes])
        found: list[float] = outcome(probes[0])["latencies_us"]
        mb_per_s = outcome(runaways[0])["sent"] * FLOOD_VALUE_BYTES / (SECONDS + 1) / 1e6
    results.add(f"{RUNAWAY}: {name}", "MB/s of the runaway client", side, "MB/s", [mb_per_s])
    return f"{add_percentiles(results, f'{RUNAWAY}: {name}', side, found)}, {mb_per_s:.0f} MB/s"


def measure_floods(bed: Bed, results: Results) -> None:
    """Measure the latency of a quiet client alone, and while six others fill the pool with undeliverable records.

    Each round has its own daemon with default settings. Not on a foreign cluster, which might create those topics.
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
    """(the quiet client's latencies, MB/s of the other client, which starts before it and ends after it)."""
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
