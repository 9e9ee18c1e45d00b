"""The time of a scrape: /metrics of a daemon with many topics and workers."""

from __future__ import annotations

import contextlib
import time
from typing import Final

from client_stub import Producer
from sidecar.tools.bench.bed import daemon_before, null_broker
from sidecar.tools.bench.measurement import Results
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.metrics import http_get
from sidecar.tools.testing.process_stats import cpu_seconds

SECTION: Final = "scrape"
TOPICS: Final = 1_000
WORKERS: Final = 4
TOPICS_OF_CLIENT: Final = 200
"""The most topics that one client may send to."""
CLIENTS_OF_WORKER: Final = 2
SCRAPES: Final = 100


def measure_scrape(steps: Steps, results: Results) -> None:
    """Measure with 1,000 topics and four workers the time until the whole answer, and the controller's CPU for it."""
    topics = {f"topic-{i}": 1 for i in range(TOPICS)}
    with (
        null_broker(topics) as address,
        daemon_before(address, {"daemon.workers": WORKERS}) as site,
        contextlib.ExitStack() as producers_left,
    ):
        producers = [
            producers_left.enter_context(Producer(site.daemon.run_dir))
            for _ in range(WORKERS * CLIENTS_OF_WORKER)
        ]
        for number, producer in enumerate(producers):
            first = number * TOPICS_OF_CLIENT
            for i in range(first, first + TOPICS_OF_CLIENT):
                producer.send(f"topic-{i % TOPICS}", b"x" * 100)
        failed = sum(producer.flush(60) for producer in producers)
        assert not failed, f"{failed} records failed"
        page = http_get(site.daemon, "/metrics")
        (controller, *_) = site.pids
        times_ms: list[float] = []
        before = cpu_seconds([controller])
        with steps.step(f"{SCRAPES} scrapes, {TOPICS:,} topics x {WORKERS} workers"):
            for _ in range(SCRAPES):
                began_s = time.perf_counter()
                http_get(site.daemon, "/metrics")
                times_ms.append((time.perf_counter() - began_s) * 1_000)
        cpu_ms = (cpu_seconds([controller]) - before) / SCRAPES * 1_000
    times_ms.sort()
    results.add(SECTION, "median", "sidecar", "ms", [times_ms[len(times_ms) // 2]])
    results.add(SECTION, "99th percentile", "sidecar", "ms", [times_ms[-1 - len(times_ms) // 100]])
    results.add(SECTION, "CPU of the controller", "sidecar", "ms", [cpu_ms])
    results.add(SECTION, "size", "sidecar", "KB", [len(page) / 1_000])
