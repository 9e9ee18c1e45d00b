"""The cost of tcp:// with CURVE: the same calls to one daemon by its run directory and over TCP, alternating.

The broker answers at once, so that the numbers contain little else.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from client_stub.contract.tcp import KEY_FILE_VARIABLE
from sidecar.tools.bench.bed import PARTITIONS, TOPIC, Site, daemon_before, null_broker
from sidecar.tools.bench.latency import SYNC_RECORDS, add_percentiles
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.runner import go, run_throughput, started
from sidecar.tools.bench.workload import Workload
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.tcp_access import TcpAccess

SECTION: Final = "over TCP with CURVE"
SYNC_SECTION: Final = f"{SECTION}, one record at a time"
BY_RUN_DIR, OVER_TCP = "run directory", "tcp with CURVE"
KIND: Final = "sidecar-send-many"
NAMES: Final = ("bench", "bench-timed")
"""The names that the bench's callers come under."""
WARM_RECORDS_MAX: Final = 300_000


def measure_tcp(steps: Steps, results: Results, *, records: int, rounds: int) -> None:
    """Measure both ways to the same two workers; callers alternate between them."""
    with contextlib.ExitStack() as stack:
        with steps.step("A daemon with both endpoints before a broker that answers at once"):
            address = stack.enter_context(null_broker({TOPIC: PARTITIONS}))
            access = stack.enter_context(_access())
            site = stack.enter_context(
                daemon_before(address, {"linger.ms": 0, **access.settings}, config=access.config)
            )
        targets = {BY_RUN_DIR: str(site.daemon.run_dir), OVER_TCP: access.address}
        with steps.step(f"{SECTION}: {rounds} alternating rounds of {records:,} records"):
            for target in targets.values():
                run_throughput(KIND, target, Workload(TOPIC, min(records, WARM_RECORDS_MAX)))
            for _ in range(rounds):
                for way, target in targets.items():
                    _throughput(steps, results, site, way, target, records)
        with steps.step(f"{SYNC_SECTION}: {rounds} alternating rounds of {SYNC_RECORDS} records"):
            for _ in range(rounds):
                for way, target in targets.items():
                    _one_by_one(steps, results, way, target)
    for section, what in (
        (SECTION, "acked records/s"),
        (SECTION, "total CPU a record"),
        (SYNC_SECTION, "p50"),
    ):
        results.compare(
            f"{section}: {what} against the run directory",
            (section, what, OVER_TCP),
            (section, what, BY_RUN_DIR),
        )


@contextlib.contextmanager
def _access() -> Iterator[TcpAccess]:
    """Keys and a configuration that admits the bench's names both ways; callers find their key by a variable."""
    with tempfile.TemporaryDirectory() as folder:
        access = TcpAccess(Path(folder), NAMES, local_uid=os.getuid())
        before = os.environ.get(KEY_FILE_VARIABLE)
        os.environ[KEY_FILE_VARIABLE] = str(access.key_file)
        try:
            yield access
        finally:
            if before is None:
                del os.environ[KEY_FILE_VARIABLE]
            else:
                os.environ[KEY_FILE_VARIABLE] = before


def _throughput(steps: Steps, results: Results, site: Site, way: str, target: str, records: int) -> None:
    run = run_throughput(KIND, target, Workload(TOPIC, records), daemon_pids=site.pids)
    results.add(SECTION, "acked records/s", way, "1/s", [run.records_per_s])
    results.add(SECTION, "caller CPU a record", way, "µs", [run.caller_cpu_us])
    results.add(SECTION, "total CPU a record", way, "µs", [run.total_cpu_us])
    steps.say(f"{way}: {run.records_per_s:,.0f}/s, all {run.total_cpu_us:.2f} µs")


def _one_by_one(steps: Steps, results: Results, way: str, target: str) -> None:
    words = {
        "mode": "one_by_one",
        "kind": "sidecar",
        "target": target,
        "workload": Workload(TOPIC, SYNC_RECORDS).to_dict(),
        "linger_ms": 0.0,
    }
    with started(words) as processes:
        (found,) = go(processes)
    steps.say(f"{way}: {add_percentiles(results, SYNC_SECTION, way, found['latencies_us'])}")
