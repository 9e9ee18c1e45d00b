"""A record that fails is seen: in the log with what to do, in `status`, on the page, in a metric."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.errors import MetadataTimeout
from sidecar.tools.testing.daemon import SidecarDaemon, cli
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import http_get
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def daemon() -> Iterator[SidecarDaemon]:
    with (
        FakeBroker({"orders": 3}) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings={"max.block.ms": 1_000}) as daemon,
    ):
        yield daemon


def is_delivered(producer: Producer) -> bool:
    """False while the successor has no metadata yet: max.block.ms is short here."""
    try:
        return producer.send("orders", b"good").result(60).offset >= 0
    except MetadataTimeout:
        return False


def test_records_that_nobody_waits_for_are_seen_everywhere(daemon: SidecarDaemon) -> None:
    lost = []
    with Producer(
        daemon.run_dir, client_name="billing", on_error=lambda *each: lost.append(each)
    ) as producer:
        producer.send("orders", b"good").result(30)
        for _ in range(3):
            producer.send("missing", b"x")
        producer.send("orders", b"x", partition=99)
        assert producer.flush(30) == 4
    assert sorted((error.name, topic, count) for error, topic, count in lost) == [
        ("INVALID_PARTITION", "orders", 1),
        ("METADATA_TIMEOUT", "missing", 3),
    ]

    wait_until(lambda: len(daemon.info()["failures"]) == 2, "both failures in daemon.json")
    shown = {each["topic"]: each for each in daemon.status()["failures"]}
    assert (shown["missing"]["records"], shown["missing"]["client"]) == (3, "billing")
    assert shown["missing"]["error"] == "METADATA_TIMEOUT"
    log = daemon.log_path.read_text()
    assert "3 records of topic missing failed: METADATA_TIMEOUT: Topic missing not present in metadata" in log
    assert "the last one from client billing). Create the topic, or correct its name." in log
    assert (
        "1 record of topic orders failed: INVALID_PARTITION: Invalid partition given with record: 99 is not in the "
        "range [0...3) of topic orders (not persisted; the last one from client billing). Send to a partition that "
        "the topic has, or give it more of them."
    ) in log
    metrics = http_get(daemon, "/metrics")
    assert 'kafka_sidecar_topic_records_failed_total{error="METADATA_TIMEOUT",topic="missing"} 3.0' in metrics
    assert 'kafka_sidecar_topic_records_failed_total{error="INVALID_PARTITION",topic="orders"} 1.0' in metrics
    assert "Topic missing not present in metadata" in http_get(daemon, "/api/status")
    text = subprocess.run(
        [*cli("status"), "--run-dir", str(daemon.run_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "failed    3 of topic missing: METADATA_TIMEOUT, last" in text


def test_the_counts_outlive_the_worker_and_are_not_doubled_by_its_successor(daemon: SidecarDaemon) -> None:
    with Producer(daemon.run_dir, client_name="billing", on_error=lambda *_: None) as producer:
        for _ in range(5):
            producer.send("missing", b"x")
        assert producer.flush(30) == 5
        wait_until(lambda: daemon.info()["failures"], "the failure in daemon.json")
        for pid in daemon.worker_pids():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_delivered(producer), "a worker that delivers")
    (missing,) = (each for each in daemon.status()["failures"] if each["topic"] == "missing")
    assert missing["records"] == 5


def test_each_key_of_status_is_in_the_docs(daemon: SidecarDaemon) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    table = page.partition("### What `status` shows")[2].partition("\nA broker is `silent`")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert documented - {"pauses"} == daemon.status().keys() - {"pauses"}, (
        "pauses are there while something is"
    )
