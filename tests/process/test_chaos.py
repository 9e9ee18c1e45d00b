"""Goal: nothing is lost, doubled or reordered by a hundred kills, seen through the command that users have."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.tools.testing.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.process, pytest.mark.kafka]


def chaos(kafka: KafkaCluster, *options: str, timeout_s: float) -> dict[str, Any]:
    """The JSON that ``kafka-sidecar chaos`` printed; its exit status is what the JSON says."""
    words = [sys.executable, "-m", "sidecar", "chaos", "--bootstrap", kafka.bootstrap_servers, "--json"]
    done = subprocess.run([*words, *options], capture_output=True, text=True, check=False, timeout=timeout_s)
    print(done.stdout, done.stderr[-6000:])
    assert done.stdout, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == found["ok"]
    return found


def check(found: dict[str, Any], kills: int) -> None:
    assert found["ok"], found["problems"]
    assert not found["alarms"]
    assert found["kills"] >= kills
    records, daemon = found["records"], found["daemon"]
    # The daemon's own books say the same as the consumer that is not ours.
    assert daemon["accepted"] == daemon["delivered"] == records["found"]
    assert records["told_delivered"] + records["untold_found"] == records["found"]


@pytest.mark.unmeasured
def test_a_hundred_kills(kafka: KafkaCluster) -> None:
    seed = random.randrange(1 << 30)
    found = chaos(kafka, "--kills", "100", "--rate", "5000", "--seed", str(seed), timeout_s=900)
    check(found, 100)


def chaos_with_transactions(*options: str, timeout_s: float) -> dict[str, Any]:
    """As ``chaos``, on three brokers of its own, which are killed, too."""
    words = [sys.executable, "-m", "sidecar", "chaos", "--transactions", "--json", *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout_s)
    print(done.stdout, done.stderr[-6000:])
    assert done.stdout, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == found["ok"]
    assert found["ok"], (found["problems"], found["transactions"])
    assert not found["alarms"]
    records, transactions, daemon = found["records"], found["transactions"], found["daemon"]
    assert (
        records["told_delivered"] + records["untold_found"] + records["possibly_persisted"]
        >= records["found"]
    )
    assert transactions["committed"] <= transactions["found"] <= transactions["begun"]
    assert daemon["dead_lettered"] == 0
    return found


@pytest.mark.unmeasured
def test_kills_in_transactions() -> None:
    """Judged by a consumer of committed records: each transaction is there whole or not at all, and as was told."""
    seed = random.randrange(1 << 30)
    options = ["--kills", "15", "--rate", "2000", "--clients", "3", "--seed", str(seed)]
    found = chaos_with_transactions(*options, timeout_s=280)
    assert found["kills"] >= 15
    assert found["transactions"]["committed"] > 100


@pytest.mark.long
def test_three_hundred_kills_in_transactions() -> None:
    found = chaos_with_transactions("--kills", "300", "--rate", "4000", timeout_s=3600)
    assert found["kills"] >= 300


def test_a_soak_in_its_short_form(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Clients end and die, a worker dies; everything is sampled, drawn, and the segment is empty at the end."""
    picture = tmp_path / "soak.png"
    options = ["--soak", "--duration", "8", "--rate", "4000", "--clients", "2"]
    found = chaos(kafka, *options, "--plot", str(picture), timeout_s=120)
    assert found["ok"], found["problems"]
    assert "too short to judge growth" in found["verdict"]
    assert {"client_ended", "client_killed", "worker_killed"} <= set(found["steps"])
    records, daemon = found["records"], found["daemon"]
    assert daemon["accepted"] == daemon["delivered"] == records["found"] > 10_000
    roles = {each["role"] for sample in found["samples"] for each in sample["processes"]}
    assert {"controller", "worker 0", "worker 1", "resident client", "probe"} <= roles
    assert any(sample["p50_ms"] for sample in found["samples"])
    judged = {trend["what"] for trend in found["trends"]}
    assert {"controller: fds", "worker 1: threads"} <= judged
    assert picture.stat().st_size > 10_000


@pytest.mark.long
def test_a_soak_of_half_an_hour() -> None:
    """With a broker of its own, which restarts. The numbers of docs/chaos.md come from it."""
    words = [
        sys.executable,
        "-m",
        "sidecar",
        "chaos",
        "--soak",
        "--json",
        "--rate",
        "50000",
        "--value-bytes",
        "16",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=2 * 3600)
    print(done.stdout[:6000], done.stderr[-6000:])
    found = json.loads(done.stdout)
    assert found["ok"], (found["verdict"], found["problems"])
    assert found["verdict"] == "nothing grows"


@pytest.mark.long
def test_a_thousand_kills_and_fifty_million_records(kafka: KafkaCluster) -> None:
    options = ["--kills", "1000", "--records", "50000000", "--rate", "30000", "--value-bytes", "16"]
    check(chaos(kafka, *options, timeout_s=4 * 3600), 1000)
