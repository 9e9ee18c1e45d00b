"""Goal: the metrics of a real daemon are right, clean for Prometheus, and outlive workers and takeovers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import http_get, metric
from sidecar.tools.testing.waiting import wait_until
from tests.telemetry.promtool import PROMTOOL, promtool
from tests.telemetry.test_metric_table import faults

pytestmark = pytest.mark.process

RECORDS = 200
VALUE = b"compressible " * 40


@pytest.fixture
def daemon() -> Iterator[SidecarDaemon]:
    settings = {"compression.type": "gzip", "linger.ms": 10_000, "daemon.workers": 1}
    with (
        FakeBroker({"orders": 1}) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
    ):
        yield daemon


def send(daemon: SidecarDaemon) -> None:
    """Half of the records by each of two clients, for one partition. Nobody flushes before all are accepted, so that
    at least one batch has records of both.
    """
    accepted = metric(daemon, "kafka_sidecar_records_accepted_total") + RECORDS
    with Producer(daemon.run_dir) as first, Producer(daemon.run_dir) as second:
        for _ in range(RECORDS // 2):
            first.send("orders", VALUE)
            second.send("orders", VALUE)
        wait_until(
            lambda: metric(daemon, "kafka_sidecar_records_accepted_total") == accepted, "all to be accepted"
        )
        assert first.flush(60) == second.flush(60) == 0


def check(daemon: SidecarDaemon, records: int) -> None:
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_records_delivered_total") == records, "all to be counted"
    )
    for name in ("delivery_seconds", "queue_seconds"):
        assert parts(daemon, name)["count"] == records
        assert 0 < parts(daemon, name)["sum"] < 60 * records
    assert parts(daemon, "delivery_seconds")["sum"] > parts(daemon, "queue_seconds")["sum"]
    assert parts(daemon, "batch_records")["sum"] == records
    assert parts(daemon, "batch_bytes")["sum"] > records * len(VALUE)
    assert parts(daemon, "submission_bytes")["count"] == metric(daemon, "kafka_sidecar_submissions_total")


def parts(daemon: SidecarDaemon, name: str) -> dict[str, float]:
    """Count and sum of a histogram, over all its labels."""
    found = {"count": 0.0, "sum": 0.0}
    for family in text_string_to_metric_families(http_get(daemon, "/metrics")):
        if family.name == f"kafka_sidecar_{name}":
            for sample in family.samples:
                part = sample.name.rpartition("_")[2]
                if part in found:
                    found[part] += sample.value
    return found


def test_counts_are_right_and_continue_after_a_death(daemon: SidecarDaemon) -> None:
    send(daemon)
    check(daemon, RECORDS)
    wait_until(lambda: metric(daemon, "kafka_sidecar_bytes_sent_total") > 0, "the twice a second")
    assert metric(daemon, "kafka_sidecar_bytes_sent_total") < RECORDS * len(VALUE) / 2, "as compressed"
    wait_until(
        lambda: metric(daemon, "kafka_sidecar_requests_saved_total") >= 1, "one request for both clients"
    )
    answered = parts(daemon, "request_seconds")["count"]
    assert answered == metric(daemon, "kafka_sidecar_requests_total") > 0
    before = {name: metric(daemon, f"kafka_sidecar_{name}_total") for name in ("bytes_sent", "requests")}

    (worker,) = daemon.worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: daemon.worker_pids()[0] != worker, "another worker")
    send(daemon)
    check(daemon, 2 * RECORDS)

    assert parts(daemon, "request_seconds")["count"] > answered
    for name, value in before.items():
        assert metric(daemon, f"kafka_sidecar_{name}_total") >= value

    wait_until(lambda: metric(daemon, "kafka_sidecar_clients_connected") == 0, "both clients to have left")
    daemon.take_over()
    send(daemon)
    check(daemon, RECORDS)  # nothing was held: it has a segment of its own


def test_prometheus_takes_them_as_they_are(daemon: SidecarDaemon) -> None:
    send(daemon)
    text = http_get(daemon, "/metrics")
    assert not faults(text_string_to_metric_families(text))
    if PROMTOOL is not None:
        assert promtool(["check", "metrics"], text) == ""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    roles = {(each.labels["role"], each.labels["worker"]) for each in families["process_cpu_seconds"].samples}
    assert {("controller", ""), ("worker", "0")} <= roles
