"""Goal: with delivery=exactly_once each row of a batch is in Kafka once for readers with read_committed, whatever fails
or is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.waiting import wait_until
from tests.spark.exactly_once_jobs import BATCH, STREAM, committed, finish, start

pytestmark = [pytest.mark.process, pytest.mark.kafka, pytest.mark.spark]

ROWS = 3_000
FILES = 12
LINES = 200
JOB_S = 200.0
WAYS = ("sink", "foreachBatch")


@pytest.fixture
def daemon(kafka: KafkaCluster, start_daemon: StartDaemon) -> SidecarDaemon:
    return start_daemon(kafka.bootstrap_servers)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(FILES):
        path = folder / f"{number:03}.txt"
        path.write_text("".join(f"{number}-{line}\n" for line in range(LINES)))
        os.utime(path, (number, number))  # Spark takes the oldest first
    return folder


EXPECTED = Counter(f"{number}-{line}".encode() for number in range(FILES) for line in range(LINES))


def test_batch_with_a_failed_task_is_written_once(
    kafka: KafkaCluster, new_topic: NewTopic, daemon: SidecarDaemon, tmp_path: Path
) -> None:
    topic = new_topic(partitions=3)
    finish(start(tmp_path, BATCH, str(daemon.run_dir), str(ROWS), topic), tmp_path, JOB_S)
    assert committed(kafka.bootstrap_servers, topic) == Counter(str(each).encode() for each in range(ROWS))


def test_batch_with_a_job_id_is_written_once_however_often_it_runs(
    kafka: KafkaCluster, new_topic: NewTopic, daemon: SidecarDaemon, tmp_path: Path
) -> None:
    topic = new_topic(partitions=3)
    for _ in range(2):
        job = start(tmp_path, BATCH, str(daemon.run_dir), str(ROWS), topic, f"job.id={topic}")
        finish(job, tmp_path, JOB_S)
    assert committed(kafka.bootstrap_servers, topic) == Counter(str(each).encode() for each in range(ROWS))


@pytest.mark.parametrize(
    ("way", "kills"),
    [*((way, 1) for way in WAYS), *(pytest.param(way, 10, marks=pytest.mark.long) for way in WAYS)],
)
def test_stream_whose_driver_is_killed_writes_each_row_once(
    way: str,
    kills: int,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    daemon: SidecarDaemon,
    source: Path,
    tmp_path: Path,
) -> None:
    topic = new_topic(partitions=3)
    arguments = (str(daemon.run_dir), str(source), str(tmp_path / "checkpoint"), topic, way)
    commits = tmp_path / "checkpoint" / "commits"
    for kill in range(kills):
        driver = start(tmp_path, STREAM, *arguments, master=f"local[{1 + kill % 3},4]")
        _wait_for_batches(commits, min(2 + kill, FILES // 2 - 1), driver, tmp_path)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    finish(start(tmp_path, STREAM, *arguments), tmp_path, JOB_S)
    assert committed(kafka.bootstrap_servers, topic) == EXPECTED


def _wait_for_batches(commits: Path, count: int, driver: subprocess.Popen[bytes], folder: Path) -> None:
    """Until Spark has noted so many batches: the driver is then somewhere in the next one."""

    def are_there() -> bool:
        assert driver.poll() is None, (folder / "driver.log").read_text()[-4000:]
        return len(list(commits.glob("[0-9]*"))) >= count

    wait_until(are_there, f"{count} batches in the commit log", timeout_s=JOB_S)
