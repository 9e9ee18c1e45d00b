"""Acknowledged records per second and their cost, with alternating sides."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from sidecar.tools.bench.bed import Bed
from sidecar.tools.bench.java_perf import COLD, WARM
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.runner import Throughput, run_throughput
from sidecar.tools.bench.workload import Workload

OURS = ("sidecar-callbacks", "sidecar-send-many", "sidecar-send-arrow", "sidecar-send")
THEIRS = ("confluent-callbacks", "confluent-batch", "kafka-python", "aiokafka")
SLOW = {"kafka-python": 10, "aiokafka": 10, "sidecar-result": 50}
"""These would take minutes, so they get fewer records by this factor; over seconds that favours no side."""
LIBRARIES = {
    "sidecar-send-arrow": "pyarrow",
    "confluent-callbacks": "confluent_kafka",
    "confluent-batch": "confluent_kafka",
    "confluent-polled": "confluent_kafka",
    "kafka-python": "kafka",
    "aiokafka": "aiokafka",
}


def measure_throughput(
    bed: Bed,
    results: Results,
    *,
    section: str = "one caller",
    kinds: Sequence[str] = (*OURS, *THEIRS),
    callers: int = 1,
) -> None:
    """Run every kind once per round. The medians count, as the speed of a shared machine varies."""
    kinds = _installed(bed, kinds)
    with bed.steps.step(f"Throughput, {section}: {bed.rounds} alternating rounds of {bed.records:,} records"):
        for _ in range(bed.rounds):
            for kind in kinds:
                workload = Workload(bed.topic, max(1, bed.records // SLOW.get(kind, 1) // callers))
                run = run_throughput(
                    kind,
                    bed.site.target(kind),
                    workload,
                    callers=callers,
                    daemon_pids=bed.site.pids_of(kind),
                    before_go=bed.before_run,
                )
                _add(results, section, kind, run)
                bed.steps.say(
                    f"{kind}: {run.records_per_s:,.0f}/s, caller {run.caller_cpu_us:.2f} µs, "
                    f"all {run.total_cpu_us:.2f} µs"
                )


def _add(results: Results, section: str, kind: str, run: Throughput) -> None:
    results.add(section, "acked records/s", kind, "1/s", [run.records_per_s])
    results.add(section, "MB/s", kind, "MB/s", [run.mb_per_s])
    results.add(section, "caller CPU a record", kind, "µs", [run.caller_cpu_us])
    results.add(section, "total CPU a record", kind, "µs", [run.total_cpu_us])
    results.add(section, "caller's memory at the end", kind, "MB", [run.rss_mb])


def _installed(bed: Bed, kinds: Sequence[str]) -> list[str]:
    """The kinds whose library is installed; the others are named in a line."""
    missing = [kind for kind in kinds if kind in LIBRARIES and find_spec(LIBRARIES[kind]) is None]
    for kind in missing:
        bed.steps.say(
            f"{kind} is left out: {LIBRARIES[kind]} is not installed (pip install 'kafka-sidecar[dev]')."
        )
    return [kind for kind in kinds if kind not in missing]


def compare_throughput(results: Results, section: str = "one caller") -> None:
    """Compare the results with the promises about rates and CPU."""

    def rate(kind: str) -> tuple[str, str, str]:
        return section, "acked records/s", kind

    ours, theirs = "sidecar-callbacks", "confluent-callbacks"
    results.compare(
        "acked records/s, send() with callbacks against confluent produce() with callbacks",
        rate(ours),
        rate(theirs),
        at_least=3,
    )
    results.compare(
        "acked records/s, send_many() against confluent produce_batch()",
        rate("sidecar-send-many"),
        rate("confluent-batch"),
        at_least=3,
    )
    for other, name, least in (
        ("kafka-python", "kafka-python", 12.0),
        ("aiokafka", "aiokafka", 12.0),
        (WARM, "a warm ProducerPerformance", 2.5),
        (COLD, "a ProducerPerformance that has just started", None),
    ):
        results.compare(
            f"acked records/s, send() with callbacks against {name}", rate(ours), rate(other), at_least=least
        )
    for kind, name, most in (
        (ours, "send() with callbacks", 0.15),
        ("sidecar-send-many", "send_many()", 0.05),
    ):
        results.compare(
            f"caller CPU a record, {name} against confluent produce() with callbacks",
            (section, "caller CPU a record", kind),
            (section, "caller CPU a record", theirs),
            at_most=most,
        )
    results.compare(
        "total CPU a record, daemon included, send() with callbacks against confluent",
        (section, "total CPU a record", ours),
        (section, "total CPU a record", theirs),
        at_most=0.35,
    )
