"""The cost of TLS 1.3: the same records by the same calls to one broker, in plaintext and over TLS, alternating."""

from __future__ import annotations

import contextlib
from typing import Final

from sidecar.tools.bench.bed import PARTITIONS, TOPIC, daemon_before
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.runner import run_throughput
from sidecar.tools.bench.workload import Workload
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_listeners import Listener

SECTION: Final = "over TLS"
KINDS: Final = ("sidecar-callbacks", "confluent-callbacks")
OVER_TLS: Final = ", TLS"
WARM_RECORDS_MAX: Final = 300_000


def measure_tls(steps: Steps, results: Results, *, records: int, rounds: int) -> None:
    """Measure on a separate Kafka with a PLAINTEXT and an SSL listener, with a daemon for each."""
    with contextlib.ExitStack() as stack:
        with steps.step("A broker with TLS, and a daemon before each of its listeners"):
            cluster = stack.enter_context(
                KafkaCluster(
                    topics={TOPIC: PARTITIONS}, heap_mb=1024, listeners=[Listener("SSL", tls=("TLSv1.3",))]
                )
            )
            secure = cluster.client_settings("SSL")
            plain_site = stack.enter_context(daemon_before(cluster.bootstrap_servers))
            tls_site = stack.enter_context(daemon_before(cluster.servers("SSL"), secure))
        words = "".join(f"|{name}={value}" for name, value in secure.items())
        targets = {
            "sidecar-callbacks": (str(plain_site.daemon.run_dir), plain_site.pids),
            "sidecar-callbacks" + OVER_TLS: (str(tls_site.daemon.run_dir), tls_site.pids),
            "confluent-callbacks": (cluster.bootstrap_servers, []),
            "confluent-callbacks" + OVER_TLS: (cluster.servers("SSL") + words, []),
        }
        with steps.step("Warming the broker, not counted"):
            for kind, (target, _) in targets.items():
                run_throughput(
                    kind.removesuffix(OVER_TLS), target, Workload(TOPIC, min(records, WARM_RECORDS_MAX))
                )
        with steps.step(f"Throughput over TLS: {rounds} alternating rounds of {records:,} records"):
            for _ in range(rounds):
                for kind, (target, pids) in targets.items():
                    run = run_throughput(
                        kind.removesuffix(OVER_TLS), target, Workload(TOPIC, records), daemon_pids=pids
                    )
                    results.add(SECTION, "acked records/s", kind, "1/s", [run.records_per_s])
                    results.add(SECTION, "caller CPU a record", kind, "µs", [run.caller_cpu_us])
                    results.add(SECTION, "total CPU a record", kind, "µs", [run.total_cpu_us])
                    steps.say(f"{kind}: {run.records_per_s:,.0f}/s, all {run.total_cpu_us:.2f} µs")
    ours, theirs = (kind + OVER_TLS for kind in KINDS)
    results.compare(
        "acked records/s, send() with callbacks over TLS against plaintext",
        (SECTION, "acked records/s", ours),
        (SECTION, "acked records/s", KINDS[0]),
        at_least=0.75,
    )
    results.compare(
        "acked records/s, send() with callbacks against confluent produce(), both over TLS",
        (SECTION, "acked records/s", ours),
        (SECTION, "acked records/s", theirs),
        at_least=2.5,
    )
    results.compare(
        "total CPU a record, daemon included, send() against confluent, both over TLS",
        (SECTION, "total CPU a record", ours),
        (SECTION, "total CPU a record", theirs),
        at_most=0.45,
    )
