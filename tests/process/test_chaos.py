"""Goal: nothing is lost, doubled or reordered by a hundred kills, seen through the command that users have."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from sidecar.testing.kafka_cluster import KafkaCluster

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


def test_a_hundred_kills(kafka: KafkaCluster) -> None:
    seed = random.randrange(1 << 30)
    found = chaos(kafka, "--kills", "100", "--rate", "5000", "--seed", str(seed), timeout_s=900)
    check(found, 100)


@pytest.mark.long
def test_a_thousand_kills_and_fifty_million_records(kafka: KafkaCluster) -> None:
    options = ["--kills", "1000", "--records", "50000000", "--rate", "30000", "--value-bytes", "16"]
    check(chaos(kafka, *options, timeout_s=4 * 3600), 1000)
