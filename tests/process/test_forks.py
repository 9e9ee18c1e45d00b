"""Goal: a forked child never touches its parent's stream, in whatever way and at whatever moment it is forked.

Method: each way is a script of its own, because it forks while threads send. It prints what each process sent and
was told; the ledger over all of them is filled by a librdkafka reader.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.reading import read_topic

pytestmark = [pytest.mark.process, pytest.mark.kafka]

SCRIPT = Path(__file__).with_name("fork_ways.py")
FORKS = 6


@pytest.fixture(scope="module")
def daemon(kafka: KafkaCluster) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(kafka.bootstrap_servers) as running:
        yield running


def run_way(way: str, daemon: SidecarDaemon, topic: str) -> dict[str, list[int]]:
    """Name of each sender → numbers told as delivered; every one that it sent."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(SCRIPT), way, str(daemon.run_dir), topic, str(FORKS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    told: dict[str, list[int]] = {}
    for line in done.stdout.splitlines():
        name, sent, delivered = json.loads(line)
        assert sorted(delivered) == list(range(sent)), f"{name} was told {len(delivered)} of {sent}"
        told[name] = delivered
    return told


@pytest.mark.parametrize(
    ("way", "children"),
    [
        ("exits", 0),  # the child ends at once, as after a failed exec
        ("sends", FORKS),  # it goes on with the inherited producer
        ("closes", 0),  # it flushes and closes the producer that it inherited
        ("ends", 0),  # it ends by sys.exit, with atexit handlers and all
        ("multiprocessing-fork", FORKS),
        ("multiprocessing-spawn", FORKS),
        ("daemon", FORKS),  # as pyspark.daemon: fork, setsid, fork for each task, while the parent sends
    ],
)
def test_cl_05_forked_while_another_thread_sends(
    daemon: SidecarDaemon, kafka: KafkaCluster, new_topic: NewTopic, ledger: Ledger, way: str, children: int
) -> None:
    topic = new_topic(partitions=3)
    told = run_way(way, daemon, topic)
    assert len(told) == children + 1
    for name, delivered in told.items():
        ledger.sent(name, len(delivered))
        for number in delivered:
            ledger.delivered(RecordId(name, number))
    ledger.read_all(
        (RecordId.decode(record.value or b""), record.partition)
        for record in read_topic(kafka.bootstrap_servers, topic)
    )
    ledger.check()
